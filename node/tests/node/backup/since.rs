//! What a save since the latest backup builds on.

use super::*;
use crate::support::run;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::{Value, json};
use std::fs::{Permissions, set_permissions};

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
}

/// The story: the disk of the target was not mounted. Each nightly `save --since latest` wrote everything to the mount point, and its exit
/// code was 0.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_since_the_latest_is_refused_where_no_backup_is() {
    let (cluster, _) = saved().await;
    let new = cluster.folder.path().join("new");
    let target = new.to_str().expect("text");
    let since = ["backup", "save", target, "--since", "latest"];
    let refused = |ran: Ran| {
        let says = ["there is no backup", "its disk is mounted", "without --since"];
        assert!(ran.code == 2 && says.iter().all(|says| ran.stderr.contains(says)), "{ran:?}");
    };
    refused(cluster.cairn(&since));
    // What was begun and broken off is none.
    let begun = new.join("begun");
    std::fs::create_dir(&begun).expect("a folder");
    std::fs::write(begun.join("values-000000"), "half").expect("a file");
    refused(cluster.cairn(&since));
    let names = std::fs::read_dir(&new).expect("it is made").count();
    assert_eq!(names, 1, "nothing is saved");

    let first = json_of(&cluster.cairn(&["backup", "save", target, "-o", "json"]));
    cluster.client().put("key 0 0", "changed").await.expect("a put");
    let next = json_of(&cluster.cairn(&[&since[..], &["-o", "json"]].concat()));
    assert_eq!(next["since"], first["name"]);
}

/// Runs a command that may read only what its user may, also if that is root: a program has no more rights than the thread that starts it
/// may give away.
fn without_privileges(cluster: &Cluster, arguments: &[&str]) -> Ran {
    let endpoints = cluster.endpoints().join(",");
    let all = [arguments, &["--endpoints", &endpoints, "--timeout", "120s"]].concat();
    let folder = cluster.folder.path();
    std::thread::scope(|scope| {
        let restricted = scope.spawn(|| {
            for may in [CapabilitySet::DAC_OVERRIDE, CapabilitySet::DAC_READ_SEARCH] {
                // Who is not root has none of them to give.
                let _ = remove_capability_from_bounding_set(may);
            }
            run(folder, &all)
        });
        restricted.join().expect("it ends")
    })
}

/// The story: somebody saved as another user. Where the latest backup needed what is in that folder, each nightly save was refused, as if
/// that one were damaged.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_since_the_latest_has_everything_where_that_needs_what_may_not_be_read() {
    let (cluster, target) = saved().await;
    let first = folder_in(Path::new(&target));
    let client = cluster.client();
    client.put("key 0 0", "changed").await.expect("a put");
    let save = ["backup", "save", &target, "--since", "latest", "-o", "json"];
    let second = json_of(&cluster.cairn(&save));
    assert_eq!(second["left_out"], Value::Null);

    set_permissions(&first, Permissions::from_mode(0o000)).expect("ours");
    client.put("key 0 0", "again").await.expect("a put");
    let whole = json_of(&without_privileges(&cluster, &save));
    assert_eq!((&whole["since"], &whole["left_out"]), (&Value::Null, &second["name"]));
    let why = whole["why_left_out"].as_str().expect("why");
    assert!(why.contains("cannot be read (Permission denied"), "{why}");
    // Who names it is told.
    let name = second["name"].as_str().expect("a name");
    let named = without_privileges(&cluster, &["backup", "save", &target, "--since", name]);
    assert!(named.code == 1 && named.stderr.contains("cannot be read (Perm"), "{named:?}");
    // The next night.
    let next = json_of(&without_privileges(&cluster, &save));
    assert_eq!((&next["since"], &next["left_out"]), (&whole["name"], &Value::Null));
    set_permissions(&first, Permissions::from_mode(0o700)).expect("ours");
}

/// The story: the backups were another user's, and none could be read. The save said that the disk may not be mounted.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_since_the_latest_says_what_may_not_be_read_where_no_backup_may_be() {
    let (cluster, target) = saved().await;
    let first = folder_in(Path::new(&target));
    let manifest = first.join("manifest");
    for (path, closed, open) in [(&first, 0o000, 0o700), (&manifest, 0o000, 0o600)] {
        set_permissions(path, Permissions::from_mode(closed)).expect("ours");
        let save = ["backup", "save", &target, "--since", "latest"];
        let refused = without_privileges(&cluster, &save);
        let said = format!("{}` cannot be read", path.display());
        assert!(refused.code == 1 && refused.stderr.contains(&said), "{refused:?}");
        assert!(!refused.stderr.contains("mounted"), "{refused:?}");
        set_permissions(path, Permissions::from_mode(open)).expect("ours");
    }
    let saved = std::fs::read_dir(&target).expect("a folder").count();
    assert_eq!(saved, 1, "nothing is saved");
}
