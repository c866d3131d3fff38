//! Capacity of the data area and of a checkpoint area, checked before a write and used afterwards.

use crate::support::store::{GROUP, append, filled, fresh, id, image, need, options, put_one};
use crate::support::{Disk, Fate, identity, run, stored, until};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{
    Change, Engine, Error, Geometry, Mode, Need, NewEntry, SnapshotKey, SpaceUse, Transition,
};
use std::sync::Arc;

fn has_capacity(engine: &Engine, lengths: &[u64]) -> bool {
    let blocks = Engine::blocks_for([(lengths.iter().copied(), 0)]);
    engine.has_capacity(blocks, 0).is_ok()
}

/// The story: a follower received an entry whose value fitted into no free run. openraft had taken
/// the entry by then, so the member stopped. Now a value needs no run, only blocks: what the check
/// admits finds its space, however the free blocks lie.
#[test]
fn what_the_check_before_a_write_admits_finds_space_in_any_free_blocks() {
    run(async {
        let (disk, engine) = fresh(Mode::Replicated).await;
        assert!(has_capacity(&engine, &[1 << 20, 1 << 20, 100]));
        assert!(!has_capacity(&engine, &[3 << 20, 2 << 20]));
        let mut index = 0;
        while has_capacity(&engine, &[60_000]) {
            put_one(&engine, index, &format!("k{index}"), filled(60_000, index)).await.unwrap();
            index += 1;
        }
        assert!(index > 55, "only {index} values fitted");
        // 16 blocks are kept for compaction, and at most 14 others are free.
        assert!(put_one(&engine, index, "more", filled(31 * BLOCK, 1)).await.is_err());
        // Every second one is deleted: half of the area is free, in pieces.
        engine.purge(GROUP, id(index - 1)).await.unwrap();
        let deleted: Vec<u64> = (0..index).filter(|i| i % 2 == 0).collect();
        for i in &deleted {
            append(&engine, vec![NewEntry::new(id(index), Bytes::new(), [])]).await.unwrap();
            let changes = vec![Change::Delete { key: format!("k{i}").into() }];
            engine
                .apply(GROUP, vec![Transition { applied: id(index), changes }], image(index))
                .unwrap();
            index += 1;
        }
        until("the space comes back", || engine.status().free_bytes >= 1_500_000).await;
        assert!(!has_capacity(&engine, &[3_000_000]));
        let long = filled(1_400_000, 9);
        assert!(has_capacity(&engine, &[1_400_000]));
        put_one(&engine, index, "long", long.clone()).await.unwrap();
        let at = engine.lookup(GROUP, b"long").unwrap().value;
        assert!(at.segments().count() > 20, "{at:?}");
        assert_eq!(engine.get(GROUP, b"long").await.unwrap().unwrap().1, long);
        assert_eq!(stored(&disk.bytes(FileKind::Data), &at), long);
        // Its record is longer than a reference in one piece, and is read back.
        drop(engine);
        disk.kill(Fate::Kept);
        let engine = Engine::open(Arc::new(disk), None, options(Mode::Replicated)).await.unwrap();
        assert_eq!(engine.values_of(GROUP, index).unwrap(), [at]);
        let entries = engine.read_log(GROUP, index..index + 1, u64::MAX).await.unwrap();
        assert_eq!(entries[0].values, [long.into()]);
    });
}

/// The story: the newest checkpoint was damaged, and the older one brought back all the log since,
/// which the newest one no longer had. It did not fit beside the keys. The checkpoint that raft asks
/// for after a start failed, and with it the engine, at each start.
#[test]
fn a_checkpoint_that_fits_only_once_the_log_is_applied_again_waits_for_that() {
    const KEYS: u64 = 2000;
    const WIDE: u64 = 330;
    run(async {
        let sizes =
            Geometry { journal_bytes: 8 << 20, checkpoint_bytes: 1 << 20, data_bytes: 32 << 20 };
        let disk = Disk::new(sizes);
        Engine::format(&disk, sizes, &identity()).await.unwrap();
        let open = async || {
            Engine::open(Arc::new(disk.clone()), None, options(Mode::Replicated)).await.unwrap()
        };
        let engine = open().await;
        for index in 0..KEYS {
            put_one(&engine, index, &format!("k{index:0200}"), filled(10, index)).await.unwrap();
        }
        let wide = |index| {
            let meta = Bytes::from(vec![index as u8; 900]);
            NewEntry::new(id(index), meta, vec![])
        };
        let applied = |index| Transition { applied: id(index), changes: vec![] };
        let write = async |engine: &Engine, indexes: std::ops::Range<u64>| {
            for first in indexes.clone().step_by(30) {
                let entries = (first..indexes.end.min(first + 30)).map(wide).collect();
                append(engine, entries).await.unwrap();
            }
            let last = indexes.end - 1;
            engine.apply(GROUP, indexes.map(applied).collect(), image(last)).unwrap();
        };
        engine.purge(GROUP, id(KEYS - 1)).await.unwrap();
        engine.checkpoint().await.unwrap();
        engine.checkpoint().await.unwrap();
        let areas = [FileKind::Checkpoint0, FileKind::Checkpoint1];
        let before = areas.map(|area| disk.bytes(area));
        write(&engine, KEYS..KEYS + WIDE).await;
        engine.checkpoint().await.unwrap();
        engine.purge(GROUP, id(KEYS + WIDE - 1)).await.unwrap();
        write(&engine, KEYS + WIDE..KEYS + 2 * WIDE).await;
        drop(engine);
        disk.kill(Fate::Kept);
        for (area, before) in areas.into_iter().zip(before) {
            if disk.bytes(area) != before {
                disk.damage(area, |bytes| bytes[40..3 * BLOCK].fill(1));
            }
        }
        let engine = open().await;
        assert_eq!(engine.applied(GROUP), Some(id(KEYS - 1)), "the older one");
        let reapply = async {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(engine.status().checkpoints, 0);
            let steps = (KEYS..KEYS + 2 * WIDE).map(applied).collect();
            engine.apply(GROUP, steps, image(1))
        };
        let (checkpoint, reapplied) = futures::join!(engine.checkpoint(), reapply);
        checkpoint.and(reapplied).unwrap();
        assert_eq!(engine.status().checkpoints, 1);
        let last = engine.get(GROUP, format!("k{:0200}", KEYS - 1).as_bytes()).await.unwrap();
        assert_eq!(last.unwrap().1, filled(10, KEYS - 1));
    });
}

