//! Tells clients what is changed, each change once and in order: many watches on a stream.
//!
//! ```text
//! applied entries ──► hub ──► which watches have which entries to be told
//!                                   │ news
//!              begins, ends ──► stream ──► plan: the changes ──► values ──► a message
//!                                   ▲ polled by the transport, when its client takes more
//! ```
//!
//! What holds here:
//! - A watch is told what its member has applied, behind a barrier of a quorum that began at most a second before. So
//!   it is told what was committed. What an unsafe recovery discards it is told no later than a message that was
//!   sent before may arrive. A member that recovers, is no voter, or hears no leader for a while tells nothing, and sends its
//!   watches elsewhere.
//! - A watch begins behind a barrier of its own: its position is judged by what the cluster has then.
//! - A message is made when the transport takes it. A client that stops costs one message, and a kibibyte of each of its
//!   watches. Others do not notice it. Once the log has gone on without it, its watches end: never with a hole.
//! - Each watch is charged to the requests of its client, which keep a quarter of their memory for calls, and each message
//!   to its reads. Of the node's watches a client has as many as remain free.
//! - Before each message the client's roles are looked at again.

mod begin;
mod hub;
mod marks;
mod plan;
mod ranges;
mod shows;
mod stream;
mod values;

use super::Inner;
use crate::access::Session;
use crate::admission::caller::Caller;
use crate::admission::memory::Charge;
use crate::admission::requests::Arrived;
use crate::admission::shares::{Owner, Shares};
use crate::metrics::WatchMetrics;
use cairn_client::proto;
use cairn_client::proto::watch_ended::Why;
use cairn_engine::LogId;
use cairn_raft::HistoryError;
use futures::Stream;
use hub::Hub;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use stream::Serving;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Status, Streaming};

/// Streams that read the log at once. Others try again a little later, and take no processor meanwhile.
const LOG_READERS: usize = 4;
/// Memory of a watch beside its range.
const WATCH_BYTES: usize = hub::PENDING * size_of::<LogId>() + 512;

/// What is told on a stream, or why it ends.
type Message = Result<proto::WatchResponse, Status>;
/// The messages of a stream.
pub(super) type Messages = Pin<Box<dyn Stream<Item = Message> + Send>>;

/// What the streams of a node share.
pub(super) struct Watches {
    hub: Arc<Hub>,
    held: Arc<Mutex<Shares>>,
    log_readers: Arc<Semaphore>,
}

impl Watches {
    pub(super) fn new(metrics: &WatchMetrics) -> Watches {
        Watches {
            hub: Hub::new(metrics.clone()),
            held: Arc::default(),
            log_readers: Arc::new(Semaphore::new(LOG_READERS)),
        }
    }

    /// The turn to read the log, if it is free. No one waits in line for it: who is first there may not be polled for
    /// as long as its client takes nothing. Do not await anything while you have it.
    fn log_turn(&self) -> Option<OwnedSemaphorePermit> {
        self.log_readers.clone().try_acquire_owned().ok()
    }

    /// Lets a client have one more of at most so many watches, if it may.
    fn take(&self, owner: Owner, most: usize) -> Option<Place> {
        let mut held = self.held.lock();
        held.set_most(most);
        held.fits(owner, 1).then(|| {
            held.take(owner, 1);
            Place { held: self.held.clone(), owner }
        })
    }
}

/// One of the watches that a client may have. Dropping it gives it back.
struct Place {
    held: Arc<Mutex<Shares>>,
    owner: Owner,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held.lock().release(self.owner, 1);
    }
}

/// What a watch holds, until its client is told that it has ended.
struct Held {
    _place: Place,
    _charge: Charge,
}

/// Serves the watches of a stream.
pub(super) fn messages(
    inner: Arc<Inner>,
    who: (Caller, Session),
    requests: Streaming<proto::WatchRequest>,
    arrived: Arrived,
) -> Messages {
    let serving = Serving::new(inner, who, requests, arrived);
    Box::pin(futures::stream::unfold(serving, |mut serving| async move {
        let message = serving.next().await?;
        Some((message, serving))
    }))
}

fn position(id: LogId) -> proto::Position {
    proto::Position { term: id.term, index: id.index }
}

/// The end of a watch.
fn ended(why: Why, message: impl Into<String>) -> proto::WatchEnded {
    let (why, message) = (why.into(), message.into());
    proto::WatchEnded { why, oldest: None, now: None, message }
}

/// Why what is behind a position is not told.
fn untold(error: &HistoryError) -> proto::WatchEnded {
    let message = error.to_string();
    match error {
        HistoryError::Compacted { oldest, now, .. } => proto::WatchEnded {
            oldest: Some(position(*oldest)),
            now: Some(position(*now)),
            ..ended(Why::Compacted, message)
        },
        HistoryError::Discarded { .. } => ended(Why::Discarded, message),
        // All that was ever told is applied behind the barrier of a watch that begins.
        HistoryError::Ahead { after } => ended(
            Why::Discarded,
            format!(
                "entry {after} is not in the history of this cluster, which has not come to it; read the state, and go on \
                 behind that"
            ),
        ),
        HistoryError::Unreadable { .. } => ended(Why::Unreadable, message),
        _ => ended(Why::Move, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: one client began as many watches as the node may have, and nobody else could begin one.
    #[test]
    fn a_client_has_as_many_watches_as_remain_free_and_gives_them_back() {
        let watches = Watches::new(&WatchMetrics::default());
        let (one, other) = (Owner::Name(1), Owner::Name(2));
        let take = |owner| watches.take(owner, 8);
        let mut own: Vec<Place> = (0..4).map(|_| take(one).expect("it is free")).collect();
        assert!(take(one).is_none(), "half of them");
        let others: Vec<Place> = (0..2).map(|_| take(other).expect("it is free")).collect();
        assert!(take(other).is_none());
        own.clear();
        assert!(take(other).is_some());
        drop(others);
        assert_eq!(watches.held.lock().held(), 0);
    }

    /// The story: streams stood in line for a turn, and each waited for a barrier when it had its own. One whose client took
    /// nothing was not polled when its turn came, and kept it for ever.
    #[test]
    fn a_stream_has_its_turn_to_read_the_log_at_once_or_not_at_all() {
        let watches = Watches::new(&WatchMetrics::default());
        let turns: Vec<_> = (0..LOG_READERS).filter_map(|_| watches.log_turn()).collect();
        assert_eq!(turns.len(), LOG_READERS);
        assert!(watches.log_turn().is_none());
        drop(turns);
        assert!(watches.log_turn().is_some());
    }

    #[test]
    fn the_end_of_a_watch_says_what_its_client_can_do() {
        let (after, oldest, now) =
            (LogId { term: 1, index: 3 }, LogId { term: 1, index: 7 }, LogId { term: 2, index: 9 });
        let compacted = untold(&HistoryError::Compacted { after, oldest, now });
        assert_eq!(compacted.why(), Why::Compacted);
        assert_eq!(
            (compacted.oldest, compacted.now),
            (Some(position(oldest)), Some(position(now)))
        );
        assert!(compacted.message.contains("go on behind that"), "{}", compacted.message);
        for (error, why) in [
            (HistoryError::Discarded { after }, Why::Discarded),
            (HistoryError::Ahead { after }, Why::Discarded),
            (HistoryError::Unreadable { at: after, reason: "x".into() }, Why::Unreadable),
            (HistoryError::Recovering, Why::Move),
        ] {
            let told = untold(&error);
            assert_eq!((told.why(), told.oldest, told.now), (why, None, None), "{error}");
            assert!(!told.message.is_empty());
        }
    }
}
