//! Which members may be stopped now: a function of what a leader sees, without side effects.
//!
//! What holds here: a member may be stopped if, without it, a majority of the voters of each
//! configuration in force is healthy, and one of them may lead. Healthy means: reachable, active,
//! caught up, and not being stopped itself. While the members are being changed, none may be stopped.
//!
//! The story: a rolling restart went on to the next member while the one before copied a snapshot.
//! Both were up, and neither could acknowledge for the other: for half a minute nobody took a write.

use crate::core::ids::NodeId;
use crate::core::quorum::{is_majority, majority};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How a voter stands, as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It holds everything, and answers.
    Healthy {
        /// No operator keeps it from leading, and its disk does not stall.
        may_lead: bool,
    },
    /// It does not answer the leader.
    Unreachable,
    /// It may have lost acknowledged entries.
    Recovering,
    /// It was asked to stop.
    Stopping,
    /// It lacks so many entries.
    Behind {
        entries: u64,
        /// The leader has purged some of them, so it needs a snapshot.
        snapshot: bool,
    },
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Healthy { may_lead: true } => f.write_str("is healthy"),
            Health::Healthy { may_lead: false } => f.write_str("is drained"),
            Health::Unreachable => f.write_str("does not answer the leader"),
            Health::Recovering => f.write_str("recovers"),
            Health::Stopping => f.write_str("is being stopped"),
            Health::Behind { entries, snapshot: false } => {
                write!(f, "is {entries} entries behind")
            }
            Health::Behind { entries, snapshot: true } => {
                write!(f, "is {entries} entries behind, and copies a snapshot")
            }
        }
    }
}

/// What a leader sees.
pub(super) struct Seen<'s> {
    /// The configurations in force: two while the members are being changed.
    pub(super) configurations: &'s [BTreeSet<NodeId>],
    /// Whether the membership is committed.
    pub(super) settled: bool,
    /// Every voter of every configuration.
    pub(super) voters: &'s BTreeMap<NodeId, Health>,
    /// Nodes that are to become voters.
    pub(super) joining: &'s BTreeSet<NodeId>,
}

