//! Accepts connections: how many of a port are open at once, and which ones are closed.
//!
//! What holds here:
//! - With TLS a connection is authenticated before it gets a slot.
//! - A connection occupies its slot until its socket is closed.
//! - When all slots of a port are taken, a new connection is closed at once and the client can ask
//!   another member. On a yielding port it replaces one instead, the oldest of the address that has
//!   most. So no port takes the descriptors that another port or the data directory needs.
//! - A connection that sends nothing in time is closed, and so is one whose other end is gone.
//! - A connection that the node closes ends at once, with everything that is not sent yet.

use super::crowd::Crowd;
use super::handshakes::{Handshakes, LOG_INTERVAL, Refusals, Served};
use crate::admission::memory::ConnectionFlow;
use crate::admission::requests::{Accounts, Budgets};
use crate::metrics::Connections;
use cairn_tls::{Cause, Refusal, Remote, Stream as Socket};
use futures::StreamExt;
use futures::stream::Stream;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::{Connected, TcpIncoming};
use tracing::warn;

/// The first bytes that an HTTP/2 client sends. Afterwards the server checks whether it is alive.
pub(super) const PREFACE_BYTES: usize = 24;
/// How long a connection may take to send its first bytes.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After this long without traffic the kernel probes the other end of a connection; then in this
/// interval, this many times.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// The pause after an accept error that concerns more than one connection, such as a lack of
/// descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Descriptors that one port may use.
pub(super) struct ConnectionSlots {
    /// In hundredths of the descriptors that the process may open.
    pub(super) percent: u64,
    pub(super) most: usize,
}

impl ConnectionSlots {
    /// How many connections may be open.
    pub(super) fn of(&self, descriptors: u64) -> usize {
        let part = usize::try_from(descriptors / 100 * self.percent).unwrap_or(usize::MAX);
        part.min(self.most).max(1)
    }
}

/// A listening socket that bounds its connections.
pub(super) struct Incoming {
    sockets: TcpIncoming,
    served: Served,
    /// With TLS.
    handshakes: Option<Handshakes>,
    refusals: Arc<Mutex<Refusals>>,
    slots: Arc<Semaphore>,
    most: usize,
    /// Bytes that a client must send first.
    handshake_bytes: usize,
    handshake_timeout: Duration,
    /// The budgets that its connections are charged to.
    budgets: Option<Budgets>,
    /// The connections of a yielding port.
    open: Option<Crowd<Weak<ConnectionFlow>>>,
    last_logged: Option<Instant>,
}

impl Incoming {
    /// At most `most` connections, each of which must send `handshake_bytes` within
    /// `handshake_timeout`.
    pub(super) fn new(
        listener: TcpListener,
        served: Served,
        most: usize,
        handshake_bytes: usize,
        handshake_timeout: Duration,
    ) -> Incoming {
        let sockets = TcpIncoming::from(listener)
            .with_nodelay(Some(true))
            .with_keepalive(Some(KEEPALIVE))
            .with_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .with_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let slots = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Incoming {
            sockets,
            served,
            handshakes: None,
            refusals: Arc::default(),
            slots,
            most,
            handshake_bytes,
            handshake_timeout,
            budgets: None,
            open: None,
            last_logged: None,
        }
    }

    /// The same, but each connection is authenticated first, if there are handshakes.
    pub(super) fn secured(self, handshakes: Option<Handshakes>) -> Incoming {
        Incoming { handshakes, ..self }
    }

    /// The same, and monitoring is told how many connections it has.
    pub(super) fn counted(self, connections: &Connections) -> Incoming {
        let (_, key) = self.served;
        connections.watch(key, &self.slots, self.most);
        self
    }

    /// The same, but its connections are charged to these budgets.
    pub(super) fn charged(self, budgets: Budgets) -> Incoming {
        Incoming { budgets: Some(budgets), ..self }
    }

