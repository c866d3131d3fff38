//! Client sessions: the results of each client's latest writes. A retried write gets its first
//! result and is not applied again.
//!
//! The story behind it: a client writes, its connection breaks, and it retries the write at another
//! member. If the first attempt was applied, the second must not be. When the table has evicted the
//! client, nothing that might be a retry may be applied at all. `evicted_through` is the newest use
//! of any evicted session. A client that is not in the table, and whose session began before that,
//! may have been evicted.
//!
//! The other story: after an unsafe recovery, indexes name other entries than before. A client
//! whose base lies in the discarded history would seem to have begun after every eviction, even if
//! it did not. Without an unsafe recovery, an entry's index is always above its session's base. A
//! session for which that does not hold is refused until the log has passed its base; from then on
//! the comparison with evictions is right again.
//!
//! What holds here: every step depends on the table and the command alone, so all replicas keep and
//! evict the same sessions; the table is bounded in clients, in results per client, and in bytes,
//! so that it fits into a message and a checkpoint; a copy is O(1).

use crate::core::codec::StoredSession;
use crate::core::command::{OperationResult, Session, WriteOutcome};
use crate::core::error::Malformed;
use crate::core::proto;
use bytes::Bytes;
use cairn_engine::LogId;
use imbl::OrdMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Results kept per client; clients keep fewer writes in flight.
const MAX_RESULTS: usize = 1024;

/// Upper bounds for a client, a result and an operation's result in the image.
const CLIENT_BYTES: u64 = 48;
const RESULT_BYTES: u64 = 48;
const OPERATION_BYTES: u64 = 20;
/// What the deletion of a range adds to its operation's result. Other results must not grow by it: builds
/// of version 2 count as this one does, or they would evict other sessions.
const RANGE_BYTES: u64 = 8;
/// Bounds the table's bytes: this many for each client that it may hold, and no more than fit into
/// one message.
pub(crate) const BYTES_PER_SESSION: u64 = 4096;
const MAX_BYTES: u64 = 32 << 20;

/// The table of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    clients: OrdMap<u128, Arc<Client>>,
    /// The bytes of all clients.
    bytes: u64,
    /// The newest use of any evicted session.
    evicted_through: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Client {
    /// The index of the last entry that used the session.
    last_used: u64,
    lowest_pending: u64,
    /// By ascending sequence number.
    results: VecDeque<(u64, Arc<WriteOutcome>)>,
}

fn result_bytes(outcome: &WriteOutcome) -> u64 {
    let ranges = outcome.results.iter().filter(|result| is_of_range(result)).count() as u64;
    RESULT_BYTES + OPERATION_BYTES * outcome.results.len() as u64 + RANGE_BYTES * ranges
}

/// Whether it has what only the deletion of a range has.
fn is_of_range(result: &OperationResult) -> bool {
    result.deleted > 0 || result.more
}

/// What to do with a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionCheck {
    /// It is new: apply it, then [`Sessions::record`] it.
    New,
    /// It was applied before.
    Repeated(Arc<WriteOutcome>),
    /// It may have been applied before, and the table no longer knows. Or its base cannot tell,
    /// since it lies in a discarded history.
    Expired,
}

/// The most that a write with a session adds to the image.
pub(crate) fn write_bytes(operations: usize) -> u64 {
    CLIENT_BYTES + RESULT_BYTES + OPERATION_BYTES * operations as u64 + RANGE_BYTES
}

impl Sessions {
    /// No sessions, where each that began up to this index has ended.
    pub(crate) fn ended(evicted_through: u64) -> Sessions {
        Sessions { evicted_through, ..Sessions::default() }
    }

    /// Checks the command of entry `index`, and marks its session as used.
    pub(crate) fn check(&mut self, index: u64, stored: &StoredSession) -> SessionCheck {
        let Session { client_id, sequence, lowest_pending, base_index } = stored.session;
        if !self.clients.contains_key(&client_id) {
            if base_index < self.evicted_through || base_index >= index {
                return SessionCheck::Expired;
            }
            self.evict_for(stored.max_sessions);
        }
        let known = self.clients.entry(client_id).or_insert_with(|| {
            self.bytes += CLIENT_BYTES;
            Arc::default()
        });
        let client = Arc::make_mut(known);
        client.last_used = index;
        self.bytes -= client.drop_below(lowest_pending);
        if sequence < client.lowest_pending {
            return SessionCheck::Expired;
        }
        match client.find(sequence) {
            Ok(recorded) => SessionCheck::Repeated(recorded),
            Err(_) => SessionCheck::New,
        }
    }

