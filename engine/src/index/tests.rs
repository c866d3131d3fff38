//! The index against a `BTreeMap`.

use super::leaf::LEAF_BYTES;
use super::node::MAX_CHILDREN;
use super::packer::capacity_for;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// An entry of any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Blob(Vec<u8>);

impl Encoded for Blob {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn decode(bytes: &[u8]) -> Option<Blob> {
        Some(Blob(bytes.to_vec()))
    }
}

type Map = BTreeMap<Vec<u8>, Blob>;

impl Index<Blob> {
    /// Walks everything and checks what holds of it.
    fn check(&self) {
        let mut keys = 0;
        let mut depths = Vec::new();
        if let Some(root) = &self.root {
            check_node(root, (None, None), 0, &mut keys, &mut depths);
            assert!(!matches!(root, Node::Inner(inner) if inner.children.len() == 1));
        }
        assert_eq!(keys, self.len);
        depths.dedup();
        assert!(depths.len() <= 1, "leaves at different depths: {depths:?}");
    }
}

fn check_node(
    node: &Node,
    (from, to): (Option<&[u8]>, Option<&[u8]>),
    depth: usize,
    keys: &mut usize,
    depths: &mut Vec<usize>,
) {
    assert!(!node.is_empty());
    match node {
        Node::Leaf(leaf) => {
            let all: Vec<&[u8]> = (0..leaf.count()).map(|at| leaf.get(at).0).collect();
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(from.is_none_or(|from| from <= all[0]));
            assert!(to.is_none_or(|to| all[all.len() - 1] < to));
            assert!(leaf.size() <= LEAF_BYTES || leaf.count() == 1);
            assert!(leaf.size() <= leaf.capacity());
            assert!(leaf.size() * 3 >= leaf.capacity() * 2 || leaf.size() < 256);
            *keys += leaf.count();
            depths.push(depth);
        }
        Node::Inner(inner) => {
            let count = inner.children.len();
            assert_eq!(inner.separators.len() + 1, count);
            assert!(count <= MAX_CHILDREN);
            let all: Vec<&[u8]> =
                (0..inner.separators.len()).map(|at| inner.separators.get(at)).collect();
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
            for (at, child) in inner.children.iter().enumerate() {
                let from = at.checked_sub(1).map(|before| all[before]).or(from);
                let to = all.get(at).copied().or(to);
                check_node(child, (from, to), depth + 1, keys, depths);
            }
        }
    }
}

fn same(index: &Index<Blob>, map: &Map) {
    index.check();
    assert_eq!(index.len(), map.len());
    let pairs = |iter: Iter<'_, Blob>| -> Vec<(Vec<u8>, Blob)> {
        iter.map(|item| (item.key().to_vec(), item.entry().unwrap())).collect()
    };
    let expected: Vec<_> = map.iter().map(|(key, entry)| (key.clone(), entry.clone())).collect();
    assert!(pairs(index.iter()) == expected);
    let mut backwards = pairs(index.range(Bound::Unbounded, true));
    backwards.reverse();
    assert!(backwards == expected);
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, usize),
    Remove(Vec<u8>),
    /// Removes the key at this position.
    RemoveAt(prop::sample::Index),
    Get(Vec<u8>),
    Range(Vec<u8>, bool, bool),
    Clone,
    DropClone(prop::sample::Index),
}

/// Few short keys, many short ones, and long ones that differ at the end, or in the middle.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let long = (prop::sample::select(vec![0usize, 1, 126, 127, 128, 700, 2040]), any::<u8>())
        .prop_map(|(length, last)| {
            let mut key = vec![7; length];
            key.extend([last, 0, last].iter().take(1 + usize::from(last) % 3));
            key
        });
    let middle = (any::<u8>(), 0usize..2047).prop_map(|(byte, at)| {
        let mut key = vec![7; 2048];
        key[at] = byte;
        key
    });
    prop_oneof![
        6 => prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..4),
        6 => prop::collection::vec(any::<u8>(), 0..24),
        3 => long,
        1 => middle,
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 20usize..40,
        2 => 0usize..4,
        1 => 400usize..900,
        1 => 1500usize..9000,
        1 => Just(70_000usize),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (key(), length()).prop_map(|(key, length)| Step::Put(key, length)),
        2 => key().prop_map(Step::Remove),
        6 => any::<prop::sample::Index>().prop_map(Step::RemoveAt),
        2 => key().prop_map(Step::Get),
        1 => (key(), any::<bool>(), any::<bool>())
            .prop_map(|(key, included, down)| Step::Range(key, included, down)),
        1 => Just(Step::Clone),
        1 => any::<prop::sample::Index>().prop_map(Step::DropClone),
    ]
}

