//! The actions of a script: it ends, starts, pauses and partitions machines, damages disks, and
//! sends requests.

use super::stage::{MOMENT, Played, Stage};
use crate::harness::clock::virtual_time;
use crate::harness::decay::{UNREADABLE, read_all};
use crate::harness::faults::EXIT_GRACE;
use crate::harness::finale;
use crate::harness::half_connected::Shape;
use crate::harness::machine::Death;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_clients::history::GROUP_KEYS;
use cairn_clients::workload::encode_key;
use cairn_disk::{Decay, Files};
use cairn_engine::LogId;
use cairn_engine::io::FileKind;
use cairn_raft::{Command, Condition, GROUP, Operation, WriteOutcome};
use madsim::task::NodeId as Host;
use rand::RngExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the script sends a command of its own, at most.
const COMMAND_ATTEMPTS: usize = 30;
/// Longest wait for a clean stop.
const STOP_LIMIT: Duration = Duration::from_secs(12);
/// How many values, and the size of each.
const BULK: u8 = 60;
const BULK_BYTES: usize = 60_000;

impl Stage {
    /// Ends a member's process or machine. Returns how many completed blocks its disk lost.
    pub(super) fn end(&self, member: usize, death: Death) -> u64 {
        let Ok(machine) = self.machine(member) else { return 0 };
        let before = machine.disk.stats().damage.dropped;
        if self.cluster.end(machine, death) {
            self.cluster.count(if death == Death::PowerCut { "power cut" } else { "kill" });
        }
        machine.disk.stats().damage.dropped - before
    }

    /// Cuts the power of a member's machine. Returns how many completed blocks its disk lost.
    pub(super) fn cut(&self, member: usize) -> u64 {
        self.end(member, Death::PowerCut)
    }

    /// Cuts the power of all machines at once.
    pub(super) fn cut_all(&self) -> u64 {
        self.cut_together(&self.all())
    }

    /// Cuts the power of all machines at once and stops the clients; all members come back as
    /// recovering. Returns how many blocks were lost.
    pub(super) async fn cut_all_and_restart(&self) -> Result<u64, String> {
        let lost_acks = self.cut_all();
        self.quiet().await;
        self.start(&self.all()).await;
        for member in self.all() {
            self.recovering(member).await?;
        }
        Ok(lost_acks)
    }

    /// Cuts the power of these machines at once: so many that acknowledged writes may be lost.
    pub(super) fn cut_together(&self, members: &[usize]) -> u64 {
        self.signals.all_cut.lock().get_or_insert(virtual_time());
        members.iter().map(|member| self.cut(*member)).sum()
    }

    /// An operator lets the one of these with the most up-to-date log lead, whatever the other
    /// members hold. Returns the end of its log.
    pub(super) async fn decide(&self, among: &[usize]) -> Result<Option<LogId>, String> {
        let nodes: Vec<_> = among.iter().filter_map(|member| self.node(*member)).collect();
        let chosen =
            finale::unsafe_recovery(&self.cluster, &nodes).await.ok_or("a member to lead")?;
        Ok(chosen.replica().status().last_log)
    }

    /// The same for an operator who sees only these members. Returns why one of them refuses.
    pub(super) async fn try_to_decide(&self, among: &[usize]) -> Result<Option<String>, String> {
        let nodes: Vec<_> = among.iter().filter_map(|member| self.node(*member)).collect();
        let decided = finale::try_unsafe_recovery(&self.cluster, &nodes).await;
        Ok(decided.ok_or("a member to lead")?.1)
    }

    /// Kills a member's process.
    pub(super) fn kill(&self, member: usize) {
        self.end(member, Death::Killed);
    }

    /// Starts members that are down, once their last tasks have ended.
    pub(super) async fn start(&self, members: &[usize]) {
        tokio::time::sleep(EXIT_GRACE).await;
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
        members
            .iter()
            .filter_map(|member| self.machine(*member).ok())
            .map(|machine| machine.host)
            .collect()
    }

    /// What should hold did not.
    pub(super) fn fails(&self, property: &'static str, detail: String) {
        self.cluster.violation(Violation::new(property, detail));
    }

    /// Cuts all links between two sides.
    pub(super) fn partition(&self, side: &[usize], other: &[usize]) {
        self.cluster.trace.event(format!("links cut: {side:?} and {other:?}"));
        self.links.cut_between(&self.hosts(side), &self.hosts(other));
    }

