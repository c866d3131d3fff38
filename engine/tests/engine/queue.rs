//! Group commits of many bytes, which go to the device in parts, and freed space of many runs, which
//! comes back in steps.

use crate::support::store::{GROUP, append, filled, id, image, options};
use crate::support::{Disk, Fate, identity, run, stored, until};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{Change, Engine, Geometry, Mode, NewEntry, Options, Transition};
use std::sync::Arc;
use std::time::Duration;

/// An engine on which no timer decides anything.
async fn store(data_bytes: u64) -> (Disk, Engine) {
    let geometry = Geometry { journal_bytes: 2 << 20, checkpoint_bytes: 4 << 20, data_bytes };
    let disk = Disk::new(geometry);
    Engine::format(&disk, geometry, &identity()).await.unwrap();
    let engine = open(&disk).await;
    (disk, engine)
}

async fn open(disk: &Disk) -> Engine {
    let sync_interval = Duration::from_secs(3600);
    let options = Options { sync_interval, ..options(Mode::Sync) };
    Engine::open(Arc::new(disk.clone()), None, options).await.unwrap()
}

/// Writes a block and syncs it.
async fn sync_often(engine: &Engine, times: usize) {
    for _ in 0..times {
        engine.barrier().await.unwrap();
    }
}

fn entry_of(index: u64, values: Vec<Bytes>) -> NewEntry {
    NewEntry::new(id(index), Bytes::new(), values)
}

/// Six of these are two parts of the queue. The records of all of them fit into one block.
const ENTRIES: u64 = 6;
const VALUES: u64 = 22;

/// The values of an entry. Each ends with a tail that shares its blocks.
fn values(index: u64) -> Vec<Bytes> {
    (0..VALUES).map(|number| filled(40_000, index * VALUES + number)).collect()
}

fn check_stored(disk: &Disk, engine: &Engine) {
    let data = disk.bytes(FileKind::Data);
    for index in 0..ENTRIES {
        let places = engine.values_of(GROUP, index).unwrap();
        for (at, value) in places.iter().zip(values(index)) {
            assert!(at.segments().any(|part| part.end - part.start == 40_000 % BLOCK as u64));
            assert!(stored(&data, at) == value, "of entry {index}: {at:?}");
        }
    }
}

/// All are queued before the writer runs. If the last tail of the first part shared a block with the
/// first tail of the second, one of the two writes would put zeros over the other's bytes.
#[test]
fn values_in_different_parts_of_the_queue_share_no_block() {
    run(async {
        let (disk, engine) = store(8 << 20).await;
        let before = engine.status().written_sequence;
        let appends =
            (0..ENTRIES).map(|index| append(&engine, vec![entry_of(index, values(index))]));
        let written = futures::future::join_all(appends).await;
        assert!(written.iter().all(Result::is_ok));
        assert_eq!(engine.status().written_sequence - before, 2, "a group commit for each part");
        check_stored(&disk, &engine);
    });
}

/// Entries may be applied while they are queued. If the first part were written alone then, its
/// journal block would say that entries are applied which a later block appends: no open would
/// believe that.
#[test]
fn entries_applied_while_they_are_queued_are_there_after_a_kill() {
    run(async {
        let (disk, engine) = store(8 << 20).await;
        let mut appends: Vec<_> = (0..ENTRIES)
            .map(|index| Box::pin(append(&engine, vec![entry_of(index, values(index))])))
            .collect();
        for append in &mut appends {
            assert!(futures::poll!(append).is_pending());
        }
        let put = |n: u64| Change::Put { key: n.to_string().into(), value: n as usize };
        for index in 0..ENTRIES {
            let step = Transition { applied: id(index), changes: (0..VALUES).map(put).collect() };
            engine.apply(GROUP, vec![step], image(index)).unwrap();
        }
        let written = futures::future::join_all(appends).await;
        assert!(written.iter().all(Result::is_ok));
        drop(engine);
        disk.kill(Fate::Kept);
        let engine = open(&disk).await;
        assert_eq!(engine.applied_before_restart(GROUP), Some(id(ENTRIES - 1)));
        check_stored(&disk, &engine);
    });
}

/// 8,000 runs come back with one sync, in eight steps. Meanwhile one more key is deleted. Its block
/// waits for the next sync, and for a synced block that says so.
#[test]
fn what_dies_while_freed_space_comes_back_waits_for_its_own_sync() {
    let (entries, values) = (16, 1000);
    let key = |index: u64, number: u64| Bytes::from(format!("{index}.{number}"));
    let delete = |index: u64, keys: Vec<Bytes>| Transition {
        applied: id(index),
        changes: keys.into_iter().map(|key| Change::Delete { key }).collect(),
    };
    run(async {
        let (_, engine) = store(80 << 20).await;
        for index in 0..entries {
            let written = (0..values).map(|number| filled(BLOCK, number)).collect();
            append(&engine, vec![entry_of(index, written)]).await.unwrap();
            let put = |n: u64| Change::Put { key: key(index, n), value: n as usize };
            let step = Transition { applied: id(index), changes: (0..values).map(put).collect() };
            engine.apply(GROUP, vec![step], image(index)).unwrap();
        }
        let (all, one) = (entries, entries + 1);
        append(&engine, vec![entry_of(all, vec![]), entry_of(one, vec![])]).await.unwrap();
        engine.purge(GROUP, id(entries - 1)).await.unwrap();
        sync_often(&engine, 3).await;
        let before = engine.status().free_bytes;
        let every_second = |index| (0..values).step_by(2).map(move |number| key(index, number));
        let step = delete(all, (0..entries).flat_map(every_second).collect());
        engine.apply(GROUP, vec![step], image(all)).unwrap();
        // The second block says that the first one, with the deaths, is synced.
        sync_often(&engine, 2).await;
        for _ in 0..1000 {
            if engine.status().free_bytes > before {
                break;
            }
            tokio::task::yield_now().await;
        }
        let freed = (engine.status().free_bytes - before) / BLOCK as u64;
        assert!(freed > 0 && freed < 4000, "{freed} blocks came back at once");
        engine.apply(GROUP, vec![delete(one, vec![key(0, 1)])], image(one)).unwrap();
        engine.barrier().await.unwrap();
        let all_free = before + entries * values / 2 * BLOCK as u64;
        until("all came back", || engine.status().free_bytes >= all_free).await;
        assert_eq!(engine.status().free_bytes, all_free);
        assert_eq!(engine.status().space.dead_unsynced, BLOCK as u64);
    });
}
