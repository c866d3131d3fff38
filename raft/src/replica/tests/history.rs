//! What a member tells of the changes that it applied.

use super::*;
use crate::core::command::{Condition, Operation, WriteOutcome};
use crate::core::error::HistoryError;
use crate::replica::changes::{Most, behind};
use crate::storage::history::{HistoryStatus, KeyChange, LoggedValue};
use bytes::Bytes;

fn put(key: &'static str, value: &'static str, condition: Condition) -> Operation {
    Operation::Put { key: key.into(), value: value.into(), condition }
}

/// Writes at a leader, which says that it leads none until its followers first answer.
async fn write(replica: &Replica, operations: Vec<Operation>) -> WriteOutcome {
    loop {
        let command = Command { synced: false, session: None, operations: operations.clone() };
        match replica.write(command).await {
            Err(WriteError::NoLeader) => tokio::task::yield_now().await,
            outcome => return outcome.unwrap(),
        }
    }
}

/// What a leader tells, which says that it leads none until its followers first answer.
async fn ask(
    replica: &Replica,
    after: LogId,
    most_entries: usize,
) -> Result<Vec<EntryChanges>, HistoryError> {
    loop {
        match replica.changes(after, most_entries).await {
            Err(HistoryError::Barrier(ReadError::NoLeader)) => tokio::task::yield_now().await,
            told => return told,
        }
    }
}

/// Those of each entry that changed something. There are others between them: what members log.
async fn told(replica: &Replica, after: LogId) -> Vec<EntryChanges> {
    let entries = ask(replica, after, usize::MAX).await.unwrap();
    let indexes = entries.iter().map(|entry| entry.id.index);
    assert!(indexes.eq((after.index + 1..).take(entries.len())), "one behind the other");
    entries.into_iter().filter(|entry| !entry.changes.is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_changes_behind_a_position_are_told_with_their_values() {
    let (_folder, replica) = alone().await;
    let first = write(&replica, vec![put("a", "one", Condition::None)]).await.log_id;
    let refused = write(&replica, vec![put("a", "no", Condition::Absent)]).await;
    assert!(!refused.applied);
    let delete = Operation::Delete { key: "a".into(), condition: Condition::None };
    let both = write(&replica, vec![put("b", "", Condition::None), delete.clone()]).await.log_id;
    write(&replica, vec![delete]).await;
    let last = write(&replica, vec![put("b", "three", Condition::Exists)]).await.log_id;
    let change = |key: &'static str, value: Option<u32>, previous| KeyChange {
        key: key.into(),
        value: value.map(|bytes| LoggedValue { number: 0, bytes }),
        previous,
    };
    let expected = [
        EntryChanges {
            id: both,
            changes: vec![change("b", Some(0), None), change("a", None, Some(first.index))],
        },
        EntryChanges { id: last, changes: vec![change("b", Some(5), Some(both.index))] },
    ];
    assert_eq!(told(&replica, first).await, expected);
    assert_eq!(told(&replica, both).await, expected[1..]);
    assert!(told(&replica, last).await.is_empty());
    let value = async |id| replica.logged_value(id, 0).await.unwrap();
    assert_eq!(value(first).await, Some(Bytes::from("one")), "nobody can get it by its key");
    assert_eq!(value(both).await, Some(Bytes::new()));
    assert_eq!(value(last).await, Some(Bytes::from("three")));
    assert_eq!(replica.logged_value(last, 1).await.unwrap(), None);
    let HistoryStatus { oldest, entries, bytes, .. } = replica.history();
    assert!(oldest.is_some_and(|oldest| oldest < first), "{oldest:?}");
    assert!(entries >= 5 && bytes > entries, "{entries} entries of {bytes} bytes");
}

/// Entries that are ready together are applied in one step, and a range begins another one.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_deleted_range_each_key_is_told_with_the_version_that_it_had() {
    let (_folder, replica) = alone().await;
    while replica.versions().cluster != VERSION {
        runtime::sleep(Duration::from_millis(5)).await;
    }
    let range = |start: &'static str, end: &'static str, most, whole| Operation::DeleteRange {
        start: start.into(),
        end: end.into(),
        most,
        whole,
    };
    let first = write(&replica, vec![put("a", "1", Condition::None)]).await.log_id;
    let two = vec![put("b", "1", Condition::None), put("c", "1", Condition::None)];
    let second = write(&replica, two).await.log_id;
    let refused = write(&replica, vec![range("", "", 2, true)]).await;
    assert!(!refused.applied && refused.results[0].more);
    let deleted = write(&replica, vec![range("", "", 2, false)]).await;
    assert_eq!((deleted.results[0].deleted, deleted.results[0].more), (2, true));
    let (put_again, nothing, rest) = tokio::join!(
        write(&replica, vec![put("a", "2", Condition::Absent)]),
        write(&replica, vec![range("x", "", 10, false)]),
        write(&replica, vec![range("c", "d", 10, true)]),
    );
    assert_eq!((nothing.results[0].deleted, rest.results[0].deleted), (0, 1));
    let gone = |key: &'static str, previous: u64| KeyChange {
        key: key.into(),
        value: None,
        previous: Some(previous),
    };
    let told = told(&replica, second).await;
    assert_eq!(told[0].id, deleted.log_id);
    assert_eq!(told[0].changes, [gone("a", first.index), gone("b", second.index)]);
    let of = |id| told.iter().find(|entry| entry.id == id).map(|entry| entry.changes.clone());
    assert_eq!(of(rest.log_id), Some(vec![gone("c", second.index)]));
    let value = Some(LoggedValue { number: 0, bytes: 1 });
    assert_eq!(
        of(put_again.log_id),
        Some(vec![KeyChange { value, previous: None, ..gone("a", 0) }])
    );
    assert_eq!(told.len(), 3, "the others changed nothing: {told:?}");
}

