//! One file per command: its arguments, the sides that it measures, and its assertions.

pub mod aged;
pub mod amplification;
pub mod cluster;
pub mod engine;
pub mod experiments;
pub mod growth;
pub mod index;
pub mod lossy;
pub mod overload;
pub mod peers;
pub mod restart;
pub mod syscalls;
pub mod table;
pub mod upkeep;