/// Why this member must not be stopped now; empty: it may be.
pub(super) fn obstacles(seen: &Seen<'_>, stopped: NodeId) -> Vec<String> {
    let mut why = Vec::new();
    if !seen.settled || seen.configurations.len() != 1 {
        why.push("a change of the members is under way".to_owned());
    }
    let remaining = seen.voters.iter().filter(|(id, _)| **id != stopped);
    let healthy = remaining.clone().filter_map(|(id, health)| match health {
        Health::Healthy { may_lead } => Some((*id, *may_lead)),
        _ => None,
    });
    let healthy: BTreeMap<NodeId, bool> = healthy.collect();
    let alive: BTreeSet<NodeId> = healthy.keys().copied().collect();
    let broken = seen.configurations.iter().find(|voters| !is_majority(voters, &alive));
    if let Some(voters) = broken {
        why.push(format!(
            "{} of {} voters would be left that are reachable, active and caught up, and {} are needed",
            voters.intersection(&alive).count(),
            voters.len(),
            majority(voters.len())
        ));
        let unfit = remaining.filter(|(_, health)| !matches!(health, Health::Healthy { .. }));
        why.extend(unfit.map(|(id, health)| format!("member {id} {health}")));
        why.extend(seen.joining.iter().map(|id| format!("node {id} joins, and does not vote yet")));
    } else if !healthy.values().any(|may_lead| *may_lead) {
        why.push(
            "every voter that would be left is drained, or its disk stalls, so that none would lead for some seconds"
                .to_owned(),
        );
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many voters are in all healths, and more of them in the first three.
    const FEW: usize = 3;
    const KINDS: [Health; 7] = [
        Health::Healthy { may_lead: true },
        Health::Healthy { may_lead: false },
        Health::Unreachable,
        Health::Recovering,
        Health::Stopping,
        Health::Behind { entries: 5000, snapshot: false },
        Health::Behind { entries: 3, snapshot: true },
    ];

    fn node(number: usize) -> NodeId {
        NodeId::new(u16::try_from(number).unwrap() + 1, 7)
    }

    /// Every way in which `count` voters may stand.
    fn all_healths(count: usize, all: &[Health]) -> impl Iterator<Item = BTreeMap<NodeId, Health>> {
        let kinds = all.len();
        (0..kinds.pow(u32::try_from(count).unwrap())).map(move |way| {
            let digit = |number: usize| way / kinds.pow(u32::try_from(number).unwrap()) % kinds;
            (0..count).map(|number| (node(number), all[digit(number)])).collect()
        })
    }

    /// Every configuration of these voters, and of a few voters every pair of them.
    fn all_configurations(count: usize) -> Vec<Vec<BTreeSet<NodeId>>> {
        let sets = (1_usize..1 << count).map(|bits| {
            let voters = (0..count).filter(|number| bits >> number & 1 == 1);
            voters.map(node).collect::<BTreeSet<_>>()
        });
        let sets: Vec<_> = sets.collect();
        let few: &[_] = if count <= FEW { &sets } else { &[] };
        let pairs =
            few.iter().flat_map(|one| few.iter().map(|other| vec![one.clone(), other.clone()]));
        sets.iter().map(|one| vec![one.clone()]).chain(pairs).collect()
    }

    /// Of `voters`, those that do not serve and the stopped one must be fewer than half: else the
    /// others are no majority.
    fn survives(voters: &BTreeSet<NodeId>, seen: &Seen<'_>, stopped: NodeId) -> bool {
        let serves = |id: &NodeId| matches!(seen.voters[id], Health::Healthy { .. });
        let gone = voters.iter().filter(|id| **id == stopped || !serves(id)).count();
        2 * gone < voters.len()
    }

    #[test]
    fn a_member_may_be_stopped_exactly_if_a_majority_that_can_lead_is_left_of_each_configuration() {
        let none = BTreeSet::new();
        let mut safe = 0;
        for count in 1..=5 {
            let configurations = all_configurations(count);
            let all = if count <= FEW { &KINDS[..] } else { &KINDS[..3] };
            for voters in all_healths(count, all) {
                for configurations in &configurations {
                    for settled in [true, false] {
                        let seen =
                            Seen { configurations, settled, voters: &voters, joining: &none };
                        // One of them, and a node that does not vote.
                        for stopped in (0..=count).map(node) {
                            let leads = |(id, health): (&NodeId, &Health)| {
                                *id != stopped && *health == KINDS[0]
                            };
                            let expected = settled
                                && configurations.len() == 1
                                && configurations.iter().all(|set| survives(set, &seen, stopped))
                                && voters.iter().any(leads);
                            let why = obstacles(&seen, stopped);
                            assert_eq!(why.is_empty(), expected, "{stopped}: {voters:?} {why:?}");
                            safe += usize::from(expected);
                        }
                    }
                }
            }
        }
        assert!(safe > 0);
    }

    #[test]
    fn the_obstacles_name_each_member_and_what_it_lacks() {
        let voters = BTreeMap::from([
            (node(0), KINDS[0]),
            (node(1), Health::Behind { entries: 12, snapshot: true }),
            (node(2), KINDS[0]),
        ]);
        let configurations = [voters.keys().copied().collect()];
        let joining = BTreeSet::from([node(3)]);
        let seen = Seen {
            configurations: &configurations,
            settled: true,
            voters: &voters,
            joining: &joining,
        };
        assert!(obstacles(&seen, node(1)).is_empty(), "the one that is behind may be stopped");
        let why = obstacles(&seen, node(2)).join("; ");
        assert!(why.starts_with("1 of 3 voters would be left"), "{why}");
        assert!(why.contains("member 2.7 is 12 entries behind, and copies a snapshot"), "{why}");
        assert!(why.contains("node 4.7 joins"), "{why}");
    }
}
