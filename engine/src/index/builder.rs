//! Building a tree from keys in ascending order, without searching: one pass, leaves nearly full.

use super::leaf::{LEAF_BYTES, Leaf};
use super::node::{Inner, MAX_CHILDREN, Node, Split};
use super::packer::Packer;
use super::separators::between;
use super::{Encoded, Index};

/// How full leaves and inner nodes are made. What is left lets entries grow a little, and some keys
/// be added, before everything splits.
const LEAF_FILL: usize = LEAF_BYTES - LEAF_BYTES / 16;
const CHILDREN_FILL: usize = MAX_CHILDREN - MAX_CHILDREN / 16;

/// An index in the making. It takes memory for the finished part, one leaf, and one inner node for
/// each level.
pub struct Builder<V> {
    packer: Packer,
    last_key: Vec<u8>,
    /// The separator before the leaf in the making.
    separator: Vec<u8>,
    /// The inner nodes in the making, the lowest first, each with the separator before it.
    levels: Vec<(Vec<u8>, Inner)>,
    encoded: Vec<u8>,
    built: Index<V>,
}

/// A key that is not above the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unordered;

impl<V: Encoded> Builder<V> {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Builder<V> {
        Builder {
            packer: Packer::default(),
            last_key: Vec::new(),
            separator: Vec::new(),
            levels: Vec::new(),
            encoded: Vec::new(),
            built: Index::default(),
        }
    }

    /// Appends a key.
    ///
    /// # Errors
    /// If it is not above the one before it. Nothing is appended then.
    pub fn push(&mut self, key: &[u8], entry: &V) -> Result<(), Unordered> {
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        entry.encode(&mut encoded);
        let pushed = self.push_encoded(key, &encoded);
        self.encoded = encoded;
        pushed
    }

    /// Appends a key with the encoding of its entry.
    ///
    /// # Errors
    /// As [`Builder::push`].
    pub(crate) fn push_encoded(&mut self, key: &[u8], encoded: &[u8]) -> Result<(), Unordered> {
        if self.built.len > 0 && key <= &self.last_key[..] {
            return Err(Unordered);
        }
        if !self.packer.is_empty() && self.packer.size_with(key, encoded) > LEAF_FILL {
            let next = between(&self.last_key, key).to_vec();
            self.end_leaf(next);
        }
        self.packer.push(key, encoded);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.built.len += 1;
        Ok(())
    }

    /// Ends the leaf in the making. `next` is the separator behind it.
    fn end_leaf(&mut self, next: Vec<u8>) {
        let leaf = Node::Leaf(Leaf::packed(&mut self.packer));
        let separator = std::mem::replace(&mut self.separator, next);
        self.add(0, (separator, leaf));
    }

    /// Appends a node to the inner node in the making at `level`, and ends that one first if it is
    /// full.
    fn add(&mut self, mut level: usize, (mut separator, mut node): Split) {
        loop {
            let Some((_, inner)) = self.levels.get_mut(level) else {
                self.levels.push((separator, Inner::of(node)));
                return;
            };
            if inner.children.len() < CHILDREN_FILL {
                inner.separators.push(&separator);
                inner.children.push(node);
                return;
            }
            let next = (separator, Inner::of(node));
            let Some(slot) = self.levels.get_mut(level) else { return };
            let (before, full) = std::mem::replace(slot, next);
            (separator, node) = (before, full.finished());
            level += 1;
        }
    }

    /// Number of keys so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.built.len
    }

    /// Whether there are no keys so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.built.len == 0
    }

    /// The index.
    #[must_use]
    pub fn finish(mut self) -> Index<V> {
        if !self.packer.is_empty() {
            self.end_leaf(Vec::new());
        }
        // The nodes in the making end from the lowest up: each is the last child of the one above.
        let mut level = 0;
        while level + 1 < self.levels.len() {
            let last = self.levels.get_mut(level).map(std::mem::take);
            if let Some((separator, inner)) = last {
                self.add(level + 1, (separator, inner.finished()));
            }
            level += 1;
        }
        self.built.root = self.levels.pop().map(|(_, inner)| inner.finished());
        self.built.lower_root();
        self.built
    }
}

impl<V: Encoded> Default for Builder<V> {
    fn default() -> Builder<V> {
        Builder::new()
    }
}
