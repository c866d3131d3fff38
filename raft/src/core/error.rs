//! What can go wrong in a replica. Each error tells the caller what became of its request.

use super::ids::{MemberAddress, NodeId};
use super::version::TooOld;
use cairn_engine::LogId;
use tonic::Status;

/// An error of starting or stopping a replica.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The settings contradict each other.
    #[error("the replica's settings are invalid: {0}")]
    Config(String),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] cairn_engine::Error),
    /// What the engine holds cannot be read as a replica's state.
    #[error("the stored state cannot be read: {0}")]
    State(String),
    /// This build is too old for the cluster.
    #[error(transparent)]
    TooOld(#[from] TooOld),
    /// Replication stopped.
    #[error("replication stopped: {0}")]
    Stopped(String),
}

/// Why a write has no outcome, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Another member leads. Nothing was proposed.
    #[error("this member does not lead; {} at {} does", leader.0, leader.1.client)]
    NotLeader {
        /// Who leads.
        leader: (NodeId, MemberAddress),
    },
    /// No member is known to lead. Nothing was proposed.
    #[error("no member leads at the moment")]
    NoLeader,
    /// It was proposed, and leadership ended before the outcome was known: it may still be applied,
    /// or never.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// The results of the command's session are no longer kept. This command was not applied.
    #[error("the session's results are no longer kept; this write was not applied")]
    SessionExpired,
    /// This member lacks space for it. Nothing was proposed.
    #[error("{0}")]
    Full(String),
    /// The command breaks a limit. Nothing was proposed.
    #[error("{0}")]
    Invalid(String),
    /// A build of the cluster's version may not be able to read the command. Nothing was proposed.
    #[error(
        "the cluster's version is {cluster}, and {what} needs {needed}: run a release of that version on every member, then \
             `cairn upgrade finish`"
    )]
    NeedsVersion {
        /// What the command asks for.
        what: &'static str,
        /// The cluster's version, as far as the log is applied here.
        cluster: u32,
        /// The version that it needs.
        needed: u32,
    },
    /// The cluster is new or restored, and what it begins with is not in its log yet. Nothing was proposed.
    #[error(
        "the cluster is new or restored, what it begins with is not in its log yet, and {what} needs version {needed}: try again in some seconds, when the first \
             leader knows what every member runs"
    )]
    NoVersionYet {
        /// What the command asks for.
        what: &'static str,
        /// The version that it needs.
        needed: u32,
    },
    /// This member has stopped serving.
    #[error("this member has stopped: {0}")]
    Stopped(String),
}

/// Why a linearizable read cannot be served here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Another member leads.
    #[error("this member does not lead; {} at {} does", leader.0, leader.1.client)]
    NotLeader {
        /// Who leads.
        leader: (NodeId, MemberAddress),
    },
    /// No member is known to lead, or a quorum does not answer.
    #[error("no member leads at the moment")]
    NoLeader,
    /// This member has stopped serving.
    #[error("this member has stopped: {0}")]
    Stopped(String),
}

/// Why the changes behind an entry are not told here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// Not all of them are kept.
    #[error(
        "the changes behind entry {after} are no longer kept, only those behind {oldest}; read the state at {now}, and \
         go on behind that"
    )]
    Compacted {
        /// The entry that was asked for.
        after: LogId,
        /// The changes behind this entry are kept.
        oldest: LogId,
        /// The last applied entry.
        now: LogId,
    },
    /// The entry is none of this history: an unsafe recovery discarded it, or it was never committed.
    /// Or it is named by its index alone, and after an unsafe recovery nobody knows of which history it is.
    #[error(
        "entry {after} is not in the history of this cluster, or may be of one that was discarded; read the state, and \
         go on behind that"
    )]
    Discarded {
        /// The entry that was asked for.
        after: LogId,
    },
    /// This member has not applied the entry yet.
    #[error("entry {after} is not applied here yet")]
    Ahead {
        /// The entry that was asked for.
        after: LogId,
    },
    /// This member may lack what was acknowledged, or hold what was discarded: no leader vouches for it.
    #[error(transparent)]
    Barrier(#[from] ReadError),
    /// This member recovers: it may have lost some of what it acknowledged.
    #[error(
        "this member may lack what it acknowledged, and tells no changes until it has recovered"
    )]
    Recovering,
    /// The log's record of an entry cannot be read.
    #[error("the changes of entry {at} cannot be read: {reason}")]
    Unreadable {
        /// The entry.
        at: LogId,
        /// Why not.
        reason: String,
    },
}

/// Bytes that are not a valid entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an entry: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

impl From<Malformed> for Status {
    fn from(error: Malformed) -> Status {
        Status::invalid_argument(error.to_string())
    }
}
