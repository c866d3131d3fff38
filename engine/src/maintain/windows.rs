//! The order of a scrub: the data area in windows, and in each window the values that lie near one
//! another together.

use super::extent::Extent;
use std::ops::Range;

/// Each window of the data area costs a pass over all keys. So there are at most this many, unless
/// they become too small.
const WINDOWS: u64 = 64;
const WINDOW_BYTES_MIN: u64 = 64 << 20;
/// Adjacent values that span at most this many bytes are read with one request.
const SPAN_BYTES: u64 = 256 << 10;

/// The window of a data area of `data_bytes` that begins at `position`: what one call of
/// [`extents`](crate::Engine::extents) is for.
pub fn scrub_window(position: u64, data_bytes: u64) -> Range<u64> {
    let bytes = (data_bytes / WINDOWS).max(WINDOW_BYTES_MIN);
    position..position.saturating_add(bytes).min(data_bytes)
}

/// Divides extents, in order of offset, into spans: what one call of
/// [`check_extents`](crate::Engine::check_extents) is for. No span is empty.
pub fn scrub_spans(mut rest: &[Extent]) -> impl Iterator<Item = &[Extent]> {
    std::iter::from_fn(move || {
        let first = rest.first()?.at.offset();
        let mut bytes = 0;
        let within = |extent: &&Extent| {
            bytes += u64::from(extent.at.len);
            extent.at.offset() <= first + SPAN_BYTES && bytes <= SPAN_BYTES
        };
        let count = rest.iter().take_while(within).count().max(1);
        let (span, later) = rest.split_at(count);
        rest = later;
        Some(span)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintain::Owner;
    use crate::types::LogId;
    use crate::value_ref::ValueRef;

    #[test]
    fn windows_cover_the_area_once_and_are_few() {
        for data_bytes in [1 << 20, 64 << 20, (64 << 20) + 4096, 3 << 40] {
            let (mut position, mut count) = (0, 0);
            while position < data_bytes {
                let window = scrub_window(position, data_bytes);
                assert_eq!(window.start, position);
                assert!(window.end > position && window.end <= data_bytes);
                (position, count) = (window.end, count + 1);
            }
            assert!(count <= WINDOWS + 1);
        }
    }

    fn extent(offset: u64, len: u32) -> Extent {
        let log_id = LogId { term: 1, index: 1 };
        let at = ValueRef::contiguous(offset, len, 0).unwrap();
        Extent { at, log_id, owner: Owner::Entry }
    }

    #[test]
    fn a_span_has_values_that_lie_near_one_another_and_a_large_value_is_one_of_its_own() {
        let extents = [
            extent(0, 4096),
            extent(128 << 10, 4096),
            extent(256 << 10, 4096),
            // Near, and too many bytes.
            extent(260 << 10, 1 << 20),
            // Far.
            extent(8 << 20, 4096),
        ];
        let spans: Vec<usize> = scrub_spans(&extents).map(<[_]>::len).collect();
        assert_eq!(spans, [3, 1, 1]);
        assert_eq!(scrub_spans(&[]).count(), 0);
    }
}
