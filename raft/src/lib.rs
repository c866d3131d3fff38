//! Cairn's replication: openraft over [`cairn_engine`], which is both the log and the state machine.
//!
//! ```text
//!          write / read_barrier                  peers
//!                  │                               │
//!            ┌─────▼─────┐     ┌────────┐    ┌─────▼─────┐
//!            │  Replica  ├────►│openraft│◄───┤  network  │ handshake, append, vote, snapshot
//!            └───────────┘     └─┬────┬─┘    └─────┬─────┘
//!                                │    │        ┌───▼──┐
//!                     log_store ─┘    │        │ Gate │ withholds votes of a forgetful member
//!                        │       state_machine └──────┘
//!                        │            │  conditions, sessions
//!                        ▼            ▼
//!                        cairn_engine::Engine ◄── repair: mends damaged values from the peers; scrubber
//! ```
//!
//! What holds here:
//! - votes, membership entries and the first append of each leader's term are synced before they are answered;
//! - a restarted leader never resumes its old term;
//! - a replica serves nothing before it has re-applied what it had applied before its restart;
//! - a read is served only after a quorum confirmed the leader in a round that began after the read did;
//! - a command of a session is applied at most once, however often it is repeated;
//! - a message between peers names cluster, sender and receiver, and both sides check.
//!
//! openraft's types stay inside this crate.
#![forbid(unsafe_code)]

mod bootstrap;
mod codec;
mod command;
mod config;
mod convert;
mod error;
mod ids;
mod leadership;
mod log_store;
mod maintenance;
mod metrics;
mod network;
mod policy;
mod progress;
mod read_barrier;
mod rebirth;
mod redundancy;
mod rejoin;
mod repair;
mod replica;
mod runtime;
mod start_records;
mod state_hash;
mod state_machine;
mod status;
mod terms;
mod types;

#[cfg(test)]
mod conformance_tests;

pub use command::{Command, Condition, Operation, OperationResult, Session, Version, WriteOutcome};
pub use config::ReplicaConfig;
pub use error::{Error, ReadError, WriteError};
pub use ids::{GROUP, MemberAddress, NodeId};
pub use log_store::vote_of;
pub use network::{PeerServer, PeerService};
pub use rebirth::await_vacancy;
pub use rejoin::Mandate;
pub use repair::ScrubStatus;
pub use replica::Replica;
#[cfg(madsim)]
pub use runtime::exports::*;
pub use state_machine::Losses;
pub use status::{Member, ReplicaStatus, Role};
