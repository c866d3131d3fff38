//! Real `cairn` processes on loopback.
//!
//! One binary: what each test needs of the crate is compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bad_input;
mod command_line;
mod damage;
mod doctor;
mod floors;
mod kill_under_load;
mod lost_identity;
mod new_disk;
mod outage;
mod readers;
mod recover;
mod support;
mod wire;
