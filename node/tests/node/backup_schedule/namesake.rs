//! Another cluster of the same name saves at the target.

use super::*;

/// The story: the other one's backup ended last, so none was due here, for ever; and one that was saved by hand would have
/// built on it.
#[tokio::test(flavor = "multi_thread")]
async fn another_clusters_backup_is_named_once_and_the_schedule_goes_by_its_own() {
    let mut cluster = Cluster::format(1, "64MiB", "");
    std::fs::create_dir(folder(&cluster)).expect("a folder");
    schedule(&mut cluster);
    cluster.start_all().await;
    let first = settled(&cluster, "a first backup", |listed| listed.len() == 1).await;
    // An identity that no member here has.
    rewrite_each(&cluster, &first, |manifest| {
        let own = manifest["head"]["members"].as_array().expect("members");
        assert_eq!(own.len(), 1);
        manifest["head"]["members"] = json!([5]);
    });

    // It looks at the target at once.
    cluster.client().put("key", "value").await.expect("a put");
    reload(&mut cluster, 0, "backup.keep = 2", "backup.keep = 1");
    let second = settled(&cluster, "an own one", |listed| has_new(listed, &first)).await;
    let last = second.last().expect("a backup");
    assert_eq!(last["since"], Value::Null, "it has everything");
    let words = "another cluster of this name saves there";
    let log = cluster.logs_with(words, |log| log.contains(words)).await;
    let line = log.lines().find(|line| line.contains(words)).expect("logged");
    assert!(line.contains("ERROR") && line.contains(names(&first)[0]), "{line}");
    // The story: lines of the source were joined with their indentation.
    assert!(line.contains("This one goes on with its own backups"), "{line}");
    assert!(line.contains("were replaced since, or the cluster was made anew"), "{line}");

    // The other one's is neither counted nor removed, and not named again.
    age(&cluster, &second[1..]);
    cluster.client().put("key", "another").await.expect("a put");
    reload(&mut cluster, 0, "backup.every = \"1h\"", "backup.every = \"90m\"");
    let replaced = |listed: &[Value]| has_new(listed, &second) && listed.len() == 2;
    let third = settled(&cluster, "the own one is replaced", replaced).await;
    assert_eq!(names(&third)[0], names(&first)[0]);
    let last = third.last().expect("a backup");
    assert_eq!(last["since"], second[1]["name"], "it has what changed alone");
    let log = cluster.logs();
    assert_eq!(log.lines().filter(|line| line.contains(words)).count(), 1, "{log}");
}
