//! The public service over a [`Replica`] and its [`Engine`]: linearizability and deadlines of
//! admitted requests.
//!
//! What holds here:
//! - A read that is not `stale` is served only after [`Replica::read_barrier`], from the engine's
//!   state after it; one that may have an age, after a barrier that began within it.
//! - A put is refused before it is proposed if the engine has no space for it. A delete is not.
//! - Writes under way are bounded in number and bytes, and reads by the memory that they and their
//!   answers take.
//! - A value that cannot be read intact is DATA_LOSS, never "not found".
//! - Every refusal names the input and what to do, and carries an `ErrorDetail`.
//! - A watch misses nothing: it is told each change in order, or told that it has ended.
//! - No request is served before [`KvService::caller`] has identified who makes it, and each key is
//!   checked against what that caller may do.

mod backup;
mod describe;
mod many;
mod membership;
mod multiplexed;
mod operator;
mod read;
mod scan;
mod scrub;
mod state_stream;
mod upgrade;
mod watch;
mod write;

use crate::access::audit::Audit;
use crate::access::credentials::Credentials;
use crate::access::{AccessTable, Need, Session};
use crate::admission::caller::Caller;
use crate::admission::requests::{Accounts, Arrived, Budgets};
use crate::admission::turns::Turns;
use crate::admission::writes::Admission;
use crate::admission::{deadline, refusal};
use crate::config::{Limits, NodeConfig};
use crate::durability::Durability;
use crate::metrics::{Method, Metrics};
use crate::outage::ElectionBlockedState;
use cairn_client::NodeStatus;
use cairn_client::proto::{self, answer, call};
use cairn_engine::Engine;
use cairn_raft::Replica;
use cairn_tls::Tls;
use futures::future::Shared;
use futures::{FutureExt, Stream};
use parking_lot::RwLock;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};
use watch::Watches;

/// Resolves when servers should stop accepting.
pub(crate) type Stop = Shared<oneshot::Receiver<()>>;

/// The service; clones share it.
#[derive(Clone)]
pub(crate) struct KvService {
    inner: Arc<Inner>,
}

struct Inner {
    config: NodeConfig,
    durability: Durability,
    replica: Replica,
    election_blocked_state: ElectionBlockedState,
    engine: Engine,
    access: AccessTable,
    audit: Audit,
    limits: RwLock<Limits>,
    admission: Admission,
    /// Charges requests whose connection is not known.
    unknown: Accounts,
    metrics: Arc<Metrics>,
    tls: Option<Tls>,
    /// How many may take the state at once.
    backups: Arc<Semaphore>,
    /// Whose turn it is to delete a range.
    ranges: Turns,
    watches: Watches,
    started: Instant,
    stopping: Stop,
}

impl Inner {
    /// The sentence about a blocked election, if the election is blocked.
    fn election_blocked(&self) -> Option<String> {
        self.election_blocked_state.of(&self.replica)
    }

    /// Why nobody is served here, if waiting alone changes nothing.
    fn no_service(&self) -> Option<String> {
        self.election_blocked_state.no_service(&self.replica)
    }

    /// The limits, which change when the configuration is read again.
    fn limits(&self) -> Limits {
        *self.limits.read()
    }
}

/// The parts of a node that its services and watchers work with.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) config: NodeConfig,
    pub(crate) durability: Durability,
    pub(crate) replica: Replica,
    pub(crate) election_blocked_state: ElectionBlockedState,
    pub(crate) access: AccessTable,
    pub(crate) budgets: Budgets,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tls: Option<Tls>,
    pub(crate) stopping: Stop,
}

impl KvService {
    pub(crate) fn new(parts: &Parts) -> KvService {
        let parts = parts.clone();
        let inner = Inner {
            watches: Watches::new(parts.metrics.watches()),
            engine: parts.replica.engine().clone(),
            audit: Audit::new(parts.replica.node_id()),
            limits: RwLock::new(parts.config.limits),
            admission: Admission::new(&parts.config.limits),
            unknown: parts.budgets.accounts(&Arc::default()),
            config: parts.config,
            durability: parts.durability,
            replica: parts.replica,
            election_blocked_state: parts.election_blocked_state,
            access: parts.access,
            metrics: parts.metrics,
            tls: parts.tls,
            backups: Arc::new(Semaphore::new(backup::STREAMS)),
            ranges: Turns::new(),
            started: Instant::now(),
            stopping: parts.stopping,
        };
        KvService { inner: Arc::new(inner) }
    }

