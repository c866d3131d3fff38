//! What a script acts with: it ends, starts, pauses and parts machines, and waits for what it needs to see.
//!
//! What holds here: a wait that ends in vain ends the script, and with it only what it stages, not the run; each wait names
//! what it waits for. Members are numbered from zero.

use super::STEPS;
use crate::disk::{Decay, Files, Moment};
use crate::harness::cluster::{Cluster, virtual_time};
use crate::harness::decay::{UNREADABLE, read_all};
use crate::harness::faults::FUNERAL;
use crate::harness::finale;
use crate::harness::machine::{Condition, Death, Machine};
use crate::harness::network::Links;
use crate::history::{GROUP_KEYS, Outcome};
use crate::workload::{Recorder, encode_key};
use bytes::Bytes;
use cairn_engine::io::FileKind;
use cairn_engine::{LogId, Standing};
use cairn_node::Node;
use cairn_raft::{Command, Condition as If, GROUP, Operation, ReplicaStatus, Role, WriteOutcome};
use madsim::task::NodeId as Host;
use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time between two looks; madsim sleeps no shorter.
const POLL: Duration = Duration::from_millis(1);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(25);
/// Longest wait for something to begin on a disk.
const MOMENT: Duration = Duration::from_secs(3);
/// How often a command of the script's own is asked for, at most.
const COMMAND_ATTEMPTS: usize = 30;
/// Longest wait for a clean stop.
const STOP_LIMIT: Duration = Duration::from_secs(12);

/// So many values, and the bytes of each.
const BULK: u8 = 60;
const BULK_BYTES: usize = 60_000;

/// How a script ends: with everything staged, or with what did not come about.
pub(super) type Played = Result<(), String>;

/// What a script tells the rest of the run.
#[derive(Default)]
pub(in crate::harness) struct Signals {
    /// The clients shall end.
    pub(in crate::harness) quiet: Arc<AtomicBool>,
    /// When all machines lost power at once, first.
    pub(in crate::harness) all_cut: Mutex<Option<Duration>>,
}

/// Where a script plays.
pub(in crate::harness) struct Stage {
    pub(super) cluster: Arc<Cluster>,
    links: Arc<Links>,
    clients: Vec<Host>,
    recorder: Recorder,
    signals: Arc<Signals>,
    pub(super) rng: StdRng,
    /// By which a scenario also counts its variants.
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

    /// Something that the scenario stages has happened.
    pub(super) fn reached(&self, part: &'static str) {
        self.cluster.count_event(part);
        self.cluster.trace.event(format!("reached: {part}"));
    }

    /// The same, if it has.
    pub(super) fn reached_if(&self, happened: bool, part: &'static str) {
        if happened {
            self.reached(part);
        }
    }

    /// The disk operation at which this seed strikes.
    pub(super) fn step(&self) -> u32 {
        u32::try_from(self.seed % STEPS + 1).unwrap_or(1)
    }

