//! Reused space: a repair never overwrites a value that has been given the old value's space.

use crate::support::sixty::{GROUP, append, entry, id, image, key, open, transition, value};
use crate::support::{Disk, Fate, geometry, identity, long_journal, place, run, stored};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{
    Change, Engine, Error, Extent, NewEntry, Owner, Promise, SnapshotKey, Transition,
};

/// Entries of this many blocks each, written until one of them lies where old ones did.
const LARGE_BLOCKS: usize = 50;

fn large(index: u64) -> NewEntry {
    let value = Bytes::from(vec![index as u8; LARGE_BLOCKS * BLOCK]);
    NewEntry::new(id(index), Bytes::new(), vec![value])
}

fn put_large(index: u64) -> Transition {
    let key = format!("large{index}").into();
    Transition { applied: id(index), changes: vec![Change::Put { key, value: 0 }] }
}

/// Entries 0 to 59 with checkpoints at 40 and 59, purged through 55. Then entries 60 to 79
/// overwrite all keys, and entries from 80 on are written until most of what the keys of the last
/// checkpoint name is in use again. Returns the last entry.
async fn reused() -> (Disk, u64) {
    let disk = Disk::new(long_journal());
    Engine::format(&disk, long_journal(), &identity()).await.unwrap();
    let engine = open(&disk, false).await.unwrap();
    let mut old = Vec::new();
    for index in 0..80 {
        append(&engine, entry(index, 10)).await;
        engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
        if (40..=55).contains(&index) {
            old.push(engine.values_of(GROUP, index).unwrap()[0].offset());
        }
        if index == 40 || index == 59 {
            engine.checkpoint().await.unwrap();
        }
        if index == 59 {
            engine.purge(GROUP, id(55)).await.unwrap();
        }
    }
    for index in 80.. {
        append(&engine, large(index)).await;
        engine.apply(GROUP, vec![put_large(index)], image(index)).unwrap();
        engine.sync().await.unwrap();
        let new = engine.values_of(GROUP, index).unwrap().remove(0);
        old.retain(|at| !new.segments().any(|segment| segment.contains(at)));
        if old.len() < 8 {
            assert_eq!(engine.status().checkpoints, 2, "no automatic one was taken");
            engine.close().await.unwrap();
            drop(engine);
            disk.kill(Fate::Kept);
            return (disk, index);
        }
        assert!(index < 110, "the freed space is not used again");
    }
    unreachable!()
}

fn reapply(engine: &Engine, last: u64) {
    let first = engine.applied(GROUP).unwrap().index + 1;
    let steps =
        (first..=last).map(|index| if index < 80 { transition(index) } else { put_large(index) });
    engine.apply(GROUP, steps.collect(), image(last)).unwrap();
}

/// Nothing that entries up to 55 wrote is repaired, though a peer has the bytes, and live values
/// stay as they are. Returns how many live extents such repairs would have overwritten.
async fn check_nothing_is_repaired(disk: &Disk, engine: &Engine, what: &str) -> usize {
    let before = disk.bytes(FileKind::Data);
    let reapplied = engine.applied(GROUP) >= engine.applied_before_restart(GROUP);
    let due = engine.purge_due(GROUP).map_or(0, |due| due.index);
    let mut lost = 0;
    for index in 0..=55 {
        let logged = engine.log_id_at(GROUP, index).filter(|_| index <= due);
        let keyed = engine
            .lookup(GROUP, &key(index))
            .filter(|found| found.version == id(index) && !reapplied);
        let logged =
            logged.map(|_| (engine.values_of(GROUP, index).unwrap().remove(0), Owner::Entry));
        for (at, owner) in
            logged.into_iter().chain(keyed.map(|found| (found.value, Owner::Key(key(index)))))
        {
            let extent = Extent { at, log_id: id(index), owner };
            lost += usize::from(stored(&before, &extent.at) != value(index));
            assert!(
                !engine.repair(GROUP, &extent, &value(index)).await.unwrap(),
                "{what}: {extent:?}"
            );
            assert_eq!(
                engine.read_extent(GROUP, &extent).await.unwrap(),
                None,
                "{what}: {extent:?}"
            );
        }
    }
    assert!(disk.bytes(FileKind::Data) == before, "{what}: a live value was overwritten");
    for extent in engine.extents(GROUP, 0..u64::MAX).await {
        engine.read_extent(GROUP, &extent).await.unwrap();
    }
    lost
}

