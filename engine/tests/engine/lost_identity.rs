//! A directory whose identity cannot be read counts as a lost disk, and becomes an empty one of
//! another identity.

use crate::support::sixty::{
    GROUP, append, entry, filled, id, image, open, options, stopped, transition,
};
use crate::support::{Cache, Disk, Fate, Random, geometry, identity, run};
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{Engine, Error, Identity, MemberState};
use std::sync::Arc;

const COPY: usize = 4 * BLOCK;

fn other() -> Identity {
    Identity { incarnation: 88, ..identity() }
}

/// Flips a bit in each of these copies of the superblock.
fn flip(disk: &Disk, copies: &[usize]) {
    disk.damage(FileKind::Superblock, |bytes| {
        copies.iter().for_each(|copy| bytes[copy * COPY + 100] ^= 1)
    });
}

async fn is_lost(disk: &Disk) -> bool {
    matches!(open(disk, true).await, Err(error) if error.is_identity_lost())
}

/// The directory belongs to the other identity, is empty, and can be used.
async fn check_empty(disk: &Disk, what: &str) {
    let engine = open(disk, true).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(
        (engine.identity(), engine.member_state()),
        (&other(), MemberState::Active),
        "{what}"
    );
    let bounds = engine.log_bounds(GROUP);
    assert_eq!(
        (bounds.last, engine.applied(GROUP), engine.vote(GROUP)),
        (None, None, None),
        "{what}"
    );
    assert_eq!(engine.status().keys, 0, "{what}");
    for index in 0..3 {
        append(&engine, entry(index, 10)).await;
        engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
    }
    drop(engine);
    disk.kill(Fate::Kept);
    let engine = open(disk, true).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(
        (engine.identity(), engine.member_state()),
        (&other(), MemberState::Active),
        "{what}"
    );
    assert_eq!(engine.log_bounds(GROUP).last, Some(id(2)), "{what}");
}

#[test]
fn a_directory_whose_identity_is_lost_becomes_an_empty_one_of_another() {
    run(async {
        for lost in [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]] {
            let disk = stopped().await;
            flip(&disk, &lost);
            assert!(is_lost(&disk).await, "{lost:?}");
            Engine::format_again(&disk, &other()).await.unwrap();
            check_empty(&disk, &format!("{lost:?}")).await;
        }
    });
}

#[test]
fn an_erased_superblock_is_not_taken_for_an_unfinished_format() {
    run(async {
        let disk = stopped().await;
        disk.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        assert!(is_lost(&disk).await);
        Engine::format_again(&disk, &other()).await.unwrap();
        check_empty(&disk, "erased").await;

        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        disk.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        assert!(matches!(open(&disk, true).await, Err(Error::NotFormatted { .. })));
        let refused = Engine::format_again(&disk, &other()).await;
        assert!(matches!(refused, Err(Error::NotFormatted { .. })), "{refused:?}");
    });
}

/// A process that is killed leaves no copy of the superblock, one, or at least two. None of these is a
/// damaged directory, unless it was used.
#[test]
fn a_first_format_that_is_killed_anywhere_leaves_an_unformatted_directory_or_a_whole_one() {
    run(async {
        let (mut unformatted, mut finished) = (0, false);
        for cut in 1.. {
            let (disk, to) = (Disk::new(geometry()), other());
            {
                let mut core = disk.core.lock().unwrap();
                core.cut_at = Some(core.operations + cut);
            }
            finished |= tokio::select! {
                biased;
                () = disk.died.notified() => false,
                done = Engine::format(&disk, geometry(), &to) => done.map(|()| true).unwrap(),
            };
            disk.reboot(Cache::Volatile, Fate::Kept);
            match open(&disk, true).await {
                Err(Error::NotFormatted { .. }) => unformatted += 1,
                Err(error) => panic!("cut {cut}: {error}"),
                Ok(_) => check_empty(&disk, &format!("cut {cut}")).await,
            }
            if finished {
                break;
            }
        }
        assert!(unformatted > 5, "{unformatted}");
        // One copy, of a directory that was used: its others were erased.
        let disk = stopped().await;
        disk.damage(FileKind::Superblock, |bytes| bytes[COPY..].fill(0));
        assert!(is_lost(&disk).await);
    });
}

#[test]
fn an_identity_that_can_be_read_is_left_as_it_is() {
    run(async {
        let disk = stopped().await;
        flip(&disk, &[0, 3]);
        let before = disk.bytes(FileKind::Superblock);
        Engine::format_again(&disk, &other()).await.unwrap();
        assert_eq!(disk.bytes(FileKind::Superblock), before);
        assert_eq!(open(&disk, true).await.unwrap().identity(), &identity());
    });
}