/// The story: batches of many small values made long records. The log outgrew the checkpoint area
/// long before the data area was full. The next checkpoint failed, and with it every member, for
/// good: without a checkpoint nothing could be purged.
#[test]
fn a_log_of_long_records_is_refused_before_no_checkpoint_could_hold_it() {
    run(async {
        let (disk, engine) = fresh(Mode::Replicated).await;
        let values = || vec![Bytes::from_static(b"tiny"); 128];
        let record = Engine::index_bytes([4; 128], 4);
        let client = Need { bytes: 512, puts: true, index_bytes: record };
        let (mut index, mut refused_to_clients) = (0, None);
        while engine.has_capacity(0, record).is_ok() {
            let meta = Bytes::from_static(b"meta");
            append(&engine, vec![NewEntry::new(id(index), meta, values())]).await.unwrap();
            if refused_to_clients.is_none() && engine.check_capacity(client).is_err() {
                refused_to_clients = Some(index);
            }
            index += 1;
            // Applied entries show the record as it is read back from a checkpoint.
            engine
                .apply(
                    GROUP,
                    vec![Transition { applied: id(index - 1), changes: vec![] }],
                    image(0),
                )
                .unwrap();
        }
        let refused_to_clients = refused_to_clients.expect("clients are refused first");
        assert!(index > 200 && refused_to_clients < index && engine.status().free_bytes > 1 << 20);
        assert!(matches!(engine.check_capacity(client), Err(Error::IndexFull { .. })));
        let none = Need { index_bytes: record, ..Need::default() };
        assert!(
            matches!(engine.check_capacity(none), Err(Error::IndexFull { .. })),
            "nor a write without values"
        );
        engine.checkpoint().await.unwrap();
        assert!(engine.status().index_bytes > engine.status().index_capacity_bytes / 10 * 9);
        drop(engine);
        let engine = Engine::open(Arc::new(disk), None, options(Mode::Replicated)).await.unwrap();
        assert_eq!(engine.log_bounds(GROUP).last, Some(id(index - 1)));
        engine.purge(GROUP, id(index - 1)).await.unwrap();
        engine.check_capacity(client).unwrap();
        assert_eq!(engine.status().index_log_bytes, 0);
    });
}

/// The story of the test above, with what applying leaves behind: new keys.
#[test]
fn what_is_admitted_still_fits_into_a_checkpoint_once_it_is_applied() {
    run(async {
        let (_, engine) = fresh(Mode::Replicated).await;
        let keys =
            |index: u64| (0..100).map(move |n| format!("{index:08}-{n:03}-{}", "k".repeat(40)));
        let meta = Bytes::from(vec![0; 100 * 60]);
        let index_bytes =
            Engine::index_bytes([0; 100], meta.len()) + Engine::applied_bytes([0; 100], meta.len());
        let need = Need { bytes: 0, puts: true, index_bytes };
        let mut index = 0;
        while engine.check_capacity(need).is_ok() {
            let values = vec![Bytes::new(); 100];
            append(&engine, vec![NewEntry::new(id(index), meta.clone(), values)]).await.unwrap();
            let change = |(n, key): (usize, String)| Change::Put { key: key.into(), value: n };
            let changes = keys(index).enumerate().map(change).collect();
            engine
                .apply(GROUP, vec![Transition { applied: id(index), changes }], image(index))
                .unwrap();
            index += 1;
            if index % 10 == 0 {
                engine.purge(GROUP, id(index - 1)).await.unwrap();
            }
        }
        let status = engine.status();
        let used = status.index_bytes * 100 / status.index_capacity_bytes;
        assert!((55..=75).contains(&used), "{used} percent are used after {index} entries");
        engine.checkpoint().await.unwrap();
        assert!(engine.status().index_refusals > 0);
        let delete = Need { index_bytes: 200, ..Need::default() };
        engine.check_capacity(delete).unwrap();
    });
}

