//! Which node is asked next, how long the pauses are, and which error is told.

use super::*;
use crate::Options;

fn pool() -> Pool {
    Pool::new(Options::new(["a:1", "b:1", "c:1"]).seed(3)).unwrap()
}

/// The error of a request whose last attempt failed like this at its deadline.
async fn last_was(failure: Failure) -> Error {
    let pool = pool();
    let node = pool.nth(0).unwrap();
    Attempts::new(Target::Leader, Duration::ZERO).failed(&pool, &node, failure).await.unwrap_err()
}

#[tokio::test]
async fn the_error_at_the_deadline_is_that_of_the_last_attempt() {
    let tried = vec!["a:1".to_owned()];
    assert_eq!(last_was(Failure::NoLeader).await, Error::NoLeader { tried: tried.clone() });
    assert_eq!(last_was(Failure::NotLeader(None)).await, Error::NoLeader { tried: tried.clone() });
    let unavailable = Error::unavailable_at(tried, "refused");
    assert_eq!(last_was(Failure::NotSent("refused".into())).await, unavailable);
    let lost = |timed_out| Failure::Lost { why: "gone".into(), timed_out, answered: false };
    assert!(matches!(last_was(lost(true)).await, Error::DeadlineExceeded { .. }));
    assert!(matches!(last_was(lost(false)).await, Error::Unavailable { .. }));
}

/// The story: of three members that wait for the third, two say so. A client that asked the third
/// one last said only that it refuses connections.
#[tokio::test]
async fn a_node_that_is_down_does_not_hide_why_the_others_serve_nobody() {
    let pool = pool();
    let (node, down) = (pool.nth(0).unwrap(), pool.nth(1).unwrap());
    let mut attempts = Attempts::new(Target::Leader, Duration::from_secs(10));
    attempts.note(&pool, &node, Failure::ElectionBlocked("not formed".to_owned()));
    attempts.note(&pool, &down, Failure::NotSent("refused".into()));
    let Error::Unavailable { last_error, .. } = attempts.exhausted() else { panic!() };
    assert_eq!(last_error, "not formed");
    attempts.note(&pool, &node, Failure::NoLeader);
    attempts.note(&pool, &down, Failure::NotSent("refused".into()));
    assert!(matches!(attempts.exhausted(), Error::NoLeader { .. }));
}

/// The error of a request to which `node` names the leader at `address`, and that nobody else serves.
fn named_at(pool: &Pool, address: &str, failed: Option<Error>) -> Error {
    let node = pool.nth(0).unwrap();
    let mut attempts = Attempts::new(Target::Leader, Duration::from_secs(10));
    attempts.note(pool, &node, Failure::NotLeader(Some(address.to_owned())));
    if let (Some(error), Some(named)) = (failed, pool.at(address)) {
        named.failed(error.clone(), &pool.random);
        attempts.note(pool, &named, Failure::NotSent(error.to_string().into()));
    }
    attempts.exhausted()
}

#[tokio::test]
async fn a_leader_that_is_named_and_cannot_be_reached_is_no_cluster_without_a_leader() {
    let why = |error| match error {
        Error::Unavailable { last_error, .. } => last_error,
        other => panic!("{other:?}"),
    };
    let refused = Error::unavailable("l:9", "connection refused".to_owned());
    let said = why(named_at(&pool(), "l:9", Some(refused)));
    assert!(said.contains("at l:9, which cannot be reached from here: connection refused"));
    let silent = why(named_at(&pool(), "l:9", None));
    assert!(silent.contains("at l:9, which cannot be reached from here: no connection"));
    let other = Error::ClusterMismatch {
        endpoint: "l:9".to_owned(),
        expected: "a".to_owned(),
        found: "b".to_owned(),
    };
    assert!(why(named_at(&pool(), "l:9", Some(other))).contains("belongs to cluster `b`"));
    assert!(why(named_at(&pool(), "x\u{1b}", None)).contains("at x\\u{1b}, which"));
    let answers = pool();
    answers.at("b:1").unwrap().connect_lazily();
    let disagree = named_at(&answers, "b:1", None);
    assert!(matches!(disagree, Error::NoLeader { .. }), "{disagree:?}");
}

