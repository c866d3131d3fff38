//! After so many machines lost power at once that no member can be elected: what each of them holds, and who should lead.
//!
//! ```text
//!   watch ──► look ──► Found ──► waiting: what the cluster waits for, in one sentence everywhere
//!                        └─────► chosen ──► a person decides (`cairn recover`), or [`automatic`] where the configuration says so
//!                                                 └──► decide: look again, mandates
//! ```
//!
//! What holds here: nobody is chosen where a leader is, or where members can elect one by themselves; a voter that does not answer
//! as itself is missing, whoever answers in its place.

mod automatic;
mod waiting;
mod watch;

pub(crate) use waiting::Outlook;
pub use waiting::Waiting;
pub(crate) use watch::Watch;

use automatic::Automatic;

use cairn_client::{Client, Member, NodeStatus};
use cairn_engine::Standing;
use cairn_raft::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// What the members hold.
pub struct Found {
    /// The voters that answered as themselves, the one that should lead first; each with its endpoint.
    pub nodes: Vec<(String, NodeStatus)>,
    /// Whoever leads.
    pub leader: Option<(String, NodeStatus)>,
    /// Whoever knows of the latest membership.
    newest: Option<(String, NodeStatus)>,
    /// Its voters by slot: in the middle of a replacement a slot has two, one in each half of the configuration.
    slots: BTreeMap<u16, BTreeSet<u64>>,
    /// Who did not answer: endpoints, and voters in whose place nobody or somebody else did; with reasons.
    pub missing: Vec<String>,
}

/// Asks every member that is known.
pub async fn look(client: &Client) -> Found {
    // Learns the members beyond the endpoints given; whoever does not answer is named below.
    let _ = client.members().await;
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for (endpoint, answer) in client.statuses().await {
        match answer {
            Ok(node) => answers.push((endpoint, node)),
            Err(reason) => silent.push((endpoint, reason.to_string())),
        }
    }
    Found::of(answers, &silent)
}

impl Found {
    fn of(mut answers: Vec<(String, NodeStatus)>, silent: &[(String, String)]) -> Found {
        answers.sort_by_key(|(_, node)| {
            std::cmp::Reverse((node.last_log_term, node.last_log_index, node.node_id))
        });
        // A node may be reached at two addresses, and its log may have grown between the answers.
        let mut seen = BTreeSet::new();
        answers.retain(|(_, node)| seen.insert(node.node_id));
        // One that is about to take a slot, or has lost it, has no say.
        let has_say = |node: &NodeStatus| node.standing != "joining" && node.standing != "retired";
        let members = || answers.iter().filter(|(_, node)| has_say(node));
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
        missing.extend(silent.iter().filter(|(endpoint, _)| !named(endpoint)).map(|(_, why)| why.clone()));
        let votes = |node: &NodeStatus| slots.values().any(|voters| voters.contains(&node.node_id));
        let nodes = members().filter(|(_, node)| votes(node)).cloned().collect();
        Found { nodes, leader, newest, slots, missing }
    }

    /// Slots of which every voter answered and is `such`: a majority of them is one in both halves of a configuration, since
    /// one slot at most has two voters.
    fn slots_with(&self, such: impl Fn(&NodeStatus) -> bool) -> usize {
        let is_such = |id: &u64| self.nodes.iter().any(|(_, node)| node.node_id == *id && such(node));
        self.slots.values().filter(|voters| voters.iter().all(is_such)).count()
    }

    /// The voter whose log reaches furthest, where a decision is needed.
    ///
    /// # Errors
    /// Why nobody is to be chosen.
    pub fn chosen(&self) -> Result<&NodeStatus, String> {
        let Some((_, chosen)) = self.nodes.first() else {
            return Err(format!(
                "no voter answered; name more members with --endpoints: {}",
                self.missing.join("; ")
            ));
        };
        let remember = self.slots_with(|node| node.standing != Standing::Recovering.name());
        if remember > self.slots.len() / 2 {
            return Err(format!(
                "{remember} of {} voters remember everything they acknowledged: they elect a leader by themselves once they \
                 reach one another; look at the network between them",
                self.slots.len()
            ));
        }
        if let Some((endpoint, newer)) =
            self.newest.as_ref().filter(|(_, n)| n.membership > chosen.membership)
        {
            return Err(format!(
                "node {} at {endpoint} knows of a later membership ({}-{}) than node {}, whose log reaches furthest ({}-{}): \
                 others of that membership may go on by themselves; start them, or look at the network between them",
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

    /// How many slots there are, and of how many every voter answered.
    pub fn answered(&self) -> (usize, usize) {
        (self.slots.len(), self.slots_with(|_| true))
    }

    /// Whether the same members answered, in the same runs, with the same one to lead.
    pub fn is_as(&self, before: &Found) -> bool {
        let first = |found: &Found| found.nodes.first().map(|(_, node)| node.node_id);
        let runs = |found: &Found| -> BTreeSet<(u64, (u64, u64))> {
            found.nodes.iter().map(|(_, node)| (node.node_id, node.run)).collect()
        };
        self.leader.is_none() && first(self) == first(before) && runs(self) == runs(before)
    }

    /// Whether a loss behind this one's log is on record.
    pub fn counts_loss_since(&self, chosen: &NodeStatus) -> bool {
        self.nodes.iter().any(|(_, node)| node.last_loss_index > chosen.last_log_index)
    }
}

/// Why nobody was let to lead.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    /// A member started again, came, went, or leads.
    #[error(
        "not all members are as they were a moment ago, and nothing was changed: look with `cairn recover`, and decide again"
    )]
    Changed,
    /// Mandates that were given end by themselves.
    #[error("not every member took its mandate: {0}")]
    Refused(cairn_client::Error),
}

/// Lets the chosen member lead, if all members are still as they were found: whoever decides took time, and a member may be
/// back since, or have started again and forgotten more.
///
/// # Errors
/// Why it does not lead.
pub async fn decide(client: &Client, found: &Found, chosen: &NodeStatus) -> Result<(), Undecided> {
    if !look(client).await.is_as(found) {
        return Err(Undecided::Changed);
    }
    give_mandates(client, found, chosen).await.map_err(Undecided::Refused)
}

/// Gives every member that recovers its mandate, the chosen one last.
async fn give_mandates(
    client: &Client,
    found: &Found,
    chosen: &NodeStatus,
) -> Result<(), cairn_client::Error> {
    for (endpoint, node) in found.nodes.iter().rev() {
        if node.standing == Standing::Recovering.name() {
            client.mandate(endpoint, chosen.node_id, chosen.run).await?;
        }
    }
    Ok(())
}

/// Why a voter counts as missing.
fn absence(voter: &Member, answers: &[(String, NodeStatus)], silent: &[(String, String)]) -> String {
    let address = &voter.client_address;
    let other = answers.iter().find(|(endpoint, _)| endpoint == address).map(|(_, node)| {
        format!("node {} answers there, which is {}", NodeId::from_u64(node.node_id), node.standing)
    });
    let failed = || silent.iter().find(|(endpoint, _)| endpoint == address).map(|(_, why)| why.clone());
    let why = other.or_else(failed).unwrap_or_else(|| "not asked; name it with --endpoints".into());
    format!("node {} at {address}: {why}", NodeId::from_u64(voter.node_id))
}
