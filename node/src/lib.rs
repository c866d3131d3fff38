//! Cairn's node: one member of a cluster, put together from engine, replica and services.
//!
//! ```text
//!   clients ──► client address ──► service ──┐ write, read_barrier    ┌──────────┐ append, apply ┌────────┐
//!                                            ├──────────────────────► │ Replica  ├─────────────► │ Engine │
//!   members ──► peer address ────────────────┘                        └──────────┘               └───▲────┘
//!   scrapers ─► http address ──► /live /ready /metrics                    reads after a barrier ─────┘
//! ```
//!
//! [`Node::start`] is the only place where the parts meet: the binary and the simulation both call it, so the
//! simulation runs the shipped code. The file `compose/world/mod.rs` is the only one here that knows which of the two
//! it is in.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod admission;
mod compose;
pub mod config;
pub mod doctor;
pub mod durability;
mod error;
mod metrics;
pub mod outage;
pub mod platform;
pub mod promise;
mod service;

pub use compose::{Environment, Node, Progress, format, inspect, termination};
pub use config::NodeConfig;
pub use durability::Durability;
pub use error::Error;
