//! Every refusal carries its reason, limit and actual size; everything else passes. What passes is
//! within the limits, whatever bytes it came from.

use super::*;
use crate::config::NodeConfig;
use cairn_client::proto::{ERROR_DETAIL_KEY, ErrorDetail};
use prost::Message;
use tonic::Code;

fn limits() -> Limits {
    let members =
        [(1, cairn_raft::MemberAddress { peer: "a:2".into(), client: "a:1".into() })].into();
    NodeConfig::new("c", 1, "d".into(), members).expect("a good configuration").limits
}

fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> proto::Operation {
    let put =
        proto::Put { key: key.into(), value: value.into(), condition: None, value_crc32: None };
    proto::Operation { kind: Some(OperationKind::Put(put)) }
}

fn request(operations: Vec<proto::Operation>) -> proto::WriteRequest {
    proto::WriteRequest { session: None, operations, synced: false }
}

fn detail(status: &Status) -> ErrorDetail {
    let value =
        status.metadata().get_bin(ERROR_DETAIL_KEY).expect("a detail").to_bytes().expect("base64");
    ErrorDetail::decode(value).expect("an ErrorDetail")
}

fn refusal(operations: Vec<proto::Operation>) -> (Code, Reason, u64, u64, String) {
    let status = write(&limits(), request(operations)).expect_err("refused");
    let detail = detail(&status);
    (status.code(), detail.reason(), detail.limit, detail.actual, status.message().to_string())
}

#[test]
fn an_empty_key_is_refused() {
    let (code, reason, _, actual, message) = refusal(vec![put("", "v")]);
    assert_eq!((code, reason, actual), (Code::InvalidArgument, Reason::KeyInvalid, 0));
    assert_eq!(message, "the key is empty; use 1 to 1024 bytes");
}

#[test]
fn a_key_over_the_limit_is_refused_and_one_at_the_limit_passes() {
    let (_, reason, limit, actual, message) = refusal(vec![put(vec![b'k'; 1025], "v")]);
    assert_eq!((reason, limit, actual), (Reason::KeyInvalid, 1024, 1025));
    assert!(message.contains("has 1025 bytes; at most 1024"), "{message}");
    assert!(write(&limits(), request(vec![put(vec![b'k'; 1024], "v")])).is_ok());
}

/// The story: an operator lowered the limit, and longer keys that existed could neither be read nor
/// deleted any more.
#[test]
fn a_key_that_was_put_under_a_higher_limit_can_be_read_deleted_and_checked() {
    let long = vec![b'k'; 2048];
    assert!(key(&long).is_ok());
    let delete = proto::Delete { key: long.clone().into(), condition: None };
    let check = proto::Check { key: long.clone().into(), condition: None };
    let kinds = [OperationKind::Delete(delete), OperationKind::Check(check)];
    let operations = kinds.map(|kind| proto::Operation { kind: Some(kind) });
    assert!(write(&limits(), request(operations.into())).is_ok());
    assert!(write(&limits(), request(vec![put(long, "v")])).is_err());
    assert!(key(&[b'k'; 2049]).is_err());
}

#[test]
fn a_value_over_the_limit_is_refused_naming_its_key() {
    let limit = 1 << 20;
    let (code, reason, stated, actual, message) = refusal(vec![put("big", vec![0; limit + 1])]);
    assert_eq!((code, reason), (Code::InvalidArgument, Reason::ValueTooLarge));
    assert_eq!((stated, actual), (limit as u64, limit as u64 + 1));
    assert!(message.contains("`big`"), "{message}");
    let checked =
        write(&limits(), request(vec![put("big", vec![0; limit])])).expect("at the limit");
    assert_eq!(checked.bytes, limit + 3);
}

