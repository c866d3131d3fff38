//! Which searches are made: the protocol within several bounds, and each rule left out within the least that shows why.

use crate::actions::Model;
use crate::bounds::Bounds;
use crate::log::Content;
use crate::membership::Membership;
use crate::properties::Violation::{
    self, CommittedNowhere, IdReused, LeaderLacksCommitted, MandateSplits, SecondLossStops, SurvivorsBlocked,
    ThinPromiseBroken, TwoLeaders,
};
use crate::rules::Rules;
use crate::search::Witness;
use crate::state::{Node, REBORN, Role, State};

/// A search and what it must find.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// The name, for the command line.
    pub name: &'static str,
    /// What is left out of the protocol.
    pub without: &'static [&'static str],
    pub bounds: Bounds,
    /// The violation that must be found, and after how many steps; none may be where this is `None`.
    pub expected: Option<(Violation, usize)>,
    /// What must be met on the way.
    pub witnesses: &'static [Witness],
}

impl Scenario {
    /// The protocol of this search.
    pub(crate) fn model(&self) -> Model {
        let rules = self.without.iter().try_fold(Rules::all(), |rules, name| rules.without(name));
        assert!(rules.is_some(), "scenario {} leaves out a rule that does not exist", self.name);
        Model { rules: rules.unwrap_or_else(Rules::all), bounds: self.bounds }
    }
}

const RECOVERED_LEADS: Witness = ("a member that recovered is elected", |s| {
    s.nodes().iter().any(|n| n.starts > 0 && n.role == Role::Leader)
});
const TWICE_RECOVERED: Witness =
    ("a member recovers twice", |s| s.nodes().iter().any(|n| n.starts > 1 && n.is_active()));
const ALL_FORGETFUL: Witness = ("all machines are cut at once", |s| s.nodes().iter().all(|n| n.gate != 0));
const REBORN_LEADS: Witness =
    ("a reborn member is elected", |s| s.nodes().iter().any(|n| n.id >= REBORN && n.role == Role::Leader));
const REBORN_RECOVERS: Witness = ("a reborn member recovers", |s| {
    s.nodes().iter().any(|n| n.id >= REBORN && n.starts > 0 && n.is_active())
});
const LEARNER_RECOVERS: Witness = ("a learner recovers", |s| {
    let learns = |n: &Node| n.id >= REBORN && !Membership::of(n.log, 0b111).contains(n.id);
    s.nodes().iter().any(|n| learns(n) && n.starts > 0 && n.is_active())
});
const REPLACED_LEADS: Witness = ("a replaced member still leads", |s| {
    s.nodes()[..3].iter().any(|n| n.role == Role::Leader && s.committed.find(Content::Final(n.id)).is_some())
});
const BOTH_REPLACED: Witness = ("one replacement follows another", |s| {
    s.committed.find(Content::Final(1)).is_some() && s.committed.find(Content::Final(2)).is_some()
});
const PUT_BACK: Witness = ("a replaced member is put back and leads", |s| {
    let back = s.committed.find(Content::Back(2));
    back.is_some_and(|at| at + 1 < s.committed.len()) && s.nodes()[2].role == Role::Leader
});
const NEW_LAZY: Witness = ("after a replacement a power cut takes what the others keep", |s| {
    let led = |n: &Node| n.role == Role::Leader && s.committed.find(Content::Final(2)).is_some();
    s.nodes().iter().any(|n| led(n) && s.term(n.term).regime == 2) && s.nodes().iter().any(|n| n.gate != 0)
});
const OUTDATED_LEADS: Witness = ("a member leads that does not know of a committed replacement", |s| {
    let old = |n: &Node| n.role == Role::Leader && n.log.find(Content::Joint(2)).is_none();
    s.nodes().iter().any(old) && s.committed.find(Content::Final(2)).is_some()
});
const UNDONE: Witness = ("a replacement is undone", |s| s.committed.find(Content::Undo(2)).is_some());
const OVERWRITTEN_IN_TIME: Witness =
    ("a directory is overwritten, and what comes after it is committed", |s| {
        let empty = |n: &Node| n.down && n.log.len() == 0;
        s.nodes().iter().any(empty) && s.used.cuts > 0 && s.committed.len() > 2
    });
const CLEAR_AFTER_CUTS: Witness =
    ("after two cuts and a commit every mark is clear and every member active", |s| {
        s.used.cuts > 1 && s.committed.len() > 1 && s.nodes().iter().all(|n| n.is_active() && n.starts == 0)
    });
const LAZY_COMMIT: Witness = ("an unsynced entry is committed", |s| {
    s.nodes().iter().all(|n| n.log.len() < 2 || !n.past.is_empty()) && s.committed.len() > 1
});
const KEPT: Witness = ("the thin promise is kept through cuts and an election", |s: &State| {
    s.promised && s.used.cuts > 1 && s.nodes().iter().any(|n| n.role == Role::Leader && n.term > 1)
});
const BACK_TO_LAZY: Witness = ("a leader leaves the thin regime", |s| {
    s.nodes().iter().any(|n| n.role == Role::Leader && n.term > 1 && s.term(n.term).regime == 2)
});

