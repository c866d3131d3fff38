//! Runs one seed: plans it, builds the cluster, runs clients and faults, heals the cluster and
//! checks it.
//!
//! ```text
//!   run ── plan (everything random, from the seed)
//!    ├── machine   host, disk, and the state of the node
//!    ├── cluster   all machines, and the processes of the nodes
//!    ├── network   links, loss, latency
//!    ├── clients   the clients, on hosts of their own
//!    ├── kinds     the kinds of faults
//!    ├── faults    faults of processes, machines, links and clocks: their beginning and their end
//!    ├── devices   failing, stalling and misreading disks
//!    ├── disks     lost disks, lost identities, older copies of disks
//!    ├── atlas     whose disks may decay, and when
//!    ├── decay     decay of disks, and reads and scrubs that find it
//!    ├── fill      a full data area
//!    ├── half_connected  networks that connect only some of the members
//!    ├── combined  faults that only matter together, in one order, at one moment
//!    ├── cut_before_flag  another: a power cut while a member sets its unsynced-ack flag
//!    ├── retry_across_restart  another: a write and its retry on either side of a checkpoint and a restart
//!    ├── starts_readable  every value that a node starts with can be read
//!    ├── script    scripted instead of random: scenarios
//!    ├── live      the values that a node's keys refer to, read straight from its disk
//!    ├── carried   the values that only the journal on a disk holds
//!    ├── crash_image  what a power cut at this moment would leave
//!    ├── left_alone  a majority that is undisturbed and connected serves
//!    ├── observe   checks every node all the time
//!    ├── probe     reads at members that must not answer
//!    ├── taker     somebody who takes the state from members, as a backup does
//!    ├── states    the states that they sent
//!    ├── watchers  those who follow what changes
//!    ├── watcher   one of them
//!    ├── watches   what they heard
//!    ├── operator  what an operator asks of whoever leads: members, mode, leader
//!    ├── membership  members that are removed and added
//!    ├── promises  when an acknowledged write is synced
//!    ├── minority_down  a minority is down, or one disk is slow
//!    ├── missing   who was missing when an operator decided, and may say that its entries were discarded
//!    ├── after_unsafe_recovery  continues after an unsafe recovery
//!    └── finale    heal, serve, converge, scrub, lose power while idle
//! ```

mod after_unsafe_recovery;
mod atlas;
mod carried;
mod clients;
mod clock;
mod cluster;
mod combined;
mod crash_image;
mod cut_before_flag;
mod decay;
mod devices;
mod disks;
mod faults;
mod fill;
mod finale;
mod half_connected;
mod kinds;
mod left_alone;
mod live;
mod lives;
mod logging;
mod machine;
mod membership;
mod minority_down;
mod missing;
mod moves;
mod network;
mod observe;
mod operator;
mod plan;
mod probe;
mod promises;
mod removed;
mod report;
mod retry_across_restart;
mod run;
mod script;
mod scrub;
mod starts_readable;
mod states;
mod taker;
mod watcher;
mod watchers;
mod watches;

pub use kinds::FaultKind;
pub use plan::Plan;
pub use report::Report;
pub use run::{RunOptions, run_scenario, run_seed};
pub use script::{CUT_SHORT, Scenario, scenarios};
pub use watches::WATCH_EVENTS;
