//! Conversions between the protocol's messages and the public types.

use bytes::Bytes;

use crate::error::{SystemError, Why};
use crate::proto;
use crate::shown::of_node;
use crate::types::{Condition, KeyValue, Limits, Member, Version};

impl Condition {
    pub(crate) fn into_proto(self) -> Option<proto::Condition> {
        let kind = match self {
            Condition::None => return None,
            Condition::Absent => proto::condition::Kind::Absent(true),
            Condition::Exists => proto::condition::Kind::Absent(false),
            Condition::Version(version) => proto::condition::Kind::Version(version.0),
        };
        Some(proto::Condition { kind: Some(kind) })
    }
}

pub(crate) fn put(key: Bytes, value: Bytes, condition: Condition) -> proto::Operation {
    let value_crc32 = Some(crc32fast::hash(&value));
    let put = proto::Put { key, value, condition: condition.into_proto(), value_crc32 };
    proto::Operation { kind: Some(proto::operation::Kind::Put(put)) }
}

pub(crate) fn delete(key: Bytes, condition: Condition) -> proto::Operation {
    let delete = proto::Delete { key, condition: condition.into_proto() };
    proto::Operation { kind: Some(proto::operation::Kind::Delete(delete)) }
}

pub(crate) fn check(key: Bytes, condition: Condition) -> proto::Operation {
    let check = proto::Check { key, condition: condition.into_proto() };
    proto::Operation { kind: Some(proto::operation::Kind::Check(check)) }
}

pub(crate) fn delete_range(range: proto::Range, most: u32, whole: bool) -> proto::Operation {
    let delete = proto::DeleteRange { range: Some(range), most, whole };
    proto::Operation { kind: Some(proto::operation::Kind::DeleteRange(delete)) }
}

/// The key and the value (empty if it has none) of an operation; of a range, where it begins and ends.
pub(crate) fn key_and_value(operation: &proto::Operation) -> (&[u8], &[u8]) {
    match &operation.kind {
        Some(proto::operation::Kind::Put(put)) => (&put.key, &put.value),
        Some(proto::operation::Kind::Delete(delete)) => (&delete.key, &[]),
        Some(proto::operation::Kind::Check(check)) => (&check.key, &[]),
        Some(proto::operation::Kind::DeleteRange(delete)) => match &delete.range {
            Some(range) => (&range.start, &range.end),
            None => (&[], &[]),
        },
        None => (&[], &[]),
    }
}

/// The version before a write, as the protocol reports it.
pub(crate) fn previous(result: &proto::OperationResult) -> Option<Version> {
    result.existed.then_some(Version(result.version))
}

pub(crate) fn key_value(item: proto::KeyValue) -> KeyValue {
    KeyValue { key: item.key, value: item.value, version: Version(item.version) }
}

pub(crate) fn limits(limits: &proto::Limits) -> Limits {
    Limits {
        max_key_bytes: limits.max_key_bytes,
        max_value_bytes: limits.max_value_bytes,
        max_batch_operations: limits.max_batch_operations,
        max_request_bytes: limits.max_request_bytes,
    }
}

pub(crate) fn member(member: proto::Member) -> Member {
    Member {
        node_id: member.node_id,
        slot: u16::try_from(member.slot).unwrap_or(u16::MAX),
        client_address: of_node(&member.client_address),
        peer_address: of_node(&member.peer_address),
        voter: member.voter,
    }
}

/// An error with its causes, since transport errors say what happened only in their causes. The other
/// side may have written it.
pub(crate) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    // A status shows its source as Rust writes it.
    let mut text = match error.downcast_ref::<tonic::Status>() {
        Some(status) if status.message().is_empty() => status.code().description().to_owned(),
        Some(status) => status.message().to_owned(),
        None => error.to_string(),
    };
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    of_node(&text)
}

/// Why an attempt failed with this error.
pub(crate) fn why(error: &(dyn std::error::Error + 'static)) -> Why {
    Why { text: describe(error), source: SystemError::below(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tonic::Status;

    /// The story: a node was down, and the error showed the transport's types and fields.
    #[test]
    fn a_status_is_described_by_its_message_and_its_causes_in_words() {
        let mut status = Status::unavailable("transport error");
        let refused = std::io::Error::from_raw_os_error(111);
        status.set_source(Arc::new(refused));
        assert_eq!(describe(&status), "transport error: Connection refused (os error 111)");
        let source = why(&status).source.unwrap();
        assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
        let unsaid = Status::unimplemented("");
        assert_eq!(describe(&unsaid), unsaid.code().description());
        assert_eq!(why(&unsaid).source, None);
    }
}
