//! The searches: the protocol within several bounds, and without each rule within the smallest
//! bounds that show what the rule is for.

use crate::actions::Model;
use crate::bounds::Bounds;
use crate::log::Content;
use crate::membership::Membership;
use crate::rules::Rules;
use crate::search::Witness;
use crate::state::{Node, REPLACEMENT, Role, State};
use crate::violation::Violation::{
    self, CommittedNowhere, DegradedPromiseBroken, FewCannotTell, IdReused, LeaderLacksCommitted,
    SecondLossStops, SurvivorsBlocked, TwoLeaders, UnsafeRecoverySplits,
};

/// A search and its expected result.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// The name, for the command line.
    pub name: &'static str,
    /// The rules that are left out.
    pub without: &'static [&'static str],
    pub bounds: Bounds,
    /// The violation that the search must find, and its number of steps. With `None` it must find
    /// none.
    pub expected: Option<(Violation, usize)>,
    /// The witnesses that the search must reach.
    pub witnesses: &'static [Witness],
}

impl Scenario {
    /// The protocol and the bounds of this search.
    pub(crate) fn model(&self) -> Model {
        let rules = self.without.iter().try_fold(Rules::all(), |rules, name| rules.without(name));
        assert!(rules.is_some(), "scenario {} leaves out a rule that does not exist", self.name);
        Model { rules: rules.unwrap_or_else(Rules::all), bounds: self.bounds }
    }
}

const RECOVERED_LEADS: Witness = ("a member that recovered is elected", |s| {
    s.nodes().iter().any(|n| n.recoveries > 0 && n.role == Role::Leader)
});
const TWICE_RECOVERED: Witness =
    ("a member recovers twice", |s| s.nodes().iter().any(|n| n.recoveries > 1 && n.is_active()));
const ALL_RECOVERING: Witness =
    ("all machines recover at once", |s| s.nodes().iter().all(|n| n.gate != 0));
const REPLACEMENT_LEADS: Witness = ("a replacement member is elected", |s| {
    s.nodes().iter().any(|n| n.id >= REPLACEMENT && n.role == Role::Leader)
});
const REPLACEMENT_RECOVERS: Witness = ("a replacement member recovers", |s| {
    s.nodes().iter().any(|n| n.id >= REPLACEMENT && n.recoveries > 0 && n.is_active())
});
const LEARNER_RECOVERS: Witness = ("a learner recovers", |s| {
    let learns = |n: &Node| n.id >= REPLACEMENT && !Membership::of(n.log, 0b111).contains(n.id);
    s.nodes().iter().any(|n| learns(n) && n.recoveries > 0 && n.is_active())
});
const REPLACED_LEADS: Witness = ("a replaced member still leads", |s| {
    s.nodes()[..3]
        .iter()
        .any(|n| n.role == Role::Leader && s.committed.find(Content::Final(n.id)).is_some())
});
const BOTH_REPLACED: Witness = ("one replacement follows another", |s| {
    s.committed.find(Content::Final(1)).is_some() && s.committed.find(Content::Final(2)).is_some()
});
const PUT_BACK: Witness = ("a replaced member is put back and leads", |s| {
    let back = s.committed.find(Content::Back(2));
    back.is_some_and(|at| at + 1 < s.committed.len()) && s.nodes()[2].role == Role::Leader
});
const NEW_FAST: Witness =
    ("after a replacement a leader is in fast mode, and a member recovers", |s| {
        let led =
            |n: &Node| n.role == Role::Leader && s.committed.find(Content::Final(2)).is_some();
        s.nodes().iter().any(|n| led(n) && s.term(n.term).ack_mode == 2)
            && s.nodes().iter().any(|n| n.gate != 0)
    });
const OUTDATED_LEADS: Witness =
    ("a member leads without a committed replacement in its log", |s| {
        let old = |n: &Node| n.role == Role::Leader && n.log.find(Content::Joint(2)).is_none();
        s.nodes().iter().any(old) && s.committed.find(Content::Final(2)).is_some()
    });