    /// Who makes this request. It means this cluster.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        refusal::other_generation(request.metadata(), self.inner.engine.generation())?;
        self.anybody(request)
    }

    /// Who asks about this node itself, whatever cluster it means.
    fn anybody<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let credentials = Credentials::of(request.extensions(), request.metadata());
        let identity = self.inner.access.identify(&credentials).map_err(refusal::denied)?;
        Ok(Caller::of(identity, request.extensions(), &self.inner.unknown))
    }

    /// Who makes the calls of this stream, as the roles are at each of them.
    fn session<T>(&self, request: &Request<T>) -> Result<Session, Status> {
        let credentials = Credentials::of(request.extensions(), request.metadata());
        Session::begin(&self.inner.access, credentials).map_err(refusal::denied)
    }

    /// What this node says of itself, to whoever may ask for its status.
    #[cfg_attr(madsim, allow(dead_code, reason = "the simulated world has no ports"))]
    pub(crate) fn told(&self) -> NodeStatus {
        NodeStatus::of(describe::status(&self.inner))
    }

    /// The limits of requests that come now.
    pub(crate) fn limits(&self) -> Limits {
        self.inner.limits()
    }

    /// Applies other limits to the requests that come from now on.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        *self.inner.limits.write() = *limits;
        self.inner.admission.resize(limits);
    }

    async fn measured<T>(
        &self,
        method: Method,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let began = Instant::now();
        let result = work.await.map_err(refusal::bounded);
        self.inner.metrics.request(method, result.as_ref().err(), began.elapsed());
        result.map(Response::new)
    }

    /// Serves one request of a multiplexed stream like a call of its own. Many of these are under way, and
    /// a future that is awaited by value lies in memory twice.
    async fn call(
        &self,
        caller: Result<Caller, Status>,
        kind: call::Kind,
        timeout: Option<Duration>,
    ) -> Result<answer::Kind, Status> {
        let budget = deadline::within(timeout, self.inner.config.timing.request);
        match kind {
            call::Kind::Write(request) => {
                let work = async { write::write(&self.inner, &caller?, request, budget).await };
                let done = self.measured(Method::Write, pin!(work)).await?;
                Ok(answer::Kind::Write(done.into_inner()))
            }
            call::Kind::Get(request) => {
                let work = async { read::get(&self.inner, &caller?, request, budget).await };
                let done = self.measured(Method::Get, pin!(work)).await?;
                Ok(answer::Kind::Get(done.into_inner()))
            }
            call::Kind::GetMany(request) => {
                let work = async { many::get_many(&self.inner, &caller?, request, budget).await };
                // Boxed, so that the other calls take no more for it.
                let done = self.measured(Method::GetMany, Box::pin(work)).await?;
                Ok(answer::Kind::GetMany(done.into_inner()))
            }
        }
    }
}

/// The answer to a caller, with its charges for the transport.
fn answered<T>(response: Response<(T, Caller)>) -> Response<T> {
    let (answer, caller) = response.into_inner();
    caller.answered(Response::new(answer))
}

#[tonic::async_trait]
impl proto::kv_server::Kv for KvService {
    async fn hello(
        &self,
        request: Request<proto::HelloRequest>,
    ) -> Result<Response<proto::HelloResponse>, Status> {
        self.measured(Method::Hello, async {
            self.anybody(&request)?.may(Need::AnyRole)?;
            refusal::other_protocol(request.into_inner().protocol)?;
            Ok(describe::hello(&self.inner))
        })
        .await
    }

    async fn write(
        &self,
        request: Request<proto::WriteRequest>,
    ) -> Result<Response<proto::WriteResponse>, Status> {
        let budget = deadline::budget(request.metadata(), self.inner.config.timing.request);
        let work = async {
            let caller = self.caller(&request)?;
            let arrived = request.extensions().get::<Arrived>().cloned().unwrap_or_default();
            let request = request.into_inner();
            let _held = arrived.decoded(request.decoded_bytes())?;
            let done = write::write(&self.inner, &caller, request, budget).await?;
            Ok((done, caller))
        };
        self.measured(Method::Write, work).await.map(answered)
    }