/// All live values read right, and are repaired again if they are damaged.
async fn check_repaired_again(disk: &Disk, engine: &Engine, last: u64) {
    for index in 60..80 {
        assert_eq!(engine.get(GROUP, &key(index)).await.unwrap().unwrap().1, value(index));
    }
    let (found, bytes) =
        engine.get(GROUP, format!("large{last}").as_bytes()).await.unwrap().unwrap();
    disk.damage(FileKind::Data, |data| data[place(&found.value, 5)] ^= 1);
    let extent = Extent::of_key(format!("large{last}").into(), &found);
    assert!(engine.repair(GROUP, &extent, &bytes).await.unwrap());
}

/// The story: the newest checkpoint was damaged, and the older one brought back entries that had
/// been purged since. The extents of some had been freed and given to newer values. A read for
/// replication found that the old value's hash did not match, a peer still had its bytes, and the
/// repair wrote them over the newer value.
#[test]
fn an_entry_with_a_due_purge_is_never_repaired_over_a_newer_value() {
    run(async {
        let (disk, last) = reused().await;
        let mut tried = 0;
        let clean: Vec<(FileKind, Vec<u8>)> =
            FileKind::ALL.into_iter().map(|k| (k, disk.bytes(k))).collect();
        for damaged in [FileKind::Checkpoint0, FileKind::Checkpoint1] {
            disk.kill(Fate::Kept);
            for (kind, bytes) in &clean {
                disk.damage(*kind, |b| b.copy_from_slice(bytes));
            }
            disk.damage(damaged, |bytes| bytes[2 * BLOCK + 10] ^= 1);
            let mut engine = open(&disk, false).await.unwrap();
            if engine.purge_due(GROUP).is_none() {
                continue;
            }
            assert!(check_nothing_is_repaired(&disk, &engine, "opened").await > 5);
            // The purge stays due after checkpoints that were taken while it was due, and after a
            // crash.
            engine.checkpoint().await.unwrap();
            engine.checkpoint().await.unwrap();
            drop(engine);
            disk.kill(Fate::Kept);
            engine = open(&disk, false).await.unwrap();
            assert_eq!(engine.purge_due(GROUP), Some(id(55)));
            assert!(check_nothing_is_repaired(&disk, &engine, "opened again").await > 5);
            reapply(&engine, last);
            assert!(check_nothing_is_repaired(&disk, &engine, "applied again").await > 5);
            check_repaired_again(&disk, &engine, last).await;
            // Once it is applied, a checkpoint no longer needs the purged entries.
            engine.checkpoint().await.unwrap();
            drop(engine);
            disk.kill(Fate::Kept);
            engine = open(&disk, false).await.unwrap();
            assert_eq!(
                (engine.purge_due(GROUP), engine.log_bounds(GROUP).purged),
                (None, Some(id(55)))
            );
            check_repaired_again(&disk, &engine, last).await;
            tried += 1;
        }
        assert_eq!(tried, 1, "one of the two was the older one");
    });
}

/// The story: after an ordinary restart the keys were those of the checkpoint, until the log behind
/// it was re-applied. One of them named a value that had been overwritten before the restart, and
/// whose space was in use again.
#[test]
fn a_key_older_than_before_the_restart_is_not_repaired_over_a_newer_value() {
    run(async {
        let (disk, last) = reused().await;
        let engine = open(&disk, false).await.unwrap();
        assert_eq!(engine.purge_due(GROUP), None);
        assert!(check_nothing_is_repaired(&disk, &engine, "opened").await > 5);
        reapply(&engine, last);
        check_repaired_again(&disk, &engine, last).await;
    });
}

