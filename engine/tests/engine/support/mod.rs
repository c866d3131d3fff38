//! What the tests share.

mod disk;
pub mod sixty;
pub mod space;
pub mod store;
pub mod workload;

pub use disk::{Cache, Disk, Fate};

use cairn_engine::{Geometry, Identity, ValueRef};
use std::time::Duration;

/// Longer than any step takes, even on a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

pub fn identity() -> Identity {
    Identity { cluster: "test".into(), slot: 1, incarnation: 77 }
}

/// The smallest geometry: 256 journal blocks, so that tests write several laps.
pub fn geometry() -> Geometry {
    Geometry { journal_bytes: 1 << 20, checkpoint_bytes: 1 << 20, data_bytes: 4 << 20 }
}

/// The same with a longer journal, for tests in which no checkpoint may come unasked: one is due when a third
/// of the journal was written, and a busy machine writes more blocks.
pub fn long_journal() -> Geometry {
    Geometry { journal_bytes: 8 << 20, ..geometry() }
}

/// A small random generator. Tests must not depend on the platform's.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn fate(&mut self) -> Fate {
        Fate::Random(self.next())
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Waits until `happened` returns true. The time limit only turns a hang into a failure.
pub async fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let wait = async {
        while !happened() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, wait).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Runs a future on a runtime of one thread.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The bytes of a value in the data area.
pub fn stored(data: &[u8], at: &ValueRef) -> Vec<u8> {
    at.segments().flat_map(|part| &data[part.start as usize..part.end as usize]).copied().collect()
}

/// Where byte `number` of a value is in the data area.
pub fn place(at: &ValueRef, number: u64) -> usize {
    at.segments().flatten().nth(number as usize).unwrap() as usize
}
