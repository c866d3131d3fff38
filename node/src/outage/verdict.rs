//! What can be done after an outage: one pure function from what the members answered to a verdict.
//!
//! What holds here: a member leads only if a majority answers it, so nothing but
//! [`Verdict::Served`] says that clients are served. A verdict that advises to wait is given only
//! while voters that are not known to be lost could form a majority. The member to lead is the most
//! up-to-date one among the voters of the newest membership that answered.

use super::answer::Answer;
use super::members::MemberSurvey;
use cairn_client::MemberState;
use cairn_raft::NodeId;
use std::collections::BTreeSet;

/// What the answers of the members mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A member leads, and a majority answers it.
    Served {
        /// That member.
        leader: Answer,
    },
    /// Nobody answered.
    Silence,
    /// Nobody that answers knows the members of the cluster: it is not formed, or their logs are empty.
    NoMembers,
    /// Members of several clusters answer, each made anew of one member.
    SeveralClusters {
        /// Their generations.
        generations: BTreeSet<u32>,
    },
    /// So many voters are lost that the others are no majority.
    MajorityLost {
        /// Voters that may still come back or answer.
        left: usize,
        /// All voters.
        voters: usize,
    },
    /// A member leads, and no majority answers it: it may find one.
    LeaderAlone {
        /// That member.
        leader: Answer,
    },
    /// A member hears a leader that does not answer here as one.
    LeaderElsewhere {
        /// That leader.
        leader: NodeId,
        /// Who hears it.
        by: Answer,
    },
    /// A majority is active: they elect a leader once they reach one another.
    Elects {
        /// Voters that are active.
        active: usize,
        /// All voters.
        voters: usize,
    },
    /// No majority answered, so nothing can be decided.
    TooFew {
        /// Voters that answered.
        answered: usize,
        /// All voters.
        voters: usize,
    },
    /// Another node knows a membership that the voter with the most up-to-date log lacks.
    Behind {
        /// That voter.
        chosen: Answer,
        /// Who knows the membership.
        newest: Box<Answer>,
    },
    /// An operator decides: this voter should lead.
    Decide {
        /// The voter with the most up-to-date log.
        chosen: Answer,
    },
}

impl MemberSurvey {
    /// What the answers mean.
    pub fn verdict(&self) -> Verdict {
        if let Some(leader) = self.leader.clone().filter(Answer::serves) {
            return Verdict::Served { leader };
        }
        if !self.is_answered {
            return Verdict::Silence;
        }
        if !self.generations.is_empty() {
            return Verdict::SeveralClusters { generations: self.generations.clone() };
        }
        let (Some(newest), Some(membership)) = (&self.newest, self.membership()) else {
            return Verdict::NoMembers;
        };
        let left = membership.voters.keys().filter(|id| !self.lost.contains(id)).copied().collect();
        if !membership.is_quorum(&left) {
            let (voters, left) = membership.scarcest(&left);
            return Verdict::MajorityLost { left, voters };
        }
        let answered = self.those(|_| true);
        // A leader brings recovering members back, so they count like active ones.
        if let Some(leader) = self.leader.clone().filter(|_| membership.is_quorum(&answered)) {
            return Verdict::LeaderAlone { leader };
        }
        let heard = self.heard.as_ref().filter(|(leader, _)| !self.lost.contains(leader));
        if let Some((leader, by)) = heard {
            return Verdict::LeaderElsewhere { leader: *leader, by: by.clone() };
        }
        let active = self.those(|answer| answer.state == MemberState::Active);
        if membership.is_quorum(&active) {
            let (voters, active) = membership.scarcest(&active);
            return Verdict::Elects { active, voters };
        }
        let chosen = self.nodes.first().filter(|_| membership.is_quorum(&answered));
        match chosen {
            None => {
                let (voters, answered) = membership.scarcest(&answered);
                Verdict::TooFew { answered, voters }
            }
            Some(chosen) if chosen.last_log < Some(membership.log_id) => {
                Verdict::Behind { chosen: chosen.clone(), newest: Box::new(newest.clone()) }
            }
            Some(chosen) => Verdict::Decide { chosen: chosen.clone() },
        }
    }
}

/// How far a decision has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The cluster serves, all members that answer are active, and the unsafe recovery is counted.
    Counted,
    /// The same, but no unsafe recovery is counted.
    Uncounted,
    /// The chosen member has another boot epoch than the one that was chosen.
    CandidateRestarted,
    /// The chosen member does not answer.
    CandidateSilent,
    /// None of these.
    UnderWay,
}

impl MemberSurvey {
    /// How far the decision for `chosen` has come.
    pub fn progress(&self, chosen: &Answer) -> Progress {
        if let Verdict::Served { .. } = self.verdict() {
            if self.nodes.iter().any(|answer| answer.state == MemberState::Recovering) {
                return Progress::UnderWay;
            }
            let last = chosen.last_log.map_or(0, |(_, index)| index);
            let counted = |answer: &Answer| answer.last_unsafe_recovery_index > last;
            return match self.nodes.iter().any(counted) {
                true => Progress::Counted,
                false => Progress::Uncounted,
            };
        }
        match self.nodes.iter().find(|answer| answer.id == chosen.id) {
            None => Progress::CandidateSilent,
            Some(now) if now.boot_epoch != chosen.boot_epoch => Progress::CandidateRestarted,
            Some(_) => Progress::UnderWay,
        }
    }
}

#[cfg(test)]
mod tests;
