//! Entries: golden bytes, round trips, hostile bytes.

use super::*;
use crate::core::ids::{MemberAddress, NodeId};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A key that the engine can keep.
fn key() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 1..40).prop_map(Bytes::from)
}

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        Just(Condition::None),
        Just(Condition::Absent),
        Just(Condition::Exists),
        any::<u64>().prop_map(Condition::Version),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (key(), bytes(100), condition()).prop_map(|(key, value, condition)| Operation::Put {
            key,
            value: value.into(),
            condition
        }),
        (key(), condition()).prop_map(|(key, condition)| Operation::Delete { key, condition }),
        (key(), condition()).prop_map(|(key, condition)| Operation::Check { key, condition }),
    ]
}

fn session() -> impl Strategy<Value = Session> {
    (any::<u128>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(client_id, sequence, lowest_pending, base_index)| Session {
            client_id,
            sequence,
            lowest_pending,
            base_index,
        },
    )
}

/// A range with checks before and behind it: what may be beside it.
fn range_among_checks() -> impl Strategy<Value = Vec<Operation>> {
    let checks = || {
        let check =
            (key(), condition()).prop_map(|(key, condition)| Operation::Check { key, condition });
        vec(check, 0..3)
    };
    let range = (bytes(40), bytes(40), 1..=RANGE_KEYS_MAX, any::<bool>())
        .prop_map(|(start, end, most, whole)| Operation::DeleteRange { start, end, most, whole });
    (checks(), range, checks()).prop_map(|(before, range, behind)| {
        before.into_iter().chain([range]).chain(behind).collect()
    })
}

pub(crate) fn command() -> impl Strategy<Value = Command> {
    let operations = prop_oneof![vec(operation(), 0..8), range_among_checks()];
    (option::of(session()), operations).prop_map(|(session, operations)| Command {
        synced: false,
        session,
        operations,
    })
}

/// Rebuilds the command that was encoded from what is stored.
fn restored(stored: StoredCommand, proposal: &Proposal) -> Command {
    let mut values = proposal.values.iter().cloned();
    let operations = stored.operations.into_iter().map(|operation| {
        let StoredOperation { kind, key, condition } = operation;
        match kind {
            StoredKind::Put => Operation::Put { key, value: values.next().unwrap(), condition },
            StoredKind::Delete => Operation::Delete { key, condition },
            StoredKind::Check => Operation::Check { key, condition },
            StoredKind::DeleteRange(range) => {
                let StoredRange { end, most, whole } = *range;
                Operation::DeleteRange { start: key, end, most, whole }
            }
        }
    });
    Command {
        synced: is_synced(&proposal.meta),
        operations: operations.collect(),
        session: stored.session.map(|stored| stored.session),
    }
}

#[test]
fn a_command_has_these_bytes() {
    let command = Command {
        synced: false,
        session: Some(Session {
            client_id: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            sequence: 300,
            lowest_pending: 1,
            base_index: 2,
        }),
        operations: vec![
            Operation::Put {
                key: "k".into(),
                value: "v".into(),
                condition: Condition::Version(128),
            },
            Operation::Delete { key: "kk".into(), condition: Condition::Exists },
            Operation::Check { key: "".into(), condition: Condition::Absent },
        ],
    };
    let proposal = encode_command(command, 10);
    let mut expected = vec![1, 1];
    expected.extend(1..=16u8);
    expected.extend([0xac, 0x02, 1, 2, 10]);
    expected.push(3);
    expected.extend([3 << 2, 1, b'k', 0x80, 0x01]);
    expected.extend([1 | (2 << 2), 2, b'k', b'k']);
    expected.extend([2 | (1 << 2), 0]);
    assert_eq!(proposal.meta, expected);
    assert_eq!(proposal.values, ["v".into()]);
}

fn range(start: &'static str, end: &'static str) -> Operation {
    Operation::DeleteRange { start: start.into(), end: end.into(), most: 300, whole: true }
}

fn alone(operations: Vec<Operation>) -> Proposal {
    encode_command(Command { synced: false, session: None, operations }, 10)
}

