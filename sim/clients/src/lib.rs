//! Clients of a cluster under test, what they were told, and what must hold of it: the same for
//! simulated clusters and for real processes.
//!
//! ```text
//!   workload ── cairn-client ──► the cluster
//!      │                            │ listing
//!      └──► history ──► check ◄── ledger
//! ```
//!
//! `workload` decides what to ask, asks the real client library, and records question, answer and
//! times on a [`Timeline`]; [`history`] is what was recorded; [`check`] judges it, whole or, in
//! long runs, piece by piece by [`ledger`]. Nothing here knows whether time and network are
//! simulated.
#![forbid(unsafe_code)]

pub mod check;
pub mod history;
pub mod ledger;
mod timeline;
pub mod workload;

pub use check::Violation;
pub use timeline::Timeline;
