//! The same servers on the simulated network.

use super::{Environment, cannot_listen, log_end, request_bytes_max, resolve, server};
use crate::config::{BackupConfig, NodeConfig};
use crate::durability::Durability;
use crate::error::Error;
use crate::metrics::{Metrics, SharedBackupStatus};
use crate::service::{KvService, Parts};
use cairn_client::proto;
use cairn_client::proto::kv_server::{Kv, KvServer};
use cairn_client::proto::operator_server::{Operator, OperatorServer};
use cairn_raft::{encoded, stream_until_reset, until_reset};
use cairn_tls::{Remote, Tls};
use futures::{FutureExt, StreamExt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status, Streaming};
use tracing::warn;

pub(in crate::compose) type Listener = SocketAddr;

pub(in crate::compose) async fn bind(
    address: &str,
    purpose: &'static str,
    key: &'static str,
) -> Result<Listener, Error> {
    resolve(address).await.map_err(|error| cannot_listen(address, purpose, key, &error))
}

pub(in crate::compose) fn address_of(listener: &Listener) -> Result<SocketAddr, Error> {
    Ok(*listener)
}

pub(in crate::compose) async fn serve_clients(
    listener: Listener,
    parts: Parts,
    service: KvService,
    _handshaker: Arc<Handshaker>,
) {
    let Parts { config, stopping, .. } = parts;
    let service = OverWire { service, request_bytes: request_bytes_max(&config) };
    let router = server()
        .add_service(
            KvServer::new(service.clone())
                .max_decoding_message_size(request_bytes_max(&config))
                .max_encoding_message_size(usize::MAX),
        )
        .add_service(OperatorServer::new(service));
    log_end("clients", router.serve_with_shutdown(listener, stopping.map(|_| ())).await);
}

/// The service behind a real network: messages travel as bytes, and a handler whose caller is gone
/// is dropped.
#[derive(Clone)]
struct OverWire {
    service: KvService,
    request_bytes: usize,
}

macro_rules! over_wire {
    ($service:ident { $($name:ident: $request:ident => $response:ident,)+ } $($more:tt)*) => {
        #[tonic::async_trait]
        impl $service for OverWire {
            $(
                async fn $name(
                    &self,
                    request: Request<proto::$request>,
                ) -> Result<Response<proto::$response>, Status> {
                    let message = encoded(request.get_ref(), self.request_bytes)?;
                    let answer = until_reset(self.service.$name(request.map(|_| message))).await?;
                    Ok(Response::new(encoded(answer.get_ref(), usize::MAX)?))
                }
            )+

            $($more)*
        }
    };
}

over_wire! {
    Kv {
        hello: HelloRequest => HelloResponse,
        write: WriteRequest => WriteResponse,
        get: GetRequest => GetResponse,
        get_many: GetManyRequest => GetManyResponse,
        list: ListRequest => ListResponse,
        status: StatusRequest => StatusResponse,
        safe_to_stop: SafeToStopRequest => SafeToStopResponse,
    }

    type ScanStream = <KvService as Kv>::ScanStream;

    async fn scan(
        &self,
        request: Request<proto::ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let message = encoded(request.get_ref(), self.request_bytes)?;
        let parts = until_reset(self.service.scan(request.map(|_| message))).await?.into_inner();
        let parts = parts.map(|part| part.and_then(|message| encoded(&message, usize::MAX)));
        Ok(Response::new(stream_until_reset(parts)))
    }

    type MultiplexStream = <KvService as Kv>::MultiplexStream;

    async fn multiplex(
        &self,
        request: Request<Streaming<proto::MultiplexRequest>>,
    ) -> Result<Response<Self::MultiplexStream>, Status> {
        let answers = self.service.multiplex(request).await?.into_inner();
        let answers = answers.map(|answer| answer.and_then(|message| encoded(&message, usize::MAX)));
        Ok(Response::new(stream_until_reset(answers)))
    }

    type WatchStream = <KvService as Kv>::WatchStream;

    async fn watch(
        &self,
        request: Request<Streaming<proto::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let told = self.service.watch(request).await?.into_inner();
        let told = told.map(|told| told.and_then(|message| encoded(&message, usize::MAX)));
        Ok(Response::new(stream_until_reset(told)))
    }
}

