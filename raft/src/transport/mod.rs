//! Between members: the protocol, its client, and the checks that a message must pass.
//!
//! What holds here: every request and every answer names cluster, sender and receiver, and both
//! sides check; a message that a member could not have sent is refused before it reaches openraft;
//! every wait has a time limit; an address says where to connect, never who answers.

mod addresses;
mod append;
mod ask;
mod client;
mod connection;
mod fetch;
pub(crate) mod formation;
pub(crate) mod generation;
pub(crate) mod identity;
mod link;
mod machines;
pub(crate) mod messages;
mod peer;
mod policy;
mod read_index;
pub(crate) mod receiver;
mod sender;
pub(crate) mod terms;
mod throttle;
pub(crate) mod wire;

pub(crate) use addresses::{Addresses, is_storable};
pub use ask::StopVerdict;
pub(crate) use ask::{
    Answer, Contact, PendingJoin, ask, ask_safe_to_stop, ask_to_join, ask_to_recover, cause, find,
    hello, refuses,
};
pub(crate) use client::Connections;
pub(crate) use fetch::Peers;
#[cfg(test)]
pub(crate) use identity::PROTOCOL;
pub(crate) use identity::{PeerIdentity, REFUSED_IDENTITY};
pub(crate) use messages::AckMode;
pub(crate) use policy::SendPolicy;
pub(crate) use read_index::ReadIndexes;
pub(crate) use receiver::SnapshotReceiver;
pub(crate) use throttle::Throttle;
