//! The nodes of the tree: leaves, and inner nodes over them.
//!
//! What holds here:
//! - All leaves have the same depth. No node is empty; an inner node has one separator fewer than
//!   children.
//! - A change copies the nodes on its path that are shared, and changes the others in place.
//! - A node that shrinks below a quarter joins a neighbour under the same parent if both together
//!   fill at most three quarters. So of two neighbours at least one is fairly full, and changes
//!   around a border do not split and join all the time.

use super::leaf::{LEAF_BYTES, Leaf};
use super::packer::Packer;
use super::separators::{Separators, between};
use super::{Encoded, decoded};
use std::sync::Arc;

/// The most children of an inner node.
pub(super) const MAX_CHILDREN: usize = 64;
/// An inner node with more separator bytes than this splits, unless it has few children.
const MAX_SEPARATOR_BYTES: usize = 4096;
/// An inner node with fewer children does not split for its bytes: long keys need height too.
const MIN_SPLIT_CHILDREN: usize = 8;

#[derive(Clone)]
pub(super) enum Node {
    Leaf(Leaf),
    Inner(Arc<Inner>),
}

/// A node that split off to the right, with the separator before it.
pub(super) type Split = (Vec<u8>, Node);

/// What a put did.
pub(super) struct Put<V> {
    /// The entry that it replaced.
    pub old: Option<V>,
    pub splits: Vec<Split>,
    /// The changed leaf has become smaller.
    shrunk: bool,
}

impl<V> Default for Put<V> {
    fn default() -> Put<V> {
        Put { old: None, splits: Vec::new(), shrunk: false }
    }
}

impl Node {
    /// Sets a key.
    pub(super) fn put<V: Encoded>(
        &mut self,
        key: &[u8],
        entry: &[u8],
        packer: &mut Packer,
    ) -> Put<V> {
        match self {
            Node::Leaf(leaf) => put_in_leaf(leaf, key, entry, packer),
            Node::Inner(inner) => Arc::make_mut(inner).put(key, entry, packer),
        }
    }

    /// Removes a key that is there.
    pub(super) fn remove(&mut self, key: &[u8], packer: &mut Packer) {
        match self {
            Node::Leaf(leaf) => {
                let place = leaf.search(key);
                assert!(place.is_ok(), "a key of the index is removed after it was found");
                if let Ok(at) = place {
                    leaf.remove(at, packer);
                }
            }
            Node::Inner(inner) => Arc::make_mut(inner).remove(key, packer),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.count() == 0,
            Node::Inner(inner) => inner.children.is_empty(),
        }
    }

    fn is_small(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.size() < LEAF_BYTES / 4,
            Node::Inner(inner) => inner.children.len() < MAX_CHILDREN / 4,
        }
    }

    /// This node joined with its right neighbour, if both together are small enough.
    fn joined(&self, separator: &[u8], right: &Node, packer: &mut Packer) -> Option<Node> {
        match (self, right) {
            (Node::Leaf(left), Node::Leaf(right)) => {
                (left.size() + right.size() <= LEAF_BYTES / 4 * 3).then(|| {
                    left.pack(0..left.count(), packer);
                    right.pack(0..right.count(), packer);
                    Node::Leaf(Leaf::packed(packer))
                })
            }
            (Node::Inner(left), Node::Inner(right)) => {
                let children = left.children.len() + right.children.len();
                let bytes = left.separators.bytes() + separator.len() + right.separators.bytes();
                let small = children <= MAX_CHILDREN / 4 * 3
                    && (bytes <= MAX_SEPARATOR_BYTES / 4 * 3 || children < MIN_SPLIT_CHILDREN);
                small.then(|| {
                    let mut joined = Inner::clone(left);
                    joined.separators.append(separator, &right.separators);
                    joined.children.extend_from_slice(&right.children);
                    Node::Inner(Arc::new(joined))
                })
            }
            _ => None,
        }
    }
}

