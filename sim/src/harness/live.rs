//! The values that a running node's keys refer to are on its disk and match their hashes, unless
//! the disk itself lost them through a fault.
//!
//! The check reads the bytes from the simulated disk, past the node, and the disk knows which
//! blocks it damaged. So a node that overwrites what it still needs is found at once, before a peer
//! repairs it. A block that the disk damaged is left out until a scrub finds nothing.

use super::cluster::Cluster;
use super::machine::Machine;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_engine::io::FileKind;
use cairn_engine::{KeyEntry, LogId, View};
use cairn_node::Node;
use cairn_raft::GROUP;
use xxhash_rust::xxh3::xxh3_128;

/// The property's name.
const NAME: &str = "a node overwrites nothing that it needs";

/// Checks all keys of a running node.
pub(super) fn check(cluster: &Cluster, machine: &Machine, node: &Node) {
    let doubtful = machine.doubtful_through();
    let flushed = machine.counted();
    let wrong = of(&node.engine().view(GROUP)).into_iter().filter(|(_, entry)| {
        let mut parts = entry.value.segments();
        written(entry.version, flushed)
            && doubtful.is_none_or(|doubtful| entry.version.index > doubtful)
            && parts.all(|part| {
                machine.disk.as_written(
                    FileKind::Data,
                    part.start,
                    (part.end - part.start) as usize,
                )
            })
            && !intact(machine, entry)
    });
    for (key, entry) in wrong {
        let detail = format!("node {}, key `{}`: {entry:?}", machine.slot, key.escape_ascii());
        cluster.violation(Violation::new(NAME, detail));
    }
}

/// The keys of a node whose values are damaged on its disk, whatever the cause.
pub(super) fn damaged(machine: &Machine, node: &Node) -> Vec<bytes::Bytes> {
    let flushed = machine.counted();
    let all = of(&node.engine().view(GROUP)).into_iter();
    all.filter(|(_, entry)| written(entry.version, flushed) && !intact(machine, entry))
        .map(|(key, _)| key)
        .collect()
}

/// A leader may apply an entry that its followers hold while its own write is still in flight.
fn written(version: LogId, flushed: Option<LogId>) -> bool {
    flushed.is_some_and(|flushed| flushed.index >= version.index && flushed.term >= version.term)
}

fn intact(machine: &Machine, entry: &KeyEntry) -> bool {
    let parts = entry.value.segments().map(|part| {
        machine.disk.bytes(FileKind::Data, part.start, (part.end - part.start) as usize)
    });
    let bytes: Option<Vec<_>> = parts.collect();
    bytes.is_some_and(|bytes| xxh3_128(&bytes.concat()) == entry.value.hash)
}

fn of(view: &View) -> Vec<(Bytes, KeyEntry)> {
    let with_value = view.entries().filter(|(_, entry)| entry.value.len > 0);
    with_value.map(|(key, entry)| (Bytes::copy_from_slice(key), entry)).collect()
}
