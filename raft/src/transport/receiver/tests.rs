//! Pieces of a snapshot in and out of order, and snapshots of another history.

use super::*;
use crate::storage::state_machine::{Image, UnsafeRecoveries};
use crate::storage::tests::{engine, engine_to_hold};
use cairn_engine::{MachineImage, NewEntry, Promise};
use futures::FutureExt;
use prost::Message;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use xxhash_rust::xxh3::xxh3_128;

fn item(key: &'static str, value: Vec<u8>) -> proto::SnapshotItem {
    let (length, hash) = (value.len() as u32, xxh3_128(&value).to_le_bytes().to_vec());
    let (key, value) = (key.into(), Some(value.into()));
    proto::SnapshotItem { key, term: 1, index: 1, value, hash: hash.into(), length }
}

/// Besides the input as it is, the same with the hashes and lengths of its values put right.
#[test]
fn any_bytes_decode_to_the_keys_of_a_piece_or_to_an_error() {
    let mut held = item("b", vec![2; 9]);
    held.value = None;
    let items = vec![item("a", vec![1; 9]), held, item("c", vec![])];
    let piece = proto::SnapshotChunkRequest { items, ..Default::default() };
    cairn_fuzz::target!("piece" => piece.encode_to_vec()).for_each(|bytes| {
        let most = 256 * bytes.len() + 4096;
        let decode = || proto::SnapshotChunkRequest::decode(bytes);
        let Ok(piece) = cairn_fuzz::within(most, decode) else { return };
        let mut right = piece.items.clone();
        for item in &mut right {
            if let Some(value) = &item.value {
                item.length = value.len() as u32;
                item.hash = xxh3_128(value).to_le_bytes().to_vec().into();
            }
        }
        let last_key = Bytes::from_static(b"A");
        for items in [piece.items, right] {
            let keys = cairn_fuzz::within(most, || checked(&last_key, items.clone()));
            let Ok(keys) = keys else { continue };
            assert!(keys.iter().map(SnapshotKey::key).eq(items.iter().map(|item| &item.key)));
            let all: Vec<_> =
                [&last_key].into_iter().chain(keys.iter().map(SnapshotKey::key)).collect();
            assert!(all.is_sorted_by(|before, after| before < after));
            assert!(all.iter().all(|key| codec::is_key(key)));
        }
    });
}

/// The story: a leader waited ten seconds for the answer to one piece, and no longer. The
/// piece, and all the pieces before it, were dropped, and the snapshot was sent from its
/// beginning, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_piece_is_taken_to_its_end_even_if_its_sender_stops_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = SnapshotReceiver::new(engine(&folder).await);
    let last = LogId { term: 1, index: 9 };
    assert_eq!(receiver.offset(last, || true).await.unwrap(), Some(Bytes::new()));
    let first =
        receiver.chunk(last, "".into(), vec![item("a", vec![1; 100])], || true).await.unwrap();
    assert_eq!(first, ("a".into(), vec![]));
    // Polled once, and dropped.
    drop(
        receiver.chunk(last, "a".into(), vec![item("b", vec![2; 600_000])], || true).now_or_never(),
    );
    let taken = async {
        loop {
            let key = receiver.offset(last, || true).await.unwrap().expect("not applied");
            match &key[..] {
                b"b" => return,
                b"a" => tokio::task::yield_now().await,
                _ => panic!("{key:?} is the last: the pieces were dropped"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), taken).await.unwrap();
}

/// A leader that began a newer snapshot, or another leader, may still have pieces of the one
/// before on their way.
#[tokio::test(flavor = "multi_thread")]
async fn a_piece_is_taken_once_in_order_and_only_of_the_snapshot_that_is_being_received() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = SnapshotReceiver::new(engine(&folder).await);
    let (older, newer) = (LogId { term: 1, index: 9 }, LogId { term: 2, index: 9 });
    let piece = |key: &'static str| vec![item(key, vec![1; 100])];
    let meta = |last| SnapshotMeta {
        last_log_id: Some(crate::core::types::raft_log_id(last)),
        ..SnapshotMeta::default()
    };
    let code = |error: Option<Status>| error.map(|status| status.code());
    let aborted = Some(tonic::Code::Aborted);
    let (none, a) = (Bytes::new, || Bytes::from_static(b"a"));

    assert_eq!(
        code(receiver.chunk(older, none(), piece("a"), || true).await.err()),
        aborted,
        "none is begun"
    );
    assert_eq!(receiver.offset(older, || true).await.unwrap(), Some(none()));
    let taken = |last, after, key| {
        let took = receiver.chunk(last, after, piece(key), || true);
        async move { took.await.map(|(last_key, missing)| (last_key, missing.len())) }
    };
    assert_eq!(taken(older, a(), "b").await.unwrap(), (none(), 0), "skipped one");
    assert_eq!(taken(older, none(), "a").await.unwrap(), (a(), 0));
    assert_eq!(taken(older, none(), "a").await.unwrap(), (a(), 0), "repeated");
    assert_eq!(receiver.offset(older, || true).await.unwrap(), Some(a()), "resumed");

    assert_eq!(code(taken(newer, a(), "b").await.err()), aborted, "another one");
    let finished = receiver.finish(newer, meta(newer), a(), Bytes::new(), || true).await;
    assert_eq!(code(finished.err()), aborted, "another one");
    for last_key in ["", "b"] {
        let finished =
            receiver.finish(older, meta(older), last_key.into(), Bytes::new(), || true).await;
        assert_eq!(code(finished.err()), aborted, "up to {last_key}");
    }
    assert_eq!(receiver.offset(older, || true).await.unwrap(), Some(a()), "kept");

    // What arrived of the older one is no part of the newer one.
    assert_eq!(receiver.offset(newer, || true).await.unwrap(), Some(none()));
    assert_eq!(code(taken(older, a(), "b").await.err()), aborted, "given up");
    let finished = receiver.finish(older, meta(older), a(), Bytes::new(), || true).await;
    assert_eq!(code(finished.err()), aborted, "given up");
    assert_eq!(taken(newer, none(), "b").await.unwrap(), ("b".into(), 0));
    let finished = receiver.finish(newer, meta(newer), "b".into(), Bytes::new(), || true).await;
    assert!(finished.unwrap().is_some());
}

