//! A write or sync that fails or never returns, and the restart under the same kernel: the system may have dropped what no sync
//! covered, or show what the next power cut takes.

use crate::support::store::{append, entry as small, filled};
use crate::support::workload::{GROUP, History, check, options, verify, workload};
use crate::support::{Cache, Disk, Random, geometry, identity, run};
use cairn_engine::io::FileKind;
use cairn_engine::{BootId, CorruptionKind, Engine, Error, Mode, Options, Standing};
use std::sync::Arc;
use std::time::Duration;

/// What became of one failure.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The workload ended before.
    NotMet,
    Refused,
    Told,
    Opened {
        standing: Standing,
        dropped: u64,
    },
}

fn with(mode: Mode, peers: bool, boot: u128) -> Options {
    Options { salvage: peers, ..options(mode, boot) }
}

/// A disk whose process has ended over a failed sync.
struct Failed {
    disk: Disk,
    history: Arc<History>,
    random: Random,
    /// Blocks that the system has dropped since.
    dropped: u64,
}

/// Runs a workload until sync number `nth` fails, and with `lasting` every later one; then the process ends, and the system
/// drops some of what was not synced. `None` if the workload ended before.
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
        // It waits for ever once its device has failed.
        let mut work = Box::pin(workload(&engine, &history, &mut random, 120));
        let recorded = async {
            disk.sync_failed.notified().await;
            until("word of it", || engine.status().failed_sync_recorded).await;
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
    disk.kill(|| random.next());
    // Where no sync ends well any more, the word of it is itself in doubt: here it stays.
    let dropped = disk
        .drop_forsaken(|kind| !(lasting && kind == FileKind::Superblock) && random.next().is_multiple_of(2));
    Some(Failed { disk, history, random, dropped })
}

/// A failure, the restart of the process under the same kernel, and then a power cut.
fn fail_once(mode: Mode, peers: bool, lasting: bool, nth: u64, seed: u64) -> Outcome {
    run(async {
        let what = format!("{mode} peers={peers} lasting={lasting} nth={nth} seed={seed}");
        let Some(Failed { disk, history, mut random, dropped }) = fail(mode, peers, lasting, nth, seed).await
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
        let (standing, bounds) = (engine.standing(), engine.log_bounds(GROUP));
        let first = bounds.purged.map_or(0, |purged| purged.index + 1);
        if let Err(Error::Corrupt(damage)) = engine.read_log(GROUP, first..u64::MAX, u64::MAX).await {
            // A value that was acknowledged and is gone: whoever reads it is told.
            assert!(!peers && dropped > 0 && damage.kind == CorruptionKind::Value, "{what}: {damage}");
            return Outcome::Told;
        }
        check(&engine, &history, &what).await;
        drop(engine);
        disk.reboot(Cache::Volatile, || random.next());
        let engine = verify(&disk, &history, with(mode, peers, 2), &what).await;
        assert_eq!(
            engine.log_bounds(GROUP).last,
            bounds.last,
            "{what}: what an opening found is on the medium"
        );
        assert_eq!(engine.standing(), standing, "{what}");
        Outcome::Opened { standing, dropped }
    })
}

/// A failure of every third sync of some workloads.
fn fail_everywhere(mode: Mode, peers: bool, lasting: bool) -> Vec<Outcome> {
    let mut met = Vec::new();
    for seed in 0..3 {
        let outcomes =
            (0..60).step_by(3).map(|nth| fail_once(mode, peers, lasting, nth + seed, seed * 1000 + nth));
        met.extend(outcomes.filter(|outcome| *outcome != Outcome::NotMet));
    }
    assert!(met.len() > 20, "only {} syncs failed", met.len());
    let dropping =
        met.iter().filter(|outcome| matches!(outcome, Outcome::Opened { dropped: 1.., .. })).count();
    assert!(dropping > 5, "only {dropping} lost something");
    met
}

