//! A snapshot that is installed: it replaces everything at once, is abandoned or cut short without
//! a trace, keeps the values already held, and needs no more space than the engine has.

use crate::support::store::{GROUP, append, filled, fresh, id, image, options, put_one};
use crate::support::{Cache, Fate, Random, place, run, until};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{
    Change, Engine, Error, Installer, KernelBootId, LogId, Mode, NewEntry, Options, SnapshotKey,
    Transition,
};
use std::sync::Arc;

async fn put_value(installer: &mut Installer, key: Bytes, version: LogId, value: Bytes) {
    let missing = installer.put(vec![SnapshotKey::with_value(key, version, value)]).await.unwrap();
    assert!(missing.is_empty());
}

#[test]
fn a_snapshot_replaces_everything_at_once_and_survives_a_cut() {
    run(async {
        let (disk, engine) = fresh(Mode::Sync).await;
        for i in 0..20 {
            put_one(&engine, i, &format!("old{i}"), filled(500, i)).await.unwrap();
        }
        let view = engine.view(GROUP);
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        for i in 0..300u64 {
            let key = Bytes::from(format!("new{i:03}"));
            put_value(
                &mut installer,
                key,
                LogId { term: 2, index: i },
                filled(5000 + i as usize, i),
            )
            .await;
        }
        assert!(
            engine.get(GROUP, b"new000").await.unwrap().is_none(),
            "nothing is visible before the end"
        );
        let at = LogId { term: 3, index: 1000 };
        installer.finish(at, image(42)).await.unwrap();
        assert_eq!(view.len(), 20, "a view from before still sees the old state");
        let old = view.get(b"old3").unwrap();
        assert_eq!(view.read(&old).await.unwrap(), filled(500, 3));
        drop(view);
        append(&engine, vec![NewEntry::new(LogId { term: 3, index: 1001 }, Bytes::new(), [])])
            .await
            .unwrap();
        drop(engine);
        disk.reboot(Cache::Volatile, Fate::Random(1));
        let after = Options { boot: KernelBootId(2), ..options(Mode::Sync) };
        let engine = Engine::open(Arc::new(disk), None, after).await.unwrap();
        assert_eq!((engine.applied(GROUP), engine.view(GROUP).len()), (Some(at), 300));
        assert_eq!(engine.view(GROUP).machine(), 42u64.to_le_bytes());
        assert_eq!(engine.log_bounds(GROUP).purged, Some(at));
        assert_eq!(engine.log_bounds(GROUP).last.unwrap().index, 1001);
        for i in 0..300u64 {
            let (entry, value) =
                engine.get(GROUP, format!("new{i:03}").as_bytes()).await.unwrap().unwrap();
            assert_eq!((entry.version.index, value), (i, filled(5000 + i as usize, i)));
        }
    });
}

