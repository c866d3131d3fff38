//! One node as the client sees it: its address, its connection, and how long the client skips it
//! after a failure.
//!
//! A node counts as connected only once it has answered `Hello`, so a process that accepts
//! connections and then hangs is detected within the connect timeout. One task at a time opens a
//! connection. The others wait for its result, so that they do not all try a dead address.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cairn_tls::{Connector, Expected, Tls};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::Error;
use crate::caller::Caller;
use crate::convert::{describe, why};
use crate::error::Why;
use crate::failure::Failure;
use crate::multiplexed::{MultiplexedStream, UnaryStub};
use crate::options::Options;
use crate::proto::{self, ErrorDetail};
use crate::random::Random;
use crate::shown::of_node;
use crate::watch_stream::inbox::{Inbox, Turn};
use crate::watch_stream::{Asking, Over, WatchStreams, Watching};

/// The version of the client protocol that this release speaks.
pub const PROTOCOL: u32 = 1;

/// The calls of a node. Small requests share a multiplexed stream; the others are separate calls.
#[derive(Clone)]
pub(crate) struct Stub {
    pub(crate) unary: UnaryStub,
    pub(crate) operator: proto::operator_client::OperatorClient<Channel>,
    multiplexed: MultiplexedStream,
    watches: WatchStreams,
    caller: Caller,
    /// The generation that its requests name.
    pub(crate) named: Option<u32>,
    /// When its connection last brought an answer to an attempt, or to a probe.
    pub(crate) heard: Arc<Heard>,
}

/// When something was last heard.
pub(crate) struct Heard {
    at: Mutex<Instant>,
    /// One probe at a time, however many attempts wait.
    probing: AtomicBool,
}

impl Heard {
    fn new() -> Heard {
        Heard { at: Mutex::new(Instant::now()), probing: AtomicBool::new(false) }
    }

    pub(crate) fn at(&self) -> Instant {
        *self.at.lock()
    }

    pub(crate) fn now(&self) {
        *self.at.lock() = Instant::now();
    }
}

impl Stub {
    fn new(channel: Channel, caller: Caller) -> Stub {
        let unary = UnaryStub::new(channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        // A backup has values, too.
        let operator = proto::operator_client::OperatorClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        let multiplexed = MultiplexedStream::new(unary.clone(), caller.clone());
        let heard = Arc::new(Heard::new());
        let watches = WatchStreams::default();
        Stub { multiplexed, watches, unary, operator, named: None, caller, heard }
    }

    /// A request of this client that the server works on no longer than `timeout`.
    pub(crate) fn request<M>(&self, message: M, timeout: Duration) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        self.caller.add_to(&mut request, self.named);
        request
    }

    /// The same, for requests to the cluster that the client means now.
    fn naming(&self) -> Stub {
        Stub { named: self.caller.generation(), ..self.clone() }
    }

    pub(crate) async fn write(
        &self,
        request: proto::WriteRequest,
        timeout: Duration,
    ) -> Result<proto::WriteResponse, Status> {
        match self.multiplexed.call(proto::call::Kind::Write(request), self.named, timeout).await? {
            proto::answer::Kind::Write(response) => Ok(response),
            _ => Err(Status::internal("a write was answered as something else")),
        }
    }

    pub(crate) async fn get(
        &self,
        request: proto::GetRequest,
        timeout: Duration,
    ) -> Result<proto::GetResponse, Status> {
        match self.multiplexed.call(proto::call::Kind::Get(request), self.named, timeout).await? {
            proto::answer::Kind::Get(response) => Ok(response),
            _ => Err(Status::internal("a get was answered as something else")),
        }
    }

    /// Over the stream that small requests share. A node of an earlier release takes it there for a call
    /// without content; of a call of its own it says that it does not know it.
    pub(crate) async fn get_many(
        &self,
        request: proto::GetManyRequest,
        timeout: Duration,
    ) -> Result<proto::GetManyResponse, Status> {
        let asked = Instant::now();
        let kind = proto::call::Kind::GetMany(request.clone());
        match self.multiplexed.call(kind, self.named, timeout).await {
            Ok(proto::answer::Kind::GetMany(response)) => Ok(response),
            Ok(_) => Err(Status::internal("a get of many was answered as something else")),
            Err(status)
                if status.code() == Code::InvalidArgument && ErrorDetail::of(&status).is_none() =>
            {
                let request = self.request(request, timeout.saturating_sub(asked.elapsed()));
                self.unary.clone().get_many(request).await.map(Response::into_inner)
            }
            Err(status) => Err(status),
        }
    }

