//! A range is listed and then told as it changes, with nothing between the two left out.

use std::pin::Pin;

use crate::fake::watches::{WatchStream, changes, ended, put};
use crate::fake::{Node, Step};
use crate::watch::{in_time, one};
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::watch_ended::Why;
use cairn_client::{Bytes, Client, Error, Event, Range, proto};
use futures::{Stream, StreamExt};

type Events = Pin<Box<dyn Stream<Item = Result<Event, Error>> + Send>>;

/// Follows a range, whose watch begins behind entry 10. Returns the first event, too.
async fn followed(client: &Client, node: &Node, range: Range) -> (Events, Event, WatchStream, u64) {
    let mut events: Events = Box::pin(client.list_and_watch(range));
    let (first, stream, id) = again(&mut events, node).await;
    (events, first, stream, id)
}

/// The next event, for which a watch begins anew.
async fn again(events: &mut Events, node: &Node) -> (Event, WatchStream, u64) {
    let played = async {
        let mut stream = node.watched().await;
        let begin = stream.begun().await;
        assert_eq!(begin.after, None, "behind everything that was acknowledged");
        (stream, begin.id)
    };
    let (next, (stream, id)) = in_time(async { tokio::join!(events.next(), played) }).await;
    (next.unwrap().unwrap(), stream, id)
}

/// What the events say, in short.
async fn told(events: &mut Events, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..count {
        told.push(short(&in_time(events.next()).await.unwrap().unwrap()));
    }
    told
}

fn short(event: &Event) -> String {
    let text = |key: &Bytes| String::from_utf8(key.to_vec()).unwrap();
    match event {
        Event::Listed(item) => format!("listed {} {}", text(&item.key), item.version),
        Event::Live(at) => format!("live {at}"),
        Event::Changed(change) if change.deleted => {
            format!("deleted {} {}", text(&change.key), change.version)
        }
        Event::Changed(change) => format!("put {} {}", text(&change.key), change.version),
        Event::Progress(at) => format!("progress {at}"),
        Event::Reset => "reset".to_owned(),
        other => panic!("{other:?}"),
    }
}

fn gone(key: &str, index: u64) -> proto::Change {
    proto::Change { deleted: true, value: Bytes::new(), ..put(key, index) }
}

/// The keys `a/1` and `a/2` are put by entries 11 and 12, both behind the begin of the watch.
#[tokio::test]
async fn what_the_list_has_is_not_told_again_and_what_came_after_it_is() {
    let (node, client) = one().await;
    client.put("a/1", "1").await.unwrap();
    client.put("a/2", "2").await.unwrap();
    let (mut events, first, stream, id) = followed(&client, &node, Range::prefix("a/")).await;
    assert_eq!(short(&first), "listed a/1 11");
    stream.tells([changes(id, [put("a/1", 11), put("a/2", 12)], Some(12))]);
    stream.tells([changes(id, [put("a/1", 13), gone("a/2", 14)], Some(14))]);
    let expected = ["listed a/2 12", "live 3.12", "put a/1 13", "deleted a/2 14"];
    assert_eq!(told(&mut events, 4).await, expected);
    stream.marks(19);
    assert_eq!(told(&mut events, 1).await, ["progress 3.19"]);
}

/// Whether the list was made before or after them does not show, so they are told; both are behind at `Live`.
#[tokio::test]
async fn a_key_that_came_and_went_during_the_list_is_gone_once_the_state_is_live() {
    let (node, client) = one().await;
    client.put("a/1", "1").await.unwrap();
    client.put("other", "2").await.unwrap();
    let (mut events, _, stream, id) = followed(&client, &node, Range::prefix("a/")).await;
    stream.tells([changes(id, [put("a/1", 11), put("a/0", 11)], None)]);
    stream.tells([changes(id, [gone("a/0", 12)], Some(12))]);
    let expected = ["put a/0 11", "deleted a/0 12", "live 3.12"];
    assert_eq!(told(&mut events, 3).await, expected);
}

