//! What an error means for whoever gets it, in one word that stays the same from release to release.
//!
//! What holds here: each error has exactly one kind. Names and answers of a kind never change; a later release may add
//! kinds. Clients in other languages use the same words.

use std::fmt;

use super::Error;

/// What an [`Error`] means: how a caller can react, in one word. For `match`, metrics and logs where the fields of the
/// error do not matter.
///
/// | | of a write: was not applied, and will not be | may be repeated unchanged |
/// |---|---|---|
/// | `OutcomeUnknown` | unknown | only if doing it twice is harmless |
/// | `DeadlineExceeded`, `Unavailable`, `NoLeader`, `Overloaded`, `StorageFull` | yes | yes, later |
/// | `ScanBroken` | (of a scan only) | yes, from the start |
/// | all others | yes | no: the answer would be the same |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A write may have been applied, may still be applied, or never. Look at the key before you write again.
    OutcomeUnknown,
    /// A condition of a write did not hold. Read again, and decide anew.
    ConditionFailed,
    /// Nobody answered before the deadline.
    DeadlineExceeded,
    /// No node could be reached that serves the request.
    Unavailable,
    /// Nodes answered, and none leads.
    NoLeader,
    /// The cluster wants fewer requests.
    Overloaded,
    /// The cluster's storage is full. Reads and deletes still work.
    StorageFull,
    /// A key, a request or an option is invalid.
    Invalid,
    /// A value or a request is larger than the servers take, or a range has more keys than are to be deleted at once.
    TooLarge,
    /// A scan ended before all of its keys had arrived. Take it from the start.
    ScanBroken,
    /// A value exists, and no node that was asked could read it intact.
    ValueUnreadable,
    /// A node is of another cluster than the client.
    ClusterMismatch,
    /// A node speaks another version of the protocol.
    ProtocolMismatch,
    /// No node that was asked knows the call: their release is an earlier one.
    Unsupported,
    /// The servers do not know this client.
    Unauthenticated,
    /// The servers know this client, and do not allow it the request.
    PermissionDenied,
    /// The present state of the cluster, or of a node, does not allow an operator's call.
    Refused,
    /// The changes that a watch comes to are not kept any more, or were discarded. Watch anew, then list the keys.
    HistoryGone,
}

impl ErrorKind {
    /// All of them.
    pub const ALL: &[ErrorKind] = &[
        ErrorKind::OutcomeUnknown,
        ErrorKind::ConditionFailed,
        ErrorKind::DeadlineExceeded,
        ErrorKind::Unavailable,
        ErrorKind::NoLeader,
        ErrorKind::Overloaded,
        ErrorKind::StorageFull,
        ErrorKind::Invalid,
        ErrorKind::TooLarge,
        ErrorKind::ScanBroken,
        ErrorKind::ValueUnreadable,
        ErrorKind::ClusterMismatch,
        ErrorKind::ProtocolMismatch,
        ErrorKind::Unsupported,
        ErrorKind::Unauthenticated,
        ErrorKind::PermissionDenied,
        ErrorKind::Refused,
        ErrorKind::HistoryGone,
    ];

