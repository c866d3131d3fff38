//! The course of one watch: its order, its positions, its times and its end, whatever the changes are.
//!
//! What holds here: the time of an answer orders entries. What was acknowledged before a watch was asked for
//! lies before its beginning, unless it goes on from a position. And no watch can be at an entry that was sent
//! later.

use super::{Begins, End, Watched, at, name, shown};
use crate::history::{History, Version};
use cairn_client::Position;
use std::collections::BTreeSet;

/// What is wrong with the order of a watch.
pub(super) fn disorder(watch: &Watched) -> Vec<String> {
    let found = watch.began.map_or_else(Vec::new, |began| out_of_order(watch, began));
    let found = found.into_iter().chain(unfounded_end(watch));
    found.map(|what| format!("{} {what}", name(watch))).collect()
}

fn out_of_order(watch: &Watched, began: Position) -> Vec<String> {
    let mut found = Vec::new();
    let asked_for = match &watch.begins {
        Begins::Now => began,
        Begins::Kept(position) | Begins::Listed(position, _) => *position,
    };
    if began != asked_for {
        found.push(format!("was to begin at {}, and began at {}", at(asked_for), at(began)));
    }
    let mut through = began;
    let mut marks = watch.marks.iter().peekable();
    let mut of_entry = BTreeSet::new();
    for number in 0..=watch.told.len() {
        let last = number.checked_sub(1).and_then(|last| watch.told.get(last));
        while let Some(mark) = marks.next_if(|mark| mark.told == number) {
            let to = mark.through;
            if to.index < through.index {
                found.push(format!("goes back from {} to {}", at(through), at(to)));
            }
            if last.is_some_and(|last| !last.last_of_entry && last.at.index <= to.index) {
                found.push(format!("is at {} before all of that entry was told", at(to)));
            }
            through = to;
        }
        let Some(told) = watch.told.get(number) else { break };
        let (index, before) = (told.at.index, last.map(|last| last.at.index));
        if index <= through.index {
            found.push(format!("was at {}, and then tells {}", at(through), shown(told)));
        }
        if before.is_some_and(|before| index < before) {
            found.push(format!("tells {} behind {before:?}", shown(told)));
        }
        match last.filter(|last| last.at.index == index) {
            Some(last) if last.last_of_entry => {
                found.push(format!("tells {} behind the last of that entry", shown(told)));
            }
            Some(_) => {}
            None => {
                of_entry.clear();
                if last.is_some_and(|last| !last.last_of_entry) {
                    found.push(format!("tells {} before the rest of {before:?}", shown(told)));
                }
            }
        }
        if !of_entry.insert(told.key) {
            found.push(format!("tells {} twice", shown(told)));
        }
        if !watch.scope.has(told.key) {
            found.push(format!("tells {}, which is not in its range", shown(told)));
        }
    }
    found
}

/// Why a watch should not have ended as it did.
fn unfounded_end(watch: &Watched) -> Option<String> {
    let asked_for = match &watch.begins {
        Begins::Now => None,
        Begins::Kept(position) | Begins::Listed(position, _) => Some(*position),
    };
    let position = watch.through().or(asked_for);
    match watch.end? {
        (End::Discarded, _) => {
            let whose = position.map(at);
            Some(format!("ends, its position {whose:?} is said to be discarded, and nothing was"))
        }
        (End::Compacted { oldest, now }, _) => {
            let is_gone = position.is_none_or(|position| position.index < oldest.index);
            let wrong = !is_gone || now.index < oldest.index;
            let (from, oldest, now) = (position.map(at), at(oldest), at(now));
            wrong
                .then(|| format!("ends at {from:?}, since what follows {oldest} is kept, of {now}"))
        }
    }
}

/// When writes were sent and acknowledged, and their indexes.
pub(super) struct Times {
    /// The time of each acknowledgement, and the greatest index until then.
    acknowledged: Vec<(u64, Version)>,
    /// The time at which each write was sent, and the least index from then on.
    sent: Vec<(u64, Version)>,
}

impl Times {
    pub(super) fn of(history: &History) -> Times {
        let applied = || {
            let records = history.records().iter();
            records.filter_map(|record| Some((record, record.log_id()?.1)))
        };
        let mut acknowledged: Vec<(u64, Version)> =
            applied().map(|(record, index)| (record.returned, index)).collect();
        acknowledged.sort_unstable();
        let mut greatest = 0;
        for (_, index) in &mut acknowledged {
            greatest = greatest.max(*index);
            *index = greatest;
        }
        let mut sent: Vec<(u64, Version)> =
            applied().map(|(record, index)| (record.invoked, index)).collect();
        sent.sort_unstable();
        let mut least = Version::MAX;
        for (_, index) in sent.iter_mut().rev() {
            least = least.min(*index);
            *index = least;
        }
        Times { acknowledged, sent }
    }

    /// The greatest index that was acknowledged before this time.
    fn acknowledged_before(&self, time: u64) -> Option<Version> {
        let count = self.acknowledged.partition_point(|(returned, _)| *returned < time);
        let last = count.checked_sub(1)?;
        self.acknowledged.get(last).map(|(_, index)| *index)
    }

    /// The least index of a write that was sent after this time.
    fn sent_after(&self, time: u64) -> Option<Version> {
        let first = self.sent.partition_point(|(invoked, _)| *invoked <= time);
        self.sent.get(first).map(|(_, index)| *index)
    }

    /// What a watch lacks that was there when it was asked for, and what it has of later.
    pub(super) fn wrong(&self, watch: &Watched) -> Vec<String> {
        let mut found = Vec::new();
        let begins = match &watch.begins {
            Begins::Now => watch.began,
            Begins::Listed(position, _) => Some(*position),
            Begins::Kept(_) => None,
        };
        let before = self.acknowledged_before(watch.asked);
        if let Some((begins, before)) = begins.zip(before)
            && begins.index < before
        {
            let begins = at(begins);
            found.push(format!("begins at {begins}, and {before} was acknowledged before that"));
        }
        let told = watch.told.iter().map(|told| (told.at, told.when));
        let marks = watch.marks.iter().map(|mark| (mark.through, mark.when));
        let ends = watch.end.and_then(|(end, when)| match end {
            End::Compacted { now, .. } => Some((now, when)),
            End::Discarded => None,
        });
        let all = told.chain(marks).chain(ends);
        found.extend(all.filter_map(|(position, when)| self.of_later(position, when)));
        found.into_iter().map(|what| format!("{} {what}", name(watch))).collect()
    }

    fn of_later(&self, position: Position, when: u64) -> Option<String> {
        let sent = self.sent_after(when).filter(|sent| *sent <= position.index)?;
        Some(format!("is at {}, and the write at {sent} was sent after that", at(position)))
    }
}
