//! One machine: a simulated host, its disk, and the state of the node that runs there.

use super::clock::virtual_time;
use crate::disk::SimDisk;
use cairn_engine::{KernelBootId, LogId, Mode};
use cairn_node::Node;
use cairn_raft::{GROUP, MemberAddress, NodeId};
use madsim::task::NodeId as Host;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The ports of a machine that has not moved.
const PEER_PORT: u16 = 7_100;
const CLIENT_PORT: u16 = 17_100;

/// Where the machine of `slot` listens after so many moves.
pub(super) fn address(slot: u16, moves: u16) -> MemberAddress {
    MemberAddress {
        peer: format!("10.0.0.{slot}:{}", PEER_PORT + moves),
        client: format!("10.0.0.{slot}:{}", CLIENT_PORT + moves),
    }
}

/// What a machine's node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Down,
    Starting,
    Up,
    Paused,
    /// It stops cleanly.
    Stopping,
    /// Off, and not to be started, while its disk is exchanged.
    Open,
}

/// How a node's process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// Only the process ends; the machine continues.
    Killed,
    /// The machine lost power.
    PowerCut,
}

pub(super) struct State {
    pub(super) condition: Condition,
    /// How often the node was started. Each start begins another *life*, the time of one process.
    pub(super) life: u32,
    /// Changes with every change of condition, so that the end of an old fault does not undo a new
    /// one.
    pub(super) change: u64,
    pub(super) boots: u64,
    pub(super) node: Option<Arc<Node>>,
    /// The disk was damaged, or a block of it misread. What is left may refer to values that were
    /// overwritten since.
    pub(super) damaged: bool,
    /// The unsynced-ack flag was set when the node last ran.
    pub(super) unsynced_acks: bool,
    /// A fault is exchanging its disk, or putting it back.
    pub(super) claimed: bool,
    /// An older copy replaces its disk.
    pub(super) stale: bool,
    /// The node may lack entries that it acknowledged, and is not known to be active since: for
    /// example, the machine lost power with the flag set.
    pub(super) lacks_acks: bool,
    /// The life in which the node stopped because its device had failed.
    pub(super) stopped: Option<u32>,
    /// The node's mode, if not the run's.
    pub(super) mode: Option<Mode>,
    /// How many errors of its device have already ended a node.
    pub(super) errors: u64,
    /// When its condition last changed, in virtual time.
    pub(super) changed_at: Duration,
    /// When its process last continued after a pause.
    pub(super) resumed_at: Option<Duration>,
    /// Its disk, or the identity on it, is lost, and no node runs there yet.
    pub(super) lost: bool,
    /// Whether its node voted when last seen.
    pub(super) votes: bool,
    /// What its node had counted as stored before its last start: an earlier life counted it, and
    /// it may be gone.
    pub(super) counted_before: Option<LogId>,
    /// What its node had counted as stored and still held when it ended. Valid until its next
    /// start.
    pub(super) counted_at_end: Option<LogId>,
    /// The node started with a damaged journal or checkpoint: keys written up to this index may
    /// refer to extents that were reused.
    pub(super) doubtful_through: Option<u64>,
    /// How often it moved to another address.
    pub(super) moves: u16,
    /// The identity on its disk, as its node last had it.
    pub(super) identity: Option<NodeId>,
    /// The identity that an operator has leave, until another one of the machine votes.
    pub(super) leaving: Option<NodeId>,
    /// Until when, and above which term, its node does not lead.
    pub(super) drained: Option<Drained>,
    /// When another machine was last seen to lead that reaches it, and that it reaches.
    pub(super) heard_at: Option<Duration>,
    /// Since when its node, seen without an interruption, is past the record that every
    /// acknowledgement is synced.
    pub(super) synced_since: Option<Duration>,
}

/// A drained member waits longer for a leader before it campaigns, also on a fast clock.
const SILENT_AT_LEAST: Duration = Duration::from_secs(1);

/// A member that was asked not to lead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drained {
    /// A campaign that began before may go on until then.
    pub(super) from: Duration,
    pub(super) until: Duration,
    pub(super) life: u32,
    /// Its term at the beginning.
    pub(super) term: u64,
}

impl State {
    /// The state of a machine whose node was never started.
    pub(super) fn new() -> State {
        State {
            condition: Condition::Down,
            life: 0,
            change: 0,
            boots: 1,
            node: None,
            damaged: false,
            unsynced_acks: false,
            claimed: false,
            stale: false,
            lacks_acks: false,
            stopped: None,
            mode: None,
            errors: 0,
            changed_at: Duration::ZERO,
            resumed_at: None,
            lost: false,
            votes: false,
            counted_before: None,
            counted_at_end: None,
            doubtful_through: None,
            moves: 0,
            identity: None,
            leaving: None,
            drained: None,
            heard_at: None,
            synced_since: None,
        }
    }
}

