//! Power cuts and kills at every operation of a workload: what was acknowledged is there afterwards, and what is there
//! is a prefix of what was asked.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use cairn_engine::{
    BootId, Change, Engine, GroupId, LogId, Mode, NewEntry, Options, Promise, SharedImage, Standing,
    Transition,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Cache, Disk, Random, geometry, identity, run};

const GROUP: GroupId = GroupId(0);

/// One step of a group's history, as the journal orders them.
#[derive(Clone, Debug)]
enum Step {
    Append(NewEntry),
    Truncate(u64),
    Purge(LogId),
}

/// What each key holds, and the entry that wrote it.
type Keys = BTreeMap<Bytes, (LogId, Bytes)>;

/// What the test asked, and how much of it was acknowledged.
#[derive(Default)]
struct History {
    steps: Mutex<Vec<Step>>,
    acknowledged: AtomicUsize,
    votes: Mutex<Vec<u64>>,
    acknowledged_vote: Mutex<Option<u64>>,
    /// The keys after each applied entry, from the first.
    applied: Mutex<BTreeMap<u64, Keys>>,
}

/// The log after `steps`.
fn log_after(steps: &[Step]) -> (Option<LogId>, BTreeMap<u64, NewEntry>) {
    let (mut purged, mut log) = (None, BTreeMap::new());
    for step in steps {
        match step {
            Step::Append(entry) => drop(log.insert(entry.id.index, entry.clone())),
            Step::Truncate(last) => drop(log.split_off(&(last + 1))),
            Step::Purge(through) => {
                log = log.split_off(&(through.index + 1));
                purged = Some(*through);
            }
        }
    }
    (purged, log)
}

fn options(mode: Mode, boot: u128) -> Options {
    let mut options = Options::new(mode, BootId(boot), boot as u64);
    options.sync_interval = Duration::from_millis(2);
    options.sync_bytes = 64 << 10;
    options.log_cache_bytes = 32 << 10;
    options
}

fn entry(id: LogId, random: &mut Random) -> NewEntry {
    // Mostly small, sometimes large, sometimes empty; now and then a meta too long for its record.
    let lengths = [0, 1, 100, 300, 4096, 4097, 9000, 30_000];
    let count = random.below(3) as usize;
    let mut value = |_| {
        let len = lengths[random.below(lengths.len() as u64) as usize];
        let seed = random.next();
        Bytes::from((0..len).map(|i: u64| (seed.wrapping_mul(i + 1) >> 32) as u8).collect::<Vec<_>>())
    };
    let values: Vec<Bytes> = (0..count).map(&mut value).collect();
    let meta_len = if random.below(12) == 0 { 3000 } else { 8 };
    let meta = Bytes::from(vec![id.index as u8; meta_len]);
    NewEntry { id, meta, values }
}

/// What applying an entry does: its values go under keys of a small set, and an entry without values deletes one.
fn transition(entry: &NewEntry) -> Transition {
    let key = |n: u64| Bytes::from(format!("key{}", n % 7));
    let mut changes: Vec<Change> = (0..entry.values.len())
        .map(|value| Change::Put { key: key(entry.id.index + value as u64), value })
        .collect();
    if changes.is_empty() {
        changes.push(Change::Delete { key: key(entry.id.index) });
    }
    Transition { applied: entry.id, changes }
}

fn apply_to(keys: &mut Keys, entry: &NewEntry) {
    for change in transition(entry).changes {
        match change {
            Change::Put { key, value } => drop(keys.insert(key, (entry.id, entry.values[value].clone()))),
            Change::Delete { key } => drop(keys.remove(&key)),
        }
    }
}

fn image(applied: LogId) -> SharedImage {
    Arc::new(applied.index.to_le_bytes().to_vec())
}

