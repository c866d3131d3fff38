//! The runs of free blocks: a bit for each block, and above the bits a tree that knows the longest
//! run below each of its nodes.
//!
//! On an aged disk nearly every freed block is a run of its own. A tree of runs then has a node for
//! each block and several more for each change; here a change touches one cache line of bits and
//! a few summaries, and most often stops at the first.

use crate::value_ref::Run;
use std::ops::Range;

const WORD: u32 = u64::BITS;
/// Words below a leaf: a cache line.
const LEAF_WORDS: usize = 8;
const LEAF: u32 = WORD * LEAF_WORDS as u32;
/// Nodes below a node.
const FAN_OUT: usize = 8;

/// The free runs in a span of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    /// The free blocks with which it begins.
    prefix: u32,
    /// The free blocks with which it ends.
    suffix: u32,
    /// Its longest run.
    longest: u32,
}

impl Summary {
    fn of_word(word: u64) -> Summary {
        let longest = longest_run(word);
        Summary { prefix: word.trailing_ones(), suffix: word.leading_ones(), longest }
    }

    /// Of spans that follow each other, each of `span` blocks.
    fn of(parts: impl Iterator<Item = Summary>, span: u32) -> Summary {
        let (mut all, mut blocks) = (Summary::default(), 0);
        for part in parts {
            all.longest = all.longest.max(part.longest).max(all.suffix + part.prefix);
            if all.prefix == blocks {
                all.prefix += part.prefix;
            }
            all.suffix = if part.suffix == span { all.suffix + span } else { part.suffix };
            blocks += span;
        }
        all
    }
}

/// The longest run of set bits, by doubling (Hacker's Delight, 6-3).
fn longest_run(word: u64) -> u32 {
    if word == u64::MAX {
        return WORD;
    }
    // Where runs of 1, 2, 4, … 32 bits begin.
    let mut begins = word;
    let begins = [0, 1, 2, 4, 8, 16].map(|half| {
        begins &= begins >> half;
        begins
    });
    let (mut at, mut longest) = (u64::MAX, 0);
    for (begins, length) in begins.into_iter().zip([1, 2, 4, 8, 16, 32]).rev() {
        let longer = at & begins >> longest;
        if longer != 0 {
            (at, longest) = (longer, longest + length);
        }
    }
    longest
}

/// A run that is long enough: where it begins, or the part in which it lies.
enum Found {
    At(u32),
    Inside(usize),
}

/// Where the first run of at least `length` blocks is, in parts of `span` blocks that have one.
fn find(parts: impl Iterator<Item = Summary>, span: u32, length: u32) -> Option<Found> {
    let (mut before, mut start) = (0, 0);
    for (number, part) in parts.enumerate() {
        if before + part.prefix >= length {
            return Some(Found::At(start - before));
        }
        if part.longest >= length {
            return Some(Found::Inside(number));
        }
        before = if part.prefix == span { before + span } else { part.suffix };
        start += span;
    }
    None
}

pub(super) struct FreeRuns {
    /// A bit for each block: set if it is free.
    words: Vec<u64>,
    /// The summaries of the leaves, then those of each level above, up to the root.
    levels: Vec<Vec<Summary>>,
    blocks: u32,
}

impl FreeRuns {
    /// An area of so many blocks, of which these are free.
    pub(super) fn new(blocks: u32, free: impl IntoIterator<Item = Run>) -> FreeRuns {
        let leaves = blocks.div_ceil(LEAF).max(1) as usize;
        let mut levels = vec![vec![Summary::default(); leaves]];
        let mut nodes = leaves;
        while nodes > 1 {
            nodes = nodes.div_ceil(FAN_OUT);
            levels.push(vec![Summary::default(); nodes]);
        }
        let mut runs = FreeRuns { words: vec![0; leaves * LEAF_WORDS], levels, blocks };
        for run in free {
            runs.mark(run, true);
        }
        runs.summarize(0..leaves);
        runs
    }

    /// Blocks from this one on that are free, at most `most`.
    pub(super) fn free_from(&self, block: u32, most: u32) -> u32 {
        let (mut free, mut at) = (0, block);
        while free < most {
            let rest = self.word((at / WORD) as usize) >> (at % WORD);
            let here = rest.trailing_ones().min(WORD - at % WORD);
            free += here;
            at += here;
            if here == 0 || !at.is_multiple_of(WORD) {
                break;
            }
        }
        free.min(most)
    }

