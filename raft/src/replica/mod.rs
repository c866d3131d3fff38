//! The handle of a running replica, the service that answers the other members, and the tasks
//! beside replication.
//!
//! This file defines the handle, and what it tells of the member. What else the handle does:
//!
//! ```text
//! start      openraft, the parts that it uses, the tasks beside it
//! write      commands, until they are applied
//! read       linearizable reads, values, a copy of the state
//! changes    what the entries behind a position changed
//! serving    whether clients are served now
//! operator   what an operator asks for
//! stop       the end, and why
//! ```

mod append_capacity;
mod changes;
mod coalesce;
mod maintenance;
mod observed;
mod operator;
mod pacer;
mod peer_service;
mod read;
mod read_barrier;
mod retention;
mod scrub;
mod serving;
mod start;
mod state_hash;
mod status;
mod stop;
mod surveys;
mod write;

pub use changes::EntryChanges;
pub use observed::FollowerLag;
pub use peer_service::PeerService;
pub use scrub::ScrubStatus;
pub use status::{Member, Part, ReplicaStatus, Role};

use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::version::Versions;
use crate::durability::{Act, LEADER_ALIVE, LocalMember, leadership};
use crate::storage::mode_in_force::{Modes, first_mode};
use crate::storage::state_machine::UnsafeRecoveries;
use cairn_engine::{BootEpoch, Engine, LogId, Mode};
use read_barrier::{NewestRound, ReadBarrier};
use scrub::Scrubber;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use surveys::Surveys;

/// A running replica. Clones share it.
#[derive(Clone)]
pub struct Replica {
    inner: Arc<Inner>,
}

struct Inner {
    member: Arc<LocalMember>,
    service: PeerService,
    /// For reads while this member leads, and while it does not.
    barrier: ReadBarrier,
    follower_barrier: ReadBarrier,
    /// Of both.
    newest_round: NewestRound,
    /// Of the members, for callers here.
    surveys: Surveys,
    scrubber: Scrubber,
}

impl Drop for Inner {
    /// Dropping the last handle ends the tasks beside replication.
    fn drop(&mut self) {
        self.member.stopping.store(true, Ordering::SeqCst);
    }
}

impl Replica {
    /// What answers the other members: serve with it each connection to the peer address.
    pub fn peer_service(&self) -> PeerService {
        self.inner.service.clone()
    }

    /// The engine, for reads of [`GROUP`].
    pub fn engine(&self) -> &Engine {
        &self.inner.member.engine
    }

    /// This member's identity.
    pub fn node_id(&self) -> NodeId {
        self.inner.member.identity.id()
    }

    /// Whether this replica holds everything that it acknowledged. One that recovers may have lost
    /// some of it: it does not vote, and no read may be served from it.
    pub fn holds_all(&self) -> bool {
        self.inner.member.may(Act::Vouch).is_ok()
    }

    /// Its part in the cluster.
    pub fn part(&self) -> Part {
        match self.removed_reason() {
            Some(reason) => Part::Removed(reason),
            None if !self.holds_all() => Part::Recovering,
            None if !self.votes() => Part::Joining,
            None => Part::Active,
        }
    }

    /// Whether this identity is a voter according to its own log. Before it is, it may hold too
    /// little of the state to be read.
    pub fn votes(&self) -> bool {
        with_metrics(&self.inner.member.raft, |metrics| {
            metrics.membership_config.voter_ids().any(|voter| voter == metrics.id)
        })
    }

    /// Whether the log, as far as it is applied here, has this boot epoch of a member or a later
    /// one: from then on every member refuses an older copy of its disk.
    pub fn knows_epoch(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.inner.member.identity.identities.has_logged(member, epoch)
    }

    /// Why this identity is no longer a member: another member said so, or the log does.
    pub fn removed_reason(&self) -> Option<String> {
        let member = &self.inner.member;
        let told = member.removed_reason.lock().clone();
        let logged = || member.identity.identities.is_removed(self.node_id());
        told.or_else(|| logged().then(|| "this identity was removed from the cluster".into()))
    }

    /// The unsafe recoveries so far: each one discarded what no member held any more.
    pub fn unsafe_recoveries(&self) -> UnsafeRecoveries {
        self.inner.member.progress.unsafe_recoveries()
    }

    /// Which version this build speaks, and those of the cluster and its members by the log.
    pub fn versions(&self) -> Versions {
        status::versions(&self.inner.member.identity.identities)
    }

    /// What acknowledgements will mean in a cluster whose log says nothing of it yet, if this member
    /// leads. Until then each is synced.
    pub fn first_mode(&self) -> Mode {
        let configured = self.inner.member.config.formation_mode;
        with_metrics(&self.inner.member.raft, |metrics| {
            match metrics.membership_config.voter_ids().next() {
                None => configured,
                Some(_) => first_mode(configured, metrics.membership_config.membership()),
            }
        })
    }

    /// What acknowledgements mean in the cluster and on this member.
    pub fn modes(&self) -> Modes {
        self.inner.member.modes.modes()
    }

    /// Who leads, if known.
    pub fn leader(&self) -> Option<(NodeId, MemberAddress)> {
        if self.inner.member.check_quorum.is_suspended() {
            return None;
        }
        let leader = with_metrics(&self.inner.member.raft, leadership::leader);
        leader.map(|leader| self.at_present(leader))
    }

    /// Who leads next, while this member hands leadership over or is being stopped. Waits until
    /// somebody leads, at most for the shortest election. A client that is refused without a name
    /// asks again and again, later each time, and finds the next leader later than it is there.
    async fn next_leader(&self, hands_over: bool) -> Option<(NodeId, MemberAddress)> {
        let member = &self.inner.member;
        if !hands_over && !member.standing().leaves() {
            return None;
        }
        let limit = Duration::from_millis(member.config.election_min_ms);
        let leader = leadership::another_leader(member, limit).await?;
        Some(self.at_present(leader))
    }

    /// A member with the addresses at which it is reached now.
    fn at_present(&self, (member, logged): (NodeId, MemberAddress)) -> (NodeId, MemberAddress) {
        (member, self.inner.member.addresses.present(member, &logged))
    }

    /// This replica's view of itself and of the cluster. Cheap.
    pub fn status(&self) -> ReplicaStatus {
        let stopped = self.stopped();
        // Calls to the engine may block, so they are made outside the read of the metrics.
        let metrics = with_metrics(&self.inner.member.raft, Clone::clone);
        let mut status = status::of(&metrics, self.engine(), &self.inner.member.addresses, stopped);
        if status.role == Role::Leader && self.inner.member.check_quorum.is_suspended() {
            (status.role, status.leader) = (Role::Follower, None);
        }
        // openraft keeps reporting the last leader on a node that does not campaign or wins no
        // election; hide it if no message came lately.
        if status.role != Role::Leader && !self.inner.member.heard_within(LEADER_ALIVE) {
            status.leader = None;
        }
        status
    }

    /// The applied position, and a hash over all keys, versions, values' hashes and the machine
    /// image: replicas that have applied the same position have the same hash.
    pub fn state_hash(&self) -> (Option<LogId>, u128) {
        state_hash::of(&self.engine().view(GROUP))
    }
}

#[cfg(test)]
mod tests;
