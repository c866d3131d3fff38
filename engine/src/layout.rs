//! How a value of a given length lies in the data area: which part of it owns whole blocks, and
//! which part may share blocks with other values. The length alone decides, so a reference to the
//! value says only where, and both sides of it always agree.
//!
//! What a value owns alone is free as one when the value dies. Sharing saves the rest of the last
//! block where that rest would be more than a tenth of the value's blocks.

/// Bytes of a block of the data area.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// A value of at least this length shares nothing: the rest of its last block is less than a tenth.
const UNSHARED_BYTES: u32 = 40_960;
/// A tail of at least this length has a block of its own, for the same reason.
const UNSHARED_TAIL_BYTES: u32 = 3687;

/// The blocks that a value of `len` bytes owns alone.
pub(crate) const fn whole_blocks(len: u32) -> u32 {
    let tail = len % BLOCK_BYTES as u32;
    let down = len / BLOCK_BYTES as u32;
    if tail > 0 && (len >= UNSHARED_BYTES || tail >= UNSHARED_TAIL_BYTES) { down + 1 } else { down }
}

/// The last bytes of a value of `len` bytes that may share blocks with others: 0, or less than
/// [`UNSHARED_TAIL_BYTES`].
pub(crate) const fn shared_tail(len: u32) -> u32 {
    let owned = whole_blocks(len) as u64 * BLOCK_BYTES;
    (len as u64).saturating_sub(owned) as u32
}

/// Whether a value of `len` bytes owns all of its blocks.
pub(crate) const fn shares_nothing(len: u32) -> bool {
    len > 0 && shared_tail(len) == 0
}

/// The most blocks that values of these lengths take, if they are allocated in at most
/// `group_commits` parts, however the free blocks lie.
///
/// A tail begins at most one new block. Any two blocks that are filled one after the other hold
/// more than one block's bytes, since else the first tail of the second had gone into the first.
pub(crate) fn most_blocks(lengths: impl IntoIterator<Item = u64>, group_commits: u64) -> u64 {
    let (mut whole, mut tails, mut tail_bytes) = (0u64, 0u64, 0u64);
    for len in lengths {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        whole = whole.saturating_add(u64::from(whole_blocks(len)));
        tails += u64::from(shared_tail(len) > 0);
        tail_bytes = tail_bytes.saturating_add(u64::from(shared_tail(len)));
    }
    let packed = (2 * tail_bytes).div_ceil(BLOCK_BYTES).saturating_add(group_commits);
    whole.saturating_add(tails.min(packed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rule_is_that_of_the_format_document() {
        assert_eq!(BLOCK_BYTES, crate::io::BLOCK as u64);
        // (length, whole blocks, shared tail)
        let table = [
            (0, 0, 0),
            (1, 0, 1),
            (3686, 0, 3686),
            (3687, 1, 0),
            (4000, 1, 0),
            (4096, 1, 0),
            (4097, 1, 1),
            (5000, 1, 904),
            (8191, 2, 0),
            (40_959, 10, 0),
            (40_500, 9, 3636),
            (40_960, 10, 0),
            (40_961, 11, 0),
            (1 << 20, 256, 0),
            (u32::MAX, 1 << 20, 0),
        ];
        for (len, whole, tail) in table {
            assert_eq!((whole_blocks(len), shared_tail(len)), (whole, tail), "{len} bytes");
        }
    }

    #[test]
    fn small_values_are_counted_packed() {
        assert_eq!(most_blocks([250; 160], 1), 21);
        assert_eq!(most_blocks([250], 1), 1);
        assert_eq!(most_blocks([2100; 10], 1), 10);
        assert_eq!(most_blocks([4000; 3], 1), 3);
        assert_eq!(most_blocks([5000, 0], 3), 2);
    }

    proptest! {
        #[test]
        fn every_byte_has_its_place_and_padding_is_less_than_a_tenth(len in 0u32..200_000) {
            let (whole, tail) = (u64::from(whole_blocks(len)) * BLOCK_BYTES, u64::from(shared_tail(len)));
            let padding = (whole + tail).checked_sub(u64::from(len)).unwrap();
            prop_assert!(padding * 10 < whole || padding == 0);
            prop_assert!(padding == 0 || tail == 0);
            prop_assert!(tail < u64::from(UNSHARED_TAIL_BYTES));
        }
    }
}