fn put_in_leaf<V: Encoded>(
    leaf: &mut Leaf,
    key: &[u8],
    entry: &[u8],
    packer: &mut Packer,
) -> Put<V> {
    let place = leaf.search(key);
    let old = place.ok().map(|at| leaf.get(at).1);
    let shrunk = old.is_some_and(|old| entry.len() < old.len());
    let old = old.and_then(decoded);
    let split_off = leaf.put(place, key, entry, packer);
    let mut left = &*leaf;
    let splits = split_off.iter().map(|right| {
        let separator = between(left.last_key(), right.first_key()).to_vec();
        left = right;
        (separator, Node::Leaf(right.clone()))
    });
    let splits = splits.collect();
    Put { old, splits, shrunk }
}

#[derive(Clone, Default)]
pub(super) struct Inner {
    pub separators: Separators,
    pub children: Vec<Node>,
}

impl Inner {
    /// An inner node over one child.
    pub(super) fn of(child: Node) -> Inner {
        Inner { separators: Separators::default(), children: vec![child] }
    }

    /// The node, without memory reserved for more.
    pub(super) fn finished(mut self) -> Node {
        self.separators.shrink();
        self.children.shrink_to_fit();
        Node::Inner(Arc::new(self))
    }

    /// The child that `key` belongs to.
    pub(super) fn child_of(&self, key: &[u8]) -> Option<&Node> {
        self.children.get(self.separators.child_of(key))
    }

    fn put<V: Encoded>(&mut self, key: &[u8], entry: &[u8], packer: &mut Packer) -> Put<V> {
        let at = self.separators.child_of(key);
        let child = self.children.get_mut(at);
        assert!(child.is_some(), "an inner node has one separator fewer than children");
        let Put { old, splits, shrunk } =
            child.map(|child| child.put(key, entry, packer)).unwrap_or_default();
        if splits.is_empty() {
            if shrunk {
                self.join_if_small(at, packer);
            }
            return Put { old, splits, shrunk };
        }
        for ((separator, node), at) in splits.into_iter().zip(at..) {
            self.separators.insert(at, &separator);
            self.children.insert(at + 1, node);
        }
        Put { old, splits: self.split_if_large(), shrunk: false }
    }

    pub(super) fn split_if_large(&mut self) -> Vec<Split> {
        let children = self.children.len();
        let long = self.separators.bytes() > MAX_SEPARATOR_BYTES && children >= MIN_SPLIT_CHILDREN;
        if children <= MAX_CHILDREN && !long {
            return Vec::new();
        }
        let (separator, separators) = self.separators.split_off(children / 2 - 1);
        let right = Inner { separators, children: self.children.split_off(children / 2) };
        self.children.shrink_to_fit();
        self.separators.shrink();
        vec![(separator, Node::Inner(Arc::new(right)))]
    }

    fn remove(&mut self, key: &[u8], packer: &mut Packer) {
        let at = self.separators.child_of(key);
        let Some(child) = self.children.get_mut(at) else { return };
        child.remove(key, packer);
        if child.is_empty() {
            self.children.remove(at);
            if self.separators.len() > 0 {
                self.separators.remove(at.saturating_sub(1));
            }
        } else {
            self.join_if_small(at, packer);
        }
    }

    /// Joins a small child with its left or its right neighbour, if there is one small enough.
    fn join_if_small(&mut self, at: usize, packer: &mut Packer) {
        if !self.children.get(at).is_some_and(Node::is_small) {
            return;
        }
        for left in [at.checked_sub(1), Some(at)].into_iter().flatten() {
            let pair = self.children.get(left).zip(self.children.get(left + 1));
            let joined = pair.and_then(|(a, b)| a.joined(self.separators.get(left), b, packer));
            if let Some(joined) = joined {
                self.separators.remove(left);
                self.children.remove(left + 1);
                if let Some(child) = self.children.get_mut(left) {
                    *child = joined;
                }
                return;
            }
        }
    }
}