fn blob(number: usize, length: usize) -> Blob {
    Blob((0..length).map(|at| (at + number) as u8).collect())
}

fn check_range(index: &Index<Blob>, map: &Map, key: &[u8], included: bool, down: bool) {
    let from = if included { Bound::Included(key) } else { Bound::Excluded(key) };
    let found: Vec<_> = index.range(from, down).take(50).map(|item| item.key().to_vec()).collect();
    let expected: Vec<_> = if down {
        map.range::<[u8], _>((Bound::Unbounded, from))
            .rev()
            .map(|(k, _)| k.clone())
            .take(50)
            .collect()
    } else {
        map.range::<[u8], _>((from, Bound::Unbounded)).map(|(k, _)| k.clone()).take(50).collect()
    };
    assert_eq!(found, expected);
}

fn run(steps: Vec<Step>) -> (Index<Blob>, Map) {
    let (mut index, mut map) = (Index::default(), Map::new());
    let mut clones: Vec<(Index<Blob>, Map)> = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Put(key, length) => {
                let entry = blob(number, length);
                assert_eq!(index.insert(&key, &entry), map.insert(key, entry));
            }
            Step::Remove(key) => assert_eq!(index.remove(&key), map.remove(&key)),
            Step::RemoveAt(at) if !map.is_empty() => {
                let key = map.keys().nth(at.index(map.len())).unwrap().clone();
                assert_eq!(index.remove(&key), map.remove(&key));
            }
            Step::Get(key) => assert_eq!(index.get(&key), map.get(&key).cloned()),
            Step::Range(key, included, down) => check_range(&index, &map, &key, included, down),
            Step::Clone => clones.push((index.clone(), map.clone())),
            Step::DropClone(at) if !clones.is_empty() => {
                let (clone, then) = clones.swap_remove(at.index(clones.len()));
                same(&clone, &then);
                let mut remains = clone.into_remains();
                while remains.drop_some(3) {}
            }
            Step::RemoveAt(_) | Step::DropClone(_) => {}
        }
    }
    same(&index, &map);
    clones.iter().for_each(|(clone, then)| same(clone, then));
    (index, map)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Puts, removals, reads and clones give what a `BTreeMap` gives, and no clone ever changes.
    #[test]
    fn it_does_what_an_ordered_map_does(steps in prop::collection::vec(step(), 0..600)) {
        run(steps);
    }

    /// A tree that is emptied key by key, from anywhere, keeps its order and ends with no node.
    #[test]
    fn removals_down_to_the_last_key_leave_nothing(
        steps in prop::collection::vec(step(), 0..400), seed: u64,
    ) {
        let (mut index, mut map) = run(steps);
        let whole = (index.clone(), map.clone());
        let mut random = seed | 1;
        while !map.is_empty() {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (random >> 33) as usize % map.len();
            let key = map.keys().nth(at).unwrap().clone();
            assert_eq!(index.remove(&key), map.remove(&key));
            index.check();
        }
        assert!(index.root.is_none());
        same(&whole.0, &whole.1);
    }

    /// A tree built from sorted keys is the one that inserts make.
    #[test]
    fn a_tree_is_built_from_sorted_keys(
        keys in prop::collection::btree_map(key(), length(), 0..400),
        steps in prop::collection::vec(step(), 0..50),
    ) {
        let mut map: Map = keys.into_iter().map(|(key, length)| (key, blob(1, length))).collect();
        let mut builder = Builder::new();
        for (key, entry) in &map {
            builder.push(key, entry).unwrap();
            prop_assert_eq!(builder.push(key, entry), Err(Unordered));
        }
        prop_assert_eq!(builder.len(), map.len());
        let mut index = builder.finish();
        same(&index, &map);
        for step in steps {
            match step {
                Step::Put(key, length) => {
                    let entry = blob(2, length);
                    prop_assert_eq!(index.insert(&key, &entry), map.insert(key, entry));
                }
                Step::Remove(key) => prop_assert_eq!(index.remove(&key), map.remove(&key)),
                _ => {}
            }
        }
        same(&index, &map);
    }
}

