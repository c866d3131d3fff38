//! Somebody who takes the state of one log index from members, as a backup does: all of it, what changed
//! since an earlier one, and what is missing of one that broke off. Now and then by a scan of all keys, as any client.
//!
//! What holds here: a key that arrives is checked at once, and a value that was left out must be one that
//! was taken before. A state that arrived to its end is compared with what each member had at that position
//! that was seen there while somebody waited. The history of the clients and the logs of the members judge
//! it at the end of the run. A member that may lack something sends none, and none ends at a value that
//! cannot be read where no disk decays.

use super::cluster::Cluster;
use super::probe;
use bytes::Bytes;
use cairn_client::{Client, Error, HeldValues, Options, State, StateItem};
use cairn_clients::Violation;
use cairn_clients::check::state::{self, SentState};
use cairn_clients::workload::{decode_key, decode_value};
use cairn_engine::{LogId, View};
use cairn_raft::GROUP;
use madsim::runtime::NodeHandle;
use madsim::task::JoinHandle;
use rand::{RngExt, rngs::StdRng};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// The property of a cluster that clients are served by.
pub(super) const LIVENESS: &str = "a member sends its state in the end";
/// The property of what a member sends.
const READABLE: &str = "values of a state are readable where nothing decays";
/// The property of a member that may lack something.
const SILENT: &str = "a member that may lack writes sends no state";
/// The events.
const COMPLETE: &str = "states taken";
const COMPARED: &str = "states compared with another member at that index";
const BUILT_ON: &str = "values that were taken before and not sent again";
const BROKEN_OFF: &str = "states that broke off";
const SCANNED: &str = "scans of all keys";
const REFUSED: &str = "states refused by a member that may lack something";

/// The number of this client.
const CLIENT: u64 = 997;
const ATTEMPT: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_millis(500);
/// The time between two states, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 50..2_500;
/// How often members are looked at while somebody waits for the beginning of a state.
const LOOK: Duration = Duration::from_millis(1);
/// Without a part for so long a state counts as broken off. The client itself waits longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// One part in this many is followed by a pause of up to so many milliseconds.
const PAUSED_ONE_IN: u32 = 4;
const PART_PAUSE_MS: std::ops::Range<u64> = 1..40;
/// One state in this many is taken by a scan.
const SCANS_ONE_IN: u32 = 4;
/// How often each member of a healed cluster is asked, at most, and how far apart.
const ATTEMPTS: u32 = 60;
const BETWEEN: Duration = Duration::from_millis(500);

/// The version of each key, and the hash of its value.
type Versions = BTreeMap<Bytes, (LogId, u128)>;

/// How a call for a state ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// All of it has arrived. So many values were taken before, and not sent again.
    Complete { left_out: u64 },
    /// It began, and ended early.
    BrokenOff,
    /// It did not begin.
    Refused,
}

/// A state, or its first keys, with the values.
struct Saved {
    through: LogId,
    complete: bool,
    items: BTreeMap<Bytes, (LogId, u128, Bytes)>,
    /// Values that were not sent again.
    left_out: u64,
}

impl Saved {
    /// What the next call says of it.
    fn held(&self) -> HeldValues {
        let last = self.items.last_key_value().map(|(key, _)| key.clone());
        let through_key = last.filter(|_| !self.complete);
        HeldValues { through: (self.through.term, self.through.index), through_key }
    }

    fn value(&self, key: &Bytes, version: LogId, hash: u128) -> Option<Bytes> {
        let (of, its_hash, value) = self.items.get(key)?;
        (*of == version && *its_hash == hash).then(|| value.clone())
    }

    /// Adds what arrived. An error, if it cannot be of this state.
    fn add(&mut self, item: StateItem, sources: &[Arc<Saved>]) -> Result<(), String> {
        let version = LogId { term: item.term, index: item.index };
        let wrong = |what: &str| {
            let key = item.key.escape_ascii();
            Err(format!("key `{key}` of {version}, in the state of {}: {what}", self.through))
        };
        if self.items.last_key_value().is_some_and(|(last, _)| *last >= item.key) {
            return wrong("the key before it is no lower");
        }
        if version > self.through || version.index > self.through.index {
            return wrong("its version is later than the state");
        }
        let sent = item.value.is_some();
        let taken = || sources.iter().find_map(|one| one.value(&item.key, version, item.hash));
        let Some(value) = item.value.clone().or_else(taken) else {
            return wrong("its value was left out, and whoever asked does not have it");
        };
        if value.len() as u64 != u64::from(item.length) || xxh3_128(&value) != item.hash {
            return wrong("these are not its bytes");
        }
        self.left_out += u64::from(!sent);
        self.items.insert(item.key, (version, item.hash, value));
        Ok(())
    }

