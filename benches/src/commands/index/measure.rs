//! One map in this process: what is done with it, in which order, and what is counted.

use super::maps::{Concread, Imbl, InlineKey, Map, Rpds, Std};
use super::{MapArgument, PartArgument};
use cairn_engine::index::Index;
use cairn_engine::{KeyEntry, LogId, ValueRef};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a key.
pub const KEY_BYTES: usize = 24;
/// The units of the figures.
pub const UNITS: [&str; 3] = [BYTES, NANOS, MILLIS];
const BYTES: &str = "bytes per key";
const NANOS: &str = "ns";
const MILLIS: &str = "ms";
/// The most overwrites and gets of one measurement.
const MOST_OPERATIONS: u64 = 2_000_000;
/// Overwrites between two snapshots.
const SNAPSHOT_EVERY: u64 = 100_000;
/// Keys of a page, and pages.
const PAGE_KEYS: usize = 1000;
const PAGES: u64 = 300;
/// The allocator returns free memory within this time.
const ALLOCATOR_IDLE: Duration = Duration::from_millis(300);

type Figures = Vec<(String, f64, &'static str)>;

/// One part of what is measured of a map.
pub fn part(map: MapArgument, part: PartArgument, keys: u64) -> Figures {
    match map {
        MapArgument::Index => part_of::<Index<KeyEntry>>(part, keys),
        MapArgument::Imbl => part_of::<Imbl<Arc<[u8]>>>(part, keys),
        MapArgument::ImblInline => part_of::<Imbl<InlineKey>>(part, keys),
        MapArgument::Rpds => part_of::<Rpds>(part, keys),
        MapArgument::Concread => part_of::<Concread>(part, keys),
        MapArgument::Std => part_of::<Std>(part, keys),
    }
}

fn part_of<M: Map>(part: PartArgument, keys: u64) -> Figures {
    match part {
        PartArgument::Use => used::<M>(keys),
        PartArgument::Build => built::<M>(keys),
    }
}

/// A generator with eight bytes of state (splitmix64), so that keys need no memory.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn key_of(first: u64, number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let parts = [first, mixed(number ^ (1 << 40)), mixed(number ^ (1 << 41))];
    let (chunks, _) = key.as_chunks_mut::<8>();
    chunks.iter_mut().zip(parts).for_each(|(chunk, part)| *chunk = part.to_be_bytes());
    key
}

/// Key `number` of a set in random order.
fn random_key(number: u64) -> [u8; KEY_BYTES] {
    key_of(mixed(number), number)
}

/// Key `number` of a set in ascending order.
fn sorted_key(number: u64, keys: u64) -> [u8; KEY_BYTES] {
    key_of((u128::from(number) * (1 << 64) / u128::from(keys)) as u64, number)
}

/// The entry that log index `index` writes: 4 KiB somewhere in 1 TiB.
fn entry(index: u64) -> KeyEntry {
    let hash = u128::from(mixed(index)) << 64 | u128::from(mixed(!index));
    let offset = mixed(index ^ (1 << 42)) % (1 << 28) * 4096;
    let version = LogId { term: 7, index: 1_000_000 + index };
    let value = ValueRef::contiguous(offset, 4096, hash);
    // The offset is the beginning of a block.
    KeyEntry { version, value: value.unwrap_or_else(|| unreachable!()) }
}

/// The resident set of this process in bytes, once the allocator has returned what is free.
fn resident() -> f64 {
    std::thread::sleep(ALLOCATOR_IDLE);
    // The allocator returns free memory when it is used.
    drop(black_box(vec![0u8; 1 << 16]));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib * 1024.0)
}

/// Nanoseconds that this thread has had a processor: nothing here waits, and other processes may
/// have the processor meanwhile.
fn processor_nanos() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(f64::NAN)
}

/// Nanoseconds of some work.
fn nanos(work: impl FnOnce()) -> f64 {
    let begun = processor_nanos();
    work();
    processor_nanos() - begun
}

