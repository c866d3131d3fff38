//! Which of the nodes that answered count, by the newest membership that one of them knows.
//!
//! What holds here: a voter that does not answer under its own identity is missing, even if another
//! identity answers at its address. Nodes of another generation are another cluster. The newest
//! membership is that of the most up-to-date log: a log that ends behind a membership and does not
//! hold it has replaced it.

use super::answer::{Answer, Membership};
use cairn_client::{MemberState, NodeStatus};
use cairn_raft::NodeId;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// What the members hold, as they answered.
pub struct MemberSurvey {
    /// The voters that answered under their own identity and serve; the one that should lead comes
    /// first.
    pub nodes: Vec<Answer>,
    /// The member that leads.
    pub(super) leader: Option<Answer>,
    /// Who knows the newest membership.
    pub(super) newest: Option<Answer>,
    /// The leader that a member hears, and that member.
    pub(super) heard: Option<(NodeId, Answer)>,
    /// The voters that cannot vote any more as they are: removed, of another generation, or replaced
    /// at their address.
    pub(super) lost: BTreeSet<NodeId>,
    /// The generations of which members answered, if they are several clusters.
    pub(super) generations: BTreeSet<u32>,
    /// What did not answer, with reasons: endpoints, and voters at whose address nothing or another
    /// identity answers.
    pub missing: Vec<String>,
    /// Whether any node answered.
    pub(super) is_answered: bool,
    /// Whether a node that answered recovers.
    pub(super) recovering: bool,
}

impl MemberSurvey {
    /// From the answers, and the endpoints that did not answer with the reason of each.
    pub(super) fn of_statuses(
        answers: Vec<(String, NodeStatus)>,
        silent: &[(String, String)],
    ) -> MemberSurvey {
        let answers = answers.into_iter().map(|(endpoint, status)| Answer::of(endpoint, status));
        MemberSurvey::of(answers.collect(), silent)
    }

    pub(super) fn of(mut answers: Vec<Answer>, silent: &[(String, String)]) -> MemberSurvey {
        answers.sort_by_key(|answer| Reverse((answer.last_log, answer.id)));
        // A node may be reached at two addresses, and its log may have grown between the answers.
        let mut seen = BTreeSet::new();
        answers.retain(|answer| seen.insert(answer.id));
        let (generation, generations) = generation(&answers);
        let here = |answer: &&Answer| answer.generation == generation;
        let known =
            |answer: &&Answer| answer.state != MemberState::Removed && answer.membership.is_some();
        let by_log = |answer: &&Answer| {
            (answer.last_log, answer.membership.as_ref().map(|membership| membership.log_id))
        };
        let newest = answers.iter().filter(here).filter(known).max_by_key(by_log).cloned();
        let membership = newest.as_ref().and_then(|newest| newest.membership.clone());
        let membership = membership.unwrap_or_default();
        let is_voter = |answer: &&Answer| membership.voters.contains_key(&answer.id);
        let counted = || answers.iter().filter(here).filter(|answer| answer.counts());
        let nodes: Vec<Answer> = counted().filter(is_voter).cloned().collect();
        let present = |id: &NodeId| nodes.iter().any(|answer| answer.id == *id);

        let (mut missing, mut lost) = (Vec::new(), BTreeSet::new());
        for (id, address) in membership.voters.iter().filter(|(id, _)| !present(id)) {
            let (why, is_lost) = absence((*id, address), generation, &answers, silent);
            missing.push(why);
            lost.extend(is_lost.then_some(*id));
        }
        let named =
            |endpoint: &String| membership.voters.values().any(|address| address == endpoint);
        missing.extend(
            silent.iter().filter(|(endpoint, _)| !named(endpoint)).map(|(_, why)| why.clone()),
        );
        let heard =
            counted().find_map(|by| Some((by.leader.filter(|id| *id != by.id)?, by.clone())));
        // A member that leads without a majority may be one that was replaced as the leader.
        let leader = counted().filter(|answer| answer.leads());
        let leader = leader.max_by_key(|answer| (answer.serves(), answer.term)).cloned();
        MemberSurvey {
            leader,
            newest,
            heard,
            lost,
            generations,
            missing,
            is_answered: !answers.is_empty(),
            recovering: counted().any(|answer| answer.state == MemberState::Recovering),
            nodes,
        }
    }

