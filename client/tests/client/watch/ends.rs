//! What ends a watch, with which error, and what does not.

use super::{in_time, keys, one, position, two, watched};
use crate::fake::watches::{at, began, begun, changes, compacted, ended, plays, put};
use crate::fake::{Cluster, Node, options};
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::watch_ended::Why;
use cairn_client::{Bytes, Error, ErrorKind, Watch, proto};
use tonic::{Code, Status};

/// The error that the watch ends with.
async fn ends(watch: &mut Watch) -> Error {
    let error = in_time(watch.next()).await.unwrap_err();
    assert_eq!(in_time(watch.next()).await, Err(error.clone()), "every call returns it");
    error
}

/// Whether a node told what no node may tell, and was not only out of reach.
fn is_breach(error: &Error) -> bool {
    matches!(error, Error::Unavailable { last_error, .. } if last_error.starts_with("the node told"))
}

#[tokio::test]
async fn a_value_that_no_node_can_read_ends_the_watch() {
    let (first, second, client) = two().await;
    let unreadable =
        |begin: proto::WatchBegin| vec![begun(&begin), ended(begin.id, Why::Unreadable)];
    let playing = [plays(&first, unreadable), plays(&second, unreadable)];
    let mut watch = in_time(client.watch(..).begin()).await.unwrap();
    let error = ends(&mut watch).await;
    assert_eq!(error.kind(), ErrorKind::ValueUnreadable, "{error}");
    assert_eq!(watch.position(), position(10), "from there on it may be tried again");
    playing.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The story: the value that a watch came to could not be read at one member. The other one moved its watches away for a moment,
/// and was taken for one out of reach: the watch ended although that member had the value.
#[tokio::test]
async fn a_value_is_waited_for_where_a_node_answers_that_may_have_it() {
    let (damaged, moving, client) = two().await;
    let (mut watch, stream, id) = watched(&client, &damaged).await;
    let playing = plays(&damaged, |begin| vec![begun(&begin), ended(begin.id, Why::Unreadable)]);
    stream.tells([ended(id, Why::Move)]);
    for _ in 0..3 {
        let mut stream = in_time(moving.watched()).await;
        let begin = in_time(stream.begin()).await;
        stream.tells([ended(begin.id, Why::Move)]);
        drop(stream);
    }
    let mut stream = in_time(moving.watched()).await;
    let begin = in_time(stream.begun()).await;
    stream.tells([changes(begin.id, [put("a", 11)], Some(11))]);
    assert_eq!(keys(&mut watch, 1).await, "a.");
    playing.abort();
}

#[tokio::test]
async fn history_that_is_gone_is_an_error_with_what_is_left() {
    let compacted = Error::Compacted { oldest: position(20), now: position(30) };
    assert!(compacted.to_string().contains("those behind 3.20 are"), "{compacted}");
    assert!(compacted.to_string().contains("watch from 3.30"), "{compacted}");
    for (why, expected) in [(Why::Compacted, compacted), (Why::Discarded, Error::HistoryDiscarded)]
    {
        assert_eq!((expected.kind(), expected.is_transient()), (ErrorKind::HistoryGone, false));
        let (node, client) = one().await;
        let (mut watch, stream, id) = watched(&client, &node).await;
        stream.tells([changes(id, [put("a", 11), put("b", 12)], None), ended(id, why)]);
        assert_eq!(keys(&mut watch, 1).await, "a.");
        assert_eq!((ends(&mut watch).await, watch.position()), (expected.clone(), position(11)));
        // A watch from a position is told at once.
        let refused = async {
            let mut stream = node.watched().await;
            let begin = stream.begin().await;
            stream.tells([ended(begin.id, why)]);
            stream
        };
        let begin = client.watch(..).from(position(7)).begin();
        let (begin, _stream) = in_time(async { tokio::join!(begin, refused) }).await;
        assert_eq!(begin.unwrap_err(), expected);
    }
}

/// The story: a member had just been started, so its history began anew. It said that the changes of a watch were gone, and the
/// watch ended although another member had all of them.
#[tokio::test]
async fn changes_that_one_node_does_not_keep_are_told_by_another_one() {
    let (first, second, client) = two().await;
    let (mut watch, stream, id) = watched(&client, &first).await;
    stream.tells([changes(id, [put("a", 11)], Some(11)), compacted(id, 20)]);
    let mut stream = in_time(second.watched()).await;
    let begin = in_time(stream.begun()).await;
    assert_eq!(begin.after, Some(at(11)));
    stream.tells([changes(begin.id, [put("b", 12)], Some(12))]);
    assert_eq!(keys(&mut watch, 2).await, "a.b.");
}

#[tokio::test]
async fn where_no_node_keeps_the_changes_the_longest_history_is_named() {
    for (of_first, of_second) in [(20, 15), (15, 20)] {
        let (first, second, client) = two().await;
        let playing = [(&first, of_first), (&second, of_second)]
            .map(|(node, oldest)| plays(node, move |begin| vec![compacted(begin.id, oldest)]));
        let error = in_time(client.watch(..).from(position(7)).begin()).await.unwrap_err();
        assert_eq!(error, Error::Compacted { oldest: position(15), now: position(25) });
        playing.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

#[tokio::test]
async fn who_may_not_read_the_range_any_more_is_told_so() {
    let (node, client) = one().await;
    let (mut watch, stream, id) = watched(&client, &node).await;
    stream.tells([ended(id, Why::Denied)]);
    let message = "it said why".to_owned();
    assert_eq!(ends(&mut watch).await, Error::PermissionDenied { message: message.clone() });
    let (mut watch, stream, id) = watched(&client, &node).await;
    stream.tells([ended(id, Why::Invalid)]);
    assert_eq!(ends(&mut watch).await, Error::InvalidRequest(message));
}

/// The story: a watch asked for a range with a start of megabytes. The node ended the stream for it, and all other watches of the
/// client ended with that error.
#[tokio::test]
async fn a_range_that_is_too_long_is_refused_and_ends_no_other_watch() {
    let (node, client) = one().await;
    let (mut watch, mut stream, id) = watched(&client, &node).await;
    let long = Bytes::from(vec![b'k'; 4097]);
    let error = in_time(client.watch(long..).begin()).await.unwrap_err();
    assert!(matches!(error, Error::RequestTooLarge { limit: 4096, actual: 4097, .. }), "{error:?}");
    stream.tells([changes(id, [put("a", 11)], Some(11))]);
    assert_eq!(keys(&mut watch, 1).await, "a.");
    // Whatever else a node ends a stream for.
    for index in [11, 12] {
        stream.sends(Err(Status::invalid_argument("a message is too long")));
        let mut again = in_time(node.watched()).await;
        let begin = in_time(again.begun()).await;
        assert_eq!(begin.after, Some(at(index)));
        again.tells([changes(begin.id, [put("b", index + 1)], Some(index + 1))]);
        assert_eq!(keys(&mut watch, 1).await, "b.");
        stream = again;
    }
    // It says so of the whole client, and not of one watch.
    let denied =
        proto::ErrorDetail { reason: Reason::PermissionDenied.into(), ..Default::default() };
    stream.sends(Err(denied.into_status(Code::PermissionDenied, "not any more".to_owned())));
    let message = "not any more".to_owned();
    assert_eq!(ends(&mut watch).await, Error::PermissionDenied { message });
}

#[tokio::test]
async fn a_cluster_that_was_made_anew_is_not_watched_on() {
    let node = Node::start(&Cluster::new("test")).await;
    node.knows(&[&node]);
    node.belongs_to(7);
    let client = options(&[&node]).connect().await.unwrap();
    let (mut watch, stream, _) = watched(&client, &node).await;
    node.belongs_to(9);
    drop(stream);
    let error = ends(&mut watch).await;
    assert!(matches!(error, Error::ClusterMismatch { .. }), "{error:?}");
}

/// The story: an unsafe recovery discarded the newest entries. The marks of a member fell, and all of its watches ended as if it
/// lied: only where a watch begins again does it show that its position is not in the history any more.
#[tokio::test]
async fn a_mark_that_falls_is_asked_about_and_may_be_history_that_was_discarded() {
    let (node, client) = one().await;
    let (mut watch, stream, _) = watched(&client, &node).await;
    stream.marks(19);
    while watch.position() != position(19) {
        in_time(watch.progressed()).await;
    }
    stream.marks(18);
    let mut again = in_time(node.watched()).await;
    let begin = in_time(again.begin()).await;
    assert_eq!(begin.after, Some(at(19)));
    again.tells([ended(begin.id, Why::Discarded)]);
    assert_eq!(ends(&mut watch).await, Error::HistoryDiscarded);
}

/// What no node may tell ends a watch, with the node's address and what it told.
#[tokio::test]
async fn what_a_hostile_node_tells_is_an_error_and_never_a_change() {
    let both = [put("a", 12), put("a", 11)];
    for (told, says) in [
        (began(77, at(10)), "watch 77"),
        (changes(77, [put("a", 11)], Some(11)), "watch 77"),
        (began(1, at(10)), "began a watch twice"),
        (changes(1, [put("a", 10)], None), "entry 3.10 behind entry 3.10"),
        (changes(1, both, None), "entry 3.11 behind entry 3.12"),
        (changes(1, [], Some(9)), "up to entry 3.9 behind entry 3.10"),
        (changes(1, [put("", 11)], None), "outside of the range"),
        (proto::WatchPart { id: 1, kind: None }, "does not know"),
    ] {
        let (node, client) = one().await;
        let (mut watch, stream, id) = watched(&client, &node).await;
        assert_eq!(id, 1, "the first one of its stream");
        stream.tells([told]);
        let error = ends(&mut watch).await;
        let said = error.to_string();
        assert!(is_breach(&error), "{said}");
        assert!(said.contains(says) && said.contains(&node.address), "{said}");
    }
    let (node, client) = one().await;
    let played = async {
        let mut stream = node.watched().await;
        let begin = stream.begin().await;
        stream.tells([began(begin.id, at(19))]);
        stream
    };
    let begin = client.watch(..).from(position(17)).begin();
    let (begin, _stream) = in_time(async { tokio::join!(begin, played) }).await;
    let error = begin.unwrap_err();
    let said = error.to_string();
    assert!(is_breach(&error), "{said}");
    assert!(said.contains("what follows entry 3.17, and began behind 3.19"), "{said}");
}