/// A build of version 2 knows the kinds 0 to 2 of the lowest two bits, and refuses an entry with another
/// one.
#[test]
fn the_deletion_of_a_range_has_these_bytes_and_a_kind_that_the_build_before_it_refuses() {
    let proposal = alone(vec![range("a", "bc")]);
    let expected = [&[1, 0, 1][..], &[3, 1, 1, b'a', 2, b'b', b'c', 0xac, 0x02, 1]].concat();
    assert_eq!(proposal.meta, expected);
    assert!(proposal.values.is_empty());
    let all = alone(vec![range("", "")]);
    assert_eq!(all.meta[3..], [3, 1, 0, 0, 0xac, 0x02, 1]);
    for proposal in [proposal, all] {
        assert_eq!(proposal.meta[3] & 3, 3);
        assert!(validate(proposal.meta, proposal.values).is_ok());
    }
}

#[test]
fn a_range_of_too_many_keys_or_with_a_condition_is_refused() {
    let with = |at: usize, byte: u8| {
        let mut meta = alone(vec![range("a", "b")]).meta.to_vec();
        meta[at] = byte;
        validate(meta.into(), vec![]).map(drop)
    };
    assert_eq!(with(3, 3), Ok(()), "the byte that is there");
    for tag in [3 | (1 << 2), 3 | (2 << 2)] {
        assert_eq!(with(3, tag), Err(Malformed("a range with a condition")));
    }
    for name in [0, 2, 3, 4, 5, 6, 7, 255] {
        assert_eq!(with(4, name), Err(Malformed("an unknown operation")));
    }
    assert_eq!(with(11, 2), Err(Malformed("neither true nor false")));
    for most in [0, RANGE_KEYS_MAX + 1, u32::MAX] {
        let range =
            Operation::DeleteRange { start: "a".into(), end: "b".into(), most, whole: false };
        let refused = validate(alone(vec![range]).meta, vec![]).map(drop);
        assert_eq!(refused, Err(Malformed("a range of no keys or of too many")), "{most}");
    }
}

#[test]
fn a_range_is_alone_or_beside_checks() {
    let check = || Operation::Check { key: "k".into(), condition: Condition::Exists };
    let delete = || Operation::Delete { key: "k".into(), condition: Condition::None };
    let judged = |operations| validate(alone(operations).meta, vec![]).map(drop);
    assert_eq!(judged(vec![check(), range("a", "b"), check()]), Ok(()));
    for operations in [vec![range("a", "b"), range("c", "d")], vec![delete(), range("a", "b")]] {
        assert_eq!(judged(operations), Err(Malformed("a range beside other changes")));
    }
}

#[test]
fn a_blank_entry_is_one_zero() {
    assert_eq!(encode_payload(Payload::Blank), (Bytes::from_static(&[0]), vec![]));
    assert_eq!(decode_payload(Bytes::from_static(&[0]), vec![]).unwrap(), Payload::Blank);
    assert!(decode_payload(Bytes::from_static(&[0]), vec!["".into()]).is_err());
}

#[test]
fn a_membership_is_read_back_as_it_was_written() {
    let nodes: BTreeMap<NodeId, MemberAddress> = (1..=4)
        .map(|slot| {
            let address =
                MemberAddress { peer: format!("p{slot}:1"), client: format!("c{slot}:2") };
            (NodeId::new(slot, 77), address)
        })
        .collect();
    let voters =
        |slots: &[u16]| slots.iter().map(|slot| NodeId::new(*slot, 77)).collect::<BTreeSet<_>>();
    let membership = Membership::new(vec![voters(&[1, 2, 3]), voters(&[2, 3, 4])], nodes).unwrap();
    let (meta, values) = encode_payload(Payload::Membership(membership.clone()));
    assert_eq!(validate(meta, values).unwrap(), Payload::Membership(membership));
}

#[test]
fn an_empty_membership_is_read_back_as_it_was_written() {
    let (meta, values) = encode_payload(Payload::Membership(Membership::default()));
    assert_eq!(validate(meta, values).unwrap(), Payload::Membership(Membership::default()));
}

