//! A directory whose identity cannot be read: what another identity inherits of it, and what it may not.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

mod support;

use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{Engine, Error, Identity, Standing};
use std::sync::Arc;
use support::sixty::{
    GROUP, append, check_prefix, entry, filled, id, image, open, options, stopped, transition,
};
use support::{Cache, Disk, Random, geometry, identity, run};

const COPY: usize = 4 * BLOCK;

fn reborn() -> Identity {
    Identity { incarnation: 88, ..identity() }
}

/// Flips a bit in each of these copies of the superblock.
fn flip(disk: &Disk, copies: &[usize]) {
    disk.damage(FileKind::Superblock, |bytes| copies.iter().for_each(|copy| bytes[copy * COPY + 100] ^= 1));
}

async fn is_lost(disk: &Disk) -> bool {
    matches!(open(disk, true).await, Err(error) if error.is_identity_lost())
}

/// The new identity has so many entries, remembers all that it promised, which is nothing, and goes on from there.
async fn check_reborn(disk: &Disk, what: &str) -> u64 {
    let engine = open(disk, true).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((engine.identity(), engine.standing()), (&reborn(), Standing::Active), "{what}");
    let next = check_prefix(&engine, what).await;
    for index in next..next + 3 {
        append(&engine, entry(index, 10)).await;
        engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
    }
    drop(engine);
    disk.kill(|| 0);
    let engine = open(disk, true).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((engine.identity(), engine.standing()), (&reborn(), Standing::Active), "{what}");
    assert_eq!(engine.log_bounds(GROUP).last, Some(id(next + 2)), "{what}");
    next
}

#[test]
fn everything_that_an_unreadable_identity_wrote_is_inherited_with_its_vote() {
    run(async {
        for lost in [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]] {
            let disk = stopped().await;
            flip(&disk, &lost);
            assert!(is_lost(&disk).await, "{lost:?}");
            Engine::rebirth(&disk, &reborn(), identity().incarnation).await.unwrap();
            let engine = open(&disk, true).await.unwrap();
            assert_eq!(engine.vote(GROUP).as_deref(), Some(b"the vote".as_slice()), "{lost:?}");
            drop(engine);
            disk.kill(|| 0);
            assert_eq!(check_reborn(&disk, &format!("{lost:?}")).await, 60);
        }
    });
}

#[test]
fn an_erased_superblock_is_told_from_a_format_that_did_not_end() {
    run(async {
        let disk = stopped().await;
        disk.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        assert!(is_lost(&disk).await);
        Engine::rebirth(&disk, &reborn(), identity().incarnation).await.unwrap();
        assert_eq!(check_reborn(&disk, "erased").await, 60);

        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        disk.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        assert!(matches!(open(&disk, true).await, Err(Error::NotFormatted { .. })));
        let refused = Engine::rebirth(&disk, &reborn(), identity().incarnation).await;
        assert!(matches!(refused, Err(Error::NotFormatted { .. })), "{refused:?}");
    });
}

#[test]
fn an_identity_that_can_be_read_is_left_as_it_is() {
    run(async {
        let disk = stopped().await;
        flip(&disk, &[0, 3]);
        let before = disk.bytes(FileKind::Superblock);
        Engine::rebirth(&disk, &reborn(), identity().incarnation).await.unwrap();
        assert_eq!(disk.bytes(FileKind::Superblock), before);
        assert_eq!(open(&disk, true).await.unwrap().identity(), &identity());
    });
}

#[test]
fn a_directory_of_another_cluster_or_slot_is_refused_by_its_last_copy_and_left_as_it_was() {
    run(async {
        let others = [Identity { slot: 2, ..reborn() }, Identity { cluster: "other".into(), ..reborn() }];
        for other in others {
            let disk = stopped().await;
            flip(&disk, &[0, 1, 2]);
            let files = || FileKind::ALL.map(|kind| disk.bytes(kind));
            let before = files();
            let expected = Some((other.cluster.clone(), other.slot));
            let opened = Engine::open(Arc::new(disk.clone()), expected, options(true)).await;
            assert!(matches!(opened, Err(Error::Foreign { .. })), "{other:?}");
            let refused = Engine::rebirth(&disk, &other, identity().incarnation).await;
            assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
            assert!(files() == before);
        }
    });
}

#[test]
fn what_somebody_else_wrote_is_neither_inherited_nor_overwritten() {
    run(async {
        let disk = stopped().await;
        flip(&disk, &[0, 1, 2, 3]);
        let files = || FileKind::ALL.map(|kind| disk.bytes(kind));
        let before = files();
        let refused = Engine::rebirth(&disk, &reborn(), 99).await;
        assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
        assert!(files() == before);
        // With nothing left that names a writer there is nobody's data to spare.
        for kind in [FileKind::Journal, FileKind::Checkpoint0, FileKind::Checkpoint1] {
            disk.damage(kind, |bytes| bytes.chunks_mut(BLOCK).for_each(|block| block[90] ^= 1));
        }
        Engine::rebirth(&disk, &reborn(), 99).await.unwrap();
        assert_eq!(check_reborn(&disk, "nobody's").await, 0);
    });
}

#[test]
fn what_is_damaged_beside_the_superblock_is_not_inherited() {
    run(async {
        let mut random = Random(5);
        let (mut less, mut most) = (0, 0);
        for round in 0..60 {
            let disk = stopped().await;
            flip(&disk, &[0, 1, 2, 3]);
            for kind in [FileKind::Journal, FileKind::Checkpoint0, FileKind::Checkpoint1, FileKind::Data] {
                disk.damage(kind, |bytes| {
                    for _ in 0..random.next() % 4 {
                        let at = random.next() as usize % (bytes.len() / 8);
                        bytes[at] ^= 1 << (random.next() % 8);
                    }
                });
            }
            Engine::rebirth(&disk, &reborn(), identity().incarnation).await.unwrap();
            let next = check_reborn(&disk, &format!("round {round}")).await;
            less += u32::from(next < 60);
            most += u32::from(next == 60);
        }
        assert!(less > 5 && most > 5, "{less} with less, {most} with everything");
    });
}