#[test]
fn too_many_operations_or_bytes_are_refused() {
    let (_, reason, limit, actual, _) = refusal((0..129).map(|_| put("k", "v")).collect());
    assert_eq!((reason, limit, actual), (Reason::RequestTooLarge, 128, 129));
    let (_, reason, limit, _, _) = refusal((0..5).map(|_| put("k", vec![0; 1 << 20])).collect());
    assert_eq!((reason, limit), (Reason::RequestTooLarge, 4 << 20));
}

#[test]
fn a_request_without_operations_or_with_an_empty_one_is_refused() {
    for operations in [vec![], vec![proto::Operation { kind: None }]] {
        let status = write(&limits(), request(operations)).expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
    }
}

fn range(start: &'static str, end: &'static str, most: u32) -> proto::Operation {
    let range = Some(proto::Range { start: start.into(), end: end.into() });
    let delete = proto::DeleteRange { range, most, whole: true };
    proto::Operation { kind: Some(OperationKind::DeleteRange(delete)) }
}

fn check(key: &'static str) -> proto::Operation {
    let check = proto::Check { key: key.into(), condition: None };
    proto::Operation { kind: Some(OperationKind::Check(check)) }
}

#[test]
fn a_range_is_deleted_alone_or_beside_checks_and_with_a_number_of_keys_in_the_command() {
    let most_of = |operations| {
        let checked = write(&limits(), request(operations)).expect("good");
        let mut found = checked.command.operations.into_iter().filter_map(|one| match one {
            Operation::DeleteRange { most, whole, .. } => Some((most, whole)),
            _ => None,
        });
        (found.next().expect("a range"), checked.bytes)
    };
    assert_eq!(most_of(vec![range("a", "bc", 0)]), ((RANGE_KEYS_MAX, true), 3));
    assert_eq!(most_of(vec![range("", "", 7)]), ((7, true), 0));
    assert_eq!(
        most_of(vec![check("k"), range("a", "", RANGE_KEYS_MAX)]),
        ((RANGE_KEYS_MAX, true), 2)
    );
}

#[test]
fn a_range_that_is_none_or_is_beside_other_changes_is_refused_with_the_way_out() {
    let none = proto::DeleteRange { range: None, most: 1, whole: false };
    let none = proto::Operation { kind: Some(OperationKind::DeleteRange(none)) };
    for (operations, named) in [
        (vec![none], "names no range"),
        (vec![range("b", "a", 1)], "begins at `b` and ends at `a`"),
        (vec![range("b", "b", 1)], "begins at `b` and ends at `b`"),
        (vec![range("a", "b", RANGE_KEYS_MAX + 1)], "names 4097 keys; at most 4096"),
        (vec![put("k", "v"), range("a", "b", 1)], "send it alone, or beside checks"),
        (vec![range("a", "b", 1), check("k"), range("c", "d", 1)], "send it alone"),
    ] {
        let refused = write(&limits(), request(operations)).expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(named), "{refused}");
    }
    let long = proto::Range { start: vec![b'a'; 2050].into(), end: Bytes::new() };
    let long = proto::DeleteRange { range: Some(long), most: 1, whole: false };
    let long = proto::Operation { kind: Some(OperationKind::DeleteRange(long)) };
    let (code, reason, limit, actual, _) = refusal(vec![long]);
    assert_eq!((code, reason), (Code::InvalidArgument, Reason::KeyInvalid));
    assert_eq!((limit, actual), (2049, 2050));
}

#[test]
fn a_delete_needs_no_space_and_its_conditions_arrive() {
    let delete = |kind| proto::Delete {
        key: "k".into(),
        condition: Some(proto::Condition { kind: Some(kind) }),
    };
    for (kind, expected) in [
        (ConditionKind::Absent(true), Condition::Absent),
        (ConditionKind::Absent(false), Condition::Exists),
        (ConditionKind::Version(7), Condition::Version(7)),
    ] {
        let operation = proto::Operation { kind: Some(OperationKind::Delete(delete(kind))) };
        let checked = write(&limits(), request(vec![operation])).expect("good");
        let Some(Operation::Delete { condition, .. }) = checked.command.operations.first() else {
            panic!("a delete")
        };
        assert_eq!(*condition, expected);
    }
}