    /// The same, but when all slots are taken a new connection replaces one.
    pub(super) fn yielding(self) -> Incoming {
        Incoming { open: Some(Crowd::new()), ..self }
    }

    /// The next connection that has a slot. May be cancelled.
    pub(super) async fn next(&mut self) -> Connection {
        loop {
            let accepted = match &mut self.handshakes {
                None => self.sockets.next().await,
                Some(handshakes) => tokio::select! {
                    biased;
                    done = handshakes.next() => {
                        if let Some(connection) = self.authenticated(done).await {
                            return connection;
                        }
                        continue;
                    }
                    accepted = self.sockets.next() => accepted,
                },
            };
            match (accepted, &mut self.handshakes) {
                (Some(Ok(socket)), Some(handshakes)) => {
                    if let Ok(Some(refusal)) = handshakes.begin(socket) {
                        self.refusals.lock().note(self.served, &refusal, None);
                    }
                }
                (Some(Ok(socket)), None) => {
                    let address = socket.peer_addr().ok();
                    let plain = (Socket::Plain(socket), Remote { certificate: None, address });
                    if let Some(connection) = self.authenticated(Ok(plain)).await {
                        return connection;
                    }
                }
                (Some(Err(error)), _) if of_one_connection(&error) => {}
                (Some(Err(error)), _) => {
                    self.warn(|_| format!("no connection can be accepted: {error}"));
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
                // A listening socket never ends.
                (None, _) => std::future::pending().await,
            }
        }
    }

    /// A connection, if it is not refused and there is a slot for it.
    async fn authenticated(
        &mut self,
        done: Result<(Socket, Remote), (Refusal, Option<SocketAddr>)>,
    ) -> Option<Connection> {
        match done {
            Ok((socket, remote)) => match self.slot().await {
                Some(slot) => return Some(self.connection(socket, remote, slot)),
                None => self.warn(|most| {
                    format!("all {most} connections are in use: further ones are closed at once")
                }),
            },
            Err((refusal, address)) => self.refusals.lock().note(self.served, &refusal, address),
        }
        None
    }

    /// A free slot, or that of a connection that has to yield; `None` if there is neither.
    async fn slot(&mut self) -> Option<OwnedSemaphorePermit> {
        let free = Arc::clone(&self.slots).try_acquire_owned().ok();
        let Some(open) = &mut self.open else { return free };
        open.retain(|flow| flow.strong_count() > 0);
        if free.is_some() {
            return free;
        }
        if let Some(replaced) = open.make_way().and_then(|flow| flow.upgrade()) {
            replaced.close();
        }
        // The closed connection ends as soon as its task runs. If there was none to close, one is
        // already about to free its slot.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    fn connection(
        &mut self,
        socket: Socket,
        remote: Remote,
        slot: OwnedSemaphorePermit,
    ) -> Connection {
        let flow = Arc::<ConnectionFlow>::default();
        if let Some(open) = &mut self.open {
            open.add(remote.address.map(|address| address.ip()), Arc::downgrade(&flow));
        }
        let accounts = self.budgets.as_ref().map(|budgets| budgets.accounts(&flow));
        let end = Box::pin(tokio::time::sleep(self.handshake_timeout));
        let handshake = Some(Handshake { bytes: self.handshake_bytes, end });
        let plain = match socket {
            Socket::Plain(_) => Some((self.served, Arc::clone(&self.refusals))),
            Socket::Tls(_) => None,
        };
        let origin = Origin { accounts, remote };
        Connection { socket, plain, handshake, flow, origin, _slot: slot }
    }

    /// For a server that takes a stream of connections.
    pub(super) fn stream(self) -> impl Stream<Item = Result<Connection, Infallible>> {
        futures::stream::unfold(self, |mut incoming| async move {
            let connection = incoming.next().await;
            Some((Ok(connection), incoming))
        })
    }

    fn warn(&mut self, what: impl FnOnce(usize) -> String) {
        let now = Instant::now();
        if self.last_logged.is_none_or(|last| now - last >= LOG_INTERVAL) {
            self.last_logged = Some(now);
            let ((purpose, key), what) = (self.served, what(self.most));
            warn!(
                purpose,
                key,
                "{what}; close connections that are not needed, or raise the limit of open files"
            );
        }
    }
}

fn of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// The first byte of every TLS handshake.
const TLS_HANDSHAKE: u8 = 22;

/// Who sends the requests of a connection.
#[derive(Clone)]
pub(super) struct Origin {
    /// What they are charged to.
    pub(super) accounts: Option<Accounts>,
    pub(super) remote: Remote,
}

/// An accepted socket with its slot.
pub(super) struct Connection {
    socket: Socket,
    /// Until the first bytes of a connection without TLS: where to note that the other side speaks
    /// TLS.
    plain: Option<(Served, Arc<Mutex<Refusals>>)>,
    handshake: Option<Handshake>,
    flow: Arc<ConnectionFlow>,
    origin: Origin,
    _slot: OwnedSemaphorePermit,
}

/// The bytes that a client still has to send, and until when.
struct Handshake {
    bytes: usize,
    end: Pin<Box<Sleep>>,
}

impl Connection {
    /// Who is at its other end.
    pub(super) fn remote(&self) -> &Remote {
        &self.origin.remote
    }

