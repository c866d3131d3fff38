//! The driver: random requests, in an order that a seed decides.

use super::super::workload::{GROUP, Step, image, log_after};
use super::super::{Disk, Random};
use super::{KEYS, Keys, Requests, apply_to, check_apart, places, transition};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{Engine, Error, LogId, Mode, NewEntry, Promise, View};
use futures::FutureExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::task::{JoinHandle, yield_now};

/// Values that fill most of the area and stay: how many, and of how many blocks. With the largest
/// size hardly more than the reserve remains free, where freed space is reused first.
const BALLAST: u64 = 9;
const BALLAST_BLOCKS: [usize; 3] = [106, 99, 103];
const BALLAST_MOST: usize = 106;
/// Steps that may wait for their acknowledgement before the driver waits.
const OUTSTANDING: usize = 60;
/// Polls of a condition before the test gives up.
const WAIT_POLLS: u32 = 200_000;

/// Bytes that are hardly ever the same twice.
pub fn value(random: &mut Random, len: usize) -> Bytes {
    static POOL: OnceLock<Bytes> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        let mut random = Random(7);
        Bytes::from(
            (0..(BALLAST_MOST * BLOCK + (1 << 18)) / 8)
                .flat_map(|_| random.next().to_le_bytes())
                .collect::<Vec<_>>(),
        )
    });
    let from = random.below((pool.len() - len) as u64) as usize;
    pool.slice(from..from + len)
}

pub fn entry(id: LogId, random: &mut Random) -> NewEntry {
    let lengths = [0, 1, 60, 60, 300, 300, 700, 700, 1500, 1500, 4000, 4096, 4097, 9000, 20_000];
    let count = random.below(4) as usize;
    let values = (0..count).map(|_| {
        let len = lengths[random.below(lengths.len() as u64) as usize];
        value(random, len)
    });
    let values: Vec<Bytes> = values.collect();
    // Sometimes the meta is too long for its record, and the body goes to the data area too.
    let meta_len = if random.below(10) == 0 { 2500 } else { 8 };
    NewEntry::new(id, Bytes::from(vec![id.index as u8; meta_len]), values)
}

/// Sends an engine all kinds of requests, and records them.
pub struct Driver {
    engine: Engine,
    disk: Disk,
    requests: Arc<Requests>,
    mode: Mode,
    term: u64,
    next: u64,
    /// Entries of the log that are not applied.
    unapplied: Vec<NewEntry>,
    /// A completed checkpoint covers what was applied below this index.
    covered: Arc<AtomicU64>,
    /// Steps until held operations are released.
    held: u64,
    views: Vec<(View, Arc<Keys>)>,
    tasks: Vec<JoinHandle<()>>,
    /// How often an append was refused because the area was full.
    pub full: u64,
    /// How often a truncation met operations that were held.
    pub truncated_held: u64,
}

