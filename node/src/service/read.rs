//! Reads: behind a barrier unless `stale`, every value checked against its hash by the engine, and fetched from another
//! member where it is damaged.

use super::{Inner, refusal, standing, validate};
use bytes::Bytes;
use cairn_client::proto;
use cairn_engine::{ListItem, ListQuery, View};
use cairn_raft::GROUP;
use futures::{StreamExt, TryStreamExt};
use std::time::Duration;
use tonic::Status;

/// Items of a page where the request does not say.
const LIST_ITEMS_DEFAULT: usize = 1000;
/// Bytes of a page where the request does not say.
const LIST_BYTES_DEFAULT: u64 = 1 << 20;
/// Values of one page that are read at the same time.
const LIST_READS: usize = 16;

pub(super) async fn get(
    inner: &Inner,
    request: proto::GetRequest,
    budget: Duration,
) -> Result<proto::GetResponse, Status> {
    validate::key(&request.key)?;
    in_time(budget, async {
        barrier(inner, request.stale).await?;
        if request.version_only {
            let found = inner.engine.lookup(GROUP, &request.key);
            return Ok(found.map(|entry| (entry.version.index, Bytes::new())));
        }
        let found = inner.replica.get(&request.key).await;
        let found = found.map_err(|error| refusal::of_engine_read(&request.key, error))?;
        Ok(found.map(|(entry, value)| (entry.version.index, value)))
    })
    .await
    .map(|found| {
        let (version, value) = found.clone().unwrap_or_default();
        proto::GetResponse { found: found.is_some(), value, version }
    })
}

pub(super) async fn list(
    inner: &Inner,
    request: proto::ListRequest,
    budget: Duration,
) -> Result<proto::ListResponse, Status> {
    let limits = &inner.config.limits;
    for (name, key) in [("prefix", &request.prefix), ("start_after", &request.start_after)] {
        if !key.is_empty() {
            validate::key(key)
                .map_err(|status| Status::invalid_argument(format!("{name}: {}", status.message())))?;
        }
    }
    let query = ListQuery {
        prefix: request.prefix,
        start_after: Some(request.start_after).filter(|key| !key.is_empty()),
        limit: match request.limit {
            0 => LIST_ITEMS_DEFAULT,
            asked => usize::try_from(asked).unwrap_or(usize::MAX),
        }
        .min(limits.max_list_items),
        max_bytes: match request.max_bytes {
            0 => LIST_BYTES_DEFAULT,
            asked => asked,
        }
        .min(limits.max_list_bytes),
        reverse: request.reverse,
        keys_only: request.keys_only,
    };
    in_time(budget, async {
        barrier(inner, request.stale).await?;
        let view = inner.engine.view(GROUP);
        let page = view.list(&query);
        let items = futures::stream::iter(page.items)
            .map(|item| read_item(inner, &view, item, query.keys_only))
            .buffered(LIST_READS)
            .try_collect()
            .await?;
        Ok(proto::ListResponse { items, more: page.more })
    })
    .await
}

async fn read_item(
    inner: &Inner,
    view: &View,
    item: ListItem,
    keys_only: bool,
) -> Result<proto::KeyValue, Status> {
    let value = if keys_only {
        Bytes::new()
    } else {
        inner.replica.read(view, &item).await.map_err(|error| refusal::of_engine_read(&item.key, error))?
    };
    Ok(proto::KeyValue { key: item.key, value, version: item.entry.version.index })
}

async fn barrier(inner: &Inner, stale: bool) -> Result<(), Status> {
    standing::readable(inner)?;
    if stale {
        return Ok(());
    }
    inner
        .replica
        .read_barrier()
        .await
        .map_err(|error| refusal::of_read(&inner.config, inner.waits_for(), error))
}

async fn in_time<T>(budget: Duration, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(budget, work).await.unwrap_or_else(|_| Err(refusal::read_late(budget.as_millis())))
}
