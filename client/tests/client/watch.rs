//! A watch tells each change once and in order, over nodes that end, break off and fall silent.

mod ends;

use crate::fake::watches::{WatchStream, at, begun, changes, ended, plays, put};
use crate::fake::{Cluster, Node, WAIT_LIMIT, options};
use cairn_client::proto::watch_ended::Why;
use cairn_client::{
    Bytes, Change, Client, Error, ErrorKind, Position, Range, Version, Watch, proto,
};
use futures::FutureExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

/// Ends a hang.
pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_LIMIT, work).await.expect("it goes on")
}

/// Lets time pass until the client leaves the stream, which only time can make it do. Nobody waits for that, and
/// afterwards time passes by the clock again: a new connection takes some.
async fn until_left(stream: &mut WatchStream) {
    tokio::time::pause();
    while stream.asked().await.is_some() {}
    tokio::time::resume();
}

/// A node, and a client that knows no other one.
pub async fn one() -> (Node, Client) {
    let node = Node::start(&Cluster::new("test")).await;
    let client = options(&[&node]).connect().await.unwrap();
    (node, client)
}

/// Two nodes, and a client that asks the first one first.
async fn two() -> (Node, Node, Client) {
    let cluster = Cluster::new("test");
    let (first, second) = (Node::start(&cluster).await, Node::start(&cluster).await);
    first.knows(&[&first, &second]);
    second.knows(&[&first, &second]);
    let client = options(&[&first]).connect().await.unwrap();
    (first, second, client)
}

/// A watch of all keys, its stream at the node, and its number there.
async fn watched(client: &Client, node: &Node) -> (Watch, WatchStream, u64) {
    let played = async {
        let mut stream = node.watched().await;
        let begin = stream.begun().await;
        (stream, begin.id)
    };
    let (watch, (stream, id)) =
        in_time(async { tokio::join!(client.watch(..).begin(), played) }).await;
    (watch.unwrap(), stream, id)
}

/// The keys of the next so many changes, with a dot behind the last one of each entry.
async fn keys(watch: &mut Watch, count: usize) -> String {
    let mut keys = String::new();
    for _ in 0..count {
        let change = in_time(watch.next()).await.unwrap();
        keys += std::str::from_utf8(&change.key).unwrap();
        keys += if change.last_of_version { "." } else { "" };
    }
    keys
}

/// An entry of term 3.
fn position(index: u64) -> Position {
    Position { term: 3, index }
}

#[tokio::test]
async fn changes_are_told_in_order_with_all_that_is_known_of_them() {
    let (node, client) = one().await;
    let (mut watch, stream, id) = watched(&client, &node).await;
    assert_eq!(watch.position(), position(10));
    let (deleted, value) = (true, Bytes::new());
    let gone = proto::Change { deleted, value, previous: 7, ..put("b", 12) };
    stream.tells([changes(id, [put("a", 12), gone], Some(12))]);
    let Change { key, version, term, deleted, value, previous, last_of_version, .. } =
        in_time(watch.next()).await.unwrap();
    assert_eq!((&key[..], version, term), (&b"a"[..], Version(12), 3));
    assert_eq!((deleted, value, previous), (false, Some("value".into()), None));
    assert!(!last_of_version);
    assert_eq!(watch.position(), position(10), "a part of entry 12 is not read yet");
    let gone = in_time(watch.next()).await.unwrap();
    assert_eq!((&gone.key[..], gone.deleted, gone.value), (&b"b"[..], true, None));
    assert_eq!((gone.previous, gone.last_of_version), (Some(Version(7)), true));
    assert_eq!(watch.position(), position(12));
    stream.marks(19);
    while watch.position() != position(19) {
        in_time(watch.progressed()).await;
    }
}

#[tokio::test]
async fn a_watch_asks_for_its_range_and_position_and_for_values_only_if_they_are_wanted() {
    let (node, client) = one().await;
    let (from, keys_only) = ("3.17".parse::<Position>().unwrap(), true);
    let watch = client.watch(Range::prefix("a/")).from(from).keys_only().begin();
    let played = async {
        let mut stream = node.watched().await;
        (stream.begun().await, stream)
    };
    let (watch, (begin, stream)) = in_time(async { tokio::join!(watch, played) }).await;
    let mut watch = watch.unwrap();
    let range = Some(proto::Range { start: "a/".into(), end: "a0".into() });
    assert_eq!(begin, proto::WatchBegin { id: begin.id, range, after: Some(at(17)), keys_only });
    stream.tells([changes(begin.id, [put("a/1", 18)], Some(18))]);
    assert_eq!(in_time(watch.next()).await.unwrap().value, None);
    assert_eq!(watch.position().to_string(), "3.18");
    let none = client.watch("b".."a").begin().await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Invalid, "{none}");
}

