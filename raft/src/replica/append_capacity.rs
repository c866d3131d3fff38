//! Capacity for what a leader sends, reserved before replication takes it, and for what clients
//! send to a leader.
//!
//! Members keep different parts of the log, so a follower may be full while its leader is not. A
//! member must store an entry that replication has taken, or stop. So it refuses the request before
//! that: the leader retries later, heartbeats continue, and meanwhile this member purges its log
//! and frees dead extents. A new reservation counts together with those whose entries have no
//! extents yet.
//!
//! A reservation travels with the entries, through openraft to the log. It ends when they have
//! their extents, or when openraft drops them. It does not end with the stream on which they came,
//! since openraft may still hold its requests.

use crate::core::proto;
use crate::core::types::Held;
use cairn_engine::{Engine, Need};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tonic::Status;

/// The capacity that is reserved for entries without extents.
pub(crate) struct AppendCapacity {
    engine: Engine,
    reserved: Mutex<Reserved>,
    /// Clients' writes that are not in the log yet: their bytes, and what they take in a
    /// checkpoint.
    proposed: AtomicU64,
    proposed_index: AtomicU64,
}

#[derive(Default)]
struct Reserved {
    /// Blocks of the data area.
    blocks: u64,
    /// Bytes in a checkpoint.
    index_bytes: u64,
    requests: BTreeMap<u64, Request>,
    next: u64,
}

struct Request {
    blocks: u64,
    index_bytes: u64,
}

/// The reservation of one request's entries, until the last of them is dropped.
struct Reservation {
    append_capacity: Arc<AppendCapacity>,
    number: u64,
}

/// The reservation of one client's write, until it is in the log or dropped.
pub(crate) struct WriteReservation {
    append_capacity: Arc<AppendCapacity>,
    need: Need,
}

impl AppendCapacity {
    pub(crate) fn new(engine: Engine) -> Arc<AppendCapacity> {
        Arc::new(AppendCapacity {
            engine,
            reserved: Mutex::default(),
            proposed: AtomicU64::new(0),
            proposed_index: AtomicU64::new(0),
        })
    }

    /// Reserves capacity for a client's write, besides those that are not in the log yet.
    pub(crate) fn reserve_write(
        self: &Arc<AppendCapacity>,
        need: Need,
    ) -> cairn_engine::Result<WriteReservation> {
        let before = self.proposed.fetch_add(need.bytes, Ordering::Relaxed);
        let before_index = self.proposed_index.fetch_add(need.index_bytes, Ordering::Relaxed);
        let proposed = WriteReservation { append_capacity: self.clone(), need };
        self.engine.check_capacity(Need {
            bytes: need.bytes.saturating_add(before),
            puts: need.puts,
            index_bytes: need.index_bytes.saturating_add(before_index),
        })?;
        Ok(proposed)
    }

    /// Reserves capacity for the entries of a request, if there is enough. Each entry holds the
    /// reservation.
    pub(super) fn reserve_append(
        self: &Arc<AppendCapacity>,
        request: &proto::AppendRequest,
    ) -> Result<Option<Held>, Status> {
        if request.entries.is_empty() {
            return Ok(None);
        }
        let lengths = |entry: &proto::Entry| {
            entry.values.iter().map(|value| value.len() as u64).collect::<Vec<_>>()
        };
        let index = |entry: &proto::Entry| Engine::index_bytes(lengths(entry), entry.meta.len());
        let index_bytes = request.entries.iter().map(index).sum();
        let entries = request.entries.iter().map(|entry| (lengths(entry), entry.meta.len()));
        let number = self.reserve(Engine::blocks_for(entries), index_bytes)?;
        Ok(Some(Arc::new(Reservation { append_capacity: self.clone(), number })))
    }

    fn reserve(&self, blocks: u64, index_bytes: u64) -> Result<u64, Status> {
        let mut reserved = self.reserved.lock();
        let checked = self.engine.has_capacity(
            reserved.blocks.saturating_add(blocks),
            reserved.index_bytes.saturating_add(index_bytes),
        );
        checked.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        let number = reserved.next;
        reserved.next += 1;
        reserved.blocks += blocks;
        reserved.index_bytes += index_bytes;
        reserved.requests.insert(number, Request { blocks, index_bytes });
        Ok(number)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.append_capacity.reserved.lock();
        if let Some(request) = reserved.requests.remove(&self.number) {
            reserved.blocks -= request.blocks;
            reserved.index_bytes -= request.index_bytes;
        }
    }
}

impl Drop for WriteReservation {
    fn drop(&mut self) {
        self.append_capacity.proposed.fetch_sub(self.need.bytes, Ordering::Relaxed);
        self.append_capacity.proposed_index.fetch_sub(self.need.index_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::core::codec::encode_command;
    use crate::core::command::{Command, Condition, Operation};
    use crate::core::proto::{AppendRequest, Vote};
    use crate::core::types::{Entry, RaftLogId};
    use crate::replica::tests::{other, replica};
    use crate::transport::messages;
    use bytes::Bytes;
    use openraft::EntryPayload;
    use openraft::entry::RaftEntry;
    use tonic::Code;

    /// The story: a request's reservation ended when its stream was reset, while openraft still
    /// held the request. The same capacity was reserved for others, and the member stopped when it
    /// had to store both.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_reservation_lasts_until_replication_has_dropped_its_entries() {
        let (_folder, replica, service) = replica().await;
        let free = replica.engine().status().free_bytes;
        let value = Bytes::from(vec![1; 64 << 10]);
        let most_of_it = usize::try_from(free * 2 / 3).unwrap() / value.len();
        let key = Bytes::from_static(b"key");
        let put = Operation::Put { key, value: value.into(), condition: Condition::None };
        let operations = vec![put; most_of_it];
        let command = encode_command(Command { synced: false, session: None, operations }, 1);
        let entry = Entry::new(RaftLogId::new_term_index(1, 0), EntryPayload::Normal(command));
        let entry = messages::entry_to_proto(entry);
        let append = || AppendRequest {
            vote: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
            entries: vec![entry.clone()],
            ..AppendRequest::default()
        };
        let first = service.append_request(other(), append()).unwrap();
        let refused = service.append_request(other(), append()).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        drop(first);
        service.append_request(other(), append()).unwrap();
    }
}
