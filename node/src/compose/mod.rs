//! The composition root: engine, replica, services and servers are put together here and nowhere else, for the shipped
//! binary and for the simulation. Which of the two it is, [`world`] knows.
//!
//! What holds here: the data directory is judged before any socket opens; every socket is open before the replica
//! starts; what was started is stopped again when a later step fails.

mod world;

pub use world::{Environment, Progress, format, inspect, termination};

use crate::admission::memory::Reads;
use crate::config::NodeConfig;
use crate::durability::Durability;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::outage::{Outlook, Watch};
use crate::service::{KvService, Stop};
use cairn_engine::{Engine, Identity, Options};
use cairn_raft::{NodeId, Replica, ReplicaConfig, await_vacancy};
use futures::FutureExt;
use futures::future::{Either, select};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{info, warn};
use world::{address_of, bind, serve_clients, serve_peers, serve_watchers, tell_moved, watch_device};

/// How often an identity that cannot be read is looked at again.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// A running member.
pub struct Node {
    config: NodeConfig,
    durability: Durability,
    replica: Replica,
    metrics: Arc<Metrics>,
    outlook: Outlook,
    addresses: Addresses,
    running: Mutex<Option<Running>>,
}

/// Where a node listens, with ports as the system gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Addresses {
    client: SocketAddr,
    peer: SocketAddr,
    http: Option<SocketAddr>,
}

struct Running {
    stop: oneshot::Sender<()>,
    clients: JoinHandle<()>,
    others: Vec<JoinHandle<()>>,
}

impl Node {
    /// Opens the data directory, binds the addresses, starts replication and serves.
    ///
    /// # Errors
    /// Any [`Error`]; then nothing is left running, and the data directory is as it was.
    pub async fn start(config: NodeConfig, environment: Environment) -> Result<Node, Error> {
        config.validate()?;
        let durability = world::durability(&config)?;
        let engine = open_engine(&config, &durability, &environment).await?;
        match assemble(config, durability, environment.seed, engine.clone()).await {
            Ok(node) => Ok(node),
            Err(error) => {
                if let Err(closing) = engine.close().await {
                    warn!(%closing, "the engine did not close cleanly after a failed start");
                }
                Err(error)
            }
        }
    }

    /// The member's replica.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The member's engine.
    pub fn engine(&self) -> &Engine {
        self.replica.engine()
    }

    /// The configuration it was started with.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The mode that it runs in, and how it came to it.
    pub fn durability(&self) -> &Durability {
        &self.durability
    }

    /// Where clients are served.
    pub fn client_address(&self) -> SocketAddr {
        self.addresses.client
    }

    /// Where the other members are served.
    pub fn peer_address(&self) -> SocketAddr {
        self.addresses.peer
    }

    /// Where HTTP is served, if anywhere.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.addresses.http
    }

    /// Its metrics in the OpenMetrics text format, as `/metrics` serves them.
    ///
    /// # Errors
    /// None that its own metrics cause.
    pub fn metrics(&self) -> Result<String, std::fmt::Error> {
        self.metrics.render()
    }

    /// What a cluster waits for that has no leader and elects none by itself, as far as this member can learn.
    pub fn waits_for(&self) -> Option<String> {
        self.outlook.of(&self.replica)
    }

    /// Resolves with the reason when the member stops by itself; never while it serves.
    pub async fn stopped(&self) -> String {
        self.replica.wait_stopped().await
    }

    /// Stops accepting, gives requests under way [`crate::config::Timing::shutdown`] to end, stops replication, and
    /// closes the engine, which syncs and marks a clean shutdown. A second call does nothing.
    ///
    /// # Errors
    /// `Replica` and `Engine`; the rest is stopped all the same.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let Some(running) = self.running.lock().take() else {
            return Ok(());
        };
        let _ = running.stop.send(());
        if tokio::time::timeout(self.config.timing.shutdown, running.clients).await.is_err() {
            warn!("requests were still under way when their time was up; they are cut off");
        }
        let replica = self.replica.shutdown().await;
        for server in running.others {
            server.abort();
        }
        self.engine().close().await?;
        replica?;
        info!("stopped cleanly");
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(running) = self.running.lock().take() {
            for server in running.others.into_iter().chain([running.clients]) {
                server.abort();
            }
        }
    }
}

async fn open_engine(
    config: &NodeConfig,
    durability: &Durability,
    environment: &Environment,
) -> Result<Engine, Error> {
    let storage = &config.storage;
    let options = Options {
        sync_interval: storage.sync_interval,
        sync_bytes: storage.sync_bytes,
        io_timeout: storage.io_timeout,
        log_cache_bytes: storage.log_cache_bytes,
        salvage: config.members.len() > 1,
        ..Options::new(durability.mode, environment.boot, environment.seed)
    };
    let expected = Some((config.cluster.clone(), config.slot));
    let directory = &environment.directory;
    let others = config.members.len() > 1;
    loop {
        match Engine::open(Arc::clone(directory), expected.clone(), options.clone()).await {
            Err(lost) if lost.is_identity_lost() && others => begin_empty(config, environment, &lost).await?,
            opened => return opened.map_err(|error| Error::of_open(error, directory.location(), others)),
        }
    }
}

