//! A client that overwrites keys of its own all the time, so that space is freed and reused between
//! two syncs. Its answers are not checked: what it leaves on the disks is checked when a node
//! starts.

use bytes::Bytes;
use cairn_client::Client;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Values of a few blocks.
const VALUE_BYTES: std::ops::Range<usize> = 2_000..20_000;
/// The pause after a write, and after a refused one.
const PAUSE_MS: std::ops::Range<u64> = 5..60;
const REFUSED: Duration = Duration::from_millis(300);

/// Writes until told to stop.
pub async fn churn(client: Client, mut rng: StdRng, keys: u32, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let key = Bytes::from(format!("churn/{}", rng.random_range(0..keys.max(1))));
        let value = vec![rng.random::<u8>(); rng.random_range(VALUE_BYTES)];
        let written = client.put(key, Bytes::from(value)).await.is_ok();
        let pause = Duration::from_millis(rng.random_range(PAUSE_MS));
        tokio::time::sleep(if written { pause } else { REFUSED }).await;
    }
}
