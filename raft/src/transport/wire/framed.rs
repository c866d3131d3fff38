//! Frames over a stream of bytes.
//!
//! What holds here: a frame that has begun arrives at the slowest rate or faster, and what is to be
//! sent is taken at that rate; else the connection ends. One that accepted the connection ends it, too,
//! when it hears nothing: the other side asks whether it is still there.

use super::frame::{Frame, HEADER_BYTES, Header};
use super::transfer_time;
use crate::core::error::Malformed;
use crate::core::runtime;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// What is read at once, if it is there.
const READ_BYTES: usize = 256 << 10;
/// Less room than this is not worth a read.
const LEAST_READ_BYTES: usize = 16 << 10;
/// A larger frame gets its memory as its bytes arrive: its length alone shows nothing.
const RESERVED_BYTES: usize = 1 << 20;
/// At most so many pieces are handed to the kernel at once.
const SLICES: usize = 64;
/// A frame that has begun must arrive within this time, beside the time that its bytes need, and some
/// bytes of what is to be sent must be taken.
const PROGRESS: Duration = Duration::from_secs(10);

pub(super) type Alarm = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct Framed<S> {
    stream: S,
    /// The longest frame that is taken.
    most: usize,
    received: BytesMut,
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// Bytes were written since the last flush.
    unflushed: bool,
    /// The bytes of the frame that is being received, as far as known.
    needed: usize,
    receiving: Progress,
    sending: Progress,
    /// Whether the other side must be heard from time to time.
    must_be_heard: bool,
    /// When bytes were received last, and how many were sent since.
    heard: runtime::Instant,
    sent_since: u64,
}

/// Ends what makes no progress.
#[derive(Default)]
struct Progress(Option<Alarm>);

impl Progress {
    /// Called when the stream is not ready: an error if so many bytes took too long.
    fn waits(&mut self, bytes: usize, context: &mut Context<'_>) -> io::Result<()> {
        let limit = || PROGRESS + transfer_time(bytes as u64);
        let wait = self.0.get_or_insert_with(|| Box::pin(runtime::sleep(limit())));
        match wait.as_mut().poll(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                let reason = "the other side is too slow";
                Err(io::Error::new(io::ErrorKind::TimedOut, reason))
            }
        }
    }

    fn made(&mut self) {
        self.0 = None;
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection")
}

impl<S: AsyncRead + AsyncWrite + Unpin> Framed<S> {
    pub(super) fn new(stream: S, most: usize, must_be_heard: bool) -> Framed<S> {
        Framed {
            must_be_heard,
            heard: runtime::now(),
            sent_since: 0,
            stream,
            most,
            received: BytesMut::new(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            unflushed: false,
            needed: 0,
            receiving: Progress::default(),
            sending: Progress::default(),
        }
    }

    /// When bytes were received last, or the connection was made.
    pub(super) fn heard(&self) -> runtime::Instant {
        self.heard
    }

    /// How long what was sent since then may be on its way.
    pub(super) fn on_its_way(&self) -> Duration {
        transfer_time(self.sent_since)
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
                    self.sending.waits(0, context)?;
                    return Poll::Pending;
                }
            };
            if written == 0 {
                return Poll::Ready(Err(ended()));
            }
            self.sending.made();
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

    /// The next frame; `None` when the other side has closed the connection between two.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Frame>>> {
        let malformed = |error: Malformed| io::Error::new(io::ErrorKind::InvalidData, error);
        loop {
            let header = Header::read(&self.received, self.most).map_err(malformed)?;
            let needed = match header {
                Some(header) if header.frame_bytes() <= self.received.len() => {
                    self.receiving.made();
                    return Poll::Ready(
                        header.take_frame(&mut self.received).map(Some).map_err(malformed),
                    );
                }
                Some(header) => header.frame_bytes(),
                None => HEADER_BYTES,
            };
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

    /// Receives some of the bytes until there are as many as needed, and more if more are there.
    fn poll_receive(&mut self, needed: usize, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let missing = needed.saturating_sub(self.received.len());
        let room = self.received.capacity() - self.received.len();
        if room < missing.clamp(LEAST_READ_BYTES, RESERVED_BYTES) {
            self.received.reserve(missing.clamp(READ_BYTES, RESERVED_BYTES));
        }
        if self.needed != needed {
            (self.needed, self.receiving) = (needed, Progress::default());
        }
        let begun = !self.received.is_empty();
        let mut stream = Pin::new(&mut self.stream);
        match tokio_read(&mut stream, &mut self.received, context) {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(ended())),
            Poll::Ready(Ok(_)) => {
                (self.heard, self.sent_since) = (runtime::now(), 0);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if begun || self.must_be_heard {
                    self.receiving.waits(needed, context)?;
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
