//! Walking the records in key order, in either direction.

use super::leaf::Leaf;
use super::node::{Inner, Node};
use super::{Encoded, decoded};
use std::marker::PhantomData;
use std::ops::Bound;

/// A key and its encoded entry.
pub struct Item<'a, V> {
    key: &'a [u8],
    entry: &'a [u8],
    decodes_to: PhantomData<fn() -> V>,
}

impl<'a, V: Encoded> Item<'a, V> {
    /// The key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The entry, decoded now. Never `None`: the index encoded it.
    pub fn entry(&self) -> Option<V> {
        decoded(self.entry)
    }
}

/// The records from a bound on, ascending or descending. Decodes nothing by itself, and allocates
/// only when it is made.
pub struct Iter<'a, V> {
    /// The inner nodes above the leaf, each with the child that the walk is in.
    path: Vec<(&'a Inner, usize)>,
    leaf: Option<&'a Leaf>,
    /// Ascending, the next record. Descending, the record after the next.
    at: usize,
    descending: bool,
    decodes_to: PhantomData<fn() -> V>,
}

impl<'a, V> Iter<'a, V> {
    pub(super) fn new(root: Option<&'a Node>, from: Bound<&[u8]>, descending: bool) -> Iter<'a, V> {
        let mut iter =
            Iter { path: Vec::new(), leaf: None, at: 0, descending, decodes_to: PhantomData };
        if let Some(root) = root {
            iter.descend(root, from);
        }
        iter
    }

    /// Goes down to the leaf where the walk begins. It may begin behind the leaf's last record.
    fn descend(&mut self, mut node: &'a Node, from: Bound<&[u8]>) {
        loop {
            match node {
                Node::Inner(inner) => {
                    let child = match from {
                        Bound::Included(key) | Bound::Excluded(key) => {
                            inner.separators.child_of(key)
                        }
                        Bound::Unbounded if self.descending => inner.children.len() - 1,
                        Bound::Unbounded => 0,
                    };
                    self.path.push((inner, child));
                    let Some(next) = inner.children.get(child) else { return };
                    node = next;
                }
                Node::Leaf(leaf) => {
                    let passed = |place: Result<usize, usize>, with_it: bool| match place {
                        Ok(at) => at + usize::from(with_it),
                        Err(at) => at,
                    };
                    self.at = match from {
                        Bound::Included(key) => passed(leaf.search(key), self.descending),
                        Bound::Excluded(key) => passed(leaf.search(key), !self.descending),
                        Bound::Unbounded if self.descending => leaf.count(),
                        Bound::Unbounded => 0,
                    };
                    self.leaf = Some(leaf);
                    return;
                }
            }
        }
    }

    /// Goes to the next leaf in the direction of the walk.
    fn next_leaf(&mut self) -> Option<&'a Leaf> {
        self.leaf = None;
        loop {
            let (inner, child) = self.path.last_mut()?;
            let next = match self.descending {
                true => child.checked_sub(1),
                false => Some(*child + 1),
            };
            let inner = *inner;
            let Some((at, node)) = next.and_then(|at| Some((at, inner.children.get(at)?))) else {
                self.path.pop();
                continue;
            };
            *child = at;
            self.descend(node, Bound::Unbounded);
            return self.leaf;
        }
    }
}

impl<'a, V: Encoded> Iterator for Iter<'a, V> {
    type Item = Item<'a, V>;

    fn next(&mut self) -> Option<Item<'a, V>> {
        let mut leaf = self.leaf?;
        let at = match self.descending {
            true => {
                if self.at == 0 {
                    leaf = self.next_leaf()?;
                }
                self.at -= 1;
                self.at
            }
            false => {
                if self.at == leaf.count() {
                    leaf = self.next_leaf()?;
                }
                self.at += 1;
                self.at - 1
            }
        };
        let (key, entry) = leaf.get(at);
        Some(Item { key, entry, decodes_to: PhantomData })
    }
}
