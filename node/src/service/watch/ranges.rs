//! Which watches have a key in their range.
//!
//! What holds here: a key is looked up in logarithmic time, and in time for each watch that has it, however the
//! ranges lie and in whatever order they came. The ranges lie in trees that are balanced when they are built, and never
//! changed: a new range is a tree of its own, and two trees of one size become one of twice the size. A range that
//! is removed stays in its tree without a key, until half of what all ranges take in memory is of such.

use crate::access::Need;
use bytes::Bytes;
use std::cmp::Ordering;

/// The keys that somebody watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    /// The first key that may be among them.
    pub(super) start: Bytes,
    /// Behind them; `None`: to the last key.
    pub(super) end: Option<Bytes>,
}

impl Range {
    pub(super) fn has(&self, key: &[u8]) -> bool {
        &self.start[..] <= key && self.end.as_ref().is_none_or(|end| key < &end[..])
    }

    /// What a caller needs to watch it.
    pub(super) fn need(&self) -> Need<'_> {
        Need::ReadRange { start: &self.start, end: self.end.as_deref() }
    }

    /// The bytes of its two bounds.
    pub(super) fn bytes(&self) -> usize {
        self.start.len() + self.end.as_ref().map_or(0, Bytes::len)
    }
}

/// Memory of a range in a tree beside its bounds.
const RANGE_BYTES: usize = size_of::<Node>();

/// Where a range ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// It has no keys: its watch is gone.
    Nowhere,
    Before(Bytes),
    Nothing,
}

impl End {
    fn is_behind(&self, key: &[u8]) -> bool {
        match self {
            End::Nowhere => false,
            End::Before(end) => key < &end[..],
            End::Nothing => true,
        }
    }
}

/// The range of one watch.
struct Entry {
    start: Bytes,
    end: End,
    watch: u64,
}

impl Entry {
    fn place(&self) -> (&[u8], u64) {
        (&self.start[..], self.watch)
    }
}

/// A balanced tree, ordered by start.
type Tree = Option<Box<Node>>;

struct Node {
    entry: Entry,
    /// The greatest end in this tree. It may be that of a range that is gone.
    greatest: End,
    left: Tree,
    right: Tree,
}

/// The ranges of all watches.
#[derive(Default)]
pub(super) struct Ranges {
    /// At each place nothing, or so many ranges as two to the power of it.
    trees: Vec<Tree>,
    /// The memory of those that have a key, and of those that have none any more.
    kept: usize,
    gone: usize,
}

impl Ranges {
    pub(super) fn insert(&mut self, watch: u64, range: &Range) {
        let end = range.end.clone().map_or(End::Nothing, End::Before);
        self.kept += weight(range);
        self.add(vec![Entry { start: range.start.clone(), end, watch }]);
    }

    pub(super) fn remove(&mut self, watch: u64, range: &Range) {
        let place = (&range.start[..], watch);
        if !self.trees.iter_mut().any(|tree| forget(tree, place)) {
            return;
        }
        self.kept = self.kept.saturating_sub(weight(range));
        self.gone += weight(range);
        if self.gone > self.kept {
            self.rebuild();
        }
    }

    /// Calls `found` once with each watch that has one of these keys, which are in order.
    pub(super) fn with_any(&self, keys: &[&[u8]], found: &mut dyn FnMut(u64)) {
        self.trees.iter().for_each(|tree| visit(tree, keys, found));
    }

    /// Adds these, as many as two to some power, beside those that are there.
    fn add(&mut self, mut entries: Vec<Entry>) {
        let mut place = entries.len().trailing_zeros() as usize;
        loop {
            while self.trees.len() <= place {
                self.trees.push(None);
            }
            let Some(there) = self.trees.get_mut(place) else { return };
            if there.is_none() {
                *there = built(entries);
                return;
            }
            unbuild(there.take(), &mut entries);
            place += 1;
        }
    }