#[tokio::test]
async fn all_watches_of_a_client_at_a_node_share_a_stream_which_the_last_one_ends() {
    let (node, client) = one().await;
    let (first, mut stream, first_id) = watched(&client, &node).await;
    let again = client.clone();
    let both = async { tokio::join!(again.watch("b"..).begin(), stream.begun()) };
    let (second, begin) = in_time(both).await;
    let mut second = second.unwrap();
    assert_ne!(begin.id, first_id);
    drop(first);
    assert_eq!(in_time(stream.end()).await, first_id);
    // What was under way to it is no fault.
    stream.tells([changes(first_id, [put("a", 11)], Some(11)), ended(first_id, Why::Cancelled)]);
    stream.tells([changes(begin.id, [put("b", 12)], Some(12))]);
    assert_eq!(keys(&mut second, 1).await, "b.");
    drop(second);
    while in_time(stream.asked()).await.is_some() {}
}

/// The story: a node told two of three changes of an entry, and broke off. The next one told the whole entry, and an application
/// counted its first change twice.
#[tokio::test]
async fn an_entry_that_was_told_in_part_is_told_anew_and_each_change_is_returned_once() {
    let (node, client) = one().await;
    let (mut watch, mut stream, id) = watched(&client, &node).await;
    let part = [put("a", 12), put("b", 12)];
    stream.tells([changes(id, [put("w", 11)], Some(11)), changes(id, part, None)]);
    assert_eq!(keys(&mut watch, 2).await, "w.a");
    assert_eq!(watch.position(), position(11));
    stream.breaks();
    let mut stream = in_time(node.watched()).await;
    let begin = in_time(stream.begun()).await;
    assert_eq!(begin.after, Some(at(11)), "behind the last whole entry");
    let whole = [put("a", 12), put("b", 12), put("c", 12)];
    stream.tells([changes(begin.id, whole, Some(12)), changes(begin.id, [put("d", 13)], Some(13))]);
    assert_eq!(keys(&mut watch, 3).await, "bc.d.");
    assert_eq!(watch.position(), position(13));
}

#[tokio::test]
async fn one_who_does_not_read_holds_up_nobody_and_goes_on_where_he_was() {
    let (node, client) = one().await;
    let (mut slow, mut stream, slow_id) = watched(&client, &node).await;
    let both = async { tokio::join!(client.watch(..).begin(), stream.begun()) };
    let (quick, begin) = in_time(both).await;
    let mut quick = quick.unwrap();
    let many = (11..=4500).map(|index| put("s", index));
    let quick_one = changes(begin.id, [put("q", 4501)], Some(4501));
    stream.tells([changes(slow_id, many, Some(4500)), quick_one]);
    assert_eq!(keys(&mut quick, 1).await, "q.");
    assert_eq!(in_time(stream.end()).await, slow_id, "it is ended at the node");
    stream.tells([ended(slow_id, Why::Cancelled)]);
    for index in 11..=4106 {
        assert_eq!(in_time(slow.next()).await.unwrap().version, Version(index));
    }
    let again = in_time(stream.begun()).await;
    assert_eq!((again.after, slow.position()), (Some(at(4106)), position(4106)));
    let rest = (4107..=4500).map(|index| put("s", index));
    stream.tells([changes(again.id, rest, Some(4500))]);
    for index in 4107..=4500 {
        assert_eq!(in_time(slow.next()).await.unwrap().version, Version(index));
    }
}

