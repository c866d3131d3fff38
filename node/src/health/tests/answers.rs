//! Answers of nodes, for the tests of what is found by them and of what is printed of that.
//!
//! What holds here: the command's tests use this file, too.

use cairn_client::{Error, NodeStatus, Role};

type Answer = (String, Result<NodeStatus, Error>);

/// A leader with which all is well.
pub(super) fn node(endpoint: &str) -> Answer {
    let mut node = NodeStatus::default();
    (node.slot, node.role, node.leader) = (1, Role::Leader, Some("a:1".into()));
    (endpoint.into(), Ok(node))
}

/// A node that is down.
pub(super) fn silent(endpoint: &str) -> Answer {
    let last_error = "nobody listens".into();
    (
        endpoint.into(),
        Err(Error::Unavailable { tried: vec![endpoint.into()], last_error, source: None }),
    )
}