/// Asks the engine for a random mixture of everything until `count` rounds are over.
async fn workload(engine: &Engine, history: &Arc<History>, random: &mut Random, count: u64) {
    let mut term = 1;
    let mut unapplied: Vec<NewEntry> = Vec::new();
    let mut next = 0;
    for _ in 0..count {
        match random.below(20) {
            0 => {
                let vote = history.votes.lock().unwrap().len() as u64 + 1;
                history.votes.lock().unwrap().push(vote);
                engine.save_vote(GROUP, &vote.to_le_bytes()).await.unwrap();
                *history.acknowledged_vote.lock().unwrap() = Some(vote);
            }
            1 if unapplied.len() > 2 => {
                term += 1;
                let keep = unapplied.len() - 1 - random.below(unapplied.len() as u64 - 1) as usize;
                let last = unapplied[keep - 1].id.index;
                unapplied.truncate(keep);
                next = last + 1;
                let place = {
                    let mut steps = history.steps.lock().unwrap();
                    steps.push(Step::Truncate(last));
                    steps.len()
                };
                engine.truncate_after(GROUP, Some(last)).await.unwrap();
                history.acknowledged.fetch_max(place, Ordering::SeqCst);
            }
            2 => engine.checkpoint().await.unwrap(),
            3 => {
                let applied = engine.applied(GROUP);
                if let Some(applied) = applied.filter(|a| a.index > 4) {
                    let id = engine.log_id_at(GROUP, applied.index - random.below(4));
                    if let Some(through) = id {
                        // A purge may take a checkpoint first; it becomes a step only when it is queued.
                        engine.checkpoint().await.unwrap();
                        let place = {
                            let mut steps = history.steps.lock().unwrap();
                            steps.push(Step::Purge(through));
                            steps.len()
                        };
                        engine.purge(GROUP, through).await.unwrap();
                        history.acknowledged.fetch_max(place, Ordering::SeqCst);
                    }
                }
            }
            4..=8 => {
                let take = random.below(unapplied.len() as u64 + 1) as usize;
                let ready: Vec<NewEntry> = unapplied.drain(..take).collect();
                if let Some(last) = ready.last() {
                    let mut all = history.applied.lock().unwrap();
                    let mut keys = all.last_key_value().map(|(_, k)| k.clone()).unwrap_or_default();
                    for entry in &ready {
                        apply_to(&mut keys, entry);
                        all.insert(entry.id.index, keys.clone());
                    }
                    engine.apply(GROUP, ready.iter().map(transition).collect(), image(last.id)).unwrap();
                }
            }
            _ => {
                let entries: Vec<NewEntry> = (0..1 + random.below(6))
                    .map(|i| entry(LogId { term, index: next + i }, random))
                    .collect();
                next += entries.len() as u64;
                unapplied.extend(entries.iter().cloned());
                let place = {
                    let mut steps = history.steps.lock().unwrap();
                    steps.extend(entries.iter().cloned().map(Step::Append));
                    steps.len()
                };
                let history = history.clone();
                let done = Box::new(move |result: cairn_engine::Result<()>| {
                    if result.is_ok() {
                        history.acknowledged.fetch_max(place, Ordering::SeqCst);
                    }
                });
                let promise = if random.below(10) == 0 { Promise::Synced } else { Promise::Mode };
                engine.append(GROUP, entries, promise, done).await.unwrap();
                if random.below(3) == 0 {
                    tokio::time::sleep(Duration::from_micros(random.below(300))).await;
                }
            }
        }
    }
}