/// The story: the user of a watch waited for it beside a timer, and lost a change each time the timer came first.
#[tokio::test]
async fn to_stop_waiting_for_a_change_loses_none() {
    let (node, client) = one().await;
    let (mut watch, stream, id) = watched(&client, &node).await;
    let (mut told, mut read) = (10, 10);
    in_time(async {
        while read < 30 {
            match watch.next().now_or_never() {
                Some(change) => {
                    read += 1;
                    assert_eq!(change.unwrap().version, Version(read));
                }
                None if told < 30 => {
                    told += 1;
                    stream.tells([changes(id, [put("a", told)], Some(told))]);
                }
                None => {}
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_node_that_cannot_go_on_is_left_for_another_one() {
    for why in [Why::Move, Why::Unreadable, Why::Full, Why::Unspecified, Why::Cancelled] {
        let (first, second, client) = two().await;
        let (mut watch, stream, id) = watched(&client, &first).await;
        stream.tells([changes(id, [put("a", 11)], Some(11)), ended(id, why)]);
        let mut stream = in_time(second.watched()).await;
        let begin = in_time(stream.begun()).await;
        assert_eq!(begin.after, Some(at(11)), "{why:?}");
        stream.tells([changes(begin.id, [put("b", 12)], Some(12))]);
        assert_eq!(keys(&mut watch, 2).await, "a.b.", "{why:?}");
    }
}

/// The story: a node hung, and its connections stayed open. Who watched there was told nothing any more, and did not know it.
#[tokio::test]
async fn a_node_that_says_nothing_is_left_for_another_one() {
    let (silent, other, client) = two().await;
    let (mut watch, mut stream, id) = watched(&client, &silent).await;
    stream.tells([changes(id, [put("a", 11)], Some(11))]);
    assert_eq!(keys(&mut watch, 1).await, "a.");
    let (asked, mut begins) = mpsc::unbounded_channel();
    let playing = plays(&other, move |begin| {
        asked.send(begin.after).unwrap();
        vec![begun(&begin), changes(begin.id, [put("b", 12)], Some(12))]
    });
    until_left(&mut stream).await;
    let change = in_time(watch.next()).await.unwrap();
    assert_eq!((&change.key[..], change.version), (&b"b"[..], Version(12)));
    assert_eq!(in_time(begins.recv()).await, Some(Some(at(11))));
    playing.abort();
}

#[tokio::test]
async fn a_node_that_does_not_begin_a_watch_is_left_for_another_one() {
    let cluster = Cluster::new("test");
    let (hanging, other) = (Node::start(&cluster).await, Node::start(&cluster).await);
    hanging.knows(&[&hanging, &other]);
    let client = options(&[&hanging]).deadline(100 * WAIT_LIMIT).connect().await.unwrap();
    let playing = plays(&other, |begin| vec![begun(&begin)]);
    let begin = tokio::spawn(client.watch(..).begin());
    let mut stream = in_time(hanging.watched()).await;
    in_time(stream.begin()).await;
    until_left(&mut stream).await;
    let watch = in_time(begin).await.unwrap().unwrap();
    assert_eq!(watch.position(), position(10));
    playing.abort();
}

/// The story: a client only watched. All members were replaced, one after another, and it never heard of the new ones: it waited
/// for the first ones for ever.
#[tokio::test]
async fn who_only_watches_hears_of_new_members_before_the_first_ones_are_gone() {
    let (node, client) = one().await;
    node.knows(&[&node]);
    client.members().await.unwrap();
    let (mut watch, mut stream, _) = watched(&client, &node).await;
    let new = Node::start(&Cluster::new("test")).await;
    node.knows(&[&node, &new]);
    let asked = node.hellos.load(Ordering::SeqCst);
    // Until the watch asks, which only time makes it do. The answer takes time by the clock.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    in_time(async {
        while client.endpoints() != [node.address.clone(), new.address.clone()] {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(node.hellos.load(Ordering::SeqCst) > asked);
    stream.breaks();
    let mut stream = in_time(new.watched()).await;
    let begin = in_time(stream.begun()).await;
    stream.tells([changes(begin.id, [put("a", 11)], Some(11))]);
    assert_eq!(keys(&mut watch, 1).await, "a.");
}

#[tokio::test]
async fn a_node_of_an_earlier_release_is_left_and_where_all_are_that_is_the_error() {
    let (earlier, later, client) = two().await;
    earlier.is_of_an_earlier_release();
    let playing = plays(&later, |begin| vec![begun(&begin)]);
    in_time(client.watch(..).begin()).await.unwrap();
    later.is_of_an_earlier_release();
    let fresh = options(&[&earlier, &later]).connect().await.unwrap();
    let error = in_time(fresh.watch(..).begin()).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    playing.abort();
}

/// The story: of an upgrade that went from member to member, the first one that knew watches was started again. All others said
/// that they know none, and the watch ended.
#[tokio::test]
async fn a_watch_that_has_begun_waits_until_a_node_knows_watches_again() {
    let (upgraded, later, client) = two().await;
    let (mut watch, mut stream, id) = watched(&client, &upgraded).await;
    stream.tells([changes(id, [put("a", 11)], Some(11))]);
    assert_eq!(keys(&mut watch, 1).await, "a.");
    upgraded.is_of_an_earlier_release();
    later.is_of_an_earlier_release();
    stream.breaks();
    // Each is asked again and again.
    for node in [&upgraded, &later, &upgraded, &later] {
        let before = node.refused_watches.load(Ordering::SeqCst);
        in_time(async {
            while node.refused_watches.load(Ordering::SeqCst) <= before + 1 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    later.is_upgraded();
    let mut stream = in_time(later.watched()).await;
    let begin = in_time(stream.begun()).await;
    assert_eq!(begin.after, Some(at(11)));
    stream.tells([changes(begin.id, [put("b", 12)], Some(12))]);
    assert_eq!(keys(&mut watch, 1).await, "b.");
}