    pub(crate) async fn list(
        &mut self,
        request: proto::ListRequest,
        timeout: Duration,
    ) -> Result<proto::ListResponse, Status> {
        let request = self.request(request, timeout);
        self.unary.list(request).await.map(Response::into_inner)
    }

    /// Begins a watch, over the stream that all watches of this node share.
    pub(crate) async fn watch(
        &self,
        begin: proto::WatchBegin,
        inbox: (Arc<Inbox>, Turn),
        timeout: Duration,
    ) -> Result<Result<Watching, Over>, Status> {
        let asking = Asking { stub: &self.unary, caller: &self.caller, named: self.named };
        self.watches.begin(asking, begin, inbox, timeout).await
    }

    /// Asks for a sign of life, unless that is under way. Any answer of the node counts as heard. If
    /// nothing is heard meanwhile, `node` does not use this connection any more.
    pub(crate) fn probe(&self, node: &Arc<Node>, of: &Arc<Connection>, timeout: Duration) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.heard.probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (mut stub, node, connection) = (self.clone(), node.clone(), of.clone());
        let asked = Instant::now();
        runtime.spawn(async move {
            let answer = tokio::time::timeout(timeout, stub.hello(timeout)).await;
            if answer.is_ok_and(|answer| ErrorDetail::is_from_node(&answer)) {
                stub.heard.now();
            } else if stub.heard.at() < asked {
                node.discard(&connection);
            }
            stub.heard.probing.store(false, Ordering::Relaxed);
        });
    }

    pub(crate) async fn hello(
        &mut self,
        timeout: Duration,
    ) -> Result<proto::HelloResponse, Status> {
        let request = self.request(proto::HelloRequest { protocol: PROTOCOL }, timeout);
        self.unary.hello(request).await.map(Response::into_inner)
    }
}

/// Each side must accept what the other may send. The server's largest request and page are well
/// within this size.
const MAX_MESSAGE_BYTES: usize = 68 << 20;

/// What a node may send of an answer, and on a connection, before it is taken. A scan that nobody takes fills its own
/// window. A node has at most four scans and two backups of one client open: they leave a part of the connection's
/// window to other answers. Multiplexed streams and those of watches are taken at once.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const WINDOW_BYTES: u32 = 16 << 20;

/// How the transport library names HTTP/2's error INADEQUATE_SECURITY.
const WANTS_TLS: &str = "security properties do not meet minimum requirements";

/// How long the client skips a node after its first failure. Doubles with each further one, up to
/// the maximum.
const COOL_DOWN: Duration = Duration::from_millis(100);
const MAX_COOL_DOWN: Duration = Duration::from_secs(1);

/// How long other nodes are asked to read after a read failed. Doubles like that: a member that is cut
/// off from the leader may take a second to say so.
const READ_COOL_DOWN: Duration = Duration::from_secs(1);
const MAX_READ_COOL_DOWN: Duration = Duration::from_secs(30);

pub(crate) struct Node {
    address: String,
    endpoint: Endpoint,
    tls: Option<Tls>,
    caller: Caller,
    state: Mutex<State>,
    connecting: tokio::sync::Mutex<()>,
    under_way: AtomicUsize,
    opening: AtomicBool,
    /// Whether reads are or were kept from this node since it served one.
    reads_kept: AtomicBool,
}

/// A connection that is being opened for nobody in particular.
pub(crate) struct Opening(Arc<Node>);

impl Opening {
    pub(crate) fn node(&self) -> &Node {
        &self.0
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.opening.store(false, Ordering::Relaxed);
    }
}

/// A request that is under way to a node.
pub(crate) struct UnderWay<'a>(&'a Node);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    failures: u32,
    cool_until: Option<Instant>,
    /// Until then other nodes are asked to read; and how many reads in a row failed here.
    no_reads_until: Option<Instant>,
    failed_reads: u32,
    /// Why it could not be used last.
    last: Option<Error>,
}

/// Stubs over a node's connections, used in turn.
pub(crate) struct Connection {
    first: Stub,
    others: Vec<Stub>,
    next: AtomicUsize,
}

