//! A nearly full data area under change: values that share blocks are overwritten, deleted,
//! truncated and purged as fast as they come. Sometimes the writes or syncs of a file are held
//! back, so that the queue fills.
//!
//! A plain model of the requests and acknowledgements, and what the disk really holds, decide what
//! is right. The engine only reports where it put a value, never whether that is right. No timer
//! decides anything, so a seed runs the same each time.

pub mod driver;

use super::workload::{GROUP, Step, image, log_after, log_found};
use super::{Cache, Disk, Random, identity, stored};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{
    Change, Engine, Geometry, KernelBootId, LogId, MemberState, Mode, NewEntry, Options, Owner,
    SpaceUse, Transition, ValueRef,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Keys that are overwritten and deleted continuously.
const KEYS: u64 = 24;

/// How a node runs and ends.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub mode: Mode,
    pub cache: Cache,
    /// The power is cut; else the process is killed.
    pub power: bool,
}

impl World {
    pub const SYNCED: World = World { mode: Mode::Sync, cache: Cache::Volatile, power: true };
    pub const REPLICATED: World =
        World { mode: Mode::Replicated, cache: Cache::Volatile, power: true };
    pub const KILLED: World =
        World { mode: Mode::Replicated, cache: Cache::Volatile, power: false };
    pub const PROTECTED: World = World { mode: Mode::Device, cache: Cache::Protected, power: true };

    pub fn crash(self, disk: &Disk, random: &mut Random) {
        match self.power {
            true => disk.reboot(self.cache, random.fate()),
            false => disk.kill(random.fate()),
        }
    }

    /// No sync by time: only if an acknowledgement waits for it, on request, or after so many
    /// bytes.
    pub fn options(self, generation: u128, seed: u64) -> Options {
        let boot = if self.power { generation } else { 1 };
        Options {
            sync_interval: Duration::from_secs(3600),
            sync_bytes: 16 << 10 << (seed % 4),
            log_cache_bytes: if seed.is_multiple_of(2) { 0 } else { 20 << 10 },
            ..Options::new(self.mode, KernelBootId(boot), generation as u64)
        }
    }

    pub async fn open(self, disk: &Disk, generation: u128, seed: u64, what: &str) -> Engine {
        let name = Some((identity().cluster, identity().slot));
        let engine =
            Engine::open(Arc::new(disk.clone()), name, self.options(generation, seed)).await;
        engine.unwrap_or_else(|error| panic!("{what}: {error}"))
    }
}

/// Names the round that failed.
pub struct Round(pub String);

impl Drop for Round {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {}", self.0);
        }
    }
}

/// What each key holds, and the entry that wrote it.
pub type Keys = BTreeMap<Bytes, (LogId, Bytes)>;

/// The requests to the engine, and how many of them were acknowledged.
#[derive(Default)]
pub struct Requests {
    pub steps: Mutex<Vec<Step>>,
    pub acknowledged: AtomicUsize,
    /// How many of them were promised to be synced.
    pub synced: AtomicUsize,
    /// The keys after each applied entry.
    pub applied: Mutex<BTreeMap<u64, Arc<Keys>>>,
    /// Up to where checkpoints may have left out entries.
    pub left_out: Mutex<Option<u64>>,
}

impl Requests {
    pub fn copy(&self) -> Arc<Requests> {
        Arc::new(Requests {
            steps: Mutex::new(self.steps.lock().unwrap().clone()),
            acknowledged: AtomicUsize::new(self.acknowledged.load(Ordering::SeqCst)),
            synced: AtomicUsize::new(self.synced.load(Ordering::SeqCst)),
            applied: Mutex::new(self.applied.lock().unwrap().clone()),
            left_out: Mutex::new(*self.left_out.lock().unwrap()),
        })
    }

    /// Gives the disk a function that returns how much is acknowledged.
    pub fn watch(self: &Arc<Requests>, disk: &Disk) {
        let requests = self.clone();
        disk.counts(move || requests.acknowledged.load(Ordering::SeqCst));
    }

    pub fn keys(&self) -> Arc<Keys> {
        self.applied
            .lock()
            .unwrap()
            .last_key_value()
            .map(|(_, keys)| keys.clone())
            .unwrap_or_default()
    }

    /// Sets the first `count` steps as the present content, all of it durable, purged through there.
    fn is_now(&self, count: usize, applied: Option<LogId>, purged: Option<LogId>) {
        let count = {
            let mut steps = self.steps.lock().unwrap();
            steps.truncate(count);
            let by_checkpoint = purged.filter(|_| purged > log_after(&steps).0);
            steps.extend(by_checkpoint.map(Step::Purge));
            steps.len()
        };
        self.acknowledged.store(count, Ordering::SeqCst);
        self.synced.store(count, Ordering::SeqCst);
        let next = applied.map_or(0, |applied| applied.index + 1);
        self.applied.lock().unwrap().split_off(&next);
    }
}

