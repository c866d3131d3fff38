//! Frames over a stream of bytes.
//!
//! What holds here: a frame that has begun arrives at the slowest rate or faster, and what is to be
//! sent is taken at a fortieth of that rate; else the connection ends. Each side says from time to time
//! that it is there, also while it receives nothing because it has enough to do. Who connected ends the
//! connection when it hears nothing; who accepted it, when it hears nothing for longer. Large frames
//! that are being received or served have a bound over all connections that one accepted.

use super::frame::{Frame, HEADER_BYTES, Header, Kind};
use super::{SLOWEST_BYTES_PER_SECOND, transfer_time};
use crate::core::error::Malformed;
use crate::core::proto::MAX_MESSAGE_BYTES;
use crate::core::runtime;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// What is read at once, if it is there.
const READ_BYTES: usize = 256 << 10;
/// Less room than this is not worth a read.
const LEAST_READ_BYTES: usize = 16 << 10;
/// A larger frame gets its memory as its bytes arrive: its length alone shows nothing.
const RESERVED_BYTES: usize = 1 << 20;
/// A larger frame needs room. Those with a value of the usual limit, or with what an append usually has,
/// never wait for others.
const SMALL_BYTES: usize = 3 << 20;
/// At most so many pieces are handed to the kernel at once.
const SLICES: usize = 64;
/// Within this time the rest of a frame that has begun must arrive, or as many bytes as the slowest rate
/// gives; and all that is to be sent must be taken, or so many bytes of it: a member with a slow disk
/// takes entries slowly.
const PROGRESS: Duration = Duration::from_secs(10);
const DUE_BYTES: usize = SLOWEST_BYTES_PER_SECOND as usize * PROGRESS.as_secs() as usize;
const TAKEN_BYTES: usize = 256 << 10;

/// How often each side says that it is there.
pub(super) const ALIVE_INTERVAL: Duration = Duration::from_millis(1_500);

/// Bytes of large frames of either sort that are received or served at once over all connections that a
/// member accepted; more frames wait.
const ROOM_BYTES: usize = 2 * MAX_MESSAGE_BYTES;

/// Room for large frames, in KiB. Clones share it.
#[derive(Clone)]
pub(crate) struct Room {
    calls: Arc<Semaphore>,
    /// Of append streams: they wait for the disk, and a snapshot's pieces must not wait with them.
    appends: Arc<Semaphore>,
}

impl Room {
    pub(super) fn of(bytes: usize) -> Room {
        let room = || Arc::new(Semaphore::new(bytes >> 10));
        Room { calls: room(), appends: room() }
    }
}

impl Default for Room {
    fn default() -> Room {
        Room::of(ROOM_BYTES)
    }
}

type Acquiring = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

pub(super) struct Framed<S> {
    stream: S,
    /// The longest frame that is taken.
    most: usize,
    received: BytesMut,
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// Bytes were written since the last flush.
    unflushed: bool,
    receiving: Progress,
    /// When to say again that this side is there.
    alarm: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// When bytes were received last; and how many were sent, and how often this side said so, since.
    heard: runtime::Instant,
    sent_since: u64,
    alive_since: u32,
    sending: Progress,
    /// Of a connection that was accepted, for its large frames.
    room: Option<Room>,
    acquiring: Option<Acquiring>,
    held: Option<OwnedSemaphorePermit>,
}

/// Ends what is slower than the slowest rate.
#[derive(Default)]
struct Progress {
    limit: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Bytes that are due before the limit.
    due: usize,
}

impl Progress {
    /// Called when the stream is not ready, and so many bytes are missing: an error if too few of them
    /// came for a while.
    fn waits(&mut self, missing: usize, context: &mut Context<'_>) -> io::Result<()> {
        let limit = self.limit.get_or_insert_with(|| {
            self.due = missing.min(DUE_BYTES);
            Box::pin(runtime::sleep(PROGRESS))
        });
        match limit.as_mut().poll(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                let reason = "the other side is too slow";
                Err(io::Error::new(io::ErrorKind::TimedOut, reason))
            }
        }
    }

    fn made(&mut self, bytes: usize) {
        self.due = self.due.saturating_sub(bytes);
        if self.due == 0 {
            self.limit = None;
        }
    }

    /// Nothing is waited for.
    fn ended(&mut self) {
        self.limit = None;
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection")
}