impl Node {
    /// A node that is not connected yet. `address` is `host:port`, as [`normalize`] gives it.
    pub(crate) fn new(
        address: String,
        options: &Options,
        tls: Option<&Tls>,
        caller: &Caller,
    ) -> Result<Self, Error> {
        let invalid =
            |e: &dyn std::fmt::Display| Error::InvalidOptions(format!("endpoint `{address}`: {e}"));
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|e| invalid(&describe(&e)))?;
        if endpoint.uri().port_u16().is_none() {
            return Err(invalid(&"expected host:port"));
        }
        let endpoint = endpoint
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .tcp_keepalive(Some(options.keepalive_interval))
            .http2_keep_alive_interval(options.keepalive_interval)
            .keep_alive_timeout(options.keepalive_timeout)
            .keep_alive_while_idle(true);
        Ok(Node {
            address,
            endpoint,
            tls: tls.cloned(),
            caller: caller.clone(),
            state: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
            under_way: AtomicUsize::new(0),
            opening: AtomicBool::new(false),
            reads_kept: AtomicBool::new(false),
        })
    }

    /// Counts a request as under way until the returned value is dropped.
    pub(crate) fn ask(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    /// `None` while another one has begun to open the connection.
    pub(crate) fn begin_opening(self: &Arc<Node>) -> Option<Opening> {
        let begun = self.opening.swap(true, Ordering::Relaxed);
        (!begun).then(|| Opening(self.clone()))
    }

    /// Requests under way.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Whether to ask this node to read, if there are others.
    pub(crate) fn serves_reads(&self, now: Instant) -> bool {
        let state = self.state.lock();
        ![state.cool_until, state.no_reads_until].into_iter().flatten().any(|until| until > now)
    }

    /// A read failed here: others are asked for a while, longer with every failure in a row. It may be
    /// recovering, or cut off from the leader.
    pub(crate) fn refused_read(&self, now: Instant) {
        let mut state = self.state.lock();
        let delay = READ_COOL_DOWN.saturating_mul(1 << state.failed_reads.min(8));
        state.failed_reads = state.failed_reads.saturating_add(1);
        self.keep_reads(state, now + delay.min(MAX_READ_COOL_DOWN));
    }

    /// The node wants fewer requests: others are asked to read for so long.
    pub(crate) fn wants_fewer_reads(&self, now: Instant, after: Duration) {
        self.keep_reads(self.state.lock(), now + after.min(MAX_READ_COOL_DOWN));
    }

    fn keep_reads(&self, mut state: MutexGuard<'_, State>, until: Instant) {
        state.no_reads_until = state.no_reads_until.max(Some(until));
        self.reads_kept.store(true, Ordering::Relaxed);
    }

    /// A read is about to be sent here. If reads were kept from the node, the others wait for the answer
    /// to this one, or for a while.
    pub(crate) fn tries_read(&self, now: Instant) {
        if self.reads_kept.load(Ordering::Relaxed) {
            self.state.lock().no_reads_until = Some(now + READ_COOL_DOWN);
        }
    }

    pub(crate) fn served_read(&self) {
        if self.reads_kept.swap(false, Ordering::Relaxed) {
            let mut state = self.state.lock();
            (state.no_reads_until, state.failed_reads) = (None, 0);
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The open connection, unless it has broken.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.state.lock().connection.clone().filter(|connection| !connection.has_broken())
    }

    /// The end of the time in which the client skips this node, if it does.
    pub(crate) fn cooling(&self, now: Instant) -> Option<Instant> {
        self.state.lock().cool_until.filter(|until| *until > now)
    }

    /// The node's connection. Opens one if there is none, and passes the `Hello` of a newly
    /// connected node to `on_hello`.
    ///
    /// May be cancelled.
    pub(crate) async fn connect(
        &self,
        options: &Options,
        random: &Random,
        on_hello: impl FnOnce(&str, proto::HelloResponse) -> Result<(), Error>,
    ) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.connection() {
            return Ok(connection);
        }
        let failures = self.state.lock().failures;
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = self.connection() {
            return Ok(connection);
        }
        {
            let state = self.state.lock();
            if state.failures > failures {
                // Another task tried and failed while this one waited.
                let nothing = || self.unavailable("");
                return Err(state.last.clone().unwrap_or_else(nothing));
            }
        }
        let opened = match tokio::time::timeout(options.connect_timeout, self.open(options)).await {
            Ok(opened) => opened,
            Err(_) => Err(self.unavailable(format!(
                "no answer within {} ms",
                options.connect_timeout.as_millis()
            ))),
        };
        let connected = opened.and_then(|(connection, hello)| {
            on_hello(&self.address, hello)?;
            Ok(Arc::new(connection))
        });
        match connected {
            Ok(connection) => {
                let mut state = self.state.lock();
                *state = State { connection: Some(connection.clone()), ..State::default() };
                Ok(connection)
            }
            Err(error) => {
                self.failed(error.clone(), random);
                Err(error)
            }
        }
    }

    async fn open(&self, options: &Options) -> Result<(Connection, proto::HelloResponse), Error> {
        let channel = match self.tls {
            None => self.endpoint.connect().await.map_err(|e| self.unavailable(why(&e)))?,
            Some(_) => self.channel(),
        };
        let hello = Stub::new(channel.clone(), self.caller.stranger())
            .hello(options.connect_timeout)
            .await
            .map_err(|status| match (status.code(), Failure::of(&status)) {
                (_, Failure::Refused(refused)) if refused.is_denied() => refused,
                (Code::FailedPrecondition, _) => self.mismatch(of_node(status.message())),
                _ => self.unavailable(self.hello_failed(&status)),
            })?;
        if hello.protocol != PROTOCOL {
            let message = format!(
                "the server speaks version {} of the client protocol, this client speaks {PROTOCOL}",
                hello.protocol
            );
            return Err(self.mismatch(message));
        }
        let first = Stub::new(channel, self.caller.clone());
        let other = |_| {
            let stub = Stub::new(self.channel(), self.caller.clone());
            Stub { watches: first.watches.clone(), ..stub }
        };
        let others = (1..options.connections_per_node).map(other).collect();
        Ok((Connection { first, others, next: AtomicUsize::new(0) }, hello))
    }

    /// A channel that connects with its first call.
    fn channel(&self) -> Channel {
        let Some(tls) = self.tls.clone() else { return self.endpoint.connect_lazy() };
        let expected = Expected::AnyMember;
        self.endpoint.connect_with_connector_lazy(Connector::new(Some(tls), expected))
    }

    /// Why the first call failed. A server with TLS refuses plain text for lack of security.
    fn hello_failed(&self, status: &Status) -> Why {
        let Why { text, source } = why(status);
        let said = format!("hello: {text}");
        let text = match self.tls {
            None if said.contains(WANTS_TLS) => format!(
                "the server speaks TLS, and this client has no certificate: give a CA, a certificate and its key ({said})"
            ),
            _ => said,
        };
        Why { text, source }
    }

    /// Skips the node for a while, longer with every failure in a row.
    pub(crate) fn failed(&self, error: Error, random: &Random) {
        let mut state = self.state.lock();
        let delay = COOL_DOWN.saturating_mul(1 << state.failures.min(8)).min(MAX_COOL_DOWN);
        state.failures = state.failures.saturating_add(1);
        state.cool_until = Some(Instant::now() + random.jitter(delay));
        state.connection = None;
        // Not the error, which may be in the words of the node, and name a key. The caller gets it.
        tracing::debug!(endpoint = %self.address, failures = state.failures, "endpoint failed");
        state.last = Some(error);
    }

    /// Why it could not be used last, unless it was connected since.
    pub(crate) fn last_failure(&self) -> Option<Error> {
        self.state.lock().last.clone()
    }

    /// Drops `connection`. The next use opens a new one and so finds out whether the node still
    /// answers.
    pub(crate) fn discard(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock();
        if state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            state.connection = None;
        }
    }

    /// A connection that is opened by its first call.
    #[cfg(test)]
    pub(crate) fn connect_lazily(&self) -> Arc<Connection> {
        let first = Stub::new(self.channel(), self.caller.clone());
        let connection = Arc::new(Connection { first, others: vec![], next: AtomicUsize::new(0) });
        self.state.lock().connection = Some(connection.clone());
        connection
    }

    fn mismatch(&self, message: String) -> Error {
        Error::ProtocolMismatch { endpoint: self.address.clone(), message }
    }

    fn unavailable(&self, why: impl Into<Why>) -> Error {
        Error::unavailable(&self.address, why)
    }
}

impl Connection {
    /// A stub for one call.
    pub(crate) fn stub(&self) -> Stub {
        if self.others.is_empty() {
            return self.first.naming();
        }
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % (self.others.len() + 1);
        self.others.get(turn).unwrap_or(&self.first).naming()
    }

    fn has_broken(&self) -> bool {
        [&self.first].into_iter().chain(&self.others).any(|stub| stub.multiplexed.has_ended())
    }
}

/// Normalizes an endpoint to `host:port`.
///
/// # Errors
/// [`Error::InvalidOptions`] if its scheme contradicts whether the client has certificates.
pub(crate) fn normalize(endpoint: &str, tls: bool) -> Result<String, Error> {
    let endpoint = endpoint.trim();
    let (scheme, other, why) = match tls {
        true => ("https://", "http://", "it is without TLS, and the client has certificates"),
        false => ("http://", "https://", "it wants TLS: give a CA, a certificate and its key"),
    };
    if endpoint.starts_with(other) {
        return Err(Error::InvalidOptions(format!("endpoint `{endpoint}`: {why}")));
    }
    let address = endpoint.strip_prefix(scheme).unwrap_or(endpoint);
    Ok(address.trim_end_matches('/').to_owned())
}
