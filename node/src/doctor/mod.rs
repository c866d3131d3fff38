//! The doctor: finds out on this machine whether a completed write in a directory survives a power
//! cut, and names the modes that this justifies.
//!
//! ```text
//! /proc, /sys, /dev, probes ──► facts ──► aspects ──► verdict
//!   device filesystem nvme kernel  │                     │
//!   memory                         └──► findings ──► report: findings, reasons, verdict
//! ```
//!
//! What holds here: the doctor changes nothing on the machine. What cannot be read counts as
//! unknown, with the reason, and never as good.

mod aspects;
mod device;
mod facts;
mod filesystem;
mod findings;
mod kernel;
mod medium;
mod memory;
mod nvme;
mod reason;
mod report;
mod verdict;

pub use device::{Layer, Medium, Queue};
pub use facts::{Facts, Location, State, Unprobed};
pub use filesystem::{Filesystem, FilesystemKind};
pub use findings::{Finding, Grade};
pub use kernel::Kernel;
pub use memory::{MemoryLimit, MemoryPlan};
pub use nvme::{NvmeFacts, NvmePower};
pub use reason::{ASSERTION, Reason};
pub use report::Report;
pub use verdict::{
    Aspects, Atomicity, Cache, Contract, Flush, Judgement, MODES, Mapping, Transfer, Verdict, judge,
};

use crate::promise::SyncWindow;
use std::path::{Path, PathBuf};

/// The roots of the kernel's filesystems; other ones in tests.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
}

impl Roots {
    /// All of them below another root, which must be absolute and without links.
    pub fn below(root: &Path) -> Roots {
        Roots { proc: root.join("proc"), sys: root.join("sys"), dev: root.join("dev") }
    }
}

impl Default for Roots {
    fn default() -> Roots {
        Roots::below(Path::new("/"))
    }
}

/// The planned use of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Voters of the cluster.
    pub voters: usize,
    /// Bytes that `cairn format` will need, if known.
    pub size_bytes: Option<u64>,
    /// Whether the operator asserts that the device keeps completed writes and does not tear them.
    pub contract_asserted: bool,
    /// How much a background sync may be behind.
    pub window: SyncWindow,
    /// What the node is to keep in memory, if known.
    pub memory: Option<MemoryPlan>,
}

/// Why a location cannot be examined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is not a directory and cannot become one.
    #[error("cannot examine {path}: {reason}")]
    Location {
        /// The path as given.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// Examines the directory, or its nearest existing parent.
///
/// # Errors
/// `Location`.
pub fn examine(directory: &Path, plan: Plan) -> Result<Report, Error> {
    let facts = Facts::gather(&Roots::default(), directory)?;
    Ok(Report::new(facts, plan))
}

/// What may change below a running node, and decides whether a completed write survives a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whether the caches can lose completed writes, as the devices report now; or why they cannot
    /// be asked.
    pub cache: Result<Cache, String>,
    /// What the extents of the files are now; or why the files cannot be examined.
    pub mapping: Result<Mapping, String>,
}

/// Looks again at a data directory in use. Does not slow its node down: reads no file and sends no sync.
pub fn observe(directory: &Path) -> Observation {
    let layers = facts::layers(&Roots::default(), directory);
    Observation {
        cache: layers.map(|layers| aspects::cache(&layers)),
        mapping: facts::extents(directory).map(aspects::mapping),
    }
}

/// The memory that this process may use; `None` if that is not known.
pub fn memory_limit() -> Option<MemoryLimit> {
    memory::limit(&Roots::default()).ok()
}

/// What a node with this plan in this directory lacks of memory once the directory is full of keys, and the way out;
/// `None` if it lacks nothing, or if the memory is not known.
pub fn memory_shortage(directory: &Path, plan: MemoryPlan) -> Option<String> {
    let limit = memory_limit()?;
    plan.with_existing(memory::checkpoint_bytes(directory)).compared(&limit).err()
}

/// What each device below this directory reports about its own history, from the top. The texts
/// change when the device lost power, even while the kernel ran on.
///
/// # Errors
/// Why the devices cannot be seen.
pub fn histories(directory: &Path) -> Result<Vec<String>, String> {
    let layers = facts::layers(&Roots::default(), directory)?;
    Ok(layers.iter().map(medium::history).collect())
}

#[cfg(test)]
mod tests;
