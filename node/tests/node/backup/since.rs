//! What a save since the latest backup builds on.

use super::*;
use serde_json::json;

/// The story: all members of a cluster were replaced between two backups. The earlier one counted as another cluster's then, and
/// each nightly `save --since latest` failed, because no backup was the cluster's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_since_the_latest_has_everything_where_no_backup_is_the_clusters_own() {
    let (cluster, target) = saved().await;
    let path = folder_in(Path::new(&target)).join("manifest");
    let text = std::fs::read_to_string(&path).expect("a manifest");
    let (_, manifest) = text.split_once('\n').expect("a line before the JSON");
    let mut manifest: Value = serde_json::from_str(manifest).expect("JSON");
    // An identity that no member has any more.
    manifest["head"]["members"] = json!([5]);
    let manifest = manifest.to_string();
    let (crc, bytes) = (crc32fast::hash(manifest.as_bytes()), manifest.len());
    let line = format!("cairn-backup {crc:08x} {bytes}");
    std::fs::write(&path, format!("{line}\n{manifest}")).expect("ours");

    let save = ["backup", "save", &target, "--since", "latest", "-o", "json"];
    let client = cluster.client();
    client.put("key 0 0", "changed").await.expect("a put");
    let whole = json_of(&cluster.cairn(&save));
    assert_eq!((&whole["since"], &whole["left_out"]), (&Value::Null, &json!("latest")));
    let why = whole["why_left_out"].as_str().expect("why");
    assert!(why.contains("there is no backup of this cluster at "), "{why}");
    // The next night.
    client.put("key 0 0", "again").await.expect("a put");
    let next = json_of(&cluster.cairn(&save));
    assert_eq!((&next["since"], &next["left_out"]), (&whole["name"], &Value::Null));

    // The old one stays until somebody names it, and so long a backup must be named.
    let verify = ["backup", "verify", &target];
    let ran = cluster.cairn_alone(&verify);
    assert!(ran.code == 2 && ran.stderr.contains("several clusters: name one"), "{ran:?}");
    let old = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let old = old.expect("a name");
    let prune = ["backup", "prune", &target, "--keep", "2", "--yes", "-o", "json"];
    assert_eq!(json_of(&cluster.cairn_alone(&prune))["backups"], json!([]));
    let prune = [&prune[..], &["--remove", old]].concat();
    assert_eq!(json_of(&cluster.cairn_alone(&prune))["backups"], json!([old]));
    let ran = cluster.cairn_alone(&verify);
    assert_eq!(ran.code, 0, "{ran:?}");

    // Nor does the first night fail.
    let new = cluster.folder.path().join("new");
    let new = new.to_str().expect("text");
    let ran = cluster.cairn(&["backup", "save", new, "--since", "latest"]);
    let says = ran.stdout.contains("so this one builds on none and has everything");
    assert!(ran.code == 0 && says, "{ran:?}");
}
