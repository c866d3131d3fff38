//! Several keys in one state, after the barrier that the request asks for.
//!
//! What holds here: all keys are looked up in one view. The memory for the sum of their values is charged to the
//! caller before any is read, and until the device is done with them. A read that is given up goes on alone, without
//! the message that it came in. No view waits for memory, since it keeps the space of what is deleted meanwhile.

use super::Inner;
use super::read::{
    Age, CHARGE_ATTEMPTS, LIST_READS, barrier, in_time, page_bytes, read_item, readable, to_its_end,
};
use crate::access::Need;
use crate::admission::caller::Caller;
use crate::admission::memory::Charge;
use crate::admission::{refusal, validate};
use crate::config::Limits;
use bytes::Bytes;
use cairn_client::proto;
use cairn_client::proto::error_detail::Reason;
use cairn_engine::{KeyEntry, ListItem, View};
use cairn_raft::{GROUP, Replica};
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// Keys as one state has them.
struct Found {
    view: View,
    entries: Vec<Option<KeyEntry>>,
    /// Memory for the keys and the answer.
    bytes: usize,
}

pub(super) async fn get_many(
    inner: &Inner,
    caller: &Caller,
    request: proto::GetManyRequest,
    budget: Duration,
) -> Result<proto::GetManyResponse, Status> {
    let limits = inner.limits();
    validate::keys(&limits, &request.keys)?;
    request.keys.iter().try_for_each(|key| caller.may(Need::Read(key)))?;
    let age = Age::of(false, request.max_stale_ms)?;
    let end = Instant::now() + budget;
    in_time(budget, async {
        barrier(inner, age).await?;
        let (found, charge) = admitted(inner, caller, &limits, &request, end).await?;
        let at = found.view.applied().map(|id| proto::Position { term: id.term, index: id.index });
        let (replica, version_only) = (inner.replica.clone(), request.version_only);
        let keys = copied(&request.keys);
        let waiting = Arc::new(());
        let waited_for = Arc::downgrade(&waiting);
        let read = async move {
            let Found { view, entries, .. } = found;
            futures::stream::iter(keys.into_iter().zip(entries))
                .take_while(|_| std::future::ready(waited_for.strong_count() > 0))
                .map(|(key, entry)| read_one(&replica, &view, key, entry, version_only))
                .buffered(LIST_READS)
                .try_collect()
                .await
        };
        let (items, charge) = to_its_end(charge, read).await?;
        let items: Vec<proto::GetResponse> = items?;
        caller.answer(charge);
        Ok(proto::GetManyResponse { items, at: Some(at.unwrap_or_default()) })
    })
    .await
}

/// The keys, with the charge for their values.
async fn admitted(
    inner: &Inner,
    caller: &Caller,
    limits: &Limits,
    request: &proto::GetManyRequest,
    end: Instant,
) -> Result<(Found, Charge), Status> {
    for _ in 0..CHARGE_ATTEMPTS {
        let bytes = {
            let found = find(inner, limits, request)?;
            if let Some(charge) = caller.try_admit(found.bytes) {
                return Ok((found, charge));
            }
            found.bytes
        };
        let mut charge = caller.admit(bytes, end).await?;
        let found = find(inner, limits, request)?;
        if found.bytes <= bytes {
            charge.resize(found.bytes);
            return Ok((found, charge));
        }
    }
    Err(refusal::reads_overloaded("the values grow while the read waits for memory"))
}

/// Looks the keys up in the present state. The member may have begun to recover in a wait before.
fn find(inner: &Inner, limits: &Limits, request: &proto::GetManyRequest) -> Result<Found, Status> {
    let view = readable(inner)?.view(GROUP);
    let entries: Vec<_> = request.keys.iter().map(|key| view.get(key)).collect();
    let lengths = entries.iter().flatten().map(|entry| entry.value.len as usize);
    let most = usize::try_from(limits.max_list_bytes).unwrap_or(usize::MAX);
    let content = if request.version_only { 0 } else { fits(most, lengths)? };
    Ok(Found { view, bytes: many_bytes(&request.keys, content), entries })
}

/// Memory for a read of these keys, whose values have `content` bytes.
fn many_bytes(keys: &[Bytes], content: usize) -> usize {
    let of_keys: usize = keys.iter().map(Bytes::len).sum();
    page_bytes(keys.len(), content.saturating_add(of_keys))
}

/// The keys in memory of their own. Those of a request are parts of its message, and keep all of it.
fn copied(keys: &[Bytes]) -> Vec<Bytes> {
    keys.iter().map(|key| Bytes::copy_from_slice(key)).collect()
}

/// Bytes of the values of one answer. A single value is answered whatever its length is.
fn fits(limit: usize, lengths: impl Iterator<Item = usize> + Clone) -> Result<usize, Status> {
    let content: usize = lengths.clone().sum();
    let values = lengths.count();
    if content <= limit || values == 1 {
        return Ok(content);
    }
    let message = format!(
        "the values of these {values} keys have {content} bytes; at most {limit} are answered together \
         (`limits.max_list_bytes`). Read them in parts"
    );
    Err(refusal::over_limit(Reason::RequestTooLarge, message, limit, content))
}

async fn read_one(
    replica: &Replica,
    view: &View,
    key: Bytes,
    entry: Option<KeyEntry>,
    version_only: bool,
) -> Result<proto::GetResponse, Status> {
    let Some(entry) = entry else { return Ok(proto::GetResponse::default()) };
    let item = read_item(replica, view, ListItem { key, entry }, version_only).await?;
    Ok(proto::GetResponse { found: true, value: item.value, version: item.version })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a caller sent messages of megabytes with one small key, and gave each up while the device hung.
    /// The reads went on with the key, which kept the message, and were charged for little more than the value.
    #[test]
    fn a_read_that_goes_on_alone_keeps_nothing_of_its_message_and_is_charged_for_its_keys() {
        let message = Bytes::from(vec![7; 1 << 20]);
        let keys = [message.slice(10..13), message.slice(100..108)];
        let own = copied(&keys);
        assert_eq!(own, keys);
        assert_eq!(many_bytes(&own, 500), page_bytes(2, 511));
        drop(keys);
        assert!(message.is_unique(), "the read keeps the message");
    }

    #[test]
    fn values_that_are_too_much_for_one_answer_are_refused_unless_it_is_a_single_one() {
        let judged = |lengths: &[usize]| fits(100, lengths.iter().copied());
        assert_eq!(judged(&[]).ok(), Some(0));
        assert_eq!(judged(&[60, 40]).ok(), Some(100));
        assert_eq!(judged(&[5000]).ok(), Some(5000));
        let refused = judged(&[60, 41]).expect_err("too much");
        assert!(refused.message().contains("2 keys have 101 bytes; at most 100"), "{refused}");
        let detail = proto::ErrorDetail::of(&refused).expect("a detail");
        assert_eq!((detail.reason(), detail.actual), (Reason::RequestTooLarge, 101));
    }
}
