//! Real `cairn` processes for tests: started on loopback ports and in a temporary folder, and
//! killed at the end of the test.

pub mod certificates;
pub mod clients;
mod cluster;
pub mod held;
pub mod load;
mod lock;
pub mod machine;
mod network;
mod program;
pub mod raw;
pub mod stranger;
mod terminal;

pub use cluster::{Cluster, Hosts, value_of};
pub use lock::only_run;
pub use network::Network;
pub use program::{
    CAIRN, Ran, code, command, finish, finish_within, hold, http_get, json_of, refused, run, watch,
};
pub use terminal::terminal;

use std::time::Duration;

/// Longer than anything takes, even on a slow and busy machine. It only turns a hang into a
/// failure.
pub const WAIT_LIMIT: Duration = Duration::from_secs(180);
/// For clusters whose leader does not die: a busy machine costs it no leadership, and the members count one
/// another as there. Without a quorum it notices after twice the longer time.
pub const SLOW_ELECTIONS: &str = "timing.election_min = \"10s\"\ntiming.election_max = \"20s\"\n";
/// The same for clusters whose leader dies, which then wait for as long.
pub const UNHURRIED_ELECTIONS: &str =
    "timing.election_min = \"3s\"\ntiming.election_max = \"6s\"\n";
/// The timeout of a client command. It is shorter, so that the command can report why it failed.
const COMMAND_TIMEOUT: &str = "120s";
pub const POLL: Duration = Duration::from_millis(10);
