//! The answers to clients on their way through the transport. Each piece of an answer carries its
//! charge, and its request as one that is under way, until the kernel has taken it, or the connection
//! or the stream has ended.
//!
//! What holds here: while a client has not taken the last piece of a stream, the next one is made
//! only if the budget has memory for it. A stream is open until its answer has ended.

use super::under_way::{Request, UnderWay};
use crate::admission::memory::{Charge, Outbox};
use crate::admission::requests::{Accounts, Arrived, OpenStream};
use bytes::Bytes;
use futures::task::AtomicWaker;
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

/// Bytes that a piece takes beside its own: buffers and the state of the stream.
const PIECE_BYTES: usize = 8 << 10;
/// Answers that a stop breaks off once they have begun. They end with their view, and a client that takes nothing would
/// hold up every stop.
const LAST_LONG: [&str; 2] = ["/cairn.kv.v1.Kv/Scan", "/cairn.kv.v1.Operator/Backup"];
/// The allocator rounds sizes up by at most an eighth, and keeps about as much again free for a
/// while.
const ROUNDED_TO: usize = 4;

/// A service whose answers are charged to their connections.
#[derive(Clone)]
pub(super) struct Sending<S> {
    service: S,
    /// `None`: no stop waits for its answers.
    under_way: Option<UnderWay>,
}

impl<S> Sending<S> {
    /// A service whose requests a clean stop waits for.
    pub(super) fn awaited(service: S, under_way: &UnderWay) -> Sending<S> {
        Sending { service, under_way: Some(under_way.clone()) }
    }

    /// A service of which a stream may be idle for ever.
    pub(super) fn unawaited(service: S) -> Sending<S> {
        Sending { service, under_way: None }
    }
}

impl<S: NamedService> NamedService for Sending<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Sending<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let accounts = request.extensions().get::<Accounts>().cloned();
        let stream = request.extensions_mut().remove::<Arc<OpenStream>>();
        let held = (stream, request.extensions().get::<Arrived>().cloned());
        let under_way = self.under_way.as_ref().map(|all| Arc::new(all.begin()));
        let lasts = LAST_LONG.contains(&request.uri().path());
        let answer = self.service.call(request);
        Box::pin(async move {
            let response = answer.await?;
            let under_way = under_way.filter(|_| !lasts);
            let Some(accounts) = accounts else { return Ok(response) };
            let (mut parts, body) = response.into_parts();
            let outbox = parts.extensions.remove::<Outbox>();
            let outbox = outbox.unwrap_or_else(|| Outbox::of(accounts.reads));
            let unsent = Arc::default();
            let charged = Charged { body, outbox, under_way, unsent, _held: held };
            Ok(http::Response::from_parts(parts, Body::new(charged)))
        })
    }
}

/// The body of an answer.
struct Charged {
    body: Body,
    outbox: Outbox,
    under_way: Option<Arc<Request>>,
    unsent: Arc<Unsent>,
    /// The stream, and the messages of it that are not decoded.
    _held: (Option<Arc<OpenStream>>, Option<Arrived>),
}

/// The pieces of an answer that the client has not taken.
#[derive(Default)]
struct Unsent {
    pieces: AtomicUsize,
    waits: AtomicWaker,
}

impl Charged {
    /// Whether the next piece may be made. If not, the last piece wakes the task when it is taken.
    fn may_go_on(&self, context: &Context<'_>) -> bool {
        let may = || {
            self.unsent.pieces.load(Ordering::Acquire) == 0
                || !self.outbox.is_empty()
                || self.outbox.fits(PIECE_BYTES)
        };
        may() || {
            self.unsent.waits.register(context.waker());
            may()
        }
    }
}

impl http_body::Body for Charged {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if !this.may_go_on(context) {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut this.body).poll_frame(context);
        polled.map_ok(|frame| {
            frame.map_data(|bytes| {
                let takes = bytes.len() + bytes.len() / ROUNDED_TO + PIECE_BYTES;
                let charge = this.outbox.take(takes);
                this.unsent.pieces.fetch_add(1, Ordering::AcqRel);
                let (unsent, under_way) = (Arc::clone(&this.unsent), this.under_way.clone());
                let piece = Piece { bytes, unsent, _charge: charge, _under_way: under_way };
                Bytes::from_owner(piece)
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// A piece of an answer with its charge.
struct Piece {
    bytes: Bytes,
    unsent: Arc<Unsent>,
    _charge: Charge,
    _under_way: Option<Arc<Request>>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.unsent.pieces.fetch_sub(1, Ordering::AcqRel);
        self.unsent.waits.wake();
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
