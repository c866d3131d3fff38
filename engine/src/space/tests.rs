//! Tests of the space map.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const BLOCK: u32 = BLOCK_BYTES as u32;

fn map(blocks: u32) -> SpaceMap {
    SpaceMap::of(blocks, [] as [ValueRef; 0]).unwrap()
}

fn record(map: &mut SpaceMap, sequence: u64) {
    let newly_dead = map.take_newly_dead();
    map.recorded(sequence, newly_dead);
}

/// Frees what died.
fn settle(map: &mut SpaceMap, sequence: u64) {
    map.close_block();
    record(map, sequence);
    release(map, sequence);
}

/// Frees what may be freed, in the smallest steps.
fn release(map: &mut SpaceMap, synced_stamp: u64) {
    map.synced(synced_stamp);
    while let [run] = map.release(1)[..] {
        assert_eq!(map.live_in(run.first), 0);
    }
}

/// Every second block of `blocks` is in use.
fn in_pieces(blocks: u32) -> SpaceMap {
    let values: Vec<ValueRef> = (0..blocks / 2)
        .map(|n| ValueRef::contiguous(u64::from(n) * 2 * BLOCK_BYTES, BLOCK, 0).unwrap())
        .collect();
    SpaceMap::of(blocks, &values).unwrap()
}

fn runs(value: &ValueRef) -> Vec<(u32, u32)> {
    value.runs().map(|run| (run.first, run.blocks)).collect()
}

fn block_numbers(value: &ValueRef) -> BTreeSet<u32> {
    parts(value).map(|(block, _)| block).collect()
}

#[test]
fn a_value_finds_space_wherever_the_number_of_free_blocks_suffices() {
    let mut map = in_pieces(128);
    assert_eq!(map.free_bytes(), 64 * BLOCK_BYTES);
    assert_eq!(map.allocate(65 * BLOCK, 0), None);
    let value = map.allocate(50 * BLOCK, 0).unwrap();
    assert_eq!(value.runs().count(), 50);
    // 13 whole blocks and a tail.
    assert!(map.allocate(14 * BLOCK, 0).is_some());
    assert_eq!(map.free_bytes(), 0);
    assert_eq!(map.allocate(1, 0), None);
    map.unlink(&value);
    settle(&mut map, 1);
    assert_eq!(map.free_bytes(), 50 * BLOCK_BYTES);
}

/// A map of 20 blocks. Free: 2 blocks at 1, 5 at 4, 3 at 10, 4 at 14.
fn holes() -> SpaceMap {
    all_free_but(&[0, 3, 9, 13, 18, 19])
}

/// A map whose last block is the last of these. All others are free.
fn all_free_but(used: &[u32]) -> SpaceMap {
    let at = |block: &u32| ValueRef::contiguous(u64::from(*block) * BLOCK_BYTES, BLOCK, 0).unwrap();
    let values: Vec<ValueRef> = used.iter().map(at).collect();
    SpaceMap::of(used.last().unwrap() + 1, &values).unwrap()
}

#[test]
fn a_value_takes_the_longest_run_where_the_largest_of_late_would_fit() {
    let mut map = holes();
    assert_eq!(runs(&map.allocate(BLOCK, 0).unwrap()), [(4, 1)]);
    assert_eq!(runs(&map.allocate(3 * BLOCK, 0).unwrap()), [(5, 3)], "behind the last one");
    assert_eq!(runs(&map.allocate(2 * BLOCK, 0).unwrap()), [(14, 2)]);
}

/// The story: on an aged disk with values of many sizes, small values were put into the longest
/// runs as well, and broke them up. Large values then took several runs each, and with them writes.
#[test]
fn a_small_value_breaks_up_no_run_that_large_ones_need() {
    let mut map = holes();
    let large = map.allocate(7 * BLOCK, 0).unwrap();
    assert_eq!(runs(&large), [(4, 5), (1, 2)], "the longest, and the first that the rest fits");
    assert_eq!(runs(&map.allocate(BLOCK, 0).unwrap()), [(10, 1)], "the first that fits");
    assert_eq!(runs(&map.allocate(2 * BLOCK, 0).unwrap()), [(11, 2)], "behind the last one");
    assert_eq!(runs(&map.allocate(2 * BLOCK, 0).unwrap()), [(14, 2)]);
    // The large one is forgotten.
    let mut map = holes();
    let large = map.allocate(5 * BLOCK, 0).unwrap();
    map.unlink(&large);
    settle(&mut map, 1);
    for sequence in 2..2000 {
        let small = map.allocate(BLOCK, 0).unwrap();
        map.unlink(&small);
        settle(&mut map, sequence);
    }
    let mut firsts: Vec<u32> = Vec::new();
    for _ in 0..3 {
        firsts.extend(map.allocate(2 * BLOCK, 0).unwrap().runs().map(|run| run.first));
    }
    assert_eq!(firsts.len(), 3);
    assert!(!firsts.contains(&1), "{firsts:?}: the shortest run comes last");
}

