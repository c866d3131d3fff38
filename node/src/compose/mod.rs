//! The composition root: assembles engine, replica, services and servers, for the shipped binary
//! and for the simulation. Nothing else assembles them. Only [`world`] knows which of the two it
//! serves.
//!
//! What holds here: the data directory is judged before any socket opens, and every socket is open
//! before the replica starts. If a step fails, the node stops what it already started.

mod world;

pub use world::{Environment, backups, files};

use crate::access::{AccessTable, Entries};
use crate::admission::requests::Budgets;
use crate::config::{BackupConfig, Limits, NodeConfig, ScrubConfig};
use crate::durability::Durability;
use crate::error::Error;
use crate::metrics::{BackupStatus, Format, Metrics};
use crate::outage::{ElectionBlockedState, Watch};
use crate::service::{KvService, Parts};
use cairn_engine::{Engine, Identity, MemberState, Options};
use cairn_raft::{
    GROUP, Machine, MemberAddress, NodeId, Replica, ReplicaConfig, await_replaceable,
};
use cairn_tls::Tls;
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
use world::{
    Backups, ClientThreads, Handshaker, address_of, bind, memory_shortage, serve_clients,
    serve_peers, serve_watchers, watch_delay, watch_device, watch_failure_domains,
};

/// How often the node tries again to read an unreadable identity.
const IDENTITY_RETRY: Duration = Duration::from_secs(5);

/// How long closing the connections of clients may take, once no request is under way.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A running member.
pub struct Node {
    parts: Parts,
    service: KvService,
    running: Mutex<Option<Running>>,
}

struct Running {
    stop: oneshot::Sender<()>,
    clients: JoinHandle<()>,
    /// They end with the node.
    _client_threads: ClientThreads,
    backups: Backups,
    others: Vec<JoinHandle<()>>,
}

