//! All keys of a cluster or a machine, collected from pages.

use crate::history::{Item, Version};
use crate::workload::{decode_key, decode_value};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A listing of all keys, while no client writes. Each group is of one moment.
#[derive(Debug, Default)]
pub struct Listing {
    /// Each group's keys, in order.
    pub(super) groups: BTreeMap<u32, Vec<Item>>,
    /// Groups with a value that no client wrote.
    pub(super) damaged: BTreeSet<u32>,
    /// One sentence for each key or value that no client wrote.
    pub(super) wrong: Vec<String>,
}

impl Listing {
    /// Adds a page of keys, values and versions. If more pages follow, it must have more than one
    /// group. Returns the key after which the next page begins. A write that takes effect between
    /// two pages changes keys of one group, so a group that may be incomplete on this page is left
    /// for the next one.
    pub fn page(&mut self, mut items: Vec<(Bytes, Bytes, Version)>, more: bool) -> Option<Bytes> {
        let group = |(key, _, _): &(Bytes, Bytes, Version)| decode_key(key).map(|(group, _)| group);
        if let (true, Some(last)) = (more, items.last().and_then(group)) {
            let whole = items.iter().rposition(|item| group(item) != Some(last));
            items.truncate(whole.map_or(items.len(), |at| at + 1));
        }
        for (key, value, version) in &items {
            self.add(key, value, *version);
        }
        items.pop().map(|(key, _, _)| key).filter(|_| more)
    }

    fn add(&mut self, bytes: &[u8], value: &[u8], version: Version) {
        let Some((group, key)) = decode_key(bytes) else {
            self.wrong.push(format!("no client ever wrote key `{}`", bytes.escape_ascii()));
            return;
        };
        match decode_value(value) {
            Some(value) => {
                self.groups.entry(group).or_default().push(Item {
                    key,
                    value: Some(value),
                    version,
                });
            }
            None => {
                self.damaged.insert(group);
                let length = value.len();
                self.wrong
                    .push(format!("key {group}/{key} holds {length} bytes that no client wrote"));
            }
        }
    }
}
