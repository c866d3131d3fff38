//! Damage of stored data: what a node with peers keeps of a damaged directory, and values repaired
//! in place.

use crate::support::sixty::{
    GROUP, append, append_all, block_at, check_prefix, entry, filled, id, image, key,
    newest_and_middle, open, options, stopped, transition, value,
};
use crate::support::{Cache, Disk, Fate, Random, geometry, identity, place, run, stored};
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{
    Engine, Error, Extent, KernelBootId, MemberState, Mode, Options, Owner, ScrubProgress,
};
use std::sync::Arc;

/// The engine continues from what was kept, and the next restart loses nothing of it.
async fn check_continues(disk: &Disk, engine: Engine, next: u64, what: &str) {
    engine.begin(false).await.unwrap();
    for index in next..next + 3 {
        append(&engine, entry(index, 10)).await;
        engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
    }
    engine.close().await.unwrap();
    drop(engine);
    disk.kill(Fate::Kept);
    let engine = open(disk, false).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(
        engine.member_state(),
        MemberState::Recovering,
        "{what}: a restart does not end the recovery"
    );
    assert_eq!(engine.log_bounds(GROUP).last, Some(id(next + 2)), "{what}");
}

#[test]
fn a_directory_with_bits_flipped_anywhere_but_in_the_superblock_opens_with_a_prefix_or_all() {
    run(async {
        let disk = stopped().await;
        let clean: Vec<(FileKind, Vec<u8>)> =
            FileKind::ALL.into_iter().map(|k| (k, disk.bytes(k))).collect();
        let mut random = Random(11);
        let (mut complete, mut shortened) = (0, 0);
        for round in 0..150 {
            disk.kill(Fate::Kept);
            for (kind, bytes) in &clean {
                disk.damage(*kind, |b| b.copy_from_slice(bytes));
            }
            // Several files at once, mostly in used bytes.
            for _ in 0..1 + random.below(4) {
                let (kind, bytes) = &clean[random.below(4) as usize];
                let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
                for _ in 0..1 + random.below(3) {
                    let at = used[random.below(used.len() as u64) as usize];
                    let bit = random.below(8);
                    disk.damage(*kind, |b| b[at] ^= 1 << bit);
                }
            }
            let what = format!("round {round}");
            let engine = open(&disk, true).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(engine.vote(GROUP).as_deref(), Some(&b"the vote"[..]), "{what}");
            let next = check_prefix(&engine, &what).await;
            match engine.member_state() {
                MemberState::Active => {
                    complete += 1;
                    assert_eq!(next, 60, "{what}: a silently short log");
                }
                MemberState::Recovering => {
                    shortened += 1;
                    check_continues(&disk, engine, next, &what).await;
                }
            }
        }
        assert!(complete > 20 && shortened > 20, "{complete} complete, {shortened} shortened");
    });
}

/// A checkpoint, or an earlier open, recorded a journal block, and the journal was replaced by an
/// empty or foreign one. With nothing behind it, that journal would pass for a torn tail.
#[test]
fn a_replaced_journal_is_damage_however_the_machine_stopped() {
    run(async {
        for checkpointed in [true, false] {
            for (rebooted, fill) in [(false, 0_u8), (true, 0), (true, 0xa5)] {
                let what = format!(
                    "checkpointed: {checkpointed}, power cut: {rebooted}, filled with {fill}"
                );
                let (disk, engine) = filled_after(checkpointed).await;
                drop(engine);
                disk.kill(Fate::Kept);
                disk.damage(FileKind::Journal, |bytes| bytes.fill(fill));
                let boot = KernelBootId(if rebooted { 2 } else { 1 });
                let mode = Mode::Sync;
                let open = async |salvage| {
                    let options = Options { boot, mode, ..options(salvage) };
                    Engine::open(Arc::new(disk.clone()), None, options).await
                };
                assert!(
                    matches!(open(false).await, Err(Error::Corrupt(_))),
                    "{what}: it has no peers"
                );
                let engine = open(true).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(engine.member_state(), MemberState::Recovering, "{what}");
            }
        }
    });
}

/// Entries 0 to 9 in mode `sync`. A checkpoint covers all but the last, or there is none.
async fn filled_after(checkpointed: bool) -> (Disk, Engine) {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let options = Options { mode: Mode::Sync, ..options(false) };
    let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
    for index in 0..10 {
        append(&engine, entry(index, 10)).await;
        engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
        if index == 8 && checkpointed {
            engine.checkpoint().await.unwrap();
        }
    }
    (disk, engine)
}