/// The first checkpoint of a snapshot is in one area, the state that it replaced in the other until
/// that one is voided. The story: a power cut between the two left both, and an open did not void
/// the older one. If the newer one had then been damaged, the state from before the snapshot would
/// have come back.
#[test]
fn a_cut_at_any_operation_of_an_install_leaves_the_old_state_or_the_new_and_never_both() {
    run(async {
        let (mut old, mut new, mut both) = (0, 0, 0);
        // Until no cut comes: a busy machine syncs more often, and each sync is an operation.
        for cut in 1.. {
            let (disk, engine) = fresh(Mode::Sync).await;
            for i in 0..20 {
                put_one(&engine, i, &format!("old{i}"), filled(500, i)).await.unwrap();
            }
            engine.checkpoint().await.unwrap();
            let at = LogId { term: 3, index: 1000 };
            {
                let mut core = disk.core.lock().unwrap();
                core.cut_at = Some(core.operations + cut);
            }
            let install = async {
                let mut installer = engine.begin_install(GROUP).await.unwrap();
                for from in (0..100u64).step_by(50) {
                    let key = |i| {
                        let (key, version) =
                            (format!("new{i:03}").into(), LogId { term: 2, index: i });
                        SnapshotKey::with_value(key, version, filled(5000, i))
                    };
                    installer.put((from..from + 50).map(key).collect()).await.unwrap();
                }
                installer.finish(at, image(42)).await.unwrap();
            };
            let ended = tokio::select! {
                biased;
                () = disk.died.notified() => false,
                () = install => true,
            };
            drop(engine);
            let mut random = Random(cut);
            disk.reboot(Cache::Volatile, random.fate());
            let found = [FileKind::Checkpoint0, FileKind::Checkpoint1]
                .map(|kind| disk.bytes(kind)[0] == b'C');
            let after = || Options { boot: KernelBootId(2), ..options(Mode::Sync) };
            let engine = Engine::open(Arc::new(disk.clone()), None, after()).await.unwrap();
            if engine.applied(GROUP) != Some(at) {
                assert!(!ended, "cut {cut}");
                assert_eq!(engine.log_bounds(GROUP).last, Some(id(19)), "cut {cut}");
                let before = engine.applied_before_restart(GROUP).unwrap();
                assert!(
                    engine.view(GROUP).get(b"new000").is_none() && before <= id(19),
                    "cut {cut}"
                );
                old += 1;
                continue;
            }
            new += 1;
            both += u32::from(found == [true, true]);
            assert_eq!(engine.view(GROUP).len(), 100, "cut {cut}");
            for i in 0..100u64 {
                let (_, value) =
                    engine.get(GROUP, format!("new{i:03}").as_bytes()).await.unwrap().unwrap();
                assert_eq!(value, filled(5000, i), "cut {cut}");
            }
            drop(engine);
            disk.kill(random.fate());
            // The newer checkpoint is damaged: nothing else may pass for the state.
            let newer = [FileKind::Checkpoint0, FileKind::Checkpoint1]
                .into_iter()
                .find(|kind| disk.bytes(*kind)[0] == b'C')
                .unwrap();
            disk.damage(newer, |bytes| bytes[2 * BLOCK + 10] ^= 1);
            let error = Engine::open(Arc::new(disk), None, after()).await.map(drop).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)), "cut {cut}: {error}");
            if ended {
                break;
            }
        }
        assert!(
            old > 5 && new > 2 && both > 0,
            "{old} old, {new} new, {both} with both checkpoints"
        );
    });
}

/// The story: a member fell behind while its data area was more than half full. The snapshot that
/// it needed was written beside the state that it replaces, did not fit, and never would have.
#[test]
fn a_snapshot_needs_no_space_for_values_already_held_and_replaces_damaged_ones() {
    run(async {
        let (disk, engine) = fresh(Mode::Sync).await;
        for i in 0..30 {
            put_one(&engine, i, &format!("k{i:02}"), filled(100_000, i)).await.unwrap();
        }
        assert!(engine.status().free_bytes < 1_500_000, "{:?}", engine.status());
        let held = engine.lookup(GROUP, b"k07").unwrap();
        disk.damage(FileKind::Data, |bytes| bytes[place(&held.value, 5)] ^= 1);
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        for i in 0..30 {
            let key = Bytes::from(format!("k{i:02}"));
            // One was overwritten meanwhile, one was never here.
            let (version, value) = match i {
                3 => (id(90), filled(90_000, 90)),
                4 => continue,
                i => (id(i), filled(100_000, i)),
            };
            put_value(&mut installer, key, version, value).await;
        }
        put_value(&mut installer, "k99".into(), id(99), filled(50_000, 99)).await;
        installer.finish(LogId { term: 3, index: 1000 }, image(42)).await.unwrap();
        assert_eq!(engine.view(GROUP).len(), 30);
        for i in (0..30).filter(|i| *i != 3 && *i != 4) {
            let (entry, value) =
                engine.get(GROUP, format!("k{i:02}").as_bytes()).await.unwrap().unwrap();
            assert_eq!((entry.version, value), (id(i), filled(100_000, i)));
        }
        assert_eq!(engine.get(GROUP, b"k03").await.unwrap().unwrap().1, filled(90_000, 90));
        assert_eq!(engine.get(GROUP, b"k99").await.unwrap().unwrap().1, filled(50_000, 99));
        drop(engine);
        disk.reboot(Cache::Volatile, Fate::Random(1));
        // A write may have been in flight when the power went.
        let after = Options { boot: KernelBootId(2), ..options(Mode::Sync) };
        let engine = Engine::open(Arc::new(disk), None, after).await.unwrap();
        assert_eq!(engine.get(GROUP, b"k07").await.unwrap().unwrap().1, filled(100_000, 7));
        assert_eq!(engine.get(GROUP, b"k29").await.unwrap().unwrap().1, filled(100_000, 29));
    });
}

