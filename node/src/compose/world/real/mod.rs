//! Files, sockets, and the services that need real sockets.

mod backups;
mod contract;
mod crowd;
mod domains;
mod handshakes;
mod incoming;
mod probes;
mod receiving;
mod restore;
mod sending;
mod status_page;
mod threads;
mod under_way;

use super::files::Progress;
use super::{Environment, cannot_listen, log_end, request_bytes_max, resolve, server};
use crate::admission::memory::{Budget, Pace};
use crate::config::NodeConfig;
use crate::doctor::MemoryPlan;
use crate::durability::Durability;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::platform;
use crate::service::{KvService, Parts, Stop};
pub(in crate::compose) use backups::Backups;
pub use backups::{SaveError, Saved, members_of, save, senders};
use cairn_client::proto::kv_server::KvServer;
use cairn_client::proto::operator_server::OperatorServer;
use cairn_engine::io::{Backend, FileDirectory};
use cairn_engine::{Engine, Geometry, Growth, Identity, Inspection};
use cairn_raft::PeerService;
use cairn_tls::Port;
use futures::{FutureExt, StreamExt};
pub(in crate::compose) use handshakes::Handshaker;
use incoming::{ConnectionSlots, HANDSHAKE_TIMEOUT, Incoming, Origin, PREFACE_BYTES};
use rand::RngExt;
use receiving::Receive;
pub use restore::{RestoredMember, restore};
use sending::Sending;
use status_page::StatusPage;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
pub(in crate::compose) use threads::ClientThreads;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::service::InterceptorLayer;
use tonic::{Request, Status};
use tracing::{info, warn};
use under_way::UnderWay;

/// Calls under way on one connection. The bound exists because a request takes memory before it can
/// be refused. More calls wait at the client; a multiplexed stream is one call.
const CLIENT_STREAMS: u32 = 32;

/// What a client may send on a stream, and on a connection, before a byte of it is taken. It lies in
/// the transport's memory, where no budget sees it.
const CLIENT_STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CLIENT_WINDOW_BYTES: u32 = 512 << 10;

/// Memory of a stream beside its headers: its state in the transport, its task and its buffers. The
/// libraries' own services take larger buffers than ours.
const STREAM_BYTES: usize = 24 << 10;
const PROBE_STREAM_BYTES: usize = 48 << 10;

/// The most bytes of a request to describe the service or to ask for its health: its answers repeat
/// parts of it.
const PROBE_BYTES: usize = 4 << 10;

/// The most bytes of an operator's request.
const OPERATOR_BYTES: usize = 4 << 20;

/// How long a request may take to arrive.
const MESSAGE_TIME: Duration = Duration::from_secs(30);

/// The pace at which clients must take their answers while reads of others wait for memory. A
/// client that lets several HTTP/2 windows fill up and then takes them all at once is not slow.
const READ_PACE: Pace = Pace {
    rate_bytes: 64 << 10,
    over: Duration::from_secs(3),
    interval: Duration::from_millis(500),
};

/// For a clean stop: how long the last bytes of answers may take to be sent, and clients to close
/// their connections after GOAWAY.
const GOAWAY_TIME: Duration = Duration::from_millis(100);

/// How often the main thread's delay is measured.
const DELAY_INTERVAL: Duration = Duration::from_millis(20);

/// The most descriptors of the process that each port takes, in hundredths; the rest is for files.
const CLIENTS_PERCENT: u64 = 75;
const PEERS: ConnectionSlots = ConnectionSlots { percent: 12, most: 1024 };
const WATCHERS: ConnectionSlots = ConnectionSlots { percent: 6, most: 128 };

pub(in crate::compose) type Listener = TcpListener;

pub(in crate::compose) async fn bind(
    address: &str,
    purpose: &'static str,
    key: &'static str,
) -> Result<Listener, Error> {
    let bound = match resolve(address).await {
        Ok(resolved) => TcpListener::bind(resolved).await,
        Err(error) => Err(error),
    };
    bound.map_err(|error| cannot_listen(address, purpose, key, &error))
}

