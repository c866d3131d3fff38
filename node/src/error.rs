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
    /// The data directory is damaged in a way that nothing on this machine mends.
    #[error("data directory {directory} is damaged: {damage}; {way_out}")]
    Damaged {
        /// The data directory.
        directory: String,
        /// What the engine found.
        damage: Box<cairn_engine::Error>,
        /// What can be done.
        way_out: &'static str,
    },
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

/// What to do about a damaged directory whose data other members have.
const REPLACED: &str = "the other members have its data: move it away and run `cairn format`, and the node takes its place again \
                        by itself";
/// The same of a cluster of one.
const ONLY: &str = "nobody else has its data: keep it as it is and restore a copy of it, or give up what it held with `cairn format` \
                    in another place";

impl Error {
    /// Why an engine did not open, told to whoever has to act.
    pub(crate) fn of_open(error: cairn_engine::Error, directory: String, others: bool) -> Error {
        use cairn_engine::Error::{Corrupt, Invalid};
        match error {
            Corrupt(_) | Invalid(_) => Error::Damaged {
                directory,
                damage: Box::new(error),
                way_out: if others { REPLACED } else { ONLY },
            },
            error => Error::Engine(error),
        }
    }
}
