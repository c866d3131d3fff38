//! The client library against a scripted server.
//!
//! One binary, so that the crate's dependencies are compiled only once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod connect;
mod fake;
mod follow;
mod many;
mod operator;
mod ranges;
mod reads;
mod scans;
mod watch;
mod writes;