#[tokio::test]
async fn where_history_is_gone_all_begins_anew_and_says_so_first() {
    let (node, client) = one().await;
    client.put("a/1", "1").await.unwrap();
    let (mut events, _, mut stream, mut id) = followed(&client, &node, Range::prefix("a/")).await;
    stream.marks(11);
    assert_eq!(told(&mut events, 1).await, ["live 3.11"]);
    for why in [Why::Compacted, Why::Discarded] {
        let now = client.put("a/2", "2").await.unwrap().version;
        stream.tells([ended(id, why)]);
        assert_eq!(told(&mut events, 1).await, ["reset"], "{why:?}");
        let listed;
        (listed, stream, id) = again(&mut events, &node).await;
        assert_eq!(short(&listed), "listed a/1 11");
        stream.marks(now.0);
        let expected = [format!("listed a/2 {now}"), format!("live 3.{now}")];
        assert_eq!(told(&mut events, 2).await, expected, "{why:?}");
    }
}

#[tokio::test]
async fn the_stream_ends_after_an_error_that_time_does_not_change() {
    let (node, client) = one().await;
    client.put("a/1", "1").await.unwrap();
    let (mut events, _, stream, id) = followed(&client, &node, Range::prefix("a/")).await;
    stream.marks(11);
    assert_eq!(told(&mut events, 1).await, ["live 3.11"]);
    stream.tells([ended(id, Why::Denied)]);
    let error = in_time(events.next()).await.unwrap().unwrap_err();
    assert!(error.is_denied(), "{error}");
    assert!(in_time(events.next()).await.is_none());
}

/// A role of the prefix allows it, although the range does not begin at a prefix.
#[tokio::test]
async fn a_range_is_listed_from_its_first_key_and_within_what_its_keys_begin_with() {
    let (node, client) = one().await;
    for key in ["a/0", "a/1", "a/2", "a/3"] {
        client.put(key, "v").await.unwrap();
    }
    let range = Range::from("a/1".."a/3");
    let (mut events, first, stream, _) = followed(&client, &node, range).await;
    stream.marks(14);
    assert_eq!(short(&first), "listed a/1 12");
    assert_eq!(told(&mut events, 2).await, ["listed a/2 13", "live 3.14"]);
    let lists = node.lists.lock().unwrap().clone();
    let [list] = lists.as_slice() else { panic!("one page") };
    assert_eq!((&list.prefix[..], &list.start_after[..]), (&b"a/"[..], &b"a/1"[..]));
    assert_eq!(&list.end[..], b"a/3");
    assert_eq!(node.many.lock().unwrap().len(), 1, "how far the list may have come");
}

/// The story: a role of `a/1` allows a watch from `a/1x` to `a/2`, and the list before it asked for all of `a/`, which was denied.
#[tokio::test]
async fn a_list_needs_no_more_rights_than_its_watch() {
    let (node, client) = one().await;
    client.put("a/1y", "v").await.unwrap();
    let range = Range::from("a/1x".."a/2");
    let (_, first, _stream, _) = followed(&client, &node, range).await;
    assert_eq!(short(&first), "listed a/1y 11");
    let lists = node.lists.lock().unwrap().clone();
    let [list] = lists.as_slice() else { panic!("one page") };
    assert_eq!((&list.prefix[..], &list.start_after[..]), (&b"a/1"[..], &b"a/1x"[..]));
}

/// The story: a range began just behind the longest key that can be. No key is as long, so to read it was refused, and the range
/// could not be followed.
#[tokio::test]
async fn a_range_that_begins_behind_the_longest_key_is_listed_from_there() {
    let (node, client) = one().await;
    for key in ["a/1", "a/2"] {
        client.put(key, "v").await.unwrap();
    }
    let reason = Reason::KeyInvalid.into();
    let refused = proto::ErrorDetail { reason, limit: 4, actual: 5, ..Default::default() };
    node.plays([Step::Refuse(refused)]);
    let range = Range::from("a/1zz".."a/3");
    let (mut events, first, stream, _) = followed(&client, &node, range).await;
    stream.marks(14);
    assert_eq!(short(&first), "listed a/2 12");
    assert_eq!(told(&mut events, 1).await, ["live 3.14"]);
    let lists = node.lists.lock().unwrap().clone();
    let [list] = lists.as_slice() else { panic!("one page") };
    assert_eq!(&list.start_after[..], b"a/1z");
    let many = node.many.lock().unwrap().clone();
    let [many] = many.as_slice() else { panic!("one read") };
    assert_eq!(many.keys, ["a/1z"]);
}
