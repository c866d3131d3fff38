//! What a stream makes of what a node tells: each part reaches its watch, and what no node may tell is a sentence.

use super::*;
use prost::Message;

/// A watch of the stream, as its user has it.
struct Watcher {
    inbox: Arc<Inbox>,
    begun: oneshot::Receiver<Result<(), Left>>,
    left: oneshot::Receiver<Left>,
}

fn at(index: u64) -> proto::Position {
    proto::Position { term: 3, index }
}

/// Begins a watch of all keys behind entry 10.
fn ask(watches: &mut Watches, id: u64) -> Watcher {
    let inbox = Arc::new(Inbox::new(proto::Range::default(), false, Some(at(10).into())));
    let (turn, _) = inbox.restart();
    let (begun, has_begun) = oneshot::channel();
    let (left, leaves) = oneshot::channel();
    let listener = Listener { inbox: inbox.clone(), turn, begun: Some(begun), left };
    let begin = proto::WatchBegin { id, ..proto::WatchBegin::default() };
    assert!(watches.asked(Asked::Begin(begin, listener)).is_some());
    Watcher { inbox, begun: has_begun, left: leaves }
}

fn part(id: u64, kind: watch_part::Kind) -> proto::WatchPart {
    proto::WatchPart { id, kind: Some(kind) }
}

fn began(id: u64) -> proto::WatchPart {
    part(id, watch_part::Kind::Began(at(10)))
}

fn changed(id: u64, index: u64) -> proto::WatchPart {
    let change = proto::Change { key: "key".into(), at: Some(at(index)), ..Default::default() };
    let changes = proto::WatchChanges { changes: vec![change], through: Some(at(index)) };
    part(id, watch_part::Kind::Changes(changes))
}

fn ended(id: u64, why: Why) -> proto::WatchPart {
    let oldest = Some(at(20));
    let said =
        proto::WatchEnded { why: why.into(), oldest, now: Some(at(30)), message: "so".into() };
    part(id, watch_part::Kind::Ended(said))
}

fn response(
    parts: impl IntoIterator<Item = proto::WatchPart>,
    through: Option<u64>,
) -> proto::WatchResponse {
    proto::WatchResponse { parts: parts.into_iter().collect(), through: through.map(at) }
}

/// What no node may tell, as a sentence.
fn sentence(left: Left) -> String {
    match left {
        Left::Over(Over::Breach(breach)) => breach,
        other => panic!("{other:?}"),
    }
}

fn position(watch: &Watcher) -> u64 {
    watch.inbox.position().index
}

#[test]
fn each_part_reaches_its_watch_and_a_mark_reaches_those_that_have_begun() {
    let mut watches = Watches::default();
    let (mut one, mut two) = (ask(&mut watches, 1), ask(&mut watches, 2));
    watches.told(response([began(1), changed(1, 11)], Some(12))).unwrap();
    assert!(matches!(one.begun.try_recv(), Ok(Ok(()))));
    assert!(two.begun.try_recv().is_err());
    assert_eq!(one.inbox.next().unwrap().unwrap().version.0, 11);
    assert_eq!((position(&one), position(&two)), (12, 10));
    watches.told(response([began(2), changed(2, 11)], Some(12))).unwrap();
    assert_eq!(two.inbox.next().unwrap().unwrap().version.0, 11);
    assert!(one.left.try_recv().is_err());
}

#[test]
fn a_watch_that_was_ended_is_told_nothing_and_its_late_end_is_no_fault() {
    let mut watches = Watches::default();
    let mut one = ask(&mut watches, 1);
    watches.told(response([began(1)], None)).unwrap();
    assert!(watches.asked(Asked::End(1)).is_some());
    watches.told(response([changed(1, 11)], None)).unwrap();
    assert!(!one.inbox.is_ready() && one.left.try_recv().is_err());
    // The node ended it at the same time, and confirms an end that it does not know.
    watches.told(response([ended(1, Why::Move), ended(1, Why::Cancelled)], None)).unwrap();
    assert!(watches.asked(Asked::End(1)).is_none(), "nobody knows it any more");
    assert!(watches.listeners.is_empty() && watches.ending == 0);
}

#[test]
fn what_concerns_one_watch_ends_that_one_and_what_concerns_none_ends_the_stream() {
    for parts in [vec![began(1), began(1)], vec![changed(1, 11)], vec![began(1), changed(1, 9)]] {
        let mut watches = Watches::default();
        let (mut one, two) = (ask(&mut watches, 1), ask(&mut watches, 2));
        watches.told(response(parts, None)).unwrap();
        let left = one.left.try_recv().or_else(|_| one.begun.try_recv().map(Result::unwrap_err));
        assert!(matches!(left, Ok(Left::Over(Over::Breach(_)))));
        watches.told(response([began(2), changed(2, 11)], None)).unwrap();
        assert!(two.inbox.is_ready(), "the other one goes on");
    }
    let unknown = proto::WatchPart { id: 1, kind: None };
    for (told, says) in [
        (response([began(7)], None), "watch 7"),
        (response([changed(7, 11)], None), "watch 7"),
        (response([unknown], None), "does not know"),
    ] {
        let mut watches = Watches::default();
        ask(&mut watches, 1);
        let breach = sentence(watches.told(told).unwrap_err());
        assert!(breach.contains(says), "{breach}");
    }
}

