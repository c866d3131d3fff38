//! A scripted server of Cairn's protocol over a small store, for tests of the client.
//!
//! Nodes of one [`Cluster`] share a store that applies each sequence number of a session once, like
//! the real state machine. Each node plays its script, one step for each write, read or list.
//! Without a step it serves the request.
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cairn_client::Options;
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::kv_server::{Kv, KvServer};
use cairn_client::proto::operator_server::{Operator, OperatorServer};
use cairn_client::proto::{self, answer, call};
use cairn_launch::HeldPort;
use futures::{Stream, StreamExt, stream};
use prost::Message;
use std::pin::Pin;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

/// What a node does with one request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Refuses with this detail.
    Refuse(proto::ErrorDetail),
    /// Fails like a transport, before doing anything.
    Break,
    /// Does the work, then fails like a transport.
    ApplyAndBreak,
    /// Never answers. As the step of every request, the node answers nothing at all from then on.
    Hang,
    /// Serves the request.
    Serve,
    /// Serves the request when it is told to.
    ServeLater(Arc<tokio::sync::Notify>),
}

pub fn refuse(reason: Reason) -> Step {
    Step::Refuse(proto::ErrorDetail { reason: reason as i32, ..Default::default() })
}

pub fn not_leader(hint: &str) -> Step {
    let leader = Some(proto::Leader { node_id: 1, client_address: hint.to_owned() });
    Step::Refuse(proto::ErrorDetail {
        reason: Reason::NotLeader as i32,
        leader,
        ..Default::default()
    })
}

#[derive(Default)]
struct Store {
    index: u64,
    items: BTreeMap<Bytes, (Bytes, u64)>,
    /// Changes of members that were asked for.
    changes: Vec<proto::ChangeMembersRequest>,
    mode: i32,
    version: u32,
    results: BTreeMap<(Bytes, u64), proto::WriteResponse>,
}

/// The state that nodes share.
#[derive(Clone)]
pub struct Cluster {
    name: String,
    limits: proto::Limits,
    /// The version of the protocol that its nodes report.
    protocol: u32,
    store: Arc<Mutex<Store>>,
}

impl Cluster {
    pub fn new(name: &str) -> Cluster {
        let limits = proto::Limits {
            max_key_bytes: 64,
            max_value_bytes: 1024,
            max_batch_operations: 8,
            max_request_bytes: 4096,
        };
        let store = Arc::new(Mutex::new(Store { index: 10, ..Store::default() }));
        Cluster { name: name.to_owned(), limits, protocol: cairn_client::PROTOCOL, store }
    }

    /// The same, with nodes that speak this version of the protocol.
    pub fn speaking(self, protocol: u32) -> Cluster {
        Cluster { protocol, ..self }
    }

    /// How many writes were applied.
    pub fn applied(&self) -> u64 {
        self.store.lock().unwrap().index - 10
    }

    /// The mode that was set last.
    pub fn mode(&self) -> i32 {
        self.store.lock().unwrap().mode
    }

    /// The version to which an upgrade was finished.
    pub fn version(&self) -> u32 {
        self.store.lock().unwrap().version
    }

    pub fn advance(&self, index: u64) {
        self.store.lock().unwrap().index = index;
    }
}

/// One serving node and the requests that it received.
#[derive(Clone)]
pub struct Node {
    pub address: String,
    cluster: Cluster,
    script: Arc<Mutex<VecDeque<Step>>>,
    always: Arc<Mutex<Option<Step>>>,
    hangs: Arc<AtomicBool>,
    denies: Arc<AtomicBool>,
    members: Arc<Mutex<Vec<String>>>,
    generation: Arc<Mutex<u32>>,
    pub writes: Arc<Mutex<Vec<proto::WriteRequest>>>,
    pub reads: Arc<Mutex<Vec<proto::GetRequest>>>,
    pub timeouts: Arc<Mutex<Vec<Option<String>>>>,
    /// Slots that should lead; 0: any.
    pub moves: Arc<Mutex<Vec<u32>>>,
    pub drains: Arc<Mutex<Vec<u64>>>,
}

impl Node {
    pub async fn start(cluster: &Cluster) -> Node {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let node = Node {
            address: incoming.local_addr().unwrap().to_string(),
            cluster: cluster.clone(),
            script: Arc::default(),
            always: Arc::default(),
            hangs: Arc::default(),
            denies: Arc::default(),
            members: Arc::default(),
            generation: Arc::default(),
            writes: Arc::default(),
            reads: Arc::default(),
            timeouts: Arc::default(),
            moves: Arc::default(),
            drains: Arc::default(),
        };
        let services = Server::builder()
            .add_service(KvServer::new(node.clone()))
            .add_service(OperatorServer::new(node.clone()));
        tokio::spawn(services.serve_with_incoming(incoming));
        node
    }