/// Twenty thousand keys have inner nodes of two levels, which the small cases do not reach.
#[test]
fn a_tree_of_three_levels_grows_and_shrinks() {
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize
    };
    let (mut index, mut map) = (Index::default(), Map::new());
    let mut clones = Vec::new();
    for number in 0..90_000 {
        let key = format!("a common prefix of all/{:06}", next() % 30_000).into_bytes();
        let grows = number < 45_000;
        if next() % 10 < if grows { 9 } else { 2 } {
            let entry = blob(number, 20 + next() % 20);
            assert_eq!(index.insert(&key, &entry), map.insert(key, entry));
        } else {
            assert_eq!(index.remove(&key), map.remove(&key));
        }
        if number % 15_000 == 0 {
            same(&index, &map);
            clones.push((index.clone(), map.clone()));
        }
    }
    same(&index, &map);
    clones.iter().for_each(|(clone, then)| same(clone, then));
    for key in map.keys() {
        assert!(index.remove(key).is_some());
    }
    assert!(index.root.is_none());
}

#[test]
fn many_keys_are_built_in_one_pass_with_full_leaves() {
    let map: Map = (0..100_000).map(|n| (format!("{n:024}").into_bytes(), blob(n, 28))).collect();
    let mut builder = Builder::new();
    map.iter().for_each(|(key, entry)| builder.push(key, entry).unwrap());
    let index = builder.finish();
    same(&index, &map);
    let (leaves, bytes) = leaves(index.root.as_ref().unwrap());
    assert!(bytes / map.len() < 24 + 28 + 9, "{} bytes per key", bytes / map.len());
    assert!(leaves < map.len() / 25);
}

/// The number of leaves below a node, and the bytes that they occupy.
fn leaves(node: &Node) -> (usize, usize) {
    match node {
        Node::Leaf(leaf) => (1, leaf.capacity() + 16),
        Node::Inner(inner) => inner
            .children
            .iter()
            .map(leaves)
            .fold((0, 0), |(leaves, bytes), of| (leaves + of.0, bytes + of.1)),
    }
}

/// An unshared path is changed in place; with a clone, one path is copied and no more.
#[test]
fn a_change_copies_one_path_and_only_if_it_is_shared() {
    let mut index = Index::default();
    for n in 0..10_000 {
        index.insert(format!("{n:08}").as_bytes(), &blob(n, 28));
    }
    let addresses = |index: &Index<Blob>| {
        let mut all = Vec::new();
        collect(index.root.as_ref().unwrap(), &mut all);
        all
    };
    let before = addresses(&index);
    index.insert(b"00005000", &blob(1, 28));
    assert_eq!(addresses(&index), before);
    let clone = index.clone();
    index.insert(b"00005000", &blob(2, 28));
    assert_eq!(addresses(&clone), before);
    let copied = addresses(&index).iter().zip(&before).filter(|(now, then)| now != then).count();
    assert_eq!(copied, 3, "a root, an inner node and a leaf");
    let (clone_of_now, now) = (index.clone(), addresses(&index));
    assert_eq!(index.remove(b"no such key"), None);
    assert_eq!(addresses(&index), now);
    drop(clone_of_now);
    assert_eq!(clone.get(b"00005000"), Some(blob(1, 28)));
}

fn collect(node: &Node, all: &mut Vec<usize>) {
    match node {
        Node::Leaf(leaf) => all.push(leaf.get(0).0.as_ptr() as usize),
        Node::Inner(inner) => {
            all.push(Arc::as_ptr(inner) as usize);
            inner.children.iter().for_each(|child| collect(child, all));
        }
    }
}

#[test]
fn an_index_is_dropped_in_bounded_pieces() {
    let mut index = Index::default();
    for n in 0..10_000 {
        index.insert(format!("{n:08}").as_bytes(), &blob(n, 28));
    }
    let (clone, mut nodes) = (index.clone(), Vec::new());
    collect(index.root.as_ref().unwrap(), &mut nodes);
    let pieces = |index: Index<Blob>| {
        let mut remains = index.into_remains();
        (1..).find(|_| !remains.drop_some(10)).unwrap()
    };
    assert_eq!(pieces(clone), 1, "all its nodes are shared");
    assert_eq!(pieces(index), nodes.len().div_ceil(10));
}

#[test]
fn a_leaf_takes_a_size_class_of_the_allocator() {
    assert_eq!(capacity_for(LEAF_BYTES), LEAF_BYTES);
    for size in 6..10_000 {
        let bytes = capacity_for(size) + 16;
        assert!(bytes >= size + 16 && (bytes <= 64 || bytes <= (size + 16) * 5 / 4 + 16));
        assert!(bytes == 64 || bytes.trailing_zeros() >= bytes.ilog2() - 2);
    }
}
