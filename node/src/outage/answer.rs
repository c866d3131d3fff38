//! What a node answers when it is asked for its status, as far as a decision after an outage depends
//! on it.
//!
//! What holds here: a member with an empty log has neither a last entry nor a membership: `0-0` is the
//! id of a cluster's first entry.

use cairn_client::{Member, MemberState, NodeStatus, Role};
use cairn_raft::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A membership that a node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Term and index of its entry.
    pub log_id: (u64, u64),
    /// The voters: one set, or two while a change is under way. A majority of each is needed.
    pub configurations: Vec<BTreeSet<NodeId>>,
    /// Where clients reach each voter.
    pub voters: BTreeMap<NodeId, String>,
    /// The slots of all members, learners too.
    pub slots: BTreeSet<u16>,
}

impl Membership {
    /// Whether these include a majority of each configuration.
    pub(super) fn is_quorum(&self, of: &BTreeSet<NodeId>) -> bool {
        cairn_raft::is_quorum(&self.configurations, of)
    }

    /// The configuration in which these are furthest from a majority: its voters, and how many of
    /// these are among them.
    pub(super) fn scarcest(&self, of: &BTreeSet<NodeId>) -> (usize, usize) {
        let counts = self
            .configurations
            .iter()
            .map(|voters| (voters.len(), voters.intersection(of).count()));
        counts
            .max_by_key(|(voters, among)| cairn_raft::majority(*voters).saturating_sub(*among))
            .unwrap_or_default()
    }
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// `host:port` at which it answered.
    pub endpoint: String,
    /// Its identity.
    pub id: NodeId,
    /// Its part in the cluster.
    pub state: MemberState,
    /// What is damaged in its directory, of which nothing is overwritten yet.
    pub damage: Option<String>,
    /// Why it has stopped serving.
    pub stopped: Option<String>,
    /// What it does in the cluster.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// Why it serves no client.
    pub not_ready: Option<String>,
    /// The leader that it hears.
    pub leader: Option<NodeId>,
    /// Term and index of its last entry.
    pub last_log: Option<(u64, u64)>,
    /// The last index that it applied.
    pub applied_index: u64,
    /// The membership that it uses.
    pub membership: Option<Membership>,
    /// Number and nonce of its boot.
    pub boot_epoch: (u64, u64),
    /// The cluster that it belongs to, if that was made anew of one member; else 0.
    pub generation: u32,
    /// Unsafe recoveries of the cluster so far.
    pub unsafe_recoveries: u64,
    /// The log index of the last one.
    pub last_unsafe_recovery_index: u64,
}

impl Answer {
    pub(super) fn of(endpoint: String, status: NodeStatus) -> Answer {
        let membership = (!status.members.is_empty()).then(|| membership(&status));
        let last_log = (status.last_log_term, status.last_log_index);
        Answer {
            endpoint,
            id: NodeId::from_u64(status.node_id),
            state: status.member_state,
            damage: status.damage,
            stopped: status.stopped_reason,
            role: status.role,
            term: status.term,
            not_ready: status.not_ready,
            leader: status.leader_id.map(NodeId::from_u64),
            last_log: (membership.is_some() || last_log > (0, 0)).then_some(last_log),
            applied_index: status.applied_index,
            membership,
            boot_epoch: status.boot_epoch,
            generation: status.generation,
            unsafe_recoveries: status.unsafe_recoveries,
            last_unsafe_recovery_index: status.last_unsafe_recovery_index,
        }
    }

    /// Whether it may be one of the voters: it neither joins nor was removed, and it serves.
    pub(super) fn counts(&self) -> bool {
        self.stopped.is_none()
            && matches!(self.state, MemberState::Active | MemberState::Recovering)
    }

    pub(super) fn leads(&self) -> bool {
        self.counts() && self.role == Role::Leader
    }

    /// Whether it leads with a majority that answers it.
    pub(super) fn serves(&self) -> bool {
        self.leads() && self.not_ready.is_none()
    }

    /// Its last entry, to show.
    pub fn last_log_text(&self) -> String {
        self.last_log.map_or_else(|| "empty".into(), |(term, index)| format!("{term}-{index}"))
    }
}

fn membership(status: &NodeStatus) -> Membership {
    let voters = || status.members.iter().filter(|member| member.voter);
    let ids = |voters: &BTreeSet<u64>| voters.iter().copied().map(NodeId::from_u64).collect();
    Membership {
        log_id: status.membership,
        configurations: match status.configurations.as_slice() {
            [] => by_slots(voters()),
            told => told.iter().map(ids).collect(),
        },
        voters: voters()
            .map(|voter| (NodeId::from_u64(voter.node_id), voter.client_address.clone()))
            .collect(),
        slots: status.members.iter().map(|member| member.slot).collect(),
    }
}

/// The configurations of a server that does not tell them: in the middle of a replacement a slot has
/// two voters, one in each.
fn by_slots<'a>(voters: impl Iterator<Item = &'a Member>) -> Vec<BTreeSet<NodeId>> {
    let mut slots: BTreeMap<u16, BTreeSet<NodeId>> = BTreeMap::new();
    for voter in voters {
        slots.entry(voter.slot).or_default().insert(NodeId::from_u64(voter.node_id));
    }
    let first = slots.values().filter_map(BTreeSet::first).copied().collect();
    let last = slots.values().filter_map(BTreeSet::last).copied().collect();
    if first == last { vec![first] } else { vec![first, last] }
}
