//! The world that a node lives in: this machine, or the simulation. The only file of this crate that
//! knows of `cfg(madsim)`: HTTP, health and reflection cannot be mounted in the simulation, and
//! addresses are bound by the simulated network itself.
//!
//! What holds here: both worlds have the same functions; no other file asks which of the two it is in.

#[cfg(not(madsim))]
mod real;
#[cfg(madsim)]
mod simulated;

#[cfg(not(madsim))]
use real as here;
#[cfg(madsim)]
use simulated as here;

pub(super) use here::{
    address_of, bind, durability, serve_clients, serve_peers, serve_watchers, tell_moved, watch_device,
};

use crate::config::NodeConfig;
use crate::error::Error;
use cairn_engine::io::Directory;
use cairn_engine::{BootId, Identity, Inspection};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Server;

/// Room beside keys and values in a request.
const REQUEST_FRAME_BYTES: usize = 1 << 20;
/// HTTP/2 windows, so that one connection can carry many large values at once.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a node gets from the world around it.
#[derive(Clone)]
pub struct Environment {
    /// Its data directory.
    pub directory: Arc<dyn Directory>,
    /// The running kernel.
    pub boot: BootId,
    /// For everything random in the node.
    pub seed: u64,
}

/// Told bytes done and bytes in all while files are made.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

impl Environment {
    /// This machine's: the data directory's files, the running kernel, the system's randomness.
    ///
    /// # Errors
    /// `Engine`, where the directory cannot be opened.
    pub fn from_files(config: &NodeConfig) -> Result<Environment, Error> {
        here::from_files(config)
    }
}

/// Makes a data directory of [`crate::config::StorageConfig::size_bytes`] bytes for this cluster and slot, all of it
/// written. Ends synced.
///
/// # Errors
/// `Engine`, where the directory is not empty or the files cannot be made. A directory whose making did not end is no data directory,
/// and is refused by [`Environment::from_files`].
pub async fn format(config: &NodeConfig, progress: Progress<'_>) -> Result<Identity, Error> {
    here::format(config, progress).await
}

/// Looks at a data directory that no node has open; with `values`, at every value too. Nothing is written.
///
/// # Errors
/// `Engine`, where there is nothing to look at, or a node has it open.
pub async fn inspect(directory: &Path, values: bool) -> Result<Inspection, Error> {
    here::inspect(directory, values).await
}

/// Resolves with the signal's name when the process is asked to end: SIGTERM or SIGINT. Never in a simulation.
///
/// # Errors
/// Where the system does not let signals be watched.
pub async fn termination() -> std::io::Result<&'static str> {
    here::asked_to_end().await
}

/// The greatest request that is decoded; its keys and values are judged after.
fn request_bytes_max(config: &NodeConfig) -> usize {
    config.limits.max_request_bytes.saturating_add(REQUEST_FRAME_BYTES)
}

fn server() -> Server {
    Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

fn log_end(purpose: &'static str, end: Result<(), tonic::transport::Error>) {
    if let Err(error) = end {
        tracing::error!(%error, "the server for {purpose} ended");
    }
}

fn cannot_listen(address: &str, purpose: &'static str, key: &'static str, error: &std::io::Error) -> Error {
    let way_out = match error.kind() {
        std::io::ErrorKind::AddrInUse => "; stop the process that listens there, or choose another port",
        std::io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege, choose another",
        _ => "",
    };
    Error::Listen { address: address.into(), purpose, key, reason: format!("{error}{way_out}") }
}

async fn resolve(address: &str) -> std::io::Result<SocketAddr> {
    let mut found = tokio::net::lookup_host(address.to_string()).await?;
    found.next().ok_or_else(|| std::io::Error::other("the name has no address"))
}
