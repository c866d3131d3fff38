//! Conditions, batches and retries, against a key space of a few lines.

use super::*;
use crate::core::boot::Boot;
use crate::core::codec;
use crate::core::command::{Command, Condition, Operation, Session};
use crate::core::ids::MemberAddress;
use crate::core::types::{Membership, Payload, Proposal, raft_log_id};
use crate::storage::history::changes_of;
use cairn_engine::BootEpoch;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What the engine would hold: key to version and value.
#[derive(Default)]
struct Model {
    keys: BTreeMap<Bytes, (Version, Bytes)>,
    image: Image,
    next: u64,
    /// What the history tells of each entry, and what the keys show of it.
    told: Vec<Vec<Told>>,
    shown: Vec<Vec<Told>>,
}

/// A key that changed, its new value, and the version that it had before.
type Told = (Bytes, Option<Bytes>, Option<Version>);

impl Keys for BTreeMap<Bytes, (Version, Bytes)> {
    fn version(&self, key: &[u8]) -> Option<Version> {
        self.get(key).map(|(version, _)| *version)
    }

    fn range(&self, start: &[u8], end: &[u8], most: usize) -> Vec<(Bytes, Version)> {
        let is_within = |key: &Bytes| &key[..] >= start && (end.is_empty() || &key[..] < end);
        let found = self.iter().filter(|(key, _)| is_within(key)).take(most);
        found.map(|(key, (version, _))| (key.clone(), *version)).collect()
    }
}

impl Model {
    fn entry(&mut self, command: Command) -> (LogId, Proposal) {
        let id = LogId { term: 1, index: self.next };
        self.next += 1;
        (id, codec::encode_command(command, 100))
    }

    /// Applies commands as one batch, or as several where a range begins one.
    fn apply(&mut self, commands: Vec<Command>) -> Vec<Answer> {
        let entries: Vec<_> = commands.into_iter().map(|command| self.entry(command)).collect();
        let (mut answers, mut rest) = (Vec::new(), &entries[..]);
        while !rest.is_empty() {
            let applied = self.apply_step(rest);
            rest = &rest[applied.len()..];
            answers.extend(applied);
        }
        answers
    }

    /// Applies the first of these entries as one batch, as many as fit into it.
    fn apply_step(&mut self, entries: &[(LogId, Proposal)]) -> Vec<Answer> {
        let mut batch = ApplyBatch::new(&self.keys, self.image.clone(), None, entries.len());
        let mut answers = Vec::new();
        for (id, proposal) in entries {
            let record = LogRecord::decode(&proposal.meta).unwrap();
            if batch.has_to_end_before(&record) {
                break;
            }
            answers.push(batch.apply(raft_log_id(*id), record));
        }
        let effects = batch.take_effects();
        assert_eq!(effects.len(), answers.len(), "each step has the effects of its entries");
        let (transitions, image) = batch.finish();
        self.image = image;
        for ((_, proposal), (_, effect)) in entries.iter().zip(&effects) {
            let Proposal { meta, values } = proposal;
            let lengths: Vec<u32> = values.iter().map(|value| value.bytes().len() as u32).collect();
            let changes = changes_of(meta, &lengths, effect).unwrap().into_iter();
            let told = changes.map(|change| {
                let value = change.value.map(|logged| values[logged.number].bytes().clone());
                (change.key, value, change.previous)
            });
            let mut told: Vec<Told> = told.collect();
            told.sort();
            self.told.push(told);
        }
        for (transition, (_, proposal)) in transitions.into_iter().zip(entries) {
            let before = self.keys.clone();
            for change in transition.changes {
                match change {
                    Change::Put { key, value } => {
                        let value = proposal.values[value].bytes().clone();
                        self.keys.insert(key, (transition.applied.index, value));
                    }
                    Change::Delete { key } => drop(self.keys.remove(&key)),
                }
            }
            let keys: BTreeSet<&Bytes> = before.keys().chain(self.keys.keys()).collect();
            let changed = keys.into_iter().filter(|key| before.get(*key) != self.keys.get(*key));
            let shown = changed.map(|key| {
                let value = self.keys.get(key).map(|(_, value)| value.clone());
                (key.clone(), value, before.get(key).map(|(version, _)| *version))
            });
            let shown: Vec<Told> = shown.collect();
            self.shown.push(shown);
        }
        answers
    }

