//! Why an attempt failed. Only this file decides what an error status means, above all whether the
//! request may have had an effect.
//!
//! A status without Cairn's detail comes from the transport, or from a server that could not finish
//! its answer. Then anything may have happened, unless the connection itself was refused.

use std::time::Duration;

use tonic::{Code, Status};

use crate::Error;
use crate::convert::why;
use crate::error::{SystemError, Why, io_error};
use crate::proto::ErrorDetail;
use crate::proto::error_detail::Reason;
use crate::shown::of_node;
use crate::types::Position;

/// Why one attempt failed, and what that means for the next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// Another node leads, perhaps the one at this address. The request had no effect.
    NotLeader(Option<String>),
    /// No node leads at the moment. The request had no effect.
    NoLeader,
    /// No node leads, and none is elected before an unsafe recovery; the node's message. The
    /// request had no effect.
    ElectionBlocked(String),
    /// The node wants fewer requests. The request had no effect.
    Overloaded(Duration),
    /// The storage is full; the node's message says which part. The request had no effect.
    Full(Duration, String),
    /// The servers do not know the session any more. This attempt had no effect.
    SessionExpired,
    /// The value exists but cannot be read here.
    Unreadable(String),
    /// The connection was refused, or is to another cluster now: the request had no effect, and the
    /// connection is not used again.
    NotSent(Why),
    /// The node is of another cluster, and was asked nothing.
    OtherCluster(Error),
    /// The node, or one on the way to it, does not know the call.
    Unsupported(Why),
    /// A node does not keep the changes any more that a watch comes to. Another one may: each has a history of its own, which
    /// begins anew at its start.
    Compacted { oldest: Position, now: Position },
    /// The request may have been received and may take effect, now or later. `answered`: the node itself said so.
    Lost { why: Why, timed_out: bool, answered: bool },
    /// The request is refused for good. It had no effect.
    Refused(Error),
}

impl Failure {
    pub(crate) fn of(status: &Status) -> Failure {
        match ErrorDetail::of(status) {
            Some(detail) => Failure::of_detail(&detail, status),
            None => Failure::of_status(status),
        }
    }

    fn of_detail(detail: &ErrorDetail, status: &Status) -> Failure {
        let said = || of_node(status.message());
        match detail.reason() {
            Reason::NotLeader => {
                let hint = detail.leader.as_ref().map(|leader| leader.client_address.clone());
                Failure::NotLeader(hint.filter(|address| !address.is_empty()))
            }
            Reason::NoLeader => Failure::NoLeader,
            Reason::ElectionBlocked => Failure::ElectionBlocked(said()),
            Reason::Overloaded => Failure::Overloaded(Duration::from_millis(detail.retry_after_ms)),
            Reason::StorageFull => {
                Failure::Full(Duration::from_millis(detail.retry_after_ms), said())
            }
            Reason::SessionExpired => Failure::SessionExpired,
            Reason::ValueUnreadable => Failure::Unreadable(said()),
            Reason::KeyInvalid => {
                Failure::Refused(Error::InvalidKey { limit: detail.limit, actual: detail.actual })
            }
            Reason::ValueTooLarge => Failure::Refused(Error::ValueTooLarge {
                limit: detail.limit,
                actual: detail.actual,
            }),
            // The unit is corrected where the request is known: `Error::of_counted`.
            Reason::RequestTooLarge => Failure::Refused(Error::RequestTooLarge {
                unit: "bytes",
                limit: detail.limit,
                actual: detail.actual,
                message: said(),
            }),
            Reason::Unauthenticated => Failure::Refused(Error::Unauthenticated { message: said() }),
            Reason::PermissionDenied => {
                Failure::Refused(Error::PermissionDenied { message: said() })
            }
            Reason::Refused => Failure::Refused(Error::Refused { message: said() }),
            // The next Hello there tells both generations.
            Reason::OtherGeneration => Failure::NotSent(said().into()),
            // Another connection may damage nothing.
            Reason::ValueDamaged => Failure::NotSent(said().into()),
            Reason::OutcomeUnknown | Reason::Stopped | Reason::Unspecified => {
                Failure::Lost { why: said().into(), timed_out: false, answered: true }
            }
        }
    }

