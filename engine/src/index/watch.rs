//! Counts how many nodes of an index still exist, for tests.

use super::Index;
use super::node::{Inner, Node};
use std::sync::{Arc, Weak};

/// References to the nodes of an index that keep none of them.
#[derive(Default)]
pub(crate) struct Watch {
    leaves: Vec<Weak<[u8]>>,
    inner: Vec<Weak<Inner>>,
}

impl Watch {
    /// How many of the nodes are not freed yet.
    pub(crate) fn alive(&self) -> usize {
        let leaves = self.leaves.iter().filter(|leaf| leaf.strong_count() > 0);
        leaves.count() + self.inner.iter().filter(|inner| inner.strong_count() > 0).count()
    }

    fn add(&mut self, node: &Node) {
        match node {
            Node::Leaf(leaf) => self.leaves.push(leaf.downgrade()),
            Node::Inner(inner) => {
                self.inner.push(Arc::downgrade(inner));
                inner.children.iter().for_each(|child| self.add(child));
            }
        }
    }
}

impl<V> Index<V> {
    pub(crate) fn watch(&self) -> Watch {
        let mut watch = Watch::default();
        self.root.iter().for_each(|root| watch.add(root));
        watch
    }
}