    fn one(&mut self, operations: Vec<Operation>) -> Answer {
        self.apply(vec![Command { synced: false, session: None, operations }]).remove(0)
    }

    fn value(&self, key: &'static str) -> Option<&str> {
        self.keys.get(key.as_bytes()).map(|(_, value)| std::str::from_utf8(value).unwrap())
    }
}

fn put(key: &'static str, value: &'static str, condition: Condition) -> Operation {
    Operation::Put { key: key.into(), value: value.into(), condition }
}

fn delete(key: &'static str) -> Operation {
    Operation::Delete { key: key.into(), condition: Condition::None }
}

fn check(key: &'static str, condition: Condition) -> Operation {
    Operation::Check { key: key.into(), condition }
}

fn parts(answer: &Answer) -> (u64, bool, Vec<(bool, bool, u64)>) {
    let Answer::Outcome(WriteOutcome { log_id, applied, results }) = answer else {
        panic!("no outcome: {answer:?}");
    };
    (
        log_id.index,
        *applied,
        results.iter().map(|r| (r.condition_held, r.existed, r.version)).collect(),
    )
}

#[test]
fn a_put_has_its_entry_as_version() {
    let mut model = Model { next: 7, ..Model::default() };
    assert_eq!(
        parts(&model.one(vec![put("a", "1", Condition::None)])),
        (7, true, vec![(true, false, 0)])
    );
    assert_eq!(
        parts(&model.one(vec![put("a", "2", Condition::None)])),
        (8, true, vec![(true, true, 7)])
    );
    assert_eq!(model.value("a"), Some("2"));
}

#[test]
fn one_failed_condition_leaves_everything_as_it_was() {
    let mut model = Model::default();
    model.one(vec![put("a", "1", Condition::None)]);
    let answer = model.one(vec![
        put("b", "x", Condition::None),
        delete("a"),
        check("a", Condition::Version(99)),
    ]);
    assert_eq!(
        parts(&answer),
        (1, false, vec![(true, false, 0), (true, true, 0), (false, true, 0)])
    );
    assert_eq!((model.value("a"), model.value("b")), (Some("1"), None));
}

#[test]
fn operations_see_the_state_before_the_command() {
    let mut model = Model::default();
    let answer = model.one(vec![
        put("a", "1", Condition::Absent),
        put("a", "2", Condition::Absent),
        check("a", Condition::Absent),
    ]);
    assert_eq!(parts(&answer), (0, true, vec![(true, false, 0); 3]));
    assert_eq!(model.value("a"), Some("2"));
}

#[test]
fn the_last_change_of_a_key_wins() {
    let mut model = Model::default();
    model.one(vec![put("a", "1", Condition::None), delete("a")]);
    assert_eq!(model.value("a"), None);
    model.one(vec![delete("a"), put("a", "2", Condition::None)]);
    assert_eq!(model.value("a"), Some("2"));
}

#[test]
fn conditions_hold_as_they_say() {
    let mut model = Model::default();
    model.one(vec![put("a", "1", Condition::None)]);
    let held = |answer: Answer| parts(&answer).2.iter().map(|r| r.0).collect::<Vec<_>>();
    let conditions = [Condition::None, Condition::Absent, Condition::Exists, Condition::Version(0)];
    let of = |key| conditions.iter().map(|condition| check(key, *condition)).collect::<Vec<_>>();
    assert_eq!(held(model.one(of("a"))), [true, false, true, true]);
    assert_eq!(held(model.one(of("b"))), [true, true, false, false]);
}

