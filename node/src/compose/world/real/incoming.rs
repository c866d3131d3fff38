//! Connections as they come in: how many of a port are open at once, and which are given up.
//!
//! What holds here: a connection has its place until its socket is closed; whoever comes when all places are taken is sent
//! away at once and can ask another member, or takes the place of whoever came first where the port is yielding, so that no port takes the descriptors that another one or the data directory
//! needs; whoever does not begin to speak in time loses its place, and so does whoever is gone without a word; a connection
//! whose line is closed ends at once, with all that it has not sent.

use crate::admission::memory::{Line, Reader, Reads};
use futures::StreamExt;
use futures::stream::Stream;
use std::collections::VecDeque;
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

/// What an HTTP/2 client sends before anything else; from then on the server asks whether it is alive.
pub(super) const PREFACE_BYTES: usize = 24;
/// How long a connection may take to begin.
pub(super) const BEGIN: Duration = Duration::from_secs(10);
/// No client sends so much: its connection never counts as begun, and ends when the time to begin is over.
pub(super) const WHOLE: usize = usize::MAX;
/// A connection that was silent for so long is asked by the kernel whether its other end is there; then so often, so many
/// times.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// After an error that is not of one connection, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two lines of the log about the same port.
const SELDOM: Duration = Duration::from_secs(10);

/// Descriptors that one port may use.
pub(super) struct Places {
    /// In hundredths of what the process may open.
    pub(super) percent: u64,
    pub(super) most: usize,
}

impl Places {
    /// How many connections may be open.
    pub(super) fn of(&self, descriptors: u64) -> usize {
        let part = usize::try_from(descriptors / 100 * self.percent).unwrap_or(usize::MAX);
        part.min(self.most).max(1)
    }
}

/// A listening socket that bounds its connections.
pub(super) struct Incoming {
    sockets: TcpIncoming,
    purpose: &'static str,
    /// The configuration key of the address.
    key: &'static str,
    places: Arc<Semaphore>,
    most: usize,
    /// Bytes with which a client has begun.
    begin_bytes: usize,
    begin: Duration,
    /// What the reads of its connections are charged to.
    reads: Option<Reads>,
    /// Of a yielding port, its connections, the oldest first.
    open: Option<VecDeque<Weak<Line>>>,
    told: Option<Instant>,
}

impl Incoming {
    /// At most `most` connections, each of which has sent `begin_bytes` within `begin`.
    pub(super) fn new(
        listener: TcpListener,
        (purpose, key): (&'static str, &'static str),
        most: usize,
        begin_bytes: usize,
        begin: Duration,
    ) -> Incoming {
        let sockets = TcpIncoming::from(listener)
            .with_nodelay(Some(true))
            .with_keepalive(Some(KEEPALIVE))
            .with_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .with_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Incoming {
            sockets,
            purpose,
            key,
            places,
            most,
            begin_bytes,
            begin,
            reads: None,
            open: None,
            told: None,
        }
    }

    /// The same, and reads of its connections are charged to this budget.
    pub(super) fn charged(self, reads: Reads) -> Incoming {
        Incoming { reads: Some(reads), ..self }
    }

    /// The same; whoever comes when all places are taken takes the place of the oldest connection.
    pub(super) fn yielding(self) -> Incoming {
        Incoming { open: Some(VecDeque::new()), ..self }
    }

    /// The next connection that has a place. May be cancelled.
    pub(super) async fn next(&mut self) -> Connection {
        loop {
            match self.sockets.next().await {
                Some(Ok(socket)) => match self.place().await {
                    Some(place) => return self.connection(socket, place),
                    None => {
                        self.say(|most| format!("all {most} connections are taken: more are closed at once"))
                    }
                },
                Some(Err(error)) if of_one_connection(&error) => {}
                Some(Err(error)) => {
                    self.say(|_| format!("no connection can be accepted: {error}"));
                    tokio::time::sleep(PAUSE).await;
                }
                // A listening socket has no end.
                None => std::future::pending().await,
            }
        }
    }

