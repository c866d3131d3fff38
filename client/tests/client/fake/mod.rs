//! A scripted server of Cairn's protocol over a small store, for tests of the client.
//!
//! Nodes of one [`Cluster`] share a store that applies each sequence number of a session once, like
//! the real state machine. Each node plays its script, one step for each write, read, list or beginning of a scan.
//! Without a step it serves the request.
mod scans;
mod services;
mod store;
pub mod watches;

use cairn_client::Options;
use cairn_client::proto;
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::kv_server::KvServer;
use cairn_client::proto::operator_server::OperatorServer;
use cairn_launch::HeldPort;
use prost::Message;
pub use scans::Sends;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;
use tokio::task::JoinHandle;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

/// What a node does with one request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Refuses with this detail.
    Refuse(proto::ErrorDetail),
    /// Refuses for this reason, in these words.
    RefuseSaying(Reason, String),
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

fn detail(reason: Reason) -> proto::ErrorDetail {
    proto::ErrorDetail { reason: reason as i32, ..Default::default() }
}

pub fn refuse(reason: Reason) -> Step {
    Step::RefuseSaying(reason, "refused".to_owned())
}

pub fn not_leader(hint: &str) -> Step {
    let leader = Some(proto::Leader { node_id: 1, client_address: hint.to_owned() });
    Step::Refuse(proto::ErrorDetail { leader, ..detail(Reason::NotLeader) })
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
    /// How many more hellos fail, since the node is starting.
    starting: Arc<Mutex<usize>>,
    earlier: Arc<AtomicBool>,
    /// How many streams of watches it did not know.
    pub refused_watches: Arc<AtomicUsize>,
    members: Arc<Mutex<Vec<String>>>,
    generation: Arc<Mutex<u32>>,
    /// How many hellos it received.
    pub hellos: Arc<AtomicUsize>,
    pub writes: Arc<Mutex<Vec<proto::WriteRequest>>>,
    pub reads: Arc<Mutex<Vec<proto::GetRequest>>>,
    pub many: Arc<Mutex<Vec<proto::GetManyRequest>>>,
    pub lists: Arc<Mutex<Vec<proto::ListRequest>>>,
    pub scans: Arc<Mutex<Vec<proto::ScanRequest>>>,
    /// What is sent of the next scans; all of it without a step.
    scan_script: Arc<Mutex<VecDeque<Sends>>>,
    pub timeouts: Arc<Mutex<Vec<Option<String>>>>,
    /// Slots that should lead; 0: any.
    pub moves: Arc<Mutex<Vec<u32>>>,
    pub drains: Arc<Mutex<Vec<u64>>>,
    watches: watches::Opened,
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
            starting: Arc::default(),
            earlier: Arc::default(),
            refused_watches: Arc::default(),
            members: Arc::default(),
            generation: Arc::default(),
            hellos: Arc::default(),
            writes: Arc::default(),
            reads: Arc::default(),
            many: Arc::default(),
            lists: Arc::default(),
            scans: Arc::default(),
            scan_script: Arc::default(),
            timeouts: Arc::default(),
            moves: Arc::default(),
            drains: Arc::default(),
            watches: watches::Opened::none(),
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

    /// The next so many callers who connect are told that the node is starting.
    pub fn is_starting_for(&self, hellos: usize) {
        *self.starting.lock().unwrap() = hellos;
    }

    /// The node knows no get of many keys, no scan, no watch, and no end of a list.
    pub fn is_of_an_earlier_release(&self) {
        self.earlier.store(true, Ordering::SeqCst);
    }

    /// The node knows all of them again.
    pub fn is_upgraded(&self) {
        self.earlier.store(false, Ordering::SeqCst);
    }

    /// The next stream of watches that a client opens.
    pub async fn watched(&self) -> watches::WatchStream {
        self.watches.next().await
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

    /// Whether the request is to another generation of the cluster.
    fn means_another<M>(&self, request: &Request<M>) -> bool {
        let own = proto::generation_text(*self.generation.lock().unwrap());
        request.metadata().get(proto::GENERATION_KEY).is_some_and(|meant| *meant != own)
    }

    async fn perform<M, T>(
        &self,
        request: Request<M>,
        serve: impl FnOnce(&mut Store, M) -> T,
    ) -> Answer<T> {
        let timeout =
            request.metadata().get("grpc-timeout").map(|value| value.to_str().unwrap().to_owned());
        self.timeouts.lock().unwrap().push(timeout);
        let refusal = self.means_another(&request).then(|| refuse(Reason::OtherGeneration));
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
            Step::Refuse(detail) => Err(refused(&detail, "refused")),
            Step::RefuseSaying(reason, words) => Err(refused(&detail(reason), &words)),
        }
    }
}

fn refused(detail: &proto::ErrorDetail, words: &str) -> Status {
    let mut metadata = MetadataMap::new();
    let encoded = MetadataValue::from_bytes(&detail.encode_to_vec());
    metadata.insert_bin(proto::ERROR_DETAIL_KEY, encoded);
    Status::with_metadata(Code::FailedPrecondition, words, metadata)
}

type Answer<T> = Result<Response<T>, Status>;

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