#[test]
fn tails_break_up_no_run_that_large_values_need() {
    let mut map = all_free_but(&[0, 3, 8, 18, 25]);
    let large = map.allocate(10 * BLOCK, 0).unwrap();
    assert_eq!(runs(&large), [(9, 9), (1, 1)]);
    let tail = map.allocate(100, 0).unwrap();
    assert_eq!(tail.offset(), 4 * BLOCK_BYTES, "neither the block at 2 nor the six at 19");
    assert_eq!(runs(&map.allocate(6 * BLOCK, 0).unwrap()), [(19, 6)]);
}

#[test]
fn what_waits_for_a_sync_counts_as_free_up_to_half_of_the_reserve() {
    // The reserve is 10 blocks.
    let mut map = map(320);
    let kept = map.allocate(290 * BLOCK, 0).unwrap();
    let dies: Vec<ValueRef> = (0..20).map(|_| map.allocate(BLOCK, 0).unwrap()).collect();
    assert_eq!((map.free_bytes(), map.writable_bytes()), (10 * BLOCK_BYTES, 0));
    dies[..3].iter().for_each(|value| map.unlink(value));
    assert_eq!(map.writable_bytes(), 3 * BLOCK_BYTES);
    dies[3..].iter().for_each(|value| map.unlink(value));
    assert_eq!(map.writable_bytes(), 5 * BLOCK_BYTES);
    record(&mut map, 1);
    assert_eq!(map.writable_bytes(), 5 * BLOCK_BYTES);
    let view = map.view_begins();
    map.unlink(&kept);
    record(&mut map, 2);
    release(&mut map, 2);
    assert_eq!(map.writable_bytes(), 20 * BLOCK_BYTES, "no sync ends a view");
    map.view_ends(view);
    release(&mut map, 2);
    assert_eq!(map.writable_bytes(), 310 * BLOCK_BYTES);
}

#[test]
fn a_step_frees_no_more_blocks_than_it_may_though_they_are_one_run() {
    let mut map = map(100);
    let value = map.allocate(50 * BLOCK, 0).unwrap();
    map.unlink(&value);
    record(&mut map, 1);
    map.synced(1);
    let mut freed = Vec::new();
    loop {
        let step = map.release(20);
        if step.is_empty() {
            break;
        }
        freed.push(step.iter().map(|run| run.blocks).sum::<u32>());
    }
    assert_eq!(freed, [20, 20, 10]);
    assert_eq!(map.free_bytes(), 100 * BLOCK_BYTES);
}

#[test]
fn values_of_one_group_commit_lie_together_on_a_fresh_disk() {
    let mut map = map(1024);
    let mut blocks = BTreeSet::new();
    let mut tails = BTreeSet::new();
    for _ in 0..50 {
        let value = map.allocate(5000, 0).unwrap();
        blocks.extend(value.runs().map(|run| run.first));
        tails.extend(value.tail().map(|tail| tail.start));
    }
    let one_run = |blocks: &BTreeSet<u32>| blocks.last().unwrap() - blocks.first().unwrap() == 49;
    assert!(blocks.len() == 50 && one_run(&blocks));
    assert_eq!(tails.last().unwrap() - tails.first().unwrap(), 49 * 904);
}

#[test]
fn tails_are_packed_and_group_commits_share_no_block() {
    let mut map = map(64);
    let first = map.allocate(100, 0).unwrap().offset();
    assert_eq!(map.allocate(3000, 0).unwrap().offset(), first + 100);
    assert_eq!(map.allocate(3000, 0).unwrap().offset(), first + 3100, "over the border");
    assert_eq!(map.free_bytes(), 62 * BLOCK_BYTES);
    map.close_block();
    assert_eq!(map.allocate(100, 0).unwrap().offset(), first + 2 * BLOCK_BYTES);
    assert_eq!(map.free_bytes(), 61 * BLOCK_BYTES);
    // What is kept for tails serves whole blocks too.
    assert!(map.allocate(61 * BLOCK, 0).is_some());
    assert!(map.allocate(100, 0).is_some(), "into the block that is open");
    map.close_block();
    assert_eq!(map.allocate(100, 0), None);
}

#[test]
fn a_dead_block_is_reused_only_after_its_record_is_synced() {
    let mut map = map(1);
    let value = map.allocate(4096, 0).unwrap();
    map.close_block();
    map.unlink(&value);
    release(&mut map, 6);
    assert_eq!(map.allocate(1, 0), None, "no record yet");
    assert_eq!(map.dead_bytes(), DeadBytes { record: BLOCK_BYTES, ..DeadBytes::default() });
    record(&mut map, 7);
    release(&mut map, 6);
    assert_eq!(map.allocate(1, 0), None, "not synced yet");
    assert_eq!(map.dead_bytes(), DeadBytes { sync: BLOCK_BYTES, ..DeadBytes::default() });
    release(&mut map, 7);
    assert!(map.allocate(1, 0).is_some());
}

