//! Whether an election is blocked: nobody leads, and waiting alone elects nobody.
//!
//! What holds here: the error names a blocked election only if it is one as far as the answering
//! members can tell. It is not one if a member leads or knows a leader, or if a majority is active
//! and can elect a leader. While a voter is missing, the sentence names it: that voter may still
//! bring the cluster back, also as a leader that the others cannot reach. So may a voter whose
//! directory is damaged and not overwritten yet: its device may be read again.

use super::{MemberSurvey, Verdict};
use crate::failure_domains::listed;
use cairn_client::MemberState;
use cairn_raft::Replica;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why a cluster without a leader cannot elect one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionBlocked {
    /// Every voter answers, and too many of them may have lost acknowledged writes. Only an unsafe
    /// recovery helps.
    Decision,
    /// Too many of the voters that answer are recovering, and these voters are missing, or have a
    /// damaged directory that may be read again.
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

/// A member that does not vote in a formed cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outside {
    /// Its slot has a voter, which is another node, or it is a learner.
    Joining,
    /// No voter has its slot; the sentence about that.
    NoConfiguration(String),
}

/// What an operator needs to know of a slot that no voter has.
pub fn no_configuration(slot: u16, voters: &BTreeSet<u16>) -> String {
    format!(
        "slot {slot} is in no configuration of the cluster, whose voters are slots {}: this member serves nobody; add it with \
         `cairn members add {slot}`, or correct `slot` and `members` in its configuration",
        listed(voters)
    )
}

impl MemberSurvey {
    /// The place of a member of this slot that does not vote, if the cluster is formed.
    pub(super) fn outside(&self, slot: u16) -> Option<Outside> {
        let membership = self.membership()?;
        if membership.slots.contains(&slot) {
            return Some(Outside::Joining);
        }
        let voters = membership.voters.keys().map(|id| id.slot()).collect();
        Some(Outside::NoConfiguration(no_configuration(slot, &voters)))
    }

    /// Why the election is blocked, if it is, as far as the answering members know.
    pub fn election_blocked(&self) -> Option<ElectionBlocked> {
        if self.leader.is_some() || self.heard.is_some() {
            return None;
        }
        match self.verdict() {
            Verdict::Elects { .. } | Verdict::Silence => None,
            Verdict::NoMembers => self.recovering.then(|| {
                let unknown = "no node that answers knows the members of the cluster".to_owned();
                ElectionBlocked::Missing(self.missing.iter().cloned().chain([unknown]).collect())
            }),
            _ if self.those(|answer| answer.state == MemberState::Recovering).is_empty() => None,
            _ => {
                let may_come: Vec<String> =
                    self.missing.iter().cloned().chain(self.damaged()).collect();
                Some(match may_come.is_empty() {
                    true => ElectionBlocked::Decision,
                    false => ElectionBlocked::Missing(may_come),
                })
            }
        }
    }
}

/// What this member reports while no leader is known: the sentence about a blocked election, and the
/// one about a member that is in no configuration. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct ElectionBlockedState {
    blocked: Arc<Mutex<Option<String>>>,
    outside: Arc<Mutex<Option<Outside>>>,
}

impl ElectionBlockedState {
    /// The sentence, while no leader is known.
    pub(crate) fn of(&self, replica: &Replica) -> Option<String> {
        let said = self.blocked.lock().clone()?;
        replica.status().leader.is_none().then_some(said)
    }

    /// Why nobody is served here and waiting alone changes nothing: the election is blocked, this
    /// member is in no configuration, or the cluster is not formed.
    pub(crate) fn no_service(&self, replica: &Replica) -> Option<String> {
        if let Some(blocked) = self.of(replica) {
            return Some(blocked);
        }
        if replica.votes() {
            return None;
        }
        match self.outside.lock().clone() {
            Some(Outside::Joining) => None,
            Some(Outside::NoConfiguration(sentence)) => Some(sentence),
            None => replica.not_formed(),
        }
    }

    pub(super) fn set(&self, blocked: Option<String>, outside: Option<Outside>) {
        *self.blocked.lock() = blocked;
        *self.outside.lock() = outside;
    }
}