#[test]
fn without_any_checkpoint_everything_but_identity_and_vote_is_dropped() {
    run(async {
        let disk = stopped().await;
        for kind in [FileKind::Checkpoint0, FileKind::Checkpoint1] {
            disk.damage(kind, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x55));
        }
        assert!(matches!(open(&disk, false).await, Err(Error::Corrupt(_))), "it has no peers");
        let engine = open(&disk, true).await.unwrap();
        assert_eq!(engine.member_state(), MemberState::Recovering);
        assert_eq!(engine.log_bounds(GROUP).last, None);
        assert_eq!(engine.applied(GROUP), None);
        assert!(engine.view(GROUP).is_empty());
        assert_eq!(engine.vote(GROUP).as_deref(), Some(&b"the vote"[..]));
        check_continues(&disk, engine, 0, "empty").await;
    });
}

#[test]
fn a_cut_at_any_operation_of_a_salvage_leaves_a_directory_that_is_still_recovering() {
    run(async {
        let mut cuts = 0;
        for cut in 1..200 {
            let disk = stopped().await;
            let (_, middle) = newest_and_middle(&disk).await;
            disk.damage(FileKind::Journal, |bytes| bytes[block_at(middle) + 200] ^= 1);
            {
                let mut core = disk.core.lock().unwrap();
                core.cut_at = Some(core.operations + cut);
            }
            let mut random = Random(cut);
            let opened = tokio::select! {
                biased;
                () = disk.died.notified() => None,
                opened = async {
                    let engine = open(&disk, true).await.unwrap();
                    engine.begin(false).await.unwrap();
                    engine
                } => Some(opened),
            };
            let ended = opened.is_some();
            drop(opened);
            disk.reboot(Cache::Volatile, random.fate());
            let engine =
                open(&disk, true).await.unwrap_or_else(|error| panic!("cut {cut}: {error}"));
            assert_eq!(engine.member_state(), MemberState::Recovering, "cut {cut}");
            check_prefix(&engine, &format!("cut {cut}")).await;
            if ended {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 20, "{cuts}");
    });
}

#[test]
fn damaged_superblock_copies_are_rewritten_at_open_whichever_two_are_left() {
    run(async {
        let disk = stopped().await;
        let clean = disk.bytes(FileKind::Superblock);
        for lost in [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]] {
            for cut in 1..8 {
                disk.kill(Fate::Kept);
                disk.damage(FileKind::Superblock, |bytes| {
                    bytes.copy_from_slice(&clean);
                    lost.iter().for_each(|copy| bytes[copy * 4 * BLOCK + 100] ^= 1);
                });
                {
                    let mut core = disk.core.lock().unwrap();
                    core.cut_at = Some(core.operations + cut);
                }
                let mut random = Random(cut);
                tokio::select! {
                    biased;
                    () = disk.died.notified() => {}
                    opened = open(&disk, false) => drop(opened.unwrap()),
                }
                disk.reboot(Cache::Volatile, random.fate());
                let engine = open(&disk, false)
                    .await
                    .unwrap_or_else(|e| panic!("lost {lost:?}, cut {cut}: {e}"));
                let bytes = disk.bytes(FileKind::Superblock);
                let copies: Vec<&[u8]> =
                    bytes.chunks(4 * BLOCK).map(|copy| &copy[..BLOCK]).collect();
                assert!(copies.iter().all(|copy| *copy == copies[0]), "lost {lost:?}, cut {cut}");
                drop(engine);
            }
        }
    });
}

async fn extents(engine: &Engine) -> Vec<Extent> {
    engine.extents(GROUP, 0..u64::MAX).await
}

#[test]
fn every_live_extent_is_listed_once_in_order_with_its_owner() {
    run(async {
        let (_, engine) = filled().await;
        let all = extents(&engine).await;
        assert!(all.is_sorted_by(|a, b| a.at.offset() < b.at.offset()));
        let count =
            |wanted: fn(&Owner) -> bool| all.iter().filter(|extent| wanted(&extent.owner)).count();
        assert_eq!(count(|owner| matches!(owner, Owner::Key(_))), 20);
        assert_eq!(count(|owner| matches!(owner, Owner::Entry)), 40);
        assert_eq!(count(|owner| matches!(owner, Owner::Body)), 12);
        let middle = all[30].at.offset();
        let (before, after) =
            (engine.extents(GROUP, 0..middle).await, engine.extents(GROUP, middle..u64::MAX).await);
        assert_eq!([before, after].concat(), all);
    });
}