#[test]
fn a_directory_of_another_cluster_or_slot_is_refused_by_its_last_copy_and_left_as_it_was() {
    run(async {
        let strangers =
            [Identity { slot: 2, ..other() }, Identity { cluster: "other".into(), ..other() }];
        for stranger in strangers {
            let disk = stopped().await;
            flip(&disk, &[0, 1, 2]);
            let files = || FileKind::ALL.map(|kind| disk.bytes(kind));
            let before = files();
            let expected = Some((stranger.cluster.clone(), stranger.slot));
            let opened = Engine::open(Arc::new(disk.clone()), expected, options(true)).await;
            assert!(matches!(opened, Err(Error::Foreign { .. })), "{stranger:?}");
            let refused = Engine::format_again(&disk, &stranger).await;
            assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
            assert!(files() == before);
        }
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

/// A second format in which the power goes at operation `cut`. Returns whether the format had
/// finished.
async fn cut_format(disk: &Disk, cut: u64) -> bool {
    {
        let mut core = disk.core.lock().unwrap();
        core.cut_at = Some(core.operations + cut);
    }
    let (mut random, to) = (Random(cut), other());
    let finished = tokio::select! {
        biased;
        () = disk.died.notified() => false,
        done = Engine::format_again(disk, &to) => done.map(|()| true).unwrap(),
    };
    disk.reboot(Cache::Volatile, random.fate());
    finished
}

#[test]
fn a_cut_at_any_operation_leaves_no_identity_or_the_other_one_empty() {
    run(async {
        let flipped = stopped().await;
        flip(&flipped, &[0, 2, 3]);
        let erased = stopped().await;
        erased.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        for (what, original) in [("flipped", files_of(&flipped)), ("erased", files_of(&erased))] {
            let (mut unformatted, mut formatted, mut finished) = (0, 0, false);
            for cut in 1.. {
                let disk = disk_of(&original);
                finished |= cut_format(&disk, cut).await;
                let what = format!("{what}, cut {cut}");
                if is_lost(&disk).await {
                    assert!(!finished, "{what}");
                    unformatted += 1;
                    // Cut the repeated format too.
                    for second in [3, 9] {
                        if cut_format(&disk, second).await || !is_lost(&disk).await {
                            break;
                        }
                    }
                    Engine::format_again(&disk, &other()).await.unwrap();
                } else {
                    formatted += 1;
                }
                check_empty(&disk, &what).await;
                if finished {
                    break;
                }
            }
            assert!(
                unformatted > 5 && formatted > 1,
                "{what}: {unformatted} without an identity, {formatted} with the other one"
            );
        }
    });
}

/// The story: a process was killed, its newest journal block decayed, and its superblock could not
/// be read for a while. The format of a replacement cleared the decayed block and was interrupted.
/// Then the superblock could be read again, and the old identity counted as active although its
/// last acknowledged entry was missing.
#[test]
fn an_identity_that_becomes_readable_again_is_void_or_still_recovering() {
    run(async {
        let (disk, engine) = filled().await;
        let newest = engine.status().written_sequence;
        drop(engine);
        disk.kill(Fate::Kept);
        let blocks = geometry().journal_bytes / BLOCK as u64;
        disk.damage(FileKind::Journal, |bytes| {
            bytes[(newest % blocks) as usize * BLOCK + 200] ^= 1
        });
        let original = files_of(&disk);
        let (mut gone, mut itself, mut finished) = (0, 0, false);
        for cut in 1.. {
            let disk = disk_of(&original);
            let copies = (0..4).map(|copy| (FileKind::Superblock, copy * 4));
            disk.wear_out(copies);
            assert!(is_lost(&disk).await);
            finished |= cut_format(&disk, cut).await;
            disk.unwear();
            match open(&disk, true).await {
                Err(error) => {
                    assert!(error.is_identity_lost(), "cut {cut}: {error}");
                    gone += 1;
                }
                Ok(engine) if engine.identity() == &identity() => {
                    assert_eq!(engine.member_state(), MemberState::Recovering, "cut {cut}");
                    itself += 1;
                }
                Ok(engine) => assert_eq!(engine.identity(), &other(), "cut {cut}"),
            }
            if finished {
                break;
            }
        }
        assert!(gone > 5 && itself > 1, "{gone} gone, {itself} as before");
    });
}
