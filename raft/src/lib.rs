//! Cairn's replication: openraft over [`cairn_engine`], which is both the log and the state
//! machine.
//!
//! Six floors; each uses only those below it:
//!
//! ```text
//! replica      the handle: start, write, read, status; what members call; maintenance, scrub
//! membership   who belongs: forming the cluster, joining and leaving it, replacing a lost identity
//! durability   who may vote and acknowledge: standing, recovery, ack modes, handing leadership over
//! transport    the peer protocol: connections, append streams, snapshots in and out, the fence
//! storage      openraft's log and state machine over the engine; repair of damaged values
//! core         ids, commands, errors, messages, openraft's types, runtime, the simulation's hooks
//! ```
//!
//! openraft runs between them: it calls `storage` and `transport`, and the floors above call it.
//!
//! What holds here:
//! - votes, membership entries and the first append of each leader's term are synced before they
//!   are answered;
//! - a restarted leader never resumes its old term;
//! - a replica serves nothing before it has re-applied what it had applied before its restart;
//! - a read is served only after a quorum confirmed the leader in a round that began after the read
//!   did;
//! - a command of a session is applied at most once, however often it is retried;
//! - a message between peers names cluster, sender and receiver, and both sides check;
//! - what the build before this one cannot read is written only once the cluster's version allows it,
//!   and a build that speaks less than that version does not run.
//!
//! openraft's types stay inside this crate.
#![forbid(unsafe_code)]

mod core;
mod durability;
mod membership;
mod replica;
mod storage;
mod transport;

pub use crate::core::command::{
    Command, Condition, Operation, OperationResult, RANGE_KEYS_MAX, Session, Version, WriteOutcome,
};
pub use crate::core::config::ReplicaConfig;
pub use crate::core::error::{Error, HistoryError, ReadError, WriteError};
#[allow(unused_imports, reason = "the simulation alone has a hold on the hooks")]
pub use crate::core::hooks::exports::*;
pub use crate::core::ids::{GROUP, MemberAddress, NodeId};
pub use crate::core::machine::Machine;
pub use crate::core::quorum::{is_quorum, majority};
pub use crate::core::version::{MemberVersion, TooOld, VERSION, Versions};
pub use durability::UnsafeRecovery;
pub use membership::{
    ChangeError, MemberChange, Restored, Survivor, await_replaceable, force_new_cluster,
};
pub use replica::{
    EntryChanges, FollowerLag, Member, Part, PeerService, Replica, ReplicaStatus, Role, ScrubStatus,
};
pub use storage::history::{HistoryStatus, KeyChange, LoggedValue};
pub use storage::log_store::vote_of;
pub use storage::mode_in_force::Modes;
pub use storage::state_machine::{Item, KeyRange, StateReader};
pub use transport::StopVerdict;

/// The messages between members, for tests that forge some.
#[doc(hidden)]
pub mod peer_proto {
    pub use crate::core::proto::*;
    pub use crate::transport::wire::client::forge;
}
pub use storage::state_machine::UnsafeRecoveries;