    /// The first of the longest runs.
    pub(super) fn longest(&self) -> Option<Run> {
        self.first(self.length_of_longest())
    }

    /// How long the longest run is.
    pub(super) fn length_of_longest(&self) -> u32 {
        self.levels.last().and_then(|root| root.first()).map_or(0, |root| root.longest)
    }

    /// The first `length` blocks of the first run that has as many.
    pub(super) fn first(&self, length: u32) -> Option<Run> {
        if length == 0 || self.length_of_longest() < length {
            return None;
        }
        let mut node = 0;
        for level in (1..self.levels.len()).rev() {
            let span = LEAF * (FAN_OUT as u32).pow(level as u32 - 1);
            match find(self.below(level, node), span, length)? {
                Found::At(start) => {
                    let first = (node * FAN_OUT) as u32 * span + start;
                    return Some(Run { first, blocks: length });
                }
                Found::Inside(child) => node = node * FAN_OUT + child,
            }
        }
        let words = self.words.get(node * LEAF_WORDS..)?.get(..LEAF_WORDS)?;
        let start = match find(words.iter().map(|word| Summary::of_word(*word)), WORD, length)? {
            Found::At(start) => start,
            Found::Inside(number) => {
                number as u32 * WORD + find_in_word(*words.get(number)?, length)?
            }
        };
        Some(Run { first: node as u32 * LEAF + start, blocks: length })
    }

    /// Marks blocks of a run as taken. Returns whether all were free.
    pub(super) fn take(&mut self, run: Run) -> bool {
        self.change(run, false)
    }

    /// Marks blocks of a run as free. Returns whether none was.
    pub(super) fn give(&mut self, run: Run) -> bool {
        self.change(run, true)
    }

    fn change(&mut self, run: Run, free: bool) -> bool {
        if run.blocks == 0 {
            return true;
        }
        if run.end() > self.blocks || !self.mark(run, free) {
            return false;
        }
        self.summarize((run.first / LEAF) as usize..(run.end() - 1) as usize / LEAF as usize + 1);
        true
    }

    /// Sets or clears the bits. Returns whether all of them changed.
    fn mark(&mut self, run: Run, free: bool) -> bool {
        let (mut at, mut changed) = (run.first, true);
        while at < run.end() {
            let here = (WORD - at % WORD).min(run.end() - at);
            let mask = (u64::MAX >> (WORD - here)) << (at % WORD);
            let Some(word) = self.words.get_mut((at / WORD) as usize) else { return false };
            let expected = if free { 0 } else { mask };
            changed &= *word & mask == expected;
            *word = if free { *word | mask } else { *word & !mask };
            at += here;
        }
        changed
    }

    /// Brings the summaries of these leaves up to date, and those above them as far as they change.
    fn summarize(&mut self, leaves: Range<usize>) {
        let mut changed = leaves;
        for level in 0..self.levels.len() {
            let mut different = false;
            for node in changed.clone() {
                let summary = match level {
                    0 => {
                        let words = (0..LEAF_WORDS).map(|word| self.word(node * LEAF_WORDS + word));
                        Summary::of(words.map(Summary::of_word), WORD)
                    }
                    _ => {
                        let span = LEAF * (FAN_OUT as u32).pow(level as u32 - 1);
                        Summary::of(self.below(level, node), span)
                    }
                };
                if let Some(known) = self.levels.get_mut(level).and_then(|all| all.get_mut(node)) {
                    different |= std::mem::replace(known, summary) != summary;
                }
            }
            if !different {
                return;
            }
            changed = changed.start / FAN_OUT..(changed.end - 1) / FAN_OUT + 1;
        }
    }

    /// The summaries of what lies below a node, which is no leaf.
    fn below(&self, level: usize, node: usize) -> impl Iterator<Item = Summary> {
        let children = self.levels.get(level - 1).map_or(&[][..], Vec::as_slice);
        children.iter().skip(node * FAN_OUT).take(FAN_OUT).copied()
    }

