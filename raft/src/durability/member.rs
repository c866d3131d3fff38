//! This member, as the tasks beside openraft see it.

use super::{CheckQuorum, EpochRecords, Gate, Lag};
use crate::core::config::ReplicaConfig;
use crate::core::runtime;
use crate::storage::Raft;
use crate::storage::modes::ModeInForce;
use crate::storage::progress::Progress;
use crate::storage::repair::Repairer;
use crate::storage::state_machine::PinnedSnapshot;
use crate::transport::{Addresses, PeerIdentity, SnapshotReceiver};
use cairn_engine::Engine;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A member's parts. Shared by its handle, its service and its tasks, which end once it stops.
pub(crate) struct LocalMember {
    pub(crate) identity: PeerIdentity,
    pub(crate) addresses: Addresses,
    pub(crate) engine: Engine,
    pub(crate) raft: Raft,
    pub(crate) config: ReplicaConfig,
    pub(crate) gate: Arc<Gate>,
    pub(crate) check_quorum: Arc<CheckQuorum>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) records: Arc<EpochRecords>,
    pub(crate) modes: Arc<ModeInForce>,
    pub(crate) pinned: PinnedSnapshot,
    pub(crate) repairer: Arc<Repairer>,
    pub(crate) receiver: SnapshotReceiver,
    /// Until then an operator keeps it from leading.
    pub(crate) drained: Mutex<Option<runtime::Instant>>,
    /// What decides elections is read and passed on by one caller after another.
    pub(crate) allowing: Mutex<()>,
    /// Leadership is handed over by one caller after another: two would name two transferees.
    pub(crate) handing_over: Arc<futures::lock::Mutex<()>>,
    /// Why this identity is no longer a member.
    pub(crate) removed_reason: Mutex<Option<String>>,
    /// How far behind the leader it is.
    pub(crate) lag: Lag,
    /// It is being stopped: it leads no more, and still votes, acknowledges and answers.
    pub(crate) leaving: AtomicBool,
    pub(crate) stopping: AtomicBool,
}

impl LocalMember {
    /// Whether the tasks beside openraft must end.
    pub(crate) fn stops(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Whether this member is being stopped.
    pub(crate) fn leaves(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// Whether this member may ask for votes: its gate allows it, no operator drains it, and it is
    /// not being stopped.
    pub(crate) fn may_campaign(&self) -> bool {
        self.kept_from_leading().is_none() && self.gate.may_campaign(self.identity.id())
    }

    /// Has openraft campaign or not. Called after each change of what decides that, and again and
    /// again, since a drain and a grant end by time: the last call sees the last change.
    pub(crate) fn allow_elections(&self) {
        let _one_at_a_time = self.allowing.lock();
        self.raft.runtime_config().elect(self.may_campaign());
    }

    /// Why this member does not lead although its gate allows it.
    pub(crate) fn kept_from_leading(&self) -> Option<&'static str> {
        if self.leaves() {
            return Some("this member is being stopped");
        }
        self.drained_for().map(|_| "an operator keeps this member from leading")
    }

    /// How long an operator still keeps this member from leading.
    pub(crate) fn drained_for(&self) -> Option<Duration> {
        let (until, now) = (*self.drained.lock(), runtime::now());
        until.filter(|until| *until > now).map(|until| until - now)
    }
}
