//! An exhaustive search of Cairn's protocol.
#![forbid(unsafe_code)]
#![allow(
    clippy::indexing_slicing,
    reason = "states are fixed arrays indexed by what the model itself made; a slip must stop the search"
)]

mod actions;
mod bounds;
mod log;
mod membership;
mod properties;
mod report;
mod rules;
mod scenarios;
mod search;
mod start;
mod state;
mod steps;

pub use report::{names, table, trace};