/// One machine.
pub(super) struct Machine {
    pub(super) slot: u16,
    pub(super) host: Host,
    pub(super) disk: SimDisk,
    pub(super) state: Mutex<State>,
}

impl Machine {
    /// The running node and its life.
    pub(super) fn node(&self) -> Option<(u32, Arc<Node>)> {
        let state = self.state.lock();
        state.node.clone().map(|node| (state.life, node))
    }

    /// The kernel boot id of its present or next boot.
    pub(super) fn boot(&self) -> KernelBootId {
        KernelBootId(u128::from(self.slot) << 64 | u128::from(self.state.lock().boots))
    }

    /// How often the node was started.
    pub(super) fn life(&self) -> u32 {
        self.state.lock().life
    }

    pub(super) fn condition(&self) -> Condition {
        self.state.lock().condition
    }

    /// A number that changes with the condition; see
    pub(super) fn change(&self) -> u64 {
        self.state.lock().change
    }

    /// Whether nothing has happened to the machine since `change`.
    pub(super) fn unchanged(&self, change: u64) -> bool {
        self.change() == change
    }

    /// From its next start on it listens at another address.
    pub(super) fn relocate(&self) {
        self.state.lock().moves += 1;
    }

    /// How often it moved.
    pub(super) fn moves(&self) -> u16 {
        self.state.lock().moves
    }

    /// Where it listens, or will after its next start.
    pub(super) fn address(&self) -> MemberAddress {
        address(self.slot, self.moves())
    }

    pub(super) fn was_ever_at(&self, at: &MemberAddress) -> bool {
        (0..=self.moves()).any(|moves| address(self.slot, moves) == *at)
    }

    /// An operator changes the mode in its configuration.
    pub(super) fn configure(&self, mode: Mode) {
        self.state.lock().mode = Some(mode);
    }

    /// Whether its node may lack what it acknowledged.
    pub(super) fn lacks_acks(&self) -> bool {
        self.state.lock().lacks_acks
    }

    /// Whether a power cut now may lose what was acknowledged.
    pub(super) fn unsynced_acks(&self) -> bool {
        let state = self.state.lock();
        state.node.as_ref().map_or(state.unsynced_acks, |node| node.engine().status().unsynced_acks)
    }

    /// Whether the node stopped in this life because its device failed.
    pub(super) fn stopped(&self, life: u32) -> bool {
        self.state.lock().stopped == Some(life)
    }

    /// Whether its device failed in this life.
    pub(super) fn device_failed(&self) -> bool {
        self.disk.errors() > self.state.lock().errors
    }

    /// Whether it may lack what others count on: acknowledged entries may be lost, a part of its
    /// disk is damaged, or it leaves.
    pub(super) fn faulty(&self) -> bool {
        self.lacks_acks() || self.disk.decayed() > 0 || self.leaving().is_some()
    }

    /// The identity on its disk, as its node last had it.
    pub(super) fn identity(&self) -> Option<NodeId> {
        self.state.lock().identity
    }

    /// The identity that leaves.
    pub(super) fn leaving(&self) -> Option<NodeId> {
        self.state.lock().leaving
    }

    /// Notes which identity leaves, or that the machine's present one is a member.
    pub(super) fn leaves(&self, identity: Option<NodeId>) {
        self.state.lock().leaving = identity;
    }

    /// Notes that its node was asked not to lead.
    pub(super) fn drained(&self, drained: Drained) {
        self.state.lock().drained = Some(drained);
    }

    /// Whether its node, in this life, was asked not to lead, and the time is not over.
    pub(super) fn is_drained(&self) -> bool {
        let state = self.state.lock();
        state.drained.is_some_and(|one| one.life == state.life && virtual_time() < one.until)
    }

    /// The term above which its node, now in this term, must not lead or campaign.
    pub(super) fn drained_above(&self, term: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let (now, life) = (virtual_time(), state.life);
        let drained = state.drained.as_mut().filter(|one| one.life == life && now < one.until)?;
        if now < drained.from {
            drained.term = term;
        }
        Some(drained.term)
    }

    /// Another machine leads that reaches this one.
    pub(super) fn hears_a_leader(&self) {
        self.state.lock().heard_at = Some(virtual_time());
    }

    /// Whether it heard a leader so lately that, drained, it leaves elections to others.
    pub(super) fn heard_lately(&self) -> bool {
        self.state.lock().heard_at.is_some_and(|at| virtual_time() - at < SILENT_AT_LEAST)
    }

