//! One machine: a simulated host, a disk that outlives everything, and what became of the node that runs there.

use crate::disk::SimDisk;
use cairn_node::Node;
use madsim::task::NodeId as Host;
use parking_lot::Mutex;
use std::sync::Arc;

/// What a machine's node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Down,
    Starting,
    Up,
    Paused,
    /// On its way to a clean end.
    Stopping,
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
    /// The machine lost power with the mark set, and its node is not known to be active since.
    pub(super) forgetful: bool,
    /// The life in which the node stopped by itself because its device had failed.
    pub(super) stopped: Option<u32>,
    /// The errors of its device that are accounted for by stopped or ended nodes.
    pub(super) errors: u64,
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
            forgetful: false,
            stopped: None,
            errors: 0,
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

    /// Part of what it holds is about to be misread.
    pub(super) fn damage(&self) {
        let mut state = self.state.lock();
        (state.damaged, state.forgetful) = (true, true);
    }

    /// All that was damaged is mended.
    pub(super) fn mended(&self) {
        self.state.lock().damaged = false;
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

    /// Its node is active.
    pub(super) fn remembers(&self, life: u32) {
        let mut state = self.state.lock();
        if state.life == life && state.node.is_some() {
            state.forgetful = false;
        }
    }

    pub(super) fn set(&self, condition: Condition) {
        let mut state = self.state.lock();
        state.condition = condition;
        state.change += 1;
    }
}
