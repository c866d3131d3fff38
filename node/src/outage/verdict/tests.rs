//! Every combination of what the voters answer, and properties that do not follow the code: they
//! count the voters of each combination themselves.

use super::super::{Answer, MemberSurvey, Membership};
use super::{Progress, Verdict};
use crate::outage::automatic::stable_for;
use crate::outage::{ElectionBlocked, End};
use cairn_client::{MemberState, Role};
use cairn_raft::NodeId;
use std::collections::BTreeSet;

/// What is found at the address of a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The voter, whose log is empty.
    Empty,
    Recovering,
    Active,
    /// The voter, which has stopped serving.
    Stopped,
    /// The voter, which was told that it is removed.
    Removed,
    /// The voter, in a cluster made anew of another member.
    OtherGeneration,
    /// Another identity, with an empty disk.
    NewDisk,
}
use Found::*;

const ALL: [Found; 8] =
    [Nothing, Empty, Recovering, Active, Stopped, Removed, OtherGeneration, NewDisk];

impl Found {
    /// The voter answers, and could vote or hold entries.
    fn takes_part(self) -> bool {
        matches!(self, Empty | Recovering | Active)
    }

    /// The voter may be active one day, as far as anybody can tell.
    fn can_be_active(self) -> bool {
        self.takes_part() || matches!(self, Nothing | Stopped)
    }
}

/// Who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    Nobody,
    /// This voter, and a majority answers it.
    Serves(usize),
    /// This voter, and no majority answers it.
    Alone(usize),
    /// The first voter hears the second one.
    Heard(usize, usize),
}

/// How the voters' logs end.
#[derive(Clone, Copy, Debug)]
enum Logs {
    /// The first voter's is the longest, and nothing but the first membership was ever logged.
    Formed,
    /// The last voter's is the longest, and holds a later membership; the first voter's ends before it.
    Changed,
}

#[derive(Debug)]
struct Case {
    found: Vec<Found>,
    /// The voters of each half of the configuration, by number.
    halves: Vec<Vec<usize>>,
    leader: Leader,
    logs: Logs,
}

fn voter(number: usize) -> NodeId {
    NodeId::new(number as u16 + 1, 7)
}

fn address(number: usize) -> String {
    format!("host-{number}:1")
}

const CHANGED_AT: (u64, u64) = (2, 50);

impl Case {
    fn last_log(&self, number: usize) -> (u64, u64) {
        match self.logs {
            Logs::Formed => (3, 100 - number as u64),
            Logs::Changed if number == 0 => (2, 49),
            Logs::Changed => (2, 50 + number as u64),
        }
    }

    fn membership(&self, number: usize) -> Membership {
        // The voters were the same before; the id of the entry is what differs.
        let halves = &self.halves;
        let log_id = match self.logs {
            Logs::Changed if number > 0 => CHANGED_AT,
            _ => (0, 0),
        };
        let all: BTreeSet<usize> = halves.iter().flatten().copied().collect();
        Membership {
            log_id,
            configurations: halves
                .iter()
                .map(|half| half.iter().map(|number| voter(*number)).collect())
                .collect(),
            voters: all.iter().map(|number| (voter(*number), address(*number))).collect(),
            slots: all.iter().map(|number| voter(*number).slot()).collect(),
        }
    }

    fn answer(&self, number: usize) -> Option<Answer> {
        let found = self.found[number];
        let (mut role, mut not_ready, mut leader) =
            (Role::Follower, Some("no leader".to_owned()), None);
        match self.leader {
            Leader::Serves(one) if one == number => (role, not_ready) = (Role::Leader, None),
            Leader::Alone(one) if one == number => role = Role::Leader,
            Leader::Heard(by, one) if by == number => leader = Some(voter(one)),
            _ => {}
        }
        let state = match found {
            Nothing => return None,
            Empty | Recovering => MemberState::Recovering,
            Active | Stopped | OtherGeneration => MemberState::Active,
            Removed => MemberState::Removed,
            NewDisk => MemberState::Joining,
        };
        let holds = !matches!(found, Empty | NewDisk);
        Some(Answer {
            endpoint: address(number),
            id: if found == NewDisk { NodeId::new(number as u16 + 1, 8) } else { voter(number) },
            state,
            damage: None,
            stopped: matches!(found, Stopped | Removed).then(|| "its disk".to_owned()),
            role,
            term: 3,
            not_ready,
            leader,
            last_log: holds.then(|| self.last_log(number)),
            applied_index: 0,
            membership: holds.then(|| self.membership(number)),
            boot_epoch: (2, number as u64),
            generation: if found == OtherGeneration { 0 } else { self.generation() },
            unsafe_recoveries: 0,
            last_unsafe_recovery_index: 0,
        })
    }

