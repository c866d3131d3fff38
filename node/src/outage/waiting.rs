//! Whether the cluster waits for a decision: nobody leads, and waiting alone elects nobody.
//!
//! What holds here: the sentence is said only where it is true as far as the members that answer can tell. Where somebody
//! leads or hears a leader, or where a majority remembers and can elect one, it is not said. While a voter is missing,
//! that one may still bring the cluster back, also as a leader that the others do not hear, and the sentence names it.

use super::Found;
use cairn_client::NodeStatus;
use cairn_engine::Standing;
use cairn_raft::Replica;
use parking_lot::Mutex;
use std::sync::Arc;

/// What a cluster without a leader waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Every voter is here, and too many may have forgotten: nobody can be elected.
    Decision,
    /// So many recover that those who are here elect nobody; these voters are missing.
    Missing(Vec<String>),
}

impl Waiting {
    /// The same sentence everywhere. `automatic`: the configuration lets the members decide once every voter is here; then
    /// nothing is to be said where they all are.
    pub fn sentence(&self, automatic: bool) -> Option<String> {
        match (self, automatic) {
            (Waiting::Decision, false) => Some(
                "too many members may have forgotten; `cairn recover` decides; waiting does not help".into(),
            ),
            (Waiting::Decision, true) => None,
            (Waiting::Missing(voters), false) => Some(format!(
                "too many members may have forgotten; a member that is missing may still bring the cluster back, else \
                 `cairn recover` decides: {}",
                voters.join("; ")
            )),
            (Waiting::Missing(voters), true) => Some(format!(
                "too many members may have forgotten; `recover.automatic` decides once every voter is here: {}",
                voters.join("; ")
            )),
        }
    }
}

impl Waiting {
    /// Whether it is the same wait, though the reasons for which somebody is missing may have changed.
    pub(super) fn is_as(&self, other: &Waiting) -> bool {
        match (self, other) {
            (Waiting::Missing(these), Waiting::Missing(those)) => these.len() == those.len(),
            _ => self == other,
        }
    }
}

impl Found {
    /// What the cluster waits for, if it waits: as the members that answered have it.
    pub fn waiting(&self) -> Option<Waiting> {
        let serves = |node: &NodeStatus| node.stopped_reason.is_none();
        let recovers = |node: &NodeStatus| node.standing == Standing::Recovering.name();
        let led = self.leader.is_some() || self.nodes.iter().any(|(_, node)| node.leader.is_some());
        if led || !self.nodes.iter().any(|(_, node)| recovers(node)) {
            return None;
        }
        if self.slots_with(|node| serves(node) && !recovers(node)) > self.slots.len() / 2 {
            return None;
        }
        let stopped = self.nodes.iter().filter_map(|(endpoint, node)| {
            let reason = node.stopped_reason.as_ref()?;
            Some(format!("the node at {endpoint} serves no more: {reason}"))
        });
        let absent: Vec<String> = self.missing.iter().cloned().chain(stopped).collect();
        Some(if absent.is_empty() { Waiting::Decision } else { Waiting::Missing(absent) })
    }
}

/// What this member says of a cluster that waits. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Outlook(Arc<Mutex<Option<String>>>);

impl Outlook {
    /// The sentence, while no leader is known.
    pub(crate) fn of(&self, replica: &Replica) -> Option<String> {
        let said = self.0.lock().clone()?;
        replica.status().leader.is_none().then_some(said)
    }

    pub(super) fn set(&self, sentence: Option<String>) {
        *self.0.lock() = sentence;
    }
}