    /// Plays these steps for the next requests.
    pub fn plays(&self, steps: impl IntoIterator<Item = Step>) {
        self.script.lock().unwrap().extend(steps);
    }

    /// The step for every request after the end of the script.
    pub fn always(&self, step: Step) {
        *self.always.lock().unwrap() = Some(step);
    }

    fn always_hangs(&self) -> bool {
        matches!(*self.always.lock().unwrap(), Some(Step::Hang))
    }

    /// From now on the node knows nothing of a caller who connects.
    pub fn denies(&self) {
        self.denies.store(true, Ordering::SeqCst);
    }

    /// Sets the members that the node reports to clients.
    pub fn knows(&self, addresses: &[&Node]) {
        *self.members.lock().unwrap() = addresses.iter().map(|node| node.address.clone()).collect();
    }

    /// The node is part of this generation of the cluster.
    pub fn belongs_to(&self, generation: u32) {
        *self.generation.lock().unwrap() = generation;
    }

    /// The sessions of the writes received.
    pub fn sessions(&self) -> Vec<proto::Session> {
        self.writes.lock().unwrap().iter().map(|write| write.session.clone().unwrap()).collect()
    }

    async fn perform<M, T>(
        &self,
        request: Request<M>,
        serve: impl FnOnce(&mut Store, M) -> T,
    ) -> Answer<T> {
        let timeout =
            request.metadata().get("grpc-timeout").map(|value| value.to_str().unwrap().to_owned());
        self.timeouts.lock().unwrap().push(timeout);
        let own = proto::generation_text(*self.generation.lock().unwrap());
        let other =
            request.metadata().get(proto::GENERATION_KEY).is_some_and(|meant| *meant != own);
        let refusal = other.then(|| refuse(Reason::OtherGeneration));
        let step = refusal.or_else(|| {
            self.script.lock().unwrap().pop_front().or_else(|| self.always.lock().unwrap().clone())
        });
        let serve = move || serve(&mut self.cluster.store.lock().unwrap(), request.into_inner());
        match step.unwrap_or(Step::Serve) {
            Step::Serve => Ok(Response::new(serve())),
            Step::ServeLater(told) => {
                told.notified().await;
                Ok(Response::new(serve()))
            }
            Step::Break => Err(Status::unavailable("the connection broke")),
            Step::ApplyAndBreak => {
                serve();
                Err(Status::unavailable("the connection broke"))
            }
            Step::Hang => {
                self.hangs.store(self.always_hangs(), Ordering::SeqCst);
                std::future::pending().await
            }
            Step::Refuse(detail) => Err(refused(&detail)),
        }
    }
}

fn refused(detail: &proto::ErrorDetail) -> Status {
    let mut metadata = MetadataMap::new();
    let encoded = MetadataValue::from_bytes(&detail.encode_to_vec());
    metadata.insert_bin(proto::ERROR_DETAIL_KEY, encoded);
    Status::with_metadata(Code::FailedPrecondition, "refused", metadata)
}

type Answer<T> = Result<Response<T>, Status>;

/// A call of a stream like a call of its own.
fn single<M>(message: M, timeout: Duration, generation: Option<u32>) -> Request<M> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    if let Some(generation) = generation.map(proto::generation_text) {
        request.metadata_mut().insert(proto::GENERATION_KEY, generation.parse().unwrap());
    }
    request
}

fn failed(status: &Status) -> proto::Failed {
    let detail = status.metadata().get_bin(proto::ERROR_DETAIL_KEY);
    let detail = detail.map(|value| proto::ErrorDetail::decode(value.to_bytes().unwrap()).unwrap());
    proto::Failed { code: status.code() as i32, message: status.message().to_owned(), detail }
}

#[tonic::async_trait]
impl Kv for Node {
    async fn hello(&self, _: Request<proto::HelloRequest>) -> Answer<proto::HelloResponse> {
        if self.hangs.load(Ordering::SeqCst) && self.always_hangs() {
            std::future::pending().await
        }
        if self.denies.load(Ordering::SeqCst) {
            let Step::Refuse(detail) = refuse(Reason::Unauthenticated) else { unreachable!() };
            return Err(refused(&detail));
        }
        let member = |address: &String| proto::Member {
            client_address: address.clone(),
            ..Default::default()
        };
        let generation = *self.generation.lock().unwrap();
        let membership = u64::from(generation != 0);
        Ok(Response::new(proto::HelloResponse {
            generation,
            membership_term: membership,
            membership_index: membership,
            cluster: self.cluster.name.clone(),
            limits: Some(self.cluster.limits),
            leader: None,
            applied_index: self.cluster.store.lock().unwrap().index,
            members: self.members.lock().unwrap().iter().map(member).collect(),
            server_version: "test".to_owned(),
            protocol: self.cluster.protocol,
        }))
    }

