//! Reads: after a barrier, as new as the request asks for. The engine checks every value against its hash; a damaged
//! one is fetched from another member.
//!
//! What holds here: the memory for a read is charged to the caller before the read begins, and until
//! the device is done with it, whoever stops waiting; a member that may be read is asked for again
//! after every wait, since it may have begun to recover meanwhile.

use super::Inner;
use crate::access::Need;
use crate::admission::caller::Caller;
use crate::admission::memory::Charge;
use crate::admission::{refusal, validate};
use crate::config::Limits;
use bytes::Bytes;
use cairn_client::proto;
use cairn_engine::{Engine, ListItem, ListQuery, View, prefix_end};
use cairn_raft::{GROUP, Part, Replica};
use futures::{StreamExt, TryStreamExt};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// Items of a page if the request does not say.
const LIST_ITEMS_DEFAULT: usize = 1000;
/// Bytes of a page if the request does not say.
const LIST_BYTES_DEFAULT: u64 = 1 << 20;
/// Values of one page that are read at the same time.
pub(super) const LIST_READS: usize = 16;
/// While a value is encoded it is in memory twice. Afterwards the answer is charged for its own
/// length.
const COPIES: usize = 2;
/// Bytes that a read takes beside the value, because it reads whole blocks.
const READ_BYTES: usize = 8 << 10;
/// Bytes that an item of a page takes beside its key and value.
const ITEM_BYTES: usize = 320;
/// How old a read within a bound may be at most.
const MAX_STALE_MS: u64 = 3_600_000;
/// How often a get charges for a value that grows while the get waits for memory.
pub(super) const CHARGE_ATTEMPTS: usize = 8;

/// How old the state may be that a read sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// It has everything that was acknowledged before the request.
    New,
    /// It has everything that was acknowledged longer than this before the request.
    Within(Duration),
    /// However old.
    Any,
}

impl Age {
    pub(super) fn of(stale: bool, max_stale_ms: u64) -> Result<Age, Status> {
        match (stale, max_stale_ms) {
            (false, 0) => Ok(Age::New),
            (false, most) if most <= MAX_STALE_MS => Ok(Age::Within(Duration::from_millis(most))),
            (false, most) => Err(Status::invalid_argument(format!(
                "`max_stale_ms` is {most}; a read may be at most {MAX_STALE_MS} ms old, an hour: ask for less"
            ))),
            (true, 0) => Ok(Age::Any),
            (true, _) => Err(Status::invalid_argument(
                "the read has `stale` and `max_stale_ms`; use one of them",
            )),
        }
    }
}

pub(super) async fn get(
    inner: &Inner,
    caller: &Caller,
    request: proto::GetRequest,
    budget: Duration,
) -> Result<proto::GetResponse, Status> {
    caller.may(Need::Read(&request.key))?;
    validate::key(&request.key)?;
    let age = Age::of(request.stale, request.max_stale_ms)?;
    let end = Instant::now() + budget;
    let work = pin!(async {
        barrier(inner, age).await?;
        if request.version_only {
            let found = readable(inner)?.lookup(GROUP, &request.key);
            return Ok(found.map(|entry| (entry.version.index, Bytes::new())));
        }
        let Some(charge) = admit_value(inner, caller, &request.key, end).await? else {
            return Ok(None);
        };
        // Not a part of the whole message: a read that is given up goes on alone.
        let (replica, key) = (inner.replica.clone(), Bytes::copy_from_slice(&request.key));
        let (found, mut charge) =
            to_its_end(charge, async move { replica.get(&key).await }).await?;
        // A repair waits for other members, and then looks the key up once more.
        readable(inner)?;
        let found = found.map_err(|error| refusal::of_engine_read(&request.key, error))?;
        let Some((entry, value)) = found else { return Ok(None) };
        // The value may have been overwritten by a longer one.
        let took = value_bytes(value.len());
        if took > charge.bytes() {
            charge.resize(took);
        }
        caller.answer(charge);
        Ok(Some((entry.version.index, value)))
    });
    in_time(budget, work).await.map(|found| {
        let (version, value) = found.clone().unwrap_or_default();
        proto::GetResponse { found: found.is_some(), value, version }
    })
}

