//! What a replica says of itself.

use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::types::{TypeConfig, engine_log_id};
use crate::durability::leadership;
use cairn_engine::{Engine, LogId, Standing};
use openraft::{RaftMetrics, ServerState};
use std::collections::BTreeSet;
use std::fmt;

/// What a member does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Takes writes and replicates them.
    Leader,
    /// Follows a leader, or waits for one.
    Follower,
    /// Stands for election.
    Candidate,
    /// Receives the log and does not vote.
    Learner,
    /// Does nothing any more.
    Stopped,
}

impl Role {
    /// Its name in status and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
            Role::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub id: NodeId,
    /// Where.
    pub address: MemberAddress,
    /// Whether it votes.
    pub voter: bool,
}

/// One replica's own picture of itself and of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Who this is.
    pub node_id: NodeId,
    /// What it does.
    pub role: Role,
    /// Whether it remembers everything that it acknowledged.
    pub standing: Standing,
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
    /// Who votes: one set, or two while a change is under way, of both of which a majority is needed.
    pub configurations: Vec<BTreeSet<NodeId>>,
    /// The entry of that membership.
    pub membership_log_id: Option<LogId>,
    /// Why it serves no more, if so.
    pub stopped_reason: Option<String>,
}

/// What a replica with these metrics says of itself.
pub(crate) fn of(
    metrics: &RaftMetrics<TypeConfig>,
    engine: &Engine,
    standing: Standing,
    stopped: Option<String>,
) -> ReplicaStatus {
    let bounds = engine.log_bounds(GROUP);
    let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
    let members = metrics.membership_config.nodes().map(|(id, address)| Member {
        id: *id,
        address: address.clone(),
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
        standing,
        term: metrics.current_term,
        leader: leadership::leader(metrics).filter(|_| stopped.is_none()),
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
