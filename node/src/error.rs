//! Why a node did not start or stop.

use crate::config::ConfigError;
use cairn_engine::Mode;

/// The cluster's name in a directory that is being restored. No configuration has such a name.
pub(crate) const RESTORING: &str = "(being restored)";

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
    /// The data directory is damaged in a way that nothing on this machine repairs.
    #[error("data directory {directory} is damaged: {damage}; {way_out}")]
    Damaged {
        /// The data directory.
        directory: String,
        /// What the engine found.
        damage: Box<cairn_engine::Error>,
        /// What can be done.
        way_out: &'static str,
    },
    /// A restore did not end: nobody knows what of the state the directory holds.
    #[error(
        "data directory {directory} is half restored ({why}): remove the files in it, and restore the backup again"
    )]
    HalfRestored {
        /// The data directory.
        directory: String,
        /// What happened.
        why: String,
    },
    /// The configuration is not one to restore with. Nothing was changed.
    #[error("{0}")]
    NotRestored(&'static str),
    /// Replication could not be started or stopped.
    #[error(transparent)]
    Replica(#[from] cairn_raft::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {purpose} (`{key}`): {reason}")]
    Listen {
        /// The address, as configured.
        address: String,
        /// Who connects to it: clients, members, HTTP.
        purpose: &'static str,
        /// The configuration key.
        key: &'static str,
        /// The system's message, and what to do.
        reason: String,
    },
    /// The configured mode is not justified for the data directory.
    #[error(
        "mode `{mode}` is refused for {directory}: {reasons}; {way_out}. `cairn doctor {directory}` shows every finding"
    )]
    ModeRefused {
        /// The mode.
        mode: Mode,
        /// The data directory.
        directory: String,
        /// The findings against the mode.
        reasons: String,
        /// What can be done.
        way_out: String,
    },
    /// No mode is justified for the data directory.
    #[error(
        "no mode's promise can be kept in {directory}: {reasons}. `cairn doctor {directory}` shows every finding"
    )]
    NothingJustified {
        /// The data directory.
        directory: String,
        /// The findings against every mode, each with what would change it.
        reasons: String,
    },
    /// The data directory's location cannot be examined.
    #[error(transparent)]
    Doctor(#[from] crate::doctor::Error),
    /// The kernel is too old, or this is not Linux.
    #[error("{0}")]
    Platform(String),
}

/// What to do about a damaged directory if other members have its data.
const REPLACED: &str = "the other members have its data: move the directory away and run `cairn format`; the node then joins \
                        again in its slot";
/// What to do in a cluster of one.
const ONLY: &str = "no other member has its data: keep the directory and restore a copy of it, or discard its data and run \
                    `cairn format` for another directory";

impl Error {
    /// Converts an error of opening the engine, and says what the operator can do about damage.
    pub(crate) fn of_open(error: cairn_engine::Error, directory: String, others: bool) -> Error {
        use cairn_engine::Error::{Corrupt, Foreign, Invalid};
        match error {
            Corrupt(_) | Invalid(_) => Error::Damaged {
                directory,
                damage: Box::new(error),
                way_out: if others { REPLACED } else { ONLY },
            },
            Foreign { location, found, .. } if found.contains(RESTORING) => {
                Error::HalfRestored { directory: location, why: "its restore did not end".into() }
            }
            error => Error::Engine(error),
        }
    }
}
