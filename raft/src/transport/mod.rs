//! Between members: the protocol, its client, and what a message must be before it is taken.
//!
//! What holds here: every request names cluster, sender and receiver, every answer too, and both sides check; a message
//! that a member could not have sent is refused before it reaches openraft; nothing waits without an end.

mod append;
mod client;
mod connection;
mod fetch;
mod hello;
pub(crate) mod identity;
mod join;
pub(crate) mod messages;
mod peer;
mod policy;
pub(crate) mod receiver;
mod recover;
mod repeat;
mod sender;
pub(crate) mod terms;

pub(crate) use client::Connections;
pub(crate) use fetch::Peers;
pub(crate) use hello::hello;
#[cfg(test)]
pub(crate) use identity::PROTOCOL;
pub(crate) use identity::{OUTCAST, PeerIdentity};
pub(crate) use join::{Applicant, ask_to_join};
pub(crate) use messages::Regime;
pub(crate) use peer::addresses;
pub(crate) use policy::SendPolicy;
pub(crate) use receiver::SnapshotReceiver;
pub(crate) use recover::ask_to_recover;
