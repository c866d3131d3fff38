//! One file per command: its arguments, the two sides that it measures, and what it asserts.

pub mod amplification;
pub mod cluster;
pub mod engine;
pub mod syscalls;
