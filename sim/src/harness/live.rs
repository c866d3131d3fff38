//! The values that a running node's keys refer to are on its disk and match their hashes, unless
//! the disk itself lost them through a fault.
//!
//! The check reads the bytes from the simulated disk, past the node, and the disk knows which
//! blocks it damaged. So a node that overwrites what it still needs is found at once, before a peer
//! repairs it. A block that the disk damaged is left out until a scrub finds nothing. A value that
//! the journal carries need not be at its place as long as no later block says that it is.

use super::cluster::Cluster;
use super::machine::Machine;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_engine::io::{BLOCK, FileKind};
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
    let carried = Carried::read(machine);
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
            && !carried.may_hold(entry)
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
    let carried = Carried::read(machine);
    all.filter(|(_, entry)| written(entry.version, flushed) && !intact(machine, entry))
        .filter(|(_, entry)| !carried.may_hold(entry))
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

/// Bytes of a commit block before its records.
const HEADER_BYTES: usize = 96;

/// The longest value that the journal carries, in bytes.
const CARRIED_MAX: u32 = 8 << 10;

/// The records of the journal blocks whose values may not be at their places, one behind another,
/// as the format says (`docs/format.md`); `None` where the disk damaged the journal.
struct Carried(Option<Vec<u8>>);

impl Carried {
    fn read(machine: &Machine) -> Carried {
        let journal = machine.disk.size(FileKind::Journal).and_then(|size| {
            let size = size as usize;
            let intact = machine.disk.as_written(FileKind::Journal, 0, size);
            machine.disk.bytes(FileKind::Journal, 0, size).filter(|_| intact)
        });
        Carried(journal.map(|journal| not_placed(&journal)))
    }

    fn may_hold(&self, entry: &KeyEntry) -> bool {
        let hash = |bytes: &[u8]| xxh3_128(bytes) == entry.value.hash;
        let mut records = self.0.iter().map(|records| records.windows(entry.value.len as usize));
        records.next().map_or(entry.value.len <= CARRIED_MAX, |mut found| found.any(hash))
    }
}

/// The payloads of the blocks behind the last one that a written block says is placed.
fn not_placed(journal: &[u8]) -> Vec<u8> {
    let number = |block: &[u8], at: usize| {
        let bytes = block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let (sequence, written, placed) = (40, 64, 88);
    let mut blocks: Vec<&[u8]> =
        journal.chunks_exact(BLOCK).filter(|block| block.starts_with(b"CRNJ")).collect();
    blocks.sort_by_key(|block| number(block, sequence));
    let done = blocks.last().map_or(0, |block| number(block, written));
    let done = blocks.iter().filter(|block| number(block, sequence) <= done);
    let placed = done.map(|block| number(block, placed)).max().unwrap_or(0);
    let open = blocks.iter().filter(|block| number(block, sequence) > placed);
    let payloads = open.map(|block| {
        let used = block.get(6..8).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes);
        let used = usize::from(used.unwrap_or(0));
        block.get(HEADER_BYTES..HEADER_BYTES + used).unwrap_or_default()
    });
    payloads.collect::<Vec<_>>().concat()
}

fn of(view: &View) -> Vec<(Bytes, KeyEntry)> {
    let with_value = view.entries().filter(|(_, entry)| entry.value.len > 0);
    with_value.map(|(key, entry)| (Bytes::copy_from_slice(key), entry)).collect()
}