    /// With a voter of another generation, the others are of the cluster made anew.
    fn generation(&self) -> u32 {
        u32::from(self.found.contains(&OtherGeneration)) * 9
    }

    fn survey(&self, reversed: bool) -> MemberSurvey {
        let numbers: Vec<usize> = match reversed {
            true => (0..self.found.len()).rev().collect(),
            false => (0..self.found.len()).collect(),
        };
        let silent: Vec<(String, String)> = numbers
            .iter()
            .filter(|number| self.found[**number] == Nothing)
            .map(|number| (address(*number), format!("{}: refused", address(*number))))
            .collect();
        let answers = numbers.iter().filter_map(|number| self.answer(*number)).collect();
        MemberSurvey::of(answers, &silent)
    }

    /// Whether `such` voters are a majority of each half.
    fn majority(&self, such: impl Fn(Found) -> bool) -> bool {
        self.halves.iter().all(|half| {
            let those = half.iter().filter(|number| such(self.found[**number])).count();
            those * 2 > half.len()
        })
    }

    /// Whether a voter of the cluster knows its members.
    fn is_known(&self) -> bool {
        self.found.iter().any(|found| matches!(found, Recovering | Active | Stopped))
    }

    /// Whether a voter of the cluster answers that is not of an older one.
    fn is_of_one_cluster(&self) -> bool {
        !self.found.contains(&OtherGeneration) || self.is_known() || self.found.contains(&Empty)
    }

    /// Whether there may be a leader. One that is lost is none, whoever heard it before.
    fn is_led(&self) -> bool {
        match self.leader {
            Leader::Nobody => false,
            Leader::Serves(_) | Leader::Alone(_) => true,
            Leader::Heard(_, leader) => self.found[leader].can_be_active(),
        }
    }

    fn check(&self) {
        let found = self.survey(false);
        let verdict = found.verdict();
        if self.leader == Leader::Nobody {
            assert_eq!(verdict, self.survey(true).verdict(), "the order of the answers: {self:?}");
        }
        let row = verdict.row();
        assert_eq!(row.advice.is_empty(), row.end == End::Served, "{self:?}: {row:?}");
        assert_eq!(row.end == End::NeedsDecision, matches!(verdict, Verdict::Decide { .. }));
        assert!(!row.says.is_empty() && !verdict.name().is_empty(), "{self:?}");

        // Exit code 0 if, and only if, somebody serves.
        let serves = matches!(self.leader, Leader::Serves(_));
        assert_eq!(row.end == End::Served, serves, "{self:?}: {verdict:?}");
        let claims = row.sentence().contains("recovers automatically");
        assert_eq!(claims, serves, "{self:?}: {row:?}");
        if serves {
            return;
        }
        // To wait is advised only while a majority can ever be active.
        let waits = matches!(
            verdict,
            Verdict::LeaderAlone { .. } | Verdict::LeaderElsewhere { .. } | Verdict::Elects { .. }
        );
        assert!(!waits || self.majority(Found::can_be_active), "{self:?}: {verdict:?}");
        if matches!(verdict, Verdict::MajorityLost { .. }) {
            assert!(!self.majority(Found::can_be_active), "{self:?}: {verdict:?}");
        }
        self.check_decision(&found, &verdict);
    }