    fn rebuild(&mut self) {
        let mut entries = Vec::new();
        self.trees.drain(..).for_each(|tree| unbuild(tree, &mut entries));
        entries.retain(|entry| entry.end != End::Nowhere);
        self.gone = 0;
        while let Some(place) = entries.len().checked_ilog2() {
            let rest = entries.split_off(1 << place);
            self.add(entries);
            entries = rest;
        }
    }
}

/// The memory of a range, about.
fn weight(range: &Range) -> usize {
    RANGE_BYTES + range.bytes()
}

fn built(mut entries: Vec<Entry>) -> Tree {
    entries.sort_unstable_by(|one, other| one.place().cmp(&other.place()));
    let count = entries.len();
    build(&mut entries.into_iter(), count)
}

/// A tree of the next so many, which are in order.
fn build(entries: &mut std::vec::IntoIter<Entry>, count: usize) -> Tree {
    let others = count.checked_sub(1)?;
    let left = build(entries, others / 2);
    let entry = entries.next()?;
    let right = build(entries, others - others / 2);
    let ends = [&left, &right].into_iter().flatten().map(|node| &node.greatest);
    let greatest = ends.chain([&entry.end]).max().cloned()?;
    Some(Box::new(Node { entry, greatest, left, right }))
}

/// Takes a tree apart.
fn unbuild(tree: Tree, into: &mut Vec<Entry>) {
    if let Some(node) = tree {
        let Node { entry, left, right, .. } = *node;
        unbuild(left, into);
        into.push(entry);
        unbuild(right, into);
    }
}

/// Leaves a range without a key. `false`: it is not in this tree.
fn forget(tree: &mut Tree, place: (&[u8], u64)) -> bool {
    let Some(node) = tree else { return false };
    match place.cmp(&node.entry.place()) {
        Ordering::Less => forget(&mut node.left, place),
        Ordering::Greater => forget(&mut node.right, place),
        Ordering::Equal => {
            node.entry.end = End::Nowhere;
            true
        }
    }
}

