//! The client library against a server that answers as it is told.
//!
//! One binary: what each test needs of the crate is compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod fake;
mod reads;
mod writes;
