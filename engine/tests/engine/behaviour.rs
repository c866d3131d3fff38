//! What callers may rely on: snapshots installed completely, space that comes back, errors that
//! stay.

use crate::support::store::{
    GROUP, append, entry, filled, fresh, id, image, need, options, put, put_one,
};
use crate::support::{Cache, Disk, Random, geometry, run, until};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{
    Change, Engine, Error, Installer, KernelBootId, ListQuery, LogId, Mode, NewEntry, Options,
    SnapshotKey, Transition,
};
use std::sync::Arc;
use std::time::Duration;

async fn put_value(installer: &mut Installer, key: Bytes, version: LogId, value: Bytes) {
    let missing = installer.put(vec![SnapshotKey::with_value(key, version, value)]).await.unwrap();
    assert!(missing.is_empty());
}

#[test]
fn values_of_every_length_are_read_back_before_and_after_a_restart() {
    run(async {
        let (disk, engine) = fresh(Mode::Replicated).await;
        let lengths = [0usize, 1, 100, 4095, 4096, 4097, 65_536, 300_000];
        for (i, len) in lengths.into_iter().enumerate() {
            put_one(&engine, i as u64, &format!("k{i}"), filled(len, i as u64)).await.unwrap();
            assert_eq!(
                engine.get(GROUP, format!("k{i}").as_bytes()).await.unwrap().unwrap().1,
                filled(len, i as u64)
            );
        }
        engine.close().await.unwrap();
        drop(engine);
        disk.kill(|| 0);
        let engine = Engine::open(Arc::new(disk), None, options(Mode::Replicated)).await.unwrap();
        let found = engine.read_log(GROUP, 0..100, u64::MAX).await.unwrap();
        let found: Vec<Bytes> = found.into_iter().map(|e| e.values[0].clone()).collect();
        let expected: Vec<Bytes> =
            lengths.into_iter().enumerate().map(|(i, len)| filled(len, i as u64)).collect();
        assert_eq!(found, expected);
    });
}

#[test]
fn reads_of_the_log_are_bounded_by_bytes_but_never_empty() {
    run(async {
        let (_, engine) = fresh(Mode::Replicated).await;
        append(&engine, (0..10).map(|i| entry(i, filled(1000, i))).collect()).await.unwrap();
        assert_eq!(engine.read_log(GROUP, 2..9, 1).await.unwrap().len(), 1);
        assert_eq!(engine.read_log(GROUP, 2..9, 3100).await.unwrap().len(), 3);
        assert_eq!(engine.read_log(GROUP, 2..9, u64::MAX).await.unwrap().len(), 7);
        assert!(engine.read_log(GROUP, 50..60, u64::MAX).await.unwrap().is_empty());
    });
}

#[test]
fn a_hole_in_the_log_is_refused_and_nothing_is_appended() {
    run(async {
        let (_, engine) = fresh(Mode::Replicated).await;
        append(&engine, vec![entry(0, Bytes::new())]).await.unwrap();
        let error = append(&engine, vec![entry(2, Bytes::new())]).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(m) if m.contains("index 1 is due")), "{error}");
        assert_eq!(engine.log_bounds(GROUP).last, Some(id(0)));
    });
}

#[test]
fn overwriting_continues_for_many_laps_of_journal_and_data() {
    run(async {
        let (disk, engine) = fresh(Mode::Replicated).await;
        // 40 MB through 4 MiB of data, 2000 blocks through 256 of journal.
        for i in 0..2000u64 {
            let mut admitted = engine.check_capacity(need(20_000, 20_000));
            while admitted.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
                admitted = engine.check_capacity(need(20_000, 20_000));
            }
            put_one(&engine, i, &format!("k{}", i % 5), filled(20_000, i)).await.unwrap();
            if i % 20 == 19 {
                engine.purge(GROUP, id(i - 3)).await.unwrap();
            }
        }
        for i in 1995..2000u64 {
            let value =
                engine.get(GROUP, format!("k{}", i % 5).as_bytes()).await.unwrap().unwrap().1;
            assert_eq!(value, filled(20_000, i));
        }
        assert!(engine.status().checkpoints > 5, "{:?}", engine.status());
        drop(engine);
        disk.kill(|| 1);
        let engine = Engine::open(Arc::new(disk), None, options(Mode::Replicated)).await.unwrap();
        assert_eq!(engine.log_bounds(GROUP).last, Some(id(1999)));
    });
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
        append(
            &engine,
            vec![NewEntry {
                id: LogId { term: 3, index: 1001 },
                meta: Bytes::new(),
                values: vec![],
            }],
        )
        .await
        .unwrap();
        drop(engine);
        disk.reboot(Cache::Volatile, || 0);
        let engine = Engine::open(Arc::new(disk), None, options(Mode::Sync)).await.unwrap();
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
        for cut in 1..60 {
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
            disk.reboot(Cache::Volatile, || random.next());
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
            disk.kill(|| random.next());
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
        disk.damage(FileKind::Data, |bytes| bytes[held.value.offset as usize + 5] ^= 1);
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
        disk.reboot(Cache::Volatile, || 0);
        // A write may have been in flight when the power went.
        let after = Options { boot: KernelBootId(2), ..options(Mode::Sync) };
        let engine = Engine::open(Arc::new(disk), None, after).await.unwrap();
        assert_eq!(engine.get(GROUP, b"k07").await.unwrap().unwrap().1, filled(100_000, 7));
        assert_eq!(engine.get(GROUP, b"k29").await.unwrap().unwrap().1, filled(100_000, 29));
    });
}

