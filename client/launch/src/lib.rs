//! Server processes of a cluster on this machine: for `cairn dev`, tests and benchmarks.
//!
//! ```text
//! hold     ports that stay reserved, also while no server listens
//! Members  who listens where: the text of each member's configuration
//! Server   a process: started with a configuration and a log file, stopped, killed
//! ```
//!
//! What holds here: a started process ends with its [`Server`]. The crate knows nothing of Cairn but
//! the keys of a configuration and how `cairn serve` is called.
#![forbid(unsafe_code)]

mod config;
mod ports;
mod process;

pub use config::{Member, Members, quoted};
pub use ports::{HeldPort, hold};
pub use process::{Server, command, log_end, run, serve};
pub use rustix::process::Signal;
