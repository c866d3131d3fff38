//! Real `cairn` processes on loopback.
//!
//! One binary, so that the crate's dependencies are compiled only once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod access;
mod alerts;
mod backup;
mod backup_schedule;
mod bad_input;
#[cfg(feature = "experiments")]
mod bench_disk;
mod browser;
mod clean_stop;
mod command_line;
mod container;
mod copy;
mod damage;
mod dashboard;
mod debug_bundle;
mod deployments;
mod dev;
mod doctor;
mod failure_domains;
mod first_minutes;
mod floors;
mod game_day;
mod grow;
mod health;
mod import;
mod kill_under_load;
mod log;
mod lost_identity;
mod many;
mod membership;
mod metrics;
mod new_disk;
mod nvme;
mod outage;
mod packages;
mod prometheus;
mod ranges;
mod readers;
mod reload;
mod scans;
mod service_manager;
mod status_page;
mod streams;
mod support;
mod tls;
mod top;
mod unsafe_recovery;
mod upgrade;
mod watch;
mod watch_command;
mod wire;
