//! What must hold of every run: one property per file.
//!
//! | file | property |
//! |---|---|
//! | `linearizable` | every answer fits one order of all requests that respects real time |
//! | `provenance` | every value read was written, under one version, before the read ended |
//! | `acknowledged` | an acknowledged write is there at the end, or something later took its place |
//! | `leaders` | at most one leader per term, and none leads again after a restart |
//! | `logs` | log id → content is a function of the whole cluster; so is index → log id of what is committed |
//! | `states` | equal applied position, equal state; applied never goes back within a life |
//! | `crash_image` | what a loss of power would leave at any moment holds what was counted on |
//! | `damage` | a checksum failure is never "not found", never other bytes |
//! | `mended` | after the healing a scrub of every member finds nothing, and all read every key alike |
//! | `members` | at most one voter of a slot in a configuration; who was dropped comes back never, and leads never |
//! | `majority` | what one node has applied is in the logs of a majority |
//!
//! A check that cannot decide says so, and that counts as a failure.

pub mod acknowledged;
pub mod crash_image;
pub mod damage;
pub mod leaders;
pub mod linearizable;
pub mod logs;
pub mod majority;
pub mod members;
pub mod mended;
mod model;
pub mod provenance;
pub mod states;

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