pub(in crate::compose) fn address_of(listener: &Listener) -> Result<SocketAddr, Error> {
    listener
        .local_addr()
        .map_err(|error| cannot_listen("the bound socket", "anyone", "listen", &error))
}

fn incoming(
    listener: Listener,
    served: (&'static str, &'static str),
    slots: &ConnectionSlots,
    first_bytes: usize,
    (handshaker, port): (&Handshaker, Port),
) -> Incoming {
    let (handshakes, most) = handshaker.of(port, slots.of(platform::descriptors()));
    Incoming::new(listener, served, most, first_bytes, HANDSHAKE_TIMEOUT).secured(handshakes)
}

/// Puts into each request who sends it.
fn introduce(mut request: Request<()>) -> Result<Request<()>, Status> {
    if let Some(Origin { accounts, remote }) = request.extensions().get::<Origin>().cloned() {
        request.extensions_mut().insert(remote);
        if let Some(accounts) = accounts {
            request.extensions_mut().insert(accounts);
        }
    }
    Ok(request)
}

pub(in crate::compose) async fn serve_clients(
    listener: Listener,
    parts: Parts,
    service: KvService,
    handshaker: Arc<Handshaker>,
) {
    let Parts {
        config, replica, election_blocked_state, access, budgets, stopping, metrics, ..
    } = parts;
    let slow = tokio::spawn(budgets.reads.clone().close_slow(READ_PACE));
    let (health, health_service) = tonic_health::server::health_reporter();
    let watcher = tokio::spawn(probes::report_health(health, replica, election_blocked_state));
    let server = server()
        .max_concurrent_streams(Some(CLIENT_STREAMS))
        .initial_stream_window_size(CLIENT_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CLIENT_WINDOW_BYTES);
    let mut server = server.layer(InterceptorLayer::new(introduce));
    let operator = OperatorServer::new(service.clone());
    let kv = KvServer::new(service)
        .max_decoding_message_size(request_bytes_max(&config))
        .max_encoding_message_size(usize::MAX);
    let receive = Receive { time: MESSAGE_TIME, access };
    let most = request_bytes_max(&config);
    let health_service = health_service.max_decoding_message_size(PROBE_BYTES);
    let under_way = UnderWay::default();
    let mut router = server
        .add_service(receive.service(Sending::awaited(kv, &under_way), (STREAM_BYTES, most)))
        .add_service(
            receive.service(Sending::awaited(operator, &under_way), (STREAM_BYTES, OPERATOR_BYTES)),
        )
        .add_service(
            receive.probe(Sending::unawaited(health_service), (PROBE_STREAM_BYTES, PROBE_BYTES)),
        );
    match probes::reflection() {
        Ok(reflection) => {
            let reflection = reflection.max_decoding_message_size(PROBE_BYTES);
            router = router.add_service(
                receive.probe(Sending::unawaited(reflection), (PROBE_STREAM_BYTES, PROBE_BYTES)),
            );
        }
        Err(error) => warn!(%error, "gRPC reflection is not served"),
    }
    let slots = ConnectionSlots { percent: CLIENTS_PERCENT, most: config.limits.max_connections };
    let served = ("clients", "listen.client");
    let port = (&*handshaker, Port::Clients);
    let incoming = incoming(listener, served, &slots, PREFACE_BYTES, port);
    let incoming = incoming.counted(metrics.connections()).charged(budgets.clone()).stream();
    let stop = stopping.clone().map(|_| ());
    let ending = end_connections(stopping, under_way, budgets.reads, config.timing.shutdown);
    let mut served = Box::pin(router.serve_with_incoming_shutdown(incoming, stop));
    let end = tokio::select! {
        biased;
        end = &mut served => end,
        () = ending => served.await,
    };
    watcher.abort();
    slow.abort();
    log_end("clients", end);
}

