//! Values that small group commits carry in the journal.

use crate::support::store::{self, GROUP, append, entry, filled, fresh, id, image, put, put_one};
use crate::support::{Cache, Disk, Fate, geometry, place, run, stored, until};
use bytes::Bytes;
use cairn_disk::Failing;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{Engine, Mode, NewEntry, Options, SnapshotKey};
use std::sync::Arc;

/// An engine that writes no value to its place before it must.
async fn patient() -> (Disk, Engine) {
    store::patient(Mode::Sync).await
}

fn patient_options() -> Options {
    store::patient_options(Mode::Sync)
}

async fn reopen(disk: &Disk) -> Engine {
    Engine::open(Arc::new(disk.clone()), None, patient_options()).await.unwrap()
}

async fn value_of(engine: &Engine, key: &str) -> Option<Bytes> {
    engine.get(GROUP, key.as_bytes()).await.unwrap().map(|(_, value)| value)
}

/// Twenty values, each in a group commit of its own.
async fn put_small(engine: &Engine) {
    for index in 0..20 {
        put_one(engine, index, &format!("k{index}"), filled(300, index)).await.unwrap();
    }
}

fn data_is_empty(disk: &Disk) -> bool {
    disk.bytes(FileKind::Data).iter().all(|byte| *byte == 0)
}

#[test]
fn a_small_put_writes_the_journal_alone_and_is_read_back() {
    run(async {
        let (disk, engine) = patient().await;
        put_small(&engine).await;
        put_one(&engine, 20, "large", filled(5000, 20)).await.unwrap();
        assert!(data_is_empty(&disk));
        assert_eq!(value_of(&engine, "k7").await, Some(filled(300, 7)));
        assert_eq!(value_of(&engine, "large").await, Some(filled(5000, 20)));
        // A larger group commit takes along what waits.
        put_one(&engine, 21, "larger", filled(9000, 21)).await.unwrap();
        until("they are at their places", || engine.status().unsynced_bytes == 0).await;
        for index in 0..20 {
            let at = &engine.values_of(GROUP, index).unwrap()[0];
            let bytes = &disk.bytes(FileKind::Data)[at.offset() as usize..][..300];
            assert!(*bytes == filled(300, index)[..], "value {index}");
        }
    });
}

/// The story: a put of 4 KiB wrote two blocks of journal, and its value a second time later.
#[test]
fn a_value_that_shares_no_block_is_written_once() {
    run(async {
        let (disk, engine) = patient().await;
        let written = || {
            [FileKind::Journal, FileKind::Data].map(|file| disk.core.lock().unwrap().written[&file])
        };
        put_one(&engine, 0, "first", filled(9000, 0)).await.unwrap();
        // A shorter one leaves a tenth of its block to others.
        for (index, length) in [(1, BLOCK), (2, 3687)] {
            let before = written();
            put_one(&engine, index, "key", filled(length, index)).await.unwrap();
            let block = BLOCK as u64;
            assert_eq!(written(), before.map(|bytes| bytes + block));
            until("it is synced", || engine.status().unsynced_bytes == 0).await;
            assert_eq!(written()[1], before[1] + block);
            assert_eq!(value_of(&engine, "key").await, Some(filled(length, index)));
        }
    });
}

/// The story: what cannot be read was taken for zeros. A carried value of zeros seemed to be at its
/// place, was not written, and could not be read ever after.
#[test]
fn an_open_writes_a_block_that_cannot_be_read_though_its_values_are_zeros() {
    run(async {
        let (disk, engine) = patient().await;
        let zeros = Bytes::from(vec![0; 300]);
        put_one(&engine, 0, "key", zeros.clone()).await.unwrap();
        let at = engine.values_of(GROUP, 0).unwrap().remove(0);
        disk.kill(Fate::Kept);
        drop(engine);
        disk.wear_out([(FileKind::Data, at.offset() / BLOCK as u64)]);
        let engine = reopen(&disk).await;
        engine.apply(GROUP, vec![put(0, "key")], image(1)).unwrap();
        assert_eq!(value_of(&engine, "key").await, Some(zeros));
    });
}

