//! All watches of a connection, over one stream.
//!
//! The first watch opens the stream, and the last one that goes ends it. One task drives it: it sends what the watches ask for,
//! and puts what the node tells into their inboxes ([`inbox`]).
//!
//! What holds here: no watch waits for the reader of another one. A watch whose inbox is full is ended at the node. A node that
//! says nothing for [`SILENCE`] is left: one that works marks its progress more often than that. What a node tells that it may not
//! tell ends the watch that it concerns, or all of the stream, with a sentence; where its marks fall back it is only left. Nothing
//! here grows by what a node sends.

pub(crate) mod inbox;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::{Code, Request, Status};

use crate::Error;
use crate::caller::Caller;
use crate::multiplexed::UnaryStub;
use crate::proto::error_detail::Reason;
use crate::proto::watch_ended::Why;
use crate::proto::{self, ErrorDetail, watch_part, watch_request};
use crate::shown::of_node;
use crate::types::Position;
use inbox::{Inbox, Taken, Turn};

pub(crate) use inbox::Over;

/// A node that says nothing for so long is left. One that works says something every 10 s.
const SILENCE: Duration = Duration::from_secs(25);
/// When a node is asked again that had as many watches as it may have, and no other one is left.
const FULL_AGAIN_MS: u64 = 250;
/// Requests on their way to the transport.
const WINDOW: usize = 4;
/// The most watches of a stream that were ended and whose end the node has not confirmed.
const MOST_ENDING: usize = 1 << 16;

/// Why a node tells a watch nothing any more.
#[derive(Clone, Debug)]
pub(crate) enum Left {
    /// Too much waits to be read.
    Full,
    /// The node cannot go on, or cannot be reached: another one may.
    Elsewhere(Status),
    /// The node says, or shows, that the watch is over.
    Over(Over),
}

/// Who asks for a watch, and over which connection.
pub(crate) struct Asking<'a> {
    pub(crate) stub: &'a UnaryStub,
    pub(crate) caller: &'a Caller,
    /// The generation that the client means.
    pub(crate) named: Option<u32>,
}

/// The stream of a connection's watches, while there are any.
#[derive(Clone, Default)]
pub(crate) struct WatchStreams(Arc<Mutex<Weak<Driven>>>);

/// An open stream. The watches hold it.
struct Driven {
    asked: mpsc::UnboundedSender<Asked>,
    next_id: AtomicU64,
    /// The generation that it names.
    named: Option<u32>,
    driver: JoinHandle<()>,
}

impl Drop for Driven {
    /// Also while the node does not answer or read.
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What a watch asks of its stream.
enum Asked {
    Begin(proto::WatchBegin, Listener),
    End(u64),
}

/// The way back to a watch.
struct Listener {
    inbox: Arc<Inbox>,
    turn: Turn,
    /// Until the node has begun.
    begun: Option<oneshot::Sender<Result<(), Left>>>,
    left: oneshot::Sender<Left>,
}

/// A watch that a node has begun. Dropped, it ends there.
pub(crate) struct Watching {
    stream: Arc<Driven>,
    id: u64,
    left: oneshot::Receiver<Left>,
}

impl Watching {
    /// Why the node tells nothing any more, once that is so. May be cancelled.
    pub(crate) async fn left(&mut self) -> Left {
        (&mut self.left).await.unwrap_or_else(|_| Left::Elsewhere(lost()))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // The stream may have ended.
        let _ = self.stream.asked.send(Asked::End(self.id));
    }
}

impl WatchStreams {
    /// Begins a watch, over the stream that is open or over a new one. Returns once the node has begun it, or has
    /// said that no node can. May be cancelled.
    ///
    /// # Errors
    /// Why another node is to be asked.
    pub(crate) async fn begin(
        &self,
        asking: Asking<'_>,
        mut begin: proto::WatchBegin,
        (inbox, turn): (Arc<Inbox>, Turn),
        timeout: Duration,
    ) -> Result<Result<Watching, Over>, Status> {
        let stream = self.open(asking);
        begin.id = stream.next_id.fetch_add(1, Ordering::Relaxed);
        let (begun, has_begun) = oneshot::channel();
        let (left, leaves) = oneshot::channel();
        let watching = Watching { id: begin.id, stream, left: leaves };
        let listener = Listener { inbox, turn, begun: Some(begun), left };
        watching.stream.asked.send(Asked::Begin(begin, listener)).map_err(|_| lost())?;
        match tokio::time::timeout(timeout, has_begun).await {
            Ok(Ok(Ok(()))) => Ok(Ok(watching)),
            Ok(Ok(Err(Left::Over(over)))) => Ok(Err(over)),
            Ok(Ok(Err(Left::Elsewhere(status)))) => Err(status),
            Ok(Ok(Err(Left::Full)) | Err(_)) => Err(lost()),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "it did not begin a watch within {} ms",
                timeout.as_millis()
            ))),
        }
    }

    /// The stream for watches of this generation.
    fn open(&self, asking: Asking<'_>) -> Arc<Driven> {
        let Asking { stub, caller, named } = asking;
        let mut current = self.0.lock();
        let is_usable = |open: &Arc<Driven>| !open.asked.is_closed() && open.named == named;
        if let Some(open) = current.upgrade().filter(is_usable) {
            return open;
        }
        let (asked, queue) = mpsc::unbounded_channel();
        let driver = tokio::spawn(drive(stub.clone(), caller.clone(), named, queue));
        let open = Arc::new(Driven { asked, next_id: AtomicU64::new(1), named, driver });
        *current = Arc::downgrade(&open);
        open
    }
}