    /// Its name in logs and metrics, such as `outcome_unknown`.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::OutcomeUnknown => "outcome_unknown",
            ErrorKind::ConditionFailed => "condition_failed",
            ErrorKind::DeadlineExceeded => "deadline_exceeded",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::NoLeader => "no_leader",
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::StorageFull => "storage_full",
            ErrorKind::Invalid => "invalid",
            ErrorKind::TooLarge => "too_large",
            ErrorKind::ScanBroken => "scan_broken",
            ErrorKind::ValueUnreadable => "value_unreadable",
            ErrorKind::ClusterMismatch => "cluster_mismatch",
            ErrorKind::ProtocolMismatch => "protocol_mismatch",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Unauthenticated => "unauthenticated",
            ErrorKind::PermissionDenied => "permission_denied",
            ErrorKind::Refused => "refused",
            ErrorKind::HistoryGone => "history_gone",
        }
    }

    /// Whether a read or a write that failed so may be repeated unchanged: it may succeed later, and a write was not
    /// applied, so it is not applied twice. Not of an operator's call, which says itself what it may have done.
    pub fn may_be_repeated(self) -> bool {
        matches!(
            self,
            ErrorKind::DeadlineExceeded
                | ErrorKind::Unavailable
                | ErrorKind::NoLeader
                | ErrorKind::Overloaded
                | ErrorKind::StorageFull
                | ErrorKind::ScanBroken
        )
    }

    /// Whether a write that failed so was not applied, and will not be. Not of an operator's call, which says itself what
    /// it may have done.
    pub fn was_not_applied(self) -> bool {
        self != ErrorKind::OutcomeUnknown
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Error {
    /// What the error means for the caller.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::OutcomeUnknown { .. } => ErrorKind::OutcomeUnknown,
            Error::ConditionFailed { .. } => ErrorKind::ConditionFailed,
            Error::DeadlineExceeded { .. } => ErrorKind::DeadlineExceeded,
            Error::Unavailable { .. } => ErrorKind::Unavailable,
            Error::NoLeader { .. } => ErrorKind::NoLeader,
            Error::Overloaded { .. } => ErrorKind::Overloaded,
            Error::StorageFull { .. } => ErrorKind::StorageFull,
            Error::InvalidKey { .. } | Error::InvalidRequest(_) | Error::InvalidOptions(_) => {
                ErrorKind::Invalid
            }
            Error::ValueTooLarge { .. }
            | Error::RequestTooLarge { .. }
            | Error::RangeTooLarge { .. } => ErrorKind::TooLarge,
            Error::ScanBroken { .. } => ErrorKind::ScanBroken,
            Error::ValueUnreadable { .. } => ErrorKind::ValueUnreadable,
            Error::ClusterMismatch { .. } => ErrorKind::ClusterMismatch,
            Error::ProtocolMismatch { .. } => ErrorKind::ProtocolMismatch,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::Unauthenticated { .. } => ErrorKind::Unauthenticated,
            Error::PermissionDenied { .. } => ErrorKind::PermissionDenied,
            Error::Refused { .. } => ErrorKind::Refused,
            Error::Compacted { .. } | Error::HistoryDiscarded => ErrorKind::HistoryGone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_kind_has_a_name_of_its_own_for_metrics() {
        let names: BTreeSet<&str> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ErrorKind::ALL.len());
        for name in names {
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        }
    }

    #[test]
    fn only_what_was_not_applied_may_be_repeated_blindly() {
        for kind in ErrorKind::ALL {
            assert!(kind.was_not_applied() || !kind.may_be_repeated(), "{kind}");
        }
        assert!(!ErrorKind::OutcomeUnknown.was_not_applied());
        let repeated: Vec<&str> = ErrorKind::ALL
            .iter()
            .filter(|kind| kind.may_be_repeated())
            .map(|kind| kind.name())
            .collect();
        let later = ["deadline_exceeded", "unavailable", "no_leader", "overloaded", "storage_full"];
        assert_eq!(repeated, [&later[..], &["scan_broken"]].concat());
    }

    #[test]
    fn an_error_is_transient_if_its_kind_may_be_repeated_or_its_outcome_is_unknown() {
        let of = |error: Error| (error.kind(), error.is_transient());
        assert_eq!(of(Error::outcome_unknown("lost")), (ErrorKind::OutcomeUnknown, true));
        assert_eq!(of(Error::deadline_exceeded("late")), (ErrorKind::DeadlineExceeded, true));
        assert_eq!(of(Error::unavailable("a:1", "refused")), (ErrorKind::Unavailable, true));
        let full =
            Error::StorageFull { retry_after: std::time::Duration::ZERO, why: "full".to_owned() };
        assert_eq!(of(full), (ErrorKind::StorageFull, true));
        let message = String::new();
        let large = Error::RequestTooLarge { unit: "operations", limit: 128, actual: 129, message };
        assert_eq!(of(large), (ErrorKind::TooLarge, false));
        let range = Error::RangeTooLarge { at: crate::Version(7) };
        assert_eq!(of(range), (ErrorKind::TooLarge, false), "nothing was deleted");
        assert_eq!(of(Error::InvalidOptions("none".to_owned())), (ErrorKind::Invalid, false));
        assert_eq!(of(Error::Refused { message: "no".to_owned() }), (ErrorKind::Refused, false));
    }
}
