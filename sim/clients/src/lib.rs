//! Clients of a cluster under test, the history of their requests and answers, and the checks of
//! that history: the same for simulated clusters and for real processes.
//!
//! ```text
//!   workload ── cairn-client ──► the cluster
//!      │                            │ listing
//!      └──► history ──► check ◄── ledger
//! ```
//!
//! `workload` chooses requests, sends them with the real client library, and records request,
//! answer and times on a [`Timeline`]. [`history`] is that record. [`check`] checks a complete
//! history; for long runs [`ledger`] checks it piece by piece. Nothing here knows whether time and
//! network are simulated.
#![forbid(unsafe_code)]

pub mod check;
pub mod history;
pub mod ledger;
mod timeline;
pub mod workload;

pub use check::Violation;
pub use timeline::Timeline;