fn lost() -> Status {
    Status::unavailable("the stream of watches was lost")
}

fn silent() -> Status {
    Status::unavailable(format!("it told its watches nothing for {} s", SILENCE.as_secs()))
}

/// Runs the stream until it ends, which every watch of it is told.
async fn drive(
    stub: UnaryStub,
    caller: Caller,
    named: Option<u32>,
    mut queue: mpsc::UnboundedReceiver<Asked>,
) {
    let mut watches = Watches::default();
    let left = exchange(stub, caller, named, &mut queue, &mut watches).await;
    queue.close();
    watches.leave(&left);
    while let Ok(asked) = queue.try_recv() {
        if let Asked::Begin(_, listener) = asked {
            listener.leave(left.clone());
        }
    }
}

/// Sends and receives until the stream ends. Returns why it did.
async fn exchange(
    mut stub: UnaryStub,
    caller: Caller,
    named: Option<u32>,
    queue: &mut mpsc::UnboundedReceiver<Asked>,
    watches: &mut Watches,
) -> Left {
    let (outlet, mut requests) = mpsc::channel(WINDOW);
    let stream = futures::stream::poll_fn(move |context| requests.poll_recv(context));
    let mut request = Request::new(stream);
    caller.add_to(&mut request, named);
    let mut told = match tokio::time::timeout(SILENCE, stub.watch(request)).await {
        Ok(Ok(told)) => told.into_inner(),
        Ok(Err(status)) => return Left::Elsewhere(status),
        Err(_) => return Left::Elsewhere(silent()),
    };
    let mut heard = Instant::now();
    let mut next: Option<proto::WatchRequest> = None;
    loop {
        // What is to be sent comes first: a node that tells much does not keep a watch from ending.
        tokio::select! {
            biased;
            permit = outlet.reserve(), if next.is_some() => match (permit, next.take()) {
                (Ok(permit), Some(request)) => permit.send(request),
                _ => return Left::Elsewhere(lost()),
            },
            asked = queue.recv(), if next.is_none() => match asked {
                Some(asked) => next = watches.asked(asked),
                None => return Left::Elsewhere(lost()),
            },
            message = told.next() => match message {
                Some(Ok(message)) => {
                    heard = Instant::now();
                    if let Err(left) = watches.told(message) {
                        return left;
                    }
                }
                Some(Err(status)) => return Left::Elsewhere(status),
                None => return Left::Elsewhere(lost()),
            },
            () = tokio::time::sleep_until(heard + SILENCE) => return Left::Elsewhere(silent()),
        }
    }
}

/// The watches of a stream, by the numbers that they have there.
#[derive(Default)]
struct Watches {
    /// `None`: it was left, and the node has not confirmed its end.
    listeners: BTreeMap<u64, Option<Listener>>,
    ending: usize,
    /// The last mark of the whole stream.
    through: Option<Position>,
}

impl Watches {
    /// What to send for this.
    fn asked(&mut self, asked: Asked) -> Option<proto::WatchRequest> {
        let kind = match asked {
            Asked::Begin(begin, listener) => {
                self.listeners.insert(begin.id, Some(listener));
                watch_request::Kind::Begin(begin)
            }
            Asked::End(id) => {
                // The node may have ended it.
                let slot = self.listeners.get_mut(&id)?;
                self.ending += usize::from(slot.take().is_some());
                watch_request::Kind::End(id)
            }
        };
        Some(proto::WatchRequest { kind: Some(kind) })
    }

    /// What the node told. The error: why all watches leave it.
    fn told(&mut self, message: proto::WatchResponse) -> Result<(), Left> {
        for part in message.parts {
            self.part(part).map_err(|breach| Left::Over(Over::Breach(breach)))?;
        }
        let Some(through) = message.through.map(Position::from) else { return Ok(()) };
        let before = self.through.replace(through).unwrap_or_default();
        if through.index < before.index || through.term < before.term {
            // An unsafe recovery may have discarded what was marked. Whether it discarded the position of a watch shows where
            // the watch begins again.
            return Err(Left::Elsewhere(Status::unavailable(format!(
                "it marked its progress at entry {through}, behind entry {before}"
            ))));
        }
        for slot in self.listeners.values_mut() {
            let told = |listener: &Listener| listener.inbox.through(listener.turn, through);
            if let Some(Err(over)) = slot.as_ref().map(told) {
                self.ending += 1;
                leave(slot, Left::Over(over));
            }
        }
        Ok(())
    }

