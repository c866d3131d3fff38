//! Damaged directories before it is decided that they may be overwritten.

use crate::support::sixty::{
    GROUP, append, block_at, check_prefix, entry, filled, filled_ahead_of_syncs, id, image, key,
    newest_and_middle, open, options, stopped, transition,
};
use crate::support::{Cache, Disk, Fate, Random, geometry, identity, run, until};
use cairn_engine::io::{BLOCK, Device, Directory, FileKind, IoFuture};
use cairn_engine::{Engine, Error, KernelBootId, MemberState, Mode, Options, SnapshotKey};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// What an open may not change before its begin.
const KEPT: [FileKind; 4] =
    [FileKind::Journal, FileKind::Checkpoint0, FileKind::Checkpoint1, FileKind::Data];

#[derive(Clone, Copy, Debug)]
enum Harm {
    /// A block of the journal behind the newest checkpoint.
    Journal,
    /// The body of each checkpoint.
    Checkpoints,
    /// A block of the journal, and one of the headers of the older checkpoint.
    JournalAndHeader,
    /// Two blocks of the journal.
    Blocks,
}

const HARMS: [Harm; 4] = [Harm::Journal, Harm::Checkpoints, Harm::JournalAndHeader, Harm::Blocks];

/// The bytes that this harm damages.
async fn places(disk: &Disk, harm: Harm) -> Vec<(FileKind, usize)> {
    let (newest, middle) = newest_and_middle(disk).await;
    let areas = [FileKind::Checkpoint0, FileKind::Checkpoint1];
    let block = |sequence: u64| (FileKind::Journal, block_at(sequence) + 200);
    match harm {
        Harm::Journal => vec![block(middle)],
        Harm::Checkpoints => areas.map(|area| (area, 2 * BLOCK + 10)).to_vec(),
        Harm::JournalAndHeader => vec![block(middle), (other(newest), 30)],
        Harm::Blocks => vec![block(middle), block(middle + 1)],
    }
}

async fn damaged(harm: Harm) -> Disk {
    let disk = stopped().await;
    for (kind, at) in places(&disk, harm).await {
        disk.damage(kind, |bytes| bytes[at] ^= 1);
    }
    disk
}

async fn survey(disk: &Disk, salvage: bool) -> Engine {
    Engine::survey(Arc::new(disk.clone()), None, options(salvage)).await.unwrap()
}

/// Applies the log again, as a replica does at its start.
fn apply_again(engine: &Engine) {
    let applied = engine.applied(GROUP).map_or(0, |applied| applied.index + 1);
    let before = engine.applied_before_restart(GROUP).map_or(0, |before| before.index + 1);
    for index in applied..before {
        engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
    }
}

/// The story: each start with damage kept what verifies and overwrote the rest at once. So did the dry
/// run of a command with which an operator wanted to see what was there.
#[test]
fn a_damaged_directory_stays_as_it_is_whatever_its_member_does_before_the_begin() {
    run(async {
        for what in HARMS {
            let disk = damaged(what).await;
            let before = KEPT.map(|kind| disk.bytes(kind));
            let engine = open(&disk, true).await.unwrap();
            assert!(engine.damage().is_some(), "{what:?}");
            assert_eq!(engine.member_state(), MemberState::Recovering, "{what:?}");
            apply_again(&engine);
            check_prefix(&engine, &format!("{what:?}")).await;
            engine.save_vote(GROUP, b"a later vote").await.unwrap();
            engine.barrier().await.unwrap();
            engine.sync().await.unwrap();
            engine.begin_checkpoint().unwrap();
            assert!(engine.begin_install(GROUP).await.is_err());
            assert!(engine.purge_due(GROUP).is_none());
            assert!(engine.truncate_after(GROUP, Some(59)).await.is_err());
            assert!(engine.set_active().await.is_err());
            engine.close().await.unwrap();
            assert!(engine.begin(false).await.is_err(), "it is closed");
            drop(engine);
            assert!(KEPT.map(|kind| disk.bytes(kind)) == before, "{what:?}");
            disk.kill(Fate::Kept);
            let engine = open(&disk, true).await.unwrap();
            assert_eq!(engine.vote(GROUP).as_deref(), Some(&b"a later vote"[..]), "{what:?}");
        }
    });
}

