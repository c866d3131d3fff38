//! A persistent ordered map from byte strings to encoded entries, for millions of keys in memory.
//!
//! ```text
//!                inner  [ separators | children ]
//!               ╱                ╲
//!   leaf [ k e │ k e │ k e ]   leaf [ k e │ k e ]     keys and entries packed, one allocation each
//! ```
//!
//! A B+-tree whose nodes are shared between copies. It replaces maps with one allocation and fixed
//! slots for each key: those need about 200 bytes for a key of 24, this one about 65.
//!
//! What holds here:
//! - A clone takes O(1) and never changes. A change copies the nodes of one path that clones share,
//!   and changes the others in place.
//! - Keys and encoded entries have any length. A record longer than a leaf is a leaf of its own.
//! - A put searches once and returns the entry that it replaced.
//! - Nothing here reads a disk: an entry that does not decode is a bug, and ends the process.
//!
//! The module is public for the benches only.

mod builder;
mod iter;
mod leaf;
mod node;
mod packer;
mod remains;
mod separators;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod watch;

pub use builder::{Builder, Unordered};
pub use iter::{Item, Iter};
pub use remains::Remains;
#[cfg(test)]
pub(crate) use watch::Watch;

use leaf::Leaf;
use node::{Inner, Node};
use packer::Packer;
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

/// An entry as the index keeps it.
pub trait Encoded: Sized {
    /// Appends the encoding.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads an encoding back: all of `bytes`. `None` if they are none.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// The entry that these bytes encode.
fn decoded<V: Encoded>(bytes: &[u8]) -> Option<V> {
    let entry = V::decode(bytes);
    assert!(entry.is_some(), "the index decodes what it has encoded");
    entry
}

/// The map. A clone shares all nodes.
pub struct Index<V> {
    root: Option<Node>,
    len: usize,
    scratch: Scratch,
    decodes_to: PhantomData<fn() -> V>,
}

/// Buffers that a change needs; empty in a clone.
#[derive(Default)]
struct Scratch {
    packer: Packer,
    entry: Vec<u8>,
}

impl<V> Default for Index<V> {
    fn default() -> Index<V> {
        Index { root: None, len: 0, scratch: Scratch::default(), decodes_to: PhantomData }
    }
}

impl<V> Clone for Index<V> {
    fn clone(&self) -> Index<V> {
        Index { root: self.root.clone(), len: self.len, ..Index::default() }
    }
}

impl<V: Encoded> Index<V> {
    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry of a key.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<V> {
        let (leaf, at) = self.find(key)?;
        decoded(leaf.get(at).1)
    }

    fn find(&self, key: &[u8]) -> Option<(&Leaf, usize)> {
        let mut node = self.root.as_ref()?;
        loop {
            match node {
                Node::Leaf(leaf) => return Some((leaf, leaf.search(key).ok()?)),
                Node::Inner(inner) => node = inner.child_of(key)?,
            }
        }
    }

    /// Sets a key. Returns the entry that it replaces.
    pub fn insert(&mut self, key: &[u8], entry: &V) -> Option<V> {
        let Scratch { packer, entry: encoded } = &mut self.scratch;
        encoded.clear();
        entry.encode(encoded);
        let Some(root) = &mut self.root else {
            packer.push(key, encoded);
            self.root = Some(Node::Leaf(Leaf::packed(packer)));
            self.len = 1;
            return None;
        };
        let put = root.put::<V>(key, encoded, packer);
        self.len += usize::from(put.old.is_none());
        if put.splits.is_empty() {
            self.lower_root();
        } else {
            self.raise_root(put.splits);
        }
        put.old
    }

    /// Removes a key. Returns its entry.
    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        // A key that is not there must not copy shared nodes.
        let old = self.get(key)?;
        if let Some(root) = &mut self.root {
            root.remove(key, &mut self.scratch.packer);
        }
        self.len -= 1;
        self.lower_root();
        Some(old)
    }

    /// The records from a bound on, in ascending or descending order.
    #[must_use]
    pub fn range(&self, from: Bound<&[u8]>, descending: bool) -> Iter<'_, V> {
        Iter::new(self.root.as_ref(), from, descending)
    }

    /// All records in ascending order.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, V> {
        self.range(Bound::Unbounded, false)
    }

    /// Everything, to be dropped in bounded pieces.
    #[must_use]
    pub fn into_remains(self) -> Remains {
        Remains::new(self.root)
    }

    /// Puts new roots above the root and what split off from it.
    fn raise_root(&mut self, mut splits: Vec<node::Split>) {
        while !splits.is_empty() {
            let Some(first) = self.root.take() else { return };
            let mut root = Inner::of(first);
            for (separator, node) in splits {
                root.separators.push(&separator);
                root.children.push(node);
            }
            splits = root.split_if_large();
            self.root = Some(Node::Inner(Arc::new(root)));
        }
    }

    /// Removes roots of a single child, and an empty root.
    fn lower_root(&mut self) {
        while let Some(Node::Inner(inner)) = &self.root
            && inner.children.len() == 1
        {
            self.root = inner.children.first().cloned();
        }
        if self.root.as_ref().is_some_and(Node::is_empty) {
            self.root = None;
        }
    }
}
