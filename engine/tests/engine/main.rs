//! The engine from its callers' view, on a disk that loses, tears and damages what is not synced.
//!
//! One binary: the dependencies of all tests are compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod behaviour;
mod capacity;
mod carried;
mod close;
mod compaction;
mod crash;
mod failed_sync;
mod fragmentation;
mod grow;
mod inspect;
mod install;
mod lost_identity;
mod misreads;
mod parts;
mod queue;
mod reuse;
mod salvage;
mod sizing;
mod snapshots;
mod space;
mod support;
mod unbegun;
