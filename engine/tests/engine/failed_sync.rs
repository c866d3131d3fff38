//! A write or sync that fails or never returns, and a restart under the same kernel. The kernel may
//! have dropped what no sync covered, or show data that the next power cut loses.

use crate::support::store::{append, entry as small, filled};
use crate::support::workload::{GROUP, History, check, options, verify, workload};
use crate::support::{Cache, Disk, Fate, Random, geometry, identity, run, until};
use cairn_disk::FailedSyncs;
use cairn_disk::Failing;
use cairn_engine::io::FileKind;
use cairn_engine::{Engine, Error, KernelBootId, MemberState, Mode, Options};
use std::sync::Arc;
use std::time::Duration;

/// The outcome of one failure.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The workload ended before the failure.
    NotMet,
    Refused,
    Reported,
    Opened {
        member_state: MemberState,
        dropped: u64,
    },
}

fn with(mode: Mode, peers: bool, boot: u128) -> Options {
    Options { salvage: peers, ..options(mode, boot) }
}

/// A disk whose process ended after a failed sync.
struct Failed {
    disk: Disk,
    history: Arc<History>,
    random: Random,
    /// Blocks that the kernel has dropped since.
    dropped: u64,
}

/// Runs a workload until sync number `nth` fails, and with `lasting` every later one too. Then the
/// process ends, and the kernel drops some of what was not synced. `None` if the workload ended
/// before.
async fn fail(mode: Mode, peers: bool, lasting: bool, nth: u64, seed: u64) -> Option<Failed> {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let history = Arc::new(History::default());
    let mut random = Random(seed);
    let engine = Engine::open(Arc::new(disk.clone()), None, with(mode, peers, 1)).await.unwrap();
    {
        let mut core = disk.core.lock().unwrap();
        let first = core.syncs + nth;
        core.failing = first..if lasting { u64::MAX } else { first + 1 };
    }
    {
        // The workload waits forever once its device has failed.
        let mut work = Box::pin(workload(&engine, &history, &mut random, 120));
        let recorded = async {
            disk.sync_failed.notified().await;
            until("the failure is recorded", || engine.status().failed_sync_recorded).await;
        };
        tokio::select! {
            biased;
            () = recorded => {}
            () = &mut work => return None,
        }
    }
    assert!(engine.close().await.is_err(), "no clean end");
    drop(engine);
    disk.core.lock().unwrap().failing = 0..0;
    // If no sync succeeds any more, the kernel could drop the record of the failure too. In this
    // test the record stays.
    let drops = |kind| match lasting && kind == FileKind::Superblock {
        true => FailedSyncs::Unsafe,
        false => FailedSyncs::Dropped,
    };
    let dropped = disk.kill_and(drops, random.fate());
    Some(Failed { disk, history, random, dropped })
}

/// A failure, a restart of the process under the same kernel, and then a power cut.
fn fail_once(mode: Mode, peers: bool, lasting: bool, nth: u64, seed: u64) -> Outcome {
    run(async {
        let what = format!("{mode} peers={peers} lasting={lasting} nth={nth} seed={seed}");
        let Some(Failed { disk, history, mut random, dropped }) =
            fail(mode, peers, lasting, nth, seed).await
        else {
            return Outcome::NotMet;
        };
        let engine = match Engine::open(Arc::new(disk.clone()), None, with(mode, peers, 1)).await {
            Ok(engine) => engine,
            Err(Error::Corrupt(damage)) => {
                assert!(!peers && dropped > 0, "{what}: {damage}");
                return Outcome::Refused;
            }
            Err(error) => panic!("{what}: {error}"),
        };
        let (member_state, bounds) = (engine.member_state(), engine.log_bounds(GROUP));
        let first = bounds.purged.map_or(0, |purged| purged.index + 1);
        if let Err(Error::Corrupt(damage)) = engine.read_log(GROUP, first..u64::MAX, u64::MAX).await
        {
            // An acknowledged value is lost: a read reports it.
            assert!(!peers && dropped > 0 && damage.file == FileKind::Data, "{what}: {damage}");
            return Outcome::Reported;
        }
        check(&engine, &history, &what).await;
        drop(engine);
        disk.reboot(Cache::Volatile, random.fate());
        let engine = verify(&disk, &history, with(mode, peers, 2), &what).await;
        assert_eq!(
            engine.log_bounds(GROUP).last,
            bounds.last,
            "{what}: what an open found is on the medium"
        );
        assert_eq!(engine.member_state(), member_state, "{what}");
        Outcome::Opened { member_state, dropped }
    })
}

