//! Scans: whole or an error, from one node, and begun elsewhere as long as nothing was told.

use std::time::Duration;

use crate::fake::{Cluster, Node, Sends, Step, options, refuse};
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::scan_part::Kind;
use cairn_client::proto::scan_request::Wanted;
use cairn_client::{Client, Error, ErrorKind, KeyValue, Position, Range, Scan, proto};
use futures::{StreamExt, TryStreamExt};
use tonic::Status;

/// Keys `p/0` to `p/4`, and one on each side of them. The fake sends two keys at once.
async fn five() -> (Cluster, Node, Client) {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).connect().await.unwrap();
    for key in (0..5).map(|number| format!("p/{number}")).chain(["o".into(), "q".into()]) {
        client.put(key.clone(), key).await.unwrap();
    }
    (cluster, node, client)
}

fn names(items: &[KeyValue]) -> Vec<String> {
    items.iter().map(|item| String::from_utf8_lossy(&item.key).into_owned()).collect()
}

/// Takes all that comes, and the error behind it.
async fn taken(scan: &mut Scan) -> (Vec<String>, Option<Error>) {
    let mut items = Vec::new();
    loop {
        match scan.next().await {
            Ok(Some(item)) => items.push(item),
            Ok(None) => return (names(&items), None),
            Err(error) => return (names(&items), Some(error)),
        }
    }
}

#[tokio::test]
async fn a_scan_has_all_keys_of_its_range_at_one_position_with_or_without_values() {
    let (_, node, client) = five().await;
    let mut scan = client.scan(Range::prefix("p/")).await.unwrap();
    assert_eq!(scan.position(), Position { term: 3, index: 17 });
    let first = scan.next().await.unwrap().unwrap();
    assert_eq!((&first.key[..], &first.value[..], first.version.0), (&b"p/0"[..], &b"p/0"[..], 11));
    let (rest, error) = taken(&mut scan).await;
    assert_eq!((rest.join(" "), error), ("p/1 p/2 p/3 p/4".to_owned(), None));
    assert_eq!(scan.next().await, Ok(None), "and again");

    let keys: Vec<_> =
        client.scan_keys("p/3"..).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(names(&keys), ["p/3", "p/4", "q"]);
    assert!(keys.iter().all(|item| item.value.is_empty() && item.version.0 > 0));
    let none = client.scan("r"..).await.unwrap().try_collect::<Vec<_>>().await;
    assert_eq!(none, Ok(vec![]));
    assert_eq!(client.count(Range::prefix("p/")).await, Ok(5));
    assert_eq!(client.count(..).await, Ok(7));
    assert_eq!(client.count("r"..).await, Ok(0));
    let asked: Vec<Wanted> = node.scans.lock().unwrap().iter().map(|scan| scan.wanted()).collect();
    let counts = [Wanted::Count; 3];
    assert_eq!(asked, [&[Wanted::Values, Wanted::Keys, Wanted::Values][..], &counts].concat());
}

#[tokio::test]
async fn a_scan_may_be_as_old_as_other_reads_of_its_client() {
    let (_, node, client) = five().await;
    let old = client.with_max_staleness(Duration::from_millis(1500));
    old.scan(..).await.unwrap();
    old.count(..).await.unwrap();
    client.scan_keys(..).await.unwrap();
    let bounds: Vec<u64> =
        node.scans.lock().unwrap().iter().map(|scan| scan.max_stale_ms).collect();
    assert_eq!(bounds, [1500, 1500, 0]);
}

#[tokio::test]
async fn a_scan_that_fails_before_its_first_key_is_asked_for_again_elsewhere() {
    let (cluster, node, client) = five().await;
    let other = Node::start(&cluster).await;
    let both = options(&[&node, &other]).connect().await.unwrap();
    // Refused, broken off before or behind its position, or unreadable: whichever node is asked first.
    for first in [&node, &other] {
        first.plays([refuse(Reason::NoLeader), Step::Break]);
        let message = Status::unavailable("the connection was reset");
        first.sends([Sends::Parts(0), Sends::Parts(1), Sends::Until(1, message)]);
    }
    let mut scan = both.scan(Range::prefix("p/")).await.unwrap();
    let (keys, error) = taken(&mut scan).await;
    assert_eq!((keys.len(), error), (5, None));
    assert_eq!(client.count(..).await, Ok(7));
    // A count has told nothing before its end.
    node.sends([Sends::Parts(1), Sends::Until(1, Status::unknown("broken"))]);
    assert_eq!(client.count(..).await, Ok(7));
}

