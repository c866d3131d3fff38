//! What a node starts with is whole: every value that its keys refer to is there, as its hash says.
//!
//! The keys are looked at in the very step in which the node begins to serve, and their space is held while they are read:
//! what is applied a moment later would hide what recovery brought back. A disk that was made to misread is no witness.

use super::cluster::Cluster;
use super::machine::Machine;
use crate::check::Violation;
use cairn_engine::{ListQuery, View};
use std::sync::Arc;

/// Keys taken from the view at once.
const PAGE: usize = 64;

/// Reads everything, on the node's own host; the check ends with the node.
pub(super) fn check(cluster: Arc<Cluster>, slot: u16, life: u32, view: View) {
    madsim::task::spawn(async move {
        let Some(machine) = cluster.machines.iter().find(|machine| machine.slot == slot) else { return };
        if let Err(detail) = read(machine, life, &view).await {
            cluster.violation(Violation::new(
                "a node starts with what it had",
                format!("node {slot}: {detail}"),
            ));
        }
    });
}

async fn read(machine: &Machine, life: u32, view: &View) -> Result<(), String> {
    let mut after = None;
    loop {
        let query = ListQuery {
            start_after: after.take(),
            limit: PAGE,
            max_bytes: u64::MAX,
            keys_only: true,
            ..ListQuery::default()
        };
        let page = view.list(&query);
        for item in page.items {
            let read = view.read(&item.entry).await;
            if machine.damaged() || machine.node().is_none_or(|(current, _)| current != life) {
                return Ok(());
            }
            read.map_err(|error| format!("key {:?}: {error}", item.key))?;
            after = Some(item.key);
        }
        if !page.more {
            return Ok(());
        }
    }
}