#[test]
fn with_peers_a_node_whose_sync_failed_recovers_when_its_process_comes_back() {
    let kinds =
        [(Mode::Replicated, false), (Mode::Replicated, true), (Mode::Sync, false), (Mode::Device, false)];
    for (mode, lasting) in kinds {
        for outcome in fail_everywhere(mode, true, lasting) {
            let recovering = matches!(outcome, Outcome::Opened { standing: Standing::Recovering, .. });
            assert!(recovering, "{mode} lasting={lasting}: {outcome:?}");
        }
    }
}

#[test]
fn alone_in_mode_sync_it_goes_on_with_all_that_was_acknowledged() {
    for lasting in [false, true] {
        for outcome in fail_everywhere(Mode::Sync, false, lasting) {
            let active = matches!(outcome, Outcome::Opened { standing: Standing::Active, .. });
            assert!(active, "lasting={lasting}: {outcome:?}");
        }
    }
}

#[test]
fn alone_in_mode_device_it_goes_on_with_all_that_was_acknowledged_or_says_what_is_gone() {
    let met = fail_everywhere(Mode::Device, false, false);
    let count = |wanted: fn(&Outcome) -> bool| met.iter().filter(|outcome| wanted(outcome)).count();
    let refused = count(|outcome| *outcome == Outcome::Refused);
    let opened = count(|outcome| matches!(outcome, Outcome::Opened { standing: Standing::Active, .. }));
    assert!(refused > 5 && opened > 5, "{refused} refused, {opened} opened of {}", met.len());
}

/// The opening once wrote journal blocks again that no block was known to say were synced. They were, some of them, and
/// acknowledged: a power cut tore one under the head, and the node took itself for whole without them. Later a cluster of one refused for ever
/// after a power cut between the two checkpoints: the last block that the first of them covers had been in the cache only.
#[test]
fn a_power_cut_at_any_operation_of_the_opening_after_a_failed_sync_loses_nothing_unnoticed() {
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
                disk.reboot(Cache::Volatile, || random.next());
                let engine = verify(&disk, &history, with(mode, peers, 2), &what).await;
                match engine.standing() {
                    Standing::Active => active += 1,
                    Standing::Recovering => recovering += 1,
                }
            });
        }
    }
    assert!(active > 10 && recovering > 10, "{active} active, {recovering} recovering");
}

/// The story: a sync of a device that promises to keep completed writes failed, and part of what it should have covered was gone when
/// the process ended. Then the machine lost power, and the node took every completed write for kept.
#[test]
fn after_a_power_cut_a_node_of_mode_device_that_has_peers_is_whole_or_knows_that_it_is_not() {
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
                disk.reboot(Cache::Protected, || random.next());
                let opened = Engine::open(Arc::new(disk.clone()), None, with(Mode::Device, true, 2)).await;
                let engine = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
                let first = engine.log_bounds(GROUP).purged.map_or(0, |purged| purged.index + 1);
                let log = engine.read_log(GROUP, first..u64::MAX, u64::MAX).await;
                match engine.standing() {
                    Standing::Active => {
                        assert!(log.is_ok(), "{what}: {:?}", log.err());
                        active += 1;
                    }
                    Standing::Recovering => recovering += 1,
                }
            });
        }
    }
    assert!(lost > 5 && recovering > 5, "{lost} lost something: {active} active, {recovering} recovering");
}

/// A directory with ten entries of a node that has peers.
async fn ten_entries(options: Options) -> (Disk, Engine) {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
    for index in 0..10 {
        append(&engine, vec![small(index, filled(3000, index))]).await.unwrap();
    }
    (disk, engine)
}

/// Waits for what is certain to come.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waits = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), waits).await.is_ok(), "{what}");
}

/// The story: a drive lost its power alone, and its cache with it. The write failed, the process was started again under the same
/// boot id, and what was lost passed for a torn tail.
#[test]
fn after_a_failed_write_a_node_that_has_peers_recovers_whatever_the_boot_id_is_by_then() {
    for (mode, boot) in [(Mode::Replicated, 1), (Mode::Device, 1), (Mode::Sync, 1), (Mode::Sync, 2)] {
        run(async {
            let (disk, engine) = ten_entries(with(mode, true, 1)).await;
            disk.core.lock().unwrap().fail_write = Some(FileKind::Journal);
            append(&engine, vec![small(10, filled(3000, 10))]).await.unwrap_err();
            until("word of it", || engine.status().failed_sync_recorded).await;
            assert!(engine.close().await.is_err(), "no clean end");
            drop(engine);
            disk.reboot(Cache::Volatile, || 1);
            let engine = Engine::open(Arc::new(disk), None, with(mode, true, boot)).await.unwrap();
            assert_eq!(engine.standing(), Standing::Recovering, "{mode}, boot {boot}");
        });
    }
}

