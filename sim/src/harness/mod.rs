//! Runs one seed: plans it, builds the cluster, lets clients and faults loose, heals it and judges it.
//!
//! ```text
//!   run ── plan (everything random, from the seed)
//!    ├── cluster   machines: host, disk, lives of the node
//!    ├── network   links, loss, latency
//!    ├── faults    what goes wrong, and its end
//!    ├── observe   looks at every node all the time
//!    └── finale    heal, serve, converge; a replicated node that lost power refuses to start
//! ```

mod cluster;
mod faults;
mod finale;
mod logging;
mod network;
mod observe;
mod plan;
mod report;
mod run;

pub use plan::Plan;
pub use report::Report;
pub use run::{RunOptions, run_seed};