/// Nanoseconds of each of `operations`.
fn each(operations: u64, mut operation: impl FnMut(u64)) -> f64 {
    nanos(|| (0..operations).for_each(&mut operation)) / operations as f64
}

/// Milliseconds by the wall clock: the kernel counts processor time in steps of milliseconds.
fn millis(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64() * 1e3
}

/// Inserts, overwrites, reads, snapshots.
fn used<M: Map>(keys: u64) -> Figures {
    let mut figures = Figures::new();
    let mut figure = |name: &str, value: f64, unit| figures.push((name.to_owned(), value, unit));
    let operations = keys.min(MOST_OPERATIONS);
    let before = resident();
    let per_key = || (resident() - before) / keys as f64;

    let mut map = M::default();
    let insert = |n| assert!(!map.put(&random_key(n), entry(n)), "no key comes twice");
    figure("insert", each(keys, insert), NANOS);
    map.settle();
    figure("memory after inserts", per_key(), BYTES);
    let overwrite = |n| {
        let key = random_key(mixed(n ^ (1 << 50)) % keys);
        assert!(map.put(&key, entry(keys + n)), "every key is there");
    };
    figure("overwrite", each(operations, overwrite), NANOS);
    map.settle();
    figure("memory after overwrites", per_key(), BYTES);
    let get = |n| {
        let key = random_key(mixed(n ^ (1 << 51)) % keys);
        assert!(black_box(map.get(&key)).is_some(), "every key is there");
    };
    figure("get", each(operations, get), NANOS);
    let list = |n| {
        black_box(map.list(&[mixed(n) as u8], PAGE_KEYS));
    };
    figure("list, each of 1,000 keys", each(PAGES, list) / PAGE_KEYS as f64, NANOS);
    with_snapshots(&mut map, keys, &mut figure);
    figure("drop everything", millis(|| drop(map)), MILLIS);
    figures
}

/// Overwrites while snapshots are held, and what it takes to drop one.
fn with_snapshots<M: Map>(
    map: &mut M,
    keys: u64,
    figure: &mut impl FnMut(&str, f64, &'static str),
) {
    let mut held = map.snapshot();
    if held.is_none() {
        return;
    }
    let overwrite = |n| {
        if n % SNAPSHOT_EVERY == 0 {
            map.settle();
            held = map.snapshot();
        }
        map.put(&random_key(mixed(n ^ (1 << 52)) % keys), entry(2 * keys + n));
    };
    let time = each(keys.min(MOST_OPERATIONS), overwrite);
    figure("overwrite, a snapshot held and replaced every 100,000", time, NANOS);
    unshare(map, &mut held, keys);
    figure("drop a snapshot that shares nothing", millis(|| drop(held.take())), MILLIS);
    unshare(map, &mut held, keys);
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    let in_pieces = M::drop_in_pieces(&mut held, || {
        longest = longest.max(last.elapsed());
        last = Instant::now();
    });
    if in_pieces {
        figure("drop such a snapshot in pieces, longest", longest.as_secs_f64() * 1e3, MILLIS);
    }
}

/// Takes a snapshot and overwrites every key, so that the map and the snapshot share nothing.
fn unshare<M: Map>(map: &mut M, held: &mut Option<M::Snapshot>, keys: u64) {
    map.settle();
    drop(held.take());
    *held = map.snapshot();
    for n in 0..keys {
        map.put(&random_key(n), entry(3 * keys + n));
    }
    map.settle();
}

/// Building from sorted keys, in a process that did nothing else.
fn built<M: Map>(keys: u64) -> Figures {
    let before = resident();
    let mut map = M::default();
    let time = nanos(|| map = M::build((0..keys).map(|n| (sorted_key(n, keys), entry(n)))));
    let bytes = (resident() - before) / keys as f64;
    assert!(map.get(&sorted_key(0, keys)).is_some(), "every key is there");
    vec![
        ("build from sorted keys, each".to_owned(), time / keys as f64, NANOS),
        ("memory, built from sorted keys".to_owned(), bytes, BYTES),
    ]
}