const UNDONE: Witness =
    ("a replacement is undone", |s| s.committed.find(Content::Undo(2)).is_some());
const OVERWRITTEN_IN_TIME: Witness =
    ("a directory is overwritten, a machine lost power, and three entries are committed", |s| {
        let empty = |n: &Node| n.down && n.log.len() == 0;
        s.nodes().iter().any(empty) && s.used.cuts > 0 && s.committed.len() > 2
    });
const CLEAR_AFTER_CUTS: Witness =
    ("after two cuts and a commit every flag is clear and every member active", |s| {
        s.used.cuts > 1
            && s.committed.len() > 1
            && s.nodes().iter().all(|n| n.is_active() && n.recoveries == 0)
    });
const FAST_COMMIT: Witness = ("an unsynced entry is committed", |s| {
    s.nodes().iter().all(|n| n.log.len() < 2 || !n.past.is_empty()) && s.committed.len() > 1
});
const KEPT: Witness =
    ("the promise of safe mode holds through cuts and an election", |s: &State| {
        s.promised
            && s.used.cuts > 1
            && s.nodes().iter().any(|n| n.role == Role::Leader && n.term > 1)
    });
const BACK_TO_FAST: Witness = ("a leader leaves safe mode", |s| {
    s.nodes().iter().any(|n| n.role == Role::Leader && n.term > 1 && s.term(n.term).ack_mode == 2)
});

const TWO_LEAD: Witness = ("two voters elect one of them after a cut", |s| {
    let two = |n: &Node| Membership::of(n.log, 0b111).is_few() && n.role == Role::Leader;
    s.used.cuts > 0 && s.nodes().iter().any(|n| two(n) && n.term > 1)
});

const BOUNDS: Bounds = Bounds::BASE;
/// Lost tails.
const TAILS: Bounds = Bounds { entries: 4, cuts: 1, ..BOUNDS };
const TAILS_TWICE: Bounds = Bounds { terms: 3, cuts: 2, ..TAILS };
/// Lost disks: of a follower, or of the first leader. The old member may be only silent and come
/// back unchanged.
const REPLACED_C: Bounds = Bounds { entries: 4, replacement: 0b100, ..BOUNDS };
const REPLACED_A: Bounds = Bounds { replacement: 0b001, ..REPLACED_C };
const REPLACED_CUT: Bounds = Bounds { unsafe_recovery_grants: true, cuts: 1, ..REPLACED_C };
/// B leads without the replacement in its log, the new C leads with it, and the old C may lose its
/// tail.
const UNSAFE_RECOVERY: Bounds =
    Bounds { terms: 3, values: 0, candidates: 0b01010, faulty: 0b00100, ..REPLACED_CUT };
/// Two replacements, one after the other.
const REPLACED_TWO: Bounds = Bounds { entries: 5, values: 0, replacement: 0b110, ..REPLACED_C };
/// The search begins in the middle of a replacement.
const HALF_MADE: Bounds = Bounds { half_made: true, ..REPLACED_C };
/// Lost disks, without a new identity.
const LOST: Bounds = Bounds { entries: 4, lost_disks: 1, ..BOUNDS };
/// An unreadable identity, and one power cut.
const OVERWRITTEN: Bounds =
    Bounds { overwrites: true, cuts: 1, terms: 3, entries: 4, values: 2, ..BOUNDS };
/// The unsynced-ack flag.
const FLAGS: Bounds = Bounds { entries: 3, cuts: 1, flags: true, ..BOUNDS };
/// Ack modes and a degraded quorum.
const DEGRADED: Bounds = Bounds { entries: 2, cuts: 1, degraded: true, ..BOUNDS };
const HALF_MADE_DEGRADED: Bounds = Bounds { values: 1, cuts: 1, degraded: true, ..HALF_MADE };
/// From three voters to two.
const SHRINKS: Bounds =
    Bounds { entries: 5, values: 1, cuts: 1, flags: true, shrinks: true, ..BOUNDS };
/// Five members. Only B loses power, only E campaigns.
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
    Scenario {
        name: without[0],
        without,
        bounds,
        expected: Some((violation, steps)),
        witnesses: &[],
    }
}