impl<S: AsyncRead + AsyncWrite + Unpin> Framed<S> {
    pub(super) fn new(stream: S, most: usize, room: Option<Room>) -> Framed<S> {
        Framed {
            room,
            acquiring: None,
            held: None,
            stream,
            most,
            received: BytesMut::new(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            unflushed: false,
            receiving: Progress::default(),
            alarm: Box::pin(runtime::sleep(ALIVE_INTERVAL)),
            heard: runtime::now(),
            sent_since: 0,
            alive_since: 0,
            sending: Progress::default(),
        }
    }

    /// Says that this side is there, if it is time to.
    pub(super) fn say_alive(&mut self, context: &mut Context<'_>) {
        while self.alarm.as_mut().poll(context).is_ready() {
            let (kind, message, values) = (Kind::Alive, Bytes::new(), Vec::new());
            self.send(Frame { kind, code: 0, call: 0, message, values });
            self.alive_since += 1;
            self.alarm = Box::pin(runtime::sleep(ALIVE_INTERVAL));
        }
    }

    /// Whether the other side has said nothing for so long that it is taken for gone. What was sent may
    /// be on its way for a while. A process that was stopped itself looks again first.
    pub(super) fn is_silent(&self) -> bool {
        self.alive_since > 1
            && runtime::now() - self.heard > ALIVE_INTERVAL * 2 + transfer_time(self.sent_since)
    }

    /// Bytes that the other side has not taken.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    pub(super) fn send(&mut self, frame: Frame) {
        self.unsent_bytes += frame.write(&mut self.unsent);
    }

    pub(super) fn send_bytes(&mut self, bytes: &'static [u8]) {
        self.unsent_bytes += bytes.len();
        self.unsent.push_back(Bytes::from_static(bytes));
    }

    /// Sends what is to be sent. Ready when nothing is left.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unsent_bytes > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.unsent) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            let slices = slices.get(..count).unwrap_or_default();
            let written = match Pin::new(&mut self.stream).poll_write_vectored(context, slices) {
                Poll::Ready(written) => written?,
                Poll::Pending => {
                    self.sending.waits(self.unsent_bytes.min(TAKEN_BYTES), context)?;
                    return Poll::Pending;
                }
            };
            if written == 0 {
                return Poll::Ready(Err(ended()));
            }
            self.sending.made(written);
            self.sent_since += written as u64;
            self.sent(written);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn sent(&mut self, mut bytes: usize) {
        self.unsent_bytes -= bytes;
        while let Some(piece) = self.unsent.front_mut() {
            if piece.len() > bytes {
                piece.advance(bytes);
                return;
            }
            bytes -= piece.len();
            self.unsent.pop_front();
        }
    }

