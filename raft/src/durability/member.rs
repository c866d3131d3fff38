//! This member, as the tasks beside openraft see it.

use super::{CheckQuorum, EpochRecords, Gate, Lag};
use crate::core::config::ReplicaConfig;
use crate::core::ids::NodeId;
use crate::core::runtime;
use crate::storage::Raft;
use crate::storage::modes::ModeInForce;
use crate::storage::progress::Progress;
use crate::storage::repair::Repairer;
use crate::storage::state_machine::PinnedSnapshot;
use crate::transport::{self, Addresses, Answer, PeerIdentity, SnapshotReceiver};
use cairn_engine::Engine;
use futures::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a hand-over may take that an operator asks for.
pub(crate) const HAND_OVER_LIMIT: Duration = Duration::from_secs(3);

/// A drained member that has heard no leader for so many of the longest election timeouts campaigns:
/// others have had time for some elections. At least for two hand-overs, in which a leader is silent.
const LAST_RESORT_TIMEOUTS: u32 = 4;

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
    /// An operator keeps it from leading.
    pub(crate) drained: Mutex<Option<Drain>>,
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

/// An operator keeps a member from leading, for a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    pub(crate) from: runtime::Instant,
    pub(crate) until: runtime::Instant,
}

impl Drain {
    pub(crate) fn of(time: Duration) -> Drain {
        let from = runtime::now();
        Drain { from, until: from + time }
    }
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

    /// Whether this member may ask for votes: its gate allows it, it is not being stopped, and no
    /// operator drains it, or nobody else is elected.
    pub(crate) fn may_campaign(&self) -> bool {
        let wanted = self.kept_from_leading().is_none() || self.is_last_resort();
        wanted && self.gate.may_campaign(self.identity.id())
    }

    /// Whether a drained member has heard no leader for so long that perhaps only it can be elected:
    /// it has the newest entries, or the others are drained too. It gives leadership away again when
    /// another one may lead.
    fn is_last_resort(&self) -> bool {
        let patience = Duration::from_millis(self.config.election_max_ms)
            .saturating_mul(LAST_RESORT_TIMEOUTS)
            .max(HAND_OVER_LIMIT * 2);
        let drained = self.drain().filter(|_| !self.leaves());
        drained.is_some_and(|drain| {
            runtime::now() - drain.from >= patience && !self.gate.leader_contact_within(patience)
        })
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
        self.drain().map(|_| "an operator keeps this member from leading")
    }

    /// How long an operator still keeps this member from leading.
    pub(crate) fn drained_for(&self) -> Option<Duration> {
        self.drain().map(|drain| drain.until - runtime::now().min(drain.until))
    }

    /// What the others of these members say of themselves. One that takes longer than this is left out.
    pub(crate) async fn answers_of(
        &self,
        members: impl IntoIterator<Item = NodeId>,
        limit: Duration,
    ) -> BTreeMap<NodeId, Answer> {
        let others = members.into_iter().filter(|id| *id != self.identity.id());
        let asked = others.map(|id| async move {
            let answer = transport::ask(&self.identity, &self.addresses, id);
            Some((id, runtime::timeout(limit, answer).await??))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    fn drain(&self) -> Option<Drain> {
        self.drained.lock().filter(|drain| drain.until > runtime::now())
    }
}