/// The story: the value that a watch came to could not be read at one member. The other one was moving its watches away, and was
/// taken for one out of reach: the watch ended although that member had the value.
#[tokio::test(start_paused = true)]
async fn a_node_that_answers_is_left_to_ask_by_what_goes_on_until_it_can() {
    let pool = Pool::new(Options::new(["a:1", "b:1"]).seed(3)).unwrap();
    let (damaged, other) = (pool.nth(0).unwrap(), pool.nth(1).unwrap());
    let unreadable = Failure::Unreadable("damaged".to_owned());
    let lost = |answered| Failure::Lost { why: "moved".into(), timed_out: false, answered };
    let deadline = Duration::from_secs(10);
    let is_over = |mut attempts: Attempts, failures: &[Failure]| {
        for failure in failures {
            attempts.note(&pool, &other, failure.clone());
        }
        attempts.ended_by(&pool, &damaged, &unreadable).is_some()
    };
    let lasting = || Attempts::new(Target::Any, deadline).lasting();
    assert!(!is_over(lasting(), &[lost(true)]));
    assert!(is_over(lasting(), &[lost(false)]), "it was not reached");
    assert!(!is_over(lasting(), &[lost(false), lost(true)]), "it is reached again");
    assert!(!is_over(lasting(), &[lost(false), Failure::Overloaded(Duration::ZERO)]));
    assert!(is_over(lasting(), &[lost(false), unreadable.clone()]), "neither has it");
    let patient = lasting();
    tokio::time::advance(PATIENCE).await;
    assert!(is_over(patient, &[lost(true)]), "it never can, as one that was removed");
    let read = Attempts::new(Target::Reader, deadline);
    assert!(is_over(read, &[lost(true)]), "a read does not wait for it");
}

/// Lets each attempt of a request fail with `failure`. Returns the node asked and the delay
/// after each attempt.
fn delays(failure: impl Fn(&Node) -> Failure, attempts: usize) -> Vec<(String, Duration)> {
    let pool = pool();
    let mut attempts_made = Attempts::new(Target::Leader, Duration::from_secs(10));
    let mut asked = Vec::new();
    for _ in 0..attempts {
        let node = attempts_made.choose(&pool, Instant::now()).unwrap();
        let delay = attempts_made.note(&pool, &node, failure(&node));
        asked.push((node.address().to_owned(), delay));
    }
    asked
}

#[test]
fn each_node_is_asked_once_before_any_wait() {
    let asked = delays(|_| Failure::NoLeader, 4);
    let mut first: Vec<&str> = asked.iter().take(3).map(|(address, _)| address.as_str()).collect();
    first.sort();
    assert_eq!(first, ["a:1", "b:1", "c:1"]);
    assert!(asked[0].1.is_zero() && asked[1].1.is_zero() && !asked[2].1.is_zero());
}

#[test]
fn waits_grow_up_to_a_maximum() {
    let asked = delays(|_| Failure::NoLeader, 20);
    assert!(asked[3].1 <= BACKOFF * 2 && asked[19].1 >= MAX_BACKOFF / 2);
    assert!(asked.iter().all(|(_, delay)| *delay <= MAX_BACKOFF));
}

#[test]
fn nodes_that_send_a_request_in_circles_are_not_asked_without_pause() {
    let other = |node: &Node| if node.address() == "a:1" { "b:1" } else { "a:1" };
    let asked = delays(|node| Failure::NotLeader(Some(other(node).to_owned())), 20);
    assert!(asked[0].1.is_zero(), "a hint is followed at once");
    assert!(asked.iter().skip(FREE_HOPS as usize).all(|(_, delay)| !delay.is_zero()));
}

#[test]
fn the_client_waits_as_long_as_an_overloaded_cluster_asks_and_not_as_long_as_the_others() {
    let after = Duration::from_millis(700);
    let mut waits: Vec<_> =
        delays(|_| Failure::Overloaded(after), 10).into_iter().map(|(_, wait)| wait).collect();
    assert!(waits.iter().all(|wait| *wait >= after && *wait <= 2 * after), "{waits:?}");
    waits.sort();
    waits.dedup();
    assert!(waits.len() > 5, "{waits:?}");
}

/// The story: a put that an overloaded leader refused went to a follower next, with its whole
/// value, and back to the leader from there. With thousands of clients most of what the members
/// received was refused.
#[test]
fn an_overloaded_leader_is_asked_again_and_no_other_node() {
    let pool = pool();
    let leader = pool.nth(1).unwrap();
    pool.succeeded(Target::Leader, &leader);
    let mut attempts = Attempts::new(Target::Leader, Duration::from_secs(10));
    for _ in 0..10 {
        let node = attempts.choose(&pool, Instant::now()).unwrap();
        assert!(Arc::ptr_eq(&node, &leader), "{}", node.address());
        attempts.note(&pool, &node, Failure::Overloaded(Duration::from_millis(1)));
    }
    let asked = delays(|_| Failure::Overloaded(Duration::from_millis(1)), 3);
    assert!(asked[0].0 != asked[1].0, "one that is not known to lead: {asked:?}");
}

#[test]
fn a_node_that_failed_to_connect_is_skipped_for_longer_each_time_up_to_a_maximum() {
    let pool = pool();
    let node = pool.nth(1).unwrap();
    let mut last = Duration::ZERO;
    for failures in 1..20 {
        let before = Instant::now();
        node.failed(Error::unavailable(node.address(), "refused"), &pool.random);
        let until = node.cooling(before).unwrap();
        last = until - before;
        let left = until.saturating_duration_since(Instant::now());
        assert!(failures > 1 || left < Duration::from_millis(200));
    }
    assert!(last >= Duration::from_millis(500));
    assert_eq!(node.cooling(Instant::now() + Duration::from_secs(1)), None);
}
