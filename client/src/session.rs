//! What makes a write safe to retry: a client id, a sequence number, and the lowest number still in
//! flight.
//!
//! The servers keep a session's results from its lowest pending sequence number on, 1024 at most,
//! and answer a repeated number with its first result. So:
//! - A number is pending from [`Sessions::begin`] until its [`Ticket`] is dropped, however the
//!   write ends.
//! - The numbers from the lowest pending to the newest never span more than [`WINDOW`]. If one slow
//!   write among many fast ones would exceed that, the next write starts a new session, and the old
//!   one ends with its last ticket.
//! - A session's base is an index that was known committed before the session began, so every write
//!   of the session has a greater index. A server that has forgotten sessions up to some index can
//!   tell whether this may be one of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::proto;
use crate::random::Random;

/// Below the servers' 1024 results per session.
const WINDOW: usize = 1000;

/// A client's sessions: the current one, and what the next one needs.
pub(crate) struct Sessions {
    current: Mutex<Option<Arc<Session>>>,
    /// The greatest index known to be committed, since the servers last forgot a session.
    committed: AtomicU64,
    pub(crate) permits: Semaphore,
    /// Held while an expired session is replaced, so that many writes ask for only one new base.
    renewal: tokio::sync::Mutex<()>,
}

pub(crate) struct Session {
    client_id: Bytes,
    base_index: u64,
    window: Mutex<Window>,
}

/// The pending sequence numbers: `lowest` and those after it, each with whether it has ended.
struct Window {
    lowest: u64,
    ended: VecDeque<bool>,
}

/// One write's sequence number in its session. Dropping it ends the number.
pub(crate) struct Ticket {
    session: Arc<Session>,
    sequence: u64,
}

impl Sessions {
    pub(crate) fn new(max_in_flight: usize) -> Self {
        Sessions {
            current: Mutex::new(None),
            committed: AtomicU64::new(0),
            permits: Semaphore::new(max_in_flight),
            renewal: tokio::sync::Mutex::new(()),
        }
    }

    /// Records an index that is known to be committed.
    pub(crate) fn observe(&self, index: u64) {
        if self.committed.load(Ordering::Relaxed) < index {
            self.committed.fetch_max(index, Ordering::Relaxed);
        }
    }

    /// The next sequence number. An index must have been observed before the first call.
    pub(crate) fn begin(&self, random: &Random) -> Ticket {
        let mut current = self.current.lock();
        if let Some(session) = current.as_ref()
            && let Some(sequence) = session.begin()
        {
            return Ticket { session: session.clone(), sequence };
        }
        let window = Window { lowest: 1, ended: VecDeque::from([false]) };
        let session = Arc::new(Session {
            client_id: Bytes::copy_from_slice(&random.client_id()),
            base_index: self.committed.load(Ordering::Relaxed),
            window: Mutex::new(window),
        });
        *current = Some(session.clone());
        Ticket { session, sequence: 1 }
    }

    /// Ends the session of `ticket`, which a server has forgotten. `fresh_base` returns a committed
    /// index.
    pub(crate) async fn renew<E>(
        &self,
        ticket: &Ticket,
        fresh_base: impl Future<Output = Result<u64, E>>,
    ) -> Result<(), E> {
        let _one_at_a_time = self.renewal.lock().await;
        if self.is_current(ticket) {
            // Not the greatest index ever seen: that may belong to a history that an unsafe
            // recovery discarded, and is no base in the present one.
            self.committed.store(fresh_base.await?, Ordering::Relaxed);
            if self.is_current(ticket) {
                *self.current.lock() = None;
            }
        }
        Ok(())
    }

    fn is_current(&self, ticket: &Ticket) -> bool {
        self.current.lock().as_ref().is_some_and(|session| Arc::ptr_eq(session, &ticket.session))
    }
}

impl Session {
    /// The next sequence number, unless the window is full.
    fn begin(&self) -> Option<u64> {
        let mut window = self.window.lock();
        if window.ended.len() >= WINDOW {
            return None;
        }
        let sequence = window.lowest + window.ended.len() as u64;
        window.ended.push_back(false);
        Some(sequence)
    }

    fn end(&self, sequence: u64) {
        let mut window = self.window.lock();
        let position = sequence.checked_sub(window.lowest).and_then(|p| usize::try_from(p).ok());
        if let Some(ended) = position.and_then(|p| window.ended.get_mut(p)) {
            *ended = true;
        }
        while window.ended.front() == Some(&true) {
            window.ended.pop_front();
            window.lowest += 1;
        }
    }
}