/// The charge for a key's value; `None` if the key does not exist.
async fn admit_value(
    inner: &Inner,
    caller: &Caller,
    key: &[u8],
    end: Instant,
) -> Result<Option<Charge>, Status> {
    // Asked before each look: the member may begin to recover in each wait.
    let need = || {
        let found = readable(inner)?.lookup(GROUP, key);
        Ok::<_, Status>(found.map(|entry| value_bytes(entry.value.len as usize)))
    };
    for _ in 0..CHARGE_ATTEMPTS {
        let Some(bytes) = need()? else { return Ok(None) };
        if let Some(charge) = caller.try_admit(bytes) {
            return Ok(Some(charge));
        }
        let charge = caller.admit(bytes, end).await?;
        match need()? {
            None => return Ok(None),
            Some(now) if now <= bytes => return Ok(Some(charge)),
            Some(_) => {}
        }
    }
    Err(refusal::reads_overloaded("the value grows while the read waits for memory"))
}

pub(super) async fn list(
    inner: &Inner,
    caller: &Caller,
    request: proto::ListRequest,
    budget: Duration,
) -> Result<proto::ListResponse, Status> {
    let age = Age::of(request.stale, request.max_stale_ms)?;
    let query = list_query(&inner.limits(), request);
    caller.may(Need::ReadRange { start: &query.from, end: query.until.as_deref() })?;
    let named = [
        ("prefix", Some(&query.from)),
        ("start_after", query.start_after.as_ref()),
        ("end", query.until.as_ref()),
    ];
    for (name, key) in named {
        if let Some(key) = key.filter(|key| !key.is_empty()) {
            validate::key(key).map_err(|status| {
                Status::invalid_argument(format!("{name}: {}", status.message()))
            })?;
        }
    }
    let end = Instant::now() + budget;
    in_time(budget, async {
        barrier(inner, age).await?;
        let most = page_bytes(query.limit, usize::try_from(query.max_bytes).unwrap_or(usize::MAX));
        let mut charge = caller.admit(most, end).await?;
        let view = readable(inner)?.view(GROUP);
        let page = view.list(&query);
        let need = page_bytes(page.items.len(), content_bytes(&page.items, query.keys_only));
        if need > most {
            // The page holds a single item that is longer than the page was meant to be.
            drop(charge);
            charge = caller.admit(need, end).await?;
        } else {
            charge.resize(need);
        }
        let more = page.more;
        let (replica, keys_only) = (inner.replica.clone(), query.keys_only);
        let waiting = Arc::new(());
        let waited_for = Arc::downgrade(&waiting);
        let read = async move {
            futures::stream::iter(page.items)
                .take_while(|_| std::future::ready(waited_for.strong_count() > 0))
                .map(|item| read_item(&replica, &view, item, keys_only))
                .buffered(LIST_READS)
                .try_collect()
                .await
        };
        let (items, charge) = to_its_end(charge, read).await?;
        let items: Vec<proto::KeyValue> = items?;
        caller.answer(charge);
        Ok(proto::ListResponse { items, more })
    })
    .await
}

/// The range of the keys that have the prefix and are before the end, within the limits of a page.
fn list_query(limits: &Limits, request: proto::ListRequest) -> ListQuery {
    let end = Some(request.end).filter(|end| !end.is_empty());
    ListQuery {
        until: [prefix_end(&request.prefix), end].into_iter().flatten().min(),
        from: request.prefix,
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
    }
}

/// Reads to the end even if the caller stops waiting: until then the device fills the memory that
/// was charged.
pub(super) async fn to_its_end<T: Send + 'static>(
    charge: Charge,
    read: impl Future<Output = T> + Send + 'static,
) -> Result<(T, Charge), Status> {
    let reading = tokio::spawn(async move { (read.await, charge) });
    reading.await.map_err(|error| Status::internal(format!("the read ended early: {error}")))
}

/// Memory for a value of this length.
fn value_bytes(length: usize) -> usize {
    length * COPIES + READ_BYTES
}