    /// All members.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.cluster.machines.len()).collect()
    }

    /// All but these, in an order of the seed's.
    pub(super) fn others(&mut self, than: &[usize]) -> Vec<usize> {
        let mut others: Vec<usize> = self.all().into_iter().filter(|member| !than.contains(member)).collect();
        others.shuffle(&mut self.rng);
        others
    }

    /// The leader and two of the others.
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
        self.status(member).is_some_and(|status| status.standing == Standing::Active)
    }

    pub(super) fn is_recovering(&self, member: usize) -> bool {
        self.status(member).is_some_and(|status| status.standing == Standing::Recovering)
    }

    /// The last entry that a member has purged: where a snapshot ends, if it had less before.
    pub(super) fn purged(&self, member: usize) -> Option<LogId> {
        self.status(member)?.purged
    }

    /// Whether a member counts an accepted loss.
    pub(super) fn tells_a_loss(&self, member: usize) -> bool {
        self.node(member).is_some_and(|node| node.replica().losses().count > 0)
    }

    pub(super) fn is_lazy(&self, member: usize) -> bool {
        self.cluster.machines.get(member).is_some_and(Machine::lazy)
    }

    /// The running leader of the highest term among these.
    pub(super) fn leads(&self, among: &[usize]) -> Option<(u64, usize)> {
        let up = |member: &usize| {
            self.cluster.machines.get(*member).is_some_and(|machine| machine.condition() == Condition::Up)
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
        self.within(PATIENCE, done).await.then_some(()).ok_or_else(|| what.to_owned())
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

    /// Waits between so many milliseconds.
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

    /// Waits until so many more writes are acknowledged.
    pub(super) async fn acknowledged(&self, count: usize) -> Played {
        let before = self.recorder.acknowledged();
        self.until("acknowledged writes", || self.recorder.acknowledged() >= before + count).await
    }

    /// Waits until one more write is acknowledged that was to be synced before.
    pub(super) async fn synced_write(&self) -> Played {
        let count = || {
            let records = self.recorder.records();
            records.iter().filter(|one| one.synced && matches!(one.outcome, Outcome::Applied { .. })).count()
        };
        let before = count();
        self.until("a synced write", || count() > before).await
    }

    /// Whether a client was told, later than at this time, of a write at such an index.
    pub(super) fn answered(&self, after: u64, at: impl Fn(u64) -> bool) -> bool {
        self.recorder.records().iter().any(|record| match record.outcome {
            Outcome::Applied { index, .. } => record.returned > after && at(index),
            _ => false,
        })
    }

    /// Waits until all of these acknowledge ahead of their syncs.
    pub(super) async fn ahead(&self, members: &[usize]) -> Played {
        self.until("acknowledgements ahead of syncs", || members.iter().all(|member| self.is_lazy(*member)))
            .await
    }

    /// Waits until nothing on these disks is unsynced: with clients that have ended, or it takes luck.
    pub(super) async fn synced(&self, members: &[usize]) -> Played {
        let dirty = |member: &usize| self.machine(*member).map_or(0, |machine| machine.disk.dirty_blocks());
        self.until("synced disks", || members.iter().all(|member| dirty(member) == 0)).await
    }

    /// Waits until all of these are active members.
    pub(super) async fn active(&self, members: &[usize]) -> Played {
        let active = || members.iter().all(|member| self.is_active(*member));
        self.until("active members", active).await
    }

    /// Waits until a member is up and recovers.
    pub(super) async fn recovering(&self, member: usize) -> Played {
        self.until("a member that recovers", || self.is_recovering(member)).await
    }

    /// Waits until `count` more operations of the kind have begun on a member's disk.
    pub(super) async fn disk(&self, member: usize, moment: Moment, count: u32) -> Played {
        let disk = self.machine(member)?.disk.clone();
        let rung = tokio::time::timeout(MOMENT, disk.after(moment, count)).await;
        rung.map_err(|_| format!("{moment:?} on the disk of member {member}"))
    }

    /// Waits until a member's superblock is being written.
    pub(super) async fn superblock(&self, member: usize) -> Played {
        self.disk(member, Moment::WriteTo(FileKind::Superblock), 1).await
    }

    // Acts.

    /// Ends a member's process or machine; how many completed blocks its disk forgot.
    pub(super) fn end(&self, member: usize, death: Death) -> u64 {
        let Ok(machine) = self.machine(member) else { return 0 };
        let before = machine.disk.stats().damage.dropped;
        if self.cluster.end(machine, death) {
            self.cluster.count(if death == Death::PowerCut { "power cut" } else { "kill" });
        }
        machine.disk.stats().damage.dropped - before
    }

    /// A member's machine loses power; how many completed blocks it forgot.
    pub(super) fn cut(&self, member: usize) -> u64 {
        self.end(member, Death::PowerCut)
    }

    /// All machines lose power at once.
    pub(super) fn cut_all(&self) -> u64 {
        self.cut_together(&self.all())
    }

    /// So many machines lose power at once that acknowledged writes may be lost.
    pub(super) fn cut_together(&self, members: &[usize]) -> u64 {
        self.signals.all_cut.lock().get_or_insert(virtual_time());
        members.iter().map(|member| self.cut(*member)).sum()
    }

    /// A person lets the one of these lead whose log reaches furthest, whatever the others may hold. Returns its end.
    pub(super) async fn decide(&self, among: &[usize]) -> Result<Option<LogId>, String> {
        let nodes: Vec<_> = among.iter().filter_map(|member| self.node(*member)).collect();
        let chosen = finale::mandate(&self.cluster, &nodes).await.ok_or("somebody to decide for")?;
        Ok(chosen.replica().status().last_log)
    }

    /// The same, of a person who sees these only; why one of them refuses.
    pub(super) async fn try_to_decide(&self, among: &[usize]) -> Result<Option<String>, String> {
        let nodes: Vec<_> = among.iter().filter_map(|member| self.node(*member)).collect();
        let decided = finale::try_mandate(&self.cluster, &nodes).await;
        Ok(decided.ok_or("somebody to decide for")?.1)
    }

    /// A member's process is killed.
    pub(super) fn kill(&self, member: usize) {
        self.end(member, Death::Killed);
    }

    /// Starts members that are down, once their last tasks have ended.
    pub(super) async fn start(&self, members: &[usize]) {
        tokio::time::sleep(FUNERAL).await;
        for machine in members.iter().filter_map(|member| self.machine(*member).ok()) {
            self.cluster.start(machine);
        }
    }

    pub(super) fn pause(&self, members: &[usize]) {
        for machine in members.iter().filter_map(|member| self.machine(*member).ok()) {
            self.cluster.pause(machine);
        }
    }

    pub(super) fn resume(&self, members: &[usize]) {
        for machine in members.iter().filter_map(|member| self.machine(*member).ok()) {
            self.cluster.resume(machine);
        }
    }

    fn hosts(&self, members: &[usize]) -> Vec<Host> {
        members.iter().filter_map(|member| self.machine(*member).ok()).map(|machine| machine.host).collect()
    }

    /// Cuts all links between two sides.
    pub(super) fn part(&self, side: &[usize], other: &[usize]) {
        self.cluster.trace.event(format!("links cut: {side:?} and {other:?}"));
        self.links.part(&self.hosts(side), &self.hosts(other));
    }

    /// Cuts all links between these and all other members.
    pub(super) fn isolate(&self, side: &[usize]) {
        let rest: Vec<usize> = self.all().into_iter().filter(|member| !side.contains(member)).collect();
        self.part(side, &rest);
    }

    /// Messages from one member to another get lost; those in the other direction arrive.
    pub(super) fn mute(&self, from: usize, to: usize) {
        self.cluster.trace.event(format!("link cut: from {from} to {to}"));
        for (from, to) in self.hosts(&[from]).into_iter().zip(self.hosts(&[to])) {
            self.links.cut(from, to);
        }
    }

    /// Clients ask a member and hear no answer.
    pub(super) fn mute_to_clients(&self, member: usize) {
        self.cluster.trace.event(format!("links cut: from {member} to clients"));
        for (from, to) in
            self.hosts(&[member]).into_iter().flat_map(|from| self.clients.iter().map(move |to| (from, *to)))
        {
            self.links.cut(from, to);
        }
    }

    /// What clients ask a member does not arrive.
    pub(super) fn deafen_to_clients(&self, member: usize) {
        self.cluster.trace.event(format!("links cut: from clients to {member}"));
        for (to, from) in
            self.hosts(&[member]).into_iter().flat_map(|to| self.clients.iter().map(move |from| (to, *from)))
        {
            self.links.cut(from, to);
        }
    }

    /// Whatever is sent from now on takes so long to arrive.
    pub(super) fn slow(&self, latency: Duration) {
        self.cluster.trace.event(format!("messages take {latency:?}"));
        self.links.weather(0.0, latency..latency + Duration::from_millis(1));
    }

    /// Whatever is sent from now on arrives as soon as ever.
    pub(super) fn usual_speed(&self) {
        self.links.calm();
    }

    /// Makes all links whole.
    pub(super) fn heal(&self) {
        self.cluster.trace.event("all links whole");
        self.links.heal();
    }

    /// Ends the load, and returns when nobody waits for an answer any more.
    pub(super) async fn quiet(&self) {
        self.ask_no_more();
        tokio::time::sleep(self.cluster.plan.profile.deadline + Duration::from_secs(1)).await;
    }

    /// Ends the load: from here on nobody begins to ask.
    pub(super) fn ask_no_more(&self) {
        self.cluster.trace.event("the clients are told to end");
        self.signals.quiet.store(true, Ordering::Relaxed);
    }

    /// Asks members to stop cleanly, all at once; whether each did.
    pub(super) async fn stop(&self, members: &[usize]) -> bool {
        let machines = members.iter().filter_map(|member| self.machine(*member).ok());
        let stops = machines.map(|machine| self.cluster.shut_down(machine, STOP_LIMIT));
        futures::future::join_all(stops).await.into_iter().all(|stopped| stopped == Some(true))
    }

    /// A member's disk is gone: its machine gets an empty one, under a new identity, and stays down. The lost one is
    /// returned.
    pub(super) async fn lose_disk(&mut self, member: usize) -> Result<Files, String> {
        let incarnation = self.rng.random_range(1..1_u64 << 48);
        self.cut(member);
        let machine = self.machine(member)?;
        machine.lose();
        machine.open(true);
        let lost = machine.disk.take_out();
        self.cluster.trace.event(format!("disk {} is lost", machine.slot));
        tokio::time::sleep(FUNERAL).await;
        self.cluster.format(machine, incarnation).await.map_err(|error| error.to_string())?;
        machine.open(false);
        Ok(lost)
    }

    /// Ends a member, and nothing on its disk says any more who it was.
    pub(super) fn lose_identity(&mut self, member: usize, death: Death) -> Played {
        let erased = self.rng.random_bool(0.3);
        self.end(member, death);
        let machine = self.machine(member)?;
        machine.lose();
        match erased {
            true => machine.disk.erase(FileKind::Superblock),
            false => machine.disk.lose_identity(),
        }
        self.cluster.trace.event(format!("disk {}: the superblock is gone", machine.slot));
        Ok(())
    }

    /// Kills a member and puts another disk in; the one that was there is returned.
    pub(super) async fn exchange_disk(&self, member: usize, files: Files) -> Result<Files, String> {
        self.kill(member);
        let machine = self.machine(member)?;
        machine.open(true);
        let out = machine.disk.take_out();
        tokio::time::sleep(FUNERAL).await;
        machine.disk.put_in(files);
        machine.open(false);
        Ok(out)
    }

    /// Lets up to `count` synced blocks of a member's file rot; how many did.
    pub(super) fn rot(&self, member: usize, file: FileKind, count: usize) -> usize {
        let Ok(machine) = self.machine(member) else { return 0 };
        machine.decays();
        let rotten = machine.disk.decay(Decay::Rot, file, count);
        self.cluster.trace.event(format!("disk {}: {rotten} blocks of {file:?} rot", machine.slot));
        rotten
    }

    /// Every key of the workload, with a number.
    pub(super) fn keys(&self) -> Vec<(usize, Bytes)> {
        let groups = 0..self.cluster.plan.profile.groups;
        groups.flat_map(|group| (0..GROUP_KEYS).map(move |key| encode_key(group, key))).enumerate().collect()
    }

    /// Flips a bit of a key's value on a member's disk, if it is there and synced.
    pub(super) fn flip_value(&self, member: usize, key: &[u8]) -> bool {
        let (Ok(machine), Some(node)) = (self.machine(member), self.node(member)) else { return false };
        let Some(entry) = node.engine().lookup(GROUP, key).filter(|entry| entry.value.len > 0) else {
            return false;
        };
        machine.decays();
        machine.disk.flip(FileKind::Data, entry.value.offset + u64::from(entry.value.len) / 2)
    }

    /// Reads every key of the workload at a member; how many could not be read. Each read is judged.
    pub(super) async fn read_all(&self, member: usize) -> Result<u64, String> {
        let unreadable = || self.cluster.events().get(UNREADABLE).copied().unwrap_or_default();
        let before = unreadable();
        read_all(&self.cluster, self.machine(member)?).await;
        Ok(unreadable() - before)
    }

    /// Has the leader apply a command of nobody's client, asking again until it is known what became of it. For keys of which
    /// no history is kept.
    pub(super) async fn command(&mut self, command: Command) -> Result<WriteOutcome, String> {
        for _ in 0..COMMAND_ATTEMPTS {
            let leader = self.leader().await?;
            let (Some(node), Some(host)) = (self.node(leader), self.cluster.host(self.machine(leader)?))
            else {
                continue;
            };
            let command = command.clone();
            let asked = host.spawn(async move { node.replica().write(command).await });
            match tokio::time::timeout(MOMENT, asked).await {
                Ok(Ok(Ok(outcome))) => return Ok(outcome),
                other => self.cluster.trace.event(format!("a command of the script: {other:?}")),
            }
            self.pass(50, 200).await;
        }
        Err("an outcome of a command".into())
    }

    /// Puts values that make a snapshot one of several pieces, behind the clients' keys in order: those come in the first piece.
    pub(super) async fn bulk(&mut self) -> Played {
        for number in 0..BULK {
            let key = Bytes::from(format!("later/{number}"));
            let put = Operation::Put { key, value: vec![number; BULK_BYTES].into(), condition: If::None };
            self.command(Command { synced: false, session: None, operations: vec![put] }).await?;
        }
        Ok(())
    }

    /// A member loses power while it acknowledges ahead of its syncs, just after so many acknowledgements; whether it
    /// forgot something.
    pub(super) async fn cut_ahead(&mut self, member: usize, acknowledgements: usize) -> Result<bool, String> {
        self.ahead(&[member]).await?;
        self.acknowledged(acknowledgements).await?;
        let lazy = self.is_lazy(member);
        Ok(self.cut(member) > 0 && lazy)
    }
}
