//! The values of a message, read from the log.
//!
//! What holds here: the reads go on to their end, and stay charged until then, also if their stream is gone. A value is read
//! once, however many watches are told it. One that cannot be read withholds its entry and what follows from its
//! watch, and nothing that came before: the watch ends when nothing else is left to be told.

use super::hub::applied;
use super::plan::{Part, Plan, Planned, Told};
use super::{ended, position};
use crate::admission::memory::Charge;
use crate::admission::refusal;
use crate::service::read::{LIST_READS, to_its_end};
use bytes::Bytes;
use cairn_client::proto;
use cairn_client::proto::watch_ended::Why;
use cairn_engine::LogId;
use cairn_raft::{LoggedValue, Replica};
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;

/// A value, or why its watch ends.
type Value = Result<Bytes, proto::WatchEnded>;

/// Where a value is: its entry, and which of the entry's values it is.
type Place = (LogId, usize);

/// A value to read.
struct Wanted {
    at: LogId,
    key: Bytes,
    value: LoggedValue,
}

/// The values that a plan wants.
#[derive(Default)]
pub(super) struct Values(BTreeMap<Place, Value>);

/// Reads the values that a plan wants.
pub(super) async fn read(
    replica: &Replica,
    plan: &Plan,
    charge: Charge,
) -> Result<(Values, Charge), Status> {
    let changes = plan.parts.iter().flat_map(|part| &part.changes);
    let wanted: BTreeMap<Place, Wanted> = changes
        .filter_map(|change| {
            let value = change.value?;
            let wanted = Wanted { at: change.at, key: change.key.clone(), value };
            Some(((change.at, value.number), wanted))
        })
        .collect();
    if wanted.is_empty() {
        return Ok((Values::default(), charge));
    }
    let replica = replica.clone();
    let waiting = Arc::new(());
    let waited_for = Arc::downgrade(&waiting);
    let read = async move {
        futures::stream::iter(wanted.into_values())
            .take_while(|_| std::future::ready(waited_for.strong_count() > 0))
            .map(|wanted| value(&replica, wanted))
            .buffered(LIST_READS)
            .collect::<BTreeMap<Place, Value>>()
            .await
    };
    let (values, charge) = to_its_end(charge, read).await?;
    Ok((Values(values), charge))
}

async fn value(replica: &Replica, wanted: Wanted) -> (Place, Value) {
    let place = (wanted.at, wanted.value.number);
    let value = match replica.logged_value(wanted.at, wanted.value.number).await {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(gone(replica)),
        Err(error) => {
            let why = match error {
                cairn_engine::Error::Corrupt(_) => Why::Unreadable,
                _ => Why::Move,
            };
            let told = refusal::of_engine_read(&wanted.key, error);
            Err(ended(why, told.message()))
        }
    };
    (place, value)
}

impl Values {
    /// The changes of a part, with their values. Those of entries from the first one on whose value could not be read are left
    /// out, and the part is told that much less.
    ///
    /// # Errors
    /// Why the watch ends, if no entry comes before that one. `gone` says it of a value that was not read.
    pub(super) fn fill(
        &self,
        part: &mut Part,
        gone: impl Fn() -> proto::WatchEnded,
    ) -> Result<Vec<proto::Change>, proto::WatchEnded> {
        let mut changes: Vec<proto::Change> = Vec::new();
        for planned in std::mem::take(&mut part.changes) {
            let at = planned.at;
            match self.change(planned, &gone) {
                Ok(change) => changes.push(change),
                Err(ended) => {
                    changes.retain(|change| change.at != Some(position(at)));
                    let last = changes.last().and_then(|change| change.at).ok_or(ended)?;
                    let at = LogId { term: last.term, index: last.index };
                    part.told = Told { at, part: None };
                    break;
                }
            }
        }
        Ok(changes)
    }

    fn change(
        &self,
        planned: Planned,
        gone: impl Fn() -> proto::WatchEnded,
    ) -> Result<proto::Change, proto::WatchEnded> {
        let value = match planned.value {
            None => Bytes::new(),
            Some(value) => {
                let read = self.0.get(&(planned.at, value.number)).cloned();
                read.unwrap_or_else(|| Err(gone()))?
            }
        };
        let (key, deleted, previous) = (planned.key, planned.deleted, planned.previous);
        Ok(proto::Change { key, at: Some(position(planned.at)), deleted, value, previous })
    }
}

/// The log has let an entry go since the history told of it.
pub(super) fn gone(replica: &Replica) -> proto::WatchEnded {
    let oldest = replica.history().oldest.unwrap_or_default();
    let message =
        "the log no longer has a value that was to be told; read the state, and go on behind that";
    proto::WatchEnded {
        oldest: Some(position(oldest)),
        now: Some(position(applied(replica))),
        ..ended(Why::Compacted, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u64) -> LogId {
        LogId { term: 1, index }
    }

    /// A part of one value of each of these entries, of which it may have told some before.
    fn part(entries: &[u64]) -> Part {
        let changes = entries.iter().enumerate().map(|(number, index)| Planned {
            at: id(*index),
            key: Bytes::from(format!("key {number}")),
            deleted: false,
            value: Some(LoggedValue { number, bytes: 1 }),
            previous: 0,
        });
        let told = Told { at: id(9), part: Some((id(10), 1)) };
        Part { watch: 1, breaks: 0, changes: changes.collect(), told }
    }

    fn gone() -> proto::WatchEnded {
        ended(Why::Compacted, "gone")
    }

    /// The story: the last one of a message's values could not be read, and the watch ended without the ninety-nine
    /// changes before it, which nobody had lost.
    #[test]
    fn a_value_that_cannot_be_read_withholds_its_entry_and_nothing_before_it() {
        let entries = [3, 3, 5, 5, 7];
        let read = |unreadable: usize| {
            let values = (0..).zip(entries).map(|(number, index)| {
                let unread = || ended(Why::Unreadable, "damaged");
                let value = if number == unreadable { Err(unread()) } else { Ok("v".into()) };
                ((id(index), number), value)
            });
            Values(values.collect())
        };
        let told = |unreadable| {
            let mut part = part(&entries);
            let filled = read(unreadable).fill(&mut part, gone);
            filled.map(|changes| (changes.len(), part.told)).map_err(|ended| ended.why())
        };
        let reaches = |index| Told { at: id(index), part: None };
        assert_eq!(told(5), Ok((5, part(&entries).told)), "all are there");
        assert_eq!(told(4), Ok((4, reaches(5))));
        assert_eq!(told(3), Ok((2, reaches(3))), "no entry is told in part");
        assert_eq!(told(2), Ok((2, reaches(3))));
        for first in [0, 1] {
            assert_eq!(told(first), Err(Why::Unreadable), "nothing comes before it");
        }
        let mut part = part(&entries);
        let ended = Values::default().fill(&mut part, gone).expect_err("none was read");
        assert_eq!(ended.why(), Why::Compacted);
    }
}
