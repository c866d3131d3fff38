//! Runs one seed: plans it, builds the cluster, lets clients and faults loose, heals it and judges it.
//!
//! ```text
//!   run ── plan (everything random, from the seed)
//!    ├── machine   host, disk, and what became of the node
//!    ├── cluster   all machines, and the lives of the nodes
//!    ├── network   links, loss, latency
//!    ├── kinds     what can go wrong
//!    ├── faults    processes, machines, links, clocks: what goes wrong, and its end
//!    ├── devices   the same for disks
//!    ├── atlas     whose disks may decay, and when
//!    ├── decay     what disks do over time, and reads and scrubs that meet it
//!    ├── fill      a data area without room
//!    ├── conspire  faults that only matter together, in one order, at one moment
//!    ├── unmarked  one more of these: the moment in which a member begins to run ahead of its syncs
//!    ├── straddle  and another: a write and its repeat on either side of a checkpoint and a restart
//!    ├── whole     what a node starts with can be read
//!    ├── script    told instead of drawn: scenarios
//!    ├── live      what a node's keys refer to, straight from its disk
//!    ├── crash_image  what a loss of power would leave at this moment
//!    ├── left_alone  a majority that nothing is done to serves
//!    ├── observe   looks at every node all the time
//!    ├── probe     asks those that must not answer
//!    ├── bare      healed, but for a minority or a slow disk
//!    ├── after_loss  goes on after a person gave something up
//!    └── finale    heal, serve, converge, scrub, lose power while idle
//! ```

mod after_loss;
mod atlas;
mod bare;
mod cluster;
mod conspire;
mod crash_image;
mod decay;
mod devices;
mod disks;
mod faults;
mod fill;
mod finale;
mod kinds;
mod left_alone;
mod live;
mod logging;
mod machine;
mod network;
mod observe;
mod plan;
mod probe;
mod report;
mod run;
mod script;
mod scrub;
mod straddle;
mod unmarked;
mod whole;

pub use kinds::FaultKind;
pub use plan::Plan;
pub use report::Report;
pub use run::{RunOptions, run_seed};
pub use script::{CUT_SHORT, Scenario, run_scenario, scenarios};
