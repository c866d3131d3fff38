//! The parts of the engine that cost processor time for each put: codecs, index, checksum.
//!
//! `cargo bench-micro` runs them, `cargo bench-micro index` those whose names contain it. The modules
//! below are the engine's own sources: the codecs and the index are not public, and nothing is made
//! public for a bench.
//!
//! What holds here: keys have 24 bytes, in random order. What is measured has no I/O.

// The engine's public interface is not used here.
#![allow(dead_code, unused_imports)]

#[path = "../../../engine/src/checkpoint/mod.rs"]
mod checkpoint;
#[path = "../../../engine/src/codec.rs"]
mod codec;
#[path = "../../../engine/src/engine/mod.rs"]
mod engine;
#[path = "../../../engine/src/error.rs"]
mod error;
#[path = "../../../engine/src/geometry.rs"]
mod geometry;
#[path = "../../../engine/src/group/mod.rs"]
mod group;
#[path = "../../../engine/src/index/mod.rs"]
pub mod index;
#[path = "../../../engine/src/io/mod.rs"]
pub mod io;
#[path = "../../../engine/src/journal/mod.rs"]
mod journal;
#[path = "../../../engine/src/latency.rs"]
mod latency;
#[path = "../../../engine/src/layout.rs"]
mod layout;
#[path = "../../../engine/src/maintain/mod.rs"]
mod maintain;
#[path = "../../../engine/src/open/mod.rs"]
mod open;
#[path = "../../../engine/src/space/mod.rs"]
mod space;
#[path = "../../../engine/src/state/mod.rs"]
mod state;
#[path = "../../../engine/src/superblock/mod.rs"]
mod superblock;
#[path = "../../../engine/src/types/mod.rs"]
mod types;
#[path = "../../../engine/src/value_ref.rs"]
mod value_ref;
#[path = "../../../engine/src/values.rs"]
mod values;
#[path = "../../../engine/src/write/mod.rs"]
mod write;

pub use error::{Corruption, Error, Result};
pub use io::Pace;
pub use maintain::*;
pub use open::*;
pub use state::{Engine, Need, View};
pub use types::*;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use group::Keys;
use journal::{Block, Body, Header, Packer, Payload, Record, RecordStream};
use std::hint::black_box;
use std::time::Duration;

/// Entries of a group commit.
const ENTRIES: u64 = 64;
/// Keys of the small and the large index.
const KEYS: [u64; 2] = [10_000, 1_000_000];

