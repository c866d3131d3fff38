//! A hash over a replica's whole state, to compare replicas that have applied the same entry.

use cairn_engine::{LogId, View};
use xxhash_rust::xxh3::Xxh3;

/// The applied position, and XXH3-128 over every key, version and value hash in key order, then the
/// machine image.
pub(crate) fn of(view: &View) -> (Option<LogId>, u128) {
    let mut hasher = Xxh3::new();
    for (key, entry) in view.entries() {
        hasher.update(&(key.len() as u64).to_le_bytes());
        hasher.update(key);
        hasher.update(&entry.version.term.to_le_bytes());
        hasher.update(&entry.version.index.to_le_bytes());
        hasher.update(&entry.value.len.to_le_bytes());
        hasher.update(&entry.value.hash.to_le_bytes());
    }
    hasher.update(&view.machine());
    (view.applied(), hasher.digest128())
}
