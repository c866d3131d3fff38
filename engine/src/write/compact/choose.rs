//! Chooses the sparsest blocks, and finds the keys whose tails lie in them by a pass over all keys.
//!
//! Everything goes in bounded pieces, and what is kept is bounded. The pass reads a copy of the
//! keys: it says where to look, not what holds when a value moves.

use crate::group::Keys;
use crate::io::yield_once;
use crate::state::Shared;
use crate::types::{GroupId, KeyEntry};
use std::collections::VecDeque;

/// The most blocks of a plan: 64 MiB.
const BLOCKS: u32 = 1 << 14;
/// The most tails of a plan; with keys of 30 bytes about 10 MiB of memory.
const TAILS: usize = 1 << 17;
/// Blocks of the space map visited before the lock is released.
const BLOCKS_AT_ONCE: u32 = 1 << 14;
/// Keys visited before the task yields.
const KEYS_AT_ONCE: usize = 1024;

/// A key of a group.
pub(super) type GroupKey = (GroupId, Box<[u8]>);

/// A block to empty, and whose tails lie in it.
pub(super) struct SparseBlock {
    pub block: u32,
    pub keys: Vec<GroupKey>,
}

/// A block that may be chosen.
struct Candidate {
    block: u32,
    live: u16,
    /// How many of the live bytes are explained by keys, and the log entries that wrote them.
    found: u32,
    keys: Vec<GroupKey>,
}

/// The sparsest blocks with fewer than `limit` live bytes to which keys alone refer, with the log
/// or without. The sparsest comes first.
pub(super) async fn choose(shared: &Shared, limit: u16) -> VecDeque<SparseBlock> {
    let mut candidates = candidates(shared, limit).await;
    if candidates.is_empty() {
        return VecDeque::new();
    }
    let groups: Vec<(GroupId, Keys, Option<u64>)> = {
        let state = shared.state.lock();
        let groups = state.groups.iter().filter(|(_, group)| group.is_reapplied());
        let purged = groups.map(|(id, group)| (*id, group, group.log.bounds().purged));
        purged.map(|(id, group, at)| (id, group.keys.clone(), at.map(|at| at.index))).collect()
    };
    let mut tails = 0;
    for (id, keys, purged) in groups {
        for (number, (key, entry)) in keys.iter().enumerate() {
            tails += find(&mut candidates, id, key, &entry, purged);
            if tails > TAILS {
                tails = keep_sparsest(&mut candidates);
            }
            if number % KEYS_AT_ONCE == KEYS_AT_ONCE - 1 {
                yield_once().await;
            }
        }
        // Most of the nodes may belong to this copy alone by now.
        keys.drop_in_pieces().await;
    }
    // What else is live there is in the log alone, or being installed.
    candidates.retain(|candidate| candidate.found == u32::from(candidate.live));
    candidates.sort_by_key(|candidate| (candidate.live, candidate.block));
    candidates
        .into_iter()
        .map(|Candidate { block, keys, .. }| SparseBlock { block, keys })
        .collect()
}

/// The sparsest blocks, by their number.
async fn candidates(shared: &Shared, limit: u16) -> Vec<Candidate> {
    let (blocks, below) = {
        let space = &shared.state.lock().space;
        let blocks = u32::try_from(space.capacity_bytes() / crate::layout::BLOCK_BYTES);
        (blocks.unwrap_or(u32::MAX), space.sparsest(BLOCKS, limit))
    };
    let mut found = Vec::new();
    let mut first = 0;
    while first < blocks && found.len() < BLOCKS as usize {
        let end = blocks.min(first.saturating_add(BLOCKS_AT_ONCE));
        let of = |(block, live)| Candidate { block, live, found: 0, keys: Vec::new() };
        found.extend(shared.state.lock().space.sparse_blocks(first..end, below).map(of));
        first = end;
        yield_once().await;
    }
    found.truncate(BLOCKS as usize);
    found
}

/// Notes the key with the candidates in which its tail lies. Returns how often.
fn find(
    candidates: &mut [Candidate],
    group: GroupId,
    key: &[u8],
    entry: &KeyEntry,
    purged: Option<u64>,
) -> usize {
    let mut count = 0;
    for (block, bytes) in entry.value.tail_parts() {
        let place = candidates.binary_search_by_key(&block, |candidate| candidate.block);
        let Some(candidate) = place.ok().and_then(|place| candidates.get_mut(place)) else {
            continue;
        };
        let logged = purged.is_none_or(|purged| purged < entry.version.index);
        candidate.found += bytes as u32 * (1 + u32::from(logged));
        candidate.keys.push((group, key.into()));
        count += 1;
    }
    count
}

/// Drops the fuller half of the candidates, for there are too many tails. Returns how many stay.
fn keep_sparsest(candidates: &mut Vec<Candidate>) -> usize {
    candidates.sort_by_key(|candidate| (candidate.live, candidate.block));
    candidates.truncate((candidates.len() / 2).max(1));
    candidates.sort_by_key(|candidate| candidate.block);
    candidates.iter().map(|candidate| candidate.keys.len()).sum()
}
