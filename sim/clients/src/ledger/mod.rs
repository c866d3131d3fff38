//! The history of a long run, judged piece by piece: clients rest, everything that the cluster
//! holds is listed, and what clients were told since the last listing is judged together with it.
//!
//! What holds here: after a [`Ledger::compare`] that finds nothing wrong, of a group only that is
//! kept on which later answers depend: what its keys hold, and the writes of unknown outcome that
//! may still take effect. With that the group's next piece begins, so that every later listing is
//! judged against all that came before it, however long the group rested.
//!
//! Memory is bounded by the requests of one period of load, a few hundred bytes each, and by four
//! keys and a few writes for each group ever used. The search for an explanation of a group's
//! answers is bounded by the requests that it may get in a period: a hundred, and those under way.

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

/// The number of who lists everything: that of no client.
const LISTER: u32 = u32::MAX;

/// Counts of a period of load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
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

/// A long run's history, as far as it still matters.
pub struct Ledger {
    recorder: Recorder,
    groups: BTreeMap<u32, Group>,
}

impl Ledger {
    /// An empty one on this clock. Clients ask about so many groups at a time.
    pub fn new(timeline: impl Timeline + 'static, places: u32) -> Ledger {
        Ledger { recorder: Recorder::rotating(timeline, places), groups: BTreeMap::new() }
    }

    /// Where clients record what they are told.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Keys that every listing is asked for, whether they exist or not.
    pub fn keys(&self) -> u64 {
        (self.groups.len() * GROUP_KEYS) as u64
    }

    /// Takes over what was recorded. To be called when all clients rest.
    pub fn collect(&mut self) -> Told {
        let (records, wrong) = self.recorder.take();
        let mut told = Told { wrong, ..Told::default() };
        for record in records {
            match record.outcome {
                Outcome::Applied { .. } => told.acknowledged += 1,
                Outcome::Unknown => told.unknown += 1,
                Outcome::NoEffect | Outcome::ConditionFailed { .. } => told.refused += 1,
                Outcome::Found(_) | Outcome::FoundVersion(_) | Outcome::Listed(..) => told.reads += 1,
            }
            self.groups.entry(record.group).or_default().add(record);
        }
        told
    }

    /// Judges what clients were told, by itself: for a cluster that cannot be listed. One sentence
    /// for each thing that is wrong.
    pub fn judge(&self) -> Vec<String> {
        sentences(self.groups.values().flat_map(Group::judge))
    }

    /// Judges what clients were told and what was listed after it, before which the ledger was
    /// collected. One sentence for each thing that is wrong: lost, damaged, never written, or not
    /// to be explained by any order of the requests.
    pub fn compare(&mut self, listing: &Listing) -> Vec<String> {
        let mut wrong = self.strange(listing);
        for (read, group) in reads(&mut self.groups, listing, self.recorder.now()) {
            wrong.extend(sentences(group.compare(&read)));
            self.recorder.judged(read.group, group.open());
        }
        wrong
    }

    /// As [`Ledger::compare`], after an operator gave up what no machine held any more. The newest
    /// writes may be gone, if they were acknowledged since `since`. A write must be there that was
    /// acknowledged earlier, was to be synced before its answer, or was shown by an earlier
    /// listing, and so must be all that the log has before it. What is lost stays lost. Gives what
    /// is wrong, and how many keys lost something.
    pub fn compare_after_loss(&mut self, listing: &Listing, since: Duration) -> (Vec<String>, u64) {
        let since = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let safe = self.groups.values().filter_map(|group| group.newest_safe(since)).max();
        let (mut wrong, mut lost) = (self.strange(listing), 0);
        for (read, group) in reads(&mut self.groups, listing, self.recorder.now()) {
            match group.compare_after_loss(&read, since, safe) {
                Ok(keys) => lost += keys,
                Err(found) => wrong.extend(sentences(found)),
            }
            self.recorder.judged(read.group, group.open());
        }
        (wrong, lost)
    }

    /// What no history can explain.
    fn strange(&self, listing: &Listing) -> Vec<String> {
        let ghost = |(group, keys): (_, &Vec<_>)| match self.groups.contains_key(group) {
            true => None,
            false => Some(format!("group {group} has {} keys, and nobody ever wrote there", keys.len())),
        };
        listing.wrong.iter().cloned().chain(listing.groups.iter().filter_map(ghost)).collect()
    }
}

/// Each group with what the listing shows of it, unless that is damaged.
fn reads<'a>(
    groups: &'a mut BTreeMap<u32, Group>,
    listing: &'a Listing,
    now: u64,
) -> impl Iterator<Item = (Record, &'a mut Group)> {
    groups.iter_mut().filter(|(number, _)| !listing.damaged.contains(number)).map(move |(number, group)| {
        let all = ListSpec {
            start_after: None,
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
    })
}

fn sentences(violations: impl IntoIterator<Item = crate::Violation>) -> Vec<String> {
    violations.into_iter().map(|violation| violation.to_string()).collect()
}