/// Opens the disk again and holds what is there against the history. Returns the engine, state re-applied.
async fn verify(disk: &Disk, history: &History, options: Options, what: &str) -> Engine {
    let engine = Engine::open(Arc::new(disk.clone()), Some(("test".into(), 1)), options).await;
    let engine = engine.unwrap_or_else(|e| panic!("{what}: {e}"));
    let steps = history.steps.lock().unwrap().clone();
    // A node that knows that it may have forgotten something may have; what is there is a prefix all the same.
    let acknowledged = match engine.standing() {
        Standing::Active => history.acknowledged.load(Ordering::SeqCst),
        Standing::Recovering => 0,
    };
    let bounds = engine.log_bounds(GROUP);
    let first = bounds.purged.map_or(0, |p| p.index + 1);
    let found = engine.read_log(GROUP, first..u64::MAX, u64::MAX).await;
    let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
    let prefix = (acknowledged..=steps.len()).find(|n| {
        let (purged, log) = log_after(&steps[..*n]);
        purged == bounds.purged && log.into_values().eq(found.iter().cloned())
    });
    assert!(
        prefix.is_some(),
        "{what}: the log {bounds:?} with {} entries is no prefix of {} steps that holds the {acknowledged} acknowledged; expected at least {:?}",
        found.len(),
        steps.len(),
        log_after(&steps[..acknowledged]).1.keys().last()
    );
    let vote = engine.vote(GROUP).map(|v| u64::from_le_bytes(v[..].try_into().unwrap()));
    let asked = history.votes.lock().unwrap().last().copied();
    let kept = *history.acknowledged_vote.lock().unwrap();
    assert!(vote >= kept && vote <= asked, "{what}: vote {vote:?}, acknowledged {kept:?}, asked {asked:?}");

    // The state machine goes on from the checkpoint to what was applied before.
    let applied = history.applied.lock().unwrap().clone();
    let before = engine.applied_before_restart(GROUP);
    if let Some(before) = before {
        let from = engine.applied(GROUP).map_or(0, |a| a.index + 1);
        let image_at = engine.view(GROUP).machine();
        if let Some(at) = engine.applied(GROUP) {
            assert_eq!(image_at, at.index.to_le_bytes(), "{what}: the image is not the checkpoint's");
        }
        let again = engine.read_log(GROUP, from..before.index + 1, u64::MAX).await.unwrap();
        if !again.is_empty() {
            engine.apply(GROUP, again.iter().map(transition).collect(), image(before)).unwrap();
        }
        assert_eq!(engine.applied(GROUP), Some(before), "{what}: the log does not reach what was applied");
        let expected = &applied[&before.index];
        assert_eq!(engine.view(GROUP).len(), expected.len(), "{what}");
        for (key, (version, value)) in expected {
            let (entry, bytes) =
                engine.get(GROUP, key).await.unwrap().unwrap_or_else(|| panic!("{what}: {key:?}"));
            assert_eq!((entry.version, &bytes), (*version, value), "{what}: {key:?}");
        }
    }
    engine
}

/// Runs a workload, cuts the power (or kills the process) at operation `cut`, and verifies. Returns whether the cut
/// came.
fn crash_once(mode: Mode, cache: Cache, power: bool, cut: u64, seed: u64) -> (bool, Standing) {
    run(async {
        let what = format!("{mode} {cache:?} power={power} cut={cut} seed={seed}");
        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        let history = Arc::new(History::default());
        let mut random = Random(seed);
        let engine = Engine::open(Arc::new(disk.clone()), None, options(mode, 1)).await.unwrap();
        {
            let mut core = disk.core.lock().unwrap();
            core.cut_at = Some(core.operations + cut);
        }
        let ended = tokio::select! {
            biased;
            () = disk.died.notified() => false,
            () = workload(&engine, &history, &mut random, 120) => true,
        };
        drop(engine);
        let boot = if power { 2 } else { 1 };
        if power {
            disk.reboot(cache, || random.next());
        } else {
            disk.kill(|| random.next());
        }
        let engine = verify(&disk, &history, options(mode, boot), &what).await;
        let standing = engine.standing();
        // What was recovered counts as acknowledged from now on: a second crash must not take it back.
        drop(engine);
        if power {
            disk.reboot(cache, || random.next());
        } else {
            disk.kill(|| random.next());
        }
        verify(&disk, &history, options(mode, boot + u128::from(power)), &what).await;
        (!ended, standing)
    })
}

