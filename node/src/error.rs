//! Why a node did not start or stop.

use crate::config::ConfigError;
use cairn_engine::Mode;

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
    /// The mode that was asked for is not justified where the data directory is.
    #[error(
        "mode `{mode}` is refused for {directory}: {reasons}; {way_out}. `cairn doctor {directory}` shows all that was found"
    )]
    ModeRefused {
        /// The mode.
        mode: Mode,
        /// The data directory.
        directory: String,
        /// What speaks against it.
        reasons: String,
        /// What can be done.
        way_out: String,
    },
    /// No mode is justified where the data directory is.
    #[error(
        "no mode's promise can be kept in {directory}: {reasons}. `cairn doctor {directory}` shows all that was found"
    )]
    NothingJustified {
        /// The data directory.
        directory: String,
        /// What speaks against all, each with the way out.
        reasons: String,
    },
    /// The place of the data directory cannot be examined.
    #[error(transparent)]
    Doctor(#[from] crate::doctor::Error),
    /// The system is too old, or not Linux.
    #[error("{0}")]
    Platform(String),
}