    /// Keeps the result of a new command.
    pub(crate) fn record(&mut self, stored: &StoredSession, recorded: Arc<WriteOutcome>) {
        let session = &stored.session;
        let Some(client) = self.clients.get_mut(&session.client_id) else {
            return;
        };
        let client = Arc::make_mut(client);
        if let Err(position) = client.find(session.sequence) {
            self.bytes += result_bytes(&recorded);
            client.results.insert(position, (session.sequence, recorded));
        }
        while client.results.len() > MAX_RESULTS {
            if let Some((sequence, dropped)) = client.results.pop_front() {
                self.bytes -= result_bytes(&dropped);
                client.lowest_pending = client.lowest_pending.max(sequence.saturating_add(1));
            }
        }
        let most = stored.max_sessions.saturating_mul(BYTES_PER_SESSION).min(MAX_BYTES);
        if self.bytes > most {
            // The writing client's own results have a bound of their own.
            self.evict(|sessions, id| sessions.bytes > most / 8 * 7 && id != session.client_id);
        }
    }

    /// If the table is full, evicts the least recently used sessions: an eighth of the table at
    /// once, so that the search for them is rare.
    fn evict_for(&mut self, max_sessions: u64) {
        let max = usize::try_from(max_sessions).unwrap_or(usize::MAX).max(1);
        if self.clients.len() < max {
            return;
        }
        let rest = (max - 1).min(self.clients.len() - max / 8);
        self.evict(|sessions, _| sessions.clients.len() > rest);
    }

    /// Evicts sessions, the least recently used first, while `surplus` holds for the table and the
    /// next one.
    fn evict(&mut self, surplus: impl Fn(&Sessions, u128) -> bool) {
        let mut by_use: Vec<(u64, u128)> =
            self.clients.iter().map(|(id, client)| (client.last_used, *id)).collect();
        by_use.sort_unstable();
        for (last_used, id) in by_use {
            if !surplus(self, id) {
                break;
            }
            self.bytes -= self.clients.remove(&id).map_or(0, |client| client.bytes());
            self.evicted_through = self.evicted_through.max(last_used);
        }
    }

    /// The most that the table takes in the image.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn to_proto(&self) -> (u64, Vec<proto::SessionImage>) {
        let clients = self.clients.iter().map(|(id, client)| client.to_proto(*id)).collect();
        (self.evicted_through, clients)
    }

    pub(super) fn from_proto(
        evicted_through: u64,
        clients: Vec<proto::SessionImage>,
    ) -> Result<Sessions, Malformed> {
        let mut sessions = Sessions { evicted_through, ..Sessions::default() };
        for client in clients {
            let id: [u8; 16] = client
                .client_id
                .as_ref()
                .try_into()
                .map_err(|_| Malformed("a client id of another length"))?;
            let client = Client::from_proto(client)?;
            sessions.bytes += client.bytes();
            if sessions.clients.insert(u128::from_be_bytes(id), Arc::new(client)).is_some() {
                return Err(Malformed("a client twice"));
            }
        }
        Ok(sessions)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }
}

impl Client {
    fn find(&self, sequence: u64) -> Result<Arc<WriteOutcome>, usize> {
        match self.results.binary_search_by_key(&sequence, |(sequence, _)| *sequence) {
            Ok(position) => {
                self.results.get(position).map(|(_, recorded)| recorded.clone()).ok_or(position)
            }
            Err(position) => Err(position),
        }
    }

    /// Drops the results below `lowest_pending`, and returns how many bytes they took.
    fn drop_below(&mut self, lowest_pending: u64) -> u64 {
        let mut bytes = 0;
        if lowest_pending <= self.lowest_pending {
            return bytes;
        }
        self.lowest_pending = lowest_pending;
        while let Some((_, dropped)) =
            self.results.pop_front_if(|(sequence, _)| *sequence < lowest_pending)
        {
            bytes += result_bytes(&dropped);
        }
        bytes
    }

    fn bytes(&self) -> u64 {
        CLIENT_BYTES + self.results.iter().map(|(_, recorded)| result_bytes(recorded)).sum::<u64>()
    }

    fn to_proto(&self, id: u128) -> proto::SessionImage {
        let results = self.results.iter().map(|(sequence, recorded)| proto::SessionResult {
            sequence: *sequence,
            term: recorded.log_id.term,
            index: recorded.log_id.index,
            applied: recorded.applied,
            operations: recorded.results.clone(),
        });
        proto::SessionImage {
            client_id: Bytes::copy_from_slice(&id.to_be_bytes()),
            last_used: self.last_used,
            lowest_pending: self.lowest_pending,
            results: results.collect(),
        }
    }

    fn from_proto(image: proto::SessionImage) -> Result<Client, Malformed> {
        let mut client = Client {
            last_used: image.last_used,
            lowest_pending: image.lowest_pending,
            ..Client::default()
        };
        for result in image.results {
            if client.results.back().is_some_and(|(last, _)| *last >= result.sequence) {
                return Err(Malformed("a session's results out of order"));
            }
            let recorded = WriteOutcome {
                log_id: LogId { term: result.term, index: result.index },
                applied: result.applied,
                results: result.operations,
            };
            client.results.push_back((result.sequence, Arc::new(recorded)));
        }
        Ok(client)
    }
}

#[cfg(test)]
mod tests;