/// Once the server stops, waits for the requests under way, at most `limit`, and closes what is
/// open then. HTTP/2 has told the clients before to send no more (GOAWAY), so those that answer have
/// closed by themselves, except where a stream of theirs is idle.
async fn end_connections(stopping: Stop, under_way: UnderWay, reads: Budget, limit: Duration) {
    // It is dropped if the node is.
    let _ = stopping.await;
    if tokio::time::timeout(limit, under_way.none()).await.is_err() {
        warn!("requests were still under way when `timing.shutdown` ended; they are cut off");
    }
    tokio::time::sleep(GOAWAY_TIME).await;
    reads.end_connections();
}

pub(in crate::compose) async fn serve_peers(
    listener: Listener,
    parts: Parts,
    handshaker: Arc<Handshaker>,
) {
    let Parts { replica, metrics, .. } = parts;
    let (served, port) = (("the other members", "listen.peer"), (&*handshaker, Port::Peers));
    let first_bytes = PeerService::FIRST_BYTES;
    let connections = incoming(listener, served, &PEERS, first_bytes, port);
    let connections = connections.counted(metrics.connections()).stream();
    let connections = connections.map(|Ok(connection)| {
        let remote = connection.remote().clone();
        (connection, remote)
    });
    replica.peer_service().serve(connections).await;
}

pub(in crate::compose) fn serve_watchers(
    listener: Option<Listener>,
    parts: &Parts,
    service: KvService,
    handshaker: &Handshaker,
) -> Option<JoinHandle<()>> {
    let (handshakes, slots) = handshaker.of(Port::Http, WATCHERS.of(platform::descriptors()));
    let secured = handshakes.is_some();
    let Parts { replica, election_blocked_state, metrics, .. } = parts.clone();
    listener.map(|listener| {
        let address = listener.local_addr();
        let loopback = address.is_ok_and(|address| address.ip().to_canonical().is_loopback());
        let page = StatusPage::new(parts, service, status_page::Port { secured, loopback });
        let page = page.routes();
        let router = probes::router(replica, election_blocked_state, metrics, secured, page);
        let served = ("HTTP", "listen.http");
        let incoming = Incoming::new(listener, served, slots, 1, probes::REQUEST_TIME);
        let incoming = incoming.counted(parts.metrics.connections());
        tokio::spawn(probes::serve(incoming.secured(handshakes).yielding(), router))
    })
}

/// The task that checks whether devices and filesystem still keep completed writes, in mode `device`.
pub(in crate::compose) fn watch_device(parts: &Parts) -> Option<JoinHandle<()>> {
    let directory = parts.config.data_directory.clone();
    let ask = move || crate::doctor::observe(&directory);
    let (contract, engine) = (parts.durability.contract?, parts.replica.engine().clone());
    Some(tokio::spawn(contract::watch(engine, contract, contract::POLL_INTERVAL, ask)))
}

/// The task that measures how late the main thread is.
pub(in crate::compose) fn watch_delay(metrics: &Metrics) -> Option<JoinHandle<()>> {
    Some(tokio::spawn(crate::delay::measure(metrics.delay(), DELAY_INTERVAL)))
}

/// The task that logs which voters fail together, while this node leads and so knows all.
pub(in crate::compose) fn watch_failure_domains(parts: &Parts) -> Option<JoinHandle<()>> {
    Some(tokio::spawn(domains::watch(parts.replica.clone(), parts.durability.window)))
}

pub(in crate::compose) fn durability(config: &NodeConfig) -> Result<Durability, Error> {
    Durability::of(config)
}

/// What this machine lacks of memory once the directory is full of keys.
pub(in crate::compose) fn memory_shortage(config: &NodeConfig) -> Option<String> {
    crate::doctor::memory_shortage(&config.data_directory, MemoryPlan::of(config)?)
}