fn visit(tree: &Tree, keys: &[&[u8]], found: &mut dyn FnMut(u64)) {
    let Some(node) = tree else { return };
    // No range here has a key behind the greatest end,
    let within = keys.partition_point(|key| node.greatest.is_behind(key));
    let keys = keys.get(..within).unwrap_or_default();
    if keys.is_empty() {
        return;
    }
    visit(&node.left, keys, found);
    // and neither this one nor those to the right have a key before its start.
    let before = keys.partition_point(|key| *key < &node.entry.start[..]);
    let keys = keys.get(before..).unwrap_or_default();
    let Some(first) = keys.first() else { return };
    if node.entry.end.is_behind(first) {
        found(node.entry.watch);
    }
    visit(&node.right, keys, found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeMap;

    fn range(start: &str, end: Option<&str>) -> Range {
        let owned = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Range { start: owned(start), end: end.map(owned) }
    }

    fn found(ranges: &Ranges, keys: &[&str]) -> Vec<u64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut found = Vec::new();
        ranges.with_any(&keys, &mut |watch| found.push(watch));
        found.sort_unstable();
        found
    }

    #[test]
    fn a_range_has_the_keys_from_its_start_until_before_its_end() {
        let (some, all) = (range("b", Some("d")), range("", None));
        for (key, has) in [("a", false), ("b", true), ("c9", true), ("d", false), ("e", false)] {
            assert_eq!(some.has(key.as_bytes()), has, "{key}");
            assert!(all.has(key.as_bytes()), "{key}");
        }
    }

    #[test]
    fn a_watch_is_found_once_by_each_of_several_keys_and_not_after_it_is_gone() {
        let mut ranges = Ranges::default();
        assert!(found(&ranges, &["a"]).is_empty());
        let (all, some, behind) = (range("", None), range("b", Some("d")), range("c", None));
        for (watch, range) in [(1, &all), (2, &some), (3, &behind), (4, &some)] {
            ranges.insert(watch, range);
        }
        assert_eq!(found(&ranges, &["a"]), [1]);
        assert_eq!(found(&ranges, &["b"]), [1, 2, 4]);
        assert_eq!(found(&ranges, &["a", "b", "c", "x"]), [1, 2, 3, 4]);
        assert_eq!(found(&ranges, &["d"]), [1, 3]);
        ranges.remove(2, &some);
        ranges.remove(7, &some);
        assert_eq!(found(&ranges, &["c"]), [1, 3, 4], "another one has the same range");
        ranges.remove(1, &all);
        ranges.remove(3, &behind);
        assert_eq!(found(&ranges, &["c"]), [4]);
        ranges.remove(4, &some);
        assert!(found(&ranges, &["c"]).is_empty() && ranges.trees.iter().all(Option::is_none));
    }

    /// Compared with a look at each range.
    #[test]
    fn whatever_begins_and_ends_each_key_finds_the_watches_that_have_it() {
        let mut random = StdRng::seed_from_u64(7);
        let (mut ranges, mut all) = (Ranges::default(), BTreeMap::new());
        let text = |random: &mut StdRng| format!("{:03}", random.random_range(0..400));
        for watch in 0..3000_u64 {
            let (one, other) = (text(&mut random), text(&mut random));
            let end =
                Some(one.clone().max(other.clone()) + "0").filter(|_| !watch.is_multiple_of(7));
            let new = range(&one.min(other), end.as_deref());
            ranges.insert(watch, &new);
            all.insert(watch, new);
            if random.random_range(0..5) < 3 {
                let gone = random.random_range(0..=watch);
                if let Some(range) = all.remove(&gone) {
                    ranges.remove(gone, &range);
                }
            }
            let mut keys: Vec<String> =
                (0..random.random_range(1..4)).map(|_| text(&mut random)).collect();
            keys.sort();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let has = |range: &Range| keys.iter().any(|key| range.has(key.as_bytes()));
            let expected: Vec<u64> =
                all.iter().filter(|(_, range)| has(range)).map(|(watch, _)| *watch).collect();
            assert_eq!(found(&ranges, &keys), expected);
        }
        assert_eq!(ranges.kept, all.values().map(weight).sum::<usize>());
        assert!(ranges.gone <= ranges.kept);
    }

    /// The story: long ranges that were gone, and charged to nobody, stayed in memory beside as many short ones.
    #[test]
    fn what_is_gone_takes_no_more_memory_than_what_is_kept() {
        fn bytes(tree: &Tree) -> usize {
            tree.as_ref()
                .map_or(0, |node| node.entry.start.len() + bytes(&node.left) + bytes(&node.right))
        }
        let mut ranges = Ranges::default();
        let short = range("a", Some("b"));
        (0..500).for_each(|watch| ranges.insert(watch, &short));
        let long = range(&"x".repeat(1 << 14), None);
        (500..900).for_each(|watch| ranges.insert(watch, &long));
        (500..900).for_each(|watch| ranges.remove(watch, &long));
        assert!(ranges.gone <= ranges.kept);
        assert!(ranges.trees.iter().map(bytes).sum::<usize>() <= ranges.kept);
        assert_eq!(found(&ranges, &["a"]).len(), 500);
    }

    /// The story of a tree that grows to one side: a client that begins its watches in order makes it a list, and
    /// each change takes a step for each watch.
    #[test]
    fn trees_are_no_deeper_than_they_must_be() {
        fn depth(tree: &Tree) -> usize {
            tree.as_ref().map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
        }
        let mut ranges = Ranges::default();
        for watch in 0..5000 {
            ranges.insert(watch, &range(&format!("{watch:05}"), None));
        }
        assert!(ranges.trees.iter().map(depth).max() <= Some(13));
        assert!(ranges.trees.len() <= 13);
    }
}
