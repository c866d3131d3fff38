//! What to do after an outage in which so many machines lost power at once that no member can be
//! elected: what each member holds, and which one should lead.
//!
//! ```text
//! watch ──► survey ──► MemberSurvey ──► election_blocked: one sentence for the log and all answers
//!                          └──────────► chosen ──► an operator decides (`cairn unsafe-recovery`),
//!                                         │        or `automatic` if the configuration allows it
//!                                         └──────► decide: survey again, then grant
//! ```
//!
//! What holds here: no member is chosen if one leads, or if members can elect a leader on their
//! own. A voter that does not answer under its own identity is missing, even if another identity
//! answers at its address.

mod automatic;
mod election_blocked;
mod watch;

pub(crate) use election_blocked::ElectionBlockedState;
pub use election_blocked::{ElectionBlocked, no_configuration};
pub(crate) use watch::Watch;

use automatic::Automatic;

use cairn_client::{Client, Member, NodeStatus};
use cairn_engine::MemberState;
use cairn_raft::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// What the members hold, as they answered.
pub struct MemberSurvey {
    /// The voters that answered under their own identity, each with its endpoint; the one that
    /// should lead comes first.
    pub nodes: Vec<(String, NodeStatus)>,
    /// The member that leads.
    pub leader: Option<(String, NodeStatus)>,
    /// The member that knows the latest membership.
    newest: Option<(String, NodeStatus)>,
    /// Its voters by slot: in the middle of a replacement a slot has two, one in each half of the
    /// configuration.
    slots: BTreeMap<u16, BTreeSet<u64>>,
    /// What did not answer, with reasons: endpoints, and voters at whose address nothing or another
    /// identity answers.
    pub missing: Vec<String>,
}

/// Asks every known member.
pub async fn survey(client: &Client) -> MemberSurvey {
    // This learns the members beyond the given endpoints. Those that do not answer are listed as
    // missing below.
    let _ = client.members().await;
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for (endpoint, answer) in client.statuses().await {
        match answer {
            Ok(node) => answers.push((endpoint, node)),
            Err(reason) => silent.push((endpoint, reason.to_string())),
        }
    }
    MemberSurvey::of(answers, &silent)
}

impl MemberSurvey {
    fn of(mut answers: Vec<(String, NodeStatus)>, silent: &[(String, String)]) -> MemberSurvey {
        answers.sort_by_key(|(_, node)| {
            std::cmp::Reverse((node.last_log_term, node.last_log_index, node.node_id))
        });
        // A node may be reached at two addresses, and its log may have grown between the answers.
        let mut seen = BTreeSet::new();
        answers.retain(|(_, node)| seen.insert(node.node_id));
        // Joining and removed nodes do not count.
        let counts =
            |node: &NodeStatus| node.member_state != "joining" && node.member_state != "removed";
        let members = || answers.iter().filter(|(_, node)| counts(node));
        let leader = members().find(|(_, node)| node.role == "leader").cloned();
        let newest = members().max_by_key(|(_, node)| node.membership).cloned();
        let mut slots: BTreeMap<u16, BTreeSet<u64>> = BTreeMap::new();
        let mut missing = Vec::new();
        let known = newest.iter().flat_map(|(_, node)| &node.members);
        for voter in known.filter(|member| member.voter) {
            slots.entry(voter.slot).or_default().insert(voter.node_id);
            if !members().any(|(_, node)| node.node_id == voter.node_id) {
                missing.push(absence(voter, &answers, silent));
            }
        }
        let named = |endpoint: &str| {
            let mut known = newest.iter().flat_map(|(_, node)| &node.members);
            known.any(|member| member.voter && member.client_address == endpoint)
        };
        missing.extend(
            silent.iter().filter(|(endpoint, _)| !named(endpoint)).map(|(_, why)| why.clone()),
        );
        let votes = |node: &NodeStatus| slots.values().any(|voters| voters.contains(&node.node_id));
        let nodes = members().filter(|(_, node)| votes(node)).cloned().collect();
        MemberSurvey { nodes, leader, newest, slots, missing }
    }

    /// Counts the slots of which every voter answered and fulfils `such`. A majority of slots is a
    /// majority in both halves of a joint configuration, since at most one slot has two voters.
    fn slots_with(&self, such: impl Fn(&NodeStatus) -> bool) -> usize {
        let is_such =
            |id: &u64| self.nodes.iter().any(|(_, node)| node.node_id == *id && such(node));
        self.slots.values().filter(|voters| voters.iter().all(is_such)).count()
    }

