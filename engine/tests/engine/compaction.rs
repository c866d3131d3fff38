//! What refers to the old place of a value while compaction moves it.

use crate::support::store::{GROUP, append, filled, fresh, id, image, options, put_one};
use crate::support::{Cache, Disk, Fate, place, run, stored, until};
use bytes::Bytes;
use cairn_engine::io::FileKind;
use cairn_engine::{
    Change, Engine, KeyEntry, Mode, NewEntry, Options, Owner, SnapshotKey, Transition,
};
use std::sync::Arc;
use std::time::Duration;

/// Values of 700 bytes, of which every fifth stays: each block keeps one or two.
const VALUES: u64 = 1500;
const LEN: usize = 700;
/// A value that stays alone in its block: compaction begins with the sparsest blocks, and ends when
/// there is little more to gain.
const SPARSEST: u64 = 15;

fn key(number: u64) -> String {
    format!("k{number:04}")
}

fn stays(number: &u64) -> bool {
    number.is_multiple_of(5)
}

/// An engine whose values were put and applied. The next entry has index 4.
async fn filled_engine() -> (Disk, Engine) {
    let (disk, engine) = fresh(Mode::Sync).await;
    for (index, numbers) in [(0, 0..500), (1, 500..1000), (2, 1000..VALUES)] {
        let values = numbers.clone().map(|number| filled(LEN, number));
        let entry = NewEntry::new(id(index), Bytes::new(), values);
        append(&engine, vec![entry]).await.unwrap();
        let first = numbers.start;
        let put = |n: u64| Change::Put { key: key(n).into(), value: (n - first) as usize };
        let changes = numbers.map(put).collect();
        let step = Transition { applied: id(index), changes };
        engine.apply(GROUP, vec![step], image(index)).unwrap();
    }
    engine.purge(GROUP, id(2)).await.unwrap();
    (disk, engine)
}

/// Deletes all values but those that stay.
async fn delete_others(engine: &Engine) {
    let delete = |n: u64| Change::Delete { key: key(n).into() };
    let changes = (0..VALUES).filter(|n| !stays(n)).map(delete).collect();
    append(engine, vec![NewEntry::new(id(3), Bytes::new(), vec![])]).await.unwrap();
    engine.apply(GROUP, vec![Transition { applied: id(3), changes }], image(3)).unwrap();
}

/// Lets compaction run until it has nothing more to do.
async fn compact(engine: &Engine) {
    let mut moved = None;
    while moved != Some(engine.status().moved_bytes) {
        moved = Some(engine.status().moved_bytes);
        for _ in 0..4 {
            engine.barrier().await.unwrap();
            sync_often(engine, 1).await;
        }
    }
    assert!(moved > Some(0), "nothing was moved: {:?}", engine.status().space);
}