    /// A place, if there is one, or if another connection has to yield its own.
    async fn place(&mut self) -> Option<OwnedSemaphorePermit> {
        let free = Arc::clone(&self.places).try_acquire_owned().ok();
        let Some(open) = self.open.as_mut().filter(|_| free.is_none()) else { return free };
        let oldest = std::iter::from_fn(|| open.pop_front()).find_map(|line| line.upgrade());
        if let Some(oldest) = oldest {
            oldest.close();
        }
        // It ends as soon as its task runs; one that is gone already is on its way to give its place back.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    fn connection(&mut self, socket: TcpStream, place: OwnedSemaphorePermit) -> Connection {
        let line = Arc::<Line>::default();
        if let Some(open) = &mut self.open {
            open.retain(|line| line.strong_count() > 0);
            open.push_back(Arc::downgrade(&line));
        }
        let reader = self.reads.as_ref().map(|reads| reads.reader(Arc::clone(&line)));
        let end = Box::pin(tokio::time::sleep(self.begin));
        let beginning = Some(Beginning { bytes: self.begin_bytes, end });
        Connection { socket, beginning, line, reader, _place: place }
    }

    /// For a server that takes a stream.
    pub(super) fn stream(self) -> impl Stream<Item = Result<Connection, Infallible>> {
        futures::stream::unfold(self, |mut incoming| async move {
            let connection = incoming.next().await;
            Some((Ok(connection), incoming))
        })
    }

    fn say(&mut self, what: impl FnOnce(usize) -> String) {
        let now = Instant::now();
        if self.told.is_none_or(|told| now - told >= SELDOM) {
            self.told = Some(now);
            let (purpose, key, what) = (self.purpose, self.key, what(self.most));
            warn!(
                purpose,
                key, "{what}; close connections that are not needed, or raise the limit of open files"
            );
        }
    }
}

impl axum::serve::Listener for Incoming {
    type Io = Connection;
    type Addr = Option<SocketAddr>;

    async fn accept(&mut self) -> (Connection, Option<SocketAddr>) {
        let connection = self.next().await;
        let peer = connection.socket.peer_addr().ok();
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<Option<SocketAddr>> {
        self.sockets.local_addr().map(Some)
    }
}

fn of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// An accepted socket with its place.
pub(super) struct Connection {
    socket: TcpStream,
    beginning: Option<Beginning>,
    line: Arc<Line>,
    reader: Option<Reader>,
    _place: OwnedSemaphorePermit,
}

/// What is still to come, and until when.
struct Beginning {
    bytes: usize,
    end: Pin<Box<Sleep>>,
}

impl Connection {
    /// Fails once the line is closed; what the kernel still holds for the client is dropped then.
    fn open(&self, context: &Context<'_>) -> io::Result<()> {
        if !self.line.poll_closed(context.waker()) {
            return Ok(());
        }
        // Without it the kernel keeps what was not taken.
        let _ = self.socket.set_zero_linger();
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed by this server"))
    }

    /// Counts what a connection that has not begun was sent.
    fn begin(&mut self, count: usize) {
        if let Some(beginning) = self.beginning.as_mut().filter(|beginning| beginning.bytes != WHOLE) {
            beginning.bytes = beginning.bytes.saturating_sub(count);
            if beginning.bytes == 0 {
                self.beginning = None;
            }
        }
    }