#[test]
fn an_entry_sees_the_entries_before_it_in_its_batch() {
    let mut model = Model::default();
    let command = |operation| Command { synced: false, session: None, operations: vec![operation] };
    let answers = model.apply(vec![
        command(put("a", "1", Condition::Absent)),
        command(put("a", "2", Condition::Version(0))),
        command(delete("a")),
        command(put("a", "3", Condition::Absent)),
        command(put("a", "4", Condition::Absent)),
    ]);
    let applied: Vec<bool> = answers.iter().map(|answer| parts(answer).1).collect();
    assert_eq!(applied, [true, true, true, true, false]);
    assert_eq!(model.value("a"), Some("3"));
}

#[test]
fn a_retried_command_changes_nothing_and_has_the_first_answer() {
    let mut model = Model { next: 1, ..Model::default() };
    let session = Session { client_id: 1, sequence: 1, lowest_pending: 1, base_index: 0 };
    let command = Command {
        synced: false,
        session: Some(session),
        operations: vec![put("a", "mine", Condition::Absent)],
    };
    let first = model.apply(vec![command.clone()]).remove(0);
    model.one(vec![put("a", "theirs", Condition::None)]);
    assert_eq!(model.apply(vec![command]).remove(0), first);
    assert_eq!(parts(&first), (1, true, vec![(true, false, 0)]));
    assert_eq!(model.value("a"), Some("theirs"));
}

#[test]
fn a_repeat_in_the_same_batch_changes_nothing() {
    let mut model = Model { next: 1, ..Model::default() };
    let session = Session { client_id: 1, sequence: 1, lowest_pending: 1, base_index: 0 };
    let command = Command {
        synced: false,
        session: Some(session),
        operations: vec![put("a", "1", Condition::None)],
    };
    let answers = model.apply(vec![command.clone(), command]);
    assert_eq!(answers[0], answers[1]);
    assert_eq!(model.keys[b"a".as_slice()].0, 1);
}

#[test]
fn a_command_that_did_not_apply_is_not_applied_by_its_repeat() {
    let mut model = Model { next: 1, ..Model::default() };
    model.one(vec![put("a", "1", Condition::None)]);
    let session = Session { client_id: 1, sequence: 1, lowest_pending: 1, base_index: 0 };
    let command = Command {
        synced: false,
        session: Some(session),
        operations: vec![put("a", "2", Condition::Absent)],
    };
    let first = model.apply(vec![command.clone()]).remove(0);
    model.one(vec![delete("a")]);
    assert_eq!(model.apply(vec![command]).remove(0), first);
    assert_eq!(model.value("a"), None);
}

/// The members' own records are entries, too: a history has one effect for each.
#[test]
fn what_the_members_log_changes_no_key() {
    let keys = BTreeMap::<Bytes, (Version, Bytes)>::new();
    let mut batch = ApplyBatch::new(&keys, Image::default(), None, 4);
    for (index, payload) in [(1, Payload::Blank), (2, members(&[1, 2])), (3, version(2))] {
        let id = raft_log_id(LogId { term: 1, index });
        batch.apply(id, LogRecord::of(payload).unwrap());
    }
    let id = |index| (LogId { term: 1, index }, Effect::default());
    assert_eq!(batch.take_effects(), [id(1), id(2), id(3)]);
    assert!(batch.take_effects().is_empty());
}

fn range(start: &'static str, end: &'static str, most: u32, whole: bool) -> Operation {
    Operation::DeleteRange { start: start.into(), end: end.into(), most, whole }
}

/// Of a range: whether it held, how many keys it deleted, and whether more are left.
fn deleted(answer: &Answer) -> (bool, u32, bool) {
    let Answer::Outcome(WriteOutcome { applied, results, .. }) = answer else {
        panic!("no outcome: {answer:?}");
    };
    let of_range = results.last().unwrap();
    (*applied, of_range.deleted, of_range.more)
}