/// The story: an unsafe recovery discarded what a member had marked. Its marks fell, and all watches there ended as if it lied.
#[test]
fn a_mark_that_falls_leaves_the_stream_and_ends_no_watch() {
    let mut watches = Watches::default();
    let mut watch = ask(&mut watches, 1);
    watches.told(response([began(1)], Some(15))).unwrap();
    let left = watches.told(response([], Some(14))).unwrap_err();
    watches.leave(&left);
    let Ok(Left::Elsewhere(status)) = watch.left.try_recv() else { panic!("it is over") };
    assert!(status.message().contains("3.14, behind entry 3.15"), "{status}");
    assert_eq!(position(&watch), 15);
}

#[test]
fn a_watch_that_ended_is_as_far_as_what_was_told_of_it() {
    for why in [Why::Denied, Why::Compacted, Why::Discarded, Why::Move] {
        let mut watches = Watches::default();
        let mut watch = ask(&mut watches, 1);
        let told = response([began(1), changed(1, 11), ended(1, why)], Some(15));
        watches.told(told).unwrap();
        watches.told(response([], Some(16))).unwrap();
        assert!(watch.left.try_recv().is_ok());
        watch.inbox.fail(Error::HistoryDiscarded);
        assert_eq!(position(&watch), 10, "{why:?}");
        assert_eq!(watch.inbox.next().unwrap().unwrap().version.0, 11);
        assert_eq!(position(&watch), 11, "{why:?}");
    }
}

#[test]
fn a_node_that_confirms_no_end_is_left_before_it_takes_memory() {
    let mut watches = Watches::default();
    for id in 1..=MOST_ENDING as u64 + 1 {
        ask(&mut watches, id);
        watches.asked(Asked::End(id));
    }
    let breach = sentence(watches.told(response([changed(1, 11)], None)).unwrap_err());
    assert!(breach.contains("did not end"), "{breach}");
}

#[test]
fn an_end_says_whether_another_node_may_go_on() {
    use crate::failure::Failure;
    let left = |why| {
        let mut watches = Watches::default();
        let mut watch = ask(&mut watches, 1);
        watches.told(response([began(1), ended(1, why)], None)).unwrap();
        watch.left.try_recv().unwrap()
    };
    let elsewhere = |why| match left(why) {
        Left::Elsewhere(status) => Failure::of(&status),
        _ => panic!("no other node is asked"),
    };
    for why in [Why::Move, Why::Cancelled, Why::Unspecified] {
        assert!(matches!(elsewhere(why), Failure::Lost { timed_out: false, .. }), "{why:?}");
    }
    assert_eq!(elsewhere(Why::Unreadable), Failure::Unreadable("so".to_owned()));
    assert_eq!(elsewhere(Why::Full), Failure::Overloaded(Duration::from_millis(FULL_AGAIN_MS)));
    let message = "so".to_owned();
    let denied = Error::PermissionDenied { message: message.clone() };
    assert_eq!(elsewhere(Why::Denied), Failure::Refused(denied));
    let said = |why| match left(why) {
        Left::Over(Over::Said(error)) => error,
        _ => panic!("another node is asked"),
    };
    let compacted = Error::Compacted { oldest: at(20).into(), now: at(30).into() };
    assert_eq!(said(Why::Compacted), compacted);
    assert_eq!(said(Why::Discarded), Error::HistoryDiscarded);
    assert_eq!(said(Why::Invalid), Error::InvalidRequest(message));
}

/// Watches 1 and 2 are asked for. Whatever comes, what they are given is in order and inside of their bounds.
#[test]
fn any_bytes_are_changes_in_order_or_end_a_watch() {
    cairn_fuzz::target!(
        "changes" => response([began(1), changed(1, 11), changed(1, 13)], Some(14)).encode_to_vec(),
        "ended" => response([began(1), began(2), ended(2, Why::Compacted)], None).encode_to_vec(),
    )
    .for_each(|bytes| {
        let most = 256 * bytes.len() + (16 << 10);
        let Ok(message) = cairn_fuzz::within(most, || proto::WatchResponse::decode(bytes)) else {
            return;
        };
        let mut watches = Watches::default();
        let asked = [ask(&mut watches, 1), ask(&mut watches, 2)];
        let _ = cairn_fuzz::within(most, || watches.told(message));
        for watch in asked {
            let (mut last, from) = (10, position(&watch));
            while let Some(Ok(change)) = watch.inbox.next() {
                assert!(change.version.0 >= last.max(11) && !change.key.is_empty());
                last = change.version.0;
            }
            assert!(from >= 10 && position(&watch) >= from);
        }
    });
}