#[test]
fn a_survey_changes_not_one_byte_of_a_directory_damaged_or_not() {
    run(async {
        for what in [None].into_iter().chain(HARMS.map(Some)) {
            let disk = match what {
                Some(harm) => damaged(harm).await,
                None => stopped().await,
            };
            let before = FileKind::ALL.map(|kind| disk.bytes(kind));
            let engine = survey(&disk, true).await;
            assert_eq!(engine.damage().is_some(), what.is_some(), "{what:?}");
            apply_again(&engine);
            check_prefix(&engine, &format!("{what:?}")).await;
            engine.close().await.unwrap();
            engine.close().await.unwrap();
            drop(engine);
            assert!(FileKind::ALL.map(|kind| disk.bytes(kind)) == before, "{what:?}");
        }
        // Nor one whose process was killed: the open would cut its tail and put values at their places.
        let (disk, engine) = filled().await;
        append(&engine, entry(60, 10)).await;
        drop(engine);
        disk.kill(Fate::Kept);
        let before = FileKind::ALL.map(|kind| disk.bytes(kind));
        let engine = survey(&disk, false).await;
        assert_eq!(engine.log_bounds(GROUP).last, Some(id(60)));
        drop(engine);
        assert!(FileKind::ALL.map(|kind| disk.bytes(kind)) == before);
    });
}

/// The story: a block of the journal could not be read at one start only, and 39 entries became 23.
/// Both checkpoints could not be read, and nothing was left.
#[test]
fn blocks_that_cannot_be_read_for_a_while_cost_nothing() {
    run(async {
        for what in HARMS {
            let disk = stopped().await;
            let places = places(&disk, what).await;
            let blocks = places.iter().map(|(kind, at)| (*kind, (at / BLOCK) as u64));
            disk.wear_out(blocks);
            for _ in 0..2 {
                let engine = open(&disk, true).await.unwrap();
                assert_eq!(engine.member_state(), MemberState::Recovering, "{what:?}");
                check_prefix(&engine, &format!("{what:?}")).await;
                assert!(!engine.reads_whole().await, "{what:?}");
                drop(engine);
                disk.kill(Fate::Kept);
            }
            let engine = open(&disk, true).await.unwrap();
            disk.unwear();
            assert!(engine.reads_whole().await, "{what:?}");
            drop(engine);
            disk.kill(Fate::Kept);
            let engine = open(&disk, true).await.unwrap();
            assert_eq!((engine.damage(), engine.member_state()), (None, MemberState::Active));
            assert_eq!(check_prefix(&engine, &format!("{what:?}")).await, 60);
        }
    });
}

/// What an open concludes from the way in which the last process ended, it concludes again after one
/// that found damage and did not begin.
#[test]
fn a_power_cut_before_a_damaged_open_is_not_forgotten_by_it() {
    run(async {
        let (disk, engine) = filled_ahead_of_syncs().await;
        drop(engine);
        disk.kill(Fate::Kept);
        let after_a_cut = || Options { boot: KernelBootId(2), ..options(true) };
        let open = async || Engine::open(Arc::new(disk.clone()), None, after_a_cut()).await;
        let areas = [FileKind::Checkpoint0, FileKind::Checkpoint1].map(|kind| (kind, 2));
        disk.wear_out(areas);
        drop(open().await.unwrap());
        disk.kill(Fate::Kept);
        disk.unwear();
        let engine = open().await.unwrap();
        assert_eq!((engine.damage(), engine.member_state()), (None, MemberState::Recovering));
    });
}