/// What applying an entry does: its values go under keys of a small set, and an entry without
/// values deletes one.
pub fn transition(entry: &NewEntry) -> Transition {
    let (index, ballast) = (entry.id.index, entry.meta.starts_with(b"ballast"));
    let key = |n: u64| Bytes::from(format!("k{}", (index * 7 + n) % KEYS));
    let put = |value: usize| Change::Put {
        key: if ballast { entry.meta.clone() } else { key(value as u64) },
        value,
    };
    let mut changes: Vec<Change> = (0..entry.values.len()).map(put).collect();
    if changes.is_empty() {
        changes.push(Change::Delete { key: key(0) });
    }
    Transition { applied: entry.id, changes }
}

fn apply_to(keys: &mut Keys, entry: &NewEntry) {
    for change in transition(entry).changes {
        match change {
            Change::Put { key, value } => {
                drop(keys.insert(key, (entry.id, entry.values[value].bytes().clone())))
            }
            Change::Delete { key } => drop(keys.remove(&key)),
        }
    }
}

/// The extent of each value that must be there, as the engine reports it, with the expected bytes.
fn places(engine: &Engine, requests: &Requests) -> Vec<(ValueRef, Bytes)> {
    let mut found = Vec::new();
    for entry in log_after(&requests.steps.lock().unwrap()).1.into_values() {
        let at = engine
            .values_of(GROUP, entry.id.index)
            .unwrap_or_else(|| panic!("entry {} is gone", entry.id));
        assert_eq!(at.len(), entry.values.len(), "{}", entry.id);
        found
            .extend(at.into_iter().zip(entry.values.into_iter().map(|value| value.into_parts().0)));
    }
    for (key, (version, bytes)) in requests.keys().iter() {
        let held = engine.lookup(GROUP, key).unwrap_or_else(|| panic!("{key:?} is gone"));
        assert_eq!(held.version, *version, "{key:?}");
        found.push((held.value, bytes.clone()));
    }
    assert!(found.iter().all(|(at, bytes)| at.len as usize == bytes.len()));
    found.retain(|(at, _)| at.len > 0);
    found.sort_by_key(|(at, _)| at.offset());
    // A value that both a log entry and a key refer to.
    found.dedup_by_key(|(at, _)| at.clone());
    found
}

/// Checks that no two values share a byte.
fn check_apart(places: &[(ValueRef, Bytes)]) {
    let of =
        |(at, _): &(ValueRef, Bytes)| at.segments().map(|s| (s.start, s.end)).collect::<Vec<_>>();
    let mut parts: Vec<(u64, u64)> = places.iter().flat_map(of).collect();
    parts.sort_unstable();
    for pair in parts.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:?} overlap");
    }
}

/// Writes and syncs until all that is dead is free, and compaction has nothing more to gain.
async fn settle(engine: &Engine, what: &str) {
    let mut moved = None;
    for _ in 0..100 {
        engine.barrier().await.unwrap();
        engine.sync().await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let status = engine.status();
        let SpaceUse { dead_unrecorded, dead_unsynced, dead_viewed, .. } = status.space;
        let before = moved.replace(status.moved_bytes);
        if before == moved && dead_unrecorded + dead_unsynced + dead_viewed == 0 {
            return;
        }
    }
    panic!("{what}: compaction never ends: {:?}", engine.status());
}

/// With no operation in flight: the disk holds what must be there, no two values share a byte, and
/// once the frees are recorded and synced, all other space is free.
pub async fn check_space(
    engine: &Engine,
    disk: &Disk,
    requests: &Requests,
    geometry: Geometry,
    what: &str,
) {
    engine.checkpoint().await.unwrap();
    settle(engine, what).await;
    let places = places(engine, requests);
    check_apart(&places);
    let on_disk = disk.bytes(FileKind::Data);
    for (at, bytes) in &places {
        assert!(stored(&on_disk, at) == bytes[..], "{what}: other bytes at {at:?}");
    }
    let mut bodies = engine.extents(GROUP, 0..u64::MAX).await;
    bodies.retain(|extent| extent.owner == Owner::Body);
    let mut blocks = BTreeSet::new();
    for at in places.iter().map(|(at, _)| at).chain(bodies.iter().map(|extent| &extent.at)) {
        for part in at.segments() {
            blocks.extend(part.start / BLOCK as u64..part.end.div_ceil(BLOCK as u64));
        }
    }
    for body in &bodies {
        let apart = |at: &ValueRef| {
            let mut parts =
                at.segments().flat_map(|a| body.at.segments().map(move |b| (a.clone(), b)));
            parts.all(|(a, b)| a.end <= b.start || b.end <= a.start)
        };
        assert!(places.iter().all(|(at, _)| apart(at)), "{what}: {body:?} overlaps a value");
        assert!(engine.read_extent(GROUP, body).await.unwrap().is_some(), "{what}: {body:?}");
    }
    let live = blocks.len() as u64 * BLOCK as u64;
    let free = engine.status().free_bytes;
    assert_eq!(
        free,
        geometry.data_bytes - live,
        "{what}: live and free bytes do not add up to the area"
    );
    let space = engine.status().space;
    let keyed: u64 = requests.keys().values().map(|(_, bytes)| bytes.len() as u64).sum();
    let all = places.iter().map(|(at, _)| at).chain(bodies.iter().map(|extent| &extent.at));
    let all: u64 = all.map(|at| u64::from(at.len)).sum();
    let expected = SpaceUse {
        live: keyed,
        log: all - keyed,
        padding: live - all,
        reserve: free.min(geometry.data_bytes / BLOCK as u64 / 32 * BLOCK as u64),
        free: free.saturating_sub(geometry.data_bytes / BLOCK as u64 / 32 * BLOCK as u64),
        ..SpaceUse::default()
    };
    assert_eq!(space, expected, "{what}");
}