#[tokio::test]
async fn a_scan_that_ends_early_is_an_error_and_goes_on_nowhere() {
    let (cluster, node, _) = five().await;
    let other = Node::start(&cluster).await;
    let client = options(&[&node]).connect().await.unwrap();
    node.knows(&[&node, &other]);
    for (sends, words) in [
        (Sends::Parts(2), "the node stopped"),
        (Sends::Parts(4), "the node stopped"),
        (Sends::Until(3, Status::resource_exhausted("scarce")), "scarce"),
        (Sends::Until(2, Status::unknown("it broke")), "it broke"),
    ] {
        node.sends([sends.clone()]);
        let mut scan = client.scan(Range::prefix("p/")).await.unwrap();
        let (keys, error) = taken(&mut scan).await;
        let Some(Error::ScanBroken { received, breach: false, last_error, .. }) = error.clone()
        else {
            panic!("{sends:?}: {error:?}");
        };
        assert_eq!(received, keys.len() as u64, "{sends:?}");
        assert!(last_error.contains(words), "{last_error}");
        assert_eq!(scan.next().await.err(), error, "and again");
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::ScanBroken);
        assert!(error.is_transient() && error.to_string().contains("take it from the start"));
    }
    assert!(other.scans.lock().unwrap().is_empty(), "another node has another state");
    // As a stream it ends behind its error, and not without one.
    node.sends([Sends::Parts(3)]);
    let items: Vec<_> = client.scan(..).await.unwrap().collect().await;
    assert_eq!(items.len(), 5);
    assert!(items[..4].iter().all(Result::is_ok) && items[4].is_err(), "{items:?}");
}

#[tokio::test]
async fn a_value_that_cannot_be_read_and_a_role_that_was_taken_away_are_told_as_such() {
    let (_, node, client) = five().await;
    let status = |reason: Reason| {
        let detail = proto::ErrorDetail { reason: reason as i32, ..Default::default() };
        detail.into_status(tonic::Code::Unknown, "so it is")
    };
    let mut errors = Vec::new();
    for reason in [Reason::ValueUnreadable, Reason::PermissionDenied, Reason::Unauthenticated] {
        node.sends([Sends::Until(2, status(reason))]);
        let (keys, error) = taken(&mut client.scan("p/"..).await.unwrap()).await;
        assert_eq!(keys, ["p/0", "p/1"]);
        errors.push(error.unwrap().kind());
    }
    let expected =
        [ErrorKind::ValueUnreadable, ErrorKind::PermissionDenied, ErrorKind::Unauthenticated];
    assert_eq!(errors, expected);
}

/// The story: a count that was longer than a node lets one last was begun again and again until its deadline.
#[tokio::test]
async fn a_count_that_a_node_refuses_ends_at_once_and_one_that_lacks_space_is_begun_again() {
    let (_, node, client) = five().await;
    let status = |reason: Reason| {
        let detail = proto::ErrorDetail { reason: reason as i32, ..Default::default() };
        detail.into_status(tonic::Code::Unknown, "so it is")
    };
    let asked = || node.scans.lock().unwrap().len();
    node.sends([Sends::Until(1, status(Reason::Refused))]);
    let refused = client.count(..).await;
    assert_eq!((refused, asked()), (Err(Error::Refused { message: "so it is".into() }), 1));
    node.sends([Sends::Until(1, status(Reason::Overloaded))]);
    assert_eq!((client.count(..).await, asked()), (Ok(7), 3));
}

fn item(key: &'static str) -> proto::KeyValue {
    proto::KeyValue { key: key.into(), value: "v".into(), version: 11 }
}

