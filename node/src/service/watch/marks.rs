//! What the client of a stream has heard of how far its watches are.
//!
//! What holds here:
//! - Mostly one mark is of all watches. While a watch always has something to be told, since much is changed in its range or
//!   it reads the log, the others get marks of their own. Without any mark their client goes on, after a move, from where
//!   they were told something last, and the history may not reach back to that.
//! - Marks do not go back on a stream. Where another history took the place of the one that was marked, the stream ends, and
//!   its client begins anew.

use cairn_engine::LogId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How often a client hears something.
pub(super) const HEARS: Duration = Duration::from_secs(5);
/// How often it hears how far its watches are, where it hears of changes anyway.
const SHOWS: Duration = Duration::from_secs(1);
/// For so long there is no mark of all watches before some get their own.
const ALONE: Duration = HEARS;

/// What the client of a stream has heard of how far its watches are.
pub(super) struct Marks {
    /// When it last heard that, or that they are not told everything.
    heard: Instant,
    /// When it last had a mark of all watches.
    of_all: Instant,
    /// The last mark.
    at: LogId,
    /// The watch that had a mark of its own last.
    last: u64,
    has_fallen: bool,
}

impl Marks {
    pub(super) fn new() -> Marks {
        let now = Instant::now();
        Marks { heard: now, of_all: now, at: LogId::default(), last: 0, has_fallen: false }
    }

    /// How long the client need not hear anything.
    pub(super) fn quiet(&self) -> Duration {
        (self.heard + HEARS).saturating_duration_since(Instant::now())
    }

    /// Whether it may hear how far its watches are, where it hears of changes anyway.
    pub(super) fn may_show(&self) -> bool {
        self.heard.elapsed() >= SHOWS
    }

    /// The client hears something.
    pub(super) fn hears(&mut self) {
        self.heard = Instant::now();
    }

    /// Whether a mark would go back: its history is not the one of earlier marks. The stream is to end.
    pub(super) fn have_fallen(&self) -> bool {
        self.has_fallen
    }

    /// Whether a mark at this entry goes on from the last one.
    pub(super) fn go_on(&mut self, at: LogId) -> bool {
        self.has_fallen |= at.index < self.at.index || at.term < self.at.term;
        !self.has_fallen
    }

    /// A mark of all watches goes out.
    pub(super) fn shows_all(&mut self, at: LogId) {
        (self.at, self.heard) = (at, Instant::now());
        self.of_all = self.heard;
    }

    /// Whether some watches may have marks of their own now.
    pub(super) fn may_show_some(&self) -> bool {
        self.of_all.elapsed() >= ALONE
    }

    /// Marks of some watches go out, the last one to this.
    pub(super) fn shows_some(&mut self, at: LogId, last: u64) {
        (self.at, self.last) = (at, last);
    }

    /// The watches of the stream in the order in which they get marks of their own.
    pub(super) fn in_turn<T>(&self, watches: &BTreeMap<u64, T>) -> impl Iterator<Item = u64> {
        let behind = watches.range(self.last.saturating_add(1)..);
        behind.chain(watches.range(..=self.last)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: one watch of a stream always had something to be told, and the others never heard how far they were.
    /// When the node stopped, their client went on from where they had begun, and that was not kept any more.
    #[test]
    fn watches_beside_a_busy_one_have_marks_of_their_own_in_turn() {
        let watches = BTreeMap::from([1_u64, 2, 5, 9].map(|number| (number, number)));
        let mut marks = Marks::new();
        let in_turn = |marks: &Marks| marks.in_turn(&watches).collect::<Vec<u64>>();
        assert_eq!(in_turn(&marks), [1, 2, 5, 9]);
        marks.shows_some(LogId::default(), 2);
        assert_eq!(in_turn(&marks), [5, 9, 1, 2]);
        marks.shows_some(LogId::default(), 9);
        assert_eq!(in_turn(&marks), [1, 2, 5, 9]);
    }

    /// The story: a member got another history in the place of one that an unsafe recovery discarded, and marked an
    /// earlier entry than before.
    #[test]
    fn a_mark_that_would_go_back_ends_the_stream() {
        let mut marks = Marks::new();
        marks.shows_all(LogId { term: 2, index: 7 });
        for at in [marks.at, LogId { term: 2, index: 8 }, LogId { term: 3, index: 7 }] {
            assert!(marks.go_on(at) && !marks.have_fallen(), "{at}");
        }
        assert!(!marks.go_on(LogId { term: 3, index: 6 }) && marks.have_fallen());
        assert!(!marks.go_on(LogId { term: 3, index: 9 }), "it stays so");
    }
}