    fn versions(&self) -> Versions {
        let items = self.items.iter();
        items.map(|(key, (version, hash, _))| (key.clone(), (*version, *hash))).collect()
    }
}

/// What members had at the positions at which they were seen, by position and slot.
#[derive(Default)]
struct Positions(BTreeMap<(LogId, u16), Versions>);

impl Positions {
    fn look(&mut self, cluster: &Cluster) {
        for machine in &cluster.machines {
            let Some((_, node)) = machine.node() else { continue };
            let view = node.engine().view(GROUP);
            if let Some(applied) = view.applied() {
                self.0.entry((applied, machine.slot)).or_insert_with(|| versions(&view));
            }
        }
    }

    /// Each member that was seen there, and what it had.
    fn at(&self, position: LogId) -> impl Iterator<Item = (u16, &Versions)> {
        let there = self.0.range((position, 0)..=(position, u16::MAX));
        there.map(|((_, slot), had)| (*slot, had))
    }
}

fn versions(view: &View) -> Versions {
    let entries = view.entries();
    let version = |(key, entry): (&[u8], cairn_engine::KeyEntry)| {
        (Bytes::copy_from_slice(key), (entry.version, entry.value.hash))
    };
    entries.map(version).collect()
}

/// The first key that is not the same in both.
fn first_difference(sent: &Versions, had: &Versions) -> Option<String> {
    let key = sent.keys().chain(had.keys()).find(|key| sent.get(*key) != had.get(*key))?;
    let (sent, had) = (sent.get(key), had.get(key));
    Some(format!("key `{}`: sent {sent:?}, a member had {had:?}", key.escape_ascii()))
}

/// Takes states, and keeps the last one to build on.
pub(super) struct Taker {
    cluster: Arc<Cluster>,
    client: Client,
    rng: StdRng,
    base: Option<Arc<Saved>>,
    broken_off: Option<Arc<Saved>>,
}

impl Taker {
    pub(super) fn new(cluster: &Arc<Cluster>, rng: StdRng) -> Result<Taker, String> {
        let options = Options::new(cluster.endpoints())
            .deadline(PATIENCE)
            .attempt_timeout(ATTEMPT)
            .connect_timeout(CONNECT)
            .seed(cluster.plan.seed.wrapping_mul(1_000).wrapping_add(CLIENT));
        let client = options.build().map_err(|error| error.to_string())?;
        Ok(Taker { cluster: cluster.clone(), client, rng, base: None, broken_off: None })
    }

