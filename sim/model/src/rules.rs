//! The rules of the protocol, each of which can be left out to see what it is for.

macro_rules! rules {
    ($($field:ident: $meaning:literal,)*) => {
        /// Which rules are kept.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Rules {
            $(#[doc = $meaning] pub $field: bool,)*
        }

        impl Rules {
            /// The protocol as it is.
            pub(crate) fn all() -> Rules {
                Rules { $($field: true,)* }
            }

            /// The protocol without the rule of this name.
            pub(crate) fn without(mut self, name: &str) -> Option<Rules> {
                match name {
                    $(stringify!($field) => self.$field = false,)*
                    _ => return None,
                }
                Some(self)
            }

            /// The names, each with its meaning.
            pub(crate) const MEANINGS: &[(&str, &str)] = &[$((stringify!($field), $meaning),)*];
        }
    };
}

/// Rules that safety does not rest on: searched without, like the others, and nothing is found.
#[cfg(test)]
pub(crate) const NOT_FOR_SAFETY: &[&str] = &["own_term_first", "caught_up"];

rules! {
    vote_synced: "a vote is synced before it is answered",
    lost_tail_recovers: "a power cut with the mark set means recovery, not an ordinary start",
    recovering_grants_none: "a recovering member grants no vote",
    recovering_campaigns_never: "a recovering member does not campaign",
    fresh_nonce: "each start is in the log under a nonce of its own",
    leave_by_start: "recovery ends by the record of its own start, not by reaching the leader's commit index",
    leave_on_applied: "recovery ends when that record is applied, not when it is appended",
    stays_recovering: "a process restart does not end a recovery",
    one_start_update: "boot id and state are written in one update of the superblock",
    first_append_synced: "the first append of each leader term is synced, and the term with it",
    no_restore_in_term: "a restarted leader does not go on in its term",
    lost_disk_new_identity: "a machine whose disk is lost or blank never takes part under the identity that it had",
    lost_votes_new_identity: "... not even recovering in place: what it voted is lost too",
    one_replacing_change: "the new identity replaces the old one in one change, never add and then remove",
    joint_change: "this change goes through a joint configuration, not straight to the new one",
    joint_quorum: "while it is half made, both halves must agree, in elections as in commits, whoever leads",
    one_change_in_flight: "a membership entry is proposed only when the one before it is committed",
    own_term_first: "... and only by a leader that has committed an entry of its own term",
    caught_up: "a learner becomes a voter when it has what is committed",
    membership_synced: "a membership entry, and all before it, is synced before it is acknowledged",
    learner_recovers: "a learner that loses power with its mark set recovers like any other member",
    joining_recovers: "... not by keeping silent until it applies its own membership",
    mandate_newest: "a mandate goes to nobody whose configuration is older than that of another who was asked",
    overwritten_when_held: "a directory without a readable identity is overwritten only when a majority without it holds, synced, all that a leader has",
    copy_after_all_know: "an old copy of a replaced disk is started only when every voter has the replacement in its log",
    mark_before_ack: "the mark is synced before the first acknowledgement that is not itself synced",
    leader_marks_own_ack: "the leader's count of its own copy is an acknowledgement",
    known_entries_wait: "an acknowledgement of entries that were already there obeys the mark too",
    cleared_after_sync: "the mark is cleared only once everything is synced",
    no_ack_while_clearing: "from before that sync until the clear mark is on disk, nothing is acknowledged lazily",
    thin_syncs: "while thin, an append is synced, and the mark cleared, before it is acknowledged",
    old_regime_is_thin: "an append of an older regime never makes a member lazy again",
    restart_fences_appends: "appends sent before a member's restart do not reach it afterwards",
    return_needs_all: "a leader leaves the thin regime only when every voter answered within it",
    return_needs_commit: "... and the membership that says who votes is committed",
    new_leader_thin: "a new leader is thin until every voter has answered it",
}