const BOUNDS: Bounds = Bounds::BASE;
/// Lost tails.
const TAILS: Bounds = Bounds { entries: 4, cuts: 1, ..BOUNDS };
const TAILS_TWICE: Bounds = Bounds { terms: 3, cuts: 2, ..TAILS };
/// Lost disks: of a follower, or of the first leader. The old member may be only silent, and come back as it was.
const REBORN_C: Bounds = Bounds { entries: 4, reborn: 0b100, ..BOUNDS };
const REBORN_A: Bounds = Bounds { reborn: 0b001, ..REBORN_C };
const REBORN_CUT: Bounds = Bounds { mandates: true, cuts: 1, ..REBORN_C };
/// B leads without knowing of the replacement, the new C leads with it, and the old C may forget.
const MANDATE: Bounds = Bounds { terms: 3, values: 0, candidates: 0b01010, faulty: 0b00100, ..REBORN_CUT };
/// One after the other.
const REBORN_TWO: Bounds = Bounds { entries: 5, values: 0, reborn: 0b110, ..REBORN_C };
/// A half-made replacement.
const HALF_MADE: Bounds = Bounds { half_made: true, ..REBORN_C };
/// Disks lost, with no other identity.
const LOST: Bounds = Bounds { entries: 4, losses: 1, ..BOUNDS };
/// An identity that cannot be read, and one power cut.
const OVERWRITTEN: Bounds = Bounds { overwrites: true, cuts: 1, terms: 3, entries: 4, values: 2, ..BOUNDS };
/// The mark.
const MARKS: Bounds = Bounds { entries: 3, cuts: 1, marks: true, ..BOUNDS };
/// The thin regime.
const THIN: Bounds = Bounds { entries: 2, cuts: 1, thin: true, ..BOUNDS };
const HALF_MADE_THIN: Bounds = Bounds { values: 1, cuts: 1, thin: true, ..HALF_MADE };
/// Five members: B alone loses power, E alone campaigns.
const FIVE: Bounds = Bounds {
    members: 5,
    deposed: true,
    candidates: 0b10000,
    faulty: 0b00010,
    terms: 3,
    entries: 3,
    cuts: 1,
    ..BOUNDS
};

const fn holds(
    name: &'static str,
    without: &'static [&'static str],
    bounds: Bounds,
    witnesses: &'static [Witness],
) -> Scenario {
    Scenario { name, without, bounds, expected: None, witnesses }
}

const fn breaks(
    without: &'static [&'static str],
    bounds: Bounds,
    violation: Violation,
    steps: usize,
) -> Scenario {
    Scenario { name: without[0], without, bounds, expected: Some((violation, steps)), witnesses: &[] }
}