    /// The first bytes of the stream, as many as asked for.
    pub(super) fn poll_first(
        &mut self,
        bytes: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Bytes>> {
        while self.received.len() < bytes {
            ready!(self.poll_receive(bytes, context))?;
        }
        Poll::Ready(Ok(self.received.split_to(bytes).freeze()))
    }

    /// Nothing is received for now: what has begun to arrive is not late.
    pub(super) fn pause(&mut self) {
        self.receiving.ended();
    }

    /// The next frame; `None` when the other side has closed the connection between two.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Frame>>> {
        let malformed = |error: Malformed| io::Error::new(io::ErrorKind::InvalidData, error);
        loop {
            let header = Header::read(&self.received, self.most).map_err(malformed)?;
            let appends = header.is_some_and(|header| header.is_append());
            let needed = match header {
                Some(header) if header.frame_bytes() <= self.received.len() => {
                    self.receiving.ended();
                    return Poll::Ready(
                        header.take_frame(&mut self.received).map(Some).map_err(malformed),
                    );
                }
                Some(header) => header.frame_bytes(),
                None => HEADER_BYTES,
            };
            ready!(self.poll_room(needed, appends, context));
            match ready!(self.poll_receive(needed, context)) {
                Ok(()) => {}
                Err(error)
                    if error.kind() == io::ErrorKind::UnexpectedEof && self.received.is_empty() =>
                {
                    return Poll::Ready(Ok(None));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// The room that the frame which `poll_next` returned has: for as long as it is being served.
    pub(super) fn take_room(&mut self) -> Option<OwnedSemaphorePermit> {
        self.held.take()
    }

    /// Ready when there is room for a frame of so many bytes, of an append stream or of a call. Whoever
    /// has it receives its frame at the slowest rate or faster, and is then served.
    fn poll_room(&mut self, bytes: usize, appends: bool, context: &mut Context<'_>) -> Poll<()> {
        let Some(room) = self.room.as_ref().filter(|_| bytes > SMALL_BYTES) else {
            return Poll::Ready(());
        };
        let room = if appends { &room.appends } else { &room.calls };
        if self.held.is_none() {
            let acquire = || Box::pin(Arc::clone(room).acquire_many_owned((bytes >> 10) as u32));
            let acquiring = self.acquiring.get_or_insert_with(|| acquire());
            // It is never closed.
            self.held = ready!(acquiring.as_mut().poll(context)).ok();
            self.acquiring = None;
        }
        Poll::Ready(())
    }

    /// Receives some of the bytes until there are as many as needed, and more if more are there.
    fn poll_receive(&mut self, needed: usize, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let missing = needed.saturating_sub(self.received.len());
        let room = self.received.capacity() - self.received.len();
        if room < missing.clamp(LEAST_READ_BYTES, RESERVED_BYTES) {
            self.received.reserve(missing.clamp(READ_BYTES, RESERVED_BYTES));
        }
        let begun = !self.received.is_empty();
        let mut stream = Pin::new(&mut self.stream);
        match tokio_read(&mut stream, &mut self.received, context) {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(ended())),
            Poll::Ready(Ok(bytes)) => {
                self.receiving.made(bytes);
                (self.heard, self.sent_since, self.alive_since) = (runtime::now(), 0, 0);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if begun || self.room.is_some() {
                    self.receiving.waits(missing, context)?;
                }
                Poll::Pending
            }
        }
    }
}

/// One read into the room that the buffer has.
fn tokio_read<S: AsyncRead>(
    stream: &mut Pin<&mut S>,
    buffer: &mut BytesMut,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    use tokio::io::AsyncReadExt;
    let read = std::pin::pin!(stream.read_buf(buffer));
    read.poll(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LARGE: usize = 3 << 20;

    fn large() -> Vec<u8> {
        let (kind, message, values) = (Kind::Call, Bytes::new(), vec![vec![7; LARGE].into()]);
        let mut pieces = VecDeque::new();
        Frame { kind, code: 1, call: 1, message, values }.write(&mut pieces);
        pieces.into_iter().flatten().collect()
    }

    /// The story: each of a thousand connections began a frame of many megabytes, and all of them lay in
    /// memory.
    #[tokio::test]
    async fn large_frames_beyond_the_room_of_all_connections_wait() {
        let room = Room::of(LARGE * 3 / 2);
        let accepted = || {
            let (other, stream) = tokio::io::duplex(64 << 10);
            (other, Framed::new(stream, 2 * LARGE, Some(room.clone())))
        };
        let ((mut slow, mut first), (mut fast, mut second)) = (accepted(), accepted());
        slow.write_all(&large()[..1 << 10]).await.unwrap();
        let mut next = poll_fn(|context| first.poll_next(context));
        assert!(futures::poll!(&mut next).is_pending(), "it has begun");
        tokio::spawn(async move { fast.write_all(&large()).await });
        let received = poll_fn(move |context| second.poll_next(context));
        let mut received = Box::pin(tokio::time::timeout(Duration::from_secs(60), received));
        for _ in 0..100 {
            assert!(futures::poll!(&mut received).is_pending(), "there is no room");
            tokio::task::yield_now().await;
        }
        drop(slow);
        assert!(next.await.is_err());
        drop(first);
        let frame = received.await.expect("there is room").unwrap().unwrap();
        assert_eq!(frame.values, [vec![7; LARGE]]);
    }

    /// The story: a reader took a byte every few seconds, and what waited for it lay in memory for ever.
    #[tokio::test]
    async fn a_reader_that_takes_a_byte_now_and_then_is_too_slow() {
        let (mut slow, stream) = tokio::io::duplex(64 << 10);
        let mut framed = Framed::new(stream, 2 * LARGE, None);
        let (kind, message, values) = (Kind::Call, Bytes::new(), vec![vec![7; LARGE].into()]);
        framed.send(Frame { kind, code: 1, call: 1, message, values });
        let reading = tokio::spawn(async move {
            while slow.read_u8().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        let sending = poll_fn(|context| framed.poll_send(context));
        // The limit only turns a hang into a failure.
        let sent = tokio::time::timeout(Duration::from_secs(60), sending).await;
        assert_eq!(sent.expect("it ends").unwrap_err().kind(), io::ErrorKind::TimedOut);
        reading.abort();
    }
}
