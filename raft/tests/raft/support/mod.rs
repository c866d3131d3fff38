//! Replicas in this process, over real files and loopback connections.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    dead_code
)]

pub mod proxy;

use bytes::Bytes;
use cairn_engine::io::{Backend, FileDirectory};
use cairn_engine::{Engine, Geometry, Identity, KernelBootId, Mode, Options, Value};
use cairn_launch::HeldPort;
use cairn_raft::{
    Command, Condition, GROUP, MemberAddress, NodeId, Operation, Replica, ReplicaConfig, Role,
    Session, WriteError, WriteOutcome,
};
use cairn_tls::Remote;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

pub const CLUSTER: &str = "test";
/// Longer than anything takes, even on a busy machine. It only turns a hang into a failure.
pub const WAIT_LIMIT: Duration = Duration::from_secs(180);

/// Waits until something has happened; the time limit only turns a hang into a failure.
pub async fn until<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(value) = happened() {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, wait).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// For tests that end a leader: the others notice soon. Such tests must not rely on a leader to
/// stay.
pub fn quick(config: &mut ReplicaConfig) {
    (config.election_min_ms, config.election_max_ms) = (2000, 4000);
}

/// A member. Its disk outlives its process.
pub struct Member {
    pub slot: u16,
    pub folder: TempDir,
    pub listen: SocketAddr,
    /// Reserved while the member is down, too.
    _port: HeldPort,
    pub running: Option<Running>,
}

/// A running member. It has its own runtime, so that all of it can end at once.
pub struct Running {
    pub replica: Replica,
    runtime: Runtime,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for running in self.members.iter_mut().filter_map(|member| member.running.take()) {
            running.runtime.shutdown_background();
        }
    }
}

/// Members of one cluster, by slot from 1.
pub struct Cluster {
    pub members: Vec<Member>,
    pub addresses: BTreeMap<u16, MemberAddress>,
    pub configure: fn(&mut ReplicaConfig),
    /// Memory of each engine for values of the log.
    pub log_cache_bytes: u64,
    /// The members of the lowest slots that form the cluster; the others ask these to join.
    pub founders: u16,
    /// The laxest mode of each member.
    pub mode: Mode,
}

impl Cluster {
    /// Formats the members; none is running.
    pub async fn new(size: u16, configure: fn(&mut ReplicaConfig)) -> Cluster {
        // Set RUST_LOG to see the members' log lines.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init().ok();
        let mut cluster = Cluster {
            members: Vec::new(),
            addresses: BTreeMap::new(),
            configure,
            log_cache_bytes: 64 << 20,
            founders: size,
            mode: Mode::Device,
        };
        for slot in 1..=size {
            let port = HeldPort::any().unwrap();
            let listen = port.address();
            let folder = tempfile::tempdir().unwrap();
            format(&folder, slot, 100 + u64::from(slot)).await;
            let client = format!("client-{slot}:1");
            cluster.addresses.insert(slot, MemberAddress { peer: listen.to_string(), client });
            cluster.members.push(Member { slot, folder, listen, _port: port, running: None });
        }
        cluster
    }

    /// Formats and starts the members, and waits for a leader.
    pub async fn started(size: u16, configure: fn(&mut ReplicaConfig)) -> Cluster {
        let mut cluster = Cluster::new(size, configure).await;
        for slot in 1..=size {
            cluster.start(slot).await;
        }
        cluster.leader().await;
        cluster
    }

    pub async fn start(&mut self, slot: u16) {
        let mut founders = self.addresses.clone();
        founders.retain(|slot, _| *slot <= self.founders);
        let seeds = founders.values().map(|address| address.peer.clone()).collect();
        let mut config = ReplicaConfig::new(self.mode, founders);
        if slot > self.founders {
            (config.initial_members, config.seeds) = (BTreeMap::new(), seeds);
            config.advertised = self.addresses[&slot].clone();
        }
        config.maintenance_ms = 20;
        // Members of many clusters share the machine: a leader that gets no processor time for a
        // while must stay leader.
        (config.election_min_ms, config.election_max_ms) = (30_000, 60_000);
        (self.configure)(&mut config);
        let member = &mut self.members[usize::from(slot) - 1];
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (path, listen) = (member.folder.path().to_owned(), member.listen);
        let (cache, mode) = (self.log_cache_bytes, self.mode);
        let (sender, started) = tokio::sync::oneshot::channel();
        runtime.spawn(async move {
            let replica =
                Replica::start(config, open_with(&path, cache, mode).await).await.unwrap();
            let listener = TcpListener::bind(listen).await.unwrap();
            let connections = futures::stream::unfold(listener, |listener| async {
                let (stream, address) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                Some(((stream, Remote { certificate: None, address: Some(address) }), listener))
            });
            let service = replica.peer_service();
            sender.send(replica).ok();
            service.serve(connections).await;
        });
        member.running = Some(Running { replica: started.await.unwrap(), runtime });
    }

    /// Ends a member as a crash of its process would: connections break, nothing is closed. Returns
    /// when all of it has ended: until then its port and its files are in use.
    pub async fn kill(&mut self, slot: u16) {
        if let Some(Running { replica, runtime, .. }) =
            self.members[usize::from(slot) - 1].running.take()
        {
            drop(replica);
            tokio::task::spawn_blocking(move || runtime.shutdown_timeout(WAIT_LIMIT))
                .await
                .unwrap();
        }
    }

    pub fn replica(&self, slot: u16) -> &Replica {
        &self.members[usize::from(slot) - 1].running.as_ref().unwrap().replica
    }