    /// What waiting is to a connection: one that has not begun in time fails.
    fn in_time<T>(&mut self, context: &mut Context<'_>, waited: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut self.beginning {
            Some(beginning) if waited.is_pending() => {
                let late =
                    || Err(io::Error::new(io::ErrorKind::TimedOut, "the client did not begin in time"));
                beginning.end.as_mut().poll(context).map(|()| late())
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
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.socket).poll_read(context, buffer);
        this.begin(buffer.filled().len() - before);
        this.in_time(context, read)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.open(context)?;
        let wrote = Pin::new(&mut this.socket).poll_write(context, bytes);
        let wrote = wrote.map_ok(|count| this.line.counted(count));
        this.in_time(context, wrote)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.open(context)?;
        let wrote = Pin::new(&mut this.socket).poll_write_vectored(context, slices);
        let wrote = wrote.map_ok(|count| this.line.counted(count));
        this.in_time(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = Option<Reader>;

    fn connect_info(&self) -> Option<Reader> {
        self.reader.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn incoming(most: usize, begin: Duration) -> (Incoming, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        (Incoming::new(listener, ("tests", "none"), most, 2, begin), address)
    }

    async fn connect(address: SocketAddr) -> TcpStream {
        TcpStream::connect(address).await.expect("it listens")
    }

    /// The story: connections were taken until the process had no descriptor left, and then neither port could serve anybody.
    #[tokio::test]
    async fn whoever_comes_when_all_places_are_taken_is_closed_and_a_closed_one_makes_room() {
        let (mut incoming, address) = incoming(1, BEGIN).await;
        let _first = connect(address).await;
        let taken = incoming.next().await;
        let (mut second, mut heard) = (connect(address).await, [0]);
        tokio::select! {
            _ = incoming.next() => panic!("it has no place"),
            read = second.read(&mut heard) => assert_eq!(read.ok(), Some(0), "closed"),
        }
        drop(taken);
        let _third = connect(address).await;
        incoming.next().await;
    }

    #[tokio::test]
    async fn whoever_does_not_begin_in_time_is_given_up() {
        let (mut incoming, address) = incoming(9, Duration::from_millis(1)).await;
        for said in ["", "a"] {
            let mut client = connect(address).await;
            client.write_all(said.as_bytes()).await.expect("written");
            let mut connection = incoming.next().await;
            if !said.is_empty() {
                // It has come, so that the time is up between what was said and what was not.
                connection.socket.readable().await.expect("a byte");
            }
            let mut heard = Vec::new();
            let error = connection.read_to_end(&mut heard).await.expect_err("it has not begun");
            assert_eq!((error.kind(), heard.len()), (io::ErrorKind::TimedOut, said.len()));
        }
    }

    #[tokio::test]
    async fn whoever_has_begun_may_be_silent() {
        let (mut incoming, address) = incoming(9, BEGIN).await;
        let mut client = connect(address).await;
        client.write_all(b"ab").await.expect("written");
        let mut connection = incoming.next().await;
        connection.read_exact(&mut [0; 2]).await.expect("read");
        assert!(connection.beginning.is_none());
    }

    /// The story: whoever had sent half a request kept its place, and a port had only so many.
    #[tokio::test]
    async fn where_all_of_it_has_to_be_done_in_time_half_a_request_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut incoming = Incoming::new(listener, ("tests", "none"), 1, WHOLE, Duration::from_millis(1));
        let mut client = connect(address).await;
        client.write_all(b"GET /ready HTTP/1.1\r\n").await.expect("written");
        let mut connection = incoming.next().await;
        let error = connection.read_to_end(&mut Vec::new()).await.expect_err("no more of it comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let much = vec![0; 64 << 20];
        let error = connection.write_all(&much).await.expect_err("nobody takes it");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn of_a_yielding_port_the_newest_comer_takes_the_place_of_the_oldest() {
        let (incoming, address) = incoming(2, BEGIN).await;
        let mut incoming = incoming.yielding();
        let clients = [connect(address).await, connect(address).await, connect(address).await];
        let mut first = incoming.next().await;
        let mut second = incoming.next().await;
        let ended = tokio::spawn(async move {
            let error = first.read_to_end(&mut Vec::new()).await.expect_err("it yields");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        });
        incoming.next().await;
        ended.await.expect("the oldest");
        drop(clients);
        assert_eq!(second.read_to_end(&mut Vec::new()).await.ok(), Some(0), "it was left alone");
    }

    #[test]
    fn all_ports_together_leave_descriptors_for_files() {
        let places = |percent, most| Places { percent, most }.of(1024);
        assert_eq!((places(75, 10_000), places(75, 100)), (750, 100));
        assert_eq!(Places { percent: 75, most: 10_000 }.of(0), 1);
    }
}
