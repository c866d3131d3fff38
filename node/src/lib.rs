//! Cairn's node: one member of a cluster, assembled from engine, replica and services.
//!
//! ```text
//! clients ─► client address ─► service ─┐ write, read_barrier ┌─────────┐ append, apply ┌────────┐
//!                                       ├───────────────────► │ Replica ├─────────────► │ Engine │
//! members ─► peer address ──────────────┘                     └─────────┘               └───▲────┘
//! scrapers ─► http address ─► /live /ready /metrics /status       reads after a barrier ────┘
//! ```
//!
//! [`Node::start`] is the only place that assembles these parts. The binary and the simulation both
//! call it, so the simulation runs the shipped code. Only `compose/world/mod.rs` knows whether it
//! is part of the binary or of the simulation.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod access;
#[doc(hidden)]
pub mod admission;
mod compose;
pub mod config;
mod delay;
pub mod doctor;
pub mod durability;
mod error;
pub mod failure_domains;
pub mod health;
pub mod log;
mod metrics;
pub mod outage;
pub mod platform;
pub mod promise;
mod readiness;
mod service;

pub use compose::{Environment, Node, backups, files, survey_stopped};
pub use config::NodeConfig;
pub use durability::Durability;
pub use error::Error;