/// The story: a leader gave a piece up, and cut the rest of the snapshot differently when it
/// resumed. The piece arrived late and was taken for the new one of the same number, and the new
/// one for a repetition. The follower never had the keys that only the new one held.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_piece_of_an_earlier_attempt_leaves_no_hole() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = SnapshotReceiver::new(engine(&folder).await);
    let last = LogId { term: 1, index: 9 };
    let piece =
        |keys: &[&'static str]| keys.iter().map(|key| item(key, vec![1; 9])).collect::<Vec<_>>();
    assert_eq!(receiver.offset(last, || true).await.unwrap(), Some(Bytes::new()));
    let late = receiver.chunk(last, "".into(), piece(&["a"]), || true).await.unwrap();
    assert_eq!(late, ("a".into(), vec![]));
    let new = receiver.chunk(last, "".into(), piece(&["a", "b"]), || true).await.unwrap();
    assert_eq!(new, ("a".into(), vec![]), "`b` has not arrived");
    let behind = receiver.chunk(last, "b".into(), piece(&["c"]), || true).await.unwrap();
    assert_eq!(behind, ("a".into(), vec![]), "nothing is taken behind a hole");
    let rest = receiver.chunk(last, "a".into(), piece(&["b", "c"]), || true).await.unwrap();
    assert_eq!(rest, ("c".into(), vec![]));
}

/// What is applied where [`refused`] offers a snapshot.
const APPLIED: LogId = LogId { term: 2, index: 5 };