/// Fails every third sync of some workloads.
fn fail_everywhere(mode: Mode, peers: bool, lasting: bool) -> Vec<Outcome> {
    let mut met = Vec::new();
    for seed in 0..3 {
        let outcomes = (0..60)
            .step_by(3)
            .map(|nth| fail_once(mode, peers, lasting, nth + seed, seed * 1000 + nth));
        met.extend(outcomes.filter(|outcome| *outcome != Outcome::NotMet));
    }
    assert!(met.len() > 20, "only {} syncs failed", met.len());
    let dropping = met
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Opened { dropped: 1.., .. }))
        .count();
    assert!(dropping > 5, "only {dropping} lost blocks");
    met
}

/// Appends entries of one value each.
async fn append_some(engine: &Engine, indexes: std::ops::Range<u64>) {
    for index in indexes {
        append(engine, vec![small(index, filled(3000, index))]).await.unwrap();
    }
}

#[test]
fn with_peers_a_node_whose_sync_failed_recovers_when_its_process_comes_back() {
    let kinds = [
        (Mode::Replicated, false),
        (Mode::Replicated, true),
        (Mode::Sync, false),
        (Mode::Device, false),
    ];
    for (mode, lasting) in kinds {
        for outcome in fail_everywhere(mode, true, lasting) {
            let recovering =
                matches!(outcome, Outcome::Opened { member_state: MemberState::Recovering, .. });
            assert!(recovering, "{mode} lasting={lasting}: {outcome:?}");
        }
    }
}

#[test]
fn without_peers_a_node_of_mode_sync_continues_with_all_that_was_acknowledged() {
    for lasting in [false, true] {
        for outcome in fail_everywhere(Mode::Sync, false, lasting) {
            let active =
                matches!(outcome, Outcome::Opened { member_state: MemberState::Active, .. });
            assert!(active, "lasting={lasting}: {outcome:?}");
        }
    }
}

#[test]
fn without_peers_a_node_of_mode_device_continues_with_all_that_was_acknowledged_or_reports_the_loss()
 {
    let met = fail_everywhere(Mode::Device, false, false);
    let count = |wanted: fn(&Outcome) -> bool| met.iter().filter(|outcome| wanted(outcome)).count();
    let refused = count(|outcome| *outcome == Outcome::Refused);
    let opened = count(|outcome| {
        matches!(outcome, Outcome::Opened { member_state: MemberState::Active, .. })
    });
    assert!(refused > 5 && opened > 5, "{refused} refused, {opened} opened of {}", met.len());
}

