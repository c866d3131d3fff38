//! What must hold for the answers to clients: one property per file.
//!
//! | file | property |
//! |---|---|
//! | `linearizable` | every answer fits one order of all requests that respects real time |
//! | `provenance` | every value read was written, under one version, before the read ended |
//! | `bounded` | a read within a bound lacks nothing that was acknowledged before it |
//! | `position` | a read of several keys, or a scan, has everything acknowledged before it, or its bound, and nothing of later |
//! | `acknowledged` | an acknowledged write is there at the end, or a later write replaced it |
//! | `state` | a state that a member sent, to a backup or a scan, has of each key what the last write up to its index left |
//! | `watched` | a watch tells every change of its keys, once and in order, and nothing else |
//!
//! A check that cannot decide reports a failure.

pub mod acknowledged;
pub mod bounded;
pub mod linearizable;
mod model;
pub mod position;
pub mod provenance;
pub mod state;
pub mod watched;

use std::fmt;

/// A property that does not hold, or could not be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property's name.
    pub property: &'static str,
    /// What contradicts it.
    pub detail: String,
}

impl Violation {
    /// A violation of `property`.
    pub fn new(property: &'static str, detail: impl Into<String>) -> Violation {
        Violation { property, detail: detail.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.property, self.detail)
    }
}