/// The story: an open wrote the values that the journal carries over themselves. The power failed in
/// that write, and it took a value beside them that was synced.
#[test]
fn an_open_writes_no_block_that_has_its_values() {
    run(async {
        let (disk, engine) = patient().await;
        put_small(&engine).await;
        put_one(&engine, 20, "larger", filled(9000, 20)).await.unwrap();
        until("they are at their places", || engine.status().unsynced_bytes == 0).await;
        drop(engine);
        disk.kill(Fate::Kept);
        disk.arrange(Failing::Write, FileKind::Data);
        drop(reopen(&disk).await);
        assert_eq!(disk.core.lock().unwrap().rules.errors(), 0, "nothing was written");
    });
}

/// The story: the block beside one that lacked a value was written with it, in one write. A torn one
/// would have taken the value there that was synced, and that nothing carries.
#[test]
fn an_open_writes_a_block_that_lacks_a_value_and_not_the_one_before_it() {
    run(async {
        let options = || Options { mode: Mode::Replicated, ..patient_options() };
        let reopen = async |disk: &Disk| {
            Engine::open(Arc::new(disk.clone()), None, options()).await.unwrap()
        };
        let (disk, engine) = fresh(Mode::Replicated).await;
        engine.close().await.unwrap();
        drop(engine);
        let engine = reopen(&disk).await;
        let mut next = 0;
        while !engine.status().unsynced_acks {
            put_one(&engine, next, "early", filled(9000, next)).await.unwrap();
            next += 1;
            tokio::task::yield_now().await;
        }
        // The tail of the large value is in a block with the first small one, which waits for it.
        let [first, large, last] = [next, next + 1, next + 2];
        for (index, len) in [(first, 300), (large, 9000), (last, 300)] {
            put_one(&engine, index, "key", filled(len, index)).await.unwrap();
        }
        let block = |index, byte| place(&engine.values_of(GROUP, index).unwrap()[0], byte) / BLOCK;
        let (before, lacking) = (block(first, 0), block(last, 0));
        assert_eq!((block(large, 8999), lacking), (before, before + 1));
        disk.kill(Fate::Kept);
        drop(engine);
        settle().await;
        disk.core.lock().unwrap().stall_next = Some(FileKind::Data);
        let watch = async {
            until("the open writes", || disk.stalled().is_some()).await;
            let bytes = (lacking * BLOCK) as u64..((lacking + 1) * BLOCK) as u64;
            assert_eq!(disk.stalled(), Some(bytes));
            disk.end_stalled();
        };
        let (engine, ()) = futures::join!(reopen(&disk), watch);
        for index in 0..=last {
            let at = &engine.values_of(GROUP, index).unwrap()[0];
            let found = stored(&disk.bytes(FileKind::Data), at);
            assert!(found == filled(found.len(), index), "value {index}");
        }
    });
}

/// The story: each small put alone took a block of the data area.
#[test]
fn small_values_put_one_by_one_share_blocks() {
    run(async {
        let (_, engine) = patient().await;
        let before = engine.status().free_bytes;
        for index in 0..160 {
            put_one(&engine, index, &format!("k{index}"), filled(250, index)).await.unwrap();
        }
        let used = before - engine.status().free_bytes;
        assert!(used <= 11 * 4096, "160 values of 250 bytes take {used} bytes");
    });
}

#[test]
fn a_node_that_is_killed_puts_them_at_their_places_when_it_opens() {
    run(async {
        let (disk, engine) = patient().await;
        for index in 0..20 {
            put_one(&engine, index, "key", filled(300, index)).await.unwrap();
        }
        engine.truncate_after(GROUP, Some(19)).await.unwrap();
        append(&engine, vec![entry(20, filled(700, 20))]).await.unwrap();
        assert!(data_is_empty(&disk));
        disk.kill(Fate::Kept);
        drop(engine);
        let found =
            cairn_engine::inspect(&disk, patient_options().boot, true).await.unwrap().contents;
        let values = found.unwrap().groups[0].values.clone().unwrap();
        assert_eq!((values.checked, values.damaged), (21, 0));
        let engine = reopen(&disk).await;
        for index in 0..21 {
            let at = &engine.values_of(GROUP, index).unwrap()[0];
            let bytes = &disk.bytes(FileKind::Data)[at.offset() as usize..][..at.len as usize];
            assert!(*bytes == filled(at.len as usize, index)[..], "value {index}");
        }
        engine.apply(GROUP, (0..20).map(|i| put(i, "key")).collect(), image(1)).unwrap();
        assert_eq!(value_of(&engine, "key").await, Some(filled(300, 19)));
    });
}

