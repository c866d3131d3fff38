//! Real files: the two production implementations of [`Directory`](super::Directory) and [`Device`](super::Device).
//!
//! ```text
//! create ──► files of zeros        directory ──► FileDevice ──► ring     one thread, io_uring
//!    │                                │                    └──► threads  a pool, pread/pwrite
//!    └───────────┬────────────────────┘      probe ──► what the machine says of itself
//!             system (the calls that std does not have)
//! ```
//!
//! Compiled out of the simulation, which has no threads and no files: the simulated disk stands in for all of this.
//! Linux only.
//!
//! What holds here: the lock is on the open file description that does the I/O, so a write of a dying process cannot
//! land after another process got the lock; an operation keeps its file and its buffer until the kernel is done with
//! them; no operation can change a file's size.

mod boot;
mod create;
mod device;
mod directory;
mod file;
mod probe;
mod ring;
mod system;
#[cfg(test)]
mod tests;
mod threads;

pub use boot::{boot_id, boot_id_from};
pub use directory::{Backend, FileDirectory};
pub use probe::{FileProbe, NvmeIdentify, nvme_identify, probe_directory, probe_file, probe_io_uring, room};
pub use system::{DirectAlignment, Extents, Room};
