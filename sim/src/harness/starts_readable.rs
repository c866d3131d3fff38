//! What a node starts with is readable: every value that its keys refer to is there, and matches
//! its hash.
//!
//! The view is taken in the very step in which the node begins to serve, and it holds the space of
//! the values while they are read: an entry applied a moment later would hide what recovery brought
//! back. A disk that was made to misread proves nothing.

use super::cluster::Cluster;
use super::machine::Machine;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_engine::View;
use std::sync::Arc;

/// Reads everything, on the node's own host; the check ends with the node.
pub(super) fn check(cluster: Arc<Cluster>, slot: u16, life: u32, view: View) {
    madsim::task::spawn(async move {
        let Some(machine) = cluster.machines.iter().find(|machine| machine.slot == slot) else {
            return;
        };
        if let Err(detail) = read(machine, life, &view).await {
            cluster.violation(Violation::new(
                "a node starts with what it had",
                format!("node {slot}: {detail}"),
            ));
        }
    });
}

async fn read(machine: &Machine, life: u32, view: &View) -> Result<(), String> {
    for (key, entry) in view.entries() {
        let read = view.read(&entry).await;
        if machine.damaged() || machine.node().is_none_or(|(current, _)| current != life) {
            return Ok(());
        }
        read.map_err(|error| format!("key {:?}: {error}", Bytes::copy_from_slice(key)))?;
    }
    Ok(())
}
