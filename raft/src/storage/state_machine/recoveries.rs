//! The unsafe recoveries of a cluster, as its state keeps them.
//!
//! What holds here: each record that is kept names entries of the log that led to the state. A member that
//! was missing, and has applied something else there, holds what an operator discarded.

use crate::core::error::Malformed;
use crate::core::types::engine_log_id;
use crate::core::{convert, proto};
use cairn_engine::LogId;
use std::sync::Arc;

/// How many records are kept, the newest.
const RECORDS_KEPT: usize = 16;

/// How many unsafe recoveries there were, each of which discarded what no member held any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsafeRecoveries {
    /// Their number.
    pub count: u64,
    /// The index of the latest record. Versions up to this one may belong to a history that lacks
    /// acknowledged writes.
    pub last_index: u64,
    /// The term of the latest record.
    pub last_term: u64,
}

impl UnsafeRecoveries {
    /// The latest record, of which nothing else is known.
    fn latest(self) -> Option<RecoveryRecord> {
        let recorded = LogId { term: self.last_term, index: self.last_index };
        (self.count > 0).then_some(RecoveryRecord { recorded, kept: None })
    }
}

/// The record of an unsafe recovery in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecoveryRecord {
    /// Its own id.
    recorded: LogId,
    /// The last entry of a term before its own: what came behind it elsewhere was discarded. `None`: not
    /// known.
    kept: Option<LogId>,
}

impl RecoveryRecord {
    fn from_proto(record: proto::UnsafeRecoveryRecord) -> Result<RecoveryRecord, Malformed> {
        let recorded = record.recorded.ok_or(Malformed("an unsafe recovery without its log id"))?;
        let kept = record.kept.map(log_id_from_proto).transpose()?;
        Ok(RecoveryRecord { recorded: log_id_from_proto(recorded)?, kept })
    }

    fn to_proto(self) -> proto::UnsafeRecoveryRecord {
        proto::UnsafeRecoveryRecord {
            recorded: Some(self.recorded.into()),
            kept: self.kept.map(proto::LogId::from),
        }
    }

    /// Entries of each log that has this record. A term begins with a blank entry, so at least the entry
    /// before the record is of its term, too.
    fn entries(self) -> impl Iterator<Item = LogId> {
        let LogId { term, index } = self.recorded;
        let first = self.kept.map_or(index.saturating_sub(1), |kept| kept.index.saturating_add(1));
        self.kept.into_iter().chain([LogId { term, index: first }, self.recorded])
    }
}

fn log_id_from_proto(id: proto::LogId) -> Result<LogId, Malformed> {
    convert::log_id_from_proto(id).map(|id| engine_log_id(&id))
}

/// The newest records of unsafe recoveries, and what the next one needs. A copy is O(1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveryRecords {
    /// The oldest first, at most [`RECORDS_KEPT`].
    newest: Arc<[RecoveryRecord]>,
    /// The last applied entry of a term before the present one. `None`: not known.
    last_of_earlier_terms: Option<LogId>,
}

impl RecoveryRecords {
    /// The entry `id` is applied, behind `before`.
    pub(crate) fn applies(&mut self, before: Option<LogId>, id: LogId) {
        if let Some(before) = before.filter(|before| before.term < id.term) {
            self.last_of_earlier_terms = Some(before);
        }
    }

    /// Adds the record `recorded`, which is being applied, to those that `known` counts, and drops the oldest
    /// beyond [`RECORDS_KEPT`].
    pub(crate) fn add(&mut self, known: UnsafeRecoveries, recorded: LogId) {
        let is_missing = |latest: &RecoveryRecord| {
            self.newest.last().is_none_or(|last| last.recorded != latest.recorded)
        };
        // From before this list was kept.
        let latest = known.latest().filter(is_missing);
        let added = RecoveryRecord { recorded, kept: self.last_of_earlier_terms };
        let records: Vec<RecoveryRecord> =
            self.newest.iter().copied().chain(latest).chain([added]).collect();
        self.newest = newest(records);
    }

    /// Entries of the log that led to the state, of which `known` counts the records.
    pub(crate) fn entries(&self, known: UnsafeRecoveries) -> impl Iterator<Item = LogId> {
        let records = self.newest.iter().copied().chain(known.latest());
        records.flat_map(RecoveryRecord::entries)
    }

    /// How many records there are.
    pub(crate) fn count(&self) -> usize {
        self.newest.len()
    }

    pub(crate) fn from_proto(
        records: Vec<proto::UnsafeRecoveryRecord>,
        last_of_earlier_terms: Option<proto::LogId>,
    ) -> Result<RecoveryRecords, Malformed> {
        let records: Vec<RecoveryRecord> =
            records.into_iter().map(RecoveryRecord::from_proto).collect::<Result<_, _>>()?;
        let last_of_earlier_terms = last_of_earlier_terms.map(log_id_from_proto).transpose()?;
        Ok(RecoveryRecords { newest: newest(records), last_of_earlier_terms })
    }