    fn word(&self, number: usize) -> u64 {
        self.words.get(number).copied().unwrap_or(0)
    }
}

/// Where a run of so many set bits begins.
fn find_in_word(word: u64, length: u32) -> Option<u32> {
    let mut at = 0;
    while at < WORD {
        at += (word >> at).trailing_zeros().min(WORD - at);
        let run = if at < WORD { (word >> at).trailing_ones() } else { 0 };
        if run >= length {
            return Some(at);
        }
        at += run;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The runs of a plain list of free blocks.
    fn runs_of(free: &[bool]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (block, _) in free.iter().enumerate().filter(|(_, free)| **free) {
            match runs.last_mut() {
                Some(run) if run.end() == block as u32 => run.blocks += 1,
                _ => runs.push(Run { first: block as u32, blocks: 1 }),
            }
        }
        runs
    }

    fn check(runs: &FreeRuns, free: &[bool]) {
        let expected = runs_of(free);
        let longest = expected.iter().map(|run| run.blocks).max().unwrap_or(0);
        let first = expected.iter().find(|run| run.blocks == longest).copied();
        assert_eq!(runs.longest(), first);
        for length in [1, 2, 5, 64, 65, 600, longest, longest + 1] {
            let first = expected.iter().find(|run| run.blocks >= length);
            let first = first.map(|run| Run { blocks: length, ..*run }).filter(|_| length > 0);
            assert_eq!(runs.first(length), first);
        }
        for run in &expected {
            assert_eq!(runs.free_from(run.first, u32::MAX), run.blocks);
            assert_eq!(runs.free_from(run.first, 1), 1);
            assert_eq!(runs.free_from(run.end(), u32::MAX), 0);
        }
        let anew = FreeRuns::new(free.len() as u32, expected);
        assert_eq!((&anew.words, &anew.levels), (&runs.words, &runs.levels));
    }

    /// Lengths around those of words, leaves and nodes.
    fn lengths() -> impl Strategy<Value = u32> {
        prop_oneof![Just(1), 1..4u32, 60..68u32, 500..520u32, 1..9000u32]
    }

    proptest! {
        #[test]
        fn the_longest_run_of_a_word_is_that_of_its_bits(
            word in any::<u64>(), run in any::<u64>(), by in 0..WORD,
        ) {
            for word in [word, word | u64::MAX << by, !(run >> by), 0, u64::MAX] {
                let bits: Vec<bool> = (0..WORD).map(|bit| word >> bit & 1 == 1).collect();
                let longest = runs_of(&bits).iter().map(|run| run.blocks).max();
                prop_assert_eq!(longest_run(word), longest.unwrap_or_default());
            }
        }

        #[test]
        fn it_knows_what_a_plain_list_knows(
            blocks in prop_oneof![1..70u32, 500..520u32, 4000..40_000u32],
            changes in prop::collection::vec((any::<prop::sample::Index>(), lengths(), any::<bool>()), 1..60),
        ) {
            let mut free = vec![true; blocks as usize];
            let mut runs = FreeRuns::new(blocks, [Run { first: 0, blocks }]);
            check(&runs, &free);
            for (at, length, give) in changes {
                let first = at.index(blocks as usize);
                let last = (first + length as usize).min(free.len());
                // Only the part that is of the other kind changes.
                let same = free[first..last].iter().take_while(|free| **free != give).count();
                let run = Run { first: first as u32, blocks: same as u32 };
                let changed = if give { runs.give(run) } else { runs.take(run) };
                prop_assert!(changed, "{:?}", run);
                free[first..first + same].fill(give);
                check(&runs, &free);
            }
        }
    }

    #[test]
    fn what_is_taken_or_given_twice_is_refused() {
        let mut runs = FreeRuns::new(1000, [Run { first: 10, blocks: 600 }]);
        assert!(!runs.give(Run { first: 609, blocks: 2 }));
        let mut runs = FreeRuns::new(1000, [Run { first: 10, blocks: 600 }]);
        assert!(!runs.take(Run { first: 609, blocks: 2 }));
        assert!(!FreeRuns::new(1000, []).give(Run { first: 999, blocks: 2 }), "behind the end");
    }
}
