//! Room for what a leader sends, asked before replication takes it, and for what clients send to a leader.
//!
//! Members pack their data areas differently, so a follower may be full where its leader is not. An entry that replication has
//! taken must be stored, or the member stops. So the request is refused before: the leader tries again later, heartbeats go
//! on, and meanwhile this member purges its log and gives back what died. What was promised room and has no place yet counts
//! with what is asked next.

use super::proto;
use cairn_engine::Engine;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tonic::Status;

/// A longer meta may not fit into the journal's record, and then goes to the data area.
const LONG_META_BYTES: usize = 512;

/// What was promised room and is not yet answered.
pub(crate) struct Room {
    engine: Engine,
    promised: Mutex<Promised>,
    /// Bytes of clients' writes on their way into the log.
    proposed: AtomicU64,
}

#[derive(Default)]
struct Promised {
    /// If each value begins a block.
    bytes: u64,
    requests: VecDeque<Request>,
    next: u64,
}

struct Request {
    number: u64,
    bytes: u64,
    lengths: Vec<u64>,
}

/// The promises of one stream, in order. What is left of them ends with it.
pub(super) struct Claims {
    room: Arc<Room>,
    /// The number of each request, if it has values.
    requests: Mutex<VecDeque<Option<u64>>>,
}

/// Room for one write of a client, until it is in the log or was given up.
pub(crate) struct Proposed {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    pub(crate) fn new(engine: Engine) -> Arc<Room> {
        Arc::new(Room { engine, promised: Mutex::default(), proposed: AtomicU64::new(0) })
    }

    pub(super) fn claims(self: &Arc<Room>) -> Arc<Claims> {
        Arc::new(Claims { room: self.clone(), requests: Mutex::default() })
    }

    /// Claims room for a client's write, beside those that are on their way.
    pub(crate) fn propose(self: &Arc<Room>, bytes: u64, longest: u64) -> cairn_engine::Result<Proposed> {
        let before = self.proposed.fetch_add(bytes, Ordering::Relaxed);
        let proposed = Proposed { room: self.clone(), bytes };
        self.engine.admit(bytes.saturating_add(before), longest)?;
        Ok(proposed)
    }

    fn promise(&self, lengths: Vec<u64>) -> Result<u64, Status> {
        let bytes = Engine::bytes_in_blocks(&lengths);
        let mut promised = self.promised.lock();
        let all = || {
            promised.requests.iter().flat_map(|request| &request.lengths).chain(&lengths).copied().collect()
        };
        let room = self.engine.has_room(promised.bytes.saturating_add(bytes), all);
        room.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        let number = promised.next;
        promised.next += 1;
        promised.bytes += bytes;
        promised.requests.push_back(Request { number, bytes, lengths });
        Ok(number)
    }

    fn kept(&self, number: u64) {
        let mut promised = self.promised.lock();
        if let Some(at) = promised.requests.iter().position(|request| request.number == number)
            && let Some(request) = promised.requests.remove(at)
        {
            promised.bytes -= request.bytes;
        }
    }
}

impl Claims {
    /// Claims room for the values of a request, if there is enough.
    pub(super) fn claim(&self, request: &proto::AppendRequest) -> Result<(), Status> {
        let of = |entry: &proto::Entry| {
            let body = Some(entry.meta.len()).filter(|len| *len > LONG_META_BYTES);
            entry.values.iter().map(|value| value.len()).chain(body).collect::<Vec<_>>()
        };
        let lengths = request.entries.iter().flat_map(of).filter(|len| *len > 0);
        let lengths: Vec<u64> = lengths.map(|len| len as u64).collect();
        let number = if lengths.is_empty() { None } else { Some(self.room.promise(lengths)?) };
        self.requests.lock().push_back(number);
        Ok(())
    }

    /// The oldest request has been answered: what it brought has its place.
    pub(super) fn answered(&self) {
        if let Some(number) = self.requests.lock().pop_front().flatten() {
            self.room.kept(number);
        }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        for number in std::mem::take(self.requests.get_mut()).into_iter().flatten() {
            self.room.kept(number);
        }
    }
}

impl Drop for Proposed {
    fn drop(&mut self) {
        self.room.proposed.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