/// A model with these keys.
fn with(keys: &[&'static str]) -> Model {
    let mut model = Model { next: 1, ..Model::default() };
    for &key in keys {
        model.one(vec![put(key, "v", Condition::None)]);
    }
    model
}

fn keys(model: &Model) -> Vec<&str> {
    model.keys.keys().map(|key| std::str::from_utf8(key).unwrap()).collect()
}

#[test]
fn a_range_is_deleted_from_its_start_on_and_before_its_end() {
    let mut model = with(&["a", "b", "ba", "c", "d"]);
    assert_eq!(deleted(&model.one(vec![range("b", "c", 10, false)])), (true, 2, false));
    assert_eq!(keys(&model), ["a", "c", "d"]);
    assert_eq!(deleted(&model.one(vec![range("c", "", 10, false)])), (true, 2, false));
    assert_eq!(deleted(&model.one(vec![range("x", "", 10, true)])), (true, 0, false));
    assert_eq!(deleted(&model.one(vec![range("", "", 1, true)])), (true, 1, false));
    assert_eq!(keys(&model), [""; 0]);
}

#[test]
fn a_range_of_more_keys_than_may_be_deleted_is_deleted_from_its_first_on_or_not_at_all() {
    let mut model = with(&["a", "b", "c", "d"]);
    assert_eq!(deleted(&model.one(vec![range("a", "d", 2, true)])), (false, 0, true));
    assert_eq!(keys(&model).len(), 4);
    assert_eq!(deleted(&model.one(vec![range("a", "d", 2, false)])), (true, 2, true));
    assert_eq!(keys(&model), ["c", "d"]);
    assert_eq!(deleted(&model.one(vec![range("a", "d", 2, true)])), (true, 1, false));
    assert_eq!(keys(&model), ["d"]);
}

#[test]
fn a_range_is_deleted_only_if_the_conditions_beside_it_hold() {
    let mut model = with(&["a", "b"]);
    let refused = model.one(vec![check("a", Condition::Absent), range("a", "", 10, false)]);
    assert_eq!(deleted(&refused), (false, 0, false));
    assert_eq!(keys(&model), ["a", "b"]);
    let done = model.one(vec![check("a", Condition::Exists), range("a", "", 10, false)]);
    assert_eq!(deleted(&done), (true, 2, false));
    assert_eq!(keys(&model), [""; 0]);
}

/// Entries that are applied together reach the engine at once, and a range is read from the engine: a key
/// that the entry before has put would stay, and one that it has deleted would be counted.
#[test]
fn a_range_sees_what_entries_before_it_in_its_batch_did() {
    let mut model = with(&["a", "b"]);
    let command = |operation| Command { synced: false, session: None, operations: vec![operation] };
    let answers = model.apply(vec![
        command(put("c", "v", Condition::None)),
        command(delete("a")),
        command(range("a", "z", 10, false)),
        command(range("a", "z", 10, false)),
        command(put("a", "new", Condition::Absent)),
        command(put("b", "new", Condition::Exists)),
    ]);
    assert_eq!(deleted(&answers[2]), (true, 2, false));
    assert_eq!(deleted(&answers[3]), (true, 0, false));
    assert!(parts(&answers[4]).1 && !parts(&answers[5]).1);
    assert_eq!(keys(&model), ["a"]);
}

#[test]
fn a_retried_range_deletes_nothing_and_has_the_first_answer() {
    let mut model = with(&["a", "b"]);
    let session = Session { client_id: 1, sequence: 1, lowest_pending: 1, base_index: 0 };
    let operations = vec![range("a", "z", 1, false)];
    let command = Command { synced: false, session: Some(session), operations };
    let first = model.apply(vec![command.clone()]).remove(0);
    model.one(vec![put("a", "theirs", Condition::None)]);
    assert_eq!(model.apply(vec![command]).remove(0), first);
    assert_eq!(deleted(&first), (true, 1, true));
    assert_eq!(keys(&model), ["a", "b"]);
    let image = cairn_engine::MachineImage::encode(&model.image);
    assert_eq!(Image::decode(&image), Ok(model.image), "with what the range deleted");
}

#[test]
fn an_expired_session_changes_nothing() {
    let mut model = Model { next: 1, ..Model::default() };
    let session = Session { client_id: 1, sequence: 1, lowest_pending: 2, base_index: 0 };
    let command = Command {
        synced: false,
        session: Some(session),
        operations: vec![put("a", "1", Condition::None)],
    };
    assert_eq!(model.apply(vec![command]), [Answer::SessionExpired]);
    assert_eq!(model.value("a"), None);
}

/// The image after these entries, which are no commands.
fn after(mut image: Image, payloads: impl IntoIterator<Item = Payload>) -> Image {
    let keys = BTreeMap::<Bytes, (Version, Bytes)>::new();
    for payload in payloads {
        let mut batch = ApplyBatch::new(&keys, image, None, 1);
        let id = raft_log_id(LogId { term: 1, index: 1 });
        batch.apply(id, LogRecord::of(payload).unwrap());
        image = batch.finish().1;
    }
    image
}

fn member(slot: u16) -> NodeId {
    NodeId::new(slot, u64::from(slot))
}

/// The last one is a learner.
fn members(slots: &[u16]) -> Payload {
    let nodes = slots.iter().map(|slot| (member(*slot), MemberAddress::default()));
    let voters = slots.iter().rev().skip(1).map(|slot| member(*slot)).collect();
    Payload::Membership(Membership::new(vec![voters], nodes.collect::<BTreeMap<_, _>>()).unwrap())
}

fn boots(slot: u16, number: u64, version: u32) -> Payload {
    let boot =
        Boot { epoch: BootEpoch { number, nonce: number }, version, release: Arc::default() };
    Payload::Normal(codec::encode_boot(member(slot), &boot))
}

fn version(version: u32) -> Payload {
    Payload::Normal(codec::encode_version(version))
}

#[test]
fn the_clusters_version_rises_to_what_every_member_speaks_by_the_log_and_never_falls() {
    let image = after(Image::default(), [members(&[1, 2, 3]), boots(1, 1, 2), boots(2, 1, 2)]);
    let image = after(image, [version(2)]);
    assert_eq!(image.version, 0, "nothing is logged of the learner");
    let image = after(image, [boots(3, 1, 1), version(2)]);
    assert_eq!(image.version, 0, "the learner is behind");
    let risen = after(image, [boots(3, 2, 3), version(2)]);
    assert_eq!(risen.version, 2);
    let image = after(risen.clone(), [version(1), version(3), boots(1, 2, 1)]);
    assert_eq!(image.version, 2);
    assert_eq!(Image::decode(&cairn_engine::MachineImage::encode(&image)), Ok(image));
    // A member whose version is not logged joins in between.
    let image = after(risen, [boots(1, 3, 3), boots(2, 3, 3), members(&[1, 2, 3, 4]), version(3)]);
    assert_eq!(image.version, 2);
}

/// The image after these entries, so many in a batch.
fn after_entries(mut image: Image, entries: &[(LogId, Payload)], size: usize) -> Image {
    let keys = BTreeMap::<Bytes, (Version, Bytes)>::new();
    let mut before = None;
    for entries in entries.chunks(size) {
        let mut batch = ApplyBatch::new(&keys, image, before, entries.len());
        for (id, payload) in entries {
            batch.apply(raft_log_id(*id), LogRecord::of(payload.clone()).unwrap());
            before = Some(*id);
        }
        image = batch.finish().1;
    }
    image
}

/// The story: the leader of an unsafe recovery logged a boot before the record, and another unsafe recovery
/// followed. Nothing in the state showed a missing member that its last entry had been discarded.
#[test]
fn the_state_names_where_the_term_of_each_unsafe_recovery_began_from_version_2_on() {
    let id = |term, index| LogId { term, index };
    let recorded = || Payload::Normal(codec::encode_unsafe_recovery(member(1)));
    let entries = [
        (id(1, 1), Payload::Blank),
        (id(2, 2), Payload::Blank),
        (id(5, 3), Payload::Blank),
        (id(5, 4), boots(1, 1, 2)),
        (id(5, 5), recorded()),
        // Another member that used the grant asked for it.
        (id(5, 6), recorded()),
        (id(6, 7), Payload::Blank),
        (id(8, 8), Payload::Blank),
        (id(8, 9), recorded()),
    ];
    let of_version = |version| Image { version, ..Image::default() };
    let image = after_entries(of_version(2), &entries, 1);
    assert_eq!(image.unsafe_recoveries.count, 2);
    let known: Vec<LogId> = image.known_entries().collect();
    for named in [id(2, 2), id(5, 3), id(5, 5), id(6, 7), id(8, 8), id(8, 9)] {
        assert!(known.contains(&named), "{named} of {known:?}");
    }
    for size in 2..=entries.len() {
        assert_eq!(after_entries(of_version(2), &entries, size), image, "batches of {size}");
    }
    let image = after_entries(of_version(1), &entries, 1);
    assert_eq!(image.recovery_records, Default::default(), "what a member of version 1 has");
    assert_eq!(image.known_entries().collect::<Vec<_>>(), [id(8, 8), id(8, 9)]);
}

fn any_command() -> impl Strategy<Value = Command> {
    let key = || prop_oneof![Just("a"), Just("b"), Just("c")];
    let condition = || {
        prop_oneof![
            Just(Condition::None),
            Just(Condition::Absent),
            Just(Condition::Exists),
            (0u64..20).prop_map(Condition::Version),
        ]
    };
    let operation = (0..3, key(), condition()).prop_map(|(kind, key, condition)| match kind {
        0 => put(key, "v", condition),
        1 => Operation::Delete { key: key.into(), condition },
        _ => check(key, condition),
    });
    let session = prop::option::of((0u128..2, 1u64..6).prop_map(|(client_id, sequence)| Session {
        client_id,
        sequence,
        lowest_pending: 1,
        base_index: 0,
    }));
    let bound = || prop_oneof![Just(""), Just("a"), Just("b"), Just("c")];
    let beside = (key(), condition()).prop_map(|(key, condition)| check(key, condition));
    let beside = proptest::collection::vec(beside, 0..2);
    let range = (beside, bound(), bound(), 1u32..4, any::<bool>()).prop_map(
        |(mut operations, start, end, most, whole)| {
            operations.push(range(start, end, most, whole));
            operations
        },
    );
    let operations = prop_oneof![4 => proptest::collection::vec(operation, 1..4), 1 => range];
    (session, operations).prop_map(|(session, operations)| Command {
        synced: false,
        session,
        operations,
    })
}

proptest! {
    /// Replicas cut entries into different batches; the state must be the same.
    #[test]
    fn batches_do_not_matter(commands in proptest::collection::vec(any_command(), 0..40), size in 1usize..10) {
        let begun = || Model { next: 1, ..Model::default() };
        let (mut single, mut batched) = (begun(), begun());
        let one_by_one: Vec<Answer> =
            commands.iter().flat_map(|command| single.apply(vec![command.clone()])).collect();
        let in_batches: Vec<Answer> =
            commands.chunks(size).flat_map(|commands| batched.apply(commands.to_vec())).collect();
        prop_assert_eq!(one_by_one, in_batches);
        prop_assert_eq!(single.keys, batched.keys);
        prop_assert_eq!(single.image, batched.image);
        prop_assert_eq!(single.told, batched.told);
    }

    /// A condition that did not hold, a write that a session repeats, a delete of nothing: none of them is
    /// a change. Of a range, each key that went is one.
    #[test]
    fn the_history_tells_what_each_entry_changed_and_nothing_else(
        commands in proptest::collection::vec(any_command(), 0..40),
        size in 1usize..10,
    ) {
        let mut model = Model { next: 1, ..Model::default() };
        commands.chunks(size).for_each(|commands| drop(model.apply(commands.to_vec())));
        prop_assert_eq!(model.told.len(), commands.len());
        prop_assert_eq!(model.told, model.shown);
    }
}