/// Every search. A search without a rule has the rule's name.
pub(crate) const ALL: &[Scenario] = &[
    holds("tails", &[], TAILS_TWICE, &[RECOVERED_LEADS, TWICE_RECOVERED]),
    holds("outage", &[], Bounds { cuts: 3, ..TAILS }, &[ALL_RECOVERING, RECOVERED_LEADS]),
    holds("kills", &[], Bounds { entries: 3, kills: 1, ..TAILS }, &[RECOVERED_LEADS]),
    holds(
        "replacement-follower",
        &[],
        Bounds { terms: 3, ..REPLACED_C },
        &[REPLACEMENT_LEADS, REPLACED_LEADS],
    ),
    holds(
        "replacement-leader",
        &[],
        Bounds { terms: 3, ..REPLACED_A },
        &[REPLACEMENT_LEADS, REPLACED_LEADS],
    ),
    holds("replacement-two", &[], REPLACED_TWO, &[REPLACEMENT_LEADS, BOTH_REPLACED]),
    holds(
        "replacement-back",
        &[],
        Bounds { entries: 6, back: true, ..REPLACED_C },
        &[REPLACEMENT_LEADS, PUT_BACK],
    ),
    holds("replacement-cut", &[], REPLACED_CUT, &[REPLACEMENT_RECOVERS, LEARNER_RECOVERS]),
    holds(
        "half-made-elections",
        &[],
        Bounds { terms: 3, entries: 5, ..HALF_MADE },
        &[REPLACEMENT_LEADS],
    ),
    holds(
        "half-made-undone",
        &[],
        Bounds { undo: true, ..HALF_MADE },
        &[REPLACEMENT_LEADS, UNDONE],
    ),
    holds(
        "half-made-flags",
        &[],
        Bounds { flags: true, entries: 3, values: 0, cuts: 1, ..HALF_MADE },
        &[REPLACEMENT_LEADS],
    ),
    holds("overwritten", &[], OVERWRITTEN, &[OVERWRITTEN_IN_TIME]),
    holds("unsafe-recovery", &[], UNSAFE_RECOVERY, &[OUTDATED_LEADS]),
    holds("half-made-degraded", &[], HALF_MADE_DEGRADED, &[NEW_FAST]),
    holds(
        "half-made-cut",
        &[],
        Bounds { unsafe_recovery_grants: true, cuts: 1, ..HALF_MADE },
        &[REPLACEMENT_LEADS],
    ),
    holds("flags", &[], Bounds { cuts: 2, ..FLAGS }, &[CLEAR_AFTER_CUTS, FAST_COMMIT]),
    holds("flags-kill", &[], Bounds { kills: 1, ..FLAGS }, &[FAST_COMMIT]),
    holds("degraded", &[], Bounds { cuts: 2, ..DEGRADED }, &[KEPT, BACK_TO_FAST]),
    holds("shrinks", &[], SHRINKS, &[TWO_LEAD]),
    breaks(&["strict_binds_on_append"], SHRINKS, FewCannotTell, 6),
    breaks(&["fewer_after_strict"], SHRINKS, FewCannotTell, 3),
    breaks(&["fewer_when_held"], SHRINKS, FewCannotTell, 10),
    breaks(&["fewer_when_clean"], SHRINKS, FewCannotTell, 7),
    breaks(&["vote_synced"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["lost_tail_recovers"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["recovering_grants_none"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["recovering_campaigns_never"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["fresh_nonce"], Bounds { cuts: 2, ..TAILS }, LeaderLacksCommitted, 11),
    breaks(&["leave_by_epoch"], TAILS, LeaderLacksCommitted, 8),
    breaks(&["stays_recovering"], Bounds { kills: 1, ..TAILS }, LeaderLacksCommitted, 8),
    breaks(&["one_epoch_update"], TAILS, LeaderLacksCommitted, 7),
    breaks(&["no_restore_in_term"], Bounds { values: 2, kills: 1, cuts: 0, ..TAILS }, IdReused, 3),
    holds("five", &[], FIVE, &[]),
    // These two rules cover for each other. Without both, a power cut takes a member's tail and the
    // term that it learned from an append. The member then follows a deposed leader again and ends
    // its recovery by an uncommitted boot-epoch record of that leader.
    holds("first_append_synced", &["first_append_synced"], FIVE, &[]),
    holds("leave_on_applied", &["leave_on_applied"], FIVE, &[]),
    Scenario {
        name: "neither",
        ..breaks(&["first_append_synced", "leave_on_applied"], FIVE, LeaderLacksCommitted, 15)
    },
    breaks(&["lost_disk_new_identity"], LOST, TwoLeaders, 7),
    breaks(
        &["lost_votes_new_identity"],
        Bounds { lost_disks_recover: true, ..LOST },
        LeaderLacksCommitted,
        8,
    ),
    breaks(&["one_replacing_change"], REPLACED_C, SurvivorsBlocked, 2),
    breaks(&["joint_change"], REPLACED_C, LeaderLacksCommitted, 7),
    breaks(&["joint_quorum"], REPLACED_C, LeaderLacksCommitted, 7),
    breaks(&["one_change_in_flight"], REPLACED_C, LeaderLacksCommitted, 8),
    holds("own_term_first", &["own_term_first"], REPLACED_TWO, &[REPLACEMENT_LEADS, BOTH_REPLACED]),
    holds("caught_up", &["caught_up"], REPLACED_C, &[REPLACEMENT_LEADS]),
    breaks(&["membership_synced"], REPLACED_CUT, UnsafeRecoverySplits, 8),
    holds("learner_recovers", &["learner_recovers"], REPLACED_CUT, &[REPLACEMENT_RECOVERS]),
    Scenario {
        name: "both-unsynced",
        ..breaks(
            &["membership_synced", "learner_recovers"],
            Bounds { unsafe_recovery_grants: false, ..REPLACED_CUT },
            LeaderLacksCommitted,
            13,
        )
    },
    breaks(&["joining_recovers"], REPLACED_CUT, LeaderLacksCommitted, 15),
    breaks(&["unsafe_recovery_newest"], UNSAFE_RECOVERY, UnsafeRecoverySplits, 19),
    breaks(&["overwritten_when_held"], OVERWRITTEN, CommittedNowhere, 6),
    breaks(&["copy_after_all_know"], Bounds { copies: 1, ..REPLACED_C }, LeaderLacksCommitted, 12),
    holds("copy", &[], Bounds { copies: 1, ..REPLACED_C }, &[REPLACEMENT_LEADS]),
    breaks(&["flag_before_ack"], FLAGS, LeaderLacksCommitted, 7),
    breaks(&["leader_flags_own_ack"], FLAGS, LeaderLacksCommitted, 7),
    breaks(&["known_entries_wait"], FLAGS, LeaderLacksCommitted, 8),
    breaks(&["cleared_after_sync"], FLAGS, LeaderLacksCommitted, 8),
    breaks(&["no_ack_while_clearing"], Bounds { values: 2, ..FLAGS }, LeaderLacksCommitted, 11),
    Scenario {
        name: "flag-by-ack-mode",
        ..breaks(&["flag_before_ack", "old_ack_mode_is_safe"], DEGRADED, LeaderLacksCommitted, 9)
    },
    breaks(&["safe_mode_syncs"], DEGRADED, DegradedPromiseBroken, 4),
    breaks(&["old_ack_mode_is_safe"], DEGRADED, DegradedPromiseBroken, 6),
    breaks(&["restart_fences_appends"], DEGRADED, DegradedPromiseBroken, 7),
    breaks(&["return_needs_all"], DEGRADED, DegradedPromiseBroken, 8),
    breaks(&["return_needs_commit"], HALF_MADE_DEGRADED, SecondLossStops, 7),
    breaks(&["new_leader_safe"], DEGRADED, DegradedPromiseBroken, 9),
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
            assert_eq!(
                needed,
                !NOT_FOR_SAFETY.contains(rule),
                "is {rule} needed for safety or not?"
            );
        }
    }
}