fn key(number: u64) -> Vec<u8> {
    // An odd factor makes it a bijection.
    format!("objects:{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

fn value(number: u64) -> ValueRef {
    let hash = u128::from(number) << 64 | 7;
    ValueRef::contiguous(number * 4096, 4096, hash).expect("a value of one block")
}

fn log_id(index: u64) -> LogId {
    LogId { term: 3, index }
}

fn records() -> Vec<Record> {
    let record = |index| {
        let body = journal::encode_body(&[value(index)], &key(index));
        Record::Entry { group: GroupId(0), id: log_id(index), body: Body::Inline(body.into()) }
    };
    (0..ENTRIES).map(record).collect()
}

fn codecs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codecs");
    let records = records();
    group.throughput(Throughput::Elements(ENTRIES));
    group.bench_function("pack 64 entries into commit blocks", |bencher| {
        bencher.iter(|| {
            let mut packer = Packer::default();
            records.iter().for_each(|record| packer.push(black_box(record)));
            packer.payloads
        });
    });
    let mut packer = Packer::default();
    records.iter().for_each(|record| packer.push(record));
    let block = |payload| Block { header: Header::default(), checksum: 0, payload };
    let blocks: Vec<Block> = packer.payloads.into_iter().map(block).collect();
    group.bench_function("decode 64 entries and their bodies", |bencher| {
        bencher.iter(|| {
            let (mut stream, mut values) = (RecordStream::default(), 0);
            for record in black_box(&blocks).iter().flat_map(|block| stream.records(block).unwrap()) {
                if let Record::Entry { body: Body::Inline(body), .. } = record {
                    values += journal::decode_body(&body).map_or(0, |(values, _)| values.len());
                }
            }
            assert_eq!(values as u64, ENTRIES);
        });
    });
    group.throughput(Throughput::Bytes(io::BLOCK as u64));
    let payload = Payload { bytes: vec![7; 3000], continued: 0 };
    let mut block = vec![0; io::BLOCK];
    group.bench_function("encode and seal a commit block", |bencher| {
        bencher.iter(|| {
            journal::encode_into(&mut block, black_box(&Header::default()), black_box(&payload))
        });
    });
    group.bench_function("verify and decode a commit block", |bencher| {
        bencher.iter(|| assert!(Block::decode(black_box(&block)).is_some()));
    });
    group.finish();
}

fn filled(keys: u64) -> Keys {
    let mut index = Keys::default();
    for number in 0..keys {
        index.insert(&key(number), KeyEntry { version: log_id(number), value: value(number) });
    }
    index
}

fn index(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index");
    for keys in KEYS {
        let mut index = filled(keys);
        // The keys are made beforehand, and fit into the processor's cache better than the index.
        let some: Vec<Vec<u8>> = (0..4096).map(|at| key(at * 7919 % keys)).collect();
        let entry = KeyEntry { version: log_id(keys), value: value(keys) };
        let mut at = 0;
        let mut next = || {
            at = (at + 1) % some.len();
            some[at].as_slice()
        };
        let name = |what| BenchmarkId::new(what, keys);
        group.bench_function(name("get"), |bencher| {
            bencher.iter(|| assert!(index.get(black_box(next())).is_some()));
        });
        group.bench_function(name("overwrite"), |bencher| {
            bencher.iter(|| index.insert(black_box(next()), entry.clone()));
        });
        // A view or a checkpoint shares the tree, so that the first change of a path copies it.
        group.bench_function(name("overwrite 64 keys below a new view"), |bencher| {
            bencher.iter(|| {
                let view = index.clone();
                for _ in 0..64 {
                    index.insert(next(), entry.clone());
                }
                view
            });
        });
        group.bench_function(name("remove and insert"), |bencher| {
            bencher.iter(|| {
                let key = next();
                assert!(index.remove(black_box(key)).is_some());
                index.insert(key, entry.clone())
            });
        });
        // As an entry that deletes a range is applied, below a view, but for the space of the values.
        group.bench_function(name("delete a range of 4096 keys"), |bencher| {
            let delete = |mut index: Keys| {
                let range = index.iter_between(b"", b"").take(4096);
                let keys: Vec<Vec<u8>> = range.map(|(key, _)| key.to_vec()).collect();
                keys.iter().for_each(|key| drop(index.remove(key)));
                index
            };
            bencher.iter_batched(|| index.clone(), delete, BatchSize::PerIteration);
        });
        let query = ListQuery {
            from: Bytes::from_static(b"objects:"),
            until: Some(Bytes::from_static(b"objects;")),
            start_after: Some(key(17).into()),
            limit: 100,
            max_bytes: u64::MAX,
            reverse: false,
            keys_only: true,
        };
        group.bench_function(name("list 100 keys"), |bencher| {
            bencher.iter(|| index.list(black_box(&query)));
        });
    }
    group.bench_function(BenchmarkId::new("insert new keys", KEYS[0]), |bencher| {
        bencher.iter_batched(|| (), |()| filled(KEYS[0]), BatchSize::PerIteration);
    });
    group.finish();
}

fn checksum(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("checksum");
    for bytes in [256, 4 << 10, 64 << 10, 1 << 20] {
        let data: Vec<u8> = (0..bytes).map(|at: usize| at.wrapping_mul(31) as u8).collect();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("XXH3-128", bytes), |bencher| {
            bencher.iter(|| codec::hash(black_box(&data)));
        });
    }
    group.finish();
}

/// About two minutes in all. No plots: no more crates for them.
fn short() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}

fn main() {
    let mut criterion = short();
    if let Some(filter) = std::env::args().nth(1) {
        criterion = criterion.with_filter(filter);
    }
    for part in [codecs, index, checksum] {
        part(&mut criterion);
    }
    criterion.final_summary();
}
