//! The engine's own sources under a scheduler that may stop a thread wherever a lock is taken or
//! released. Shared state keeps its promises in any order of the threads, and no caller waits
//! forever.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use futures::FutureExt;
use raced_engine::io::{FileKind, IoFuture};
use raced_engine::{
    Change, Engine, Error, Installer, ListQuery, LogId, Mode, NewEntry, Options, Promise,
    SnapshotKey, Transition,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::{Disk, GROUP, explore, id, image, open, options, prepared};
use tokio::spawn;
use tokio::sync::oneshot;

fn filled(len: usize, with: u64) -> Bytes {
    Bytes::from(vec![with as u8; len])
}

async fn append(engine: &Engine, index: u64, values: Vec<Bytes>) -> raced_engine::Result<()> {
    let (done, written) = oneshot::channel();
    let entry = NewEntry::new(id(index), format!("the record of {index:06}"), values);
    engine
        .append(GROUP, vec![entry], Promise::Mode, Box::new(move |result| drop(done.send(result))))
        .await?;
    written.await.unwrap()
}

fn put(index: u64, key: &str) -> Transition {
    let key = Bytes::from(key.to_owned());
    Transition { applied: id(index), changes: vec![Change::Put { key, value: 0 }] }
}

fn delete(index: u64, key: &str) -> Transition {
    let key = Bytes::from(key.to_owned());
    Transition { applied: id(index), changes: vec![Change::Delete { key }] }
}

async fn put_key(installer: &mut Installer, key: Bytes, version: LogId, value: Bytes) {
    let missing = installer.put(vec![SnapshotKey::with_value(key, version, value)]).await.unwrap();
    assert!(missing.is_empty());
}

/// A nearly full area. Outside the reserve, `free` blocks are free beside the ballast, and each
/// entry takes one of them; once freed, they are what an engine that was opened since takes first.
/// Of the `keyed` entries, only the last is still referenced, by key `k`.
/// Only the log refers to the `logged` entries.
fn nearly_full(free: usize, keyed: u64, logged: u64) -> Disk {
    prepared(move |engine| async move {
        append(&engine, 0, vec![filled((960 - free) << 12, 1)]).await.unwrap();
        engine.apply(GROUP, vec![put(0, "ballast")], image(0)).unwrap();
        for index in 1..=keyed {
            append(&engine, index, vec![filled(4096, index)]).await.unwrap();
            engine.apply(GROUP, vec![put(index, "k")], image(index)).unwrap();
        }
        if keyed > 0 {
            engine.purge(GROUP, id(keyed)).await.unwrap();
        }
        for index in keyed + 1..=keyed + logged {
            append(&engine, index, vec![filled(4096, index)]).await.unwrap();
            let nothing = Transition { applied: id(index), changes: Vec::new() };
            engine.apply(GROUP, vec![nothing], image(index)).unwrap();
        }
        engine.checkpoint().await.unwrap();
    })
}

/// Records what was freed, and frees its space.
async fn reclaim(engine: &Engine) {
    for _ in 0..2 {
        engine.barrier().await.unwrap();
        engine.sync().await.unwrap();
    }
}

#[test]
fn a_view_reads_its_state_while_space_is_freed_and_reused() {
    explore(nearly_full(2, 1, 0), 250, |disk| async move {
        let engine = open(&disk, options(Mode::Device)).await;
        let writes = engine.clone();
        let writer = spawn(async move {
            append(&writes, 2, Vec::new()).await.unwrap();
            writes.apply(GROUP, vec![delete(2, "k")], image(2)).unwrap();
            reclaim(&writes).await;
            append(&writes, 3, vec![filled(4096, 3)]).await.unwrap();
            // The value is in the journal until now.
            writes.checkpoint().await.unwrap();
        });
        // The last view that has the key, if the key is gone soon afterwards.
        let mut last = None;
        for _ in 0..40 {
            let view = engine.view(GROUP);
            let Some(entry) = view.get(b"k") else { break };
            assert!(view.read(&entry).await.unwrap() == filled(4096, 1));
            if engine.view(GROUP).get(b"k").is_none() {
                last = Some((view, entry));
                break;
            }
        }
        writer.await.unwrap();
        if let Some((view, entry)) = last {
            assert!(view.read(&entry).await.unwrap() == filled(4096, 1));
        }
    });
}

/// The story: entries were read for a follower while the log was purged. Their space went to newer
/// values before they were read, and the bytes found there were reported as damage.
#[test]
fn a_log_read_concurrent_with_a_purge_finds_no_damage() {
    explore(nearly_full(3, 0, 2), 250, |disk| async move {
        let engine = open(&disk, options(Mode::Device)).await;
        let writes = engine.clone();
        let writer = spawn(async move {
            writes.purge(GROUP, id(2)).await.unwrap();
            reclaim(&writes).await;
            append(&writes, 3, vec![filled(4096, 3)]).await.unwrap();
            // The value is in the journal until now.
            writes.checkpoint().await.unwrap();
        });
        for _ in 0..10 {
            let first = engine.log_bounds(GROUP).purged.map_or(1, |purged| purged.index + 1);
            for entry in engine.read_log(GROUP, first..u64::MAX, u64::MAX).await.unwrap() {
                assert!(
                    *entry.values[0].bytes() == filled(4096, entry.id.index),
                    "entry {}",
                    entry.id
                );
            }
        }
        writer.await.unwrap();
        assert_eq!(engine.status().corrupt_values, 0);
    });
}

/// Accepts success, and with `may_fail` a failure of the engine.
fn expect_answer<T>(result: raced_engine::Result<T>, may_fail: bool) {
    match result {
        Ok(_) => {}
        Err(Error::Failed { .. }) if may_fail => {}
        Err(error) => panic!("{error}"),
    }
}

/// All operations that wait for the writer, the syncer, a checkpoint or the superblock, at once.
/// None may wait forever: a wake-up must not be lost because it came before its waiter listened.
async fn all_at_once(engine: Engine, may_fail: bool) {
    let mut waiting = Vec::new();
    type Act = fn(Engine) -> IoFuture<raced_engine::Result<()>>;
    let each: [Act; 6] = [
        |engine| Box::pin(async move { append(&engine, 3, vec![filled(100, 3)]).await }),
        |engine| Box::pin(async move { engine.checkpoint().await }),
        |engine| Box::pin(async move { engine.sync().await }),
        |engine| Box::pin(async move { engine.barrier().await }),
        |engine| Box::pin(async move { engine.save_vote(GROUP, b"vote").await }),
        |engine| Box::pin(async move { engine.purge(GROUP, id(0)).await }),
    ];
    for ask in each {
        let engine = engine.clone();
        waiting.push(spawn(async move { expect_answer(ask(engine).await, may_fail) }));
    }
    if may_fail {
        engine.fail_device("the test fails the device");
    }
    for one in waiting {
        one.await.unwrap();
    }
}

#[test]
fn no_caller_waits_forever_in_any_order_of_threads() {
    for mode in [Mode::Sync, Mode::Replicated] {
        explore(three_entries(), 60, move |disk| async move {
            let engine = open(&disk, options(mode)).await;
            all_at_once(engine.clone(), false).await;
            engine.close().await.unwrap();
        });
    }
}

#[test]
fn all_callers_return_when_the_engine_fails_in_any_order_of_threads() {
    explore(three_entries(), 60, |disk| async move {
        let engine = open(&disk, options(Mode::Replicated)).await;
        all_at_once(engine.clone(), true).await;
        assert!(matches!(engine.barrier().await, Err(Error::Failed { .. })));
    });
}

/// A write never returns: every waiting caller gets an error once the limit is over, whenever the
/// tick comes.
#[test]
fn all_callers_return_when_the_device_hangs_in_any_order_of_threads() {
    explore(three_entries(), 60, |mut disk| async move {
        disk.hangs = Some(FileKind::Data);
        let engine = open(&disk, options(Mode::Replicated)).await;
        let (sender, all) = oneshot::channel();
        let asked = spawn(async move {
            all_at_once(engine, true).await;
            sender.send(()).unwrap();
        });
        let mut all = std::pin::pin!(all);
        while (&mut all).now_or_never().is_none() {
            tokio::time::advance(Duration::from_secs(3));
            shuttle::future::yield_now().await;
        }
        asked.await.unwrap();
    });
}

/// The caller switches safe acknowledgements on and off while the sync interval passes. Each
/// acknowledged entry is synced, or the unsynced-ack flag is set and synced.
#[test]
fn nothing_is_acknowledged_ahead_of_its_sync_without_the_flag_in_any_order_of_threads() {
    explore(three_entries(), 60, |disk| async move {
        let engine = open(
            &disk,
            Options { sync_interval: Duration::from_secs(1), ..options(Mode::Replicated) },
        )
        .await;
        let ahead = Arc::new(AtomicU64::new(0));
        let writes = {
            let (engine, disk, ahead) = (engine.clone(), disk.clone(), ahead.clone());
            spawn(async move {
                let mut waiting = Vec::new();
                for index in 3..13 {
                    let (sender, receiver) = oneshot::channel();
                    let (disk, ahead) = (disk.clone(), ahead.clone());
                    let meta = Bytes::from(format!("the record of {index:06}"));
                    let record = meta.clone();
                    let done = Box::new(move |result: raced_engine::Result<()>| {
                        result.unwrap();
                        if !disk.is_synced(&record) {
                            assert!(
                                disk.flag_is_synced(),
                                "entry {index} may be lost, and the flag does not say so"
                            );
                            ahead.fetch_add(1, Ordering::SeqCst);
                        }
                        sender.send(()).unwrap();
                    });
                    let entry = NewEntry::new(id(index), meta, Vec::new());
                    engine.append(GROUP, vec![entry], Promise::Mode, done).await.unwrap();
                    waiting.push(receiver);
                    if index % 2 == 0 {
                        waiting.remove(0).await.unwrap();
                    }
                }
                for one in waiting {
                    one.await.unwrap();
                }
            })
        };
        let holds = engine.clone();
        let holder = spawn(async move {
            for held in [true, false, true, false] {
                shuttle::future::yield_now().await;
                holds.set_safe_acks(held);
            }
        });
        let ticks = spawn(async {
            for _ in 0..3 {
                tokio::time::advance(Duration::from_millis(600));
                shuttle::future::yield_now().await;
            }
        });
        writes.await.unwrap();
        holder.await.unwrap();
        ticks.await.unwrap();
        engine.close().await.unwrap();
        assert!(!disk.flag_is_synced(), "a clean end clears it");
    });
}

/// A snapshot replaces everything while others append, read and take checkpoints.
#[test]
fn an_install_beside_readers_and_writers_ends_in_any_order_of_threads() {
    explore(three_entries(), 60, |disk| async move {
        let engine = open(&disk, options(Mode::Sync)).await;
        let at = LogId { term: 2, index: 100 };
        let installs = engine.clone();
        let install = spawn(async move {
            let mut installer = installs.begin_install(GROUP).await.unwrap();
            for n in 0..3 {
                put_key(
                    &mut installer,
                    format!("n{n}").into(),
                    LogId { term: 2, index: n },
                    filled(5000, n),
                )
                .await;
            }
            installer.finish(at, image(100)).await.unwrap();
            assert_eq!(installs.log_bounds(GROUP).purged, Some(at));
        });
        let writes = engine.clone();
        // Its entry follows the log only before the snapshot; later the append may fail.
        let writer = spawn(async move { drop(append(&writes, 3, vec![filled(100, 3)]).await) });
        let checkpoints = engine.clone();
        let checkpoint = spawn(async move { checkpoints.checkpoint().await.unwrap() });
        let reads = engine.clone();
        let reader = spawn(async move {
            for _ in 0..2 {
                let view = reads.view(GROUP);
                let new = view.applied() == Some(at);
                assert_eq!(view.len(), if new { 3 } else { 1 });
                for item in view
                    .list(&ListQuery { limit: 10, max_bytes: u64::MAX, ..ListQuery::default() })
                    .items
                {
                    view.read(&item.entry).await.unwrap();
                }
            }
        });
        for one in [install, writer, checkpoint, reader] {
            one.await.unwrap();
        }
        engine.close().await.unwrap();
    });
}

/// Entries 0 to 2, all under one key.
fn three_entries() -> Disk {
    prepared(|engine| async move {
        for index in 0..3 {
            append(&engine, index, vec![filled(5000, index)]).await.unwrap();
            engine.apply(GROUP, vec![put(index, "k")], image(index)).unwrap();
        }
        engine.checkpoint().await.unwrap();
    })
}