    /// The voter with the most up-to-date log, if an unsafe recovery is needed.
    ///
    /// # Errors
    /// Why no voter is to be chosen.
    pub fn chosen(&self) -> Result<&NodeStatus, String> {
        let Some((_, chosen)) = self.nodes.first() else {
            return Err(format!(
                "no voter answered; name more members with --endpoints: {}",
                self.missing.join("; ")
            ));
        };
        let active = self.slots_with(|node| node.member_state != MemberState::Recovering.name());
        if active > self.slots.len() / 2 {
            return Err(format!(
                "{active} of {} voters are active and have everything they acknowledged: they elect a leader once they reach \
                 one another; check the network between them",
                self.slots.len()
            ));
        }
        if let Some((endpoint, newer)) =
            self.newest.as_ref().filter(|(_, n)| n.membership > chosen.membership)
        {
            return Err(format!(
                "node {} at {endpoint} knows a later membership ({}-{}) than node {}, which has the most up-to-date log ({}-{}): \
                 other members of that membership may elect a leader; start them, or check the network between them",
                NodeId::from_u64(newer.node_id),
                newer.membership.0,
                newer.membership.1,
                NodeId::from_u64(chosen.node_id),
                chosen.last_log_term,
                chosen.last_log_index
            ));
        }
        Ok(chosen)
    }

    /// The number of slots, and the number of those of which every voter answered.
    pub fn answered(&self) -> (usize, usize) {
        (self.slots.len(), self.slots_with(|_| true))
    }

    /// Whether the same members answered, in the same boot epochs, with the same one to lead.
    pub fn is_as(&self, before: &MemberSurvey) -> bool {
        let first = |found: &MemberSurvey| found.nodes.first().map(|(_, node)| node.node_id);
        let epochs = |found: &MemberSurvey| -> BTreeSet<(u64, (u64, u64))> {
            found.nodes.iter().map(|(_, node)| (node.node_id, node.boot_epoch)).collect()
        };
        self.leader.is_none() && first(self) == first(before) && epochs(self) == epochs(before)
    }

    /// Whether a member reports an unsafe recovery behind this log.
    pub fn counts_recovery_since(&self, chosen: &NodeStatus) -> bool {
        self.nodes.iter().any(|(_, node)| node.last_unsafe_recovery_index > chosen.last_log_index)
    }
}

/// Why no member was allowed to lead.
#[derive(Debug, thiserror::Error)]
pub enum NotApplied {
    /// A member restarted, came, went, or leads.
    #[error(
        "a member changed its state since it was asked, and nothing was changed: run `cairn unsafe-recovery` again and decide again"
    )]
    Changed,
    /// A member refused its grant. Grants that were accepted expire.
    #[error("not every member accepted the unsafe-recovery grant: {0}")]
    Refused(cairn_client::Error),
}

/// Lets the chosen member lead if a second survey equals the first. The decision took time: since
/// the first survey a member may have come back, or restarted and lost more.
///
/// # Errors
/// Why the member does not lead.
pub async fn decide(
    client: &Client,
    found: &MemberSurvey,
    chosen: &NodeStatus,
) -> Result<(), NotApplied> {
    if !survey(client).await.is_as(found) {
        return Err(NotApplied::Changed);
    }
    // Sends the grant to every recovering member, to the chosen one last.
    for (endpoint, node) in found.nodes.iter().rev() {
        if node.member_state == MemberState::Recovering.name() {
            let operator = client.operator();
            let granted = operator.unsafe_recovery(endpoint, chosen.node_id, chosen.boot_epoch);
            granted.await.map_err(NotApplied::Refused)?;
        }
    }
    Ok(())
}

/// Why a voter counts as missing.
fn absence(
    voter: &Member,
    answers: &[(String, NodeStatus)],
    silent: &[(String, String)],
) -> String {
    let address = &voter.client_address;
    let other = answers.iter().find(|(endpoint, _)| endpoint == address).map(|(_, node)| {
        format!(
            "node {} answers there, which is {}",
            NodeId::from_u64(node.node_id),
            node.member_state
        )
    });
    let failed =
        || silent.iter().find(|(endpoint, _)| endpoint == address).map(|(_, why)| why.clone());
    let why = other.or_else(failed).unwrap_or_else(|| "not asked; name it with --endpoints".into());
    format!("node {} at {address}: {why}", NodeId::from_u64(voter.node_id))
}