/// The story: an open wrote the first block of its boot epoch, and the sync failed. The next open read
/// the block and took it for synced. What was acknowledged behind it could not be reached after a
/// power cut, and a cluster of one refused to start.
#[test]
fn a_sync_that_fails_during_an_open_counts_at_the_next_one() {
    let (mut failed, mut dropped, mut recovering) = (0, 0, 0);
    for (mode, peers) in [(Mode::Sync, false), (Mode::Sync, true), (Mode::Device, true)] {
        for (nth, seed) in (0..14).flat_map(|nth| (0..6).map(move |seed| (nth, seed))) {
            run(async {
                let what = format!("{mode} peers={peers} nth={nth} seed={seed}");
                let mut random = Random(seed);
                let disk = Disk::new(geometry());
                Engine::format(&disk, geometry(), &identity()).await.unwrap();
                let open = async |boot| {
                    Engine::open(Arc::new(disk.clone()), None, with(mode, peers, boot)).await
                };
                let engine = open(1).await.unwrap();
                append_some(&engine, 0..8).await;
                if seed % 2 == 0 {
                    engine.checkpoint().await.unwrap();
                }
                drop(engine);
                disk.kill(random.fate());
                {
                    let mut core = disk.core.lock().unwrap();
                    let first = core.syncs + nth;
                    core.failing = first..first + 1;
                }
                let Err(error) = open(1).await else { return };
                assert!(matches!(error, Error::Failed { .. }), "{what}: {error}");
                failed += 1;
                disk.core.lock().unwrap().failing = 0..0;
                dropped += disk.kill_and(|_| FailedSyncs::Dropped, random.fate());
                let engine = open(1).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let next = engine.log_bounds(GROUP).last.map_or(0, |last| last.index + 1);
                append_some(&engine, next..16).await;
                drop(engine);
                // A device that loses completed writes is none for mode `device`.
                let cache = match mode {
                    Mode::Device => Cache::Protected,
                    _ => Cache::Volatile,
                };
                disk.reboot(cache, random.fate());
                let engine = open(2).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let held = engine.log_bounds(GROUP).last.is_some_and(|last| last.index == 15);
                match engine.member_state() {
                    // In mode `device` the failed sync may have lost what was acknowledged.
                    MemberState::Recovering => recovering += 1,
                    MemberState::Active => assert!(next >= 8 && held, "{what}: {next} {held}"),
                }
            });
        }
    }
    assert!(failed > 100, "only {failed} opens failed");
    assert!(dropped > 20 && recovering > 20, "{dropped} blocks dropped, {recovering} recovering");
}

/// The story: a process was killed between the write of a checkpoint's header and its sync. The next
/// open loaded that checkpoint and wrote over the older one, and a power cut lost both.
#[test]
fn a_checkpoint_whose_header_was_not_synced_is_not_the_only_one() {
    let with = |boot| with(Mode::Sync, false, boot);
    for (kill, cut) in (1..14).flat_map(|kill| (1..14).map(move |cut| (kill, cut))) {
        run(async {
            let what = format!("killed at {kill}, cut at {cut}");
            let mut random = Random(kill * 100 + cut);
            let disk = Disk::new(geometry());
            Engine::format(&disk, geometry(), &identity()).await.unwrap();
            let checkpoint_until_dead = async |engine: &Engine, after: u64| {
                {
                    let mut core = disk.core.lock().unwrap();
                    core.cut_at = Some(core.operations + after);
                }
                tokio::select! {
                    biased;
                    () = disk.died.notified() => {}
                    _ = engine.checkpoint() => {}
                }
            };
            let engine = Engine::open(Arc::new(disk.clone()), None, with(1)).await.unwrap();
            append_some(&engine, 0..8).await;
            engine.checkpoint().await.unwrap();
            append_some(&engine, 8..12).await;
            checkpoint_until_dead(&engine, kill).await;
            drop(engine);
            disk.kill(random.fate());
            let engine = Engine::open(Arc::new(disk.clone()), None, with(1)).await.unwrap();
            append_some(&engine, 12..16).await;
            checkpoint_until_dead(&engine, cut).await;
            drop(engine);
            disk.reboot(Cache::Volatile, random.fate());
            let engine = Engine::open(Arc::new(disk.clone()), None, with(2)).await;
            let engine = engine.unwrap_or_else(|error| panic!("{what}: {error}"));
            let last = engine.log_bounds(GROUP).last;
            assert_eq!(last.map(|last| last.index), Some(15), "{what}");
        });
    }
}

