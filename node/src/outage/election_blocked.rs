//! Whether an election is blocked: nobody leads, and waiting alone elects nobody.
//!
//! What holds here: the error names a blocked election only if it is one as far as the answering
//! members can tell. It is not one if a member leads or knows a leader, or if a majority is active
//! and can elect a leader. While a voter is missing, the sentence names it: that voter may still
//! bring the cluster back, also as a leader that the others cannot reach.

use super::MemberSurvey;
use cairn_client::NodeStatus;
use cairn_engine::MemberState;
use cairn_raft::Replica;
use parking_lot::Mutex;
use std::sync::Arc;

/// Why a cluster without a leader cannot elect one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionBlocked {
    /// Every voter answers, and too many of them may have lost acknowledged writes. Only an unsafe
    /// recovery helps.
    Decision,
    /// Too many of the voters that answer are recovering, and these voters are missing.
    Missing(Vec<String>),
}

impl ElectionBlocked {
    /// The sentence that the log, `/ready`, `cairn status` and errors show. `automatic`: the
    /// configuration lets the members recover once every voter answers, so nothing is reported if
    /// all do.
    pub fn sentence(&self, automatic: bool) -> Option<String> {
        match (self, automatic) {
            (ElectionBlocked::Decision, false) => Some(
                "too many members may have lost acknowledged writes; `cairn unsafe-recovery` decides; waiting does not help"
                    .into(),
            ),
            (ElectionBlocked::Decision, true) => None,
            (ElectionBlocked::Missing(voters), false) => Some(format!(
                "too many members may have lost acknowledged writes; a missing member may still bring the cluster back, else \
                 `cairn unsafe-recovery` decides: {}",
                voters.join("; ")
            )),
            (ElectionBlocked::Missing(voters), true) => Some(format!(
                "too many members may have lost acknowledged writes; `unsafe_recovery.automatic` decides once every voter answers: {}",
                voters.join("; ")
            )),
        }
    }

    /// Whether both are the same state. The reasons why voters are missing may differ.
    pub(super) fn is_as(&self, other: &ElectionBlocked) -> bool {
        match (self, other) {
            (ElectionBlocked::Missing(these), ElectionBlocked::Missing(those)) => {
                these.len() == those.len()
            }
            _ => self == other,
        }
    }
}

impl MemberSurvey {
    /// Why the election is blocked, if it is, as far as the answering members know.
    pub fn election_blocked(&self) -> Option<ElectionBlocked> {
        let serves = |node: &NodeStatus| node.stopped_reason.is_none();
        let recovers = |node: &NodeStatus| node.member_state == MemberState::Recovering.name();
        let led = self.leader.is_some() || self.nodes.iter().any(|(_, node)| node.leader.is_some());
        if led || !self.nodes.iter().any(|(_, node)| recovers(node)) {
            return None;
        }
        if self.slots_with(|node| serves(node) && !recovers(node)) > self.slots.len() / 2 {
            return None;
        }
        let stopped = self.nodes.iter().filter_map(|(endpoint, node)| {
            let reason = node.stopped_reason.as_ref()?;
            Some(format!("the node at {endpoint} has stopped serving: {reason}"))
        });
        let absent: Vec<String> = self.missing.iter().cloned().chain(stopped).collect();
        Some(if absent.is_empty() {
            ElectionBlocked::Decision
        } else {
            ElectionBlocked::Missing(absent)
        })
    }
}

/// The sentence that this member reports while an election is blocked. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct ElectionBlockedState(Arc<Mutex<Option<String>>>);

impl ElectionBlockedState {
    /// The sentence, while no leader is known.
    pub(crate) fn of(&self, replica: &Replica) -> Option<String> {
        let said = self.0.lock().clone()?;
        replica.status().leader.is_none().then_some(said)
    }

    pub(super) fn set(&self, sentence: Option<String>) {
        *self.0.lock() = sentence;
    }
}
