//! Why a node did not start or stop.

use crate::config::ConfigError;

/// Every error of starting and stopping a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Engine(#[from] cairn_engine::Error),
    /// Replication could not be started or stopped.
    #[error(transparent)]
    Replica(#[from] cairn_raft::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {purpose} (`{key}`): {reason}")]
    Listen {
        /// The address, as configured.
        address: String,
        /// Who is served there: clients, members, HTTP.
        purpose: &'static str,
        /// The configuration key.
        key: &'static str,
        /// What the system said, and the way out.
        reason: String,
    },
    /// The system is too old, or not Linux.
    #[error("{0}")]
    Platform(String),
}