    fn of_status(status: &Status) -> Failure {
        if is_not_sent(status) {
            return Failure::NotSent(why(status));
        }
        match status.code() {
            Code::InvalidArgument => {
                Failure::Refused(Error::InvalidRequest(of_node(status.message())))
            }
            Code::Unimplemented => Failure::Unsupported(why(status)),
            Code::DeadlineExceeded | Code::Cancelled => {
                let (text, source) = (of_node(status.message()), SystemError::below(status));
                Failure::Lost { why: Why { text, source }, timed_out: true, answered: false }
            }
            _ => Failure::Lost { why: why(status), timed_out: false, answered: false },
        }
    }

    /// What it is, in one word, for a trace: without what a node said, which may name a key.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Failure::NotLeader(_) => "not_leader",
            Failure::NoLeader => "no_leader",
            Failure::ElectionBlocked(_) => "election_blocked",
            Failure::Overloaded(_) => "overloaded",
            Failure::Full(..) => "full",
            Failure::SessionExpired => "session_expired",
            Failure::Unreadable(_) => "unreadable",
            Failure::NotSent(_) => "not_sent",
            Failure::OtherCluster(_) => "other_cluster",
            Failure::Unsupported(_) => "unsupported",
            Failure::Compacted { .. } => "compacted",
            Failure::Lost { timed_out: true, .. } => "timed_out",
            Failure::Lost { .. } => "lost",
            Failure::Refused(_) => "refused",
        }
    }

    /// Why the outcome is unknown, if the attempt may have had an effect or may still have one.
    pub(crate) fn may_have_effect(&self) -> Option<&Why> {
        match self {
            // Who says that it does not know a call may stand between the client and a node.
            Failure::Lost { why, .. } | Failure::Unsupported(why) => Some(why),
            _ => None,
        }
    }
}