#[test]
fn an_extent_lives_while_log_or_key_refers_to_it() {
    let mut map = map(1);
    let value = map.allocate(10, 0).unwrap();
    map.link(&value);
    map.close_block();
    map.unlink(&value);
    settle(&mut map, 1);
    assert_eq!(map.allocate(1, 0), None);
    map.unlink(&value);
    settle(&mut map, 2);
    assert!(map.allocate(1, 0).is_some());
}

#[test]
fn a_view_keeps_what_it_can_see() {
    let mut map = map(1);
    let value = map.allocate(10, 0).unwrap();
    map.close_block();
    let view = map.view_begins();
    map.unlink(&value);
    settle(&mut map, 1);
    assert_eq!(map.allocate(1, 0), None);
    assert_eq!(map.dead_bytes(), DeadBytes { view: BLOCK_BYTES, ..DeadBytes::default() });
    map.view_ends(view);
    release(&mut map, 1);
    assert!(map.allocate(1, 0).is_some());
}

#[test]
fn a_value_that_dies_before_its_block_is_closed_is_freed_once() {
    let mut map = map(1);
    let value = map.allocate(10, 0).unwrap();
    map.unlink(&value);
    assert_eq!(map.dead_bytes(), DeadBytes { record: BLOCK_BYTES, ..DeadBytes::default() });
    let second = map.allocate(20, 0).unwrap();
    settle(&mut map, 1);
    map.unlink(&second);
    settle(&mut map, 2);
    assert_eq!(map.free_bytes(), BLOCK_BYTES);
}

#[test]
fn values_outside_the_area_or_with_too_many_references_are_named() {
    let outside = ValueRef::contiguous(4 * BLOCK_BYTES, 100, 0).unwrap();
    assert_eq!(SpaceMap::of(4, [&outside]).err(), Some(outside.clone()));
    let often = ValueRef::contiguous(0, BLOCK, 0).unwrap();
    assert!(SpaceMap::of(4, [&often; 15]).is_ok());
    assert_eq!(SpaceMap::of(4, [&often; 16]).err(), Some(often.clone()));
}

proptest! {
    /// Allocations and frees in any order: live values never overlap, group commits share no block,
    /// a value is refused only for want of blocks, every block is counted once, and all space comes
    /// back.
    #[test]
    fn live_extents_never_overlap_and_nothing_leaks(
        steps in prop::collection::vec((0u8..6, 1u32..60_000, any::<prop::sample::Index>()), 1..300),
    ) {
        let mut map = map(300);
        let (mut live, mut commit): (Vec<(ValueRef, u64)>, u64) = (Vec::new(), 1);
        for (what, len, pick) in steps {
            let len = if what == 0 { len % 5000 + 1 } else { len };
            match what {
                0 | 1 => match map.allocate(len, 0) {
                    None => prop_assert!(map.free_bytes() < u64::from(len).next_multiple_of(BLOCK_BYTES)),
                    Some(new) => {
                        for (old, made_in) in &live {
                            for (one, two) in old.segments().flat_map(|a| new.segments().map(move |b| (a.clone(), b))) {
                                prop_assert!(one.end <= two.start || two.end <= one.start);
                            }
                            let shares = !block_numbers(old).is_disjoint(&block_numbers(&new));
                            prop_assert!(!shares || *made_in == commit, "a block of two group commits");
                        }
                        live.push((new, commit));
                    }
                },
                2 | 3 => if !live.is_empty() {
                    let (value, _) = live.swap_remove(pick.index(live.len()));
                    map.unlink(&value);
                },
                _ => {
                    settle(&mut map, commit);
                    commit += 1;
                }
            }
            let used: BTreeSet<u32> = live.iter().flat_map(|(value, _)| block_numbers(value)).collect();
            let DeadBytes { record, sync, view } = map.dead_bytes();
            prop_assert_eq!(
                map.free_bytes() + record + sync + view + used.len() as u64 * BLOCK_BYTES,
                map.capacity_bytes()
            );
            let again = SpaceMap::of(300, live.iter().map(|(value, _)| value)).unwrap();
            prop_assert_eq!(&again.live, &map.live);
        }
        for (value, _) in live.drain(..) { map.unlink(&value); }
        settle(&mut map, commit);
        prop_assert_eq!(map.free_bytes(), map.capacity_bytes());
    }

    /// No allocation of these lengths, in this many group commits, takes more blocks than
    /// announced.
    #[test]
    fn what_is_announced_suffices(
        lengths in prop::collection::vec(prop_oneof![1u32..4000, 4000u32..100_000], 1..60),
        pieces: bool,
        close in prop::collection::vec(any::<bool>(), 60),
    ) {
        let mut map = if pieces { in_pieces(2000) } else { map(2000) };
        let before = map.free_bytes();
        let mut commits = 1;
        for (len, close) in lengths.iter().zip(close) {
            map.allocate(*len, 0).unwrap();
            if close {
                map.close_block();
                commits += 1;
            }
        }
        let taken = (before - map.free_bytes()) / BLOCK_BYTES;
        let most = crate::layout::most_blocks(lengths.iter().map(|len| u64::from(*len)), commits);
        prop_assert!(taken <= most, "{} of {}", taken, most);
    }
}