over_wire! {
    Operator {
        unsafe_recovery: UnsafeRecoveryRequest => UnsafeRecoveryResponse,
        scrub: ScrubRequest => ScrubResponse,
        change_members: ChangeMembersRequest => ChangeMembersResponse,
        set_mode: SetModeRequest => SetModeResponse,
        move_leader: MoveLeaderRequest => MoveLeaderResponse,
        drain: DrainRequest => DrainResponse,
        finish_upgrade: FinishUpgradeRequest => FinishUpgradeResponse,
    }

    type BackupStream = <KvService as Operator>::BackupStream;

    async fn backup(
        &self,
        request: Request<proto::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let parts = self.service.backup(request).await?.into_inner();
        let parts = parts.map(|part| part.and_then(|message| encoded(&message, usize::MAX)));
        Ok(Response::new(stream_until_reset(parts)))
    }
}

pub(in crate::compose) async fn serve_peers(
    listener: Listener,
    parts: Parts,
    _handshaker: Arc<Handshaker>,
) {
    let listener = match TcpListener::bind(listener).await {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "the other members are not served"),
    };
    let connections = futures::stream::unfold(listener, |listener| async {
        let (stream, address) = listener.accept().await.ok()?;
        Some(((stream, Remote { certificate: None, address: Some(address) }), listener))
    });
    parts.replica.peer_service().serve(connections).await;
}

pub(in crate::compose) fn serve_watchers(
    _listener: Option<Listener>,
    _parts: &Parts,
    _service: KvService,
    _handshaker: &Handshaker,
) -> Option<JoinHandle<()>> {
    None
}

pub(in crate::compose) fn watch_device(_parts: &Parts) -> Option<JoinHandle<()>> {
    None
}

pub(in crate::compose) fn watch_failure_domains(_parts: &Parts) -> Option<JoinHandle<()>> {
    None
}

/// Simulated work takes no time: rarely, to run the code.
pub(in crate::compose) fn watch_delay(metrics: &Metrics) -> Option<JoinHandle<()>> {
    Some(tokio::spawn(crate::delay::measure(metrics.delay(), Duration::from_secs(30))))
}

/// The simulated network has no sockets below its messages, and so no certificates.
pub(in crate::compose) struct Handshaker;

impl Handshaker {
    /// Nothing to start.
    ///
    /// # Errors
    /// None.
    pub(in crate::compose) fn start(_tls: Option<Tls>) -> std::io::Result<Handshaker> {
        Ok(Handshaker)
    }
}

/// The simulation has no threads.
pub(in crate::compose) struct ClientThreads;

impl ClientThreads {
    /// Nothing to start.
    ///
    /// # Errors
    /// None.
    pub(in crate::compose) fn start(_config: &NodeConfig) -> std::io::Result<ClientThreads> {
        Ok(ClientThreads)
    }

    pub(in crate::compose) fn handle(&self) -> tokio::runtime::Handle {
        tokio::runtime::Handle::current()
    }
}

/// The simulation has nowhere to save a backup.
pub(in crate::compose) struct Backups;

impl Backups {
    /// Nothing to start.
    ///
    /// # Errors
    /// None.
    pub(in crate::compose) fn start(_config: &NodeConfig) -> std::io::Result<Backups> {
        Ok(Backups)
    }

    pub(in crate::compose) fn run(&mut self, _parts: &Parts, _status: Option<SharedBackupStatus>) {}

    pub(in crate::compose) fn reload(&self, _new: Option<&BackupConfig>) {}

    pub(in crate::compose) fn stop(self) {}
}

/// The simulated disk keeps the contract of its mode, and there is no machine to examine.
pub(in crate::compose) fn durability(config: &NodeConfig) -> Result<Durability, Error> {
    Ok(Durability::unexamined(config))
}

/// No simulated machine has too little memory.
pub(in crate::compose) fn memory_shortage(_config: &NodeConfig) -> Option<String> {
    None
}

pub(super) fn from_files(_config: &NodeConfig) -> Result<Environment, Error> {
    Err(Error::Platform(
        "the simulation has no files: give the node its parts, or build it without --cfg madsim"
            .into(),
    ))
}