impl Drop for Driver {
    /// Ends the tasks, as the end of a process does.
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Driver {
    pub fn new(engine: &Engine, disk: &Disk, requests: &Arc<Requests>) -> Driver {
        let (purged, log) = log_after(&requests.steps.lock().unwrap());
        let applied = requests.applied.lock().unwrap().last_key_value().map(|(index, _)| *index);
        let last = log.values().next_back().map(|entry| entry.id).or(purged);
        Driver {
            engine: engine.clone(),
            disk: disk.clone(),
            requests: requests.clone(),
            mode: engine.status().mode,
            term: last.map_or(1, |last| last.term + 1),
            next: last.map_or(0, |last| last.index + 1),
            unapplied: log
                .into_values()
                .filter(|e| applied.is_none_or(|applied| e.id.index > applied))
                .collect(),
            covered: Arc::default(),
            held: 0,
            views: Vec::new(),
            tasks: Vec::new(),
            full: 0,
            truncated_held: 0,
        }
    }

    /// Fills most of the area for good.
    pub async fn ballast(&mut self, random: &mut Random, seed: u64) {
        let blocks = BALLAST_BLOCKS[(seed % 3) as usize];
        for number in 0..BALLAST {
            let id = LogId { term: self.term, index: self.next };
            let values = vec![value(random, blocks * BLOCK)];
            let ballast = NewEntry::new(id, format!("ballast{number}"), values);
            assert!(self.append(vec![ballast], Promise::Mode), "the ballast fits");
            self.catch_up().await;
        }
        self.apply(usize::MAX);
        self.engine.checkpoint().await.unwrap();
        self.covered.store(self.next, Ordering::SeqCst);
        self.purge(self.next - 1);
        self.catch_up().await;
    }

    /// Puts a value under every key, and leaves ten entries that are not applied.
    pub async fn fill(&mut self, random: &mut Random) {
        self.run(random, 80).await;
        self.apply(usize::MAX);
        for _ in 0..10 {
            let id = self.next_id();
            assert!(self.append(vec![entry(id, random)], Promise::Mode));
        }
        self.catch_up().await;
    }

    /// The id of the next entry.
    pub fn next_id(&self) -> LogId {
        LogId { term: self.term, index: self.next }
    }

    /// Runs `steps` steps. Afterwards nothing is held and everything is acknowledged.
    pub async fn run(&mut self, random: &mut Random, steps: u64) {
        for _ in 0..steps {
            self.step(random).await;
            for _ in 0..random.below(4) {
                yield_now().await;
            }
            self.held = self.held.saturating_sub(1);
            if self.held == 0 {
                self.disk.release();
            }
            let outstanding = self.requests.steps.lock().unwrap().len()
                - self.requests.acknowledged.load(Ordering::SeqCst);
            if outstanding > OUTSTANDING {
                self.catch_up().await;
            }
        }
        self.check_views().await;
        self.catch_up().await;
    }

    /// Waits until everything is acknowledged.
    async fn catch_up(&mut self) {
        self.held = 0;
        self.disk.release();
        let all = self.requests.steps.lock().unwrap().len();
        for _ in 0..WAIT_POLLS {
            if self.requests.acknowledged.load(Ordering::SeqCst) == all {
                return;
            }
            yield_now().await;
        }
        panic!("the requests are never acknowledged: {:?}", self.engine.status());
    }

    async fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..34 => {
                self.append_some(random);
            }
            // A leader's entries are overwritten by the next leader's before any of them was
            // written.
            34..44 => {
                let keep = self.unapplied.len();
                if self.next > 0 && self.append_some(random) {
                    self.truncate(keep);
                    self.append_some(random);
                }
            }
            // And their space is allocated again as soon as that is synced, while no block says so.
            44..48 if self.next > 0 => {
                let keep = self.unapplied.len();
                if self.append_large(random) {
                    self.truncate(keep);
                    self.append_some(random);
                }
                self.catch_up().await;
                self.engine.sync().await.unwrap();
                self.append_large(random);
            }
            48..58 => self.apply(random.below(self.unapplied.len() as u64 + 1) as usize),
            58..68 if self.unapplied.last().is_some_and(|entry| entry.id.index > 0) => {
                let first = usize::from(self.unapplied[0].id.index == 0);
                let keep = random.below((self.unapplied.len() - first) as u64) as usize;
                self.truncate(first + keep);
            }
            68..76 => {
                let covered = self.covered.load(Ordering::SeqCst);
                if let Some(through) = covered.checked_sub(1 + random.below(3)) {
                    self.purge(through);
                }
            }
            76..80 => {
                let steps = self.requests.steps.lock().unwrap().len() as u64;
                if steps.is_multiple_of(2) {
                    self.leave_out(steps / 2 % 8);
                }
                self.checkpoint();
            }
            80..86 => {
                let engine = self.engine.clone();
                self.tasks.push(tokio::spawn(async move { engine.sync().await.unwrap() }));
            }
            86..92 if self.held == 0 => {
                self.held = 2 + random.below(24);
                self.disk.hold(if random.below(2) == 0 {
                    FileKind::Data
                } else {
                    FileKind::Journal
                });
            }
            92..95 => {
                let keys = self.requests.keys();
                self.views.push((self.engine.view(GROUP), keys));
                if self.views.len() > 2 {
                    self.check_views().await;
                }
            }
            _ => {
                let key = Bytes::from(format!("k{}", random.below(KEYS)));
                let found = self.engine.get(GROUP, &key).await.unwrap();
                let found = found.map(|(entry, bytes)| (entry.version, bytes));
                assert_eq!(found.as_ref(), self.requests.keys().get(&key), "{key:?}");
                check_apart(&places(&self.engine, &self.requests));
            }
        }
    }

    fn append_some(&mut self, random: &mut Random) -> bool {
        let id = |i| LogId { term: self.term, index: self.next + i };
        let entries = (0..1 + random.below(4)).map(|i| entry(id(i), random)).collect();
        self.append(entries, if random.below(12) == 0 { Promise::Synced } else { Promise::Mode })
    }

    fn append_large(&mut self, random: &mut Random) -> bool {
        let entry = NewEntry::new(self.next_id(), Bytes::new(), [value(random, 20_000)]);
        self.append(vec![entry], Promise::Mode)
    }

    /// Returns `false` if the area is full.
    pub fn append(&mut self, entries: Vec<NewEntry>, promise: Promise) -> bool {
        let (before, place) = {
            let mut steps = self.requests.steps.lock().unwrap();
            let before = steps.len();
            steps.extend(entries.iter().cloned().map(Step::Append));
            (before, steps.len())
        };
        let requests = self.requests.clone();
        let synced = promise == Promise::Synced || self.mode == Mode::Sync;
        let done = Box::new(move |result: cairn_engine::Result<()>| {
            if result.is_ok() {
                requests.acknowledged.fetch_max(place, Ordering::SeqCst);
                if synced {
                    requests.synced.fetch_max(place, Ordering::SeqCst);
                }
            }
        });
        let appended = self.engine.append(GROUP, entries.clone(), promise, done).now_or_never();
        match appended.expect("the queue has space") {
            Ok(()) => {
                self.next += entries.len() as u64;
                self.unapplied.extend(entries);
                true
            }
            Err(Error::Full { .. }) => {
                self.requests.steps.lock().unwrap().truncate(before);
                self.full += 1;
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn apply(&mut self, most: usize) {
        let ready: Vec<NewEntry> = self.unapplied.drain(..most.min(self.unapplied.len())).collect();
        let Some(last) = ready.last() else { return };
        let mut keys = (*self.requests.keys()).clone();
        for entry in &ready {
            apply_to(&mut keys, entry);
            self.requests.applied.lock().unwrap().insert(entry.id.index, Arc::new(keys.clone()));
        }
        self.engine.apply(GROUP, ready.iter().map(transition).collect(), image(last.id)).unwrap();
    }

    /// Begins an operation whose effect in memory is immediate, whatever the disk does.
    fn begin(
        &mut self,
        step: Step,
        work: impl Future<Output = cairn_engine::Result<()>> + Send + 'static,
    ) {
        let place = {
            let mut steps = self.requests.steps.lock().unwrap();
            steps.push(step);
            steps.len()
        };
        let (requests, mut work) = (self.requests.clone(), Box::pin(work));
        let synced = self.mode == Mode::Sync;
        let ended = (&mut work).now_or_never();
        self.tasks.push(tokio::spawn(async move {
            match ended {
                Some(result) => result.unwrap(),
                None => work.await.unwrap(),
            }
            requests.acknowledged.fetch_max(place, Ordering::SeqCst);
            if synced {
                requests.synced.fetch_max(place, Ordering::SeqCst);
            }
        }));
    }

    /// Keeps only the first `keep` entries of those that are not applied.
    fn truncate(&mut self, keep: usize) {
        self.truncated_held += u64::from(self.held > 0);
        self.next = self.unapplied[keep].id.index;
        self.unapplied.truncate(keep);
        self.term += 1;
        let (engine, last) = (self.engine.clone(), self.next - 1);
        self.begin(
            Step::Truncate(last),
            async move { engine.truncate_after(GROUP, Some(last)).await },
        );
    }

    fn purge(&mut self, through: u64) {
        let (purged, log) = log_after(&self.requests.steps.lock().unwrap());
        let applied =
            self.requests.applied.lock().unwrap().last_key_value().map(|(index, _)| *index);
        let id = log.get(&through).map(|entry| entry.id).filter(|_| applied >= Some(through));
        if let Some(through) = id.filter(|id| purged.is_none_or(|purged| purged.index < id.index)) {
            let engine = self.engine.clone();
            self.begin(Step::Purge(through), async move { engine.purge(GROUP, through).await });
        }
    }

    /// Checkpoints leave out what is applied, but for so many entries.
    fn leave_out(&mut self, kept: u64) {
        let Some(applied) = self.engine.applied(GROUP) else { return };
        let through = applied.index.saturating_sub(kept);
        let mut left_out = self.requests.left_out.lock().unwrap();
        *left_out = (*left_out).max(Some(through));
        self.engine.leave_out(GROUP, through);
    }

    fn checkpoint(&mut self) {
        let applied = self
            .requests
            .applied
            .lock()
            .unwrap()
            .last_key_value()
            .map_or(0, |(index, _)| index + 1);
        let (engine, covered) = (self.engine.clone(), self.covered.clone());
        self.tasks.push(tokio::spawn(async move {
            engine.checkpoint().await.unwrap();
            covered.fetch_max(applied, Ordering::SeqCst);
        }));
    }

    /// Checks that every view still shows the state of the moment when it was made.
    async fn check_views(&mut self) {
        for (view, keys) in std::mem::take(&mut self.views) {
            assert_eq!(view.len(), keys.len());
            for (key, (version, bytes)) in
                keys.iter().filter(|(key, _)| !key.starts_with(b"ballast"))
            {
                let entry = view.get(key).unwrap();
                assert_eq!(
                    (entry.version, &view.read(&entry).await.unwrap()),
                    (*version, bytes),
                    "{key:?}"
                );
            }
        }
    }
}