pub(super) fn from_files(config: &NodeConfig) -> Result<Environment, Error> {
    let backend = config.storage.backend;
    let spawn = |ring| drop(tokio::spawn(ring));
    let directory = FileDirectory::open_as_task(&config.data_directory, backend, spawn)?;
    let boot_id_file = &config.storage.boot_id_file;
    let boot = cairn_engine::io::boot_id_from(boot_id_file).map_err(|error| {
        let what =
            format!("the kernel boot id in {} (storage.boot_id_file)", boot_id_file.display());
        unreadable(&what, &error)
    })?;
    let kernel = boot.fingerprint();
    let boot = match crate::doctor::histories(&config.data_directory) {
        Ok(devices) => {
            info!(
                devices = devices.join("; "),
                "a change of the devices since the last start counts as a power cut, like a new kernel boot id"
            );
            boot.with_devices(&devices)
        }
        Err(reason) => {
            info!(
                reason,
                "the devices below the data directory cannot be seen: only the kernel boot id shows a power cut"
            );
            boot
        }
    };
    Ok(Environment { directory: Arc::new(directory), boot, kernel, seed: rand::random() })
}

/// Inspects a data directory that no node has open; with `values`, every value too. Writes nothing.
///
/// # Errors
/// `Engine`, if there is no data directory, or a node has it open.
pub async fn inspect(directory: &Path, values: bool) -> Result<Inspection, Error> {
    let files = FileDirectory::open(directory, Backend::Auto)?;
    let boot =
        cairn_engine::io::boot_id().map_err(|error| unreadable("the kernel boot id", &error))?;
    let boot =
        crate::doctor::histories(directory).map_or(boot, |devices| boot.with_devices(&devices));
    Ok(cairn_engine::inspect(&files, boot, values).await?)
}

/// Creates a data directory of [`crate::config::StorageConfig::size_bytes`] bytes for this cluster
/// and slot, writes all of it, and syncs it.
///
/// # Errors
/// `Engine`, if the directory is not empty or the files cannot be created. A directory whose
/// creation was interrupted is not a data directory: [`Environment::from_files`] refuses it, and the
/// next call begins anew.
pub async fn format(config: &NodeConfig, progress: Progress<'_>) -> Result<Identity, Error> {
    let incarnation = rand::rng().random_range(1..=Identity::MAX_INCARNATION);
    let identity = Identity { cluster: config.cluster.clone(), slot: config.slot, incarnation };
    format_for(config, &identity, progress).await?;
    Ok(identity)
}

/// The same, for this identity.
pub(super) async fn format_for(
    config: &NodeConfig,
    identity: &Identity,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let path = &config.data_directory;
    let geometry = config.storage.sizing().geometry()?;
    // Until the superblock is written, it keeps another format away.
    let _created = FileDirectory::create(path, &geometry, progress)?;
    let directory = FileDirectory::open(path, config.storage.backend)?;
    Ok(Engine::format(&directory, geometry, identity).await?)
}

/// Enlarges the data directory of a stopped node to
/// [`crate::config::StorageConfig::size_bytes`] bytes. Returns the sizes before and after.
///
/// # Errors
/// `Engine`: if a process uses the directory, if it would shrink, if there is too little space, or
/// if `progress` ends the work; then it has the size that it had. After a crash as well, and the
/// next call begins again.
pub async fn grow(
    config: &NodeConfig,
    progress: Progress<'_>,
) -> Result<(Geometry, Geometry), Error> {
    let path = &config.data_directory;
    let directory = FileDirectory::open(path, config.storage.backend)?;
    let expected = (config.cluster.clone(), config.slot);
    let growth = Growth::begin(&directory, Some(&expected), config.storage.sizing()).await?;
    let (from, to) = (growth.from(), growth.to());
    FileDirectory::grow(path, &from, &to, progress)?;
    growth.record(&directory).await?;
    Ok((from, to))
}

fn unreadable(what: &str, error: &std::io::Error) -> Error {
    Error::Platform(format!("{what} cannot be read: {error}"))
}