#[test]
fn a_snapshot_key_without_its_value_uses_the_held_one_or_is_reported_missing() {
    run(async {
        let (disk, engine) = fresh(Mode::Sync).await;
        for i in 0..20 {
            put_one(&engine, i, &format!("k{i:02}"), filled(9000, i)).await.unwrap();
        }
        // One was overwritten here, one is not here at all.
        put_one(&engine, 20, "k03", filled(9000, 20)).await.unwrap();
        let key = |i: u64, value: Option<Bytes>| {
            let hash = xxhash_rust::xxh3::xxh3_128(&filled(9000, i));
            SnapshotKey::checked(format!("k{i:02}").into(), id(i), 9000, hash, value).unwrap()
        };
        let places = |engine: &Engine| {
            let place = |i: &u64| {
                engine.lookup(GROUP, format!("k{i:02}").as_bytes()).map(|entry| entry.value)
            };
            (0..20).filter(|i| *i != 3).map(|i| place(&i)).collect::<Vec<_>>()
        };
        let (before, reads) = (places(&engine), disk.core.lock().unwrap().reads);
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        let wanted = || (0..22).filter(|i| *i != 20);
        let missing = installer.put(wanted().map(|i| key(i, None)).collect()).await.unwrap();
        let mut missing: Vec<_> =
            missing.into_iter().map(|key| String::from_utf8(key.to_vec()).unwrap()).collect();
        missing.sort();
        assert_eq!(missing, ["k03", "k21"]);
        assert_eq!(disk.core.lock().unwrap().reads, reads, "a held value is not read for it");
        // The same keys, with the missing values.
        let again = wanted().map(|i| key(i, [3, 21].contains(&i).then(|| filled(9000, i))));
        assert!(installer.put(again.collect()).await.unwrap().is_empty());
        installer.finish(LogId { term: 3, index: 1000 }, image(1)).await.unwrap();
        assert_eq!(places(&engine), before, "held values are where they were");
        for i in wanted() {
            let (entry, value) =
                engine.get(GROUP, format!("k{i:02}").as_bytes()).await.unwrap().unwrap();
            assert_eq!((entry.version, value), (id(i), filled(9000, i)), "k{i:02}");
        }
        let wrong = SnapshotKey::checked("k".into(), id(1), 3, 0, Some("abc".into()));
        assert!(wrong.is_none(), "a value must be the one that its hash names");
    });
}

#[test]
fn an_abandoned_snapshot_leaves_the_old_state_and_its_space_comes_back() {
    run(async {
        let (_, engine) = fresh(Mode::Replicated).await;
        put_one(&engine, 0, "k", filled(10, 0)).await.unwrap();
        engine.sync().await.unwrap();
        let free = engine.status().free_bytes;
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        for i in 0..30u64 {
            put_value(&mut installer, format!("n{i}").into(), id(i), filled(100_000, i)).await;
        }
        assert!(engine.status().free_bytes < free);
        drop(installer);
        until("the space comes back", || engine.status().free_bytes >= free).await;
        assert_eq!(engine.get(GROUP, b"k").await.unwrap().unwrap().1, filled(10, 0));
    });
}

/// The story: a member that fell behind requested the same snapshot forever. More than half of its
/// data area was free, but no free run was as long as the values that were combined into one write.
#[test]
fn a_snapshot_fits_into_fragmented_free_space() {
    run(async {
        let (_, engine) = fresh(Mode::Sync).await;
        let pairs = 48;
        for i in 0..pairs {
            put_one(&engine, 2 * i, &format!("large{i}"), filled(80_000, i)).await.unwrap();
            put_one(&engine, 2 * i + 1, &format!("small{i}"), filled(100, i)).await.unwrap();
        }
        let index = 2 * pairs;
        append(&engine, vec![NewEntry::new(id(index), Bytes::new(), [])]).await.unwrap();
        let deleted =
            (0..pairs).map(|i| Change::Delete { key: Bytes::from(format!("large{i}")) }).collect();
        engine
            .apply(GROUP, vec![Transition { applied: id(index), changes: deleted }], image(0))
            .unwrap();
        engine.purge(GROUP, id(index)).await.unwrap();
        until("the space comes back", || engine.status().free_bytes >= 3 << 20).await;
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        for i in 0..300u64 {
            put_value(&mut installer, format!("new{i:03}").into(), id(i), filled(4000, i)).await;
        }
        installer.finish(id(1000), image(1)).await.unwrap();
        for i in 0..300u64 {
            let (_, value) =
                engine.get(GROUP, format!("new{i:03}").as_bytes()).await.unwrap().unwrap();
            assert_eq!(value, filled(4000, i));
        }
    });
}
