//! Notes who is refused the deletion of a range.
//!
//! What holds here: a new cluster may refuse ranges until it has the version that has them, for some seconds, or until
//! an operator finishes the upgrade. Once a range was deleted it refuses none, except after an unsafe
//! recovery, which may discard the version's record.

use cairn_client::Error;

/// Refusals that are kept. A cluster that refuses ranges for ever refuses many.
const KEPT: usize = 8;

/// Whether ranges are deleted, and who was refused then.
#[derive(Default)]
pub(super) struct Ranges {
    /// When the first one was answered.
    since: Option<u64>,
    refusals: Vec<String>,
}

impl Ranges {
    /// The cluster deleted a range, or counted its keys.
    pub(super) fn answered(&mut self, now: u64) {
        self.since = self.since.or(Some(now));
    }

    /// The cluster refused a range that was asked for at `invoked`.
    pub(super) fn refused(&mut self, invoked: u64, why: &Error) {
        let had_ranges = self.since.is_some_and(|since| since < invoked);
        if had_ranges && self.refusals.len() < KEPT {
            self.refusals.push(format!("a range is refused after one was deleted: {why}"));
        }
    }

    /// The refusals since the last call that no client should get.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.refusals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: each refusal counted as one of a new cluster, so that a leader that refused ranges for good passed.
    #[test]
    fn a_range_may_be_refused_only_if_it_was_asked_for_before_the_first_answer() {
        let why = Error::Refused { message: "the cluster's version is 2".to_owned() };
        let mut ranges = Ranges::default();
        ranges.refused(10, &why);
        ranges.answered(20);
        ranges.refused(15, &why);
        assert!(ranges.take().is_empty(), "it was under way before the first answer");
        ranges.answered(30);
        ranges.refused(25, &why);
        let found = ranges.take();
        assert!(found.len() == 1 && found[0].contains("version is 2"), "{found:?}");
        for invoked in 40..60 {
            ranges.refused(invoked, &why);
        }
        assert_eq!(ranges.take().len(), KEPT);
    }
}