#[test]
fn a_disk_that_tells_another_history_under_the_same_kernel_counts_as_a_power_cut() {
    let history = |words: &str| BootId(1).with_devices(&[words.to_owned()]);
    let (before, after) = (history("power cycles 7"), history("power cycles 8"));
    assert_eq!(before, history("power cycles 7"));
    for (then, expected) in [(before, Standing::Active), (after, Standing::Recovering)] {
        run(async {
            let options = Options { boot: before, ..with(Mode::Replicated, true, 1) };
            let slow = Options { sync_interval: Duration::from_secs(3600), ..options };
            let (disk, engine) = ten_entries(slow.clone()).await;
            assert!(engine.status().lazy);
            drop(engine);
            disk.kill(|| 1);
            let engine = Engine::open(Arc::new(disk), None, Options { boot: then, ..slow }).await.unwrap();
            assert_eq!(engine.standing(), expected);
        });
    }
}

#[test]
fn a_write_that_never_returns_ends_the_engine_with_the_file_named_and_a_close_does_not_wait_for_it() {
    run(async {
        let options = Options { io_timeout: Duration::from_millis(200), ..with(Mode::Replicated, true, 1) };
        let (disk, engine) = ten_entries(options).await;
        disk.core.lock().unwrap().hang_write = Some(FileKind::Journal);
        let error = append(&engine, vec![small(10, filled(3000, 10))]).await.unwrap_err().to_string();
        assert!(error.contains("memory: write failed on file `journal`"), "{error}");
        assert!(error.contains("did not return within 200ms"), "{error}");
        assert!(engine.close().await.is_err());
    });
}

#[test]
fn a_read_that_never_returns_ends_the_engine_too() {
    run(async {
        let options = Options {
            io_timeout: Duration::from_millis(200),
            log_cache_bytes: 0,
            ..with(Mode::Replicated, true, 1)
        };
        let (disk, engine) = ten_entries(options).await;
        disk.core.lock().unwrap().hang_reads = Some(FileKind::Data);
        engine.read_log(GROUP, 0..10, u64::MAX).await.unwrap_err();
        until("the end", || engine.status().failed.is_some()).await;
        let reason = engine.status().failed.unwrap();
        assert!(reason.contains("read failed on file `data`"), "{reason}");
    });
}

/// What cannot be read for that reason must not pass for damage, which an opening would overwrite, nor for a lost identity.
#[test]
fn an_opening_whose_disk_never_answers_refuses_and_changes_nothing() {
    for hanging in [FileKind::Superblock, FileKind::Journal, FileKind::Checkpoint0] {
        run(async {
            let options =
                Options { io_timeout: Duration::from_millis(200), ..with(Mode::Replicated, true, 1) };
            let (disk, engine) = ten_entries(options.clone()).await;
            engine.close().await.unwrap();
            drop(engine);
            disk.kill(|| 1);
            let before = FileKind::ALL.map(|kind| disk.bytes(kind));
            disk.core.lock().unwrap().hang_reads = Some(hanging);
            let opened = Engine::open(Arc::new(disk.clone()), None, options.clone()).await;
            let error = opened.map(drop).unwrap_err();
            assert!(matches!(&error, Error::Failed { file, .. } if *file == hanging), "{error}");
            assert!(before == FileKind::ALL.map(|kind| disk.bytes(kind)), "{hanging:?}");
            disk.core.lock().unwrap().hang_reads = None;
            disk.kill(|| 1);
            let engine = Engine::open(Arc::new(disk), None, options).await.unwrap();
            assert_eq!(engine.standing(), Standing::Active);
        });
    }
}
