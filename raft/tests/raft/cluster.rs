//! Three replicas: forming, writing, reading, losing the leader, losing all.

use crate::support::{Cluster, WAIT_LIMIT, put, quick, until, value, write};
use cairn_raft::{
    Command, Condition, GROUP, Operation, ReadError, Role, Session, VERSION, WriteError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

#[tokio::test(flavor = "multi_thread")]
async fn three_uninitialized_members_form_a_cluster_and_take_a_write() {
    let cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await;
    let outcome = write(leader, put("a", "1")).await;
    assert!(outcome.applied);
    assert_eq!(value(leader, "a").await.unwrap(), "1");
    cluster.converge().await;
    for replica in cluster.replicas() {
        assert_eq!(value(replica, "a").await.unwrap(), "1");
        let status = replica.status();
        assert_eq!(status.members.iter().filter(|member| member.voter).count(), 3);
        assert_eq!(status.stopped_reason, None);
        // The leader may have logged boot epochs of the members behind it.
        assert!(status.applied.map(|id| id.index) >= Some(outcome.log_id.index));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_names_the_leader_and_takes_no_writes() {
    let cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await;
    let follower = cluster.replicas().find(|r| r.status().role == Role::Follower).unwrap();
    let expected = leader.leader().unwrap();
    assert_eq!(expected.0, leader.node_id());
    assert_eq!(
        follower.write(put("a", "1")).await,
        Err(WriteError::NotLeader { leader: expected.clone() })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_knows_how_long_it_leads_and_a_follower_that_it_heard_one() {
    let cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await;
    until("a time of leading", || leader.leads_for().filter(|led| !led.is_zero())).await;
    for follower in cluster.replicas().filter(|one| one.node_id() != leader.node_id()) {
        assert_eq!(follower.leads_for(), None);
        let heard = || follower.heard_leader_within(WAIT_LIMIT).then_some(());
        until("a message of the leader", heard).await;
        assert!(!follower.heard_leader_within(Duration::ZERO));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_at_a_follower_sees_every_write_that_was_acknowledged_before() {
    let cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await;
    for round in 0..50 {
        let key = format!("key{}", round % 5);
        write(leader, put(&key, round.to_string())).await;
        for replica in cluster.replicas() {
            replica.read_barrier().await.unwrap();
            assert_eq!(value(replica, &key).await.unwrap(), round.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_leader_does_not_answer_names_it_and_serves_no_reads() {
    let mut cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await.node_id();
    let follower = cluster.replicas().find(|r| r.node_id() != leader).unwrap().node_id();
    for slot in (1..=3).filter(|slot| *slot != follower.slot()) {
        cluster.kill(slot).await;
    }
    let refused = cluster.replica(follower.slot()).read_barrier().await;
    match refused {
        Err(ReadError::NotLeader { leader: named }) => assert_eq!(named.0, leader),
        refused => assert_eq!(refused, Err(ReadError::NoLeader)),
    }
}

/// Longer than a test lasts.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// It may lack what was acknowledged since that barrier, and nothing before.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_cut_off_serves_reads_that_may_be_as_old_as_its_last_barrier() {
    let mut cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await.node_id();
    let replica = cluster.replicas().find(|one| one.node_id() != leader).unwrap();
    let slot = replica.node_id().slot();
    cluster.put("a", b"1".to_vec()).await;
    // It knows of none, or of one that may be older than the put.
    while cluster.replica(slot).read_barrier_within(Duration::ZERO).await.is_err() {
        tokio::task::yield_now().await;
    }
    for other in (1..=3).filter(|other| *other != slot) {
        cluster.kill(other).await;
    }
    let replica = cluster.replica(slot);
    replica.read_barrier_within(LONG).await.unwrap();
    assert_eq!(value(replica, "a").await.unwrap(), "1");
    let refused = replica.read_barrier_within(Duration::ZERO).await;
    assert!(
        matches!(refused, Err(ReadError::NoLeader | ReadError::NotLeader { .. })),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_after_a_barrier_sees_every_write_that_was_acknowledged_before() {
    let cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await;
    for round in 0..50 {
        let key = format!("key{}", round % 5);
        write(leader, put(&key, round.to_string())).await;
        let callers = (0..8).map(|_| async {
            leader.read_barrier().await.unwrap();
            assert_eq!(value(leader, &key).await.unwrap(), round.to_string());
        });
        futures::future::join_all(callers).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_quorum_serves_no_reads_and_acknowledges_no_writes() {
    let mut cluster = Cluster::started(3, quick).await;
    let id = cluster.leader().await.node_id();
    for slot in (1..=3).filter(|slot| *slot != id.slot()) {
        cluster.kill(slot).await;
    }
    let leader = cluster.replica(id.slot());
    // Another may have been elected, on a busy machine, just before the last of them was killed.
    let refused = leader.read_barrier().await;
    assert!(
        matches!(refused, Err(ReadError::NoLeader | ReadError::NotLeader { .. })),
        "{refused:?}"
    );
    until("the refusal of writes", || {
        (leader.status().role != Role::Leader || lease_over(leader)).then_some(())
    })
    .await;
}

/// Whether the leader refuses writes at once. Does not wait for an outcome that cannot come.
fn lease_over(replica: &cairn_raft::Replica) -> bool {
    use futures::FutureExt;
    let mut write = Box::pin(replica.write(put("never", "acknowledged")));
    match (&mut write).now_or_never() {
        Some(Ok(outcome)) => panic!("acknowledged without a quorum: {outcome:?}"),
        Some(Err(error)) => error == WriteError::NoLeader,
        None => {
            std::thread::yield_now();
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_is_killed_the_others_continue_and_it_catches_up_afterwards() {
    let mut cluster = Cluster::started(3, quick).await;
    for number in 0..100 {
        cluster.put(&format!("before{number}"), vec![1; 5000]).await;
    }
    let (killed, term) = {
        let leader = cluster.leader().await;
        (leader.node_id().slot(), leader.status().term)
    };
    cluster.kill(killed).await;
    for number in 0..100 {
        cluster.put(&format!("after{number}"), vec![2; 5000]).await;
    }
    assert!(cluster.leader().await.status().term > term);
    cluster.start(killed).await;
    cluster.converge().await;
    let back = cluster.replica(killed);
    for number in 0..100 {
        assert_eq!(value(back, &format!("before{number}")).await.unwrap(), vec![1; 5000]);
        assert_eq!(value(back, &format!("after{number}")).await.unwrap(), vec![2; 5000]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_shut_down_hands_over_in_one_election() {
    let mut cluster = Cluster::started(3, |_| ()).await;
    cluster.put("a", "1").await;
    let (leader, term) = {
        let leader = cluster.leader().await;
        (leader.node_id(), leader.status().term)
    };
    cluster.replica(leader.slot()).shutdown().await.unwrap();
    let transferee =
        until("a new leader", || cluster.replicas().find(|r| r.status().role == Role::Leader))
            .await;
    assert_eq!(transferee.status().term, term + 1, "an election failed");
    assert_eq!(cluster.replica(leader.slot()).status().role, Role::Stopped);
    cluster.kill(leader.slot()).await;
    cluster.put("b", "2").await;
    cluster.converge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_are_killed_every_acknowledged_write_is_there_after_the_restart() {
    let mut cluster = Cluster::started(3, quick).await;
    for number in 0..200 {
        cluster.put(&format!("key{number}"), number.to_string()).await;
    }
    let term = cluster.leader().await.status().term;
    for slot in 1..=3 {
        cluster.kill(slot).await;
    }
    for slot in 1..=3 {
        cluster.start(slot).await;
        // What was applied before is applied again before the replica serves anything.
        let applied = cluster.replica(slot).status().applied;
        assert!(applied.is_some(), "slot {slot} came back empty");
    }
    let leader = cluster.up_to_date().await;
    assert!(leader.status().term > term, "no leader resumes a term");
    for number in 0..200 {
        assert_eq!(value(leader, &format!("key{number}")).await.unwrap(), number.to_string());
    }
    cluster.converge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_retried_at_the_next_leader_has_the_first_outcome() {
    let mut cluster = Cluster::started(3, quick).await;
    let session = Session { client_id: 1, sequence: 1, lowest_pending: 1, base_index: 0 };
    let operation =
        Operation::Put { key: "a".into(), value: "mine".into(), condition: Condition::Absent };
    let command = Command { synced: false, session: Some(session), operations: vec![operation] };
    let first = cluster.write(command.clone()).await;
    assert!(first.applied);
    cluster.put("a", "theirs").await;
    let killed = cluster.leader().await.node_id().slot();
    cluster.kill(killed).await;
    let repeated = cluster.write(command).await;
    assert_eq!(repeated, first);
    assert_eq!(value(cluster.leader().await, "a").await.unwrap(), "theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_applied_whole_or_not_at_all() {
    let cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await;
    let version = write(leader, put("a", "1")).await.log_id.index;
    let batch = |condition| Command {
        synced: false,
        session: None,
        operations: vec![
            Operation::Put { key: "b".into(), value: "2".into(), condition: Condition::None },
            Operation::Delete { key: "a".into(), condition },
        ],
    };
    let refused = write(leader, batch(Condition::Version(version + 1))).await;
    assert!(!refused.applied);
    assert_eq!(refused.results[1].version, version);
    assert_eq!(value(leader, "b").await, None);
    let taken = write(leader, batch(Condition::Version(version))).await;
    assert!(taken.applied);
    assert_eq!(value(leader, "a").await, None);
    assert_eq!(value(leader, "b").await.unwrap(), "2");
}

fn range(start: &str, end: &str, most: u32) -> Command {
    let (start, end) = (start.to_string().into(), end.to_string().into());
    let operation = Operation::DeleteRange { start, end, most, whole: false };
    Command { synced: false, session: None, operations: vec![operation] }
}

/// An operator finishes the upgrade: where a founder is silent for some seconds, as on a slow machine, a cluster begins at
/// an earlier version and stays there.
async fn until_ranges(cluster: &Cluster) {
    let finish = async {
        // It is refused until every member's version is in the log.
        while cluster.leader().await.finish_upgrade(VERSION).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, finish).await.expect("the cluster has the newest version");
}

/// Members cut the log into steps at different entries, and apply it again after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_deleted_alike_on_every_member_among_the_puts_of_many_and_after_a_restart() {
    const KEYS: u32 = 10;
    let mut cluster = Cluster::started(3, |_| ()).await;
    until_ranges(&cluster).await;
    let leader = cluster.leader().await;
    let writers = (0..8).map(|writer| async move {
        for most in (1..=KEYS + 1).chain([3]) {
            for number in 0..KEYS {
                write(leader, put(&format!("{writer}/{number}"), most.to_string())).await;
            }
            let range = range(&format!("{writer}/"), &format!("{writer}0"), most);
            let outcome = write(leader, range).await;
            let result = outcome.results[0];
            assert!(outcome.applied);
            assert_eq!((result.deleted, result.more), (most.min(KEYS), most < KEYS));
        }
    });
    futures::future::join_all(writers).await;
    cluster.converge().await;
    for slot in 1..=3 {
        cluster.kill(slot).await;
    }
    for slot in 1..=3 {
        cluster.start(slot).await;
    }
    let leader = cluster.up_to_date().await;
    let left: Vec<String> = (0..8)
        .flat_map(|writer| (3..KEYS).map(move |number| format!("{writer}/{number}")))
        .collect();
    let view = leader.engine().view(GROUP);
    let found: Vec<_> = view.entries().map(|(key, _)| String::from_utf8_lossy(key)).collect();
    assert_eq!(found, left);
    cluster.converge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_concurrent_writes_are_each_acknowledged_once_and_applied_everywhere() {
    let cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await;
    let writers = (0..64).map(|writer| async move {
        let mut indices = Vec::new();
        for number in 0..50 {
            let outcome = write(leader, put(&format!("{writer}/{number}"), vec![7; 1000])).await;
            indices.push(outcome.log_id.index);
        }
        indices
    });
    let mut indices: Vec<u64> =
        futures::future::join_all(writers).await.into_iter().flatten().collect();
    indices.sort_unstable();
    indices.dedup();
    assert_eq!(indices.len(), 64 * 50);
    cluster.converge().await;
    assert_eq!(cluster.replica(1).engine().view(cairn_raft::GROUP).len(), 64 * 50);
}

/// The story: openraft retries with every entry, and each retry to a member that was down connected to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_down_is_not_called_for_every_entry() {
    let mut cluster = Cluster::started(3, |_| ()).await;
    let leader = cluster.leader().await.node_id().slot();
    let down = if leader == 3 { 2 } else { 3 };
    cluster.kill(down).await;
    let listener = TcpListener::bind(cluster.members[usize::from(down) - 1].listen).await.unwrap();
    let (connections, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let counted = Arc::clone(&connections);
    let closing = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let leader = cluster.replica(leader);
    for round in 0..2_000 {
        write(leader, put("a", round.to_string())).await;
    }
    let (connections, took) = (connections.load(Ordering::SeqCst), began.elapsed());
    closing.abort();
    // One attempt in 50 ms for entries, and one for each heartbeat.
    assert!(u128::from(connections) <= 10 + took.as_millis() / 20, "{connections} in {took:?}");
}
