//! Writes find the leader and are applied once, or their outcome is reported as unknown.
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

use crate::fake::{
    Cluster, Node, Step, WAIT_LIMIT, at_its_deadline, dead, not_leader, options, refuse,
};
use cairn_client::proto::{self, error_detail::Reason};
use cairn_client::{Client, Condition, Error, ErrorKind, Options, Version, WriteInfo};

async fn one() -> (Cluster, Node, Client) {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).connect().await.unwrap();
    (cluster, node, client)
}

/// A put in a task of its own.
fn send(client: &Client, key: &'static str) -> tokio::task::JoinHandle<Result<WriteInfo, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.put(key, "1").await })
}

/// Returns once the node received this many writes.
async fn received(node: &Node, writes: usize) {
    while node.writes.lock().unwrap().len() < writes {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_put_reports_its_version_and_the_previous_one() {
    let (_, node, client) = one().await;
    let first = client.put("a", "1").await.unwrap();
    let second = client.put("a", "2").await.unwrap();
    assert_eq!((first.version, first.previous), (Version(11), None));
    assert_eq!((second.version, second.previous), (Version(12), Some(Version(11))));
    assert_eq!(client.delete("a").await.unwrap().previous, Some(Version(12)));
    let sessions = node.sessions();
    assert_eq!(sessions.iter().map(|s| s.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(sessions.iter().map(|s| s.lowest_pending).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(sessions.iter().all(|s| s.base_index == 10 && s.client_id == sessions[0].client_id));
}

#[tokio::test]
async fn a_hint_is_followed_to_a_node_that_was_not_known() {
    let cluster = Cluster::new("test");
    let (follower, leader) = (Node::start(&cluster).await, Node::start(&cluster).await);
    follower.always(not_leader(&leader.address));
    let client = options(&[&follower]).connect().await.unwrap();
    client.put("a", "1").await.unwrap();
    client.put("a", "2").await.unwrap();
    assert_eq!(follower.writes.lock().unwrap().len(), 1, "the leader is remembered");
    assert_eq!(leader.sessions().iter().map(|s| s.sequence).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(client.leader(), Some(leader.address.clone()));
}

#[tokio::test]
async fn a_hint_to_a_dead_node_does_not_keep_the_new_leader_from_being_found() {
    let cluster = Cluster::new("test");
    let (a, b) = (Node::start(&cluster).await, Node::start(&cluster).await);
    let (_held, dead) = dead();
    a.always(not_leader(&dead));
    b.plays([refuse(Reason::NoLeader), not_leader(&a.address)]);
    let client = options(&[&a, &b]).connect().await.unwrap();
    client.put("a", "1").await.unwrap();
    assert_eq!(cluster.applied(), 1);
}

/// The story: a client reached a follower through a load balancer, and not the leader that it named. It said that the
/// cluster has no leader.
#[tokio::test]
async fn a_leader_that_does_not_answer_from_here_is_named_with_its_address() {
    let cluster = Cluster::new("test");
    let follower = Node::start(&cluster).await;
    let (_held, dead) = dead();
    follower.always(not_leader(&dead));
    let mut deadline = Duration::from_millis(500);
    let (tried, last_error) = loop {
        let client = options(&[&follower]).deadline(deadline).connect().await.unwrap();
        match client.get("a").await {
            Err(Error::Unavailable { tried, last_error, .. }) if last_error.contains("leader") => {
                break (tried, last_error);
            }
            // The follower's answer was on its way at the deadline.
            Err(Error::Unavailable { .. } | Error::DeadlineExceeded { .. })
                if deadline < WAIT_LIMIT =>
            {
                deadline *= 2;
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(tried.contains(&follower.address), "{tried:?}");
    let named = format!("the leader is said to be at {dead}, which cannot be reached from here");
    assert!(last_error.contains(&named), "{last_error}");
}

#[tokio::test]
async fn dead_endpoints_do_not_matter_at_any_position_of_the_list() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let [(_first, first), (_last, last)] = [dead(), dead()];
    for seed in 0..8 {
        let endpoints = [first.clone(), node.address.clone(), last.clone()];
        let options = Options::new(endpoints).seed(seed).deadline(WAIT_LIMIT);
        let client = options.connect_timeout(WAIT_LIMIT).connect().await.unwrap();
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(cluster.applied(), 8);
}

#[tokio::test]
async fn a_process_that_accepts_connections_and_never_answers_is_skipped() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    for seed in 0..4 {
        let endpoints = [silent.local_addr().unwrap().to_string(), node.address.clone()];
        let options = Options::new(endpoints).seed(seed).deadline(WAIT_LIMIT);
        options
            .connect_timeout(Duration::from_millis(500))
            .build()
            .unwrap()
            .put("a", "1")
            .await
            .unwrap();
    }
    assert_eq!(cluster.applied(), 4);
}

#[tokio::test]
async fn a_write_is_retried_until_there_is_a_leader_again() {
    let (cluster, node, client) = one().await;
    node.plays([
        refuse(Reason::NoLeader),
        Step::Break,
        refuse(Reason::Overloaded),
        refuse(Reason::OutcomeUnknown),
    ]);
    client.put("a", "1").await.unwrap();
    assert_eq!(cluster.applied(), 1);
    assert_eq!(node.writes.lock().unwrap().len(), 5);
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_retried_under_its_number_and_applied_once() {
    let (cluster, node, client) = one().await;
    node.plays([Step::ApplyAndBreak, Step::ApplyAndBreak]);
    let written = client.put_if_absent("a", "1").await.unwrap();
    assert_eq!(
        written.version,
        Version(11),
        "the first result, although the key exists at the retries"
    );
    assert_eq!(cluster.applied(), 1);
    let sessions = node.sessions();
    assert_eq!(sessions.len(), 3);
    assert!(sessions.iter().all(|session| *session == sessions[0]));
}

#[tokio::test]
async fn a_node_that_hangs_costs_one_attempt_and_not_the_deadline() {
    let cluster = Cluster::new("test");
    let (a, b) = (Node::start(&cluster).await, Node::start(&cluster).await);
    a.always(Step::Hang);
    b.plays([not_leader(&a.address)]);
    let soon = Duration::from_millis(500);
    let client = options(&[&a, &b]).attempt_timeout(soon).connect_timeout(soon);
    client.build().unwrap().put("a", "1").await.unwrap();
    assert_eq!(cluster.applied(), 1);
    assert!(
        a.timeouts.lock().unwrap().iter().all(Option::is_some),
        "the server knows the client's timeout"
    );
}

/// The story: while the followers' disks were slow, the leader answered nothing for an attempt timeout,
/// got the same write again, and again, and never caught up.
#[tokio::test]
async fn a_node_that_answers_a_probe_gets_a_write_once() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let (silence, deadline) = (Duration::from_secs(4), Duration::from_secs(10));
    let client = options(&[&node]).attempt_timeout(silence).deadline(deadline);
    let client = client.connect().await.unwrap();
    node.plays([Step::Hang]);
    assert!(client.put("a", "1").await.unwrap_err().is_outcome_unknown());
    assert_eq!(node.writes.lock().unwrap().len(), 1);
}

/// The story: requests with deadlines shorter than an attempt went to a leader that had lost power,
/// one after another. None of them waited long enough to give it up, and nobody asked the others.
#[tokio::test]
async fn requests_with_short_deadlines_leave_a_node_that_answers_nothing() {
    let short = Duration::from_millis(300);
    for (seed, stops_waiting) in (0..4).flat_map(|seed| [(seed, false), (seed, true)]) {
        let cluster = Cluster::new("test");
        let nodes = [Node::start(&cluster).await, Node::start(&cluster).await];
        nodes.iter().for_each(|node| node.knows(&[&nodes[0], &nodes[1]]));
        let limit = Duration::from_secs(1);
        let client = options(&[&nodes[0], &nodes[1]]).seed(seed).attempt_timeout(limit);
        let client = client.connect_timeout(limit).connect().await.unwrap();
        client.put("a", "1").await.unwrap();
        let leader = client.leader().unwrap();
        nodes.iter().find(|node| node.address == leader).unwrap().always(Step::Hang);
        let hasty = client.with_deadline(short);
        let served = async {
            loop {
                let done = match stops_waiting {
                    true => {
                        matches!(tokio::time::timeout(short, client.put("a", "2")).await, Ok(Ok(_)))
                    }
                    false => hasty.put("a", "2").await.is_ok(),
                };
                if done {
                    return;
                }
            }
        };
        let served = tokio::time::timeout(WAIT_LIMIT, served).await;
        assert!(served.is_ok(), "seed {seed}, the caller stops waiting: {stops_waiting}");
    }
}

#[tokio::test]
async fn a_forgotten_session_is_replaced_if_nothing_was_sent_under_it_before() {
    let (cluster, node, client) = one().await;
    client.put("a", "1").await.unwrap();
    cluster.advance(500);
    node.plays([refuse(Reason::SessionExpired)]);
    client.put("a", "2").await.unwrap();
    let sessions = node.sessions();
    assert_eq!(sessions.len(), 3);
    assert_eq!((sessions[1].sequence, sessions[1].base_index), (2, 10));
    assert_eq!(
        (sessions[2].sequence, sessions[2].lowest_pending, sessions[2].base_index),
        (1, 1, 500)
    );
    assert_ne!(sessions[2].client_id, sessions[1].client_id);
}

#[tokio::test]
async fn a_forgotten_session_leaves_the_outcome_unknown_if_an_attempt_may_have_been_applied() {
    let (cluster, node, client) = one().await;
    node.plays([Step::ApplyAndBreak, refuse(Reason::SessionExpired)]);
    let error = client.put("a", "1").await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    assert_eq!((cluster.applied(), node.writes.lock().unwrap().len()), (1, 2));
    // The next write finds the session forgotten too, and starts a new one.
    node.plays([refuse(Reason::SessionExpired)]);
    client.put("a", "2").await.unwrap();
    assert_eq!(cluster.applied(), 2);
}

#[tokio::test]
async fn a_session_that_is_refused_repeatedly_is_replaced_each_time() {
    let (cluster, node, client) = one().await;
    node.plays(vec![refuse(Reason::SessionExpired); 5]);
    client.put("a", "1").await.unwrap();
    let sessions = node.sessions();
    let ids: std::collections::BTreeSet<_> =
        sessions.iter().map(|session| &session.client_id).collect();
    assert_eq!((sessions.len(), ids.len(), cluster.applied()), (6, 6, 1));
}

#[tokio::test]
async fn at_the_deadline_a_write_that_was_sent_is_unknown_and_one_that_was_not_is_unavailable() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).connect().await.unwrap();
    node.always(Step::Hang);
    let sent = send(&client, "a");
    received(&node, 1).await;
    assert!(matches!(at_its_deadline(sent).await, Err(Error::OutcomeUnknown { .. })));
    let later = proto::ErrorDetail {
        reason: Reason::Overloaded as i32,
        retry_after_ms: 60_000,
        ..Default::default()
    };
    node.always(Step::Refuse(later));
    let patient = options(&[&node]).seed(8).connect().await.unwrap();
    let overloaded = Error::Overloaded { retry_after: Duration::from_secs(60) };
    assert_eq!(
        patient.put("a", "1").await,
        Err(overloaded),
        "nothing is sent that cannot be answered in time"
    );
    node.plays([Step::Break]);
    assert!(client.put("a", "1").await.unwrap_err().is_outcome_unknown(), "one attempt is enough");

    let (_held, dead) = dead();
    let client = Options::new([dead.clone()]).build().unwrap();
    match at_its_deadline(send(&client, "a")).await {
        Err(Error::Unavailable { tried, .. }) => assert_eq!(tried, [dead]),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_request_over_a_limit_is_refused_before_it_is_sent() {
    let (_, node, client) = one().await;
    let error = client.put("a", vec![0; 1025]).await.unwrap_err();
    assert_eq!(error, Error::ValueTooLarge { limit: 1024, actual: 1025 });
    assert_eq!(error.to_string(), "value too large: 1025 bytes, the limit is 1024 bytes");
    assert_eq!(client.put("", "1").await, Err(Error::InvalidKey { limit: 64, actual: 0 }));
    assert_eq!(
        client.put(vec![0; 65], "1").await,
        Err(Error::InvalidKey { limit: 64, actual: 65 })
    );
    let batch = (0..9).fold(client.batch(), |batch, i| batch.delete(vec![i]));
    let message = String::new();
    let too_large = Error::RequestTooLarge { unit: "operations", limit: 8, actual: 9, message };
    assert_eq!(batch.commit().await, Err(too_large));
    assert!(matches!(client.batch().commit().await, Err(Error::InvalidRequest(_))));
    assert!(node.writes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_batch_says_when_it_is_full_and_one_that_has_more_is_refused_with_the_bound() {
    let (_, node, client) = one().await;
    let of = |client: &Client, operations: u8| {
        (0..operations).fold(client.batch(), |batch, i| batch.delete(vec![i]))
    };
    assert!(!of(&client, 7).is_full() && of(&client, 8).is_full());
    let error = of(&client, 9).commit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(error.to_string(), "request too large: 9 operations, the limit is 8 operations");
    assert!(node.writes.lock().unwrap().is_empty(), "nothing was sent");
    let unconnected = options(&[&node]).seed(8).build().unwrap();
    assert!(!of(&unconnected, 127).is_full() && of(&unconnected, 128).is_full());
}

#[tokio::test]
async fn a_client_that_knows_no_limits_yet_learns_them_before_it_sends() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).build().unwrap();
    assert_eq!(
        client.put("a", vec![0; 1025]).await,
        Err(Error::ValueTooLarge { limit: 1024, actual: 1025 })
    );
    assert!(node.writes.lock().unwrap().is_empty());
    assert_eq!(client.limits().await.unwrap().max_value_bytes, 1024);
}

#[tokio::test]
async fn a_condition_that_does_not_hold_is_an_error_with_the_version_found() {
    let (cluster, _, client) = one().await;
    let written = client.put_if_absent("a", "1").await.unwrap();
    match client.put_if_absent("a", "2").await {
        Err(Error::ConditionFailed { failed, at }) => {
            assert_eq!(
                (failed.len(), failed[0].version, at),
                (1, Some(written.version), Version(12))
            );
            assert_eq!(failed[0].key, "a");
        }
        other => panic!("{other:?}"),
    }
    let changed = client.put_if_version("a", "3", written.version).await.unwrap();
    let error = client.delete_if_version("a", written.version).await.unwrap_err();
    assert!(error.is_condition_failed());
    assert_eq!(error.to_string(), "condition failed: key `a` has version 13");
    client.delete_if_version("a", changed.version).await.unwrap();
    assert!(client.put_if("a", "4", Condition::Exists).await.unwrap_err().is_condition_failed());
    assert_eq!(cluster.applied(), 6);
    assert_eq!(client.get("a").await.unwrap(), None);
}

#[tokio::test]
async fn a_batch_is_applied_completely_or_reports_which_conditions_failed() {
    let (_, _, client) = one().await;
    let first = client.put("a", "1").await.unwrap();
    let batch =
        client.batch().check_version("a", first.version).put("b", "2").delete("a").put("c", "3");
    let info = batch.commit().await.unwrap();
    assert_eq!(
        (info.version, info.previous),
        (Version(12), vec![Some(Version(11)), None, Some(Version(11)), None])
    );
    let batch = client.batch().check_exists("a").put("d", "4").check_absent("b");
    match batch.commit().await {
        Err(Error::ConditionFailed { failed, .. }) => {
            assert_eq!(
                failed.iter().map(|f| (f.operation, f.version)).collect::<Vec<_>>(),
                [(0, None), (2, Some(Version(12)))]
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.get("d").await.unwrap(), None);
}

#[tokio::test]
async fn a_full_storage_is_reported_at_once_unless_an_attempt_is_in_doubt() {
    let (cluster, node, client) = one().await;
    node.plays([refuse(Reason::StorageFull)]);
    assert!(matches!(client.put("a", "1").await, Err(Error::StorageFull { .. })));
    node.plays([Step::ApplyAndBreak, refuse(Reason::StorageFull)]);
    client.put("a", "1").await.unwrap();
    assert_eq!(cluster.applied(), 1);
}

#[tokio::test]
async fn a_write_that_its_caller_cancelled_does_not_stay_pending() {
    let (_, node, client) = one().await;
    node.plays([Step::Hang]);
    let cancelled = send(&client, "a");
    received(&node, 1).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    client.put("a", "2").await.unwrap();
    let sessions = node.sessions();
    assert_eq!((sessions[1].sequence, sessions[1].lowest_pending), (2, 2));
}

#[tokio::test]
async fn writes_beyond_the_bound_in_flight_wait_and_are_not_sent() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    node.always(Step::Hang);
    let client = options(&[&node]).max_in_flight(2).connect().await.unwrap();
    let first_two = ["a", "b"].map(|key| send(&client, key));
    received(&node, 2).await;
    let hasty = client.with_deadline(Duration::from_millis(30));
    assert!(matches!(hasty.put("c", "1").await, Err(Error::DeadlineExceeded { .. })));
    assert_eq!(node.writes.lock().unwrap().len(), 2);
    // There is capacity again after one is cancelled.
    node.always(Step::Serve);
    first_two[0].abort();
    client.put("c", "1").await.unwrap();
    first_two[1].abort();
}

#[tokio::test]
async fn many_writes_at_once_over_several_connections_are_each_applied_once() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).connections_per_node(3).connect().await.unwrap();
    node.plays((0..60).map(|i| if i % 3 == 0 { Step::ApplyAndBreak } else { Step::Serve }));
    let puts = (0..200u8).map(|i| client.put(vec![i], "1"));
    futures::future::try_join_all(puts).await.unwrap();
    assert_eq!(cluster.applied(), 200);
}

/// The story: while a write was under way, the client came to stay with a node that an earlier generation
/// had left over. The write was answered, and the client said that it was not applied.
#[tokio::test]
async fn a_write_that_was_served_by_another_generation_than_the_clients_is_not_said_to_have_failed()
{
    let (theirs, ours) = (Cluster::new("test"), Cluster::new("test"));
    let (left_over, anew) = (Node::start(&theirs).await, Node::start(&ours).await);
    anew.knows(&[&anew, &left_over]);
    anew.belongs_to(7);
    left_over.knows(&[&left_over]);
    left_over.belongs_to(3);
    let told = Arc::new(Notify::new());
    anew.plays([Step::ServeLater(told.clone())]);
    let client = options(&[&anew]).connect().await.unwrap();
    let write = send(&client, "a");
    received(&anew, 1).await;
    client.statuses().await;
    assert_eq!(client.get_stale("a").await.unwrap(), None);
    assert_eq!(left_over.reads.lock().unwrap().len(), 1);
    told.notify_one();
    let outcome = write.await.unwrap();
    assert!(matches!(outcome, Err(Error::OutcomeUnknown { .. })), "{outcome:?}");
}
