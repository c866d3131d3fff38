//! Whether two entries of the recovered log claim the same bytes of the data area.
//!
//! An entry's extents are its own as long as the log holds it, so in a log that is what was written no two overlap. Entries
//! below a due purge are the exception: their extents were freed, and others may have them by now.

use crate::error::{Corruption, CorruptionKind, Error};
use crate::group::Group;
use crate::io::FileKind;
use crate::types::GroupId;
use std::collections::BTreeMap;

/// The error for two entries that overlap, if there are any: one of them is not what was written, and nothing tells which.
pub(super) fn shared_extent(groups: &BTreeMap<GroupId, Group>) -> Option<Error> {
    let mut extents = Vec::new();
    for group in groups.values() {
        for entry in group.log.entries().filter(|entry| group.keeps_extents_of(entry.id.index)) {
            let of = |at: &crate::types::ValueRef| (at.offset, u64::from(at.len), entry.id);
            extents.extend(entry.extents().filter(|at| at.len > 0).map(of));
        }
    }
    extents.sort_unstable();
    let overlap = |pair: &&[(u64, u64, _)]| match pair {
        [(first, len, _), (second, ..)] => first.saturating_add(*len) > *second,
        _ => false,
    };
    let [(_, _, one), (offset, length, other)] = extents.windows(2).find(overlap)? else { return None };
    Some(Error::Corrupt(Corruption {
        file: FileKind::Data,
        offset: *offset,
        length: *length,
        kind: CorruptionKind::Value,
        expected: format!("an extent of entry {other} alone"),
        found: format!("entry {one}, which overlaps it"),
        log_ids: vec![*one, *other],
    }))
}