/// Only the I/O error shows it: established connections never report these.
fn is_not_sent(status: &Status) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotConnected};
    io_error(status).is_some_and(|error| matches!(error.kind(), ConnectionRefused | NotConnected))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tonic::metadata::{MetadataMap, MetadataValue};

    use super::*;
    use crate::proto;

    fn status(code: Code, detail: proto::ErrorDetail) -> Status {
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(
            proto::ERROR_DETAIL_KEY,
            MetadataValue::from_bytes(&detail.encode_to_vec()),
        );
        Status::with_metadata(code, "said so", metadata)
    }

    fn with_reason(reason: Reason) -> Failure {
        Failure::of(&status(
            Code::Unknown,
            proto::ErrorDetail { reason: reason as i32, ..Default::default() },
        ))
    }

    #[test]
    fn only_an_answer_that_leaves_the_outcome_open_may_have_had_an_effect() {
        let all = (0..).map_while(|number| Reason::try_from(number).ok());
        let open: Vec<Reason> =
            all.filter(|r| with_reason(*r).may_have_effect().is_some()).collect();
        assert_eq!(open, [Reason::Unspecified, Reason::OutcomeUnknown, Reason::Stopped]);
    }

    #[test]
    fn the_kind_of_a_failure_is_a_word_of_ours_whatever_the_node_said() {
        let all = (0..).map_while(|number| Reason::try_from(number).ok());
        let of = |reason: Reason| with_reason(reason).kind();
        for kind in all.map(of) {
            assert!(kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{kind}");
        }
        assert_eq!(of(Reason::PermissionDenied), "refused");
        assert_eq!(of(Reason::ValueDamaged), "not_sent");
        assert_eq!(of(Reason::OutcomeUnknown), "lost");
    }

    #[test]
    fn a_status_without_detail_may_have_had_an_effect_unless_the_request_was_refused_as_invalid() {
        for code in (0..17).map(Code::from_i32) {
            let open = Failure::of(&Status::new(code, "")).may_have_effect().is_some();
            assert_eq!(open, code != Code::InvalidArgument, "{code:?}");
        }
    }

    #[test]
    fn a_refused_connection_was_not_sent_and_a_broken_one_may_have_been() {
        let of = |kind| Failure::of(&Status::from_error(Box::new(std::io::Error::from(kind))));
        assert!(of(std::io::ErrorKind::ConnectionRefused).may_have_effect().is_none());
        assert!(of(std::io::ErrorKind::ConnectionReset).may_have_effect().is_some());
        assert!(of(std::io::ErrorKind::BrokenPipe).may_have_effect().is_some());
    }

    #[test]
    fn the_systems_error_is_kept_with_a_lost_request_and_with_one_that_was_not_sent() {
        use std::io::ErrorKind::{BrokenPipe, ConnectionRefused};
        for kind in [ConnectionRefused, BrokenPipe] {
            let status = Status::from_error(Box::new(std::io::Error::from(kind)));
            let (Failure::Lost { why, .. } | Failure::NotSent(why)) = Failure::of(&status) else {
                panic!("{status}");
            };
            assert_eq!(why.source.map(|source| source.kind()), Some(kind));
        }
    }

    #[test]
    fn a_hint_is_taken_if_it_names_an_address() {
        let leader = |address: &str| {
            let leader = Some(proto::Leader { node_id: 3, client_address: address.to_owned() });
            let reason = Reason::NotLeader as i32;
            Failure::of(&status(
                Code::FailedPrecondition,
                proto::ErrorDetail { reason, leader, ..Default::default() },
            ))
        };
        assert_eq!(leader("10.0.0.3:7001"), Failure::NotLeader(Some("10.0.0.3:7001".to_owned())));
        assert_eq!(leader(""), Failure::NotLeader(None));
        assert_eq!(with_reason(Reason::NotLeader), Failure::NotLeader(None));
    }

    #[test]
    fn limits_and_delays_are_passed_on() {
        let detail =
            proto::ErrorDetail { limit: 10, actual: 12, retry_after_ms: 30, ..Default::default() };
        let of = |reason: Reason| {
            Failure::of(&status(
                Code::InvalidArgument,
                proto::ErrorDetail { reason: reason as i32, ..detail.clone() },
            ))
        };
        let refused = |error| Failure::Refused(error);
        assert_eq!(of(Reason::KeyInvalid), refused(Error::InvalidKey { limit: 10, actual: 12 }));
        assert_eq!(
            of(Reason::ValueTooLarge),
            refused(Error::ValueTooLarge { limit: 10, actual: 12 })
        );
        assert_eq!(of(Reason::Overloaded), Failure::Overloaded(Duration::from_millis(30)));
        let full = Failure::Full(Duration::from_millis(30), "said so".into());
        assert_eq!(of(Reason::StorageFull), full);
    }

    #[test]
    fn a_detail_that_cannot_be_decoded_counts_as_none() {
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(proto::ERROR_DETAIL_KEY, MetadataValue::from_bytes(&[0xff, 0xff]));
        let status = Status::with_metadata(Code::FailedPrecondition, "?", metadata);
        assert!(Failure::of(&status).may_have_effect().is_some());
    }

    /// The input is a status code and the detail.
    #[test]
    fn any_bytes_are_a_detail_that_means_something_or_count_as_none() {
        let leader = Some(proto::Leader { node_id: 3, client_address: "a:1".to_owned() });
        let seed = |code: Code, reason: Reason| {
            let reason = reason as i32;
            let detail = proto::ErrorDetail {
                reason,
                leader: leader.clone(),
                retry_after_ms: 30,
                limit: 10,
                actual: 12,
            };
            [&[code as u8][..], &detail.encode_to_vec()].concat()
        };
        cairn_fuzz::target!(
            "not_leader" => seed(Code::FailedPrecondition, Reason::NotLeader),
            "too_large" => seed(Code::InvalidArgument, Reason::RequestTooLarge),
            "overloaded" => seed(Code::ResourceExhausted, Reason::Overloaded),
            "denied" => seed(Code::PermissionDenied, Reason::PermissionDenied),
            "refused" => seed(Code::FailedPrecondition, Reason::Refused),
        )
        .for_each(|bytes| {
            let Some((code, encoded)) = bytes.split_first() else { return };
            let code = Code::from_i32(i32::from(*code));
            let mut metadata = MetadataMap::new();
            metadata.insert_bin(proto::ERROR_DETAIL_KEY, MetadataValue::from_bytes(encoded));
            let status = Status::with_metadata(code, "said so", metadata);
            let most = 64 * bytes.len() + 4096;
            let failure = cairn_fuzz::within(most, || Failure::of(&status));
            let Ok(detail) = proto::ErrorDetail::decode(encoded) else {
                return assert_eq!(failure, Failure::of(&Status::new(code, "said so")));
            };
            let open = [Reason::Unspecified, Reason::OutcomeUnknown, Reason::Stopped];
            assert_eq!(failure.may_have_effect().is_some(), open.contains(&detail.reason()));
            match failure {
                Failure::NotLeader(hint) => assert!(hint.is_none_or(|address| !address.is_empty())),
                Failure::Overloaded(after) | Failure::Full(after, _) => {
                    assert_eq!(after.as_millis(), u128::from(detail.retry_after_ms));
                }
                _ => {}
            }
        });
    }
}
