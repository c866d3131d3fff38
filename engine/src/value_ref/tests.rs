//! Tests of references to values, and references for the tests of others.

use super::*;
use proptest::prelude::*;

pub(crate) fn encoded(value: &ValueRef) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn run(first: u32, blocks: u32) -> Run {
    Run { first, blocks }
}

/// References of all shapes: empty, a tail, one run, several.
pub(crate) fn any_ref() -> impl Strategy<Value = ValueRef> {
    let sizes = prop_oneof![Just(0u32), 1u32..100, 3000u32..50_000, 50_000u32..2_000_000];
    let gaps = prop::collection::vec((0u32..1000, 1u32..20), 0..12);
    (sizes, any::<u128>(), gaps, 0u64..1 << 20, any::<bool>()).prop_map(
        |(len, hash, gaps, tail, back)| {
            let (mut left, mut next, mut runs) = (whole_blocks(len), 1 << 20, Vec::new());
            for (gap, blocks) in gaps {
                if blocks < left {
                    runs.push(run(next + gap, blocks));
                    next += gap + blocks;
                    left -= blocks;
                }
            }
            if left > 0 {
                runs.push(run(next, left));
            }
            if back {
                runs.reverse();
            }
            ValueRef::new(len, hash, &runs, (shared_tail(len) > 0).then_some(tail)).unwrap()
        },
    )
}

#[test]
fn the_bytes_are_those_of_the_format_document() {
    let hash: u128 = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;
    let with = |len: &[u8], location: &[u8]| [len, &hash.to_le_bytes(), location].concat();
    let tail = ValueRef::new(250, hash, &[], Some(8200)).unwrap();
    assert_eq!(encoded(&tail), with(&[0xfa, 1], &[0x88, 0x40]));
    let one = ValueRef::new(4000, hash, &[run(300, 1)], None).unwrap();
    assert_eq!(encoded(&one), with(&[0xa0, 0x1f], &[1, 0xac, 2]));
    let several = ValueRef::new(8200, hash, &[run(9, 1), run(3, 1)], Some(100)).unwrap();
    assert_eq!(encoded(&several), with(&[0x88, 0x40], &[2, 9, 1, 3, 100]));
    assert_eq!(encoded(&ValueRef::new(0, hash, &[], None).unwrap()), with(&[0], &[]));
}

#[test]
fn segments_follow_the_bytes_of_the_value_and_leave_padding_out() {
    let value = ValueRef::new(8200, 0, &[run(9, 1), run(3, 1)], Some(100)).unwrap();
    let segments: Vec<_> = value.segments().collect();
    assert_eq!(segments, [9 * 4096..10 * 4096, 3 * 4096..4 * 4096, 100..108]);
    assert_eq!(value.offset(), 9 * 4096);
    let padded = ValueRef::new(45_000, 0, &[run(0, 4), run(100, 7)], None).unwrap();
    let segments: Vec<_> = padded.segments().collect();
    assert_eq!(segments, [0..16_384, 409_600..409_600 + 45_000 - 16_384]);
    assert!(padded.is_within(107 * 4096) && !padded.is_within(106 * 4096));
}

#[test]
fn a_location_that_does_not_suit_the_length_or_overlaps_is_none() {
    let new = |len, runs: &[Run], tail| ValueRef::new(len, 0, runs, tail);
    assert!(new(5000, &[run(1, 1)], Some(0)).is_some());
    assert_eq!(new(5000, &[run(1, 1)], None), None, "no tail");
    assert_eq!(new(4096, &[run(1, 1)], Some(0)), None, "a tail");
    assert_eq!(new(4096, &[run(1, 2)], None), None, "a block too many");
    assert_eq!(new(8192, &[run(1, 1)], None), None, "a block too few");
    assert_eq!(new(8192, &[run(1, 2), run(5, 0)], None), None, "an empty run");
    assert_eq!(new(8192, &[run(1, 1), run(1, 1)], None), None, "one block twice");
    assert_eq!(new(12_288, &[run(1, 2), run(0, 2)], None), None, "too long");
    assert_eq!(new(12_288, &[run(1, 2), run(2, 1)], None), None, "runs overlap");
    assert_eq!(new(5000, &[run(1, 1)], Some(5000)), None, "the tail in its own block");
    assert_eq!(new(8192, &[run(u32::MAX, 2)], None), None, "an overflow");
    assert_eq!(new(100, &[], Some(u64::MAX - 5)), None, "an overflow of the tail");
}

#[test]
fn any_bytes_decode_to_a_reference_or_to_nothing() {
    let several = ValueRef::new(8200, 7, &[run(9, 1), run(3, 1)], Some(100)).unwrap();
    cairn_fuzz::target!(
        "empty" => encoded(&ValueRef::new(0, 7, &[], None).unwrap()),
        "tail" => encoded(&ValueRef::contiguous(8200, 250, 7).unwrap()),
        "run" => encoded(&ValueRef::contiguous(8192, 50_000, 7).unwrap()),
        "several" => encoded(&several),
    )
    .for_each(|bytes| {
        let mut r = Reader::new(bytes);
        let decoded = cairn_fuzz::within(64 * bytes.len() + 256, || ValueRef::decode(&mut r));
        let Some(value) = decoded else { return };
        assert_eq!(encoded(&value), bytes[..bytes.len() - r.remaining()]);
        assert_eq!(value.segments().map(|s| s.end - s.start).sum::<u64>(), value.len.into());
    });
}

proptest! {
    #[test]
    fn references_round_trip_and_their_size_is_known(value in any_ref()) {
        let bytes = encoded(&value);
        prop_assert_eq!(bytes.len(), value.encoded_bytes());
        prop_assert!(bytes.len() as u64 <= ValueRef::encoded_bytes_max(value.len.into()));
        let mut r = Reader::new(&bytes);
        prop_assert_eq!(ValueRef::decode(&mut r), Some(value));
        prop_assert_eq!(r.remaining(), 0);
    }
}