#[test]
fn a_clean_end_leaves_none_in_the_journal_alone() {
    run(async {
        let (disk, engine) = patient().await;
        put_one(&engine, 0, "key", filled(300, 0)).await.unwrap();
        let at = engine.values_of(GROUP, 0).unwrap()[0].clone();
        assert!(data_is_empty(&disk));
        engine.close().await.unwrap();
        let bytes = &disk.bytes(FileKind::Data)[at.offset() as usize..][..300];
        assert!(*bytes == filled(300, 0)[..]);
    });
}

/// The story: a clean end came while a checkpoint ran and so much was written behind it that the
/// writer waited. It ended without the values, and the last checkpoint covered the blocks that
/// carried them.
#[test]
fn a_clean_end_beside_a_checkpoint_that_holds_the_writer_up_leaves_none_in_the_journal_alone() {
    // So many blocks may follow the capture of a running checkpoint.
    let most = geometry().journal_bytes / BLOCK as u64 / 2 - 32;
    run(async {
        let (disk, engine) = patient().await;
        put_one(&engine, 0, "k0", filled(300, 0)).await.unwrap();
        disk.hold(FileKind::Checkpoint1);
        let stop = async {
            settle().await;
            let captured = engine.status().written_sequence;
            for index in 1..=most {
                put_one(&engine, index, &format!("k{index}"), filled(300, index)).await.unwrap();
            }
            assert_eq!(engine.status().written_sequence, captured + most);
            let release = async {
                settle().await;
                disk.release();
            };
            futures::join!(engine.close(), release).0
        };
        let (checkpoint, closed) = futures::join!(engine.checkpoint(), stop);
        checkpoint.and(closed).unwrap();
        drop(engine);
        disk.kill(Fate::Kept);
        let engine = reopen(&disk).await;
        let status = engine.status();
        assert_eq!(status.written_sequence, status.checkpoint_sequence + 1, "nothing was replayed");
        for index in 0..=most {
            let value = value_of(&engine, &format!("k{index}")).await;
            assert_eq!(value, Some(filled(300, index)), "value {index}");
        }
    });
}

async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// A checkpoint covers the records that carry the values, so the values must be at their places.
#[test]
fn a_checkpoint_waits_for_them() {
    run(async {
        let (disk, engine) = patient().await;
        for index in 0..5 {
            put_one(&engine, index, &format!("k{index}"), filled(300, index)).await.unwrap();
        }
        engine.checkpoint().await.unwrap();
        engine.purge(GROUP, id(4)).await.unwrap();
        disk.reboot(Cache::Volatile, Fate::Lost);
        drop(engine);
        let engine = reopen(&disk).await;
        for index in 0..5 {
            let value = value_of(&engine, &format!("k{index}")).await;
            assert_eq!(value, Some(filled(300, index)));
        }
    });
}

