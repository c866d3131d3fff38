//! A hash over a replica's whole state, to compare replicas that have applied the same entry.

use bytes::Bytes;
use cairn_engine::{ListQuery, LogId, View};
use xxhash_rust::xxh3::Xxh3;

const PAGE: usize = 4096;

/// The applied position, and XXH3-128 over every key, version and value hash in key order, then the machine image.
pub(crate) fn of(view: &View) -> (Option<LogId>, u128) {
    let mut hasher = Xxh3::new();
    let mut after: Option<Bytes> = None;
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
            hasher.update(&(item.key.len() as u64).to_le_bytes());
            hasher.update(&item.key);
            hasher.update(&item.entry.version.term.to_le_bytes());
            hasher.update(&item.entry.version.index.to_le_bytes());
            hasher.update(&item.entry.value.len.to_le_bytes());
            hasher.update(&item.entry.value.hash.to_le_bytes());
            after = Some(item.key);
        }
        if !page.more {
            break;
        }
    }
    hasher.update(&view.machine());
    (view.applied(), hasher.digest128())
}