#[test]
fn an_entry_with_a_key_or_with_values_that_no_engine_can_keep_is_refused() {
    let entry = |keys: Vec<Vec<u8>>| {
        let put = |key: Vec<u8>| Operation::Put {
            key: key.into(),
            value: Bytes::new().into(),
            condition: Condition::None,
        };
        let command = Command {
            synced: false,
            session: None,
            operations: keys.into_iter().map(put).collect(),
        };
        let Proposal { meta, values } = encode_command(command, 100);
        validate(meta, values).map(drop)
    };
    assert_eq!(entry(vec![vec![1; 65_535]]), Ok(()));
    assert_eq!(entry(vec![vec![1; 65_536]]), Err(Malformed("a key that is empty or too long")));
    assert_eq!(entry(vec![vec![]]), Err(Malformed("a key that is empty or too long")));
    assert_eq!(entry(vec![vec![1]; 65_535]), Ok(()));
    assert_eq!(
        entry(vec![vec![1]; 65_536]),
        Err(Malformed("not as many values as puts, or too many"))
    );
}

#[test]
fn a_voter_without_an_address_is_refused() {
    let message = proto::Membership {
        configurations: vec![proto::VoterSet { node_ids: vec![1] }],
        members: vec![],
    };
    let mut meta = vec![MEMBERSHIP];
    meta.extend(message.encode_to_vec());
    assert!(validate(meta.into(), vec![]).is_err());
}

/// A command of every kind of operation and condition.
fn example() -> Command {
    let session = Session { client_id: 7, sequence: 300, lowest_pending: 1, base_index: 2 };
    let put = |key: &'static str, condition| Operation::Put {
        key: key.into(),
        value: "value".into(),
        condition,
    };
    let operations = vec![
        put("a", Condition::None),
        put("bb", Condition::Version(128)),
        Operation::Delete { key: "c".into(), condition: Condition::Exists },
        Operation::Check { key: "d".into(), condition: Condition::Absent },
    ];
    Command { synced: true, session: Some(session), operations }
}

fn boot(release: &str) -> Boot {
    Boot { epoch: BootEpoch { number: 3, nonce: 9 }, version: 1, release: release.into() }
}

/// A number as the records have it.
fn number(number: u8) -> [u8; 8] {
    u64::from(number).to_le_bytes()
}

#[test]
fn the_records_of_a_boot_and_of_the_clusters_version_have_these_bytes() {
    let member = NodeId::from_u64(7);
    let numbers = [number(7), number(3), number(9), number(1)].concat();
    let written = [&[4], &numbers[..]].concat();
    assert_eq!(encode_boot(member, &boot("")).meta, written);
    assert_eq!(LogRecord::of_members(&written), Ok(Some(LogRecord::Boot(member, boot("")))));
    assert_eq!(encode_version(2).meta, [&[6], &number(2)[..]].concat());
    assert_eq!(LogRecord::decode(&encode_version(2).meta), Ok(LogRecord::Version(2)));
    assert!(is_synced(&encode_version(2).meta) && !is_synced(&written));
}

#[test]
fn a_boot_of_a_release_before_versions_has_version_0() {
    let written = [&[4], &[number(7), number(3), number(9)].concat()[..]].concat();
    let read = LogRecord::of_members(&written).unwrap();
    let boot = Boot { version: 0, ..boot("") };
    assert_eq!(read, Some(LogRecord::Boot(NodeId::from_u64(7), boot)));
    assert!(validate(written.into(), vec![]).is_ok());
}

#[test]
fn a_logged_release_is_read_by_a_build_that_knows_it_and_refused_by_one_before() {
    let written = encode_boot(NodeId::from_u64(7), &boot("1.2.3")).meta;
    match Feature::Releases.is_known() {
        true => {
            let read = LogRecord::Boot(NodeId::from_u64(7), boot("1.2.3"));
            assert_eq!(LogRecord::decode(&written), Ok(read));
        }
        false => {
            let refusal = validate(written, vec![]).unwrap_err().to_string();
            let named = format!(
                "version {} does not know this kind of entry",
                crate::core::version::VERSION
            );
            assert!(refusal.contains(&named), "{refusal}");
        }
    }
    let long = encode_boot(NodeId::from_u64(7), &boot(&"x".repeat(RELEASE_BYTES_MAX + 1))).meta;
    assert!(validate(long, vec![]).is_err());
}

