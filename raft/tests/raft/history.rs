//! What members tell of the changes that they applied.

use crate::support::{Cluster, WAIT_LIMIT, put, until, write};
use cairn_engine::{LogId, Value};
use cairn_raft::{EntryChanges, HistoryError, Replica, ReplicaConfig};
use std::collections::BTreeSet;

/// Overwrites a few keys at the leader, and returns which entry has which value.
async fn overwrite(cluster: &Cluster, numbers: std::ops::Range<usize>) -> Vec<(LogId, String)> {
    let leader = cluster.leader().await;
    let mut written = Vec::new();
    for number in numbers {
        let value = format!("value {number}").repeat(100);
        let command = put(&format!("key{}", number % 3), Value::from(value.clone()));
        written.push((write(leader, command).await.log_id, value));
    }
    written
}

/// Returns once the member can tell the last of these: a read of the state may see it a moment before.
async fn has_applied(replica: &Replica, written: &[(LogId, String)]) {
    let last = written.last().unwrap().0;
    replica.applied_behind(LogId { index: last.index - 1, ..last }).await;
}

/// Those of entries that changed something, once the member may be read.
async fn changes(replica: &Replica, after: LogId) -> Vec<EntryChanges> {
    let told = loop {
        match replica.changes(after, usize::MAX).await {
            Err(HistoryError::Barrier(_) | HistoryError::Recovering) => {
                tokio::task::yield_now().await;
            }
            told => break told.unwrap(),
        }
    };
    told.into_iter().filter(|entry| !entry.changes.is_empty()).collect()
}

/// Checks that this member tells what was written behind `after`, each once and with its value.
async fn check(replica: &Replica, after: LogId, written: &[(LogId, String)]) {
    let written: Vec<_> = written.iter().filter(|(id, _)| *id > after).collect();
    let told = changes(replica, after).await;
    assert!(told.iter().map(|entry| entry.id).eq(written.iter().map(|(id, _)| *id)), "{told:?}");
    for (entry, (_, value)) in told.iter().zip(written) {
        let [change] = &entry.changes[..] else { panic!("{entry:?}") };
        let logged = change.value.expect("a put");
        assert_eq!(logged.bytes as usize, value.len());
        let read = replica.logged_value(entry.id, logged.number).await.unwrap();
        assert_eq!(read.unwrap(), value.as_bytes());
    }
}

/// A restart forgets what the entries changed. What is applied again is told again, and the values come
/// from the device.
#[tokio::test(flavor = "multi_thread")]
async fn each_member_tells_the_same_changes_also_those_that_it_applies_again_after_a_restart() {
    let mut cluster = Cluster::new(3, |_| ()).await;
    cluster.log_cache_bytes = 0;
    for slot in 1..=3 {
        cluster.start(slot).await;
    }
    let mut written = overwrite(&cluster, 0..20).await;
    let first = written[0].0;
    cluster.converge().await;
    for replica in cluster.replicas() {
        has_applied(replica, &written).await;
        check(replica, first, &written).await;
        let other = changes(cluster.replica(1), first).await;
        assert_eq!(changes(replica, first).await, other);
    }
    let leader = cluster.leader().await.node_id().slot();
    let away = (1..=3).find(|slot| *slot != leader).unwrap();
    let last = cluster.replica(away).status().applied.unwrap();
    cluster.kill(away).await;
    written.extend(overwrite(&cluster, 20..30).await);
    cluster.start(away).await;
    cluster.converge().await;
    let (back, leader) = (cluster.replica(away), cluster.replica(leader));
    has_applied(back, &written).await;
    let oldest = back.history().oldest.expect("it begins somewhere");
    let told = changes(back, oldest).await;
    assert!(told.iter().any(|entry| entry.id <= last), "nothing of what it applied again");
    assert!(told.iter().any(|entry| entry.id > last), "nothing of what came meanwhile");
    let after = oldest.max(first);
    check(back, after, &written).await;
    assert_eq!(changes(back, after).await, changes(leader, after).await);
}

const VALUE_BYTES: u64 = 16 << 10;
const HISTORY_BYTES: u64 = 1 << 20;

/// Followers are left about nothing of the log, and checkpoints let it go often.
fn keep_changes(config: &mut ReplicaConfig) {
    config.log_retain_bytes = 1 << 10;
    config.history_retain_bytes = HISTORY_BYTES;
    config.checkpoint_bytes = HISTORY_BYTES / 4;
}

/// The story: all tests passed while the log was purged without a look at the history, which then began
/// where the log did.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_purged_up_to_what_the_history_keeps_and_no_further() {
    let cluster = Cluster::started(1, keep_changes).await;
    let leader = cluster.leader().await;
    let fill = async {
        let (mut written, mut purges) = (0, BTreeSet::new());
        // More than the history keeps, and then until it was let go several times.
        while purges.len() < 5 {
            let value = vec![7_u8; usize::try_from(VALUE_BYTES).unwrap()];
            write(leader, put(&format!("key{}", written % 3), value)).await;
            written += 1;
            let purged = leader.status().purged;
            let history = leader.history();
            assert!(purged <= history.oldest, "{purged:?} is purged of {history:?}");
            if written * VALUE_BYTES >= HISTORY_BYTES {
                purges.extend(purged);
                // It is short of one entry at most, and of what entries have beside their values.
                let least = HISTORY_BYTES - 2 * VALUE_BYTES;
                assert!(history.bytes >= least, "after {written}: {history:?}");
            }
        }
    };
    tokio::time::timeout(WAIT_LIMIT, fill).await.expect("the log is purged");
    until("the log and its history to be as short as they should be", || {
        let (status, history) = (leader.status(), leader.history());
        let logged = status.last_log?.index - status.purged?.index;
        let is_short = logged <= history.entries + history.entries / 8;
        (is_short && history.bytes <= HISTORY_BYTES).then_some(())
    })
    .await;
    let oldest = leader.history().oldest.expect("it let something go");
    let told: u64 = changes(leader, oldest).await.len().try_into().unwrap();
    assert!((told + 2) * VALUE_BYTES >= HISTORY_BYTES, "{told} entries");
}