/// Every `CAIRN_CRASH_STEP`-th operation (13 unless set; 1 takes some minutes) of three workloads.
fn crash_everywhere(mode: Mode, cache: Cache, power: bool) {
    let step = std::env::var("CAIRN_CRASH_STEP").map_or(13, |s| s.parse().unwrap());
    let (mut cuts, mut recovering, mut active) = (0, 0, 0);
    for seed in 0..3 {
        for cut in (1..400).step_by(step) {
            let (came, standing) = crash_once(mode, cache, power, cut, seed * 1000 + cut);
            cuts += u32::from(came);
            recovering += u32::from(standing == Standing::Recovering);
            active += u32::from(standing == Standing::Active);
        }
    }
    assert!(cuts > 50, "only {cuts} workloads met their cut");
    let may_forget = mode == Mode::Replicated && power;
    assert_eq!(recovering > 20, may_forget, "{recovering} of {cuts} cuts were taken for a lost tail");
    assert!(active > 0, "a cut before the mark is set takes nothing");
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged_on_a_protected_disk_in_device_mode() {
    crash_everywhere(Mode::Device, Cache::Protected, true);
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged_on_a_volatile_disk_in_sync_mode() {
    crash_everywhere(Mode::Sync, Cache::Volatile, true);
}

#[test]
fn a_kill_at_any_operation_loses_nothing_acknowledged_in_replicated_mode() {
    crash_everywhere(Mode::Replicated, Cache::Volatile, false);
}

#[test]
fn a_power_cut_at_any_operation_of_a_replicated_node_loses_nothing_acknowledged_or_is_noticed() {
    crash_everywhere(Mode::Replicated, Cache::Volatile, true);
}

#[test]
fn a_replicated_node_that_lost_its_tail_stays_recovering_until_it_is_told_otherwise() {
    run(async {
        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        let history = Arc::new(History::default());
        let mut random = Random(1);
        let open = |boot| Engine::open(Arc::new(disk.clone()), None, options(Mode::Replicated, boot));
        let engine = open(1).await.unwrap();
        assert_eq!(engine.standing(), Standing::Active);
        workload(&engine, &history, &mut random, 60).await;
        assert!(engine.status().lazy, "a busy node acknowledges ahead of its syncs");
        let first = engine.run();
        drop(engine);
        disk.reboot(Cache::Volatile, || random.next());
        let engine = open(2).await.unwrap();
        assert_eq!(engine.standing(), Standing::Recovering);
        assert!(engine.run().start > first.start);
        engine.close().await.unwrap();
        drop(engine);
        let engine = open(2).await.unwrap();
        assert_eq!(engine.standing(), Standing::Recovering, "neither a clean stop nor a restart heals it");
        engine.set_active().await.unwrap();
        drop(engine);
        disk.reboot(Cache::Volatile, || random.next());
        assert_eq!(open(3).await.unwrap().standing(), Standing::Active, "that it is active is synced");
    });
}

#[test]
fn a_power_cut_of_an_idle_or_cleanly_stopped_or_held_replicated_node_takes_nothing() {
    for ending in ["idle", "closed", "held"] {
        run(async {
            let disk = Disk::new(geometry());
            Engine::format(&disk, geometry(), &identity()).await.unwrap();
            let history = Arc::new(History::default());
            let mut random = Random(1);
            let engine =
                Engine::open(Arc::new(disk.clone()), None, options(Mode::Replicated, 1)).await.unwrap();
            workload(&engine, &history, &mut random, 60).await;
            assert!(engine.status().lazy);
            match ending {
                "closed" => engine.close().await.unwrap(),
                "held" => {
                    engine.hold_synced(true);
                }
                _ => {}
            }
            for _ in 0..1000 {
                if !mark_on(&disk) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(!mark_on(&disk), "{ending}: the mark is cleared on the device");
            if ending == "held" {
                workload_goes_on(&engine, &history, &mut random).await;
                assert!(!mark_on(&disk), "held: it stays clear under load");
            }
            if ending != "held" {
                let all = history.steps.lock().unwrap().len();
                history.acknowledged.store(all, Ordering::SeqCst);
            }
            drop(engine);
            disk.reboot(Cache::Volatile, || random.next());
            let engine = verify(&disk, &history, options(Mode::Replicated, 2), ending).await;
            assert_eq!(engine.standing(), Standing::Active, "{ending}");
        });
    }
}

/// Appends that are acknowledged one by one, with whatever promise the mode gives.
async fn workload_goes_on(engine: &Engine, history: &Arc<History>, random: &mut Random) {
    for _ in 0..50 {
        let last = engine.log_bounds(GROUP).last.unwrap();
        let next = entry(LogId { term: last.term, index: last.index + 1 }, random);
        let place = {
            let mut steps = history.steps.lock().unwrap();
            steps.push(Step::Append(next.clone()));
            steps.len()
        };
        let (sender, acknowledged) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result: cairn_engine::Result<()>| sender.send(result).unwrap());
        engine.append(GROUP, vec![next], Promise::Mode, done).await.unwrap();
        acknowledged.await.unwrap().unwrap();
        history.acknowledged.fetch_max(place, Ordering::SeqCst);
    }
}

/// The `lazy` mark as the device has it.
fn mark_on(disk: &Disk) -> bool {
    disk.bytes(cairn_engine::io::FileKind::Superblock)[144] == 1
}