#[test]
fn an_entry_of_a_later_release_is_refused_with_the_version_of_this_one() {
    for meta in [&[7][..], &[7, 1, 2, 3], &[255; 40], &[6, 1]] {
        let refusal = validate(Bytes::copy_from_slice(meta), vec![]).unwrap_err().to_string();
        let named = format!("version {} does not know", crate::core::version::VERSION);
        assert!(
            refusal.contains(&named) && refusal.contains("a later release wrote it"),
            "{refusal}"
        );
    }
}

fn membership() -> Membership {
    let id = NodeId::new(1, 7);
    let address = MemberAddress { peer: "p:1".into(), client: "c:2".into() };
    Membership::new(vec![[id].into()], BTreeMap::from([(id, address)])).unwrap()
}

/// The input is an entry's meta. The values are as many as the command puts.
#[test]
fn any_bytes_decode_to_an_entry_or_to_an_error() {
    let plain = Command { session: None, synced: false, ..example() };
    let checked = Operation::Check { key: "k".into(), condition: Condition::Version(7) };
    cairn_fuzz::target!(
        "blank" => [BLANK],
        "command" => encode_command(example(), 10).meta,
        "plain" => encode_command(plain, 10).meta,
        "range" => alone(vec![checked, range("a", "b")]).meta,
        "membership" => encode_membership(&membership()),
        "unsafe_recovery" => encode_unsafe_recovery(NodeId::new(1, 7)).meta,
        "epoch" => encode_boot(NodeId::new(1, 7), &boot("")).meta,
        "epoch_without_version" => encode_boot(NodeId::new(1, 7), &boot("")).meta.slice(..25),
        "release" => encode_boot(NodeId::new(1, 7), &boot("1.2.3")).meta,
        "version" => encode_version(2).meta,
    )
    .for_each(|bytes| {
        let meta = Bytes::copy_from_slice(bytes);
        let most = 128 * meta.len() + 4096;
        let stored = cairn_fuzz::within(most, || decode_command(&meta));
        let puts = |stored: &StoredCommand| {
            stored.operations.iter().filter(|operation| operation.kind == StoredKind::Put).count()
        };
        let values = vec![cairn_engine::Value::from("v"); stored.as_ref().map_or(0, puts)];
        let one_more = [&values[..], &[Bytes::new().into()]].concat();
        assert!(validate(meta.clone(), one_more).is_err());
        let payload = cairn_fuzz::within(most, || validate(meta.clone(), values.clone()));
        let Ok(payload) = payload else { return };
        let is_membership = matches!(payload, Payload::Membership(_));
        let (again, values) = encode_payload(payload.clone());
        // Protobuf has more than one encoding of a message.
        assert!(is_membership || again == meta);
        assert_eq!(validate(again, values.clone()), Ok(payload));
        if let Ok(stored) = stored {
            let bound = stored.session.map_or(0, |stored| stored.max_sessions as usize);
            let proposal = Proposal { meta, values };
            assert_eq!(encode_command(restored(stored, &proposal), bound).meta, proposal.meta);
        }
    });
}

proptest! {
    #[test]
    fn a_command_is_read_back_as_it_was_written(command in command(), bound: u16) {
        let proposal = encode_command(command.clone(), usize::from(bound));
        let payload = validate(proposal.meta.clone(), proposal.values.clone());
        prop_assert_eq!(payload, Ok(Payload::Normal(proposal.clone())));
        let stored = decode_command(&proposal.meta).unwrap();
        if let Some(session) = &stored.session {
            prop_assert_eq!(session.max_sessions, u64::from(bound));
        }
        prop_assert_eq!(restored(stored, &proposal), command);
    }

    #[test]
    fn a_command_cut_short_is_refused(command in command(), cut in 1usize..64) {
        let proposal = encode_command(command, 1);
        let length = proposal.meta.len().saturating_sub(cut);
        prop_assert!(validate(proposal.meta.slice(..length), proposal.values).is_err());
    }

    #[test]
    fn a_command_with_another_number_of_values_is_refused(command in command()) {
        let mut proposal = encode_command(command, 1);
        proposal.values.push(Bytes::new().into());
        prop_assert!(validate(proposal.meta, proposal.values).is_err());
    }
}