    async fn write(&self, request: Request<proto::WriteRequest>) -> Answer<proto::WriteResponse> {
        self.writes.lock().unwrap().push(request.get_ref().clone());
        self.perform(request, Store::write).await
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Answer<proto::GetResponse> {
        self.reads.lock().unwrap().push(request.get_ref().clone());
        self.perform(request, |store, get| match store.items.get(&get.key) {
            Some((value, version)) => {
                proto::GetResponse { found: true, value: value.clone(), version: *version }
            }
            None => proto::GetResponse::default(),
        })
        .await
    }

    type MultiplexStream =
        Pin<Box<dyn Stream<Item = Result<proto::MultiplexResponse, Status>> + Send>>;

    async fn multiplex(
        &self,
        request: Request<Streaming<proto::MultiplexRequest>>,
    ) -> Answer<Self::MultiplexStream> {
        let node = self.clone();
        let calls = request.into_inner().flat_map(|message| {
            let message = message.unwrap_or_default();
            stream::iter(message.calls.into_iter().map(move |call| (call, message.generation)))
        });
        let answers = calls.map(move |(call, generation)| {
            let node = node.clone();
            async move {
                let timeout = Duration::from_millis(call.timeout_ms);
                let answer = match call.kind.unwrap() {
                    call::Kind::Write(write) => node
                        .write(single(write, timeout, generation))
                        .await
                        .map(|r| answer::Kind::Write(r.into_inner())),
                    call::Kind::Get(get) => node
                        .get(single(get, timeout, generation))
                        .await
                        .map(|r| answer::Kind::Get(r.into_inner())),
                };
                let kind =
                    Some(answer.unwrap_or_else(|status| answer::Kind::Failed(failed(&status))));
                Ok(proto::MultiplexResponse { answers: vec![proto::Answer { id: call.id, kind }] })
            }
        });
        Ok(Response::new(Box::pin(answers.buffer_unordered(proto::CALLS_OF_A_STREAM))))
    }

    async fn list(&self, request: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        self.perform(request, Store::list).await
    }

    async fn safe_to_stop(
        &self,
        _: Request<proto::SafeToStopRequest>,
    ) -> Answer<proto::SafeToStopResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Answer<proto::StatusResponse> {
        let index = self.cluster.store.lock().unwrap().index;
        let cluster = self.cluster.name.clone();
        let role = proto::Role::Leader.into();
        Ok(Response::new(proto::StatusResponse {
            cluster,
            role,
            applied_index: index,
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl Operator for Node {
    async fn unsafe_recovery(
        &self,
        _: Request<proto::UnsafeRecoveryRequest>,
    ) -> Answer<proto::UnsafeRecoveryResponse> {
        Err(Status::failed_precondition(
            "this member is active and votes without an unsafe-recovery grant",
        ))
    }

    async fn scrub(&self, request: Request<proto::ScrubRequest>) -> Answer<proto::ScrubResponse> {
        let paused = request.into_inner().action() == proto::scrub_request::Action::Pause;
        Ok(Response::new(proto::ScrubResponse {
            scrub: Some(proto::Scrub { paused, ..Default::default() }),
        }))
    }

    async fn change_members(
        &self,
        request: Request<proto::ChangeMembersRequest>,
    ) -> Answer<proto::ChangeMembersResponse> {
        self.perform(request, |store, change| {
            let asked_before = store.changes.contains(&change);
            store.changes.push(change);
            let waits_for = if asked_before { "" } else { "being asked again" };
            proto::ChangeMembersResponse { waits_for: waits_for.to_owned() }
        })
        .await
    }

    async fn set_mode(
        &self,
        request: Request<proto::SetModeRequest>,
    ) -> Answer<proto::SetModeResponse> {
        self.perform(request, |store, asked| {
            store.mode = asked.mode;
            proto::SetModeResponse {}
        })
        .await
    }

    async fn move_leader(
        &self,
        request: Request<proto::MoveLeaderRequest>,
    ) -> Answer<proto::MoveLeaderResponse> {
        self.moves.lock().unwrap().push(request.get_ref().slot);
        self.perform(request, |_, asked| {
            let leader = proto::Leader {
                node_id: u64::from(asked.slot) << 48,
                client_address: "10.0.0.9:7400".to_owned(),
            };
            proto::MoveLeaderResponse { leader: Some(leader) }
        })
        .await
    }

    type BackupStream = futures::stream::Empty<Result<proto::BackupPart, Status>>;

    async fn backup(&self, _: Request<proto::BackupRequest>) -> Answer<Self::BackupStream> {
        Err(Status::unimplemented("this node sends no state"))
    }

    async fn finish_upgrade(
        &self,
        request: Request<proto::FinishUpgradeRequest>,
    ) -> Answer<proto::FinishUpgradeResponse> {
        self.perform(request, |store, asked| {
            store.version = asked.version;
            proto::FinishUpgradeResponse {}
        })
        .await
    }

    async fn drain(&self, request: Request<proto::DrainRequest>) -> Answer<proto::DrainResponse> {
        self.drains.lock().unwrap().push(request.get_ref().time_ms);
        self.perform(request, |_, _| proto::DrainResponse {}).await
    }
}

impl Store {
    fn write(&mut self, request: proto::WriteRequest) -> proto::WriteResponse {
        let session = request.session.unwrap();
        let id = (session.client_id, session.sequence);
        if let Some(first) = self.results.get(&id) {
            return first.clone();
        }
        self.index += 1;
        let results: Vec<_> =
            request.operations.iter().map(|operation| self.evaluate(operation)).collect();
        let applied = results.iter().all(|result| result.condition_held);
        for operation in request.operations.into_iter().filter(|_| applied) {
            match operation.kind.unwrap() {
                proto::operation::Kind::Put(put) => {
                    self.items.insert(put.key, (put.value, self.index));
                }
                proto::operation::Kind::Delete(delete) => {
                    self.items.remove(&delete.key);
                }
                proto::operation::Kind::Check(_) => {}
            }
        }
        let response = proto::WriteResponse { term: 3, index: self.index, applied, results };
        self.results.insert(id, response.clone());
        response
    }

    fn evaluate(&self, operation: &proto::Operation) -> proto::OperationResult {
        let (key, condition) = match operation.kind.as_ref().unwrap() {
            proto::operation::Kind::Put(put) => (&put.key, put.condition),
            proto::operation::Kind::Delete(delete) => (&delete.key, delete.condition),
            proto::operation::Kind::Check(check) => (&check.key, check.condition),
        };
        let version = self.items.get(key).map(|(_, version)| *version);
        let condition_held = match condition.and_then(|condition| condition.kind) {
            None => true,
            Some(proto::condition::Kind::Absent(absent)) => version.is_none() == absent,
            Some(proto::condition::Kind::Version(wanted)) => version == Some(wanted),
        };
        proto::OperationResult {
            condition_held,
            existed: version.is_some(),
            version: version.unwrap_or(0),
        }
    }

    fn list(&mut self, request: proto::ListRequest) -> proto::ListResponse {
        let mut keys: Vec<&Bytes> =
            self.items.keys().filter(|key| key.starts_with(&request.prefix)).collect();
        if request.reverse {
            keys.reverse();
        }
        let after = &request.start_after;
        if !after.is_empty() {
            keys.retain(|key| if request.reverse { *key < after } else { *key > after });
        }
        let limit = if request.limit == 0 { 1000 } else { request.limit as usize };
        let item = |key: &&Bytes| {
            let (value, version) = self.items[*key].clone();
            let value = if request.keys_only { Bytes::new() } else { value };
            proto::KeyValue { key: (*key).clone(), value, version }
        };
        let items = keys.iter().take(limit).map(item).collect();
        proto::ListResponse { items, more: keys.len() > limit }
    }
}

/// An address on which nothing listens while the returned port lives.
pub fn dead() -> (HeldPort, String) {
    let port = HeldPort::any().unwrap();
    let address = port.address().to_string();
    (port, address)
}

/// Longer than anything takes, even on a busy machine. It only turns a hang into a failure.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// For clients whose attempts time out only at a hanging node.
pub fn options(nodes: &[&Node]) -> Options {
    let options = Options::new(nodes.iter().map(|node| node.address.clone())).seed(7);
    let options = options.keepalive_interval(10 * WAIT_LIMIT);
    options.deadline(WAIT_LIMIT).attempt_timeout(WAIT_LIMIT).connect_timeout(WAIT_LIMIT)
}

/// What a call ends with that only its deadline can end. Nobody waits for that: from here on time passes
/// as soon as all tasks wait, and afterwards by the clock again.
pub async fn at_its_deadline<T>(call: JoinHandle<T>) -> T {
    tokio::time::pause();
    let ended = call.await.unwrap();
    tokio::time::resume();
    ended
}