/// The story: the newest checkpoint was damaged, and the log had been purged up to what it covered.
/// The older checkpoint and the journal gave a log that began behind the applied position of that
/// checkpoint, and the node refused to start for good.
#[test]
fn entries_that_the_older_checkpoint_has_not_applied_are_in_the_log_though_purged() {
    run(async {
        let (disk, engine) = filled().await;
        engine.purge(GROUP, id(35)).await.unwrap();
        engine.checkpoint().await.unwrap();
        engine.purge(GROUP, id(55)).await.unwrap();
        engine.close().await.unwrap();
        drop(engine);
        let clean: Vec<(FileKind, Vec<u8>)> =
            FileKind::ALL.into_iter().map(|k| (k, disk.bytes(k))).collect();
        let newest = [FileKind::Checkpoint0, FileKind::Checkpoint1];
        let mut kept = 0;
        for damaged in newest {
            disk.kill(Fate::Kept);
            for (kind, bytes) in &clean {
                disk.damage(*kind, |b| b.copy_from_slice(bytes));
            }
            disk.damage(damaged, |bytes| bytes[2 * BLOCK + 10] ^= 1);
            let engine = open(&disk, false).await.unwrap();
            assert_eq!(engine.member_state(), MemberState::Active);
            let (bounds, applied) = (engine.log_bounds(GROUP), engine.applied(GROUP).unwrap());
            assert!(
                bounds.purged.is_none_or(|purged| purged <= applied),
                "{bounds:?}, applied {applied}"
            );
            assert_eq!(bounds.last, Some(id(59)));
            let entries = engine.read_metas(GROUP, applied.index + 1..60, 100);
            assert_eq!(entries.len() as u64, 59 - applied.index);
            for index in applied.index + 1..60 {
                engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
            }
            for index in 40..60 {
                assert_eq!(engine.get(GROUP, &key(index)).await.unwrap().unwrap().1, value(index));
            }
            if let Some(due) = engine.purge_due(GROUP) {
                kept += 1;
                assert_eq!(due, id(55));
                engine.checkpoint().await.unwrap();
                engine.purge(GROUP, due).await.unwrap();
            }
            assert_eq!(
                (engine.purge_due(GROUP), engine.log_bounds(GROUP).purged),
                (None, Some(id(55)))
            );
        }
        assert_eq!(kept, 1, "one of the two was the older one");
    });
}

#[test]
fn entries_that_claim_the_same_bytes_are_damage() {
    run(async {
        let (disk, engine) = filled().await;
        // Together too large to be carried in the journal, where the values would show the damage.
        append_all(&engine, (60..63).map(|index| entry(index, 10)).collect()).await;
        let (one, other) = (
            engine.values_of(GROUP, 61).unwrap().remove(0),
            engine.values_of(GROUP, 62).unwrap().remove(0),
        );
        drop(engine);
        disk.kill(Fate::Kept);
        // Hash and tail: both values are as long, and so are the offsets.
        let varint =
            |n: u64| [(n & 0x7f) as u8 | 0x80, (n >> 7 & 0x7f) as u8 | 0x80, (n >> 14) as u8];
        let bytes = |at: &cairn_engine::ValueRef| {
            assert!(at.len == one.len && (1 << 14..1 << 21).contains(&at.offset()), "{at:?}");
            [&at.hash.to_le_bytes()[..], &varint(at.offset())].concat()
        };
        disk.damage(FileKind::Journal, |journal| {
            let block = journal
                .chunks_mut(BLOCK)
                .find(|block| block.windows(19).any(|at| at == bytes(&other)));
            let block = block.unwrap();
            let at = block.windows(19).position(|at| at == bytes(&other)).unwrap();
            block[at..at + 19].copy_from_slice(&bytes(&one));
            block[8..24].fill(0);
            let checksum = xxhash_rust::xxh3::xxh3_128(block);
            block[8..24].copy_from_slice(&checksum.to_le_bytes());
        });
        let Err(Error::Corrupt(damage)) = open(&disk, false).await else {
            panic!("it has no peers")
        };
        assert_eq!(damage.log_ids, [id(61), id(62)], "{damage}");
        let engine = open(&disk, true).await.unwrap();
        assert_eq!(engine.member_state(), MemberState::Recovering);
        assert_eq!(engine.log_bounds(GROUP).last, None, "it is unknown which of the two is right");
        check_continues(&disk, engine, 0, "empty").await;
    });
}

