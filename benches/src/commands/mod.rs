//! One file per command: its arguments, the sides that it measures, and its assertions.

pub mod amplification;
pub mod cluster;
pub mod engine;
pub mod experiments;
pub mod index;
pub mod lossy;
pub mod peers;
pub mod syscalls;
pub mod table;