    /// Cuts all links between these and all other members.
    pub(super) fn isolate(&self, side: &[usize]) {
        let rest: Vec<usize> =
            self.all().into_iter().filter(|member| !side.contains(member)).collect();
        self.partition(side, &rest);
    }

    /// Cuts the links that a shape lacks, of which the first member leads.
    pub(super) fn shape(&self, shape: Shape, members: &[usize]) {
        self.cluster.trace.event(format!("the network is {shape:?}, {members:?}"));
        for (from, to) in shape.cuts(&self.hosts(members)) {
            self.links.cut(from, to);
        }
    }

    /// Drops messages from one member to another; those in the other direction arrive.
    pub(super) fn drop_messages(&self, from: usize, to: usize) {
        self.cluster.trace.event(format!("link cut: from {from} to {to}"));
        for (from, to) in self.hosts(&[from]).into_iter().zip(self.hosts(&[to])) {
            self.links.cut(from, to);
        }
    }

    /// Drops a member's answers to clients.
    pub(super) fn drop_answers_to_clients(&self, member: usize) {
        self.cluster.trace.event(format!("links cut: from {member} to clients"));
        for (from, to) in self
            .hosts(&[member])
            .into_iter()
            .flat_map(|from| self.clients.iter().map(move |to| (from, *to)))
        {
            self.links.cut(from, to);
        }
    }

    /// Drops requests of clients to a member.
    pub(super) fn drop_requests_of_clients(&self, member: usize) {
        self.cluster.trace.event(format!("links cut: from clients to {member}"));
        for (to, from) in self
            .hosts(&[member])
            .into_iter()
            .flat_map(|to| self.clients.iter().map(move |from| (to, *from)))
        {
            self.links.cut(from, to);
        }
    }

    /// Cuts the links between the host of a client and these members.
    pub(super) fn cut_off_client(&self, client: usize, members: &[usize]) {
        self.cluster.trace.event(format!("links cut: client {client} and {members:?}"));
        let host: Vec<Host> = self.clients.get(client).copied().into_iter().collect();
        self.links.cut_between(&host, &self.hosts(members));
    }

    /// Sets the latency of messages sent from now on.
    pub(super) fn slow(&self, latency: Duration) {
        self.cluster.trace.event(format!("messages take {latency:?}"));
        self.links.set_quality(0.0, latency..latency + Duration::from_millis(1));
    }

    /// Restores the usual latency of messages.
    pub(super) fn usual_speed(&self) {
        self.links.restore_quality();
    }

    /// Restores all links.
    pub(super) fn heal(&self) {
        self.cluster.trace.event("all links restored");
        self.links.heal();
    }

    /// Stops the clients, and returns when none of them waits for an answer any more.
    pub(super) async fn quiet(&self) {
        self.stop_clients();
        tokio::time::sleep(self.cluster.plan.profile.deadline + Duration::from_secs(1)).await;
    }

    /// Stops the clients: from here on they send no new requests.
    pub(super) fn stop_clients(&self) {
        self.cluster.trace.event("the clients are told to stop");
        self.signals.quiet.store(true, Ordering::Relaxed);
    }

    /// Asks members to stop cleanly, all at once. Returns whether each did.
    pub(super) async fn stop(&self, members: &[usize]) -> bool {
        let machines = members.iter().filter_map(|member| self.machine(*member).ok());
        let stops = machines.map(|machine| self.cluster.shut_down(machine, STOP_LIMIT));
        futures::future::join_all(stops).await.into_iter().all(|stopped| stopped == Some(true))
    }

    /// Loses a member's disk. Its machine gets an empty one, under a new identity, and stays down.
    /// Returns the lost disk.
    pub(super) async fn lose_disk(&mut self, member: usize) -> Result<Files, String> {
        let incarnation = self.rng.random_range(1..1_u64 << 48);
        self.cut(member);
        let machine = self.machine(member)?;
        machine.lose();
        machine.open(true);
        let lost = machine.disk.take_out();
        self.cluster.trace.event(format!("disk {} is lost", machine.slot));
        tokio::time::sleep(EXIT_GRACE).await;
        self.cluster.format(machine, incarnation).await.map_err(|error| error.to_string())?;
        machine.open(false);
        Ok(lost)
    }

    /// Ends a member; then its disk does not tell its identity any more.
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