/// Two stories. An open once rewrote journal blocks that no block said were synced. Some of them
/// were synced and acknowledged: a power cut tore one during the rewrite, and the node counted as
/// active without them. Later a cluster of one refused to start for good after a power cut between
/// the two checkpoints: the last block that the first of them covers had been in the cache only.
#[test]
fn a_power_cut_at_any_operation_of_the_open_after_a_failed_sync_loses_nothing_unnoticed() {
    let (mut recovering, mut active) = (0, 0);
    for (mode, peers) in [(Mode::Sync, true), (Mode::Sync, false), (Mode::Replicated, true)] {
        for cut in 1..45 {
            run(async {
                let what = format!("{mode} peers={peers} cut={cut}");
                let Some(Failed { disk, history, mut random, .. }) =
                    fail(mode, peers, false, 20 + cut % 7, cut).await
                else {
                    return;
                };
                {
                    let mut core = disk.core.lock().unwrap();
                    core.cut_at = Some(core.operations + cut);
                }
                tokio::select! {
                    biased;
                    () = disk.died.notified() => {}
                    opened = Engine::open(Arc::new(disk.clone()), None, with(mode, peers, 1)) => drop(opened.unwrap()),
                }
                disk.reboot(Cache::Volatile, random.fate());
                let engine = verify(&disk, &history, with(mode, peers, 2), &what).await;
                match engine.member_state() {
                    MemberState::Active => active += 1,
                    MemberState::Recovering => recovering += 1,
                }
            });
        }
    }
    assert!(active > 10 && recovering > 10, "{active} active, {recovering} recovering");
}

/// The story: a sync failed on a device that promises to keep completed writes, and part of what it
/// should have covered was lost when the process ended. Then the machine lost power, and the node
/// assumed that every completed write was there.
#[test]
fn after_a_power_cut_a_node_of_mode_device_with_peers_is_complete_or_recovers() {
    let (mut recovering, mut active, mut lost) = (0, 0, 0);
    for seed in 0..3 {
        for nth in (0..60).step_by(3) {
            run(async {
                let what = format!("nth={nth} seed={seed}");
                let Some(Failed { disk, mut random, dropped, .. }) =
                    fail(Mode::Device, true, false, nth + seed, seed * 1000 + nth).await
                else {
                    return;
                };
                lost += u64::from(dropped > 0);
                disk.reboot(Cache::Protected, random.fate());
                let opened =
                    Engine::open(Arc::new(disk.clone()), None, with(Mode::Device, true, 2)).await;
                let engine = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
                let first = engine.log_bounds(GROUP).purged.map_or(0, |purged| purged.index + 1);
                let log = engine.read_log(GROUP, first..u64::MAX, u64::MAX).await;
                match engine.member_state() {
                    MemberState::Active => {
                        assert!(log.is_ok(), "{what}: {:?}", log.err());
                        active += 1;
                    }
                    MemberState::Recovering => recovering += 1,
                }
            });
        }
    }
    assert!(
        lost > 5 && recovering > 5,
        "{lost} lost blocks: {active} active, {recovering} recovering"
    );
}

/// The directory of a node, with ten entries.
async fn ten_entries(options: Options) -> (Disk, Engine) {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
    for index in 0..10 {
        append(&engine, vec![small(index, filled(3000, index))]).await.unwrap();
    }
    (disk, engine)
}

/// The story: a drive alone lost its power, and with it its cache. A write failed, the process
/// restarted under the same kernel boot id, and recovery took the lost blocks for a torn tail.
#[test]
fn after_a_failed_write_a_node_with_peers_recovers_under_any_boot_id() {
    for (mode, boot) in [(Mode::Replicated, 1), (Mode::Device, 1), (Mode::Sync, 1), (Mode::Sync, 2)]
    {
        run(async {
            let (disk, engine) = ten_entries(with(mode, true, 1)).await;
            disk.arrange(Failing::Write, FileKind::Journal);
            append(&engine, vec![small(10, filled(3000, 10))]).await.unwrap_err();
            until("the failure is recorded", || engine.status().failed_sync_recorded).await;
            assert!(engine.close().await.is_err(), "no clean end");
            drop(engine);
            disk.reboot(Cache::Volatile, Fate::Lost);
            let engine = Engine::open(Arc::new(disk), None, with(mode, true, boot)).await.unwrap();
            assert_eq!(engine.member_state(), MemberState::Recovering, "{mode}, boot {boot}");
        });
    }
}

