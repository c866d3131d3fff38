//! Room for what a leader sends, asked before replication takes it.
//!
//! Members pack their data areas differently, so a follower may be full where its leader is not. An entry that replication has
//! taken must be stored, or the member stops. So the request is refused before: the leader tries again later, heartbeats go
//! on, and meanwhile this member purges its log and gives back what died.

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
    pending: AtomicU64,
}

/// The promises of one stream, in order. What is left of them ends with it.
pub(super) struct Claims {
    room: Arc<Room>,
    bytes: Mutex<VecDeque<u64>>,
}

impl Room {
    pub(crate) fn new(engine: Engine) -> Arc<Room> {
        Arc::new(Room { engine, pending: AtomicU64::new(0) })
    }

    pub(super) fn claims(self: &Arc<Room>) -> Arc<Claims> {
        Arc::new(Claims { room: self.clone(), bytes: Mutex::default() })
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
        let bytes = lengths.iter().sum();
        if bytes > 0 {
            let pending = self.room.pending.load(Ordering::Relaxed);
            let room = self.room.engine.has_room(&lengths, pending);
            room.map_err(|error| Status::resource_exhausted(error.to_string()))?;
            self.room.pending.fetch_add(bytes, Ordering::Relaxed);
        }
        self.bytes.lock().push_back(bytes);
        Ok(())
    }

    /// The oldest request has been answered: what it brought has its place.
    pub(super) fn answered(&self) {
        let bytes = self.bytes.lock().pop_front().unwrap_or_default();
        self.room.pending.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        let left = std::mem::take(self.bytes.get_mut()).into_iter().sum();
        self.room.pending.fetch_sub(left, Ordering::Relaxed);
    }
}
