//! The context of a script: what it sees, and how it waits; its actions are in
//! [`acts`](super::acts).
//!
//! What holds here: a wait that ends in vain ends the script, so its later parts are not reached,
//! but the run continues. Each wait names what it waits for. Members are numbered from zero.

use super::STEPS;
use crate::disk::Moment;
use crate::harness::clock::virtual_time;
use crate::harness::cluster::Cluster;
use crate::harness::machine::{Condition, Machine};
use crate::harness::network::Links;
use cairn_clients::history::Outcome;
use cairn_clients::workload::Recorder;
use cairn_engine::LogId;
use cairn_engine::io::FileKind;
use cairn_node::Node;
use cairn_raft::{ReplicaStatus, Role};
use madsim::task::NodeId as Host;
use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The time between two checks; madsim does not sleep for less.
const POLL: Duration = Duration::from_millis(1);
/// Longest wait for a condition.
const WAIT_LIMIT: Duration = Duration::from_secs(25);
/// Longest wait for an operation to begin on a disk.
pub(super) const MOMENT: Duration = Duration::from_secs(3);

/// How a script ends: with all parts reached, or with the name of what it waited for in vain.
pub(super) type Played = Result<(), String>;

/// What a script signals to the rest of the run.
#[derive(Default)]
pub(in crate::harness) struct Signals {
    /// The clients must stop.
    pub(in crate::harness) quiet: Arc<AtomicBool>,
    /// When a script first cut the power of many machines at once.
    pub(in crate::harness) all_cut: Mutex<Option<Duration>>,
}

/// The context of a script.
pub(in crate::harness) struct Stage {
    pub(super) cluster: Arc<Cluster>,
    pub(super) links: Arc<Links>,
    pub(super) clients: Vec<Host>,
    pub(super) recorder: Recorder,
    pub(super) signals: Arc<Signals>,
    pub(super) rng: StdRng,
    /// The seed; a scenario also chooses its variant by it.
    pub(super) seed: u64,
}

impl Stage {
    pub(in crate::harness) fn new(
        (cluster, links, clients): (Arc<Cluster>, Arc<Links>, Vec<Host>),
        recorder: Recorder,
        signals: Arc<Signals>,
        seed: u64,
    ) -> Stage {
        let rng = cluster.plan.rng(3);
        Stage { cluster, links, clients, recorder, signals, rng, seed }
    }

    /// The history under construction.
    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Notes that a part of the scenario was reached.
    pub(super) fn reached(&self, part: &'static str) {
        self.cluster.count_event(part);
        self.cluster.trace.event(format!("reached: {part}"));
    }

    /// The same, if `happened`.
    pub(super) fn reached_if(&self, happened: bool, part: &'static str) {
        if happened {
            self.reached(part);
        }
    }

    /// The disk operation at which this seed ends a member.
    pub(super) fn step(&self) -> u32 {
        u32::try_from(self.seed % STEPS + 1).unwrap_or(1)
    }