/// Memory for a page.
pub(super) fn page_bytes(items: usize, content: usize) -> usize {
    let reads = items.min(LIST_READS) * READ_BYTES;
    content
        .saturating_mul(COPIES)
        .saturating_add(items.saturating_mul(ITEM_BYTES))
        .saturating_add(reads)
}

/// Bytes of keys and values.
fn content_bytes(items: &[ListItem], keys_only: bool) -> usize {
    let value = |item: &ListItem| if keys_only { 0 } else { item.entry.value.len as usize };
    items.iter().map(|item| item.key.len() + value(item)).sum()
}

pub(super) async fn read_item(
    replica: &Replica,
    view: &View,
    item: ListItem,
    keys_only: bool,
) -> Result<proto::KeyValue, Status> {
    let value = if keys_only {
        Bytes::new()
    } else {
        replica
            .read(view, &item)
            .await
            .map_err(|error| refusal::of_engine_read(&item.key, error))?
    };
    Ok(proto::KeyValue { key: item.key, value, version: item.entry.version.index })
}

/// The engine to read from. Refuses reads at a node that may have lost acknowledged writes, that has
/// not copied everything yet, or that is no member any more: nobody tells it what is written.
pub(super) fn readable(inner: &Inner) -> Result<&Engine, Status> {
    match inner.replica.part() {
        Part::Active => Ok(&inner.engine),
        Part::Recovering => Err(refusal::recovering(inner.election_blocked())),
        Part::Joining => Err(refusal::joining(inner.no_service())),
        Part::Removed(reason) => Err(refusal::removed(&reason)),
    }
}

/// Returns once this node's state has everything that was acknowledged before the call.
pub(super) async fn fresh(inner: &Inner, budget: Duration) -> Result<(), Status> {
    in_time(budget, barrier(inner, Age::New)).await
}

/// Returns once this node may be read, and its state is as new as this.
pub(super) async fn barrier(inner: &Inner, age: Age) -> Result<(), Status> {
    readable(inner)?;
    let waited = match age {
        Age::Any => Ok(()),
        Age::Within(most) => inner.replica.read_barrier_within(most).await,
        Age::New => inner.replica.read_barrier().await,
    };
    waited.map_err(|error| refusal::of_read(inner.no_service(), error))
}

pub(super) async fn in_time<T>(
    budget: Duration,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    tokio::time::timeout(budget, work)
        .await
        .unwrap_or_else(|_| Err(refusal::read_late(budget.as_millis())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::memory::{Budget, ConnectionFlow};
    use futures::FutureExt;
    use tokio::sync::oneshot;
    use tonic::Code;

    #[test]
    fn a_read_is_as_new_as_asked_for_and_not_both_stale_and_bounded() {
        let age = |stale, most| Age::of(stale, most).map_err(|status| status.code());
        assert_eq!(age(false, 0), Ok(Age::New));
        assert_eq!(age(false, 1500), Ok(Age::Within(Duration::from_millis(1500))));
        assert_eq!(age(true, 0), Ok(Age::Any));
        assert_eq!(age(true, 1), Err(Code::InvalidArgument));
        let hour = Duration::from_secs(3600);
        assert_eq!(age(false, 3_600_000), Ok(Age::Within(hour)));
        let refused = Age::of(false, 3_600_001).expect_err("too old");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(
            refused
                .message()
                .contains("`max_stale_ms` is 3600001; a read may be at most 3600000 ms")
        );
    }

    /// The story: reads that ended at their deadline went on at the device, and their memory was
    /// free to be charged for more of them.
    #[tokio::test]
    async fn a_read_that_nobody_waits_for_stays_charged_until_it_ends() {
        let reads = Budget::new(1000);
        let reader = reads.account(Arc::<ConnectionFlow>::default());
        let charge = reader.try_admit(400).expect("it fits");
        let (ends, device) = oneshot::channel::<()>();
        let given_up = to_its_end(charge, device).now_or_never();
        assert!(given_up.is_none() && reads.status().held_bytes == 400);
        ends.send(()).expect("the read goes on");
        while reads.status().held_bytes > 0 {
            tokio::task::yield_now().await;
        }
    }
}
