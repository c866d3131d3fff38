//! The doctor: reads off the machine what a completed write is worth in a directory, and names the modes that this
//! justifies.
//!
//! ```text
//! /proc, /sys, /dev, probes ──► facts ──► aspects ──► verdict
//!   device filesystem nvme kernel  │                     │
//!                                  └──► findings ──► report: what was found, why it matters, what follows
//! ```
//!
//! What holds here: nothing on the machine is changed; what cannot be read is said to be unknown, with the reason, and
//! never taken for good.

mod aspects;
mod device;
mod facts;
mod filesystem;
mod findings;
mod kernel;
mod medium;
mod nvme;
mod reason;
mod report;
mod verdict;

pub use device::{Layer, LayerKind, Queue};
pub use facts::{Facts, Place, State, Unprobed};
pub use filesystem::{Filesystem, FilesystemKind};
pub use findings::{Finding, Grade};
pub use kernel::Kernel;
pub use nvme::{NvmeFacts, NvmePower};
pub use reason::Reason;
pub use report::Report;
pub use verdict::{
    Aspects, Atomicity, Cache, Contract, Flush, Judgement, MODES, Mapping, Medium, Overwrite, Transfer,
    Verdict, judge,
};

use std::path::{Path, PathBuf};

/// Where the kernel shows itself; elsewhere in tests.
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

/// What the directory is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Voters of the cluster.
    pub voters: usize,
    /// Bytes that `cairn format` will need, where that is known.
    pub size_bytes: Option<u64>,
    /// Whether the operator states that the device keeps completed writes and does not tear them.
    pub contract_asserted: bool,
}

/// Why a place cannot be examined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is no directory and cannot become one.
    #[error("cannot examine {path}: {reason}")]
    Place {
        /// The place, as it was asked.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// Examines the directory, or what holds it where it does not exist yet.
///
/// # Errors
/// `Place`.
pub fn examine(directory: &Path, plan: Plan) -> Result<Report, Error> {
    let facts = Facts::gather(&Roots::default(), directory)?;
    Ok(Report::new(facts, plan))
}

/// Whether completed writes can be lost from a cache below this directory, as the devices say now.
///
/// # Errors
/// Why they cannot be asked.
pub fn cache(directory: &Path) -> Result<Cache, String> {
    facts::layers(&Roots::default(), directory).map(|layers| aspects::cache(&layers))
}

/// What each device below this directory says of its own history, from the top: words that change when it lost its power, also
/// where the kernel ran on.
///
/// # Errors
/// Why the devices cannot be seen.
pub fn histories(directory: &Path) -> Result<Vec<String>, String> {
    // As they are named in the table of mounts.
    let directory = directory.canonicalize().map_err(|error| format!("{}: {error}", directory.display()))?;
    let layers = facts::layers(&Roots::default(), &directory)?;
    Ok(layers.iter().map(medium::history).collect())
}

#[cfg(test)]
mod tests;
