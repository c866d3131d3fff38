//! One machine: a simulated host, a disk that outlives everything, and what became of the node that runs there.

use super::cluster::virtual_time;
use crate::disk::SimDisk;
use cairn_engine::{LogId, Mode};
use cairn_node::Node;
use cairn_raft::GROUP;
use madsim::task::NodeId as Host;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// What a machine's node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Down,
    Starting,
    Up,
    Paused,
    /// On its way to a clean end.
    Stopping,
    /// Off, while its disk is exchanged.
    Open,
}

/// How a node's process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// Only the process: the machine runs on.
    Killed,
    /// The machine lost power.
    PowerCut,
}

pub(super) struct State {
    pub(super) condition: Condition,
    /// Starts of the node so far.
    pub(super) life: u32,
    /// Changes with every change of condition, so that the end of an old fault does not undo a new one.
    pub(super) change: u64,
    pub(super) boots: u64,
    pub(super) node: Option<Arc<Node>>,
    /// What it holds was once misread, and the rest may name values that others overwrote.
    pub(super) damaged: bool,
    /// The `lazy` mark was set when the node last ran.
    pub(super) lazy: bool,
    /// Somebody is about to exchange its disk, or to put it back.
    pub(super) claimed: bool,
    /// An older copy of its disk is in the place of its own.
    pub(super) stale: bool,
    /// The machine lost power with the mark set, and its node is not known to be active since.
    pub(super) forgetful: bool,
    /// The life in which the node stopped by itself because its device had failed.
    pub(super) stopped: Option<u32>,
    /// In which mode the node starts, if not the run's.
    pub(super) mode: Option<Mode>,
    /// The errors of its device that are accounted for by stopped or ended nodes.
    pub(super) errors: u64,
    /// When its condition last changed, in virtual time.
    pub(super) changed_at: Duration,
    /// When its process last ran on after a pause.
    pub(super) resumed_at: Option<Duration>,
    /// Its disk, or what says whose it is, is gone, and no node runs there yet.
    pub(super) lost: bool,
    /// Whether its node votes, as far as was seen.
    pub(super) votes: bool,
    /// What its node had counted as stored when it last started: by an earlier life, and perhaps gone.
    pub(super) counted_before: Option<LogId>,
    /// What its node had counted as stored and still held when it ended; of no use once it has started again.
    pub(super) owed: Option<LogId>,
    /// It started with damage in its journal or its checkpoints: what keys written up to here name may be others' by now.
    pub(super) doubtful_through: Option<u64>,
}

