//! The rate of one directory. It is printed, not asserted; see `benches` for the published numbers.
//!
//! `cargo test --release -p cairn-engine rate -- --ignored --nocapture`

use super::{backends, formatted, open};
use crate::io::{AlignedBuf, BLOCK, FileKind};
use crate::types::Geometry;
use futures::StreamExt;
use futures::executor::block_on;
use futures::stream::FuturesUnordered;
use std::time::Instant;

const DEPTH: usize = 100;
const WRITES: usize = 400_000;
const SIZE: Geometry =
    Geometry { journal_bytes: 1 << 20, checkpoint_bytes: 64 << 10, data_bytes: 1 << 30 };

#[test]
#[ignore = "a measurement"]
fn rate_of_random_4_kib_writes_at_depth_100() {
    let started = Instant::now();
    let (_parent, path) = formatted(&SIZE);
    println!("format: {:.0} MB/s", SIZE.data_bytes as f64 / 1e6 / started.elapsed().as_secs_f64());
    for backend in backends() {
        let device = open(&path, backend, FileKind::Data);
        let blocks = SIZE.data_bytes / BLOCK as u64;
        let mut place = 1u64;
        let mut begin = |buf| {
            place = place
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            device.write((place >> 33) % blocks * BLOCK as u64, buf)
        };
        let started = Instant::now();
        block_on(async {
            let mut in_flight: FuturesUnordered<_> =
                (0..DEPTH).map(|i| begin(AlignedBuf::copied_from(&[i as u8; BLOCK]))).collect();
            for done in 0..WRITES {
                let (result, buf) = in_flight.next().await.unwrap();
                result.unwrap();
                if done + DEPTH < WRITES {
                    in_flight.push(begin(buf));
                }
            }
        });
        let rate = WRITES as f64 / started.elapsed().as_secs_f64();
        println!("{backend:?}: {rate:.0} writes/s");
    }
}