/// Why a snapshot through entry 9-50 is refused that has a key of this version, and this image; `None` if
/// it is taken.
async fn refused(version: LogId, image: &Image) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&folder).await;
    let installer = engine.begin_install(GROUP).await.unwrap();
    installer.finish(APPLIED, Arc::new(Image::default())).await.unwrap();
    let receiver = SnapshotReceiver::new(engine);
    let last = LogId { term: 9, index: 50 };
    let meta = SnapshotMeta {
        last_log_id: Some(crate::core::types::raft_log_id(last)),
        ..SnapshotMeta::default()
    };
    let LogId { term, index } = version;
    let key = proto::SnapshotItem { term, index, ..item("a", vec![1; 100]) };
    let received = async {
        assert_eq!(receiver.offset(last, || true).await?, Some(Bytes::new()));
        receiver.chunk(last, Bytes::new(), vec![key], || true).await?;
        receiver.finish(last, meta, "a".into(), image.encode().into(), || true).await
    };
    let refused = match received.await {
        Ok(taken) => {
            assert!(taken.is_some(), "it is not applied yet");
            return None;
        }
        Err(refused) => refused,
    };
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(!receiver.receives(), "its space is free again");
    assert!(receiver.offset(LogId { term: 9, index: 60 }, || true).await.is_err(), "another one");
    Some(refused.message().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_whose_history_lacks_what_is_applied_is_refused_for_good() {
    // (the version of the key that comes, where an unsafe recovery of term 9 is recorded, what is refused)
    let histories = [
        (LogId { term: 2, index: 5 }, 7, None),
        (LogId { term: 1, index: 4 }, 6, Some("entry 9-5 ")),
        (LogId { term: 9, index: 4 }, 50, Some("entry 9-4 ")),
        (LogId { term: 1, index: 5 }, 50, Some("entry 1-5 ")),
        (LogId { term: 1, index: 9 }, 50, Some("entry 1-9 ")),
    ];
    for (version, recorded, named) in histories {
        let unsafe_recoveries = UnsafeRecoveries { count: 1, last_index: recorded, last_term: 9 };
        let image = Image { unsafe_recoveries, ..Image::default() };
        let refused = refused(version, &image).await;
        assert_eq!(refused.is_some(), named.is_some(), "{version}: {refused:?}");
        assert!(refused.is_none_or(|reason| reason.contains(named.unwrap())), "{version}");
    }
}

/// The story: a member was missing for two unsafe recoveries. The image named only the second one, which came
/// far behind all that the member had; so did the first one, behind the boots that its leader logged.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_refused_by_each_unsafe_recovery_since_a_member_was_there() {
    let id = |term, index| LogId { term, index };
    let (discarded, later) = ((id(2, 4), id(5, 9)), (id(6, 30), id(8, 32)));
    // (what each unsafe recovery kept, and its record; what is refused)
    let histories = [
        (vec![discarded], Some("entry 5-5 ")),
        (vec![discarded, later], Some("entry 5-5 ")),
        (vec![(id(1, 7), id(5, 9)), later], Some("entry 1-7 ")),
        (vec![(id(2, 5), id(5, 9)), later], None),
        (vec![later], None),
    ];
    for (recoveries, named) in histories {
        let mut image = Image::default();
        for (kept, recorded) in &recoveries {
            let first = LogId { term: recorded.term, index: kept.index + 1 };
            image.recovery_records.applies(Some(*kept), first);
            image.recovery_records.add(image.unsafe_recoveries, *recorded);
            image.unsafe_recoveries = UnsafeRecoveries {
                count: image.unsafe_recoveries.count + 1,
                last_index: recorded.index,
                last_term: recorded.term,
            };
        }
        let refused = refused(APPLIED, &image).await;
        assert_eq!(refused.is_some(), named.is_some(), "{recoveries:?}: {refused:?}");
        assert!(refused.is_none_or(|reason| reason.contains(named.unwrap())), "{recoveries:?}");
    }
}

/// By its term the last entry of another history may come before what is applied, and is not held.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_ends_behind_what_is_applied_in_an_earlier_term_is_not_taken_for_held() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&folder).await;
    let installer = engine.begin_install(GROUP).await.unwrap();
    installer.finish(APPLIED, Arc::new(Image::default())).await.unwrap();
    let receiver = SnapshotReceiver::new(engine);
    assert_eq!(receiver.offset(LogId { term: 1, index: 4 }, || true).await.unwrap(), None, "held");
    let other = LogId { term: 1, index: 50 };
    // Its sender is deposed by now: that says nothing of what the next leader sends.
    let late = receiver.offset(other, || false).await.unwrap_err();
    assert_eq!(late.code(), tonic::Code::Aborted);
    let next = LogId { term: 9, index: 60 };
    assert_eq!(receiver.offset(next, || true).await.unwrap(), Some(Bytes::new()));
    let refused = receiver.offset(other, || true).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("entry 1-50 "), "{refused}");
}

/// The story: a member said that it held a snapshot's last entry, whose write was under way. A
/// leader took that for an acknowledgement, and a kill then took it back.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_visible_counts_as_held_only_once_it_is_kept() {
    let last = LogId { term: 1, index: 1 };
    for installed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (engine, hold) = engine_to_hold(&folder, |_| ()).await;
        let receiver = SnapshotReceiver::new(engine.clone());
        let installer = engine.begin_install(GROUP).await.unwrap();
        hold.begin();
        let kept = async {
            if installed {
                return installer.finish(last, Arc::new(Image::default())).await.unwrap();
            }
            let (done, written) = oneshot::channel();
            let done = Box::new(move |result| drop(done.send(result)));
            let entry = NewEntry { id: last, meta: Bytes::new(), values: vec![] };
            engine.append(GROUP, vec![entry], Promise::Mode, done).await.unwrap();
            written.await.unwrap().unwrap();
        };
        let released = AtomicBool::new(false);
        let answer = async {
            hold.holds_something().await;
            let answer = receiver.offset(last, || true).await;
            (answer.unwrap(), released.load(SeqCst))
        };
        let release = async {
            hold.holds_something().await;
            tokio::task::yield_now().await;
            released.store(true, SeqCst);
            hold.end();
        };
        let ((), answer, ()) = tokio::join!(kept, answer, release);
        assert_eq!(answer, (None, true), "installed: {installed}");
    }
}
