//! Real files: the two production implementations of [`Directory`](super::Directory) and
//! [`Device`](super::Device).
//!
//! ```text
//! create, grow ──► zeros           directory ──► FileDevice ──► ring     io_uring, a task or a thread
//!    │                                │                    └──► threads  a pool, pread/pwrite
//!    └───────────┬────────────────────┘      probe ──► facts about the machine
//!             system (the calls that std does not have)
//! ```
//!
//! The simulation does not compile this module: it has no threads and no files, and replaces all of
//! this by the simulated disk. Linux only.
//!
//! What holds here: The lock is on the open file description that does the I/O, so a write of a
//! dying process cannot land after another process got the lock. An operation keeps its file and
//! its buffer until the kernel has finished with them. No operation can change a file's size.

mod boot;
mod create;
mod device;
mod directory;
mod file;
mod grow;
mod probe;
mod ring;
mod set_aside;
mod system;
#[cfg(test)]
mod tests;
mod threads;
mod zeros;

pub use boot::{boot_id, boot_id_from};
pub use create::Created;
pub use directory::{Backend, FileDirectory};
pub use probe::{
    FileProbe, NvmeIdentify, file_extents, nvme_identify, probe_directory, probe_file,
    probe_io_uring,
};
pub use system::{DirectAlignment, Extents, FreeSpace, free_space};