/// Damages and repairs every extent in turn.
#[test]
fn a_damaged_extent_is_repaired_in_place_and_its_neighbours_stay_as_they_were() {
    run(async {
        let (disk, engine) = filled().await;
        // All values are at their places then.
        engine.checkpoint().await.unwrap();
        let clean = disk.bytes(FileKind::Data);
        for extent in extents(&engine).await {
            let right = stored(&clean, &extent.at);
            disk.damage(FileKind::Data, |bytes| bytes[place(&extent.at, 7)] ^= 1);
            assert!(matches!(engine.read_extent(GROUP, &extent).await, Err(Error::Corrupt(_))));
            assert!(matches!(
                engine.repair(GROUP, &extent, &vec![0; right.len()]).await,
                Err(Error::Invalid(_))
            ));
            if extent.owner == Owner::Body {
                assert_eq!(engine.body_of(GROUP, extent.log_id).as_deref(), Some(&right[..]));
            }
            assert!(engine.repair(GROUP, &extent, &right).await.unwrap());
            assert_eq!(
                engine.read_extent(GROUP, &extent).await.unwrap().as_deref(),
                Some(&right[..])
            );
            assert!(disk.bytes(FileKind::Data) == clean, "{extent:?}");
        }
        assert_eq!(engine.status().repaired_values, 72);
    });
}

#[test]
fn an_extent_without_a_reference_is_not_repaired() {
    run(async {
        let (disk, engine) = filled().await;
        // All values are at their places then: nothing else writes to the data area.
        engine.checkpoint().await.unwrap();
        let old = extents(&engine).await.into_iter().find(|extent| extent.log_id == id(3)).unwrap();
        engine.purge(GROUP, id(10)).await.unwrap();
        disk.damage(FileKind::Data, |bytes| bytes[old.at.offset() as usize] ^= 1);
        let before = disk.bytes(FileKind::Data);
        assert!(!engine.repair(GROUP, &old, &value(3)).await.unwrap());
        assert_eq!(engine.read_extent(GROUP, &old).await.unwrap(), None);
        assert!(disk.bytes(FileKind::Data) == before);
    });
}

#[test]
fn damage_in_journal_checkpoints_and_superblock_is_found_and_gone_after_two_checkpoints() {
    run(async {
        let (disk, engine) = filled().await;
        let pace = |_| -> cairn_engine::io::IoFuture<()> { Box::pin(std::future::ready(())) };
        engine.checkpoint().await.unwrap();
        engine.checkpoint().await.unwrap();
        append(&engine, entry(60, 10)).await;
        append(&engine, entry(61, 10)).await;
        engine.sync().await.unwrap();
        let clean = (engine.check_journal(&pace).await, engine.check_checkpoints(&pace).await);
        assert!(clean.0.blocks >= 2 && clean.0.damaged.is_empty(), "{clean:?}");
        assert!(clean.1.blocks >= 6 && clean.1.damaged.is_empty(), "{clean:?}");
        let last =
            engine.status().written_sequence as usize % (geometry().journal_bytes as usize / BLOCK);
        disk.damage(FileKind::Journal, |bytes| bytes[last * BLOCK + 130] ^= 1);
        for kind in [FileKind::Checkpoint0, FileKind::Checkpoint1] {
            disk.damage(kind, |bytes| bytes[2 * BLOCK + 10] ^= 1);
        }
        disk.damage(FileKind::Superblock, |bytes| bytes[4 * BLOCK + 50] ^= 1);
        let journal = engine.check_journal(&pace).await.damaged;
        assert_eq!(
            journal.iter().map(|d| (d.file, d.offset)).collect::<Vec<_>>(),
            [(FileKind::Journal, (last * BLOCK) as u64)]
        );
        let checkpoints = engine.check_checkpoints(&pace).await.damaged;
        let files: Vec<FileKind> = checkpoints.iter().map(|d| d.file).collect();
        assert_eq!(files, [FileKind::Checkpoint0, FileKind::Checkpoint1]);
        assert_eq!(engine.check_superblock().await.unwrap(), 1);
        engine.checkpoint().await.unwrap();
        engine.checkpoint().await.unwrap();
        assert!(engine.check_journal(&pace).await.damaged.is_empty());
        assert!(engine.check_checkpoints(&pace).await.damaged.is_empty());
        assert_eq!(engine.check_superblock().await.unwrap(), 0);
        let progress = ScrubProgress { position: 4096, elapsed_s: 3, paused: true };
        engine.save_scrub_progress(progress).await.unwrap();
        drop(engine);
        disk.kill(Fate::Kept);
        let engine = open(&disk, false).await.unwrap();
        assert_eq!(engine.scrub_progress().await, progress);
        assert_eq!(engine.log_bounds(GROUP).last, Some(id(61)));
    });
}
