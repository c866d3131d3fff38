//! The history of a long run, checked piece by piece: the clients pause, all keys of the cluster
//! are listed, and the answers since the last listing are checked together with it.
//!
//! What holds here: after a [`Ledger::compare`] that finds no fault, a group keeps only what later
//! answers depend on: the values of its keys, and the writes of unknown outcome that may still take
//! effect. The group's next piece begins with that. So every later listing is checked against all
//! that came before it, however long the group rested.
//!
//! Memory is bounded by the requests of one period of load, a few hundred bytes each, and by four
//! keys and a few writes for each group ever used. The search for an explanation of a group's
//! answers is bounded by the requests that the group may get in a period: a hundred, and those in
//! flight.

mod group;
mod listing;
#[cfg(test)]
mod tests;

use crate::Timeline;
use crate::history::{Action, GROUP_KEYS, ListSpec, Outcome, Record};
use crate::workload::Recorder;
use group::Group;
pub use listing::Listing;
use std::collections::BTreeMap;
use std::time::Duration;

/// The client number of the listing; no client has it.
const LISTER: u32 = u32::MAX;

/// Counts of a period of load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    /// Writes acknowledged.
    pub acknowledged: u64,
    /// Writes of unknown outcome.
    pub unknown: u64,
    /// Requests refused, and writes whose conditions did not hold: without effect.
    pub refused: u64,
    /// Reads answered.
    pub reads: u64,
    /// Answers that no client should get, one sentence each.
    pub wrong: Vec<String>,
}

/// A long run's history, as far as later checks need it.
pub struct Ledger {
    recorder: Recorder,
    groups: BTreeMap<u32, Group>,
}

impl Ledger {
    /// An empty ledger on this clock. Clients use this many groups at a time.
    pub fn new(timeline: impl Timeline + 'static, positions: u32) -> Ledger {
        Ledger { recorder: Recorder::rotating(timeline, positions), groups: BTreeMap::new() }
    }

    /// Where clients record their requests and answers.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// How many keys a listing covers, whether they exist or not.
    pub fn keys(&self) -> u64 {
        (self.groups.len() * GROUP_KEYS) as u64
    }

    /// Takes over the new records. To be called while all clients pause.
    pub fn collect(&mut self) -> AnswerCounts {
        let (records, wrong) = self.recorder.take();
        let mut counts = AnswerCounts { wrong, ..AnswerCounts::default() };
        for record in records {
            match record.outcome {
                Outcome::Applied { .. } | Outcome::RangeDeleted { .. } => counts.acknowledged += 1,
                Outcome::Unknown => counts.unknown += 1,
                Outcome::NoEffect
                | Outcome::ConditionFailed { .. }
                | Outcome::RangeTooLarge { .. } => counts.refused += 1,
                Outcome::Found(_)
                | Outcome::FoundMany(..)
                | Outcome::FoundVersion(_)
                | Outcome::Listed(..) => counts.reads += 1,
            }
            self.groups.entry(record.group).or_default().add(record);
        }
        counts
    }

    /// Checks the answers alone, for a cluster that cannot be listed. Returns one sentence for each
    /// fault.
    pub fn check(&self) -> Vec<String> {
        sentences(self.groups.values().flat_map(Group::check))
    }

    /// Checks the answers, and a listing that followed them. [`Ledger::collect`] must have been
    /// called before the listing. Returns one sentence for each fault: a write is lost, a value is
    /// damaged or was never written, or no order of the requests explains the answers.
    pub fn compare(&mut self, listing: &Listing) -> Vec<String> {
        let mut wrong = self.strange(listing);
        wrong.extend(self.recorder.take_refused_ranges());
        for (read, group) in reads(&mut self.groups, listing, self.recorder.now()) {
            wrong.extend(sentences(group.compare(&read)));
            self.recorder.checked(read.group, group.open());
        }
        wrong
    }

    /// Like [`Ledger::compare`], after an unsafe recovery. The newest writes may be gone, if they
    /// were acknowledged since `since`. A write must be there if it was acknowledged earlier, asked
    /// for a sync before its answer, or was in an earlier listing, and so must all writes before it
    /// in the log. What is lost stays lost. Returns what is wrong, and how many keys lost
    /// something.
    pub fn compare_after_unsafe_recovery(
        &mut self,
        listing: &Listing,
        since: Duration,
    ) -> (Vec<String>, u64) {
        self.recorder.forget_ranges();
        let since = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let safe = self.groups.values().filter_map(|group| group.newest_safe(since)).max();
        let (mut wrong, mut lost) = (self.strange(listing), 0);
        for (read, group) in reads(&mut self.groups, listing, self.recorder.now()) {
            match group.compare_after_unsafe_recovery(&read, since, safe) {
                Ok(keys) => lost += keys,
                Err(found) => wrong.extend(sentences(found)),
            }
            self.recorder.checked(read.group, group.open());
        }
        (wrong, lost)
    }

    /// Faults that no history can explain.
    fn strange(&self, listing: &Listing) -> Vec<String> {
        let ghost = |(group, keys): (_, &Vec<_>)| match self.groups.contains_key(group) {
            true => None,
            false => Some(format!(
                "group {group} has {} keys, and no client ever wrote there",
                keys.len()
            )),
        };
        listing.wrong.iter().cloned().chain(listing.groups.iter().filter_map(ghost)).collect()
    }
}

/// Each group with its part of the listing, unless that is damaged.
fn reads<'a>(
    groups: &'a mut BTreeMap<u32, Group>,
    listing: &'a Listing,
    now: u64,
) -> impl Iterator<Item = (Record, &'a mut Group)> {
    groups.iter_mut().filter(|(number, _)| !listing.damaged.contains(number)).map(
        move |(number, group)| {
            let all = ListSpec {
                start_after: None,
                end: None,
                limit: GROUP_KEYS,
                reverse: false,
                keys_only: false,
                max_bytes: u64::MAX,
            };
            let items = listing.groups.get(number).cloned().unwrap_or_default();
            let read = Record {
                client: LISTER,
                group: *number,
                action: Action::List(all),
                synced: false,
                invoked: now,
                returned: now,
                outcome: Outcome::Listed(items, false),
            };
            (read, group)
        },
    )
}

fn sentences(violations: impl IntoIterator<Item = crate::Violation>) -> Vec<String> {
    violations.into_iter().map(|violation| violation.to_string()).collect()
}