/// The story: nothing was queued, so the group commit of a checkpoint wrote the values and no block.
/// The checkpoint waited for the last block, which was written long before, and counted before the
/// values were at their places. A power cut then left values of zeros.
#[test]
fn a_checkpoint_with_nothing_queued_waits_for_them_too() {
    run(async {
        let (disk, engine) = patient().await;
        append(&engine, vec![entry(0, filled(300, 0))]).await.unwrap();
        let before = engine.status().checkpoints;
        disk.arrange(Failing::Hang, FileKind::Data);
        let mut checkpoint = Box::pin(engine.checkpoint());
        for _ in 0..500 {
            assert!(futures::poll!(&mut checkpoint).is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(engine.status().checkpoints, before);
    });
}

/// Two values wait to be written when they die, and their block is allocated again. Neither the
/// next write to the data area nor an open puts them over the value that has the block now.
#[test]
fn a_value_that_died_while_it_waited_is_not_put_over_another() {
    run(async {
        let (disk, engine) = patient().await;
        put_one(&engine, 0, "key", filled(9000, 0)).await.unwrap();
        let values = vec![filled(100, 1), filled(300, 1)];
        append(&engine, vec![NewEntry::new(id(1), "meta", values)]).await.unwrap();
        let died = engine.values_of(GROUP, 1).unwrap()[1].offset();
        engine.truncate_after(GROUP, Some(0)).await.unwrap();
        // What is installed shares no block with others.
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        let other = SnapshotKey::with_value("other".into(), id(1000), filled(10, 2));
        installer.put(vec![other]).await.unwrap();
        for _ in 0..3 {
            engine.barrier().await.unwrap();
            engine.sync().await.unwrap();
        }
        let free = engine.status().free_bytes as usize;
        append(&engine, vec![entry(1, filled(free, 3))]).await.unwrap();
        assert_eq!(engine.status().free_bytes, 0);
        let at = engine.values_of(GROUP, 1).unwrap().remove(0);
        assert!(at.segments().any(|part| part.contains(&died)));
        assert!(stored(&disk.bytes(FileKind::Data), &at) == filled(free, 3), "written over");
        drop(engine);
        disk.kill(Fate::Kept);
        drop(reopen(&disk).await);
        assert!(stored(&disk.bytes(FileKind::Data), &at) == filled(free, 3), "opened over");
    });
}

/// The story: a reader held a view while a snapshot was installed. The values that only the journal
/// carried so far had no other reference, and were dropped: the reader was told that they are damaged.
#[test]
fn a_view_reads_carried_values_that_an_install_replaced() {
    run(async {
        let (disk, engine) = patient().await;
        for index in 0..5 {
            put_one(&engine, index, &format!("k{index}"), filled(300, index)).await.unwrap();
        }
        assert!(data_is_empty(&disk));
        let view = engine.view(GROUP);
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        let other = SnapshotKey::with_value("other".into(), id(1000), filled(10, 2));
        installer.put(vec![other]).await.unwrap();
        installer.finish(id(1000), image(1)).await.unwrap();
        until("a checkpoint beside it", || !engine.status().checkpoint_running).await;
        for index in 0..5 {
            let entry = view.get(format!("k{index}").as_bytes()).unwrap();
            assert_eq!(view.read(&entry).await.unwrap(), filled(300, index), "value {index}");
        }
        let space = engine.status().space;
        assert!(space.dead_unsynced + space.dead_viewed > 0);
        drop(view);
        for _ in 0..3 {
            engine.barrier().await.unwrap();
            engine.sync().await.unwrap();
        }
        assert_eq!(engine.status().space.dead_viewed, 0, "nothing holds their blocks any more");
    });
}

/// An open puts carried values at their places, and its first block says that they are there. The
/// next block makes the next open believe that. If the values were only written by then, a power cut
/// that takes them and leaves the blocks would lose them.
#[test]
fn what_an_open_puts_at_its_place_outlives_a_power_cut() {
    run(async {
        let (disk, engine) = patient().await;
        for index in 0..5 {
            put_one(&engine, index, "key", filled(300, index)).await.unwrap();
        }
        drop(engine);
        disk.kill(Fate::Kept);
        let engine = reopen(&disk).await;
        disk.hold(FileKind::Data);
        let syncs = || disk.core.lock().unwrap().syncs;
        let before = syncs();
        let mut next = Box::pin(append(&engine, vec![entry(5, filled(300, 5))]));
        assert!(futures::poll!(&mut next).is_pending());
        // Its block is written and synced; the sync of the data area does not end.
        until("both syncs began", || syncs() >= before + 2).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        drop(next);
        drop(engine);
        disk.reboot(Cache::Volatile, Fate::Lost);
        let engine = reopen(&disk).await;
        assert_eq!(engine.log_bounds(GROUP).last, Some(id(5)), "the block is there");
        for index in 0..6 {
            let at = &engine.values_of(GROUP, index).unwrap()[0];
            let found = stored(&disk.bytes(FileKind::Data), at);
            assert!(found == filled(300, index), "value {index}");
        }
    });
}
