//! Real `cairn` processes on disks that lose what was not synced.
//!
//! ```text
//!   main ── scenario ──► load ── cairn-clients ─► 3 × `cairn serve` ──► lossy disk (FUSE) ──► files
//!              │           │                            ▲                     ▲
//!              │           └──► ledger                  │ SIGKILL, start      │ cut, flip, lie
//!              └── check ───────┘                       └──────── cluster ────┘
//! ```
//!
//! The simulation (`cairn-sim`) searches schedules with a simulated disk under the shipped node.
//! This harness tests what the simulation cannot reach: the real process, its start and command
//! line, the real I/O layer with the kernel's io_uring and locks, real sockets. Clients and checks
//! are the same (`cairn-clients`). A machine's power cut is SIGKILL, a cut of its disk, another
//! kernel boot id, and a start.
#![forbid(unsafe_code)]

mod check;
pub mod cluster;
pub mod disk;
pub mod figures;
pub mod flips;
pub mod load;
pub mod run;
pub mod scenario;