/// The story: a member received a snapshot before it had re-applied its log after a restart. The
/// keys came without their values, since the member had applied the entries that wrote them, and it
/// took over the extents that its older keys named. Those extents belonged to other values by then.
#[test]
fn a_snapshot_takes_no_extent_over_from_keys_that_are_older_than_before_the_restart() {
    run(async {
        let (disk, last) = reused().await;
        let engine = open(&disk, false).await.unwrap();
        let before = disk.bytes(FileKind::Data);
        let held: Vec<u64> = (0..=59)
            .filter(|index| {
                engine.lookup(GROUP, &key(*index)).is_some_and(|found| found.version == id(*index))
            })
            .collect();
        let lost = |index: &&u64| {
            let at = engine.lookup(GROUP, &key(**index)).unwrap().value;
            stored(&before, &at) != value(**index)
        };
        assert!(held.iter().filter(lost).count() > 5);
        let without = |index: &u64| {
            let entry = engine.lookup(GROUP, &key(*index)).unwrap();
            SnapshotKey::checked(
                key(*index),
                entry.version,
                entry.value.len,
                entry.value.hash,
                None,
            )
            .unwrap()
        };
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        let missing = installer.put(held.iter().map(without).collect()).await.unwrap();
        assert_eq!(missing.len(), held.len(), "each is reported missing");
        drop(installer);

        // Once the log is re-applied, a key names its own extent.
        reapply(&engine, last);
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        let missing = installer.put((60..80).map(|index| without(&index)).collect()).await.unwrap();
        assert_eq!(missing, Vec::<Bytes>::new());
    });
}

/// The story: a follower received a chunk of a snapshot, and the leader's request timed out while
/// the chunk was being written. The space went to other values as soon as the frees were recorded,
/// and the write arrived on top of them.
#[test]
fn the_space_of_an_abandoned_write_stays_allocated_until_the_write_has_ended() {
    run(async {
        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        let engine = open(&disk, false).await.unwrap();
        let free = engine.status().free_bytes;
        disk.core.lock().unwrap().stall_next = Some(FileKind::Data);
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        let piece = Bytes::from(vec![7; 300 << 10]);
        let stalls = async {
            while disk.stalled().is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = installer.put(vec![SnapshotKey::with_value("a".into(), id(500), piece)]) => panic!("the write is stalled"),
            () = stalls => {}
        }
        let abandoned = installer.fits(0);
        drop(installer);
        let taken = disk.stalled().unwrap();
        for index in 0..60 {
            let (done, written) = tokio::sync::oneshot::channel();
            let entry = NewEntry { id: id(index), ..large(index) };
            let done = Box::new(move |result| drop(done.send(result)));
            if engine.append(GROUP, vec![entry], Promise::Mode, done).await.is_err() {
                break;
            }
            written.await.unwrap().unwrap();
            engine.sync().await.unwrap();
            let at = engine.values_of(GROUP, index).unwrap().remove(0);
            for part in at.segments() {
                assert!(
                    part.end <= taken.start || part.start >= taken.end,
                    "entry {index} at {at:?} in {taken:?}"
                );
            }
        }
        let last = engine.log_bounds(GROUP).last.unwrap();
        assert!(
            last.index > 10 && engine.status().free_bytes < 2 * (LARGE_BLOCKS * BLOCK) as u64,
            "it is full"
        );
        disk.end_stalled();
        engine.truncate_after(GROUP, None).await.unwrap();
        append(&engine, entry(0, 10)).await;
        for _ in 0..3 {
            engine.sync().await.unwrap();
            engine.barrier().await.unwrap();
        }
        assert_eq!(engine.status().free_bytes, free - BLOCK as u64, "all of it came back");
        assert!(matches!(abandoned, Err(Error::Closed)), "part of what was put may be missing");
    });
}