async fn sync_often(engine: &Engine, times: usize) {
    for _ in 0..times {
        engine.sync().await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

/// Fills all free space with other bytes.
async fn overwrite_free_space(engine: &Engine) {
    let mut index = 4;
    while put_one(engine, index, &format!("new{index}"), filled(50_000, 99)).await.is_ok() {
        index += 1;
    }
}

async fn check_values(engine: &Engine, what: &str) {
    for number in (0..VALUES).filter(stays) {
        let found = engine.get(GROUP, key(number).as_bytes()).await.unwrap();
        assert_eq!(found.map(|(_, value)| value), Some(filled(LEN, number)), "{what}: {number}");
    }
}

fn entry_of(engine: &Engine, number: u64) -> KeyEntry {
    engine.lookup(GROUP, key(number).as_bytes()).unwrap()
}

/// Where a value is by a synced record. Compaction may still move it again.
async fn synced_entry_of(engine: &Engine, number: u64) -> KeyEntry {
    loop {
        let entry = entry_of(engine, number);
        // In mode `sync` it waits for what is queued, too.
        engine.barrier().await.unwrap();
        if entry_of(engine, number) == entry {
            return entry;
        }
    }
}

#[test]
fn moved_values_are_read_at_their_new_places_after_any_end() {
    run(async {
        for power in [false, true] {
            let (disk, engine) = filled_engine().await;
            let before = entry_of(&engine, SPARSEST);
            delete_others(&engine).await;
            compact(&engine).await;
            let after = entry_of(&engine, SPARSEST);
            assert_eq!((after.version, after.value.hash), (before.version, before.value.hash));
            assert_ne!(after.value, before.value);
            assert_eq!(stored(&disk.bytes(FileKind::Data), &after.value), filled(LEN, SPARSEST));
            overwrite_free_space(&engine).await;
            check_values(&engine, "before").await;
            let synced = synced_entry_of(&engine, SPARSEST).await;
            drop(engine);
            match power {
                true => disk.reboot(Cache::Volatile, Fate::Lost),
                false => disk.kill(Fate::Kept),
            }
            let engine = Engine::open(Arc::new(disk), None, options(Mode::Sync)).await.unwrap();
            assert_eq!(entry_of(&engine, SPARSEST), synced, "no checkpoint has it: the record has");
            check_values(&engine, "afterwards").await;
        }
    });
}

#[test]
fn a_view_reads_the_old_places_and_keeps_them() {
    run(async {
        let (_, engine) = filled_engine().await;
        let view = engine.view(GROUP);
        delete_others(&engine).await;
        compact(&engine).await;
        let moved = |n: &u64| view.get(key(*n).as_bytes()).unwrap() != entry_of(&engine, *n);
        let moved = (0..VALUES).filter(stays).filter(moved).count();
        // The view keeps what compaction emptied, so it ends before all is moved.
        assert!(moved > 0 && moved < VALUES as usize / 5, "{moved} values moved");
        overwrite_free_space(&engine).await;
        for number in 0..VALUES {
            let entry = view.get(key(number).as_bytes()).unwrap();
            assert_eq!(view.read(&entry).await.unwrap(), filled(LEN, number));
        }
        check_values(&engine, "beside the view").await;
    });
}

#[test]
fn an_extent_found_before_its_value_moved_is_neither_read_nor_repaired() {
    run(async {
        let (_, engine) = filled_engine().await;
        let extents = engine.extents(GROUP, 0..u64::MAX).await;
        let owner = Owner::Key(key(SPARSEST).into());
        let of = |extent: &&cairn_engine::Extent| extent.owner == owner;
        let extent = extents.iter().find(of).unwrap().clone();
        delete_others(&engine).await;
        compact(&engine).await;
        overwrite_free_space(&engine).await;
        let (_, suspects) = engine.check_extents(std::slice::from_ref(&extent)).await;
        assert_eq!(suspects, std::slice::from_ref(&extent), "its place has other bytes");
        assert_eq!(engine.read_extent(GROUP, &extent).await.unwrap(), None);
        assert!(!engine.repair(GROUP, &extent, &filled(LEN, SPARSEST)).await.unwrap());
        assert_eq!(engine.status().corrupt_values, 0);
        check_values(&engine, "afterwards").await;
    });
}

#[test]
fn a_damaged_value_stays_where_it_is_until_it_is_repaired() {
    run(async {
        let (disk, engine) = filled_engine().await;
        let damaged = entry_of(&engine, 10);
        disk.damage(FileKind::Data, |bytes| bytes[place(&damaged.value, 5)] ^= 1);
        delete_others(&engine).await;
        compact(&engine).await;
        assert_eq!(entry_of(&engine, 10), damaged);
        assert_ne!(entry_of(&engine, 500).value.offset() / 4096, damaged.value.offset() / 4096);
        let extent = cairn_engine::Extent::of_key(key(10).into(), &damaged);
        assert!(engine.read_extent(GROUP, &extent).await.is_err());
        assert!(engine.repair(GROUP, &extent, &filled(LEN, 10)).await.unwrap());
        check_values(&engine, "repaired").await;
    });
}

#[test]
fn what_the_log_alone_refers_to_does_not_move() {
    run(async {
        let (_, engine) = filled_engine().await;
        delete_others(&engine).await;
        // Each block of these keeps values that only the log refers to.
        let values = (0..500).map(|number| filled(LEN, number));
        append(&engine, vec![NewEntry::new(id(4), Bytes::new(), values)]).await.unwrap();
        let put = |n: usize| Change::Put { key: format!("l{n}").into(), value: n };
        let changes = (0..500).step_by(5).map(put).collect();
        engine.apply(GROUP, vec![Transition { applied: id(4), changes }], image(4)).unwrap();
        let before = engine.values_of(GROUP, 4).unwrap();
        compact(&engine).await;
        let moved = engine.status().moved_bytes;
        assert_eq!(engine.values_of(GROUP, 4).unwrap(), before);
        // A purge yields first: then they move.
        engine.purge(GROUP, id(4)).await.unwrap();
        compact(&engine).await;
        assert!(engine.status().moved_bytes > moved);
        check_values(&engine, "afterwards").await;
        let found = engine.get(GROUP, b"l15").await.unwrap().unwrap();
        assert_eq!(found.1, filled(LEN, 15));
        assert_ne!(found.0.value, before[15]);
    });
}

/// A value of a whole block and a tail that only the journal holds: if its tail moved, the rest
/// would not be written any more.
#[test]
fn a_value_that_waits_to_be_written_does_not_move() {
    run(async {
        let (disk, engine) = fresh(Mode::Sync).await;
        engine.close().await.unwrap();
        drop(engine);
        let sync_interval = Duration::from_secs(3600);
        let patient = Options { sync_interval, ..options(Mode::Sync) };
        let engine = Engine::open(Arc::new(disk.clone()), None, patient).await.unwrap();
        let value = |index| filled(4096 + 100, index);
        // So few that no checkpoint is due, and enough that compaction is worthwhile.
        let count = 38;
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        for index in 0..count {
            put_one(&engine, index, &key(index), value(index)).await.unwrap();
            // What is installed shares no block with others: the tail's block is not filled.
            let other = SnapshotKey::with_value(key(index).into(), id(1000), filled(10, index));
            installer.put(vec![other]).await.unwrap();
        }
        let before = entry_of(&engine, 10);
        sync_often(&engine, 4).await;
        assert_eq!((engine.status().moved_bytes, entry_of(&engine, 10)), (0, before.clone()));
        // A larger group commit takes along what waits. Then it moves, but not before compaction
        // searches again.
        put_one(&engine, count, "larger", filled(9000, 60)).await.unwrap();
        sync_often(&engine, 40).await;
        compact(&engine).await;
        until("all is written", || engine.status().unsynced_bytes == 0).await;
        assert_ne!(entry_of(&engine, 10), before);
        for index in 0..count {
            let at = entry_of(&engine, index).value;
            assert_eq!(stored(&disk.bytes(FileKind::Data), &at), value(index), "{index}");
        }
    });
}

/// A reader without a view: it looked the place up, and reads it when it belongs to another value.
/// A first read that failed makes the second one come so late.
#[test]
fn a_value_that_moves_during_a_read_is_read_at_its_new_place() {
    run(async {
        let (disk, engine) = filled_engine().await;
        // It has the byte which a misread flips, and stays alone in its block.
        let is_misread = |at: u64| (596..=1000).contains(&(at % 4096));
        let number = (0..VALUES)
            .filter(stays)
            .find(|number| is_misread(entry_of(&engine, *number).value.offset()))
            .unwrap();
        let before = entry_of(&engine, number);
        {
            let mut core = disk.core.lock().unwrap();
            core.slow_reads = true;
            core.misread = vec![(FileKind::Data, before.value.offset() / 4096)];
        }
        let name = key(number);
        let mut read = Box::pin(engine.get(GROUP, name.as_bytes()));
        assert!(futures::poll!(&mut read).is_pending());
        assert!(disk.core.lock().unwrap().misread.is_empty());
        delete_others(&engine).await;
        compact(&engine).await;
        overwrite_free_space(&engine).await;
        assert_ne!(stored(&disk.bytes(FileKind::Data), &before.value), filled(LEN, number));
        let (entry, bytes) = read.await.unwrap().unwrap();
        assert_eq!((entry.version, bytes), (before.version, filled(LEN, number)));
        assert_ne!(entry.value, before.value);
        assert_eq!(engine.status().corrupt_values, 0);
    });
}