    pub(crate) fn to_proto(&self) -> (Vec<proto::UnsafeRecoveryRecord>, Option<proto::LogId>) {
        let records = self.newest.iter().map(|record| record.to_proto());
        (records.collect(), self.last_of_earlier_terms.map(proto::LogId::from))
    }
}

fn newest(records: Vec<RecoveryRecord>) -> Arc<[RecoveryRecord]> {
    let older = records.len().saturating_sub(RECORDS_KEPT);
    records.into_iter().skip(older).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(term: u64, index: u64) -> LogId {
        LogId { term, index }
    }

    /// A record at `recorded` of each unsafe recovery, whose term begins behind `kept`.
    fn after(recoveries: &[(LogId, LogId)]) -> (RecoveryRecords, UnsafeRecoveries) {
        let (mut records, mut known) = (RecoveryRecords::default(), UnsafeRecoveries::default());
        for (kept, recorded) in recoveries {
            records.applies(Some(*kept), id(recorded.term, kept.index + 1));
            records.add(known, *recorded);
            let UnsafeRecoveries { count, .. } = known;
            let (last_index, last_term) = (recorded.index, recorded.term);
            known = UnsafeRecoveries { count: count + 1, last_index, last_term };
        }
        (records, known)
    }

    /// The story: a member was missing for two unsafe recoveries. The state named only the second one, which
    /// came far behind what the member had applied, and the member took a snapshot over it.
    #[test]
    fn each_unsafe_recovery_names_the_end_of_what_it_kept_and_the_beginning_of_its_term() {
        // A boot record comes between the beginning of the first term and its record.
        let first = (id(2, 40), id(5, 43));
        let (records, known) = after(&[first, (id(6, 90), id(8, 92))]);
        let entries: Vec<LogId> = records.entries(known).collect();
        for named in [id(2, 40), id(5, 41), id(5, 43), id(6, 90), id(8, 91), id(8, 92)] {
            assert!(entries.contains(&named), "{named} of {entries:?}");
        }
        assert_eq!(RecoveryRecords::default().entries(UnsafeRecoveries::default()).count(), 0);
    }

    #[test]
    fn entries_of_one_term_do_not_move_its_beginning() {
        let mut records = RecoveryRecords::default();
        records.applies(None, id(1, 1));
        records.applies(Some(id(1, 1)), id(3, 2));
        records.applies(Some(id(3, 2)), id(3, 3));
        records.add(UnsafeRecoveries::default(), id(3, 4));
        let entries: Vec<LogId> = records.entries(UnsafeRecoveries::default()).collect();
        assert_eq!(entries, [id(1, 1), id(3, 2), id(3, 4)]);
    }

    /// A former release counted it, and wrote no list.
    #[test]
    fn the_latest_recovery_from_before_the_list_is_in_the_list_with_the_next_one() {
        let known = UnsafeRecoveries { count: 1, last_index: 20, last_term: 4 };
        let mut records = RecoveryRecords::default();
        let entries: Vec<LogId> = records.entries(known).collect();
        assert_eq!(entries, [id(4, 19), id(4, 20)], "all that it had");
        records.applies(Some(id(4, 30)), id(6, 31));
        records.add(known, id(6, 32));
        assert_eq!(records.count(), 2);
        let known = UnsafeRecoveries { count: 2, last_index: 32, last_term: 6 };
        let entries: Vec<LogId> = records.entries(known).collect();
        for named in [id(4, 19), id(4, 20), id(4, 30), id(6, 31), id(6, 32)] {
            assert!(entries.contains(&named), "{named} of {entries:?}");
        }
    }

    #[test]
    fn the_newest_records_are_kept_and_no_more_of_them_however_many_come() {
        let recovery =
            |number: u64| (id(2 * number, 10 * number), id(2 * number + 1, 10 * number + 2));
        let count = RECORDS_KEPT as u64 + 3;
        let all: Vec<_> = (1..=count).map(recovery).collect();
        let (records, known) = after(&all);
        assert_eq!(records.count(), RECORDS_KEPT);
        let entries: Vec<LogId> = records.entries(known).collect();
        for (number, (kept, recorded)) in all.iter().enumerate() {
            let is_kept = number >= 3;
            assert_eq!(entries.contains(kept), is_kept, "{number}");
            assert_eq!(entries.contains(recorded), is_kept, "{number}");
        }
        // A message of somebody who keeps more.
        let (mut encoded, last) = records.to_proto();
        assert_eq!(RecoveryRecords::from_proto(encoded.clone(), last), Ok(records.clone()));
        encoded.insert(0, proto::UnsafeRecoveryRecord::default());
        assert!(RecoveryRecords::from_proto(encoded.clone(), last).is_err(), "without a log id");
        encoded[0] = encoded[1];
        assert_eq!(RecoveryRecords::from_proto(encoded, last), Ok(records));
    }
}