/// Reads, votes and the log that verifies are there before the begin, and the begin keeps them.
#[test]
fn what_was_applied_before_the_begin_is_there_after_it_and_after_a_restart() {
    run(async {
        for what in HARMS {
            let disk = damaged(what).await;
            let engine = open(&disk, true).await.unwrap();
            apply_again(&engine);
            let next = check_prefix(&engine, &format!("{what:?}")).await;
            engine.begin(false).await.unwrap();
            engine.begin(false).await.unwrap();
            assert_eq!(engine.damage(), None);
            for index in next..next + 3 {
                append(&engine, entry(index, 10)).await;
                engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
            }
            engine.checkpoint().await.unwrap();
            engine.set_active().await.unwrap();
            engine.close().await.unwrap();
            drop(engine);
            disk.kill(Fate::Kept);
            let engine = open(&disk, false).await.unwrap();
            assert_eq!(engine.member_state(), MemberState::Active);
            assert_eq!(engine.log_bounds(GROUP).last, Some(id(next + 2)), "{what:?}");
            assert!(engine.get(GROUP, &key(next + 2)).await.unwrap().is_some());
        }
    });
}

#[test]
fn a_cut_at_any_operation_of_the_open_and_the_begin_leaves_a_directory_that_recovers() {
    run(async {
        let mut cuts = 0;
        for cut in 1.. {
            let disk = damaged(HARMS[(cut % 4) as usize]).await;
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
                    apply_again(&engine);
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
            engine.begin(false).await.unwrap();
            if ended {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 20, "{cuts}");
    });
}

/// The story: until the first checkpoint there was one only, the empty one. A bad block in it took
/// twenty acknowledged entries, though the journal held all of them.
#[test]
fn one_bad_block_before_the_first_checkpoint_costs_nothing() {
    run(async {
        for kind in [FileKind::Checkpoint0, FileKind::Checkpoint1] {
            // Header, its copy, body, table of hashes; the header alone has a second copy.
            for blocks in [&[0, 1][..], &[2], &[3]] {
                let disk = Disk::new(geometry());
                Engine::format(&disk, geometry(), &identity()).await.unwrap();
                let options = Options { mode: Mode::Sync, ..options(false) };
                let engine =
                    Engine::open(Arc::new(disk.clone()), None, options.clone()).await.unwrap();
                for index in 0..20 {
                    append(&engine, entry(index, 10)).await;
                    engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
                }
                drop(engine);
                disk.kill(Fate::Kept);
                disk.damage(kind, |bytes| {
                    blocks.iter().for_each(|block| bytes[block * BLOCK + 50] ^= 1);
                });
                let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
                assert_eq!(engine.log_bounds(GROUP).last, Some(id(19)), "{kind:?}, {blocks:?}");
                assert_eq!(engine.member_state(), MemberState::Active);
            }
        }
    });
}

/// A snapshot that is installed voids the older checkpoint, and a start may find one alone. A second
/// one follows, so that one bad block costs nothing.
#[test]
fn no_checkpoint_stays_alone() {
    run(async {
        for kind in [FileKind::Checkpoint0, FileKind::Checkpoint1] {
            for restarted in [false, true] {
                let (disk, engine) = filled().await;
                let mut installer = engine.begin_install(GROUP).await.unwrap();
                let key = SnapshotKey::with_value("other".into(), id(1000), vec![7; 300].into());
                installer.put(vec![key]).await.unwrap();
                installer.finish(id(1000), image(1)).await.unwrap();
                if restarted {
                    drop(engine);
                    disk.kill(Fate::Kept);
                    let newest = newest_area(&disk).await;
                    disk.damage(other(newest), |bytes| bytes[..2 * BLOCK].fill(0));
                    let engine = open(&disk, false).await.unwrap();
                    until("a second one", || engine.status().checkpoints == 1).await;
                } else {
                    until("a second one", || engine.status().checkpoints == 4).await;
                }
                disk.kill(Fate::Kept);
                disk.damage(kind, |bytes| bytes[2 * BLOCK + 10] ^= 1);
                let engine = open(&disk, false).await.unwrap();
                let what = format!("{kind:?}, restarted: {restarted}");
                assert_eq!(engine.applied(GROUP), Some(id(1000)), "{what}");
                assert!(engine.get(GROUP, b"other").await.unwrap().is_some(), "{what}");
            }
        }
    });
}

async fn both_areas_hold_one(disk: &Disk) -> bool {
    let found = cairn_engine::inspect(disk, KernelBootId(1), false).await.unwrap();
    found.contents.unwrap().checkpoints.iter().all(|area| area.holds.is_some())
}

/// The story: a process was killed while it wrote a checkpoint. The header of the one before was still
/// there, over a body that was half overwritten, and passed for a second checkpoint until the next one.
#[test]
fn a_kill_within_a_checkpoint_leaves_none_alone() {
    for closes in [false, true] {
        run(kills_within_a_checkpoint(closes));
    }
}

async fn kills_within_a_checkpoint(closes: bool) {
    let (mut cuts, mut alone) = (0, 0);
    for cut in 1.. {
        let disk = stopped().await;
        let options = Options { last_checkpoint: Duration::from_secs(60), ..options(false) };
        let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
        apply_again(&engine);
        {
            let mut core = disk.core.lock().unwrap();
            core.cut_at = Some(core.operations + cut);
        }
        let saving = async {
            match closes {
                true => engine.close().await,
                false => engine.checkpoint().await,
            }
        };
        let ended = tokio::select! {
            biased;
            () = disk.died.notified() => false,
            saved = saving => { saved.unwrap(); true }
        };
        drop(engine);
        disk.kill(Fate::Kept);
        alone += u32::from(!both_areas_hold_one(&disk).await);
        let engine = open(&disk, false).await.unwrap();
        let two = async {
            while !both_areas_hold_one(&disk).await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let two = tokio::time::timeout(Duration::from_secs(60), two).await;
        two.unwrap_or_else(|_| panic!("cut {cut}: no second checkpoint"));
        drop(engine);
        disk.kill(Fate::Kept);
        disk.damage(newest_area(&disk).await, |bytes| bytes[2 * BLOCK + 10] ^= 1);
        let engine = open(&disk, false).await.unwrap();
        assert_eq!(check_prefix(&engine, &format!("cut {cut}")).await, 60);
        if ended {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 4 && alone > 2, "{alone} of {cuts} cuts left one checkpoint");
}

/// A directory of which no copy ever ends.
struct NeverCopied {
    disk: Disk,
    begun: Arc<Notify>,
}

impl Directory for NeverCopied {
    fn open(&self, kind: FileKind) -> std::io::Result<Arc<dyn Device>> {
        self.disk.open(kind)
    }

    fn location(&self) -> String {
        self.disk.location()
    }

    fn backend(&self) -> &'static str {
        self.disk.backend()
    }

    fn set_aside(&self, _number: u64) -> IoFuture<std::io::Result<String>> {
        self.begun.notify_one();
        Box::pin(std::future::pending())
    }
}

/// The story: a member with a damaged directory copied journal and checkpoints to a disk that took
/// minutes, and could not be stopped meanwhile.
#[test]
fn a_stop_does_not_wait_for_a_copy_that_is_set_aside() {
    run(async {
        let disk = damaged(Harm::Journal).await;
        let before = KEPT.map(|kind| disk.bytes(kind));
        let begun = Arc::new(Notify::new());
        let directory = NeverCopied { disk: disk.clone(), begun: begun.clone() };
        let engine = Engine::open(Arc::new(directory), None, options(true)).await.unwrap();
        apply_again(&engine);
        let beginning = tokio::spawn({
            let engine = engine.clone();
            async move { engine.begin(true).await }
        });
        begun.notified().await;
        let closed = tokio::time::timeout(Duration::from_secs(60), engine.close()).await;
        closed.expect("the close waits for the copy").unwrap();
        assert!(matches!(beginning.await.unwrap(), Err(Error::Closed)));
        assert!(before == KEPT.map(|kind| disk.bytes(kind)), "the directory was written");
    });
}

async fn newest_area(disk: &Disk) -> FileKind {
    let found = cairn_engine::inspect(disk, KernelBootId(1), false).await.unwrap();
    let areas = found.contents.unwrap().checkpoints;
    areas.into_iter().max_by_key(|area| area.holds).unwrap().file
}

fn other(area: FileKind) -> FileKind {
    match area {
        FileKind::Checkpoint0 => FileKind::Checkpoint1,
        _ => FileKind::Checkpoint0,
    }
}