type Files = Vec<(FileKind, Vec<u8>)>;

fn files_of(disk: &Disk) -> Files {
    FileKind::ALL.into_iter().map(|kind| (kind, disk.bytes(kind))).collect()
}

fn disk_of(files: &Files) -> Disk {
    let disk = Disk::new(geometry());
    files.iter().for_each(|(kind, bytes)| disk.damage(*kind, |now| now.copy_from_slice(bytes)));
    disk
}

/// A rebirth in which the power goes at its operation `cut`. Whether it was over by then.
async fn cut_rebirth(disk: &Disk, cut: u64, as_whom: &Identity) -> bool {
    {
        let mut core = disk.core.lock().unwrap();
        core.cut_at = Some(core.operations + cut);
    }
    let mut random = Random(cut);
    let finished = tokio::select! {
        biased;
        () = disk.died.notified() => false,
        done = Engine::rebirth(disk, as_whom, identity().incarnation) => done.map(|()| true).unwrap(),
    };
    disk.reboot(Cache::Volatile, || random.next());
    finished
}

#[test]
fn a_cut_at_any_operation_of_a_rebirth_leaves_no_identity_or_the_whole_new_one() {
    run(async {
        let flipped = stopped().await;
        flip(&flipped, &[0, 2, 3]);
        let erased = stopped().await;
        erased.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        for (what, original) in [("flipped", files_of(&flipped)), ("erased", files_of(&erased))] {
            let (mut again, mut whole, mut finished) = (0, 0, false);
            for cut in 1.. {
                let disk = disk_of(&original);
                finished |= cut_rebirth(&disk, cut, &reborn()).await;
                if is_lost(&disk).await {
                    assert!(!finished, "{what}, cut {cut}");
                    again += 1;
                    // It goes on for the same heir, whoever is named now, from a checkpoint at least.
                    let other = Identity { incarnation: 1000 + cut, ..identity() };
                    Engine::rebirth(&disk, &other, identity().incarnation).await.unwrap();
                    let engine = open(&disk, true).await.unwrap();
                    let incarnation = engine.identity().incarnation;
                    assert!(
                        incarnation == 1000 + cut || incarnation == reborn().incarnation,
                        "{what}, cut {cut}"
                    );
                    assert!(check_prefix(&engine, what).await > 40, "{what}, cut {cut}");
                } else {
                    whole += 1;
                    assert_eq!(check_reborn(&disk, &format!("{what}, cut {cut}")).await, 60);
                }
                if finished {
                    break;
                }
            }
            assert!(again > 10 && whole > 1, "{what}: {again} without an identity, {whole} with the new one");
        }
    });
}

#[test]
fn two_cuts_in_a_row_leave_no_identity_or_the_whole_new_one() {
    run(async {
        let disk = stopped().await;
        disk.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        let original = files_of(&disk);
        for first in 1..40 {
            for second in (1 + first % 3..40).step_by(3) {
                let disk = disk_of(&original);
                for cut in [first, second] {
                    if !cut_rebirth(&disk, cut, &reborn()).await && !is_lost(&disk).await {
                        break;
                    }
                }
                if is_lost(&disk).await {
                    Engine::rebirth(&disk, &reborn(), identity().incarnation).await.unwrap();
                }
                let engine = open(&disk, true).await.unwrap();
                assert_eq!(engine.identity(), &reborn(), "{first}, {second}");
                assert!(check_prefix(&engine, "two cuts").await > 40, "{first}, {second}");
            }
        }
    });
}

/// The story: a process was killed, its newest journal block rotted, and its superblock could not be read for a while. A
/// rebirth cleared the rotten block and was interrupted. Then the superblock could be read again, and the old identity took itself
/// for whole, without what it had acknowledged last.
#[test]
fn an_identity_that_can_be_read_again_is_given_up_or_still_knows_what_it_lacks() {
    run(async {
        let (disk, engine) = filled().await;
        let newest = engine.status().written_sequence;
        drop(engine);
        disk.kill(|| 0);
        let blocks = geometry().journal_bytes / BLOCK as u64;
        disk.damage(FileKind::Journal, |bytes| bytes[(newest % blocks) as usize * BLOCK + 200] ^= 1);
        let original = files_of(&disk);
        let (mut given_up, mut itself, mut finished) = (0, 0, false);
        for cut in 1.. {
            let disk = disk_of(&original);
            let copies = (0..4).map(|copy| (FileKind::Superblock, copy * 4));
            disk.core.lock().unwrap().worn.extend(copies);
            assert!(is_lost(&disk).await);
            finished |= cut_rebirth(&disk, cut, &reborn()).await;
            disk.core.lock().unwrap().worn.clear();
            match open(&disk, true).await {
                Err(error) => {
                    assert!(error.is_identity_lost(), "cut {cut}: {error}");
                    given_up += 1;
                }
                Ok(engine) if engine.identity() == &identity() => {
                    assert_eq!(engine.standing(), Standing::Recovering, "cut {cut}");
                    itself += 1;
                }
                Ok(engine) => assert_eq!(engine.identity(), &reborn(), "cut {cut}"),
            }
            if finished {
                break;
            }
        }
        assert!(given_up > 10 && itself > 1, "{given_up} given up, {itself} as before");
    });
}