impl Node {
    /// Opens the data directory, binds the addresses, starts replication and serves.
    ///
    /// # Errors
    /// Any [`Error`]. Then nothing keeps running, and the data directory is unchanged.
    pub async fn start(config: NodeConfig, environment: Environment) -> Result<Node, Error> {
        config.validate()?;
        let tls = config.tls()?;
        let durability = world::durability(&config)?;
        let engine = open_engine(&config, &durability, &environment, tls.as_ref()).await?;
        let of_environment = (environment.seed, environment.kernel);
        match assemble(config, durability, of_environment, engine.clone(), tls).await {
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
        &self.parts.replica
    }

    /// The member's engine.
    pub fn engine(&self) -> &Engine {
        self.parts.replica.engine()
    }

    /// The configuration it was started with.
    pub fn config(&self) -> &NodeConfig {
        &self.parts.config
    }

    /// Its metrics in the OpenMetrics text format, as `/metrics` serves them.
    ///
    /// # Errors
    /// None that its own metrics cause.
    pub fn metrics(&self) -> Result<String, std::fmt::Error> {
        self.parts.metrics.render(Format::OpenMetrics)
    }

    /// The sentence about a blocked election, if it is blocked as far as this member can learn.
    pub fn election_blocked(&self) -> Option<String> {
        self.parts.election_blocked_state.of(&self.parts.replica)
    }

    /// Replaces [`NodeConfig::access`] while the node runs. Streams that are open are judged by the
    /// new entries from their next call on.
    pub fn set_access(&self, entries: &Entries) {
        self.parts.access.replace(entries);
    }

    /// The limits of requests that the node runs with.
    pub fn limits(&self) -> Limits {
        self.service.limits()
    }

    /// Applies what else can change while the node runs: limits of requests, as
    /// [`Limits::reloaded`] gives them, the scrubber's rate, and the schedule of backups.
    pub fn reload(&self, limits: &Limits, scrub: &ScrubConfig, backup: Option<&BackupConfig>) {
        self.service.set_limits(limits);
        self.parts.budgets.resize(limits);
        self.parts.replica.set_scrub_rate(scrub.rate_bytes);
        if let Some(running) = &*self.running.lock() {
            running.backups.reload(backup);
        }
    }

    /// Resolves with the reason when the member fails and stops; never while it serves.
    pub async fn stopped(&self) -> String {
        self.parts.replica.wait_stopped().await
    }

    /// Stops in this order: a backup under way is broken off; leadership is handed over while clients
    /// are still answered, and are told who leads from then on; no connection is accepted any more, and
    /// idle ones are closed; requests under way have [`crate::config::Timing::shutdown`] to end;
    /// replication stops; the engine syncs, and records a clean shutdown. A second call does nothing.
    ///
    /// The story behind the order: the listener was closed first, and then the node waited ten seconds
    /// for a client that only watched its health. It led all that time, and nobody took a write.
    ///
    /// # Errors
    /// `Replica` and `Engine`; the rest is stopped nevertheless.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let Some(running) = self.running.lock().take() else {
            return Ok(());
        };
        running.backups.stop();
        self.parts.replica.leave().await;
        let _ = running.stop.send(());
        let limit = self.parts.config.timing.shutdown + CLOSE_LIMIT;
        if tokio::time::timeout(limit, running.clients).await.is_err() {
            warn!("some connections of clients could not be closed in time; they are cut off");
        }
        let replica = self.parts.replica.shutdown().await;
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

fn options(config: &NodeConfig, durability: &Durability, environment: &Environment) -> Options {
    let storage = &config.storage;
    Options {
        sync_interval: storage.sync_interval,
        sync_bytes: storage.sync_bytes,
        io_timeout: storage.io_timeout,
        log_cache_bytes: storage.log_cache_bytes,
        value_cache_bytes: storage.value_cache_bytes,
        salvage: config.has_peers(),
        ..Options::new(durability.bound, environment.boot, environment.seed)
    }
}

async fn open_engine(
    config: &NodeConfig,
    durability: &Durability,
    environment: &Environment,
    tls: Option<&Tls>,
) -> Result<Engine, Error> {
    let options = options(config, durability, environment);
    let expected = Some((config.cluster.clone(), config.slot));
    let directory = &environment.directory;
    let others = config.has_peers();
    loop {
        match Engine::open(Arc::clone(directory), expected.clone(), options.clone()).await {
            Err(lost) if lost.is_identity_lost() && others => {
                begin_empty(config, environment, &lost, tls).await?
            }
            opened => {
                return opened.map_err(|error| Error::of_open(error, directory.location(), others));
            }
        }
    }
}

/// Opens the data directory of a stopped node for a look. Nothing is written before
/// [`Engine::begin`]. The caller closes the engine.
///
/// # Errors
/// Any [`Error`] of a start.
pub async fn survey_stopped(
    config: &NodeConfig,
    environment: &Environment,
) -> Result<Engine, Error> {
    config.validate()?;
    let durability = world::durability(config)?;
    // What verifies is shown, whether others are left that could have the rest or not.
    let options = Options { salvage: true, ..options(config, &durability, environment) };
    let expected = Some((config.cluster.clone(), config.slot));
    let opened = Engine::survey(Arc::clone(&environment.directory), expected, options).await;
    opened.map_err(|error| Error::of_open(error, environment.directory.location(), true))
}

/// Replaces the unreadable identity of this directory. Nobody knows what that identity promised, so
/// the directory counts as a lost disk: it begins empty under a new identity as soon as a leader
/// confirms that the others do not need its data. If the identity becomes readable before, the
/// directory stays as it is: when the storage of several members is away for a while, a member must
/// not wait for a leader that the others cannot elect for the same reason.
async fn begin_empty(
    config: &NodeConfig,
    environment: &Environment,
    lost: &cairn_engine::Error,
    tls: Option<&Tls>,
) -> Result<(), Error> {
    let incarnation =
        StdRng::seed_from_u64(environment.seed).random_range(1..=Identity::MAX_INCARNATION);
    let identity = Identity { cluster: config.cluster.clone(), slot: config.slot, incarnation };
    let node = NodeId::new(identity.slot, identity.incarnation);
    let directory = environment.directory.location();
    warn!(directory, %lost, %node, "the identity of this data directory cannot be read: the directory counts as lost, and begins empty \
          under another identity as soon as a leader confirms that the other members do not need its data; until then nothing is \
          overwritten. To keep what it holds, move it away and run `cairn format`");
    let seeds = config.seeds();
    let readable = async {
        tokio::time::sleep(IDENTITY_RETRY).await;
        while !Engine::reads_identity(environment.directory.as_ref()).await {
            tokio::time::sleep(IDENTITY_RETRY).await;
        }
    };
    let replaceable_voter = await_replaceable(&config.cluster, node, &seeds, tls.cloned());
    if let Either::Left(_) = select(pin!(readable), pin!(replaceable_voter)).await {
        info!(directory, "the identity of this data directory can be read again");
        return Ok(());
    }
    let formatted = Engine::format_again(environment.directory.as_ref(), &identity).await;
    formatted.map_err(|error| Error::of_open(error, directory, true))
}

async fn assemble(
    config: NodeConfig,
    durability: Durability,
    (seed, kernel): (u64, u64),
    engine: Engine,
    tls: Option<Tls>,
) -> Result<Node, Error> {
    let clients = bind(&config.client_address, "clients", "listen.client").await?;
    let peers = bind(&config.peer_address, "the other members", "listen.peer").await?;
    let http = match &config.http_address {
        Some(address) => Some(bind(address, "HTTP", "listen.http").await?),
        None => None,
    };
    let client_threads = ClientThreads::start(&config).map_err(|error| {
        Error::Platform(format!("threads for clients (threads.clients): {error}"))
    })?;
    let mut backups = Backups::start(&config)
        .map_err(|error| Error::Platform(format!("a thread for backups: {error}")))?;
    let handshaker = Handshaker::start(tls.clone())
        .map_err(|error| Error::Platform(format!("a thread for TLS handshakes: {error}")))?;
    let handshaker = Arc::new(handshaker);
    let (client_address, peer_address) = (address_of(&clients)?, address_of(&peers)?);
    let advertised = MemberAddress {
        client: advertised(&config.advertise_client, &config.client_address, client_address),
        peer: advertised(&config.advertise_peer, &config.peer_address, peer_address),
    };
    let settings = ReplicaConfig {
        advertised: advertised.clone(),
        ..replica_config(&config, &durability, &engine, (seed, kernel), tls.clone())
    };
    if is_empty(&engine)
        && let Some(words) = config.alone()
    {
        warn!(
            "{words}. If this is a member of an existing cluster, stop it, give it `join`, and format it again"
        );
    }
    let replica = Replica::start(settings, engine).await?;
    let election_blocked_state = ElectionBlockedState::default();
    let budgets = Budgets::new(&config.limits);
    let backup_status = config.backup.as_ref().map(|backup| BackupStatus::shared(backup.every));
    let metrics = Metrics::new(
        replica.clone(),
        election_blocked_state.clone(),
        budgets.clone(),
        tls.clone(),
        backup_status.clone(),
        config.storage.sync_interval,
    );
    let metrics = Arc::new(metrics);
    let (stop, stopping) = oneshot::channel();
    let access = AccessTable::new(tls.is_some(), &config.access);
    let stopping = stopping.shared();
    let parts = Parts {
        config,
        durability,
        replica,
        election_blocked_state,
        access,
        budgets,
        metrics,
        tls,
        stopping,
    };
    let service = KvService::new(&parts);
    let peers = serve_peers(peers, parts.clone(), Arc::clone(&handshaker));
    let mut others = vec![tokio::spawn(peers)];
    others.extend(serve_watchers(http, &parts, service.clone(), &handshaker));
    others.extend(watch_device(&parts));
    others.extend(watch_delay(&parts.metrics));
    others.extend(watch_outages(&parts, &advertised.client));
    others.extend(watch_failure_domains(&parts));
    backups.run(&parts, backup_status);
    let clients = serve_clients(clients, parts.clone(), service.clone(), handshaker);
    let clients = client_threads.handle().spawn(clients);
    announce(&parts);
    let Parts { config, durability, .. } = &parts;
    info!(node = %parts.replica.node_id(), cluster = %config.cluster, mode = %durability.words(), client = %client_address,
          peer = %peer_address, "serving");
    let running = Running { stop, clients, _client_threads: client_threads, backups, others };
    let running = Mutex::new(Some(running));
    Ok(Node { parts, service, running })
}

/// Says in the log what the node promises, and what that relies on.
fn announce(parts: &Parts) {
    let Parts { config, durability, tls, .. } = parts;
    match tls {
        Some(tls) => {
            info!(name = %tls.name(), "every connection needs a certificate of this cluster")
        }
        None => warn!(
            "`insecure = true`: connections have no certificates; whoever reaches the ports can read, write, and act as a member"
        ),
    }
    info!("mode {}", durability.promise());
    for remark in durability.remarks() {
        info!(mode = %durability.mode, "{remark}");
    }
    for reason in &durability.warnings {
        warn!(mode = %durability.mode, "the mode's promise relies on something that the machine does not show: {}", reason.sentence());
    }
    if let Some(shortage) = memory_shortage(config) {
        warn!("keys may outgrow memory, on all members alike: {shortage}");
    }
}

/// Whether the directory was formatted, and belonged to no cluster since.
fn is_empty(engine: &Engine) -> bool {
    let log = engine.log_bounds(GROUP);
    let nothing = log.last.is_none() && log.purged.is_none() && engine.applied(GROUP).is_none();
    nothing && engine.vote(GROUP).is_none() && engine.member_state() == MemberState::Active
}

/// Where others reach a listener. A port that the system chose is known only now.
fn advertised(configured: &Option<String>, listen: &str, bound: SocketAddr) -> String {
    match configured {
        Some(address) => address.clone(),
        None if listen.ends_with(":0") => bound.to_string(),
        None => listen.to_owned(),
    }
}

/// The task that reports a blocked election, and starts an unsafe recovery if the configuration
/// allows it.
fn watch_outages(parts: &Parts, own: &str) -> Option<JoinHandle<()>> {
    let config = &parts.config;
    if !config.has_peers() {
        return None;
    }
    let initial = config.members.values().map(|member| member.client.clone());
    let seeds = [own.to_owned()].into_iter().chain(initial).collect();
    let watch = Watch::new(
        parts.replica.clone(),
        (seeds, config.tls_files()),
        config.unsafe_recovery_automatic,
        parts.election_blocked_state.clone(),
    );
    Some(tokio::spawn(watch.run()))
}

fn replica_config(
    config: &NodeConfig,
    durability: &Durability,
    engine: &Engine,
    (seed, kernel): (u64, u64),
    tls: Option<Tls>,
) -> ReplicaConfig {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // The log shares the data area with the keys. Keep at most this much of it, so that small
    // directories do not fill up.
    let most = engine.status().data_bytes / 8;
    let defaults = ReplicaConfig::new(durability.bound, config.members.clone());
    ReplicaConfig {
        formation_mode: durability.mode,
        heartbeat_ms: millis(config.timing.heartbeat),
        election_min_ms: millis(config.timing.election_min),
        election_max_ms: millis(config.timing.election_max),
        log_retain_bytes: config.storage.log_retain_bytes.min(most),
        log_retain_entries: config.storage.log_retain_entries,
        history_retain_bytes: config.watch.retain_bytes.min(most),
        history_retain_time: config.watch.retain_time,
        checkpoint_bytes: defaults.checkpoint_bytes.min(most),
        largest_entry_bytes: config.limits.max_request_bytes as u64,
        max_sessions: config.limits.max_sessions,
        seeds: config.join.clone(),
        scrub_rate_bytes: config.scrub.rate_bytes,
        scrub_cycle: config.scrub.cycle,
        machine: Machine { kernel, failure_domain: config.failure_domain.clone() },
        seed,
        tls,
        ..defaults
    }
}