impl State {
    /// Of a machine whose node was never started.
    pub(super) fn new() -> State {
        State {
            condition: Condition::Down,
            life: 0,
            change: 0,
            boots: 1,
            node: None,
            damaged: false,
            lazy: false,
            claimed: false,
            stale: false,
            forgetful: false,
            stopped: None,
            mode: None,
            errors: 0,
            changed_at: Duration::ZERO,
            resumed_at: None,
            lost: false,
            votes: false,
            counted_before: None,
            owed: None,
            doubtful_through: None,
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

    /// Starts of the node so far.
    pub(super) fn life(&self) -> u32 {
        self.state.lock().life
    }

    pub(super) fn condition(&self) -> Condition {
        self.state.lock().condition
    }

    /// A mark of the present condition; see [`Machine::unchanged`].
    pub(super) fn change(&self) -> u64 {
        self.state.lock().change
    }

    /// Whether nothing has happened to the machine since `change`.
    pub(super) fn unchanged(&self, change: u64) -> bool {
        self.change() == change
    }

    /// A person has changed the mode in its configuration.
    pub(super) fn configure(&self, mode: Mode) {
        self.state.lock().mode = Some(mode);
    }

    /// Whether its node may have forgotten what it acknowledged.
    pub(super) fn forgetful(&self) -> bool {
        self.state.lock().forgetful
    }

    /// Whether a power cut now may take what was acknowledged.
    pub(super) fn lazy(&self) -> bool {
        let state = self.state.lock();
        state.node.as_ref().map_or(state.lazy, |node| node.engine().status().lazy)
    }

    /// Whether the node stopped by itself in this life.
    pub(super) fn stopped(&self, life: u32) -> bool {
        self.state.lock().stopped == Some(life)
    }

    /// Whether its device failed in this life.
    pub(super) fn device_failed(&self) -> bool {
        self.disk.errors() > self.state.lock().errors
    }

    /// Whether it may lack what others count on it to have: it forgot, or part of what it holds is damaged.
    pub(super) fn faulty(&self) -> bool {
        self.forgetful() || self.disk.decayed() > 0
    }

    /// Its disk decays; nothing is known to be forgotten.
    pub(super) fn decays(&self) {
        self.state.lock().damaged = true;
    }

    /// Its disk tells another history of itself than before.
    pub(super) fn other_history(&self) {
        self.state.lock().boots += 1;
    }

    /// Part of what it holds is about to be misread.
    pub(super) fn damage(&self) {
        let mut state = self.state.lock();
        (state.damaged, state.forgetful) = (true, true);
    }

    /// All that was damaged is mended.
    pub(super) fn mended(&self) {
        let mut state = self.state.lock();
        (state.damaged, state.doubtful_through) = (false, None);
    }

    /// The last entry that its node has counted as stored in this life, and holds.
    pub(super) fn counted(&self) -> Option<LogId> {
        let Some((_, node)) = self.node() else { return self.state.lock().owed };
        let (engine, before) = (node.engine(), self.state.lock().counted_before);
        cairn_raft::flushed(self.slot).filter(|last| Some(*last) != before).filter(|last| {
            let purged = engine.log_bounds(GROUP).purged.is_some_and(|purged| purged.index >= last.index);
            purged || engine.log_id_at(GROUP, last.index) == Some(*last)
        })
    }

    /// When its condition last changed, in virtual time.
    pub(super) fn changed_at(&self) -> Duration {
        self.state.lock().changed_at
    }

    /// When its process last ran on after a pause.
    pub(super) fn resumed_at(&self) -> Option<Duration> {
        self.state.lock().resumed_at
    }

    /// Whether its node votes, or did when it last ran.
    pub(super) fn votes(&self) -> bool {
        self.state.lock().votes
    }

    /// Its node was seen to vote, or not to.
    pub(super) fn saw_votes(&self, votes: bool) {
        self.state.lock().votes = votes;
    }

    /// Keys written up to this index may name what others have overwritten.
    pub(super) fn doubtful_through(&self) -> Option<u64> {
        self.state.lock().doubtful_through
    }

    pub(super) fn damaged(&self) -> bool {
        self.state.lock().damaged
    }

    /// Its node recovers, for whatever reason.
    pub(super) fn forgot(&self, life: u32) {
        let mut state = self.state.lock();
        if state.life == life && state.node.is_some() {
            state.forgetful = true;
        }
    }

    /// Its disk is gone, and what was acknowledged with it.
    pub(super) fn lose(&self) {
        let mut state = self.state.lock();
        (state.forgetful, state.lost) = (true, true);
        (state.votes, state.owed, state.doubtful_through) = (false, None, None);
    }

    /// An older copy of its disk takes the place of its own, or its own is back.
    pub(super) fn restored(&self, stale: bool) {
        let mut state = self.state.lock();
        state.stale = stale;
        (state.forgetful, state.owed) = (true, None);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    pub(super) fn is_stale(&self) -> bool {
        self.state.lock().stale
    }

    /// For whoever exchanges its disk: false if somebody else is at it.
    pub(super) fn claim_disk(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().claimed, true)
    }

    pub(super) fn release_disk(&self) {
        self.state.lock().claimed = false;
    }

    /// Opens a machine that is down, so that nobody starts it, or closes it again.
    pub(super) fn open(&self, open: bool) {
        self.set(if open { Condition::Open } else { Condition::Down });
    }

    /// A write or sync of its disk has failed: it will come back with less than it had, or not know.
    pub(super) fn doubt(&self) {
        self.state.lock().forgetful = true;
    }

    /// Its node is active, and votes.
    pub(super) fn remembers(&self, life: u32) {
        let failed = self.device_failed();
        let mut state = self.state.lock();
        if state.life == life && state.node.is_some() && !state.stale && !failed {
            state.forgetful = false;
        }
    }

    pub(super) fn set(&self, condition: Condition) {
        let mut state = self.state.lock();
        state.condition = condition;
        state.change += 1;
        state.changed_at = virtual_time();
    }
}