    fn check_decision(&self, found: &MemberSurvey, verdict: &Verdict) {
        let answered = self.majority(Found::takes_part);
        let active = self.majority(|found| found == Active);
        let parts = || (0..self.found.len()).filter(|number| self.found[*number].takes_part());
        let end = |number: usize| (self.found[number] != Empty).then(|| self.last_log(number));
        if let Verdict::Decide { chosen } = verdict {
            assert!(answered && !active && !self.is_led(), "{self:?}: {verdict:?}");
            let longest = parts().map(end).max().expect("a voter");
            assert_eq!(chosen.last_log, longest, "{self:?}");
            let number = parts().find(|number| voter(*number) == chosen.id).expect("a voter");
            assert_eq!(end(number), longest, "{self:?}");
            let complete = self.halves.iter().flatten().all(|n| self.found[*n].takes_part());
            assert_eq!(found.is_complete(), complete, "{self:?}");
            assert!(complete || !found.missing.is_empty(), "{self:?}: {:?}", found.missing);
        } else if answered && !active && self.leader == Leader::Nobody && self.is_known() {
            // Nothing else keeps an operator from a decision, but a membership that the voters that
            // answer lack.
            let lacked = matches!(self.logs, Logs::Changed)
                && parts().all(|number| end(number) < Some(CHANGED_AT))
                || parts().all(|number| end(number).is_none());
            assert!(lacked && matches!(verdict, Verdict::Behind { .. }), "{self:?}: {verdict:?}");
        }
        if active && self.leader == Leader::Nobody {
            assert!(matches!(verdict, Verdict::Elects { .. }), "{self:?}: {verdict:?}");
        }
        // What is reported while nobody knows a leader.
        let blocked = found.election_blocked();
        if blocked == Some(ElectionBlocked::Decision) {
            let all = self.halves.iter().flatten().all(|number| self.found[*number].takes_part());
            assert!(all && !active && self.leader == Leader::Nobody, "{self:?}");
        }
    }
}

/// Calls `each` with every combination of `states` for so many voters.
fn combinations(states: &[Found], voters: usize, each: &mut dyn FnMut(Vec<Found>)) {
    for number in 0..states.len().pow(voters as u32) {
        let at = |voter: usize| states[number / states.len().pow(voter as u32) % states.len()];
        each((0..voters).map(at).collect());
    }
}

/// Every leader that is possible beside these answers.
fn leaders(found: &[Found]) -> Vec<Leader> {
    let mut leaders = vec![Leader::Nobody];
    let part = |number: &usize| found[*number].takes_part();
    if let Some(first) = (0..found.len()).find(part) {
        leaders.extend([Leader::Serves(first), Leader::Alone(first)]);
        let others: BTreeSet<usize> = [0, found.len() - 1].into_iter().collect();
        let others = others.into_iter().filter(|other| *other != first);
        leaders.extend(others.map(|other| Leader::Heard(first, other)));
    }
    leaders
}

fn check_all(states: &[Found], voters: usize, halves: &[Vec<usize>]) -> usize {
    let mut cases = 0;
    combinations(states, voters, &mut |found| {
        for leader in leaders(&found) {
            // How the logs end matters where nobody leads.
            let logs = if leader == Leader::Nobody { 2 } else { 1 };
            for logs in [Logs::Formed, Logs::Changed].into_iter().take(logs) {
                let case = Case { found: found.clone(), halves: halves.to_vec(), leader, logs };
                if case.is_of_one_cluster() {
                    case.check();
                    cases += 1;
                }
            }
        }
    });
    cases
}

#[test]
fn every_combination_of_one_and_three_voters_has_a_verdict_that_keeps_the_rules() {
    let one = check_all(&ALL, 1, &[vec![0]]);
    let three = check_all(&ALL, 3, &[vec![0, 1, 2]]);
    assert!(one >= 7 && three >= 7usize.pow(3) * 4, "{one} {three}");
}

#[test]
fn every_combination_of_five_voters_has_a_verdict_that_keeps_the_rules() {
    let states = [Nothing, Empty, Recovering, Active, Removed, NewDisk];
    let five = check_all(&states, 5, &[vec![0, 1, 2, 3, 4]]);
    assert!(five >= 6usize.pow(5) * 4, "{five}");
}

#[test]
fn in_a_joint_configuration_a_majority_of_each_half_counts() {
    // A replacement, one more voter, and one voter less.
    for halves in [
        [vec![0, 1, 2], vec![0, 1, 3]],
        [vec![0, 1, 2], vec![0, 1, 2, 3]],
        [vec![0, 1, 2, 3], vec![0, 1, 2]],
        [vec![0, 1, 2], vec![3, 1, 2]],
    ] {
        let states = [Nothing, Empty, Recovering, Active, Removed, NewDisk];
        check_all(&states, 4, &halves);
    }
    let states = [Nothing, Recovering, Active];
    check_all(&states, 6, &[vec![0, 1, 2, 3, 4], vec![1, 2, 3, 4, 5]]);
}

