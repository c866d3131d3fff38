//! What a script does: it ends, starts, pauses and parts machines, damages disks, and asks.

use super::stage::{MOMENT, Played, Stage};
use crate::disk::{Decay, Files};
use crate::harness::cluster::virtual_time;
use crate::harness::decay::{UNREADABLE, read_all};
use crate::harness::faults::FUNERAL;
use crate::harness::finale;
use crate::harness::machine::Death;
use bytes::Bytes;
use cairn_clients::history::GROUP_KEYS;
use cairn_clients::workload::encode_key;
use cairn_engine::LogId;
use cairn_engine::io::FileKind;
use cairn_raft::{Command, Condition, GROUP, Operation, WriteOutcome};
use madsim::task::NodeId as Host;
use rand::RngExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a command of the script's own is asked for, at most.
const COMMAND_ATTEMPTS: usize = 30;
/// Longest wait for a clean stop.
const STOP_LIMIT: Duration = Duration::from_secs(12);
/// So many values, and the bytes of each.
const BULK: u8 = 60;
const BULK_BYTES: usize = 60_000;

impl Stage {
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

    /// All machines lose power at once; how many blocks were forgotten. The load ends, and all come back as members that recover.
    pub(super) async fn forget_everything(&self) -> Result<u64, String> {
        let forgot = self.cut_all();
        self.quiet().await;
        self.start(&self.all()).await;
        for member in self.all() {
            self.recovering(member).await?;
        }
        Ok(forgot)
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
            let put =
                Operation::Put { key, value: vec![number; BULK_BYTES].into(), condition: Condition::None };
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
