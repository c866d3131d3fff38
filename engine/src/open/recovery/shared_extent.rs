//! Finds two entries of the recovered log that claim the same bytes of the data area.
//!
//! An entry's extents belong to it alone while the log holds it, so in an undamaged log no two
//! overlap. Entries below a due purge are the exception: their extents were freed and may belong to
//! others now.

use crate::error::{Corruption, Error};
use crate::group::Group;
use crate::io::FileKind;
use crate::types::{GroupId, LogId, ValueRef};
use std::collections::BTreeMap;
use std::ops::Range;

/// The error for two entries that overlap, if there are any. One of them is not what was written,
/// and it cannot be known which.
pub(super) fn shared_extent(groups: &BTreeMap<GroupId, Group>) -> Option<Error> {
    let mut extents: Vec<(u64, u64)> =
        segments(groups).map(|(_, segment)| (segment.start, segment.end)).collect();
    extents.sort_unstable();
    let overlap = |pair: &&[(u64, u64)]| match pair {
        [(_, end), (start, _)] => end > start,
        _ => false,
    };
    let [_, (start, end)] = extents.windows(2).find(overlap)? else { return None };
    let claims = segments(groups).filter(|(_, of)| of.start < *end && of.end > *start);
    let log_ids: Vec<LogId> = claims.map(|(id, _)| id).collect();
    Some(Error::Corrupt(Corruption {
        file: FileKind::Data,
        offset: *start,
        length: end - start,
        expected: "an extent of one entry of the log".to_owned(),
        found: format!(
            "{}, which overlap",
            log_ids.iter().map(LogId::to_string).collect::<Vec<_>>().join(" and ")
        ),
        log_ids,
    }))
}

/// The bytes in the data area of each entry that must have them for itself.
fn segments(groups: &BTreeMap<GroupId, Group>) -> impl Iterator<Item = (LogId, Range<u64>)> {
    groups.values().flat_map(|group| {
        let kept = group.log.entries().filter(|entry| group.keeps_extents_of(entry.id.index));
        kept.flat_map(|entry| {
            entry.extents().flat_map(ValueRef::segments).map(|segment| (entry.id, segment))
        })
    })
}