    /// All members.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.cluster.machines.len()).collect()
    }

    /// All members but these, in random order.
    pub(super) fn others(&mut self, than: &[usize]) -> Vec<usize> {
        let mut others: Vec<usize> =
            self.all().into_iter().filter(|member| !than.contains(member)).collect();
        others.shuffle(&mut self.rng);
        others
    }

    /// The leader and two of the others, chosen at random.
    pub(super) async fn cast(&mut self) -> Result<(usize, usize, usize), String> {
        let leader = self.leader().await?;
        match self.others(&[leader]).as_slice() {
            [first, second, ..] => Ok((leader, *first, *second)),
            _ => Err("three members".into()),
        }
    }

    pub(super) fn machine(&self, member: usize) -> Result<&Machine, String> {
        self.cluster.machines.get(member).ok_or_else(|| format!("no member {member}"))
    }

    pub(super) fn node(&self, member: usize) -> Option<Arc<Node>> {
        self.cluster.machines.get(member)?.node().map(|(_, node)| node)
    }

    pub(super) fn status(&self, member: usize) -> Option<ReplicaStatus> {
        self.node(member).map(|node| node.replica().status())
    }

    pub(super) fn term(&self, member: usize) -> u64 {
        self.status(member).map_or(0, |status| status.term)
    }

    pub(super) fn is_active(&self, member: usize) -> bool {
        self.node(member).is_some_and(|node| node.replica().holds_all())
    }

    pub(super) fn is_recovering(&self, member: usize) -> bool {
        self.node(member).is_some_and(|node| !node.replica().holds_all())
    }

    /// The last entry that a member has purged. If the member had less before, a snapshot ends
    /// there.
    pub(super) fn purged(&self, member: usize) -> Option<LogId> {
        self.status(member)?.purged
    }

    /// Whether a member reports an unsafe recovery.
    pub(super) fn reports_unsafe_recovery(&self, member: usize) -> bool {
        self.node(member).is_some_and(|node| node.replica().unsafe_recoveries().count > 0)
    }

    pub(super) fn has_unsynced_acks(&self, member: usize) -> bool {
        self.cluster.machines.get(member).is_some_and(Machine::unsynced_acks)
    }

    /// The running leader of the highest term among these.
    pub(super) fn leads(&self, among: &[usize]) -> Option<(u64, usize)> {
        let up = |member: &usize| {
            self.cluster
                .machines
                .get(*member)
                .is_some_and(|machine| machine.condition() == Condition::Up)
        };
        let leads = |member: &usize| {
            let status = self.status(*member)?;
            (status.role == Role::Leader).then_some((status.term, *member))
        };
        among.iter().filter(|member| up(member)).filter_map(leads).max()
    }

    // Waits.

    /// Waits until `done` holds, or ends the script.
    pub(super) async fn until(&self, what: &str, done: impl FnMut() -> bool) -> Played {
        self.within(WAIT_LIMIT, done).await.then_some(()).ok_or_else(|| what.to_owned())
    }

    /// Whether `done` holds within this time.
    pub(super) async fn within(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let begun = virtual_time();
        while !done() {
            if virtual_time() - begun >= limit {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        true
    }

    /// Waits between `from` and `to` milliseconds.
    pub(super) async fn pass(&mut self, from: u64, to: u64) {
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(from..=to))).await;
    }

    /// Waits for a leader.
    pub(super) async fn leader(&self) -> Result<usize, String> {
        self.leader_among(&self.all(), 0).await
    }

    /// Waits for a leader of a later term than this among these.
    pub(super) async fn leader_among(&self, among: &[usize], after: u64) -> Result<usize, String> {
        self.until("a leader", || self.leads(among).is_some_and(|(term, _)| term > after)).await?;
        self.leads(among).map(|(_, leader)| leader).ok_or_else(|| "a leader".into())
    }

    /// Waits until this many more writes are acknowledged.
    pub(super) async fn acknowledged(&self, count: usize) -> Played {
        let before = self.recorder.acknowledged();
        self.until("acknowledged writes", || self.recorder.acknowledged() >= before + count).await
    }

    /// The longest time in which no client received the acknowledgement of a write, from this time of
    /// the recorder on.
    pub(super) fn longest_pause(&self, from: u64) -> Duration {
        let mut times = self.recorder.acknowledged_since(from);
        times.sort_unstable();
        let before = std::iter::once(from).chain(times.iter().copied());
        let pauses = before.zip(&times).map(|(before, after)| after.saturating_sub(before));
        Duration::from_nanos(pauses.max().unwrap_or_default())
    }

    /// Waits until one more write is acknowledged that asked for a sync before its acknowledgement.
    pub(super) async fn synced_write(&self) -> Played {
        let count = || {
            let records = self.recorder.records();
            records.iter().filter(|one| one.synced && one.is_applied()).count()
        };
        let before = count();
        self.until("a synced write", || count() > before).await
    }

    /// Whether a client received, later than at this time, the answer to a write at such an index.
    pub(super) fn answered(&self, after: u64, at: impl Fn(u64) -> bool) -> bool {
        self.recorder.records().iter().any(|record| match record.outcome {
            Outcome::Applied { index, .. } => record.returned > after && at(index),
            _ => false,
        })
    }

    /// Waits until all of these members acknowledge before they sync.
    pub(super) async fn ahead(&self, members: &[usize]) -> Played {
        self.until("acknowledgements before syncs", || {
            members.iter().all(|member| self.has_unsynced_acks(*member))
        })
        .await
    }

    /// Waits until nothing on these disks is unsynced. With clients that still write this is a
    /// matter of luck.
    pub(super) async fn synced(&self, members: &[usize]) -> Played {
        let dirty =
            |member: &usize| self.machine(*member).map_or(0, |machine| machine.disk.dirty_blocks());
        self.until("synced disks", || members.iter().all(|member| dirty(member) == 0)).await
    }

    /// Waits until all of these members are active.
    pub(super) async fn active(&self, members: &[usize]) -> Played {
        let active = || members.iter().all(|member| self.is_active(*member));
        self.until("active members", active).await
    }

    /// Waits until a member is up and recovering.
    pub(super) async fn recovering(&self, member: usize) -> Played {
        self.until("a recovering member", || self.is_recovering(member)).await
    }

    /// Waits until `count` more operations of the kind have begun on a member's disk.
    pub(super) async fn disk(&self, member: usize, moment: Moment, count: u32) -> Played {
        let disk = self.machine(member)?.disk.clone();
        let begun = tokio::time::timeout(MOMENT, disk.after(moment, count)).await;
        begun.map_err(|_| format!("{moment:?} on the disk of member {member}"))
    }

    /// Waits until a member's superblock is being written.
    pub(super) async fn superblock(&self, member: usize) -> Played {
        self.disk(member, Moment::WriteTo(FileKind::Superblock), 1).await
    }
}
