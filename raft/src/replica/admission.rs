//! Room for what a leader sends, asked before replication takes it, and for what clients send to a leader.
//!
//! Members pack their data areas differently, so a follower may be full where its leader is not. An entry that replication has
//! taken must be stored, or the member stops. So the request is refused before: the leader tries again later, heartbeats go
//! on, and meanwhile this member purges its log and gives back what died. What was promised room and has no place yet counts
//! with what is asked next.
//!
//! A promise goes with the entries, through openraft to the log: it ends when they have their place, or when openraft drops
//! them. It does not end with the stream on which they came, whose requests openraft may still hold.

use crate::core::proto;
use crate::core::types::Held;
use cairn_engine::{Engine, Need};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tonic::Status;

/// A longer meta may not fit into the journal's record, and then goes to the data area.
const LONG_META_BYTES: usize = 512;

/// What was promised room and has no place yet.
pub(crate) struct Room {
    engine: Engine,
    promised: Mutex<Promised>,
    /// Clients' writes on their way into the log: their bytes, and what they take in a checkpoint.
    proposed: AtomicU64,
    proposed_index: AtomicU64,
}

#[derive(Default)]
struct Promised {
    /// If each value begins a block.
    bytes: u64,
    /// In a checkpoint.
    index_bytes: u64,
    requests: VecDeque<Request>,
    next: u64,
}

struct Request {
    number: u64,
    bytes: u64,
    index_bytes: u64,
    lengths: Vec<u64>,
}

/// The promise to the entries of one request, until the last of them is dropped.
struct Claim {
    room: Arc<Room>,
    number: u64,
}

/// Room for one write of a client, until it is in the log or was given up.
pub(crate) struct Proposed {
    room: Arc<Room>,
    need: Need,
}

impl Room {
    pub(crate) fn new(engine: Engine) -> Arc<Room> {
        Arc::new(Room {
            engine,
            promised: Mutex::default(),
            proposed: AtomicU64::new(0),
            proposed_index: AtomicU64::new(0),
        })
    }

    /// Claims room for a client's write, beside those that are on their way.
    pub(crate) fn propose(self: &Arc<Room>, need: Need) -> cairn_engine::Result<Proposed> {
        let before = self.proposed.fetch_add(need.bytes, Ordering::Relaxed);
        let before_index = self.proposed_index.fetch_add(need.index_bytes, Ordering::Relaxed);
        let proposed = Proposed { room: self.clone(), need };
        self.engine.admit(Need {
            bytes: need.bytes.saturating_add(before),
            longest: need.longest,
            index_bytes: need.index_bytes.saturating_add(before_index),
        })?;
        Ok(proposed)
    }

    /// Claims room for the entries of a request, if there is enough. To be held by each of them.
    pub(super) fn claim(self: &Arc<Room>, request: &proto::AppendRequest) -> Result<Option<Held>, Status> {
        if request.entries.is_empty() {
            return Ok(None);
        }
        let of = |entry: &proto::Entry| {
            let body = Some(entry.meta.len()).filter(|len| *len > LONG_META_BYTES);
            entry.values.iter().map(|value| value.len()).chain(body).collect::<Vec<_>>()
        };
        let lengths = request.entries.iter().flat_map(of).filter(|len| *len > 0);
        let lengths: Vec<u64> = lengths.map(|len| len as u64).collect();
        let index = |entry: &proto::Entry| Engine::index_bytes(entry.values.len(), entry.meta.len());
        let index_bytes = request.entries.iter().map(index).sum();
        let number = self.promise(lengths, index_bytes)?;
        Ok(Some(Arc::new(Claim { room: self.clone(), number })))
    }

    fn promise(&self, lengths: Vec<u64>, index_bytes: u64) -> Result<u64, Status> {
        let bytes = Engine::bytes_in_blocks(&lengths);
        let mut promised = self.promised.lock();
        let all = || {
            promised.requests.iter().flat_map(|request| &request.lengths).chain(&lengths).copied().collect()
        };
        let (all_bytes, all_index) =
            (promised.bytes.saturating_add(bytes), promised.index_bytes.saturating_add(index_bytes));
        let room = self.engine.has_room(all_bytes, all_index, all);
        room.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        let number = promised.next;
        promised.next += 1;
        promised.bytes += bytes;
        promised.index_bytes += index_bytes;
        promised.requests.push_back(Request { number, bytes, index_bytes, lengths });
        Ok(number)
    }

    fn kept(&self, number: u64) {
        let mut promised = self.promised.lock();
        if let Some(at) = promised.requests.iter().position(|request| request.number == number)
            && let Some(request) = promised.requests.remove(at)
        {
            promised.bytes -= request.bytes;
            promised.index_bytes -= request.index_bytes;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.room.kept(self.number);
    }
}

impl Drop for Proposed {
    fn drop(&mut self) {
        self.room.proposed.fetch_sub(self.need.bytes, Ordering::Relaxed);
        self.room.proposed_index.fetch_sub(self.need.index_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::core::codec::{encode_command, encode_payload};
    use crate::core::command::{Command, Condition, Operation};
    use crate::core::proto::{self, AppendRequest, Vote};
    use crate::replica::tests::{other, replica};
    use bytes::Bytes;
    use openraft::EntryPayload;
    use tonic::Code;

    /// The story: the room that was promised to a request counted no longer as soon as its stream was reset, while openraft still held
    /// the request. Others were promised the same room, and the member stopped when it had to store both.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_promised_room_keeps_it_until_replication_has_dropped_its_entries() {
        let (_folder, replica, service) = replica().await;
        let free = replica.engine().status().free_bytes;
        let value = Bytes::from(vec![1; 64 << 10]);
        let most_of_it = usize::try_from(free * 2 / 3).unwrap() / value.len();
        let key = Bytes::from_static(b"key");
        let put = Operation::Put { key, value, condition: Condition::None };
        let operations = vec![put; most_of_it];
        let command = encode_command(Command { synced: false, session: None, operations }, 1);
        let (meta, values) = encode_payload(EntryPayload::Normal(command));
        let append = || AppendRequest {
            vote: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
            entries: vec![proto::Entry { term: 1, index: 0, meta: meta.clone(), values: values.clone() }],
            ..AppendRequest::default()
        };
        let first = service.append_request(other(), append()).unwrap();
        let refused = service.append_request(other(), append()).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        drop(first);
        service.append_request(other(), append()).unwrap();
    }
}
