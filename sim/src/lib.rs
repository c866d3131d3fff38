//! Deterministic simulation of a Cairn cluster: the shipped `Node::start` on simulated disks,
//! clocks and network.
//!
//! ```text
//!   main ── seeds ──► harness ── one seed ──► history, observations ──► check
//!                        │
//!        ┌───────────────┼──────────────┐
//!        ▼               ▼              ▼
//!  cairn-clients       faults         cluster ── Node::start ──► disk
//!                  kill, pause, cut,  nodes, runs
//!                  partition, clocks
//! ```
//!
//! One seed is one run: everything random comes from it, and a run of the same seed has the same
//! trace to the last nanosecond and disk operation. The disk's rules (`cairn-disk`) and the checks are
//! pure and are tested in ordinary builds; the harness exists only under `--cfg madsim` (see `.cargo/sim.toml`).
#![forbid(unsafe_code)]

pub mod check;
#[cfg(madsim)]
pub mod disk;
#[cfg(any(madsim, test))]
mod hang;
#[cfg(madsim)]
pub mod harness;
pub mod trace;