#[test]
fn a_session_without_sixteen_bytes_or_with_a_wrong_sequence_is_refused() {
    let good = proto::Session {
        client_id: vec![1; 16].into(),
        sequence: 2,
        lowest_pending: 1,
        base_index: 0,
    };
    let with =
        |session| proto::WriteRequest { session: Some(session), ..request(vec![put("k", "v")]) };
    assert!(write(&limits(), with(good.clone())).is_ok());
    for bad in [
        proto::Session { client_id: vec![1; 15].into(), ..good.clone() },
        proto::Session { sequence: 0, lowest_pending: 0, ..good.clone() },
        proto::Session { lowest_pending: 3, ..good },
    ] {
        assert_eq!(write(&limits(), with(bad)).expect_err("refused").code(), Code::InvalidArgument);
    }
}

/// Low limits, so that short inputs reach them.
fn low_limits() -> Limits {
    Limits {
        max_key_bytes: 8,
        max_value_bytes: 16,
        max_batch_operations: 4,
        max_request_bytes: 40,
        ..limits()
    }
}

/// The story: a bit of a value changed between the client and the node's own hash, and every member
/// stored the value as good.
#[test]
fn a_value_that_its_clients_checksum_does_not_fit_is_refused_by_name() {
    let sent = |value: &[u8], value_crc32| {
        let put = proto::Put {
            key: "k".into(),
            value: value.to_vec().into(),
            condition: None,
            value_crc32,
        };
        let kind = Some(OperationKind::Put(put));
        write(&limits(), request(vec![proto::Operation { kind }]))
    };
    let value = [7; 500];
    let crc = Some(crc32fast::hash(&value));
    assert!(sent(&value, crc).is_ok() && sent(&value, None).is_ok());
    for bit in [0, 999, 3999] {
        let mut value = value;
        value[bit / 8] ^= 1 << (bit % 8);
        let refused = sent(&value, crc).unwrap_err();
        let detail = proto::ErrorDetail::of(&refused).unwrap();
        assert_eq!((refused.code(), detail.reason()), (Code::DataLoss, Reason::ValueDamaged));
        assert!(refused.message().contains("key `k`"), "{refused}");
    }
}

/// A request of every kind of operation and condition.
fn example() -> proto::WriteRequest {
    let condition = |kind| Some(proto::Condition { kind: Some(kind) });
    let put = proto::Put {
        key: "a".into(),
        value: "value".into(),
        condition: condition(ConditionKind::Version(3)),
        value_crc32: Some(crc32fast::hash(b"value")),
    };
    let absent = condition(ConditionKind::Absent(true));
    let exists = condition(ConditionKind::Absent(false));
    let kinds = [
        OperationKind::Put(put),
        OperationKind::Delete(proto::Delete { key: "b".into(), condition: exists }),
        OperationKind::Check(proto::Check { key: "c".into(), condition: absent }),
    ];
    let client_id = vec![1; 16].into();
    let session = proto::Session { client_id, sequence: 2, lowest_pending: 1, base_index: 0 };
    let operations = kinds.map(|kind| proto::Operation { kind: Some(kind) });
    proto::WriteRequest { session: Some(session), operations: operations.into(), synced: true }
}