#[test]
fn a_full_disk_refuses_writes_with_figures_and_takes_deletes_which_free_it() {
    run(async {
        let (_, engine) = fresh(Mode::Replicated).await;
        let mut index = 0;
        let refused = loop {
            if let Err(error) = engine.check_capacity(need(100_000)) {
                break error;
            }
            put_one(&engine, index, &format!("k{index}"), filled(100_000, index)).await.unwrap();
            index += 1;
        };
        assert!(matches!(refused, Error::Full { needed: 100_000, .. }), "{refused}");
        assert!(refused.to_string().contains("delete keys"), "{refused}");
        assert!(index > 20, "only {index} values fitted");
        let status = engine.status();
        let padding = BLOCK as u64;
        assert!(status.free_bytes + padding >= status.data_bytes / 32, "the reserve is used");
        let value = engine.get(GROUP, b"k3").await.unwrap().unwrap().1;
        assert_eq!(value, filled(100_000, 3), "reads continue");
        for i in 0..index {
            let at = index + i;
            append(&engine, vec![NewEntry::new(id(at), Bytes::new(), vec![])]).await.unwrap();
            let key = Bytes::from(format!("k{i}"));
            let changes = vec![Change::Delete { key }];
            engine.apply(GROUP, vec![Transition { applied: id(at), changes }], image(at)).unwrap();
        }
        engine.purge(GROUP, id(2 * index - 1)).await.unwrap();
        until("the space comes back", || engine.check_capacity(need(100_000)).is_ok()).await;
    });
}

/// The story: the log was purged of half of what it held at once, 65,000 entries, and every write
/// and read waited 40 ms for that.
#[test]
fn a_purge_of_many_entries_goes_in_steps_between_which_others_have_their_turn() {
    run(async {
        let (_, engine) = fresh(Mode::Replicated).await;
        let entries = (0..3000).map(|index| {
            let values = vec![Bytes::from_static(b"tiny")];
            NewEntry::new(id(index), Bytes::new(), values)
        });
        append(&engine, entries.collect()).await.unwrap();
        let applied = (0..3000).map(|index| Transition { applied: id(index), changes: vec![] });
        engine.apply(GROUP, applied.collect(), image(1)).unwrap();
        engine.checkpoint().await.unwrap();
        let mut purge = Box::pin(engine.purge(GROUP, id(2500)));
        let mut steps = vec![0];
        while futures::poll!(&mut purge).is_pending() {
            let purged = engine.log_bounds(GROUP).purged.map_or(0, |id| id.index);
            if steps.last() != Some(&purged) {
                steps.push(purged);
            }
            tokio::task::yield_now().await;
        }
        assert!(steps.len() > 2 && steps.windows(2).all(|pair| pair[1] - pair[0] <= 1024));
        assert_eq!(engine.log_bounds(GROUP).purged, Some(id(2500)));
    });
}

/// Checks that the parts add up to the area, and returns them.
fn parts(engine: &Engine) -> SpaceUse {
    let status = engine.status();
    let space = status.space;
    let dead = space.dead_unrecorded + space.dead_unsynced + space.dead_viewed;
    let used = space.live + space.log + space.installing + space.padding;
    assert_eq!(used + dead + space.reserve + space.free, status.data_bytes, "{space:?}");
    assert_eq!(space.reserve + space.free, status.free_bytes);
    space
}

#[test]
fn every_byte_of_the_data_area_has_a_name() {
    run(async {
        let (_, engine) = fresh(Mode::Replicated).await;
        let empty = parts(&engine);
        let expected = SpaceUse { reserve: 128 << 10, free: 3968 << 10, ..SpaceUse::default() };
        assert_eq!(empty, expected);
        put_one(&engine, 0, "a", filled(5000, 0)).await.unwrap();
        put_one(&engine, 1, "a", filled(4000, 1)).await.unwrap();
        let overwritten = parts(&engine);
        assert_eq!((overwritten.live, overwritten.log), (4000, 5000));
        assert_eq!(overwritten.padding, 96 + 4096 - 904);
        // A view keeps what a purge frees.
        let view = engine.view(GROUP);
        engine.purge(GROUP, id(1)).await.unwrap();
        until("the deaths are recorded and synced", || {
            parts(&engine).dead_viewed == 2 * BLOCK as u64
        })
        .await;
        assert_eq!((parts(&engine).live, parts(&engine).log), (4000, 0));
        drop(view);
        until("it is free", || parts(&engine).free == empty.free - BLOCK as u64).await;
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        let key = |name: &str, value| SnapshotKey::with_value(name.to_owned().into(), id(9), value);
        installer.put(vec![key("x", filled(100_000, 2)), key("y", filled(300, 3))]).await.unwrap();
        assert_eq!(parts(&engine).installing, 100_300);
        installer.finish(id(9), image(9)).await.unwrap();
        let installed = parts(&engine);
        assert_eq!((installed.live, installed.installing), (100_300, 0));
    });
}
