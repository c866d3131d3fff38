//! The environment of a node: this machine, or the simulation. Only this file of the crate uses
//! `cfg(madsim)`. HTTP, health and reflection cannot be mounted in the simulation, and the
//! simulated network binds addresses itself.
//!
//! What holds here: both environments have the same functions, but for [`files`] and [`backups`], and no
//! other file asks in which of the two it runs.

#[cfg(not(madsim))]
mod real;
#[cfg(madsim)]
mod simulated;

#[cfg(not(madsim))]
use real as here;
#[cfg(madsim)]
use simulated as here;

/// What is done to the files of a member that does not run. The simulation has none.
pub mod files {
    #[cfg(not(madsim))]
    pub use super::real::{RestoredMember, format, grow, inspect, restore};
    pub use cairn_engine::io::Progress;
}

/// How the state of a cluster is saved. The simulation has no targets.
pub mod backups {
    #[cfg(not(madsim))]
    pub use super::real::{SaveError, Saved, members_of, save, senders};
}

pub(super) use here::{
    Backups, ClientThreads, Handshaker, address_of, bind, durability, memory_shortage,
    serve_clients, serve_peers, serve_watchers, watch_delay, watch_device, watch_failure_domains,
};

use crate::config::NodeConfig;
use crate::error::Error;
use cairn_engine::KernelBootId;
use cairn_engine::io::Directory;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Server;

/// Bytes of a request beside its keys and values.
const REQUEST_FRAME_BYTES: usize = 1 << 20;
/// HTTP/2 windows, so that one connection can carry many large values at once.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a node gets from its environment.
#[derive(Clone)]
pub struct Environment {
    /// Its data directory.
    pub directory: Arc<dyn Directory>,
    /// The kernel boot id.
    pub boot: KernelBootId,
    /// The same for all nodes on one running kernel.
    pub kernel: u64,
    /// Seeds everything random in the node.
    pub seed: u64,
}

impl Environment {
    /// The environment on this machine: the files of the data directory, the running kernel, the
    /// system's randomness. Storage runs on the runtime of the caller.
    ///
    /// # Errors
    /// `Engine`, if the directory cannot be opened.
    pub fn from_files(config: &NodeConfig) -> Result<Environment, Error> {
        here::from_files(config)
    }
}

/// The largest request that is decoded. Its keys and values are checked afterwards.
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

fn cannot_listen(
    address: &str,
    purpose: &'static str,
    key: &'static str,
    error: &std::io::Error,
) -> Error {
    let way_out = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; stop the process that listens there, or choose another port"
        }
        std::io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need a privilege, choose another"
        }
        _ => "",
    };
    Error::Listen { address: address.into(), purpose, key, reason: format!("{error}{way_out}") }
}

async fn resolve(address: &str) -> std::io::Result<SocketAddr> {
    let mut found = tokio::net::lookup_host(address.to_string()).await?;
    found.next().ok_or_else(|| std::io::Error::other("the name has no address"))
}