/// The request that the command was made of. A condition without content is none.
fn restored(command: &Command) -> proto::WriteRequest {
    let condition = |condition| {
        let kind = match condition {
            Condition::None => return None,
            Condition::Absent => ConditionKind::Absent(true),
            Condition::Exists => ConditionKind::Absent(false),
            Condition::Version(version) => ConditionKind::Version(version),
        };
        Some(proto::Condition { kind: Some(kind) })
    };
    let operations = command.operations.iter().cloned().map(|operation| {
        let kind = match operation {
            Operation::Put { key, value, condition: held } => {
                let (value, condition) = (value.into_parts().0, condition(held));
                OperationKind::Put(proto::Put { key, value, condition, value_crc32: None })
            }
            Operation::Delete { key, condition: held } => {
                OperationKind::Delete(proto::Delete { key, condition: condition(held) })
            }
            Operation::Check { key, condition: held } => {
                OperationKind::Check(proto::Check { key, condition: condition(held) })
            }
            Operation::DeleteRange { start, end, most, whole } => {
                let range = Some(proto::Range { start, end });
                OperationKind::DeleteRange(proto::DeleteRange { range, most, whole })
            }
        };
        proto::Operation { kind: Some(kind) }
    });
    let session = command.session.map(|session| proto::Session {
        client_id: session.client_id.to_be_bytes().to_vec().into(),
        sequence: session.sequence,
        lowest_pending: session.lowest_pending,
        base_index: session.base_index,
    });
    proto::WriteRequest { session, operations: operations.collect(), synced: command.synced }
}

#[test]
fn any_bytes_are_a_write_within_the_limits_or_are_refused() {
    let many = request((0..5).map(|_| put("k", "v")).collect());
    cairn_fuzz::target!(
        "write" => example().encode_to_vec(),
        "many" => many.encode_to_vec(),
        "long_key" => request(vec![put("123456789", "v")]).encode_to_vec(),
        "long_value" => request(vec![put("k", vec![7; 17])]).encode_to_vec(),
        "long" => request(vec![put("a", vec![7; 14]); 3]).encode_to_vec(),
        "range" => request(vec![check("c"), range("a", "b", 0)]).encode_to_vec(),
    )
    .for_each(|bytes| {
        let limits = low_limits();
        let most = 256 * bytes.len() + 4096;
        let decode = || proto::WriteRequest::decode(bytes);
        let Ok(request) = cairn_fuzz::within(most, decode) else { return };
        let meant = request.clone();
        let checked = match cairn_fuzz::within(most, || write(&limits, request)) {
            Ok(checked) => checked,
            Err(status) => {
                return assert!(matches!(status.code(), Code::InvalidArgument | Code::DataLoss));
            }
        };
        let command = checked.command;
        assert!((1..=limits.max_batch_operations).contains(&command.operations.len()));
        assert!(checked.bytes <= limits.max_request_bytes);
        assert_eq!(checked.bytes as u64, command.bytes());
        for operation in &command.operations {
            let lengths = match operation.end() {
                Some(end) => {
                    assert!(end.len() <= KEY_BYTES_MAX as usize + 1);
                    0..=KEY_BYTES_MAX as usize + 1
                }
                None => 1..=KEY_BYTES_MAX as usize,
            };
            assert!(lengths.contains(&operation.key().len()));
            if let Some(value) = operation.value() {
                assert!(operation.key().len() <= limits.max_key_bytes);
                assert!(value.bytes().len() <= limits.max_value_bytes);
            }
        }
        if let Some(session) = command.session {
            assert!(session.sequence > 0 && session.lowest_pending <= session.sequence);
        }
        // The command says what the request said. That raft keeps what a command says is a
        // property of its own codec.
        let mut meant = meant;
        for operation in &mut meant.operations {
            if let Some(OperationKind::Put(put)) = &mut operation.kind {
                let sent = put.value_crc32.take();
                assert!(sent.is_none_or(|sent| sent == crc32fast::hash(&put.value)));
            }
            let condition = match operation.kind.as_mut().expect("checked") {
                OperationKind::DeleteRange(delete) => {
                    if delete.most == 0 {
                        delete.most = RANGE_KEYS_MAX;
                    }
                    continue;
                }
                OperationKind::Put(proto::Put { condition, .. })
                | OperationKind::Delete(proto::Delete { condition, .. })
                | OperationKind::Check(proto::Check { condition, .. }) => condition,
            };
            *condition = condition.take().filter(|condition| condition.kind.is_some());
        }
        assert_eq!(restored(&command), meant);
    });
}
