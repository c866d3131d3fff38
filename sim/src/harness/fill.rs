//! A data area that is filled until the cluster refuses writes, and emptied again.
//!
//! What holds here: a full cluster refuses puts and nothing else; deletes take effect, and room comes back without anybody's
//! help.

use super::cluster::Cluster;
use super::kinds::FaultKind::Fill;
use bytes::Bytes;
use cairn_client::{Client, Error};
use cairn_clients::Violation;
use std::sync::Arc;
use std::time::Duration;

/// One value's bytes. Many of them are a data area.
const VALUE_BYTES: usize = 16 << 10;
/// The data area is not filled beyond so many values, refused or not.
const VALUES_MAX: usize = 1_200;
/// How often a delete is tried until the faults are over, and after.
const ATTEMPTS: usize = 60;
const PAUSE: Duration = Duration::from_millis(500);

/// Fills, waits, and empties.
pub(super) async fn fill(cluster: Arc<Cluster>, client: Client, holds: Duration) {
    let mut written = Vec::new();
    let mut refused = false;
    for number in 0..VALUES_MAX {
        if cluster.at_peace() {
            break;
        }
        let key = Bytes::from(format!("fill/{number}"));
        written.push(key.clone());
        // Whether another outcome took effect or not, the key is deleted later.
        if let Err(Error::StorageFull { .. }) = client.put(key, value(number)).await {
            refused = true;
            break;
        }
    }
    if refused {
        cluster.count(Fill.name());
        cluster.trace.event(format!("full after {} values", written.len()));
        tokio::time::sleep(holds).await;
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
