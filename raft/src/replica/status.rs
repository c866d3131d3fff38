//! The status of a replica.

use crate::core::boot::Boot;
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::types::{TypeConfig, engine_log_id};
use crate::core::version::{MemberVersion, VERSION, Versions};
use crate::durability::leadership;
use crate::storage::state_machine::identities::Identities;
use crate::transport::Addresses;
use cairn_engine::{Engine, LogId};
use openraft::{RaftMetrics, ServerState};
use std::collections::BTreeSet;
use std::fmt;

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Takes writes and replicates them.
    Leader,
    /// Follows a leader, or waits for one.
    Follower,
    /// Campaigns.
    Candidate,
    /// Receives the log and does not vote.
    Learner,
    /// Has stopped.
    Stopped,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
            Role::Stopped => "stopped",
        })
    }
}

/// A node's part in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// It votes and holds everything that it acknowledged.
    Active,
    /// It may have lost acknowledged entries.
    Recovering,
    /// By its own log it is not a voter yet, and may hold too little of the state to be read.
    Joining,
    /// It is no member any more, and this is why: nobody tells it what is written.
    Removed(String),
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub id: NodeId,
    /// Where it is reached: as it announced and answered since its start, else as the log has it.
    pub address: MemberAddress,
    /// Where it is by the log.
    pub logged_address: MemberAddress,
    /// Whether it votes.
    pub voter: bool,
}

/// A replica's view of itself and of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// This member's identity.
    pub node_id: NodeId,
    /// Its role.
    pub role: Role,
    /// The highest term that it has seen.
    pub term: u64,
    /// Who leads, if known.
    pub leader: Option<(NodeId, MemberAddress)>,
    /// Its last entry.
    pub last_log: Option<LogId>,
    /// The last entry that it knows to be committed.
    pub committed: Option<LogId>,
    /// The last entry that it applied.
    pub applied: Option<LogId>,
    /// The last entry that it purged.
    pub purged: Option<LogId>,
    /// The members of the last membership that it knows, by id.
    pub members: Vec<Member>,
    /// The voters: one set, or two while a change is under way; then a majority of each is needed.
    pub configurations: Vec<BTreeSet<NodeId>>,
    /// The log id of that membership.
    pub membership_log_id: Option<LogId>,
    /// Why it has stopped serving, if it has.
    pub stopped_reason: Option<String>,
}

/// The versions that a member with this knowledge knows.
pub(super) fn versions(identities: &Identities) -> Versions {
    let logged = identities.logged();
    let member = |(id, boot): (&NodeId, &Boot)| MemberVersion {
        id: *id,
        version: boot.version,
        release: boot.release.to_string(),
    };
    Versions {
        own: VERSION,
        cluster: identities.version(),
        members: logged.iter().map(member).collect(),
    }
}

/// The status of a replica with these metrics.
pub(crate) fn of(
    metrics: &RaftMetrics<TypeConfig>,
    engine: &Engine,
    addresses: &Addresses,
    stopped: Option<String>,
) -> ReplicaStatus {
    let bounds = engine.log_bounds(GROUP);
    let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
    let members = metrics.membership_config.nodes().map(|(id, address)| Member {
        id: *id,
        address: addresses.present(*id, address),
        logged_address: address.clone(),
        voter: voters.contains(id),
    });
    ReplicaStatus {
        node_id: metrics.id,
        role: match metrics.state {
            _ if stopped.is_some() => Role::Stopped,
            ServerState::Leader => Role::Leader,
            ServerState::Follower => Role::Follower,
            ServerState::Candidate => Role::Candidate,
            ServerState::Learner => Role::Learner,
            ServerState::Shutdown => Role::Stopped,
        },
        term: metrics.current_term,
        leader: leadership::leader(metrics)
            .filter(|_| stopped.is_none())
            .map(|(id, logged)| (id, addresses.present(id, &logged))),
        last_log: bounds.last,
        committed: metrics.cluster_committed.as_ref().map(engine_log_id),
        applied: engine.applied(GROUP),
        purged: bounds.purged,
        members: members.collect(),
        membership_log_id: metrics.membership_config.log_id().as_ref().map(engine_log_id),
        configurations: metrics.membership_config.membership().get_joint_config().clone(),
        stopped_reason: stopped,
    }
}
