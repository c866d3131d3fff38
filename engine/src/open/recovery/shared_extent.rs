//! Finds two entries of the recovered log that claim the same bytes of the data area.
//!
//! An entry's extents belong to it alone while the log holds it, so in an undamaged log no two
//! overlap. Entries below a due purge are the exception: their extents were freed and may belong to
//! others now.

use crate::error::{Corruption, Error};
use crate::group::Group;
use crate::io::FileKind;
use crate::types::{GroupId, ValueRef};
use std::collections::BTreeMap;
use std::ops::Range;

/// The error for two entries that overlap, if there are any. One of them is not what was written,
/// and it cannot be known which.
pub(super) fn shared_extent(groups: &BTreeMap<GroupId, Group>) -> Option<Error> {
    let mut extents = Vec::new();
    for group in groups.values() {
        for entry in group.log.entries().filter(|entry| group.keeps_extents_of(entry.id.index)) {
            let of = |segment: Range<u64>| (segment.start, segment.end, entry.id);
            extents.extend(entry.extents().flat_map(ValueRef::segments).map(of));
        }
    }
    extents.sort_unstable();
    let overlap = |pair: &&[(u64, u64, _)]| match pair {
        [(_, end, _), (start, ..)] => end > start,
        _ => false,
    };
    let [(_, _, one), (offset, end, other)] = extents.windows(2).find(overlap)? else {
        return None;
    };
    Some(Error::Corrupt(Corruption {
        file: FileKind::Data,
        offset: *offset,
        length: end - offset,
        expected: format!("an extent of entry {other} alone"),
        found: format!("entry {one}, which overlaps it"),
        log_ids: vec![*one, *other],
    }))
}