    /// The error: what no node may tell, as a sentence about it.
    fn part(&mut self, part: proto::WatchPart) -> Result<(), String> {
        let proto::WatchPart { id, kind } = part;
        let Some(kind) = kind else {
            return Err("it told something of a watch that this client does not know".to_owned());
        };
        let slot = match (self.listeners.get_mut(&id), &kind) {
            (Some(slot), _) => slot,
            // It ended the watch by itself, and then confirms an end that came too late.
            (None, watch_part::Kind::Ended(_)) => return Ok(()),
            (None, _) => return Err(format!("it told of watch {id}, which it was not asked for")),
        };
        let is_end = matches!(kind, watch_part::Kind::Ended(_));
        if let Some(left) = slot.as_mut().and_then(|listener| listener.told(kind)) {
            self.ending += 1;
            leave(slot, left);
        }
        if is_end {
            self.listeners.remove(&id);
            self.ending = self.ending.saturating_sub(1);
        }
        match self.ending <= MOST_ENDING {
            true => Ok(()),
            false => Err(format!("it did not end {} watches that were ended", self.ending)),
        }
    }

    /// The stream has ended.
    fn leave(&mut self, left: &Left) {
        for slot in self.listeners.values_mut() {
            leave(slot, left.clone());
        }
    }
}

fn leave(slot: &mut Option<Listener>, left: Left) {
    if let Some(listener) = slot.take() {
        listener.leave(left);
    }
}

impl Listener {
    /// Takes what the node told. Returns why the watch leaves it, if it does.
    fn told(&mut self, kind: watch_part::Kind) -> Option<Left> {
        let taken = match kind {
            watch_part::Kind::Began(at) => {
                let began = self.inbox.began(self.turn, at.into());
                if began.is_ok()
                    && let Some(begun) = self.begun.take()
                {
                    // The caller may have stopped waiting.
                    let _ = begun.send(Ok(()));
                }
                began.map(|()| Taken::All)
            }
            watch_part::Kind::Changes(changes) => self.inbox.changes(self.turn, changes),
            watch_part::Kind::Ended(ended) => return Some(why_ended(ended)),
        };
        match taken {
            Ok(Taken::All) => None,
            Ok(Taken::Full) => Some(Left::Full),
            Err(over) => Some(Left::Over(over)),
        }
    }

    fn leave(self, left: Left) {
        // The watch may be gone.
        let _ = match self.begun {
            Some(begun) => begun.send(Err(left)).is_ok(),
            None => self.left.send(left).is_ok(),
        };
    }
}

/// Why a node ended a watch. What the node says becomes safe to print where it becomes an error.
fn why_ended(ended: proto::WatchEnded) -> Left {
    let why = ended.why();
    let proto::WatchEnded { oldest, now, message: said, .. } = ended;
    let or = |text: &str| if said.is_empty() { text.to_owned() } else { said.clone() };
    let detailed = |reason: Reason, code, text| {
        let retry_after_ms = if reason == Reason::Overloaded { FULL_AGAIN_MS } else { 0 };
        let reason = reason.into();
        let detail = ErrorDetail { reason, retry_after_ms, ..ErrorDetail::default() };
        Left::Elsewhere(detail.into_status(code, or(text)))
    };
    let at = |position: Option<proto::Position>| position.unwrap_or_default().into();
    match why {
        Why::Compacted => {
            Left::Over(Over::Said(Error::Compacted { oldest: at(oldest), now: at(now) }))
        }
        Why::Discarded => Left::Over(Over::Said(Error::HistoryDiscarded)),
        Why::Denied => {
            detailed(Reason::PermissionDenied, Code::PermissionDenied, "the range may not be read")
        }
        Why::Invalid => {
            let said = of_node(&or("the node refuses the watch, without a reason"));
            Left::Over(Over::Said(Error::InvalidRequest(said)))
        }
        Why::Unreadable => {
            detailed(Reason::ValueUnreadable, Code::DataLoss, "a value is damaged there")
        }
        Why::Full => {
            detailed(Reason::Overloaded, Code::ResourceExhausted, "it has too many watches")
        }
        Why::Move | Why::Cancelled | Why::Unspecified => {
            detailed(Reason::Stopped, Code::Unavailable, "it tells no changes now")
        }
    }
}

#[cfg(test)]
mod tests;
