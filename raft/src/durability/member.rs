//! This member, as the tasks beside openraft see it.

use super::{Act, CheckQuorum, EpochRecords, Event, Lag, Refusal, Standing, UnsafeRecovery};
use crate::core::config::ReplicaConfig;
use crate::core::ids::NodeId;
use crate::core::runtime;
use crate::core::types::Vote;
use crate::storage::Raft;
use crate::storage::history::History;
use crate::storage::mode_in_force::ModeInForce;
use crate::storage::progress::Progress;
use crate::storage::repair::Repairer;
use crate::storage::state_machine::PinnedSnapshot;
use crate::transport::{self, Addresses, Answer, PeerIdentity, SnapshotReceiver};
use cairn_engine::Engine;
use futures::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A member's parts. Shared by its handle, its service and its tasks, which end once it stops.
pub(crate) struct LocalMember {
    pub(crate) identity: PeerIdentity,
    pub(crate) addresses: Addresses,
    pub(crate) engine: Engine,
    pub(crate) raft: Raft,
    pub(crate) config: ReplicaConfig,
    /// What it may do. The methods below are the only ones that change it.
    pub(crate) standing: Arc<Mutex<Standing>>,
    pub(crate) check_quorum: Arc<CheckQuorum>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) records: Arc<EpochRecords>,
    pub(crate) modes: Arc<ModeInForce>,
    pub(crate) pinned: PinnedSnapshot,
    pub(crate) repairer: Arc<Repairer>,
    pub(crate) history: Arc<History>,
    pub(crate) receiver: SnapshotReceiver,
    /// Leadership is handed over by one caller after another: two would name two transferees.
    pub(crate) handing_over: Arc<futures::lock::Mutex<()>>,
    /// Why this identity is no longer a member.
    pub(crate) removed_reason: Mutex<Option<String>>,
    /// How far behind the leader it is.
    pub(crate) lag: Lag,
    /// It leads, and nobody takes its entries.
    pub(crate) stuck: AtomicBool,
    /// How often another leader, or another term of one, was seen.
    pub(crate) leader_changes: AtomicU64,
    /// The term in which this member was last seen to begin to lead, and when.
    pub(crate) leads_since: Mutex<Option<(u64, runtime::Instant)>>,
    /// The tasks beside openraft must end.
    pub(crate) stopping: AtomicBool,
}

impl LocalMember {
    /// Whether the tasks beside openraft must end.
    pub(crate) fn stops(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn standing(&self) -> Standing {
        *self.standing.lock()
    }

    pub(crate) fn may(&self, act: Act) -> Result<(), Refusal> {
        let now = runtime::now();
        self.standing.lock().may(act, now)
    }

    /// Returns whether this changed anything.
    pub(crate) fn change(&self, event: Event) -> bool {
        let mut standing = self.standing.lock();
        let before = *standing;
        *standing = before.after(event);
        self.allow_elections(&standing);
        *standing != before
    }

    /// A drain and a grant end by time, and the patience of a drained member does.
    pub(crate) fn time_passes(&self) {
        self.allow_elections(&self.standing.lock());
    }

    /// Has openraft begin elections or not. Under the lock: the last call sees the last change.
    fn allow_elections(&self, standing: &Standing) {
        self.raft.runtime_config().elect(standing.may(Act::Stand, runtime::now()).is_ok());
    }

    /// Whether appends and snapshots of this leadership may be taken. It is heard in either case.
    pub(crate) fn takes_appends(&self, leader: NodeId, vote: Vote) -> Result<(), Refusal> {
        // Not `change`, for each append: what this decides of elections can wait for the next turn.
        let (mut standing, at) = (self.standing.lock(), runtime::now());
        *standing = standing.after(Event::Appends { leader, vote, at });
        standing.may(Act::Append(vote), at)
    }

    pub(crate) fn take_grant(&self, grant: UnsafeRecovery) -> Result<(), Refusal> {
        let (mut standing, now) = (self.standing.lock(), runtime::now());
        standing.may(Act::TakeGrant { candidate: grant.candidate }, now)?;
        *standing = standing.after(Event::Granted(grant, now));
        self.allow_elections(&standing);
        Ok(())
    }

    /// The last leader that was refused, once.
    pub(crate) fn take_refused(&self) -> Option<(NodeId, Vote)> {
        let mut standing = self.standing.lock();
        let refused = standing.refused();
        *standing = standing.after(Event::Asked);
        refused
    }

    /// Whether a leader sent a message within this time.
    pub(crate) fn heard_within(&self, time: Duration) -> bool {
        self.standing().heard_within(time, runtime::now())
    }

    /// Whether this member can lead, and may: a disk that failed or stalls takes no writes.
    pub(crate) fn is_fit_to_lead(&self) -> Result<(), String> {
        let disk = self.engine.status();
        match disk.failed {
            Some(error) => Err(format!("the storage of this member failed: {error}")),
            None if disk.stalled => Err("the disk of this member stalls".into()),
            None => self.may(Act::Lead).map_err(|refusal| refusal.to_string()),
        }
    }

    /// Why this member does not lead, whatever it holds.
    pub(crate) fn kept_from_leading(&self) -> Option<Refusal> {
        self.standing().kept_from_leading(runtime::now())
    }

    /// What the others of these members say of themselves. One that takes longer than this is left out, or,
    /// where that is more, than three heartbeats: a round trip is less than one, and a connection is made for
    /// the answer. In an election timeout there is time for two.
    ///
    /// The story: between sites 80 ms apart nobody ever answered in time whether it may lead, so leadership
    /// could not be handed over.
    pub(crate) async fn answers_of(
        &self,
        members: impl IntoIterator<Item = NodeId>,
        limit: Duration,
    ) -> BTreeMap<NodeId, Answer> {
        let others = members.into_iter().filter(|id| *id != self.identity.id());
        let distant = (3 * self.config.heartbeat_ms).min(self.config.election_min_ms / 2);
        let limit = limit.max(Duration::from_millis(distant));
        let asked = others.map(|id| async move {
            let answer = transport::ask(&self.identity, &self.addresses, id);
            Some((id, runtime::timeout(limit, answer).await??))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}
