//! Requests of clients on their way in. A stream takes memory from its headers on, and a message
//! from its first bytes, long before the service can admit or refuse it.
//!
//! What holds here:
//! - A stream is charged to its client, or refused, when its headers are there. Who shows no name with
//!   a role is a stranger ([`Owner::Stranger`]).
//! - A message is charged with its whole length when its header is there. While that does not fit,
//!   nothing more of it is taken. One that declares more than the limit is refused.
//! - The bytes of a message are passed on before the next one is charged, so that no message waits
//!   while its stream holds another one that could end.
//! - A message that takes too long fails, and what it was charged is free again. So does a call of one
//!   message whose stream does not end behind it.

use crate::access::credentials::Credentials;
use crate::access::{AccessTable, Need};
use crate::admission::memory::{Account, Charge, NotAdmitted};
use crate::admission::refusal;
use crate::admission::requests::{Accounts, Arrived, arriving_bytes, check_length};
use crate::admission::shares::Owner;
use bytes::Bytes;
use futures::future::{Either, Ready, ready};
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

/// A flag and the length.
const HEADER_BYTES: usize = 5;
/// Memory of a header beside its name and value.
const FIELD_BYTES: usize = 96;

/// How requests are received, for all services of a port.
#[derive(Clone)]
pub(super) struct Receive {
    /// How long a message may take from its first bytes to its last, waiting included.
    pub(super) time: Duration,
    /// Who may have more than a stranger.
    pub(super) access: AccessTable,
}

impl Receive {
    /// A service whose requests are charged. A stream of it takes so many bytes beside its headers,
    /// and a message has at most so many.
    pub(super) fn service<S>(
        &self,
        service: S,
        (stream_bytes, most_bytes): (usize, usize),
    ) -> Receiving<S> {
        Receiving { service, stream_bytes, most_bytes, decodes: true, receive: self.clone() }
    }

    /// The same for a service that is not ours, and does not say when it has decoded a message: that
    /// is charged until it has arrived.
    pub(super) fn probe<S>(&self, service: S, bytes: (usize, usize)) -> Receiving<S> {
        Receiving { decodes: false, ..self.service(service, bytes) }
    }
}

/// A service whose requests are charged while they arrive.
#[derive(Clone)]
pub(super) struct Receiving<S> {
    service: S,
    stream_bytes: usize,
    most_bytes: usize,
    /// Whether it takes over the charge of each message that has arrived.
    decodes: bool,
    receive: Receive,
}

impl<S: NamedService> NamedService for Receiving<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Receiving<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Either<Ready<Result<http::Response<Body>, Infallible>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let Some(accounts) = request.extensions().get::<Accounts>().cloned() else {
            return Either::Right(self.service.call(request));
        };
        let account = self.receive.who(&request, accounts.requests.clone());
        let accounts = accounts.with_requests(account.clone());
        let Some(stream) = accounts.open_stream(self.stream_bytes + header_bytes(&request)) else {
            let status = refusal::requests_overloaded("too many streams are open");
            return Either::Left(ready(Ok(status.into_http())));
        };
        let arrived = self.decodes.then(Arrived::default);
        request.extensions_mut().insert(Arc::new(stream));
        if let Some(arrived) = &arrived {
            request.extensions_mut().insert(arrived.clone());
        }
        let limits = (self.most_bytes, self.receive.time);
        let request = request.map(|body| Body::new(Arriving::new(body, account, arrived, limits)));
        Either::Right(self.service.call(request))
    }
}

impl Receive {
    /// The account of this connection, for whoever sends this request.
    fn who(&self, request: &http::Request<Body>, connection: Account) -> Account {
        let authorization = request.headers().get("authorization");
        let authorization = authorization.map(|value| value.as_bytes());
        let credentials = Credentials::presented(request.extensions(), authorization);
        let identity = self.access.identify(&credentials).ok();
        let known = identity.filter(|identity| identity.may(Need::AnyRole).is_ok());
        let Some(known) = known else { return connection.of_stranger() };
        let owner = Owner::of(&known, connection.owner());
        connection.owned_by(owner)
    }
}

fn header_bytes(request: &http::Request<Body>) -> usize {
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
    request.uri().path().len() + fields.sum::<usize>()
}

