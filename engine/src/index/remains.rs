//! Dropping an index in bounded pieces.
//!
//! The last owner of a tree of a million keys frees tens of thousands of nodes. That takes
//! milliseconds, which a task that shares its thread with others must not take in one step.

use super::node::Node;
use std::sync::Arc;

/// What is left of an index that is being dropped. Dropping this drops the rest at once.
#[derive(Default)]
pub struct Remains {
    /// Nodes whose neighbours to the left are gone. At most one inner node's children for each
    /// level.
    nodes: Vec<Node>,
}

impl Remains {
    pub(super) fn new(root: Option<Node>) -> Remains {
        Remains { nodes: root.into_iter().collect() }
    }

    /// Lets go of at most `most` nodes; those that nobody else has are freed. Returns whether some
    /// are left.
    pub fn drop_some(&mut self, most: usize) -> bool {
        for _ in 0..most {
            match self.nodes.pop() {
                None => return false,
                Some(Node::Leaf(leaf)) => drop(leaf),
                Some(Node::Inner(inner)) => {
                    // What is below a shared node is shared too.
                    if let Some(inner) = Arc::into_inner(inner) {
                        self.nodes.extend(inner.children);
                    }
                }
            }
        }
        !self.nodes.is_empty()
    }
}