/// A consumer asks for many entries at once. Each may have thousands of keys, and what it is told is in memory.
#[tokio::test(flavor = "multi_thread")]
async fn so_many_changes_are_told_at_once_and_whole_entries_of_them() {
    let (_folder, replica) = alone().await;
    let begin = write(&replica, vec![put("a", "1", Condition::None)]).await.log_id;
    let check = || Operation::Check { key: "a".into(), condition: Condition::None };
    for count in [1, 2, 3] {
        let puts = (0..count).map(|number| Operation::Put {
            key: format!("{number}").into(),
            value: "v".into(),
            condition: Condition::None,
        });
        write(&replica, puts.chain([check()]).collect()).await;
    }
    let member = &replica.inner.member;
    let told = |changes| {
        let most = Most { entries: usize::MAX, changes };
        behind(&member.engine, &member.history, begin, &most, &[]).unwrap()
    };
    let counts = |most| {
        let counts = told(most).into_iter().map(|entry| entry.changes.len());
        counts.filter(|count| *count > 0).collect::<Vec<_>>()
    };
    assert_eq!(counts(100), [1, 2, 3]);
    assert_eq!(counts(5), [1, 2]);
    assert_eq!(counts(3), [1, 2]);
    assert_eq!(counts(2), [1]);
    assert!(!told(0).is_empty(), "nobody would get further");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_everything_waits_for_the_next_change() {
    let (_folder, replica) = alone().await;
    let mut after = write(&replica, vec![put("a", "1", Condition::None)]).await.log_id;
    let follow = async {
        loop {
            let entries = ask(&replica, after, 2).await.unwrap();
            assert!(entries.len() <= 2);
            let Some(last) = entries.last() else {
                replica.applied_behind(after).await;
                continue;
            };
            after = last.id;
            let mut changes = entries.iter().flat_map(|entry| &entry.changes);
            if let Some(change) = changes.find(|change| change.key == "z") {
                return change.clone();
            }
        }
    };
    let writes = async {
        for key in ["b", "c", "d", "z"] {
            write(&replica, vec![put(key, "1", Condition::None)]).await;
        }
    };
    let both = async { tokio::join!(follow, writes).0 };
    let change = runtime::timeout(WAIT_LIMIT, both).await.expect("it is told");
    assert_eq!(change.previous, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_is_purged_one_of_another_history_and_one_ahead_are_refused() {
    let (_folder, replica) = alone().await;
    let first = write(&replica, vec![put("a", "1", Condition::None)]).await.log_id;
    let second = write(&replica, vec![put("a", "2", Condition::None)]).await.log_id;
    let refusal = async |after| ask(&replica, after, 1).await.unwrap_err();
    let after = LogId { term: second.term + 1, ..second };
    assert_eq!(refusal(after).await, HistoryError::Discarded { after });
    let after = LogId { index: second.index + 1000, ..second };
    assert_eq!(refusal(after).await, HistoryError::Ahead { after });
    replica.engine().purge(GROUP, second).await.unwrap();
    let refused = refusal(first).await;
    let HistoryError::Compacted { after, oldest, now } = refused else { panic!("{refused}") };
    assert!(after == first && oldest == second && now >= second, "{after} {oldest} {now}");
    assert_eq!(replica.logged_value(first, 0).await.unwrap(), None);
    assert!(told(&replica, oldest).await.is_empty());
    let third = write(&replica, vec![put("a", "3", Condition::None)]).await.log_id;
    let entries = told(&replica, oldest).await;
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].id, entries[0].changes[0].previous), (third, Some(second.index)));
}

/// The story: a member was away while an unsafe recovery discarded what it had applied. It vouches for all
/// of that until it gets the new leader's snapshot, and told the discarded entries meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_tells_nothing_that_no_leader_vouches_for() {
    let (_folder, replica, service) = replica().await;
    let blank = |index| proto::Entry { term: 2, index, meta: vec![0].into(), ..Default::default() };
    let append = AppendRequest {
        envelope: envelope(),
        vote: Some(Vote { term: 2, node_id: other().as_u64(), committed: true }),
        committed: Some(proto::LogId { term: 2, index: 1 }),
        entries: vec![blank(0), blank(1)],
        ..Default::default()
    };
    service.append_one(Remote::default(), append).await.unwrap();
    let first = LogId { term: 2, index: 0 };
    replica.applied_behind(first).await;
    assert!(replica.holds_all());
    // Nobody answers at the other member's address.
    let refused = replica.changes(first, 1).await;
    assert!(matches!(refused, Err(HistoryError::Barrier(_))), "{refused:?}");
    // Who asks without a barrier has the barrier to pass himself.
    let applied = replica.applied_changes(first, 1).unwrap();
    assert_eq!(applied.first().map(|entry| entry.id), Some(LogId { term: 2, index: 1 }));
    assert_eq!(replica.follows(first), Ok(()));
    let other = LogId { term: 1, index: 1 };
    assert_eq!(replica.follows(other), Err(HistoryError::Discarded { after: other }));
    let later = LogId { term: 2, index: 9 };
    assert_eq!(replica.follows(later), Err(HistoryError::Ahead { after: later }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovering_member_tells_no_changes() {
    let (_folder, replica) = alone().await;
    let first = write(&replica, vec![put("a", "1", Condition::None)]).await.log_id;
    write(&replica, vec![put("a", "2", Condition::None)]).await;
    assert_eq!(told(&replica, first).await.len(), 1);
    replica.inner.member.change(Event::Lost);
    assert_eq!(ask(&replica, first, 1).await, Err(HistoryError::Recovering));
}