/// Two of three are active, but the change under way takes one of them out: of {0, 1} only one is.
#[test]
fn an_active_majority_of_the_old_half_alone_elects_nobody() {
    let halves = vec![vec![0, 1, 2], vec![0, 1]];
    let found = vec![Active, Nothing, Active];
    let case = Case { found, halves, leader: Leader::Nobody, logs: Logs::Formed };
    assert_eq!(case.survey(false).verdict(), Verdict::TooFew { answered: 1, voters: 2 });
}

/// A voter with an empty log beside two that recover.
fn decided() -> (MemberSurvey, Answer) {
    let case = Case {
        found: vec![Recovering, Recovering, Empty],
        halves: vec![vec![0, 1, 2]],
        leader: Leader::Nobody,
        logs: Logs::Formed,
    };
    let found = case.survey(false);
    let Verdict::Decide { chosen } = found.verdict() else { panic!("{:?}", found.verdict()) };
    (found, chosen)
}

#[test]
fn a_decision_ends_with_its_candidate() {
    let (found, chosen) = decided();
    assert_eq!(chosen.id, voter(0));
    assert_eq!(found.progress(&chosen), Progress::UnderWay);
    let answers = || found.nodes.clone();
    let restarted = answers().into_iter().map(|answer| match answer.id == chosen.id {
        true => Answer { boot_epoch: (3, 99), ..answer },
        false => answer,
    });
    let restarted = MemberSurvey::of(restarted.collect(), &[]);
    assert_eq!(restarted.progress(&chosen), Progress::CandidateRestarted);
    let gone = answers().into_iter().filter(|answer| answer.id != chosen.id);
    let gone = MemberSurvey::of(gone.collect(), &[]);
    assert_eq!(gone.progress(&chosen), Progress::CandidateSilent);
    for progress in [Progress::CandidateRestarted, Progress::CandidateSilent, Progress::UnderWay] {
        let row = progress.row(&chosen, &gone);
        assert!(row.end == End::Unavailable && row.advice.contains("again"), "{row:?}");
    }
}

/// The story: a majority could not read its directories and waited for them. Each member said that
/// waiting does not help.
#[test]
fn who_has_a_damaged_directory_may_come_back_and_has_longer_for_that() {
    let (found, _) = decided();
    assert_eq!(found.election_blocked(), Some(ElectionBlocked::Decision));
    let answers = found.nodes.iter().enumerate().map(|(number, answer)| Answer {
        damage: (number == 1).then(|| "corrupt journal block".to_owned()),
        ..answer.clone()
    });
    let damaged = MemberSurvey::of(answers.collect(), &[]);
    assert!(matches!(damaged.verdict(), Verdict::Decide { .. }), "an operator may decide");
    let Some(ElectionBlocked::Missing(who)) = damaged.election_blocked() else {
        panic!("{:?}", damaged.election_blocked())
    };
    let named = |said: &str| said.contains("can be read again: corrupt journal block");
    assert!(matches!(who.as_slice(), [one] if named(one)), "{who:?}");
    assert!(stable_for(&damaged) > stable_for(&found));
}

#[test]
fn a_decision_is_done_when_the_cluster_serves_all_are_active_and_the_loss_is_counted() {
    let (found, chosen) = decided();
    // `recovering`: how many members are not back yet. `index`: of the last unsafe recovery.
    let after = |recovering: usize, index: u64| {
        let answers = found.nodes.iter().enumerate().map(|(number, answer)| Answer {
            state: if number < 3 - recovering {
                MemberState::Active
            } else {
                MemberState::Recovering
            },
            role: if number == 1 { Role::Leader } else { Role::Follower },
            not_ready: None,
            last_unsafe_recovery_index: index,
            ..answer.clone()
        });
        MemberSurvey::of(answers.collect(), &[])
    };
    assert_eq!(after(1, 101).progress(&chosen), Progress::UnderWay);
    assert_eq!(after(0, 101).progress(&chosen), Progress::Counted);
    assert_eq!(after(0, 100).progress(&chosen), Progress::Uncounted, "an earlier one");
    let row = Progress::Counted.row(&chosen, &after(0, 101));
    assert_eq!(row.end, End::Served);
    assert!(row.says.contains(&voter(1).to_string()), "who leads now: {row:?}");
    assert_eq!(Progress::Uncounted.row(&chosen, &after(0, 0)).end, End::Uncounted);
}
