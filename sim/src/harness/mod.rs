//! Runs one seed: plans it, builds the cluster, lets clients and faults loose, heals it and judges it.
//!
//! ```text
//!   run ── plan (everything random, from the seed)
//!    ├── cluster   machines: host, disk, lives of the node
//!    ├── network   links, loss, latency
//!    ├── kinds     what can go wrong
//!    ├── faults    processes, machines, links, clocks: what goes wrong, and its end
//!    ├── devices   the same for disks
//!    ├── conspire  faults that only matter together, in one order, at one moment
//!    ├── script    told instead of drawn: scenarios
//!    ├── observe   looks at every node all the time
//!    └── finale    heal, serve, converge, lose power while idle
//! ```

mod cluster;
mod conspire;
mod devices;
mod disks;
mod faults;
mod finale;
mod kinds;
mod logging;
mod network;
mod observe;
mod plan;
mod report;
mod run;
mod script;

pub use kinds::FaultKind;
pub use plan::Plan;
pub use report::Report;
pub use run::{RunOptions, run_seed};
pub use script::{CUT_SHORT, Scenario, run_scenario, scenarios};