/// Compares what was opened after a crash with the requests, and re-applies what was applied
/// before.
pub async fn check_recovered(
    engine: &Engine,
    disk: &Disk,
    requests: &Arc<Requests>,
    world: World,
    what: &str,
) -> MemberState {
    let World { mode, power, .. } = world;
    let steps = requests.steps.lock().unwrap().clone();
    let acknowledged = requests.acknowledged.load(Ordering::SeqCst);
    // Only what the disk really lost excuses a missing step, and only in mode `replicated`.
    let lost = if power { disk.lost() } else { 0 };
    let kept = match (mode, lost) {
        (Mode::Replicated, 1..) => disk.durable().max(requests.synced.load(Ordering::SeqCst)),
        _ => acknowledged,
    };
    let bounds = engine.log_bounds(GROUP);
    let left_out = *requests.left_out.lock().unwrap();
    let member_state = engine.member_state();
    let first = bounds.purged.map_or(0, |purged| purged.index + 1);
    let found = engine.read_log(GROUP, first..u64::MAX, u64::MAX).await;
    let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
    let gives = |count: &usize| {
        let (purged, log) = log_found(&steps[..*count], bounds.purged, left_out);
        purged == bounds.purged && log.into_values().eq(found.iter().cloned())
    };
    // The same log may result from two prefixes: a truncation may remove what was appended before
    // it.
    let count =
        (acknowledged..=steps.len()).find(gives).or_else(|| (kept..acknowledged).rev().find(gives));
    let count = count.unwrap_or_else(|| {
        let (purged, log) = log_after(&steps[..acknowledged]);
        let differs = log.into_values().zip(&found).find(|(expected, found)| expected != *found);
        let first = differs.map(|(expected, _)| expected.id);
        panic!(
            "{what}: the log {bounds:?} with {} entries matches no prefix of {} steps, of which {acknowledged} were \
             acknowledged and {kept} cannot be lost; the model purged {purged:?} and differs first at {first:?}; the \
             disk lost {lost} blocks and {} steps are durable, {} promised to be, {member_state:?}",
            found.len(),
            steps.len(),
            disk.durable(),
            requests.synced.load(Ordering::SeqCst)
        )
    });
    if count < acknowledged {
        assert_eq!(
            member_state,
            MemberState::Recovering,
            "{what}: it lost acknowledged steps and does not recover"
        );
    }
    if mode != Mode::Replicated || !power {
        assert_eq!(member_state, MemberState::Active, "{what}");
    }
    let before = engine.applied_before_restart(GROUP);
    assert!(before >= bounds.purged, "{what}: applied {before:?}, purged {bounds:?}");
    let from = engine.applied(GROUP).map_or(0, |applied| applied.index + 1);
    let again: Vec<&NewEntry> = found
        .iter()
        .filter(|e| e.id.index >= from && before.is_some_and(|before| e.id <= before))
        .collect();
    if let Some(last) = again.last() {
        let transitions = again.iter().map(|entry| transition(entry)).collect();
        engine.apply(GROUP, transitions, image(last.id)).unwrap();
    }
    assert_eq!(engine.applied(GROUP), before, "{what}: the log does not reach what was applied");
    requests.is_now(count, before, bounds.purged);
    requests.watch(disk);
    let keys = requests.keys();
    assert_eq!(engine.view(GROUP).len(), keys.len(), "{what}");
    for (key, (version, bytes)) in keys.iter().filter(|(key, _)| !key.starts_with(b"ballast")) {
        let found =
            engine.get(GROUP, key).await.unwrap_or_else(|error| panic!("{what}: {key:?}: {error}"));
        let found = found.map(|(entry, bytes)| (entry.version, bytes));
        assert!(
            found.as_ref() == Some(&(*version, bytes.clone())),
            "{what}: {key:?} of entry {version}"
        );
    }
    check_apart(&places(engine, requests));
    if member_state == MemberState::Recovering {
        engine.set_active().await.unwrap();
    }
    member_state
}
