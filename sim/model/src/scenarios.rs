//! Which searches are made: the protocol within several bounds, and each rule left out within the least that shows why.

use crate::actions::Model;
use crate::bounds::Bounds;
use crate::properties::Violation;
use crate::rules::Rules;
use crate::search::Witness;
use crate::state::Role;

/// A search and what it must find.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// The name, for the command line.
    pub name: &'static str,
    /// What is left out of the protocol.
    pub without: &'static [&'static str],
    pub bounds: Bounds,
    /// The violation that must be found; none may be where this is `None`.
    pub expected: Option<Violation>,
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

const RECOVERED_LEADS: Witness =
    ("a member recovers and is elected", |s| s.nodes.iter().any(|n| n.starts > 0 && n.role == Role::Leader));


const BOUNDS: Bounds = Bounds::BASE;
/// Lost tails.
const TAILS: Bounds = Bounds { entries: 4, cuts: 1, ..BOUNDS };
/// The mark.
const MARKS: Bounds = Bounds { entries: 3, cuts: 1, marks: true, ..BOUNDS };
/// Lost identities.
const LOSSES: Bounds = Bounds { entries: 4, losses: 1, ..BOUNDS };
/// The thin regime.
const THIN: Bounds = Bounds { entries: 3, cuts: 1, thin: true, ..BOUNDS };

const fn full(name: &'static str, bounds: Bounds, witnesses: &'static [Witness]) -> Scenario {
    Scenario { name, without: &[], bounds, expected: None, witnesses }
}

const fn broken(name: &'static str, without: &'static [&'static str], bounds: Bounds, v: Violation) -> Scenario {
    Scenario { name, without, bounds, expected: Some(v), witnesses: &[] }
}

use Violation::*;

/// Every search.
pub(crate) const ALL: &[Scenario] = &[
    full("tails", TAILS, &[RECOVERED_LEADS]),
    broken("vote_synced", &["vote_synced"], TAILS, TwoLeaders),
    broken("lost_tail_recovers", &["lost_tail_recovers"], TAILS, LeaderLacksCommitted),
    broken("recovering_grants_none", &["recovering_grants_none"], TAILS, LeaderLacksCommitted),
    broken("recovering_campaigns_never", &["recovering_campaigns_never"], TAILS, LeaderLacksCommitted),
    broken("fresh_nonce", &["fresh_nonce"], Bounds{cuts:2,..TAILS}, LeaderLacksCommitted),
    broken("leave_by_mark", &["leave_by_mark"], TAILS, LeaderLacksCommitted),
    broken("leave_on_applied", &["leave_on_applied"], TAILS, LeaderLacksCommitted),
    broken("stays_recovering", &["stays_recovering"], Bounds{kills:1,..TAILS}, LeaderLacksCommitted),
    broken("one_start_update", &["one_start_update"], TAILS, LeaderLacksCommitted),
    broken("no_restore_in_term", &["no_restore_in_term"], Bounds{values:2,kills:1,cuts:0,..TAILS}, IdReused),
    broken("first_append_synced", &["first_append_synced"], Bounds{terms:3,cuts:2,..TAILS}, LeaderLacksCommitted),
    full("losses", LOSSES, &[]),
    broken("lost_identity_reborn", &["lost_identity_reborn"], LOSSES, LeaderLacksCommitted),
    broken("retired_refused", &["retired_refused"], LOSSES, LeaderLacksCommitted),
    broken("one_replacing_change", &["one_replacing_change"], LOSSES, SurvivorsBlocked),
    broken("joining_recovers", &["joining_recovers"], Bounds{entries:5,cuts:1,..LOSSES}, LeaderLacksCommitted),
    full("marks", MARKS, &[]),
    broken("mark_before_ack", &["mark_before_ack"], MARKS, LeaderLacksCommitted),
    broken("leader_marks_own_ack", &["leader_marks_own_ack"], MARKS, LeaderLacksCommitted),
    broken("known_entries_wait", &["known_entries_wait"], MARKS, LeaderLacksCommitted),
    broken("cleared_after_sync", &["cleared_after_sync"], MARKS, LeaderLacksCommitted),
    broken("no_ack_while_clearing", &["no_ack_while_clearing"], MARKS, LeaderLacksCommitted),
    broken("mark_kept_recovering", &["mark_kept_recovering"], Bounds{entries:4,cuts:2,..MARKS}, LeaderLacksCommitted),
    full("thin", THIN, &[]),
    broken("thin_syncs", &["thin_syncs"], THIN, ThinPromiseBroken),
    broken("old_regime_is_thin", &["old_regime_is_thin"], THIN, ThinPromiseBroken),
    broken("restart_fences_appends", &["restart_fences_appends"], THIN, ThinPromiseBroken),
    broken("return_needs_all", &["return_needs_all"], THIN, ThinPromiseBroken),
    broken("new_leader_thin", &["new_leader_thin"], THIN, ThinPromiseBroken),
];