    /// Takes states until told to stop.
    async fn run(mut self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(PAUSE_MS))).await;
            let slot = self.rng.random_range(1..=self.cluster.plan.nodes);
            let since = self.rng.random_bool(0.5);
            if self.rng.random_ratio(1, SCANS_ONE_IN) {
                self.scan().await;
            } else {
                self.take(slot, since).await;
            }
        }
    }

    /// Scans all keys of whichever member answers. A scan that arrives to its end is judged like any other state.
    /// Returns whether it has.
    async fn scan(&mut self) -> bool {
        let asked = self.cluster.trace.now();
        let mut scan = match self.client.scan(..).await {
            Ok(scan) => scan,
            Err(error) => return self.scan_ends("no scan begins", &error),
        };
        // Its index was known before.
        let (begun, index) = (self.cluster.trace.now(), scan.position().index);
        let mut keys = BTreeMap::new();
        loop {
            let item = match tokio::time::timeout(PATIENCE, scan.next()).await {
                Ok(Ok(Some(item))) => item,
                Ok(Ok(None)) => break,
                Ok(Err(error)) => {
                    return self.scan_ends(&format!("the scan of {index} ends"), &error);
                }
                Err(_) => {
                    self.cluster.trace.event(format!("the scan of {index} hangs"));
                    return false;
                }
            };
            let Some(at) = decode_key(&item.key) else { continue };
            let Some(value) = decode_value(&item.value) else {
                let detail = format!("the scan of {index}: no client put the value of key {at:?}");
                self.cluster.violation(Violation::new(state::NAME, detail));
                return false;
            };
            keys.insert(at, (value, item.version.0));
            if self.rng.random_ratio(1, PAUSED_ONE_IN) {
                let pause = self.rng.random_range(PART_PAUSE_MS);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
        self.cluster.trace.event(format!("{} keys scanned of {index}", keys.len()));
        self.cluster.count_event(SCANNED);
        self.cluster.states.keep(SentState { asked, begun, index, keys }, std::iter::empty());
        true
    }

    /// A scan that did not arrive to its end. No fault of a network or of a disk makes a node send a key twice, keys out
    /// of order, or another number of them than it counted.
    fn scan_ends(&self, what: &str, error: &Error) -> bool {
        let ends = format!("{what}: {error}");
        if matches!(error, Error::ScanBroken { breach: true, .. }) {
            self.cluster.violation(Violation::new(state::NAME, ends.clone()));
        }
        self.check_readable(&ends, error);
        self.cluster.trace.event(ends);
        false
    }

    /// The view of a state keeps its values from being overwritten.
    fn check_readable(&self, ends: &str, error: &Error) {
        let unreadable = matches!(error, Error::ValueUnreadable { .. });
        if unreadable && self.cluster.atlas.victims().is_empty() {
            self.cluster.violation(Violation::new(READABLE, ends.to_owned()));
        }
    }

    /// Asks the member of a slot: for what changed since the last state that was taken, or for
    /// everything. What arrived of one that broke off is not asked for again.
    pub(super) async fn take(&mut self, slot: u16, since: bool) -> Taken {
        let cluster = self.cluster.clone();
        let Some(machine) = cluster.machines.iter().find(|machine| machine.slot == slot) else {
            return Taken::Refused;
        };
        let base = self.base.clone().filter(|_| since);
        let sources: Vec<Arc<Saved>> = base.into_iter().chain(self.broken_off.clone()).collect();
        let held: Vec<HeldValues> = sources.iter().map(|saved| saved.held()).collect();
        let (operator, endpoint) = (self.client.operator(), machine.address().client);
        let asked = cluster.trace.now();
        let life = probe::unreadable(machine);
        let (mut silent, mut positions) = (life.is_some(), Positions::default());
        let answer = {
            let mut asking = pin!(operator.state(&endpoint, &held));
            loop {
                positions.look(&cluster);
                silent &= probe::unreadable(machine) == life;
                if let Ok(answer) = tokio::time::timeout(LOOK, asking.as_mut()).await {
                    break answer;
                }
            }
        };
        silent &= probe::unreadable(machine) == life;
        positions.look(&cluster);
        let begun = cluster.trace.now();
        let mut sending = match answer {
            Ok(sending) => sending,
            Err(error) => {
                if silent {
                    cluster.count_event(REFUSED);
                }
                cluster.trace.event(format!("node {slot} sends no state: {error}"));
                return Taken::Refused;
            }
        };
        let (head, keys) = (sending.head(), sending.head().keys);
        let through = LogId { term: head.term, index: head.index };
        if silent {
            let detail = format!("node {slot} sends the state of {through}");
            cluster.violation(Violation::new(SILENT, detail));
        }
        let mut saved = Saved { through, complete: false, items: BTreeMap::new(), left_out: 0 };
        let complete = self.receive(slot, &mut sending, &mut saved, &sources).await;
        cluster.trace.event(format!(
            "node {slot} sent {} of {keys} keys of the state of {through}, beside {} earlier ones",
            saved.items.len(),
            sources.len()
        ));
        if !complete {
            cluster.count_event(BROKEN_OFF);
            // Without a key it would stand for all keys.
            self.broken_off = (!saved.items.is_empty()).then(|| Arc::new(saved));
            return Taken::BrokenOff;
        }
        saved.complete = true;
        self.compare(slot, &saved, &positions);
        self.judge(&saved, keys, (asked, begun));
        let left_out = saved.left_out;
        self.broken_off = None;
        self.base = Some(Arc::new(saved));
        Taken::Complete { left_out }
    }

    /// Takes what comes. Returns whether all has come.
    async fn receive(
        &mut self,
        slot: u16,
        sending: &mut State,
        saved: &mut Saved,
        sources: &[Arc<Saved>],
    ) -> bool {
        loop {
            let items = match tokio::time::timeout(PATIENCE, sending.next()).await {
                Ok(Ok(Some(items))) => items,
                Ok(Ok(None)) => return true,
                Ok(Err(error)) => {
                    let ends = format!("the state of node {slot} ends: {error}");
                    self.check_readable(&ends, &error);
                    self.cluster.trace.event(ends);
                    return false;
                }
                Err(_) => return false,
            };
            self.cluster.states.part_arrived();
            for item in items {
                if let Err(wrong) = saved.add(item, sources) {
                    let detail = format!("node {slot}: {wrong}");
                    self.cluster.violation(Violation::new(state::NAME, detail));
                    return false;
                }
            }
            if self.rng.random_ratio(1, PAUSED_ONE_IN) {
                let pause = self.rng.random_range(PART_PAUSE_MS);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
    }

    /// Compares a state that the member of this slot sent with what each one had at that position. What
    /// the sender itself had shows whether a key was lost on the way, and no more.
    fn compare(&self, slot: u16, saved: &Saved, positions: &Positions) {
        let versions = saved.versions();
        let mut with_another = false;
        for (of, had) in positions.at(saved.through) {
            with_another |= of != slot;
            if let Some(difference) = first_difference(&versions, had) {
                let detail = format!("the state of {}, node {of}: {difference}", saved.through);
                self.cluster.violation(Violation::new(state::NAME, detail));
            }
        }
        if with_another {
            self.cluster.count_event(COMPARED);
        }
    }

    /// Checks a state that has arrived to its end.
    fn judge(&self, saved: &Saved, keys: u64, times: (u64, u64)) {
        let wrong = |detail: String| {
            self.cluster.violation(Violation::new(state::NAME, detail));
        };
        self.cluster.count_event(COMPLETE);
        (0..saved.left_out).for_each(|_| self.cluster.count_event(BUILT_ON));
        let sent = saved.items.len();
        if sent as u64 != keys {
            wrong(format!("{sent} keys of {keys} in the state of {}", saved.through));
        }
        let mut of_clients = BTreeMap::new();
        for (key, (version, _, value)) in &saved.items {
            let Some(at) = decode_key(key) else { continue };
            match decode_value(value) {
                Some(value) => drop(of_clients.insert(at, (value, version.index))),
                None => wrong(format!("key {at:?} has {} bytes that no client put", value.len())),
            }
        }
        let (asked, begun) = times;
        let sent = SentState { asked, begun, index: saved.through.index, keys: of_clients };
        // An entry need not carry an empty value.
        let valued = saved.items.values().filter(|(_, _, value)| !value.is_empty());
        let values = valued.map(|(version, hash, _)| (*version, *hash));
        self.cluster.states.keep(sent, values);
    }
}

/// Starts to take states amid the faults, if the plan says so.
pub(super) fn start(
    cluster: &Arc<Cluster>,
    hosts: &[NodeHandle],
    stop: &Arc<AtomicBool>,
) -> Result<Option<JoinHandle<()>>, String> {
    let Some(host) = hosts.last().filter(|_| cluster.plan.takes_states) else { return Ok(None) };
    let taker = Taker::new(cluster, cluster.plan.rng(20))?;
    Ok(Some(host.spawn(taker.run(stop.clone()))))
}

/// After the faults each member sends its state, all and what changed, if the plan has somebody who takes
/// it, and one of them a scan of all keys. Nobody writes any more, so each state is compared with what the members have.
pub(super) async fn all_send(cluster: &Arc<Cluster>, hosts: &[NodeHandle]) -> Result<(), String> {
    let takes = cluster.plan.takes_states && !cluster.decided();
    let Some(host) = hosts.last().filter(|_| takes) else { return Ok(()) };
    let mut taker = Taker::new(cluster, cluster.plan.rng(21))?;
    let cluster = cluster.clone();
    let taking = host.spawn(async move {
        for machine in &cluster.machines {
            for since in [false, true] {
                if !sends(&mut taker, machine.slot, since).await {
                    let detail = format!("node {} does not", machine.slot);
                    cluster.violation(Violation::new(LIVENESS, detail));
                    return;
                }
            }
        }
        if !scans(&mut taker).await {
            cluster.violation(Violation::new(LIVENESS, "no scan of all keys arrives"));
        }
    });
    taking.await.map_err(|error| format!("whoever takes the states at the end: {error}"))
}

/// Whether a scan of all keys arrives to its end, when it is asked for a few times.
async fn scans(taker: &mut Taker) -> bool {
    for _ in 0..ATTEMPTS {
        if taker.scan().await {
            return true;
        }
        tokio::time::sleep(BETWEEN).await;
    }
    false
}

/// Whether the member sends its state to the end, when it is asked a few times.
async fn sends(taker: &mut Taker, slot: u16, since: bool) -> bool {
    for _ in 0..ATTEMPTS {
        if matches!(taker.take(slot, since).await, Taken::Complete { .. }) {
            return true;
        }
        tokio::time::sleep(BETWEEN).await;
    }
    false
}
