//! What a real network does to calls and connections, for the simulation. madsim passes the messages of
//! clients as values, not bytes, never drops a handler, and passes on the bytes of a connection as
//! they were written. This module encodes messages and bounds their size, drops a handler when its
//! caller has gone away, cuts bytes into pieces, and resets connections.

use futures::{Stream, StreamExt};
use madsim::rand::Rng;
use prost::Message;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::{Response, Status};

thread_local! {
    /// How many of a thousand calls have their connection reset.
    static RESETS: Cell<u32> = const { Cell::new(0) };
    static RESET: Cell<u64> = const { Cell::new(0) };
}

/// A stream lives longer than a call, so a smaller share of streams is reset.
const STREAM_SHARE: u32 = 10;

type Answered<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// From now on, resets this many of a thousand calls in the middle, or of ten thousand streams.
pub fn reset_calls(per_mille: u32) {
    RESETS.set(per_mille);
}

/// How many handlers were dropped before they ended, since the last call of this function.
pub fn calls_reset() -> u64 {
    RESET.replace(0)
}

/// Encodes a message to bytes and decodes it again.
///
/// # Errors
/// `OutOfRange` if the message is larger than `max` bytes, and `Internal` if it cannot be decoded.
pub fn encoded<M: Message + Default>(message: &M, max: usize) -> Result<M, Status> {
    let bytes = message.encode_to_vec();
    if bytes.len() > max {
        return Err(Status::out_of_range(format!(
            "a message of {} bytes; {max} is the limit",
            bytes.len()
        )));
    }
    M::decode(bytes.as_slice()).map_err(|error| Status::internal(error.to_string()))
}

/// After how long to reset the present call; `None`: never.
fn reset_after(share: u32) -> Option<Duration> {
    let per_mille = RESETS.get();
    let mut rng = madsim::rand::thread_rng();
    if per_mille == 0 || rng.gen_range(0..1_000) >= per_mille.saturating_mul(share) {
        return None;
    }
    // Most handlers end within milliseconds, and some wait for a disk.
    let longest_us = [1, 3_000, 30_000, 1_000_000];
    let longest = longest_us.get(rng.gen_range(0..longest_us.len())).copied().unwrap_or(1);
    Some(Duration::from_micros(rng.gen_range(0..longest)))
}

fn reset() -> Status {
    RESET.set(RESET.get() + 1);
    Status::unavailable("the connection was reset")
}

/// Runs a handler to its end, or drops it when its connection is reset.
pub async fn until_reset<T>(handler: impl Future<Output = Answered<T>> + Send) -> Answered<T> {
    match reset_after(1) {
        None => handler.await,
        Some(after) => madsim::time::timeout(after, handler).await.unwrap_or_else(|_| Err(reset())),
    }
}

/// Passes on a handler's answers to their end, or drops them when the connection is reset.
pub fn stream_until_reset<T: Send + 'static>(
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Answers<T> {
    match reset_after(STREAM_SHARE) {
        None => Box::pin(answers),
        Some(after) => {
            let ending = futures::stream::once(async { Err(reset()) });
            Box::pin(answers.take_until(madsim::time::sleep(after)).chain(ending))
        }
    }
}

/// One in so many reads of a connection counts as a call that may have its connection reset.
const READS_OF_A_CALL: u32 = 8;

/// A connection between members.
pub struct Uneven<S> {
    stream: S,
    reset: Option<Pin<Box<madsim::time::Sleep>>>,
}

impl<S> Uneven<S> {
    pub(super) fn new(stream: S) -> Uneven<S> {
        Uneven { stream, reset: None }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(reset) = &mut self.reset else { return Ok(()) };
        match reset.as_mut().poll(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                RESET.set(RESET.get() + 1);
                self.reset = None;
                Err(io::Error::new(io::ErrorKind::ConnectionReset, "the connection was reset"))
            }
        }
    }
}

/// How many of so many bytes are passed on: mostly all, else some that end anywhere, also within a
/// header.
fn piece(bytes: usize) -> usize {
    let mut rng = madsim::rand::thread_rng();
    match rng.gen_range(0..6) {
        0 => rng.gen_range(1..=5_000).min(bytes),
        1 => rng.gen_range(1..=40).min(bytes),
        _ => bytes,
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Uneven<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(context)?;
        let mut bytes = vec![0; piece(buffer.remaining())];
        let mut read = ReadBuf::new(&mut bytes);
        std::task::ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
        buffer.put_slice(read.filled());
        if this.reset.is_none() && madsim::rand::thread_rng().gen_range(0..READS_OF_A_CALL) == 0 {
            this.reset = reset_after(1).map(|after| Box::pin(madsim::time::sleep(after)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Uneven<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(context)?;
        let bytes = bytes.get(..piece(bytes.len())).unwrap_or_default();
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