/// The body of a request.
struct Arriving<B> {
    body: B,
    account: Account,
    /// Who takes the charge over of a message that has arrived; nobody of a probe's.
    arrived: Option<Arrived>,
    /// The most bytes of a message, and how long it may take.
    limits: (usize, Duration),
    /// The bytes of the present message's header so far, its length, and what is missing of it.
    header: Vec<u8>,
    length: usize,
    missing: usize,
    /// The charge of the present message, from its header to its end.
    charge: Option<Charge>,
    /// What was taken from the connection and is not looked at yet.
    taken: Bytes,
    /// Looked at, and to be passed on when its message is charged.
    piece: Option<Bytes>,
    waits: Option<Waits>,
    end: Option<Pin<Box<Sleep>>>,
}

type Waits = Pin<Box<dyn Future<Output = Result<Charge, NotAdmitted>> + Send>>;

impl<B> Arriving<B> {
    fn new(
        body: B,
        account: Account,
        arrived: Option<Arrived>,
        limits: (usize, Duration),
    ) -> Arriving<B> {
        Arriving {
            body,
            account,
            arrived,
            limits,
            header: Vec::with_capacity(HEADER_BYTES),
            length: 0,
            missing: 0,
            charge: None,
            taken: Bytes::new(),
            piece: None,
            waits: None,
            end: None,
        }
    }

    /// Looks at the bytes that were taken, up to the end of the present message. Charges the message
    /// that begins in them.
    fn look(&mut self) -> Result<(), Status> {
        let (_, time) = self.limits;
        let mut seen = 0;
        if self.missing == 0 {
            seen = (HEADER_BYTES - self.header.len()).min(self.taken.len());
            self.header.extend_from_slice(self.taken.get(..seen).unwrap_or_default());
            if let [_, length @ ..] = self.header.as_slice()
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.header.clear();
                self.begin(u32::from_be_bytes(length) as usize)?;
            }
        }
        let now = self.missing.min(self.taken.len() - seen);
        self.missing -= now;
        self.piece = Some(self.taken.split_to(seen + now));
        if self.missing > 0 && self.end.is_none() {
            self.end = Some(Box::pin(tokio::time::sleep(time)));
        }
        Ok(())
    }

    /// A message of this length begins.
    fn begin(&mut self, length: usize) -> Result<(), Status> {
        let (most, time) = self.limits;
        check_length(length, most)?;
        (self.length, self.missing, self.end) = (length, length, None);
        let bytes = arriving_bytes(length);
        self.charge = self.account.try_admit(bytes);
        if self.charge.is_none() {
            let (account, end) = (self.account.clone(), Instant::now() + time);
            self.waits = Some(Box::pin(async move { account.admit(bytes, end).await }));
        }
        Ok(())
    }

    /// The next bytes that are charged, if some were taken.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if self.piece.is_none() && !self.taken.is_empty() {
            self.look()?;
        }
        if let Some(waits) = &mut self.waits {
            let admitted = std::task::ready!(waits.as_mut().poll(context));
            self.waits = None;
            self.charge = Some(admitted.map_err(|why| match why {
                NotAdmitted::Late => self.late(),
                NotAdmitted::Crowded => {
                    refusal::requests_overloaded("too many requests wait for memory")
                }
            })?);
        }
        let piece = self.piece.take();
        if self.missing == 0 && piece.is_some() {
            self.end = None;
            let charge = self.charge.take();
            if let Some((charge, arrived)) = charge.zip(self.arrived.as_ref()) {
                arrived.put(charge, self.length)?;
            }
        }
        Poll::Ready(Ok(piece))
    }

    fn late(&self) -> Status {
        let limit = self.limits.1.as_secs();
        Status::deadline_exceeded(format!("the request did not arrive within {limit} s"))
    }
}

impl<B> Arriving<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    Status: From<B::Error>,
{
    fn poll_taken(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(piece) = std::task::ready!(self.poll_piece(context))? {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.taken = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl<B> http_body::Body for Arriving<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    Status: From<B::Error>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match this.poll_taken(context) {
            Poll::Pending => {
                // Who asks for more before it decodes what is there takes one message, and waits for the
                // end of the stream. The story: a client never ended it, and the charge stayed.
                if this.end.is_none() && this.arrived.as_ref().is_some_and(Arrived::waits) {
                    this.end = Some(Box::pin(tokio::time::sleep(this.limits.1)));
                }
                let Some(end) = &mut this.end else { return Poll::Pending };
                end.as_mut().poll(context).map(|()| Some(Err(this.late())))
            }
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.taken.is_empty() && self.piece.is_none() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests;