    /// Its node was seen, past the record that every acknowledgement is synced, or not.
    pub(super) fn saw_synced(&self, past: bool) {
        let mut state = self.state.lock();
        state.synced_since = past.then(|| state.synced_since.unwrap_or_else(virtual_time));
    }

    /// For how long its node is past that record.
    pub(super) fn synced_for(&self) -> Duration {
        let since = self.state.lock().synced_since;
        since.map_or(Duration::ZERO, |since| virtual_time().saturating_sub(since))
    }

    /// Its disk decays; no acknowledged entry is known to be lost.
    pub(super) fn decays(&self) {
        self.state.lock().damaged = true;
    }

    /// Its disk reports another history than before.
    pub(super) fn other_history(&self) {
        self.state.lock().boots += 1;
    }

    /// A block of its disk will be misread.
    pub(super) fn damage(&self) {
        let mut state = self.state.lock();
        (state.damaged, state.lacks_acks) = (true, true);
    }

    /// Everything damaged is repaired.
    pub(super) fn repaired(&self) {
        let mut state = self.state.lock();
        (state.damaged, state.doubtful_through) = (false, None);
    }

    /// The last entry that its node has counted as stored in this life, and holds.
    pub(super) fn counted(&self) -> Option<LogId> {
        let Some((_, node)) = self.node() else { return self.state.lock().counted_at_end };
        let (engine, before) = (node.engine(), self.state.lock().counted_before);
        cairn_raft::flushed(self.slot).filter(|last| Some(*last) != before).filter(|last| {
            let purged =
                engine.log_bounds(GROUP).purged.is_some_and(|purged| purged.index >= last.index);
            purged || engine.log_id_at(GROUP, last.index) == Some(*last)
        })
    }

    /// When its condition last changed, in virtual time.
    pub(super) fn changed_at(&self) -> Duration {
        self.state.lock().changed_at
    }

    /// When its process last continued after a pause.
    pub(super) fn resumed_at(&self) -> Option<Duration> {
        self.state.lock().resumed_at
    }

    /// Whether its node votes, or did when it last ran.
    pub(super) fn votes(&self) -> bool {
        self.state.lock().votes
    }

    /// Notes whether its node votes.
    pub(super) fn saw_votes(&self, votes: bool) {
        self.state.lock().votes = votes;
    }

    /// Keys written up to this index may refer to extents that were overwritten.
    pub(super) fn doubtful_through(&self) -> Option<u64> {
        self.state.lock().doubtful_through
    }

    pub(super) fn damaged(&self) -> bool {
        self.state.lock().damaged
    }

    /// The node of this life is recovering, for whatever reason.
    pub(super) fn saw_recovering(&self, life: u32) {
        let mut state = self.state.lock();
        if state.life == life && state.node.is_some() {
            state.lacks_acks = true;
        }
    }

    /// Its disk is lost, with everything that was acknowledged.
    pub(super) fn lose(&self) {
        let mut state = self.state.lock();
        (state.lacks_acks, state.lost, state.identity) = (true, true, None);
        (state.votes, state.counted_at_end, state.doubtful_through) = (false, None, None);
    }

    /// An older copy replaced its disk, or its own disk is back.
    pub(super) fn restored(&self, stale: bool) {
        let mut state = self.state.lock();
        state.stale = stale;
        (state.lacks_acks, state.counted_at_end) = (true, None);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    pub(super) fn is_stale(&self) -> bool {
        self.state.lock().stale
    }

    /// Claims the disk for an exchange; false if another fault has claimed it.
    pub(super) fn claim_disk(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().claimed, true)
    }

    pub(super) fn release_disk(&self) {
        self.state.lock().claimed = false;
    }

    /// Opens a machine that is down, so that it is not started, or closes it again.
    pub(super) fn open(&self, open: bool) {
        self.set(if open { Condition::Open } else { Condition::Down });
    }

    /// A write or sync of its disk has failed: the node may come back without something that it
    /// acknowledged, or without knowing what is missing.
    pub(super) fn io_failed(&self) {
        self.state.lock().lacks_acks = true;
    }

    /// The node of this life is active and votes in all configurations, and no change is under way.
    pub(super) fn saw_active(&self, life: u32) {
        let failed = self.device_failed();
        let mut state = self.state.lock();
        if state.life == life && state.node.is_some() && !state.stale && !failed {
            state.lacks_acks = false;
        }
    }

    pub(super) fn set(&self, condition: Condition) {
        let mut state = self.state.lock();
        state.condition = condition;
        state.change += 1;
        state.changed_at = virtual_time();
        state.synced_since = None;
    }
}
