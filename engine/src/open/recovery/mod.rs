//! From the bytes of a data directory to the state that they stand for.
//!
//! Newest intact checkpoint, then the journal behind it block by block along the chain, then the end of the chain is
//! judged: a torn tail is cut, anything else is corruption and stops the start, unless the caller has peers that hold what
//! is missing here: then the longest verified prefix is kept. Nothing is written here.

mod replay;
mod salvage;
mod scan;
mod shared_extent;

pub(super) use replay::{Recovered, recover};
pub(super) use scan::{Left, is_written};