    async fn get(
        &self,
        request: Request<proto::GetRequest>,
    ) -> Result<Response<proto::GetResponse>, Status> {
        let budget = deadline::budget(request.metadata(), self.inner.config.timing.request);
        let work = async {
            let caller = self.caller(&request)?;
            let found = read::get(&self.inner, &caller, request.into_inner(), budget).await?;
            Ok((found, caller))
        };
        self.measured(Method::Get, work).await.map(answered)
    }

    async fn get_many(
        &self,
        request: Request<proto::GetManyRequest>,
    ) -> Result<Response<proto::GetManyResponse>, Status> {
        let budget = deadline::budget(request.metadata(), self.inner.config.timing.request);
        let work = async {
            let caller = self.caller(&request)?;
            let arrived = request.extensions().get::<Arrived>().cloned().unwrap_or_default();
            let request = request.into_inner();
            let _held = arrived.decoded(request.decoded_bytes())?;
            let found = many::get_many(&self.inner, &caller, request, budget).await?;
            Ok((found, caller))
        };
        self.measured(Method::GetMany, work).await.map(answered)
    }

    type MultiplexStream =
        Pin<Box<dyn Stream<Item = Result<proto::MultiplexResponse, Status>> + Send>>;

    async fn multiplex(
        &self,
        request: Request<Streaming<proto::MultiplexRequest>>,
    ) -> Result<Response<Self::MultiplexStream>, Status> {
        let service = self.clone();
        let stopping = service.inner.stopping.clone().map(|_| ());
        let caller = self.caller(&request)?;
        caller.may(Need::AnyRole)?;
        let session = self.session(&request)?;
        let calling = caller.clone();
        let calls = caller.calls(request.extensions());
        let serve = move |kind, generation, timeout| {
            let now = session.identity().map_err(refusal::denied);
            let service = service.clone();
            let own = service.inner.engine.generation();
            let caller = match generation {
                Some(meant) if meant != own => Err(refusal::not_of_generation(own)),
                _ => now.map(|identity| calling.clone().with_identity(identity)),
            };
            async move { service.call(caller, kind, timeout).await }
        };
        let calls = (calls, self.inner.config.timing.request);
        let answers = multiplexed::answers(request.into_inner(), stopping, calls, serve);
        Ok(caller.answered(Response::new(Box::pin(answers))))
    }

    type WatchStream = watch::Messages;

    async fn watch(
        &self,
        request: Request<Streaming<proto::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let work = async {
            let caller = self.caller(&request)?;
            caller.may(Need::AnyRole)?;
            let session = self.session(&request)?;
            let arrived = request.extensions().get::<Arrived>().cloned().unwrap_or_default();
            let (who, requests) = ((caller.clone(), session), request.into_inner());
            Ok((watch::messages(self.inner.clone(), who, requests, arrived), caller))
        };
        self.measured(Method::Watch, work).await.map(answered)
    }

    async fn list(
        &self,
        request: Request<proto::ListRequest>,
    ) -> Result<Response<proto::ListResponse>, Status> {
        let budget = deadline::budget(request.metadata(), self.inner.config.timing.request);
        let work = async {
            let caller = self.caller(&request)?;
            let page = read::list(&self.inner, &caller, request.into_inner(), budget).await?;
            Ok((page, caller))
        };
        self.measured(Method::List, work).await.map(answered)
    }

    type ScanStream = scan::Parts;

    async fn scan(
        &self,
        request: Request<proto::ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let budget = deadline::budget(request.metadata(), self.inner.config.timing.request);
        let work = async {
            let (caller, session) = (self.caller(&request)?, self.session(&request)?);
            let calling = (caller.clone(), session);
            let parts = scan::scan(&self.inner, calling, request.into_inner(), budget).await?;
            Ok((parts, caller))
        };
        self.measured(Method::Scan, work).await.map(answered)
    }

    async fn status(
        &self,
        request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusResponse>, Status> {
        self.measured(Method::Status, async {
            self.anybody(&request)?.may(Need::AnyRole)?;
            Ok(describe::status(&self.inner))
        })
        .await
    }

    async fn safe_to_stop(
        &self,
        request: Request<proto::SafeToStopRequest>,
    ) -> Result<Response<proto::SafeToStopResponse>, Status> {
        self.measured(Method::SafeToStop, async {
            self.anybody(&request)?.may(Need::AnyRole)?;
            describe::safe_to_stop(&self.inner).await
        })
        .await
    }
}
