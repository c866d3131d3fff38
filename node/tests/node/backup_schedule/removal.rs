//! When a schedule removes nothing: of the future, and while the last backup is not seen to be as it was written.

use super::*;

/// The story: by a manifest of next year good backups were old, and went.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_the_future_is_named_once_and_neither_goes_nor_counts() {
    let mut cluster = Cluster::format(1, "64MiB", "");
    std::fs::create_dir(folder(&cluster)).expect("a folder");
    schedule(&mut cluster);
    cluster.start_all().await;
    let first = settled(&cluster, "a first backup", |listed| listed.len() == 1).await;
    let of_future = names(&first)[0];
    rewrite(&cluster, &first, |ended| ended + 365 * 24 * HOUR);

    // It is not the one that ended last, so one is due. That is the only one that counts.
    cluster.client().put("key", "value").await.expect("a put");
    reload(&mut cluster, 0, "backup.keep = 2", "backup.keep = 1");
    let words = "the time of these backups lies in the future";
    let log = cluster.logs_with(words, |log| log.contains(words)).await;
    let line = log.lines().find(|line| line.contains(words)).expect("logged");
    assert!(line.contains("ERROR") && line.contains(of_future), "{line}");
    let both = listed(&cluster);
    assert_eq!((both.len(), names(&both)[0]), (2, of_future), "it stays");

    // Of those that count the older one goes.
    age(&cluster, &both[1..]);
    reload(&mut cluster, 0, "backup.every = \"1h\"", "backup.every = \"90m\"");
    let replaced = async || {
        let listed = listed(&cluster);
        let stays = names(&listed).contains(&of_future);
        let replaced = listed.len() == 2 && !names(&listed).contains(&names(&both)[1]);
        let running = metric(&cluster, 0, "cairn_backup_running")?;
        (stays && replaced && running == "0").then_some(())
    };
    cluster.until("the other one is replaced", replaced).await;
    let log = cluster.logs();
    assert_eq!(log.lines().filter(|line| line.contains(words)).count(), 1, "{log}");
}

/// A backup names an object of the one before, of which a bit is another one by then: nobody sees that who does not
/// read it.
#[tokio::test(flavor = "multi_thread")]
async fn a_saved_backup_that_does_not_verify_removes_nothing_and_the_next_one_has_everything() {
    let mut cluster = Cluster::format(1, "64MiB", "");
    let target = folder(&cluster);
    std::fs::create_dir(&target).expect("a folder");
    schedule(&mut cluster);
    cluster.configure(0, "backup.verify = \"all\"");
    cluster.start_all().await;
    let first = settled(&cluster, "a first backup", |listed| listed.len() == 1).await;
    cluster.client().put("key", "value").await.expect("a put");
    age(&cluster, &first);
    reload(&mut cluster, 0, "backup.keep = 2", "backup.keep = 3");
    let second = settled(&cluster, "a second one", |listed| listed.len() == 2).await;

    let values = target.join(names(&second)[1]).join("values-000000");
    let mut bytes = std::fs::read(&values).expect("the value");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(&values, bytes).expect("ours");
    age(&cluster, &second);
    reload(&mut cluster, 0, "backup.keep = 3", "backup.keep = 1");
    let words = "is not as it was written";
    let log = cluster.logs_with(words, |log| log.contains(words)).await;
    let third = settled(&cluster, "a third one", |listed| has_new(listed, &second)).await;
    let last = third.last().expect("a backup");
    assert_eq!(last["since"], second[1]["name"]);
    let line = log.lines().find(|line| line.contains(words)).expect("logged");
    let named = last["name"].as_str().expect("a name");
    assert!(line.contains("ERROR") && line.contains(named), "{line}");
    assert_eq!(third.len(), 3, "the older ones stay");

    age(&cluster, &third);
    reload(&mut cluster, 0, "backup.every = \"1h\"", "backup.every = \"90m\"");
    let is_new = |listed: &[Value]| has_new(listed, &third) && listed.len() == 2;
    let fourth = settled(&cluster, "a whole one, and that two went", is_new).await;
    let last = fourth.last().expect("a backup");
    assert_eq!(last["since"], Value::Null);
    assert_eq!(verify(&cluster, last["name"].as_str().expect("a name"))["keys"], 1);
}