    /// Kills a member and puts another disk in. Returns the previous one.
    pub(super) async fn exchange_disk(&self, member: usize, files: Files) -> Result<Files, String> {
        self.kill(member);
        let machine = self.machine(member)?;
        machine.open(true);
        let out = machine.disk.take_out();
        tokio::time::sleep(EXIT_GRACE).await;
        machine.disk.put_in(files);
        machine.open(false);
        Ok(out)
    }

    /// Damages up to `count` synced blocks of a member's file. Returns how many were damaged.
    pub(super) fn rot(&self, member: usize, file: FileKind, count: usize) -> usize {
        let Ok(machine) = self.machine(member) else { return 0 };
        machine.decays();
        let rotten = machine.disk.decay(Decay::Rot, file, count);
        self.cluster.trace.event(format!("disk {}: {rotten} blocks of {file:?} rot", machine.slot));
        rotten
    }

    /// Damages the last copy of a member's superblock. Returns whether it was whole before.
    pub(super) fn rot_last_copy(&self, member: usize) -> Result<bool, String> {
        let machine = self.machine(member)?;
        machine.decays();
        let copy = cairn_engine::io::SUPERBLOCK_BYTES / 4;
        Ok(machine.disk.flip(FileKind::Superblock, 3 * copy + 50))
    }

    /// Every key of the workload, numbered.
    pub(super) fn keys(&self) -> Vec<(usize, Bytes)> {
        let groups = 0..self.cluster.plan.profile.groups;
        groups
            .flat_map(|group| (0..GROUP_KEYS).map(move |key| encode_key(group, key)))
            .enumerate()
            .collect()
    }

    /// Flips a bit of a key's value on a member's disk, if it is there and synced.
    pub(super) fn flip_value(&self, member: usize, key: &[u8]) -> bool {
        let (Ok(machine), Some(node)) = (self.machine(member), self.node(member)) else {
            return false;
        };
        let Some(entry) = node.engine().lookup(GROUP, key).filter(|entry| entry.value.len > 0)
        else {
            return false;
        };
        let middle = entry.value.segments().flatten().nth(entry.value.len as usize / 2);
        machine.decays();
        middle.is_some_and(|middle| machine.disk.flip(FileKind::Data, middle))
    }

    /// Reads every key of the workload at a member, and checks each read. Returns how many could
    /// not be read.
    pub(super) async fn read_all(&self, member: usize) -> Result<u64, String> {
        let unreadable = || self.cluster.events().get(UNREADABLE).copied().unwrap_or_default();
        let before = unreadable();
        read_all(&self.cluster, self.machine(member)?).await;
        Ok(unreadable() - before)
    }

    /// Has the leader apply a command that no client sent, and retries until the outcome is known.
    /// Only for keys of which no history is kept.
    pub(super) async fn command(&mut self, command: Command) -> Result<WriteOutcome, String> {
        for _ in 0..COMMAND_ATTEMPTS {
            let leader = self.leader().await?;
            let (Some(node), Some(host)) =
                (self.node(leader), self.cluster.host(self.machine(leader)?))
            else {
                continue;
            };
            let command = command.clone();
            let answer = host.spawn(async move { node.replica().write(command).await });
            match tokio::time::timeout(MOMENT, answer).await {
                Ok(Ok(Ok(outcome))) => return Ok(outcome),
                other => self.cluster.trace.event(format!("a command of the script: {other:?}")),
            }
            self.pass(50, 200).await;
        }
        Err("an outcome of a command".into())
    }

    /// Puts values that make a snapshot several pieces long. In key order they come after the
    /// clients' keys, which are in the first piece.
    pub(super) async fn bulk(&mut self) -> Played {
        for number in 0..BULK {
            let key = Bytes::from(format!("later/{number}"));
            let put = Operation::Put {
                key,
                value: vec![number; BULK_BYTES].into(),
                condition: Condition::None,
            };
            self.command(Command { synced: false, session: None, operations: vec![put] }).await?;
        }
        Ok(())
    }

    /// Waits until a member acknowledges before it syncs, then for this many acknowledgements, then
    /// cuts its power. Returns whether it lost something.
    pub(super) async fn cut_ahead(
        &mut self,
        member: usize,
        acknowledgements: usize,
    ) -> Result<bool, String> {
        self.ahead(&[member]).await?;
        self.acknowledged(acknowledgements).await?;
        let unsynced_acks = self.has_unsynced_acks(member);
        Ok(self.cut(member) > 0 && unsynced_acks)
    }
}