/// Nobody knows any more what this directory's member promised: it is a lost disk, and begins empty under another identity, as soon as a
/// leader says that the others do without it. It is left as it is where its identity can be read after all: a member whose storage was away
/// for a while must not wait for a leader that the others, for the same reason, cannot elect.
async fn begin_empty(
    config: &NodeConfig,
    environment: &Environment,
    lost: &cairn_engine::Error,
) -> Result<(), Error> {
    let incarnation = StdRng::seed_from_u64(environment.seed).random_range(1..=Identity::MAX_INCARNATION);
    let identity = Identity { cluster: config.cluster.clone(), slot: config.slot, incarnation };
    let node = NodeId::new(identity.slot, identity.incarnation);
    let directory = environment.directory.location();
    warn!(directory, %lost, %node, "the identity of this data directory cannot be read: it counts as lost, and begins empty under \
          another one as soon as a leader says that the others do without it; until then nothing is overwritten. To keep what it \
          holds, move it away and run `cairn format`");
    let readable = async {
        tokio::time::sleep(READ_AGAIN).await;
        while !Engine::reads_identity(environment.directory.as_ref()).await {
            tokio::time::sleep(READ_AGAIN).await;
        }
    };
    let vacancy = await_vacancy(&config.cluster, node, &config.members);
    if let Either::Left(_) = select(pin!(readable), pin!(vacancy)).await {
        info!(directory, "the identity of this data directory can be read again");
        return Ok(());
    }
    let begun = Engine::format_again(environment.directory.as_ref(), &identity).await;
    begun.map_err(|error| Error::of_open(error, directory, true))
}

async fn assemble(
    config: NodeConfig,
    durability: Durability,
    seed: u64,
    engine: Engine,
) -> Result<Node, Error> {
    let clients = bind(&config.client_address, "clients", "listen.client").await?;
    let peers = bind(&config.peer_address, "the other members", "listen.peer").await?;
    let http = match &config.http_address {
        Some(address) => Some(bind(address, "HTTP", "listen.http").await?),
        None => None,
    };
    let addresses = Addresses {
        client: address_of(&clients)?,
        peer: address_of(&peers)?,
        http: http.as_ref().map(address_of).transpose()?,
    };

    let replica = Replica::start(replica_config(&config, &durability, &engine, seed), engine).await?;
    let outlook = Outlook::default();
    let reads = Reads::new(config.limits.max_read_bytes);
    let metrics = Arc::new(Metrics::new(replica.clone(), outlook.clone(), reads.clone()));
    let (stop, stopping) = oneshot::channel();
    let stopping: Stop = stopping.shared();
    let (counted, told) = (Arc::clone(&metrics), stopping.clone());
    let said = (replica.clone(), outlook.clone());
    let service = KvService::new(config.clone(), durability.clone(), said, counted, &reads, told);

    let mut others = vec![tokio::spawn(serve_peers(peers, replica.clone()))];
    others.extend(serve_watchers(http, (&replica, &outlook), Arc::clone(&metrics)));
    others.extend(watch_device(&config, &durability, replica.engine()));
    others.extend(tell_moved(&config, &replica));
    others.extend(watch_outages(&config, &replica, &outlook)?);
    let clients = serve_clients(clients, config.clone(), service, replica.clone(), reads, stopping);
    let clients = tokio::spawn(clients);
    let identity = replica.node_id();
    for remark in durability.remarks() {
        info!(mode = %durability.mode, "{remark}");
    }
    for reason in &durability.warnings {
        warn!(mode = %durability.mode, "the mode's promise rests on what is not shown: {}", reason.sentence());
    }
    info!(node = %identity, cluster = %config.cluster, mode = %durability.words(), client = %addresses.client,
          peer = %addresses.peer, "serving");
    let running = Mutex::new(Some(Running { stop, clients, others }));
    Ok(Node { config, durability, replica, metrics, outlook, addresses, running })
}

/// Whoever says that the cluster waits for a decision, and takes it where that is not left to a person.
fn watch_outages(
    config: &NodeConfig,
    replica: &Replica,
    outlook: &Outlook,
) -> Result<Option<JoinHandle<()>>, Error> {
    if config.members.len() < 2 {
        return Ok(None);
    }
    let endpoints = config.members.values().map(|member| member.client.clone()).collect();
    let watch = Watch::new(replica.clone(), endpoints, config.recover_automatically, outlook.clone());
    let watch = watch.map_err(|error| Error::Platform(error.to_string()))?;
    Ok(Some(tokio::spawn(watch.run())))
}

fn replica_config(config: &NodeConfig, durability: &Durability, engine: &Engine, seed: u64) -> ReplicaConfig {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // The log shares the data area with the keys: never keep so much of it that small directories fill up.
    let room = engine.status().data_bytes / 8;
    let defaults = ReplicaConfig::new(durability.mode, config.members.clone());
    ReplicaConfig {
        heartbeat_ms: millis(config.timing.heartbeat),
        election_min_ms: millis(config.timing.election_min),
        election_max_ms: millis(config.timing.election_max),
        log_retain_bytes: config.storage.log_retain_bytes.min(room),
        log_retain_entries: config.storage.log_retain_entries,
        checkpoint_bytes: defaults.checkpoint_bytes.min(room),
        max_sessions: config.limits.max_sessions,
        scrub_rate_bytes: config.scrub.rate_bytes,
        scrub_cycle: config.scrub.cycle,
        seed,
        ..defaults
    }
}
