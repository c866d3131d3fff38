//! Between members: the protocol, its client and its server.

pub(crate) mod proto;
mod service;

pub use service::PeerService;
