//! Clusters of replicas in one process, on loopback.
//!
//! One binary, so that what each test needs of the crate is compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cluster;
mod failure;
mod forced;
mod forming;
mod history;
mod membership;
mod ranges;
mod repair;
mod replacement;
mod snapshot;
mod support;