    /// Fails once the node closed the connection. Then what the kernel still holds for the client
    /// is dropped.
    fn open(&self, context: &Context<'_>) -> io::Result<()> {
        if !self.flow.poll_closed(context.waker()) {
            return Ok(());
        }
        // Without this the kernel keeps the bytes that the client did not take.
        let _ = self.socket.socket().map(TcpStream::set_zero_linger);
        Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the connection was closed by this server",
        ))
    }

    /// Refuses a client that speaks TLS to a port without TLS.
    fn check_plain(&mut self, first: Option<&u8>) -> io::Result<()> {
        let (Some(first), Some((served, refusals))) = (first, &self.plain) else { return Ok(()) };
        if *first == TLS_HANDSHAKE {
            let reason =
                "the other side speaks TLS, and this server is `insecure`: it has no certificate";
            let refusal = Refusal { cause: Cause::PlainText, reason: reason.into() };
            refusals.lock().note(*served, &refusal, self.origin.remote.address);
            return Err(io::Error::new(io::ErrorKind::InvalidData, refusal));
        }
        self.plain = None;
        Ok(())
    }

    /// Counts bytes received during the handshake.
    fn received(&mut self, count: usize) {
        if let Some(handshake) = &mut self.handshake {
            handshake.bytes = handshake.bytes.saturating_sub(count);
            if handshake.bytes == 0 {
                self.handshake = None;
            }
        }
    }

    /// Makes a pending poll fail if the handshake did not complete in time.
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        waited: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.handshake {
            Some(handshake) if waited.is_pending() => {
                let late = || {
                    Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the client did not send its request in time",
                    ))
                };
                handshake.end.as_mut().poll(context).map(|()| late())
            }
            _ => waited,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.open(context)?;
        if this.flow.is_ended() {
            // Nothing more is read, as if the client had closed its side.
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.socket).poll_read(context, buffer);
        if this.plain.is_some() {
            this.check_plain(buffer.filled().get(before))?;
        }
        this.received(buffer.filled().len() - before);
        this.in_time(context, read)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.open(context)?;
        let wrote = Pin::new(&mut this.socket).poll_write(context, bytes);
        let wrote = wrote.map_ok(|count| this.flow.counted(count));
        this.in_time(context, wrote)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.open(context)?;
        Pin::new(&mut this.socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.open(context)?;
        Pin::new(&mut this.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.open(context)?;
        let wrote = Pin::new(&mut this.socket).poll_write_vectored(context, slices);
        let wrote = wrote.map_ok(|count| this.flow.counted(count));
        this.in_time(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = Origin;

    fn connect_info(&self) -> Origin {
        self.origin.clone()
    }
}

#[cfg(test)]
mod tests;