fn items(keys: &[&'static str]) -> Kind {
    Kind::Items(proto::ScanItems { items: keys.iter().copied().map(item).collect() })
}

/// The node may be another one than the client takes it for, or have a bug.
#[tokio::test]
async fn what_is_no_scan_of_the_range_is_never_taken_for_one() {
    let (_, node, client) = five().await;
    let at = || Kind::At(proto::Position { term: 3, index: 17 });
    let end = |keys| Kind::End(proto::ScanEnd { keys });
    for (kinds, keys) in [
        (vec![items(&["p/0"]), end(2)], 1),
        (vec![items(&["p/0", "p/1"]), end(1)], 2),
        (vec![items(&["p/0"]), items(&["p/0"]), end(2)], 1),
        (vec![items(&["p/1"]), items(&["p/0"]), end(2)], 1),
        (vec![items(&["p/0"]), items(&["p/2", "p/1"]), end(3)], 1),
        (vec![items(&["p/0"]), items(&["q"]), end(2)], 1),
        (vec![items(&["p/0"]), items(&[]), end(1)], 1),
        (vec![items(&["p/0"]), at(), end(1)], 1),
    ] {
        let parts = [vec![at()], kinds.clone()].concat();
        node.sends([Sends::These(parts)]);
        let mut scan = client.scan(Range::prefix("p/")).await.unwrap();
        let (found, error) = taken(&mut scan).await;
        assert_eq!(found.len(), keys, "{kinds:?}");
        assert!(
            matches!(error, Some(Error::ScanBroken { breach: true, .. })),
            "{kinds:?}: {error:?}"
        );
    }
    for first in [vec![at(), items(&["o"])], vec![at(), items(&[])], vec![at(), end(1)]] {
        node.sends([Sends::These(first.clone())]);
        let broken = client.scan(Range::prefix("p/")).await;
        let breach = matches!(broken, Err(Error::ScanBroken { received: 0, breach: true, .. }));
        assert!(breach, "{first:?}");
    }
    node.sends([Sends::These(vec![at(), items(&["p/0"])])]);
    let counted = client.count(..).await;
    assert!(matches!(counted, Err(Error::InvalidRequest(_))), "{counted:?}");
}

#[tokio::test]
async fn what_was_cancelled_while_it_waited_for_a_key_loses_none() {
    let (_, node, client) = five().await;
    node.sends([Sends::Hangs(2)]);
    let mut scan = client.scan("p/"..).await.unwrap();
    let first = [scan.next().await.unwrap().unwrap(), scan.next().await.unwrap().unwrap()];
    assert_eq!(names(&first), ["p/0", "p/1"]);
    for _ in 0..3 {
        let mut waiting = Box::pin(scan.next());
        assert!(futures::poll!(&mut waiting).is_pending());
    }
    // The next part arrives in another task's time: nothing of it is lost by what gave up before.
    let mut scan = client.scan(Range::prefix("p/")).await.unwrap();
    let mut found = Vec::new();
    while found.len() < 5 {
        let polled = {
            let mut waiting = Box::pin(scan.next());
            futures::poll!(&mut waiting)
        };
        match polled {
            std::task::Poll::Ready(item) => found.push(item.unwrap().unwrap()),
            std::task::Poll::Pending => tokio::task::yield_now().await,
        }
    }
    assert_eq!(names(&found), ["p/0", "p/1", "p/2", "p/3", "p/4"]);
}

#[tokio::test]
async fn a_range_without_keys_is_refused_before_it_is_sent_and_an_earlier_release_by_name() {
    let (_, node, client) = five().await;
    for range in [Range::from("p".."p"), Range::from("q".."p"), Range::from("p".."")] {
        assert!(matches!(client.scan(range.clone()).await, Err(Error::InvalidRequest(_))));
        assert!(matches!(client.count(range).await, Err(Error::InvalidRequest(_))));
    }
    assert!(node.scans.lock().unwrap().is_empty());
    node.is_of_an_earlier_release();
    assert!(matches!(client.scan(..).await, Err(Error::Unsupported { .. })));
    assert!(matches!(client.count(..).await, Err(Error::Unsupported { .. })));
}