impl Ticket {
    /// The session, as a request carries it now.
    pub(crate) fn to_proto(&self) -> proto::Session {
        proto::Session {
            client_id: self.session.client_id.clone(),
            sequence: self.sequence,
            lowest_pending: self.session.window.lock().lowest,
            base_index: self.session.base_index,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.session.end(self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> (Sessions, Random) {
        let sessions = Sessions::new(512);
        sessions.observe(40);
        (sessions, Random::new(Some(7)).unwrap())
    }

    #[test]
    fn sequence_numbers_begin_at_one_and_carry_the_base_seen_before_the_session() {
        let (sessions, random) = sessions();
        let first = sessions.begin(&random);
        sessions.observe(50);
        let second = sessions.begin(&random);
        let (a, b) = (first.to_proto(), second.to_proto());
        assert_eq!((a.sequence, b.sequence), (1, 2));
        assert_eq!((a.base_index, b.base_index), (40, 40));
        assert_eq!(a.client_id, b.client_id);
        assert_eq!(a.client_id.len(), 16);
    }

    #[test]
    fn the_lowest_pending_number_waits_for_the_oldest_write() {
        let (sessions, random) = sessions();
        let first = sessions.begin(&random);
        let second = sessions.begin(&random);
        let third = sessions.begin(&random);
        drop(second);
        assert_eq!(third.to_proto().lowest_pending, 1);
        drop(first);
        assert_eq!(third.to_proto().lowest_pending, 3);
        drop(third);
        assert_eq!(sessions.begin(&random).to_proto().lowest_pending, 4);
    }

    #[test]
    fn no_number_in_flight_is_ever_below_the_lowest_pending() {
        let (sessions, random) = sessions();
        let mut pending = VecDeque::new();
        for i in 0..5_000 {
            pending.push_back(sessions.begin(&random));
            if i % 3 != 0 || pending.len() > 400 {
                let which = random.index(pending.len());
                pending.remove(which);
            }
            assert!(pending.iter().all(|ticket: &Ticket| {
                let session = ticket.to_proto();
                session.lowest_pending <= session.sequence
                    && session.sequence - session.lowest_pending < WINDOW as u64
            }));
        }
    }

    #[test]
    fn one_slow_write_makes_the_others_continue_in_a_new_session() {
        let (sessions, random) = sessions();
        let stuck = sessions.begin(&random);
        for _ in 1..WINDOW {
            assert_eq!(sessions.begin(&random).to_proto().client_id, stuck.to_proto().client_id);
        }
        sessions.observe(9_000);
        let next = sessions.begin(&random).to_proto();
        assert_ne!(next.client_id, stuck.to_proto().client_id);
        assert_eq!((next.sequence, next.lowest_pending, next.base_index), (1, 1, 9_000));
        assert_eq!(stuck.to_proto().lowest_pending, 1);
    }

    #[tokio::test]
    async fn a_session_forgotten_by_the_servers_is_replaced_once_for_all_its_writes() {
        let (sessions, random) = sessions();
        let first = sessions.begin(&random);
        let second = sessions.begin(&random);
        sessions.renew(&first, async { Ok::<u64, ()>(70) }).await.unwrap();
        let renewed = sessions.begin(&random).to_proto();
        sessions
            .renew(&second, async { panic!("the base is fresh already") as Result<u64, ()> })
            .await
            .unwrap();
        assert_eq!(sessions.begin(&random).to_proto().client_id, renewed.client_id);
        assert_ne!(renewed.client_id, first.to_proto().client_id);
        assert_eq!(renewed.base_index, 70);
    }

    /// The story: after an unsafe recovery the client continued with an index of the discarded
    /// history.
    #[tokio::test]
    async fn a_new_session_begins_at_the_fresh_base_even_after_greater_indexes() {
        let (sessions, random) = sessions();
        sessions.observe(1000);
        let ticket = sessions.begin(&random);
        sessions.renew(&ticket, async { Ok::<u64, ()>(905) }).await.unwrap();
        assert_eq!(sessions.begin(&random).to_proto().base_index, 905);
    }

    #[tokio::test]
    async fn a_session_stays_if_there_is_no_fresh_base() {
        let (sessions, random) = sessions();
        let ticket = sessions.begin(&random);
        assert_eq!(sessions.renew(&ticket, async { Err("no answer") }).await, Err("no answer"));
        assert_eq!(sessions.begin(&random).to_proto().client_id, ticket.to_proto().client_id);
    }
}
