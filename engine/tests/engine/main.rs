//! The engine as its users see it, over a disk that loses, tears and damages what is not synced.
//!
//! One binary: what each test needs of the crate is compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod behaviour;
mod crash;
mod failed_sync;
mod inspect;
mod install;
mod lost_identity;
mod misreads;
mod reuse;
mod room;
mod salvage;
mod space;
mod support;
