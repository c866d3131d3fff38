//! The values that a running node's keys refer to are on its disk and match their hashes, unless
//! the disk itself lost them through a fault.
//!
//! The check reads the bytes from the simulated disk, past the node, and the disk knows which
//! blocks it damaged. So a node that overwrites what it still needs is found at once, before a peer
//! repairs it. A block that the disk damaged is left out until a scrub finds nothing. A value that
//! only the journal holds so far need not be at its place ([`super::carried`]).

use super::carried::Carried;
use super::cluster::Cluster;
use super::machine::Machine;
use crate::disk::SimDisk;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_engine::io::FileKind;
use cairn_engine::{KeyEntry, LogId, ValueRef};
use cairn_node::Node;
use cairn_raft::GROUP;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// The property's name.
const NAME: &str = "a node overwrites nothing that it needs";

/// How often, and in what time, a value that looks wrong is looked at again: a key refers to the new
/// place of a moved tail as soon as the move is queued, and the write of it is under way then.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Checks all keys of a running node.
pub(super) async fn check(cluster: &Cluster, machine: &Machine, node: &Node) {
    let mut wrong = wrong(machine, node);
    for _ in 0..LOOKS {
        if wrong.is_empty() {
            return;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let Some((_, now)) = machine.node() else { return };
        if now.engine().boot_epoch() != node.engine().boot_epoch() {
            return;
        }
        let again = self::wrong(machine, node);
        let same = |(key, entry): &(Bytes, KeyEntry)| {
            again.iter().any(|(other, now)| other == key && now.value == entry.value)
        };
        wrong.retain(same);
    }
    for (key, entry) in wrong {
        let detail = format!("node {}, key `{}`: {entry:?}", machine.slot, key.escape_ascii());
        cluster.violation(Violation::new(NAME, detail));
    }
}

/// The keys whose values are not on the disk although nothing else explains that.
fn wrong(machine: &Machine, node: &Node) -> Vec<(Bytes, KeyEntry)> {
    let doubtful = machine.doubtful_through();
    let flushed = machine.counted();
    let wrong = |(_, entry): &(Bytes, KeyEntry)| {
        written(entry.version, flushed)
            && doubtful.is_none_or(|doubtful| entry.version.index > doubtful)
            && as_written(machine, &entry.value)
            && !matches(&machine.disk, &entry.value)
    };
    let wrong = keys(node).into_iter().filter(wrong).collect();
    not_carried(wrong, machine, node)
}

/// The keys of a node whose values are damaged on its disk, whatever the cause.
pub(super) fn damaged(machine: &Machine, node: &Node) -> Vec<bytes::Bytes> {
    let flushed = machine.counted();
    let damaged = |(_, entry): &(Bytes, KeyEntry)| {
        written(entry.version, flushed) && !matches(&machine.disk, &entry.value)
    };
    let damaged = keys(node).into_iter().filter(damaged).collect();
    not_carried(damaged, machine, node).into_iter().map(|(key, _)| key).collect()
}

/// Those of these keys whose value is not in the journal.
fn not_carried(
    mut keys: Vec<(Bytes, KeyEntry)>,
    machine: &Machine,
    node: &Node,
) -> Vec<(Bytes, KeyEntry)> {
    if !keys.is_empty() {
        let carried = Carried::read(machine, node.engine().identity().incarnation);
        keys.retain(|(_, entry)| !carried.may_hold(machine, entry));
    }
    keys
}

/// A leader may apply an entry that its followers hold while its own write is still in flight.
fn written(version: LogId, flushed: Option<LogId>) -> bool {
    flushed.is_some_and(|flushed| flushed.index >= version.index && flushed.term >= version.term)
}

/// Whether nothing but writes changed the blocks of a value.
pub(super) fn as_written(machine: &Machine, at: &ValueRef) -> bool {
    at.segments().all(|part| {
        let len = (part.end - part.start) as usize;
        machine.disk.as_written(FileKind::Data, part.start, len)
    })
}

/// Whether the bytes at a value's place are its own.
pub(super) fn matches(disk: &SimDisk, at: &ValueRef) -> bool {
    let parts = at
        .segments()
        .map(|part| disk.bytes(FileKind::Data, part.start, (part.end - part.start) as usize));
    let bytes: Option<Vec<_>> = parts.collect();
    bytes.is_some_and(|bytes| xxh3_128(&bytes.concat()) == at.hash)
}

/// The keys of a node that have a value of at least one byte.
pub(super) fn keys(node: &Node) -> Vec<(Bytes, KeyEntry)> {
    let view = node.engine().view(GROUP);
    let with_value = view.entries().filter(|(_, entry)| entry.value.len > 0);
    with_value.map(|(key, entry)| (Bytes::copy_from_slice(key), entry)).collect()
}
