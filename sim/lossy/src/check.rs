//! Compares what a cluster holds with the answers that clients got: what the cluster answers, and
//! what each machine holds.
//!
//! A cluster that answers correctly may still have a member that lacks entries: its copy would be
//! missing at the next fault. So each machine is also asked for its own state, once all have
//! applied the same.

use crate::cluster::{Cluster, integer};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use cairn_client::proto::ListRequest;
use cairn_client::proto::kv_client::KvClient;
use cairn_client::{Client, ListOptions};
use cairn_clients::ledger::{Ledger, Listing};
use std::time::{Duration, Instant};

/// Within this time all machines must have applied everything once no client writes.
const CONVERGE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

/// A page, of many groups of keys.
const PAGE_BYTES: u64 = 2 << 20;
const MESSAGE_BYTES: usize = 64 << 20;

/// Returns one sentence for each fault. No client may write meanwhile.
///
/// # Errors
/// If the cluster does not answer.
pub async fn verify(
    cluster: &mut Cluster,
    client: &Client,
    ledger: &mut Ledger,
) -> Result<Vec<String>> {
    let answered = cluster_state(client).await.context("listing all keys")?;
    let mut wrong = prefixed("the cluster", ledger.compare(&answered));
    wrong.extend(verify_machines(cluster, ledger).await);
    Ok(wrong)
}

/// Like [`verify`], after an unsafe recovery: what was acknowledged since `since` may be gone. Also
/// returns how many keys lost something.
///
/// # Errors
/// As [`verify`].
pub async fn verify_after_unsafe_recovery(
    cluster: &mut Cluster,
    client: &Client,
    ledger: &mut Ledger,
    since: Duration,
) -> Result<(Vec<String>, u64)> {
    let answered = cluster_state(client).await.context("listing all keys")?;
    let (wrong, lost) = ledger.compare_after_unsafe_recovery(&answered, since);
    let mut wrong = prefixed("the cluster", wrong);
    wrong.extend(verify_machines(cluster, ledger).await);
    Ok((wrong, lost))
}

async fn verify_machines(cluster: &mut Cluster, ledger: &mut Ledger) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Err(reason) = converged(cluster).await {
        wrong.push(format!("{reason:#}"));
        return wrong;
    }
    for (slot, address) in (1..).zip(cluster.addresses()) {
        match machine_state(&address).await {
            Ok(held) => wrong.extend(prefixed(&format!("machine {slot}"), ledger.compare(&held))),
            Err(reason) => {
                wrong.push(format!("machine {slot}: its state cannot be listed: {reason:#}"))
            }
        }
    }
    wrong
}

fn prefixed(whose: &str, sentences: Vec<String>) -> Vec<String> {
    sentences.into_iter().map(|sentence| format!("{whose}: {sentence}")).collect()
}

/// Waits until all machines have applied the same and have nothing left to apply.
async fn converged(cluster: &mut Cluster) -> Result<()> {
    let began = Instant::now();
    loop {
        let status = cluster.status()?;
        let mut positions = Vec::new();
        for number in 0..cluster.len() {
            let index = |field| status.get(&number).and_then(|own| integer(own, field));
            positions.push(["applied_index", "last_log_index"].map(index));
        }
        let last = positions.iter().flatten().flatten().max().copied();
        if last.is_some() && positions.iter().flatten().all(|index| *index == last) {
            return Ok(());
        }
        if began.elapsed() > CONVERGE {
            let mut machines = Vec::new();
            for (number, [applied, last]) in positions.into_iter().enumerate() {
                let slot = number + 1;
                machines.push(match (cluster.ended(number)?, status.get(&number)) {
                    (Some(reason), _) => format!("machine {slot} ended: {reason}"),
                    (None, None) => format!("machine {slot} does not answer"),
                    (None, Some(_)) => {
                        format!("machine {slot} applied {applied:?}, last log index {last:?}")
                    }
                });
            }
            bail!("the machines do not converge within {CONVERGE:?}: {}", machines.join("; "));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn cluster_state(client: &Client) -> Result<Listing> {
    let mut listing = Listing::default();
    let mut after = Some(Bytes::new());
    while let Some(key) = after {
        let page =
            client.list(ListOptions::default().max_bytes(PAGE_BYTES).start_after(key)).await?;
        let items = page.items.into_iter().map(|item| (item.key, item.value, item.version.0));
        after = listing.page(items.collect(), page.more);
    }
    Ok(listing)
}

/// What this machine itself has applied.
async fn machine_state(address: &str) -> Result<Listing> {
    let mut stub = KvClient::connect(format!("http://{address}"))
        .await
        .with_context(|| format!("connecting to {address}"))?
        .max_decoding_message_size(MESSAGE_BYTES);
    let mut listing = Listing::default();
    let mut after = Some(Bytes::new());
    while let Some(start_after) = after {
        let request = ListRequest {
            start_after,
            max_bytes: PAGE_BYTES,
            stale: true,
            ..ListRequest::default()
        };
        let page = stub.list(request).await?.into_inner();
        let items = page.items.into_iter().map(|item| (item.key, item.value, item.version));
        after = listing.page(items.collect(), page.more);
    }
    Ok(listing)
}