#[test]
fn a_disk_that_reports_another_history_under_the_same_kernel_counts_as_a_power_cut() {
    let history = |words: &str| KernelBootId(1).with_devices(&[words.to_owned()]);
    let (before, after) = (history("power cycles 7"), history("power cycles 8"));
    assert_eq!(before, history("power cycles 7"));
    for (then, expected) in [(before, MemberState::Active), (after, MemberState::Recovering)] {
        run(async {
            let options = Options { boot: before, ..with(Mode::Replicated, true, 1) };
            let slow = Options { sync_interval: Duration::from_secs(3600), ..options };
            let (disk, engine) = ten_entries(slow.clone()).await;
            assert!(engine.status().unsynced_acks);
            drop(engine);
            disk.kill(Fate::Lost);
            let engine =
                Engine::open(Arc::new(disk), None, Options { boot: then, ..slow }).await.unwrap();
            assert_eq!(engine.member_state(), expected);
        });
    }
}

#[test]
fn a_write_that_never_returns_ends_the_engine_with_the_file_named_and_a_close_does_not_wait_for_it()
{
    run(async {
        let options =
            Options { io_timeout: Duration::from_millis(200), ..with(Mode::Replicated, true, 1) };
        let (disk, engine) = ten_entries(options).await;
        disk.arrange(Failing::Hang, FileKind::Journal);
        let error =
            append(&engine, vec![small(10, filled(3000, 10))]).await.unwrap_err().to_string();
        assert!(error.contains("memory: write failed on file `journal`"), "{error}");
        assert!(error.contains("did not return within 200 ms"), "{error}");
        assert!(engine.close().await.is_err());
    });
}

#[test]
fn a_read_that_never_returns_also_ends_the_engine() {
    run(async {
        let options = Options {
            io_timeout: Duration::from_millis(200),
            log_cache_bytes: 0,
            ..with(Mode::Replicated, true, 1)
        };
        let (disk, engine) = ten_entries(options).await;
        // No value is in memory then.
        engine.checkpoint().await.unwrap();
        disk.core.lock().unwrap().hang_reads = Some((FileKind::Data, 0));
        engine.read_log(GROUP, 0..10, u64::MAX).await.unwrap_err();
        until("the engine has failed", || engine.status().failed.is_some()).await;
        let reason = engine.status().failed.unwrap();
        assert!(reason.contains("read failed on file `data`"), "{reason}");
    });
}

/// Data that could not be read for this reason must not pass for damage, which an open would
/// overwrite, nor for a lost identity.
#[test]
fn an_open_whose_disk_never_answers_fails_and_changes_nothing() {
    for hanging in [FileKind::Superblock, FileKind::Journal, FileKind::Checkpoint0] {
        run(async {
            let options = Options {
                io_timeout: Duration::from_millis(200),
                ..with(Mode::Replicated, true, 1)
            };
            let (disk, engine) = ten_entries(options.clone()).await;
            engine.close().await.unwrap();
            drop(engine);
            disk.kill(Fate::Lost);
            let before = FileKind::ALL.map(|kind| disk.bytes(kind));
            disk.core.lock().unwrap().hang_reads = Some((hanging, 0));
            let opened = Engine::open(Arc::new(disk.clone()), None, options.clone()).await;
            let error = opened.map(drop).unwrap_err();
            assert!(matches!(&error, Error::Failed { file, .. } if *file == hanging), "{error}");
            assert!(before == FileKind::ALL.map(|kind| disk.bytes(kind)), "{hanging:?}");
            disk.core.lock().unwrap().hang_reads = None;
            disk.kill(Fate::Lost);
            let engine = Engine::open(Arc::new(disk), None, options).await.unwrap();
            assert_eq!(engine.member_state(), MemberState::Active);
        });
    }
}