    /// Returns once the member was asked this method so many more times.
    pub async fn until_asked(&self, slot: u16, method: &str, times: u64) {
        let running = self.members[usize::from(slot) - 1].running.as_ref().unwrap();
        let asked = || {
            let service = running.replica.peer_service();
            service.requests().find(|(name, _)| *name == method).unwrap().1
        };
        let before = asked();
        until(method, || (asked() >= before + times).then_some(())).await;
    }

    pub fn replicas(&self) -> impl Iterator<Item = &Replica> {
        self.members
            .iter()
            .filter_map(|member| member.running.as_ref())
            .map(|running| &running.replica)
    }

    /// The leader, once all running members agree on it.
    pub async fn leader(&self) -> &Replica {
        let leader = until("a leader that all agree on", || {
            let leads: Vec<NodeId> =
                self.replicas().filter_map(|r| r.leader().map(|(id, _)| id)).collect();
            let (first, running) = (*leads.first()?, self.replicas().count());
            let agreed = leads.len() == running && leads.iter().all(|id| *id == first);
            let leader = self.replicas().find(|r| r.node_id() == first)?;
            (agreed && leader.status().role == Role::Leader).then_some(first)
        })
        .await;
        self.replicas().find(|r| r.node_id() == leader).unwrap()
    }

    /// The leader, once it has applied everything that was acknowledged.
    pub async fn up_to_date(&self) -> &Replica {
        loop {
            let leader = self.leader().await;
            if leader.read_barrier().await.is_ok() {
                return leader;
            }
        }
    }

    /// Puts at the present leader until the outcome is known. Uses a session, since a retry without
    /// one could apply twice.
    pub async fn put(&self, key: &str, value: impl Into<Value>) -> WriteOutcome {
        let session = Session {
            client_id: xxhash_rust::xxh3::xxh3_128(key.as_bytes()),
            sequence: 1,
            lowest_pending: 1,
            base_index: 0,
        };
        let operation = Operation::Put {
            key: key.to_string().into(),
            value: value.into(),
            condition: Condition::None,
        };
        self.write(Command { synced: false, session: Some(session), operations: vec![operation] })
            .await
    }

    /// Puts at the present leader until it is acknowledged, whoever leads meanwhile. It may be applied twice.
    pub async fn overwrite(&self, key: &str, value: impl Into<Value>) {
        let command = put(key, value);
        loop {
            match self.leader().await.write(command.clone()).await {
                Ok(_) => return,
                Err(
                    WriteError::NotLeader { .. }
                    | WriteError::NoLeader
                    | WriteError::OutcomeUnknown(_),
                ) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Writes a command with a session at the present leader until its outcome is known.
    pub async fn write(&self, command: Command) -> WriteOutcome {
        assert!(command.session.is_some(), "a retry could be applied twice");
        loop {
            match self.leader().await.write(command.clone()).await {
                Ok(outcome) => return outcome,
                Err(
                    WriteError::NotLeader { .. }
                    | WriteError::NoLeader
                    | WriteError::OutcomeUnknown(_),
                ) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Waits until all running members have applied the same, and compares their states.
    pub async fn converge(&self) {
        until("the same applied position everywhere", || {
            let applied: Vec<_> =
                self.replicas().map(|r| (r.status().applied, r.status().last_log)).collect();
            let (first, last) = applied[0];
            (first.is_some() && first == last && applied.iter().all(|other| *other == applied[0]))
                .then_some(())
        })
        .await;
        let hashes: Vec<_> = self.replicas().map(Replica::state_hash).collect();
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    }
}

pub fn put(key: &str, value: impl Into<Value>) -> Command {
    let operation = Operation::Put {
        key: key.to_string().into(),
        value: value.into(),
        condition: Condition::None,
    };
    Command { synced: false, session: None, operations: vec![operation] }
}

/// Writes at this replica, and retries while it answers that nothing was proposed since no member
/// leads: a new leader says so until its followers first answer.
pub async fn write(replica: &Replica, command: Command) -> WriteOutcome {
    loop {
        match replica.write(command.clone()).await {
            Err(WriteError::NoLeader) => tokio::task::yield_now().await,
            outcome => return outcome.unwrap(),
        }
    }
}

pub async fn value(replica: &Replica, key: &str) -> Option<Bytes> {
    replica.engine().get(GROUP, key.as_bytes()).await.unwrap().map(|(_, value)| value)
}

pub async fn format(folder: &TempDir, slot: u16, incarnation: u64) {
    let geometry = Geometry::for_total(96 << 20).unwrap();
    let identity = Identity { cluster: CLUSTER.into(), slot, incarnation };
    FileDirectory::create(folder.path(), &geometry, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let directory = FileDirectory::open(folder.path(), Backend::Threads).unwrap();
    Engine::format(&directory, geometry, &identity).await.unwrap();
}

pub async fn open(path: &Path) -> Engine {
    open_with(path, 64 << 20, Mode::Device).await
}

async fn open_with(path: &Path, log_cache_bytes: u64, mode: Mode) -> Engine {
    // Each open has its own boot nonce, as where the nonce is random.
    static BOOT_NONCES: AtomicU64 = AtomicU64::new(1);
    let options = || Options {
        salvage: true,
        log_cache_bytes,
        ..Options::new(mode, KernelBootId(7), BOOT_NONCES.fetch_add(1, Ordering::SeqCst))
    };
    let attempt = || async {
        let directory = FileDirectory::open(path, Backend::Threads).unwrap();
        Engine::open(Arc::new(directory), None, options()).await
    };
    // The threads of an engine that was just dropped end a moment later.
    let opened = async {
        loop {
            match attempt().await {
                Err(cairn_engine::Error::InUse { .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await
                }
                opened => return opened.unwrap(),
            }
        }
    };
    tokio::time::timeout(WAIT_LIMIT, opened).await.expect("the directory stays in use")
}