/// The story: a follower that was away for a minute needed entries that were no longer in memory.
/// Each was read by a request of its own, one after the other, which was slower than the leader
/// took new writes.
#[test]
fn entries_that_were_appended_together_are_read_together() {
    run(async {
        let (disk, engine) = fresh(Mode::Sync).await;
        let entries = (0..400).map(|i| entry(i, filled(200 + i as usize % 7, i))).collect();
        append(&engine, entries).await.unwrap();
        engine.close().await.unwrap();
        drop(engine);
        disk.kill(|| 0);
        let engine = Engine::open(Arc::new(disk.clone()), None, options(Mode::Sync)).await.unwrap();
        let before = disk.core.lock().unwrap().reads;
        let found = engine.read_log(GROUP, 0..400, u64::MAX).await.unwrap();
        let reads = disk.core.lock().unwrap().reads - before;
        let expected: Vec<Bytes> = (0..400).map(|i| filled(200 + i as usize % 7, i)).collect();
        assert_eq!(
            found.into_iter().map(|entry| entry.values[0].clone()).collect::<Vec<_>>(),
            expected
        );
        assert!(reads <= 4, "{reads} reads for 400 entries in a row");
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
        append(&engine, vec![NewEntry { id: id(index), meta: Bytes::new(), values: vec![] }])
            .await
            .unwrap();
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

#[test]
fn a_failed_sync_ends_the_engine_and_is_not_retried() {
    run(async {
        let (disk, engine) = fresh(Mode::Sync).await;
        put_one(&engine, 0, "k", filled(10, 0)).await.unwrap();
        disk.core.lock().unwrap().fail_syncs = true;
        let error = append(&engine, vec![entry(1, filled(10, 1))]).await.unwrap_err();
        assert!(matches!(error, Error::Failed { operation: "sync", .. }), "{error}");
        disk.core.lock().unwrap().fail_syncs = false;
        let error = append(&engine, vec![entry(2, filled(10, 1))]).await.unwrap_err();
        assert!(matches!(error, Error::Failed { operation: "sync", .. }), "{error}");
        assert!(engine.save_vote(GROUP, b"v").await.is_err());
        assert!(engine.close().await.is_err(), "no clean shutdown is recorded");
        let status = engine.status();
        assert!(status.failed.unwrap().contains("sync failed"));
        assert!(
            status.synced_sequence < status.written_sequence,
            "the synced sequence stays where it was"
        );
        assert_eq!(
            engine.get(GROUP, b"k").await.unwrap().unwrap().1,
            filled(10, 0),
            "reads continue"
        );
    });
}

#[test]
fn a_flipped_bit_in_a_value_is_an_error_with_its_location_and_never_not_found() {
    run(async {
        let (disk, engine) = fresh(Mode::Replicated).await;
        put_one(&engine, 7, "k", filled(5000, 0)).await.unwrap();
        let at = engine.lookup(GROUP, b"k").unwrap().value.offset;
        disk.damage(FileKind::Data, |bytes| bytes[at as usize + 4500] ^= 4);
        let Error::Corrupt(damage) = engine.get(GROUP, b"k").await.unwrap_err() else { panic!() };
        assert_eq!((damage.file, damage.offset, damage.length), (FileKind::Data, at, 5000));
        assert_eq!(damage.log_ids, [id(7)]);
        assert_eq!(engine.status().corrupt_values, 1);
    });
}

#[test]
fn a_wrong_truncated_or_foreign_directory_is_refused_and_left_alone() {
    run(async {
        let (disk, engine) = fresh(Mode::Replicated).await;
        engine.close().await.unwrap();
        drop(engine);
        let image: Vec<Vec<u8>> = FileKind::ALL.into_iter().map(|k| disk.bytes(k)).collect();
        let open = |cluster: &str, slot| {
            let disk = disk.clone();
            let expected = Some((cluster.to_owned(), slot));
            async move {
                Engine::open(Arc::new(disk), expected, options(Mode::Replicated))
                    .await
                    .err()
                    .unwrap()
            }
        };
        let error = open("other", 1).await;
        assert!(error.to_string().contains("slot 1 of cluster `test`"), "{error}");
        let error = open("test", 2).await;
        assert!(error.to_string().contains("slot 2 of cluster `test` was asked for"), "{error}");
        let now: Vec<Vec<u8>> = FileKind::ALL.into_iter().map(|k| disk.bytes(k)).collect();
        assert!(image == now, "a refused directory was written to");
        let unformatted = Disk::new(geometry());
        let error =
            Engine::open(Arc::new(unformatted), None, options(Mode::Sync)).await.err().unwrap();
        assert!(matches!(error, Error::NotFormatted { .. }), "{error}");
    });
}

/// Bits flipped anywhere while the process was down: the engine opens with the right state, or
/// reports what is damaged. It never serves wrong data.
#[test]
fn flipped_bits_in_any_file_are_survived_or_reported_but_never_served() {
    run(async {
        let (disk, engine) = fresh(Mode::Replicated).await;
        for i in 0..60 {
            put_one(&engine, i, &format!("k{}", i % 20), filled(3000, i)).await.unwrap();
            if i == 20 || i == 40 {
                engine.checkpoint().await.unwrap();
            }
        }
        engine.save_vote(GROUP, b"the vote").await.unwrap();
        engine.close().await.unwrap();
        drop(engine);
        let clean: Vec<(FileKind, Vec<u8>)> =
            FileKind::ALL.into_iter().map(|k| (k, disk.bytes(k))).collect();
        let in_use =
            |bytes: &Vec<u8>| (0..bytes.len()).filter(|i| bytes[*i] != 0).collect::<Vec<usize>>();
        let in_use: Vec<Vec<usize>> = clean.iter().map(|(_, bytes)| in_use(bytes)).collect();
        let mut random = Random(5);
        let (mut opened, mut refused) = (0, 0);
        for round in 0..400 {
            disk.kill(|| 0);
            for (kind, bytes) in &clean {
                disk.damage(*kind, |b| b.copy_from_slice(bytes));
            }
            let file = random.below(5) as usize;
            let ((kind, bytes), used) = (&clean[file], &in_use[file]);
            for _ in 0..1 + random.below(3) {
                // Half of the time in what is in use, half anywhere.
                let at = if random.below(2) == 0 {
                    random.below(bytes.len() as u64) as usize
                } else {
                    used[random.below(used.len() as u64) as usize]
                };
                let bit = random.below(8);
                disk.damage(*kind, |b| b[at] ^= 1 << bit);
            }
            let engine = match Engine::open(Arc::new(disk.clone()), None, options(Mode::Replicated))
                .await
            {
                Ok(engine) => engine,
                Err(Error::Corrupt(_) | Error::NotFormatted { .. } | Error::NewerFormat { .. }) => {
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("round {round}: {error}"),
            };
            opened += 1;
            assert_eq!(
                engine.vote(GROUP).as_deref(),
                Some(&b"the vote"[..]),
                "round {round} {kind:?}"
            );
            assert_eq!(
                engine.log_bounds(GROUP).last,
                Some(id(59)),
                "round {round} {kind:?}: a silently short log"
            );
            let from = engine.applied(GROUP).map_or(0, |a| a.index + 1);
            engine
                .apply(
                    GROUP,
                    (from..60).map(|i| put(i, &format!("k{}", i % 20))).collect(),
                    image(59),
                )
                .unwrap();
            let page = engine.view(GROUP).list(&ListQuery {
                limit: 100,
                max_bytes: u64::MAX,
                ..Default::default()
            });
            assert_eq!(page.items.len(), 20, "round {round} {kind:?}");
            for i in 40..60u64 {
                match engine.get(GROUP, format!("k{}", i % 20).as_bytes()).await {
                    Ok(Some((entry, value))) => {
                        assert_eq!((entry.version, value), (id(i), filled(3000, i)))
                    }
                    Err(Error::Corrupt(_)) => assert_eq!(*kind, FileKind::Data),
                    other => panic!("round {round} {kind:?}: {other:?}"),
                }
            }
        }
        assert!(opened > 100 && refused > 20, "{opened} opened, {refused} refused");
    });
}
