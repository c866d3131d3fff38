//! The rules of the protocol. A search can leave out each of them, to show what it is for.

macro_rules! rules {
    ($($field:ident: $meaning:literal,)*) => {
        /// The rules that a search keeps.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Rules {
            $(#[doc = $meaning] pub $field: bool,)*
        }

        impl Rules {
            /// All rules: the protocol as it is.
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

            /// Each rule's name and meaning.
            pub(crate) const MEANINGS: &[(&str, &str)] = &[$((stringify!($field), $meaning),)*];
        }
    };
}

/// Rules that safety does not need. A search leaves each of them out, as the others, and finds no
/// violation.
#[cfg(test)]
pub(crate) const NOT_FOR_SAFETY: &[&str] = &["own_term_first", "caught_up"];

rules! {
    vote_synced: "a vote is synced before it is answered",
    lost_tail_recovers: "a member that lost power with its flag set recovers; it does not just continue",
    recovering_grants_none: "a recovering member grants no vote",
    recovering_campaigns_never: "a recovering member does not campaign",
    fresh_nonce: "the boot-epoch record of each recovery has its own nonce",
    leave_by_epoch: "recovery ends with the record of the present boot epoch, not at the leader's commit index",
    leave_on_applied: "recovery ends when the boot-epoch record is applied, not when it is appended",
    stays_recovering: "a process restart does not end a recovery",
    one_epoch_update: "kernel boot id and member state are written in one update of the superblock",
    first_append_synced: "the first append of each term is synced, and the term with it",
    no_restore_in_term: "a restarted leader does not continue in its term",
    lost_disk_new_identity: "a machine whose disk is lost or blank never takes part under its old identity",
    lost_votes_new_identity: "such a machine does not recover under its old identity either: its votes are lost too",
    one_replacing_change: "one change adds the new identity and removes the old one, never two changes",
    joint_change: "a replacement goes through a joint configuration, not straight to the new one",
    joint_quorum: "under a joint configuration elections and commits need both halves, whichever member leads",
    one_change_in_flight: "a leader proposes a membership entry only when the one before it is committed",
    own_term_first: "a leader proposes a membership entry only when it has committed an entry of its own term",
    caught_up: "a learner becomes a voter only when it has everything committed",
    membership_synced: "a membership entry, with all entries before it, is synced before it is acknowledged",
    learner_recovers: "a learner that loses power with its flag set recovers like any other member",
    joining_recovers: "a learner recovers by the usual rules, not by silence until it applies its own membership",
    unsafe_recovery_newest: "an unsafe recovery never elects a member if another that was asked has a newer configuration",
    overwritten_when_held: "a directory with an unreadable identity is overwritten only when a majority without it has synced everything that a leader has",
    copy_after_all_know: "an old copy of a replaced member's disk is started only when every voter has the replacement in its log",
    flag_before_ack: "the flag is synced before the first acknowledgement that is not itself synced",
    leader_flags_own_ack: "the leader's count of its own copy is an acknowledgement",
    known_entries_wait: "an acknowledgement of entries that the member already has needs the flag too",
    cleared_after_sync: "the flag is cleared only once everything is synced",
    no_ack_while_clearing: "while a member clears its flag, it acknowledges nothing before it is synced",
    safe_mode_syncs: "in safe mode a member syncs an append, and clears its flag, before it acknowledges the append",
    old_ack_mode_is_safe: "an append of an earlier ack mode never returns a member to fast mode",
    restart_fences_appends: "appends sent before a member's restart do not reach it afterwards",
    return_needs_all: "a leader leaves safe mode only when every voter has answered in it",
    return_needs_commit: "a leader leaves safe mode only when the membership that names the voters is committed",
    strict_binds_on_append: "a mode that asks for syncs binds a member from its append on",
    fewer_after_strict: "a change to fewer than three voters begins only when the end of mode `replicated` is committed",
    fewer_when_held: "and only when every voter that stays has acknowledged that end, and with it synced all before",
    fewer_when_clean: "and only when the unsynced-ack flag of every voter that stays is clear",
    new_leader_safe: "a new leader is in safe mode until every voter has answered it",
}