/// Every search. One that leaves a rule out is named after the rule.
pub(crate) const ALL: &[Scenario] = &[
    holds("tails", &[], TAILS_TWICE, &[RECOVERED_LEADS, TWICE_RECOVERED]),
    holds("outage", &[], Bounds { cuts: 3, ..TAILS }, &[ALL_FORGETFUL, RECOVERED_LEADS]),
    holds("kills", &[], Bounds { entries: 3, kills: 1, ..TAILS }, &[RECOVERED_LEADS]),
    holds("reborn-follower", &[], Bounds { terms: 3, ..REBORN_C }, &[REBORN_LEADS, REPLACED_LEADS]),
    holds("reborn-leader", &[], Bounds { terms: 3, ..REBORN_A }, &[REBORN_LEADS, REPLACED_LEADS]),
    holds("reborn-two", &[], REBORN_TWO, &[REBORN_LEADS, BOTH_REPLACED]),
    holds("reborn-back", &[], Bounds { entries: 6, back: true, ..REBORN_C }, &[REBORN_LEADS, PUT_BACK]),
    holds("reborn-cut", &[], REBORN_CUT, &[REBORN_RECOVERS, LEARNER_RECOVERS]),
    holds("half-made-elections", &[], Bounds { terms: 3, entries: 5, ..HALF_MADE }, &[REBORN_LEADS]),
    holds("half-made-undone", &[], Bounds { undo: true, ..HALF_MADE }, &[REBORN_LEADS, UNDONE]),
    holds(
        "half-made-marks",
        &[],
        Bounds { marks: true, entries: 3, values: 0, cuts: 1, ..HALF_MADE },
        &[REBORN_LEADS],
    ),
    holds("overwritten", &[], OVERWRITTEN, &[OVERWRITTEN_IN_TIME]),
    holds("mandate", &[], MANDATE, &[OUTDATED_LEADS]),
    holds("half-made-thin", &[], HALF_MADE_THIN, &[NEW_LAZY]),
    holds("half-made-cut", &[], Bounds { mandates: true, cuts: 1, ..HALF_MADE }, &[REBORN_LEADS]),
    holds("marks", &[], Bounds { cuts: 2, ..MARKS }, &[CLEAR_AFTER_CUTS, LAZY_COMMIT]),
    holds("marks-kill", &[], Bounds { kills: 1, ..MARKS }, &[LAZY_COMMIT]),
    holds("thin", &[], Bounds { cuts: 2, ..THIN }, &[KEPT, BACK_TO_LAZY]),
    breaks(&["vote_synced"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["lost_tail_recovers"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["recovering_grants_none"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["recovering_campaigns_never"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["fresh_nonce"], Bounds { cuts: 2, ..TAILS }, LeaderLacksCommitted, 11),
    breaks(&["leave_by_start"], TAILS, LeaderLacksCommitted, 8),
    breaks(&["stays_recovering"], Bounds { kills: 1, ..TAILS }, LeaderLacksCommitted, 8),
    breaks(&["one_start_update"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["no_restore_in_term"], Bounds { values: 2, kills: 1, cuts: 0, ..TAILS }, IdReused, 3),
    holds("five", &[], FIVE, &[]),
    // Each of these two rules covers for the other. Without both, a member forgets with its tail the term that it learned
    // from an append, follows a deposed leader again, and takes that leader's uncommitted record for the end of recovery.
    holds("first_append_synced", &["first_append_synced"], FIVE, &[]),
    holds("leave_on_applied", &["leave_on_applied"], FIVE, &[]),
    Scenario {
        name: "neither",
        ..breaks(&["first_append_synced", "leave_on_applied"], FIVE, LeaderLacksCommitted, 15)
    },
    breaks(&["lost_disk_new_identity"], LOST, TwoLeaders, 7),
    breaks(&["lost_votes_new_identity"], Bounds { losses_recover: true, ..LOST }, LeaderLacksCommitted, 8),
    breaks(&["one_replacing_change"], REBORN_C, SurvivorsBlocked, 2),
    breaks(&["joint_change"], REBORN_C, LeaderLacksCommitted, 7),
    breaks(&["joint_quorum"], REBORN_C, LeaderLacksCommitted, 7),
    breaks(&["one_change_in_flight"], REBORN_C, LeaderLacksCommitted, 8),
    holds("own_term_first", &["own_term_first"], REBORN_TWO, &[REBORN_LEADS, BOTH_REPLACED]),
    holds("caught_up", &["caught_up"], REBORN_C, &[REBORN_LEADS]),
    breaks(&["membership_synced"], REBORN_CUT, MandateSplits, 8),
    holds("learner_recovers", &["learner_recovers"], REBORN_CUT, &[REBORN_RECOVERS]),
    Scenario {
        name: "both-unsynced",
        ..breaks(
            &["membership_synced", "learner_recovers"],
            Bounds { mandates: false, ..REBORN_CUT },
            LeaderLacksCommitted,
            13,
        )
    },
    breaks(&["joining_recovers"], REBORN_CUT, LeaderLacksCommitted, 15),
    breaks(&["mandate_newest"], MANDATE, MandateSplits, 19),
    breaks(&["overwritten_when_held"], OVERWRITTEN, CommittedNowhere, 6),
    breaks(&["copy_after_all_know"], Bounds { copies: 1, ..REBORN_C }, LeaderLacksCommitted, 12),
    holds("copy", &[], Bounds { copies: 1, ..REBORN_C }, &[REBORN_LEADS]),
    breaks(&["mark_before_ack"], MARKS, LeaderLacksCommitted, 7),
    breaks(&["leader_marks_own_ack"], MARKS, LeaderLacksCommitted, 7),
    breaks(&["known_entries_wait"], MARKS, LeaderLacksCommitted, 8),
    breaks(&["cleared_after_sync"], MARKS, LeaderLacksCommitted, 8),
    breaks(&["no_ack_while_clearing"], Bounds { values: 2, ..MARKS }, LeaderLacksCommitted, 11),
    Scenario {
        name: "mark_by_flag",
        ..breaks(&["mark_before_ack", "old_regime_is_thin"], THIN, LeaderLacksCommitted, 9)
    },
    breaks(&["thin_syncs"], THIN, ThinPromiseBroken, 4),
    breaks(&["old_regime_is_thin"], THIN, ThinPromiseBroken, 6),
    breaks(&["restart_fences_appends"], THIN, ThinPromiseBroken, 7),
    breaks(&["return_needs_all"], THIN, ThinPromiseBroken, 8),
    breaks(&["return_needs_commit"], HALF_MADE_THIN, SecondLossStops, 7),
    breaks(&["new_leader_thin"], THIN, ThinPromiseBroken, 9),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::NOT_FOR_SAFETY;

    #[test]
    fn every_rule_is_left_out_somewhere_and_has_consequences_unless_it_is_known_to_have_none() {
        for (rule, _) in Rules::MEANINGS {
            let without = || ALL.iter().filter(|s| s.without.contains(rule));
            let needed = without().any(|s| s.expected.is_some());
            assert!(without().count() > 0, "no search leaves {rule} out");
            assert_eq!(needed, !NOT_FOR_SAFETY.contains(rule), "what is {rule} for?");
        }
    }
}
