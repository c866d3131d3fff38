//! A random mixture of all requests to an engine, a record of what was acknowledged, and checks
//! that a reopened directory holds that.

use super::{Disk, Random};
use bytes::Bytes;
use cairn_disk::ARRANGED;
use cairn_engine::{
    Change, Engine, GroupId, KernelBootId, LogId, MemberState, Mode, NewEntry, Options, Promise,
    SharedImage, Transition,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const GROUP: GroupId = GroupId(0);

/// One step of a group's history, as the journal orders them.
#[derive(Clone, Debug)]
pub enum Step {
    Append(NewEntry),
    Truncate(u64),
    Purge(LogId),
}

/// What each key holds, and the entry that wrote it.
pub type Keys = BTreeMap<Bytes, (LogId, Bytes)>;

/// What the test requested, and how much of it was acknowledged.
#[derive(Default)]
pub struct History {
    pub steps: Mutex<Vec<Step>>,
    pub acknowledged: AtomicUsize,
    pub votes: Mutex<Vec<u64>>,
    pub acknowledged_vote: Mutex<Option<u64>>,
    /// The keys after each applied entry.
    pub applied: Mutex<BTreeMap<u64, Keys>>,
    /// Up to where checkpoints may have left out entries.
    pub left_out: Mutex<Option<u64>>,
}

/// The log after `steps`.
pub fn log_after(steps: &[Step]) -> (Option<LogId>, BTreeMap<u64, NewEntry>) {
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

/// The same as a restart may find it, purged through there: in a checkpoint that left entries out they
/// are purged.
pub fn log_found(
    steps: &[Step],
    found: Option<LogId>,
    left_out: Option<u64>,
) -> (Option<LogId>, BTreeMap<u64, NewEntry>) {
    let (purged, mut log) = log_after(steps);
    let by_checkpoint = found.filter(|found| {
        let known = log.get(&found.index).is_some_and(|entry| entry.id == *found);
        known && Some(found.index) <= left_out
    });
    if let Some(through) = by_checkpoint {
        log = log.split_off(&(through.index + 1));
    }
    (purged.max(by_checkpoint), log)
}

pub fn options(mode: Mode, boot: u128) -> Options {
    let mut options = Options::new(mode, KernelBootId(boot), boot as u64);
    options.sync_interval = Duration::from_millis(2);
    options.sync_bytes = 64 << 10;
    options.log_cache_bytes = 32 << 10;
    options
}

pub fn entry(id: LogId, random: &mut Random) -> NewEntry {
    // Mostly small, sometimes large, sometimes empty; now and then a meta too long for its record.
    let lengths = [0, 1, 100, 300, 4096, 4097, 9000, 30_000];
    let count = random.below(3) as usize;
    let mut value = |_| {
        let len = lengths[random.below(lengths.len() as u64) as usize];
        let seed = random.next();
        Bytes::from(
            (0..len).map(|i: u64| (seed.wrapping_mul(i + 1) >> 32) as u8).collect::<Vec<_>>(),
        )
    };
    let values: Vec<Bytes> = (0..count).map(&mut value).collect();
    let meta_len = if random.below(12) == 0 { 3000 } else { 8 };
    let meta = Bytes::from(vec![id.index as u8; meta_len]);
    NewEntry::new(id, meta, values)
}

/// What applying an entry does: its values go under keys of a small set, and an entry without
/// values deletes one.
pub fn transition(entry: &NewEntry) -> Transition {
    let key = |n: u64| Bytes::from(format!("key{}", n % 7));
    let mut changes: Vec<Change> = (0..entry.values.len())
        .map(|value| Change::Put { key: key(entry.id.index + value as u64), value })
        .collect();
    if changes.is_empty() {
        changes.push(Change::Delete { key: key(entry.id.index) });
    }
    Transition { applied: entry.id, changes }
}

pub fn apply_to(keys: &mut Keys, entry: &NewEntry) {
    for change in transition(entry).changes {
        match change {
            Change::Put { key, value } => {
                drop(keys.insert(key, (entry.id, entry.values[value].bytes().clone())))
            }
            Change::Delete { key } => drop(keys.remove(&key)),
        }
    }
}

pub fn image(applied: LogId) -> SharedImage {
    Arc::new(applied.index.to_le_bytes().to_vec())
}

/// Sends the engine a random mixture of requests, for `count` rounds.
pub async fn workload(engine: &Engine, history: &Arc<History>, random: &mut Random, count: u64) {
    if random.below(4) > 0 {
        engine.raise_format();
    }
    let mut term = 1;
    let mut unapplied: Vec<NewEntry> = Vec::new();
    let mut next = 0;
    for _ in 0..count {
        match random.below(20) {
            0 => {
                let vote = history.votes.lock().unwrap().len() as u64 + 1;
                history.votes.lock().unwrap().push(vote);
                expect_ok(engine.save_vote(GROUP, &vote.to_le_bytes()).await).await;
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
                expect_ok(engine.truncate_after(GROUP, Some(last)).await).await;
                history.acknowledged.fetch_max(place, Ordering::SeqCst);
            }
            2 => {
                let applied = engine.applied(GROUP).map(|applied| applied.index);
                if let Some(through) = applied.filter(|_| random.below(2) == 0) {
                    let through = through.saturating_sub(random.below(6));
                    let mut left_out = history.left_out.lock().unwrap();
                    *left_out = (*left_out).max(Some(through));
                    engine.leave_out(GROUP, through);
                }
                expect_ok(engine.checkpoint().await).await;
            }
            3 => {
                let applied = engine.applied(GROUP);
                if let Some(applied) = applied.filter(|a| a.index > 4) {
                    let id = engine.log_id_at(GROUP, applied.index - random.below(4));
                    if let Some(through) = id {
                        // A purge may take a checkpoint first. It counts as a step only when it is
                        // queued.
                        expect_ok(engine.checkpoint().await).await;
                        let place = {
                            let mut steps = history.steps.lock().unwrap();
                            steps.push(Step::Purge(through));
                            steps.len()
                        };
                        expect_ok(engine.purge(GROUP, through).await).await;
                        history.acknowledged.fetch_max(place, Ordering::SeqCst);
                    }
                }
            }
            4..=8 => {
                let take = random.below(unapplied.len() as u64 + 1) as usize;
                let ready: Vec<NewEntry> = unapplied.drain(..take).collect();
                if let Some(last) = ready.last() {
                    {
                        let mut all = history.applied.lock().unwrap();
                        let mut keys =
                            all.last_key_value().map(|(_, k)| k.clone()).unwrap_or_default();
                        for entry in &ready {
                            apply_to(&mut keys, entry);
                            all.insert(entry.id.index, keys.clone());
                        }
                    }
                    expect_ok(engine.apply(
                        GROUP,
                        ready.iter().map(transition).collect(),
                        image(last.id),
                    ))
                    .await;
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
                expect_ok(engine.append(GROUP, entries, promise, done).await).await;
                if random.below(3) == 0 {
                    tokio::time::sleep(Duration::from_micros(random.below(300))).await;
                }
            }
        }
    }
}

/// A device failure that the test injected ends the workload silently. Any other error is a test
/// failure.
async fn expect_ok(result: cairn_engine::Result<()>) {
    match result {
        Err(error) if error.to_string().contains(ARRANGED) => std::future::pending().await,
        result => result.unwrap(),
    }
}

/// Opens the disk again and compares it with the history. Returns the engine, with its state
/// re-applied.
pub async fn verify(disk: &Disk, history: &History, options: Options, what: &str) -> Engine {
    let engine = Engine::open(Arc::new(disk.clone()), Some(("test".into(), 1)), options).await;
    let engine = engine.unwrap_or_else(|e| panic!("{what}: {e}"));
    check(&engine, history, what).await;
    engine
}

/// Compares an opened engine with the history, and re-applies its state.
pub async fn check(engine: &Engine, history: &History, what: &str) {
    let steps = history.steps.lock().unwrap().clone();
    // A recovering node may have lost acknowledged steps. What it has is still a prefix.
    let acknowledged = match engine.member_state() {
        MemberState::Active => history.acknowledged.load(Ordering::SeqCst),
        MemberState::Recovering => 0,
    };
    let bounds = engine.log_bounds(GROUP);
    let left_out = *history.left_out.lock().unwrap();
    let first = bounds.purged.map_or(0, |p| p.index + 1);
    let found = engine.read_log(GROUP, first..u64::MAX, u64::MAX).await;
    let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
    let prefix = (acknowledged..=steps.len()).find(|n| {
        let (purged, log) = log_found(&steps[..*n], bounds.purged, left_out);
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
    let requested = history.votes.lock().unwrap().last().copied();
    let kept = *history.acknowledged_vote.lock().unwrap();
    assert!(
        vote >= kept && vote <= requested,
        "{what}: vote {vote:?}, acknowledged {kept:?}, requested {requested:?}"
    );

    // The state machine continues from the checkpoint to what was applied before.
    let applied = history.applied.lock().unwrap().clone();
    let before = engine.applied_before_restart(GROUP);
    if let Some(before) = before {
        let from = engine.applied(GROUP).map_or(0, |a| a.index + 1);
        let image_at = engine.view(GROUP).machine();
        if let Some(at) = engine.applied(GROUP) {
            assert_eq!(
                image_at,
                at.index.to_le_bytes(),
                "{what}: the image is not the checkpoint's"
            );
        }
        let again = engine.read_log(GROUP, from..before.index + 1, u64::MAX).await.unwrap();
        if !again.is_empty() {
            engine.apply(GROUP, again.iter().map(transition).collect(), image(before)).unwrap();
        }
        assert_eq!(
            engine.applied(GROUP),
            Some(before),
            "{what}: the log does not reach what was applied"
        );
        let expected = &applied[&before.index];
        assert_eq!(engine.view(GROUP).len(), expected.len(), "{what}");
        for (key, (version, value)) in expected {
            let (entry, bytes) =
                engine.get(GROUP, key).await.unwrap().unwrap_or_else(|| panic!("{what}: {key:?}"));
            assert_eq!((entry.version, &bytes), (*version, value), "{what}: {key:?}");
        }
    }
}
