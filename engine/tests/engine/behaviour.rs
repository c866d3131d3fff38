//! What callers may rely on: values and entries read back whole, space that comes back,
//! errors that stay.

use crate::support::store::{
    GROUP, append, entry, filled, fresh, id, image, need, options, patient, put, put_one,
};
use crate::support::{Disk, Fate, Random, geometry, identity, place, run, until};
use bytes::Bytes;
use cairn_engine::io::FileKind;
use cairn_engine::{Engine, Error, ListQuery, LogId, Mode, NewEntry, Options, UNSYNCED_PER_SYNC};
use std::sync::Arc;
use std::time::Duration;

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
        disk.kill(Fate::Kept);
        let engine = Engine::open(Arc::new(disk), None, options(Mode::Replicated)).await.unwrap();
        let found = engine.read_log(GROUP, 0..100, u64::MAX).await.unwrap();
        let found: Vec<Bytes> = found.into_iter().map(|e| e.values[0].bytes().clone()).collect();
        let expected: Vec<Bytes> =
            lengths.into_iter().enumerate().map(|(i, len)| filled(len, i as u64)).collect();
        assert_eq!(found, expected);
    });
}

#[test]
fn writes_and_syncs_of_the_device_are_counted_by_how_long_they_took() {
    run(async {
        let (_, engine) = fresh(Mode::Sync).await;
        let before = engine.latencies();
        put_one(&engine, 0, "k", filled(5000, 0)).await.unwrap();
        let after = engine.latencies();
        let count = |counts: &cairn_engine::LatencyCounts| -> u64 {
            counts.buckets.iter().map(|(_, count)| count).sum()
        };
        assert!(count(&after.writes) > count(&before.writes));
        assert!(count(&after.syncs) > count(&before.syncs), "the mode waits for a sync");
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
fn one_value_of_an_entry_is_read_from_memory_or_the_device_as_long_as_the_log_has_it() {
    run(async {
        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        let options = Options { log_cache_bytes: 0, ..options(Mode::Replicated) };
        let engine = Engine::open(Arc::new(disk), None, options).await.unwrap();
        let values = |i| vec![filled(10, i), filled(0, i), filled(5000, i)];
        let entries = (0..4).map(|i| NewEntry::new(id(i), Bytes::from_static(b"meta"), values(i)));
        append(&engine, entries.collect()).await.unwrap();
        assert!(engine.is_in_memory(GROUP, 3) && !engine.is_in_memory(GROUP, 2));
        for index in [2, 3] {
            for (number, value) in values(index).into_iter().enumerate() {
                let read = engine.read_logged(GROUP, id(index), number).await.unwrap();
                assert_eq!(read, Some(value), "{number} of {index}");
            }
        }
        let none =
            async |id, number| engine.read_logged(GROUP, id, number).await.unwrap().is_none();
        assert!(none(id(2), 3).await, "it has three");
        assert!(none(LogId { term: 2, index: 2 }, 0).await, "another entry");
        assert!(none(id(4), 0).await, "it is not there yet");
        assert_eq!(engine.entry_bytes(GROUP, 1..9), [5014; 3]);
        engine.purge(GROUP, id(2)).await.unwrap();
        assert!(none(id(2), 0).await, "it is purged");
        assert!(engine.entry_bytes(GROUP, 1..9).is_empty(), "the first of them is");
        assert_eq!(engine.entry_bytes(GROUP, 3..9), [5014]);
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
            let mut admitted = engine.check_capacity(need(20_000));
            while admitted.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
                admitted = engine.check_capacity(need(20_000));
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
        disk.kill(Fate::Lost);
        let engine = Engine::open(Arc::new(disk), None, options(Mode::Replicated)).await.unwrap();
        assert_eq!(engine.log_bounds(GROUP).last, Some(id(1999)));
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
        disk.kill(Fate::Kept);
        let engine = Engine::open(Arc::new(disk.clone()), None, options(Mode::Sync)).await.unwrap();
        let before = disk.core.lock().unwrap().reads;
        let found = engine.read_log(GROUP, 0..400, u64::MAX).await.unwrap();
        let reads = disk.core.lock().unwrap().reads - before;
        let expected: Vec<Bytes> = (0..400).map(|i| filled(200 + i as usize % 7, i)).collect();
        assert_eq!(
            found.into_iter().map(|entry| entry.values[0].bytes().clone()).collect::<Vec<_>>(),
            expected
        );
        assert!(reads <= 4, "{reads} reads for 400 entries in a row");
    });
}

#[test]
fn a_failed_sync_ends_the_engine_and_is_not_retried() {
    run(async {
        // No sync but that of the append may be the first to fail.
        let (disk, engine) = patient(Mode::Sync).await;
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
        // The value is at its place then.
        engine.checkpoint().await.unwrap();
        let at = engine.lookup(GROUP, b"k").unwrap().value;
        disk.damage(FileKind::Data, |bytes| bytes[place(&at, 4500)] ^= 4);
        let Error::Corrupt(damage) = engine.get(GROUP, b"k").await.unwrap_err() else { panic!() };
        assert_eq!(
            (damage.file, damage.offset, damage.length),
            (FileKind::Data, at.offset(), 5000)
        );
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
        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        // The journal is needed, too, if there is no checkpoint at the end.
        let options = |mode| Options { last_checkpoint: Duration::ZERO, ..options(mode) };
        let engine =
            Engine::open(Arc::new(disk.clone()), None, options(Mode::Replicated)).await.unwrap();
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
            disk.kill(Fate::Kept);
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
                Err(Error::Corrupt(_) | Error::NotFormatted { .. } | Error::OtherFormat { .. }) => {
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

/// The story: a flush took 100 ms and more, and all that was written meanwhile was acknowledged: a power
/// cut could take more than the mode's promise says.
#[test]
fn while_a_sync_lasts_only_so_much_is_acknowledged_ahead_of_it() {
    run(async {
        let (disk, engine) = fresh(Mode::Replicated).await;
        engine.close().await.unwrap();
        drop(engine);
        let (sync_interval, sync_bytes) = (Duration::from_secs(3600), 4096);
        let patient = Options { sync_interval, sync_bytes, ..options(Mode::Replicated) };
        let engine = Engine::open(Arc::new(disk.clone()), None, patient).await.unwrap();
        let append_next = |index: &mut u64| {
            *index += 1;
            append(&engine, vec![entry(*index - 1, filled(300, *index))])
        };
        let mut index = 0;
        while !engine.status().unsynced_acks {
            append_next(&mut index).await.unwrap();
        }
        disk.hold(FileKind::Data);
        let most = UNSYNCED_PER_SYNC * sync_bytes;
        let mut step = 0;
        while engine.status().unsynced_bytes + step <= most {
            let before = engine.status().unsynced_bytes;
            append_next(&mut index).await.expect("it is acknowledged ahead of the sync");
            step = step.max(engine.status().unsynced_bytes.saturating_sub(before));
        }
        assert!(step > 0);
        let written = engine.status().written_sequence;
        let mut next = Box::pin(append_next(&mut index));
        let begun = futures::poll!(&mut next);
        assert!(begun.is_pending());
        until("it is written", || engine.status().written_sequence > written).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
            assert!(futures::poll!(&mut next).is_pending(), "it waits for the sync");
        }
        disk.release();
        next.await.unwrap();
    });
}

/// A value in memory is used for what the key has now, and while it is intact.
#[test]
fn a_value_that_was_read_is_read_again_without_the_disk_until_its_key_has_another() {
    run(async {
        let (disk, engine) = fresh(Mode::Sync).await;
        engine.close().await.unwrap();
        drop(engine);
        let options = Options { value_cache_bytes: 1 << 20, ..options(Mode::Sync) };
        let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
        engine.raise_format();
        for (index, key) in [(1, "read"), (2, "never read")] {
            put_one(&engine, index, key, filled(5000, index)).await.unwrap();
        }
        // The values are at their places then.
        engine.checkpoint().await.unwrap();
        let value =
            async |key: &str| engine.get(GROUP, key.as_bytes()).await.map(|found| found.unwrap().1);
        assert_eq!(value("read").await.unwrap(), filled(5000, 1));
        for key in ["read", "never read"] {
            let at = engine.lookup(GROUP, key.as_bytes()).unwrap().value;
            disk.damage(FileKind::Data, |bytes| bytes[place(&at, 4500)] ^= 4);
        }
        assert_eq!(value("read").await.unwrap(), filled(5000, 1));
        assert!(matches!(value("never read").await.unwrap_err(), Error::Corrupt(_)));
        let cached = engine.status().value_cache;
        assert!((5000..6000).contains(&cached.bytes), "{cached:?}");
        assert_eq!((cached.hits, cached.misses), (1, 2));
        put_one(&engine, 3, "read", filled(5000, 3)).await.unwrap();
        assert_eq!(value("read").await.unwrap(), filled(5000, 3));
    });
}