    /// The newest membership that a member knows.
    pub(super) fn membership(&self) -> Option<&Membership> {
        self.newest.as_ref()?.membership.as_ref()
    }

    /// The voters that answered and are `such`.
    pub(super) fn those(&self, such: impl Fn(&Answer) -> bool) -> BTreeSet<NodeId> {
        self.nodes.iter().filter(|answer| such(answer)).map(|answer| answer.id).collect()
    }

    /// The configuration in which the fewest voters answered: its voters, and those of them that
    /// answered.
    pub fn answered(&self) -> (usize, usize) {
        let answered = self.those(|_| true);
        self.membership().map(|membership| membership.scarcest(&answered)).unwrap_or_default()
    }

    /// The voters whose directories are damaged and not overwritten, each with what becomes of it.
    pub(super) fn damaged(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().filter_map(|Answer { id, endpoint, damage, .. }| {
            let damage = damage.as_ref()?;
            Some(format!(
                "node {id} at {endpoint} has a damaged data directory, and comes back by itself if it can be read again: {damage}"
            ))
        })
    }

    /// Whether every voter answered.
    pub fn is_complete(&self) -> bool {
        self.membership().is_some_and(|membership| {
            membership.voters.keys().all(|id| self.nodes.iter().any(|answer| answer.id == *id))
        })
    }

    /// Whether the same members answered, in the same boot epochs, with the same one to lead, and
    /// none leads.
    pub fn is_as(&self, before: &MemberSurvey) -> bool {
        let first = |found: &MemberSurvey| found.nodes.first().map(|answer| answer.id);
        let epochs = |found: &MemberSurvey| -> BTreeSet<(NodeId, (u64, u64))> {
            found.nodes.iter().map(|answer| (answer.id, answer.boot_epoch)).collect()
        };
        self.leader.is_none() && first(self) == first(before) && epochs(self) == epochs(before)
    }
}

/// The generation to judge, and all of which members answered if they are several clusters. Where a
/// cluster was made anew of one member, the directories of before belong to no cluster.
fn generation(answers: &[Answer]) -> (u32, BTreeSet<u32>) {
    let part = |answer: &&Answer| {
        answer.state == MemberState::Recovering
            || (answer.state != MemberState::Removed && answer.membership.is_some())
    };
    let anew = answers.iter().filter(part).map(|answer| answer.generation);
    let anew: BTreeSet<u32> = anew.filter(|generation| *generation != 0).collect();
    let judged = anew.first().copied().unwrap_or_default();
    (judged, if anew.len() > 1 { anew } else { BTreeSet::new() })
}

/// Why a voter counts as missing, and whether it cannot come back as it is.
fn absence(
    (voter, address): (NodeId, &String),
    generation: u32,
    answers: &[Answer],
    silent: &[(String, String)],
) -> (String, bool) {
    let own = answers.iter().find(|answer| answer.id == voter);
    let (why, is_lost) = match own {
        Some(own) if own.generation != generation => {
            ("it belongs to another cluster, made anew of one member".to_owned(), true)
        }
        Some(Answer { state: MemberState::Removed, .. }) => ("it was removed".to_owned(), true),
        Some(Answer { stopped: Some(reason), endpoint, .. }) => {
            (format!("the node at {endpoint} has stopped serving: {reason}"), false)
        }
        Some(own) => (format!("it is {}", own.state.name()), false),
        None => match answers.iter().find(|answer| answer.endpoint == *address) {
            Some(other) => {
                let state = other.state.name();
                (format!("node {} answers there, which is {state}", other.id), true)
            }
            None => {
                let failed = silent.iter().find(|(endpoint, _)| endpoint == address);
                let unasked = || "not asked; name it with --endpoints".to_owned();
                (failed.map_or_else(unasked, |(_, why)| why.clone()), false)
            }
        },
    };
    (format!("node {voter} at {address}: {why}"), is_lost)
}
