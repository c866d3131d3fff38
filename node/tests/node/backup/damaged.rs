//! Restores of backups that are not as they were saved, and of those with values that are as long as may be.

use super::kills::{cluster_named_in, refuses_or_has_all};
use super::*;

/// The manifest with the hash of another state.
fn of_another_state(manifest: &str) -> String {
    let (_, json) = manifest.split_once('\n').expect("a line before the JSON");
    let mut json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    json["state"] = "0".repeat(32).into();
    let json = json.to_string();
    format!("cairn-backup {:08x} {}\n{json}", crc32fast::hash(json.as_bytes()), json.len())
}

/// Damage may be met at the first value, or only behind the last key, where all of it is compared with the hash of the
/// state. Until then the directory belongs to no cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_of_a_damaged_backup_leaves_nothing_that_a_node_starts_with() {
    let (mut cluster, target) = saved().await;
    let folder = folder_in(Path::new(&target));
    cluster.kill_all();
    let config = cluster.config(0).to_owned();
    let restore = ["backup", "restore", &target, "--config", &config, "-o", "json"];
    let (values, manifest) = (folder.join("values-000000"), folder.join("manifest"));
    let mut flipped = std::fs::read(&values).expect("values");
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let mixed = of_another_state(&std::fs::read_to_string(&manifest).expect("a manifest"));
    for (path, damaged, why) in [
        (&values, flipped, "does not have its checksum"),
        (&manifest, mixed.into_bytes(), "its records are not those of 4000 keys"),
    ] {
        cluster.lose_disk(0);
        let whole = std::fs::read(path).expect("it is there");
        std::fs::write(path, damaged).expect("ours");
        let ran = cluster.cairn_alone(&restore);
        assert!(ran.code == 1 && ran.stderr.contains("is half restored"), "{ran:?}");
        assert!(ran.stderr.contains(why), "{ran:?}");
        assert_eq!(cluster_named_in(&cluster, 0), "(being restored)");
        let said = refuses_or_has_all(&mut cluster, &BTreeMap::new()).await.expect("it opens");
        assert!(said.contains("is half restored"), "{said}");
        std::fs::write(path, whole).expect("ours");
    }
    cluster.lose_disk(0);
    assert_eq!(json_of(&cluster.cairn_alone(&restore))["keys"], 4000);
    cluster.start_all().await;
    let found = cluster.client().get("key 7 7").await.expect("it serves").expect("there");
    assert_eq!(found.value, vec![7; 3000]);
}

/// The story: whoever saved the state took no message of more than 4 MiB, so a cluster with a value of that length
/// had no backup any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_has_a_value_that_is_longer_than_messages_are_by_default() {
    let limits = "limits.max_request_bytes = \"16MiB\"\nlimits.max_value_bytes = \"8MiB\"\n";
    let mut cluster = Cluster::start(1, "128MiB", limits).await;
    let target = target(&cluster);
    let value: Vec<u8> = (0..6_u32 << 20).map(|at| (at % 251) as u8).collect();
    cluster.client().put("large", value.clone()).await.expect("a put");
    cluster.client().put("small", "1").await.expect("a put");
    assert_eq!(json_of(&cluster.cairn(&["backup", "save", &target, "-o", "json"]))["keys"], 2);
    json_of(&cluster.cairn_alone(&["backup", "verify", &target, "-o", "json"]));
    let file = cluster.folder.path().join("exported").to_str().expect("text").to_owned();
    assert_eq!(json_of(&cluster.cairn(&["export", &file, "-o", "json"]))["keys"], 2);
    cluster.kill_all();
    cluster.lose_disk(0);
    let config = cluster.config(0).to_owned();
    let restore = ["backup", "restore", &target, "--config", &config, "-o", "json"];
    assert_eq!(json_of(&cluster.cairn_alone(&restore))["keys"], 2);
    cluster.start_all().await;
    let found = cluster.client().get("large").await.expect("it serves").expect("there");
    assert_eq!(found.value, value);
}
