//! Fills the data area until the cluster refuses writes, then empties it again.
//!
//! What holds here: a full cluster refuses puts and nothing else. Deletes take effect, and space is
//! free again without any help.

use super::cluster::Cluster;
use super::kinds::FaultKind::Fill;
use bytes::Bytes;
use cairn_client::{Client, Error};
use cairn_clients::Violation;
use std::sync::Arc;
use std::time::Duration;

/// The size of one value.
const VALUE_BYTES: usize = 16 << 10;
/// At most this many values are written, refused or not.
const VALUES_MAX: usize = 1_200;
/// How often a delete is tried until the faults are over, and after.
const ATTEMPTS: usize = 60;
const PAUSE: Duration = Duration::from_millis(500);

/// Fills the data area, waits, and empties it.
pub(super) async fn fill(cluster: Arc<Cluster>, client: Client, stays_full: Duration) {
    let mut written = Vec::new();
    let mut refused = false;
    for number in 0..VALUES_MAX {
        if cluster.faults_ended() {
            break;
        }
        let key = Bytes::from(format!("fill/{number}"));
        written.push(key.clone());
        // After any other outcome the key is deleted later, whether the put took effect or not.
        if let Err(Error::StorageFull { .. }) = client.put(key, value(number)).await {
            refused = true;
            break;
        }
    }
    if refused {
        cluster.count(Fill.name());
        cluster.trace.event(format!("full after {} values", written.len()));
        tokio::time::sleep(stays_full).await;
    }
    for key in written {
        for _ in 0..ATTEMPTS {
            match client.delete(key.clone()).await {
                Ok(_) => break,
                Err(error @ Error::StorageFull { .. }) => {
                    let detail = format!("a delete was refused: {error}");
                    cluster.violation(Violation::new("a full cluster deletes", detail));
                    return;
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
    cluster.trace.event("what filled the data area is deleted");
}

fn value(number: usize) -> Bytes {
    Bytes::from(vec![number as u8; VALUE_BYTES])
}
