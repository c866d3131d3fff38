//! Between members: the protocol, its client, and the checks that a message must pass.
//!
//! What holds here: every request and every answer names cluster, sender and receiver, and both
//! sides check; a message that a member could not have sent is refused before it reaches openraft;
//! every wait has a time limit.

mod append;
mod client;
mod connection;
mod duplicate;
mod fetch;
mod hello;
pub(crate) mod identity;
mod join;
pub(crate) mod messages;
mod peer;
mod policy;
pub(crate) mod receiver;
mod recover;
mod sender;
pub(crate) mod terms;

pub(crate) use client::Connections;
pub(crate) use fetch::Peers;
pub(crate) use hello::hello;
#[cfg(test)]
pub(crate) use identity::PROTOCOL;
pub(crate) use identity::{PeerIdentity, REFUSED_IDENTITY};
pub(crate) use join::{PendingJoin, ask_to_join};
pub(crate) use messages::AckMode;
pub(crate) use peer::addresses;
pub(crate) use policy::SendPolicy;
pub(crate) use receiver::SnapshotReceiver;
pub(crate) use recover::ask_to_recover;
