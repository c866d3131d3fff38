//! From the bytes of a data directory to the state that they stand for.
//!
//! Newest intact checkpoint, then the journal behind it block by block along the chain, then the end of the chain is
//! judged: a torn tail is cut, anything else is corruption and stops the start. Nothing is written here.

mod replay;
mod scan;

pub(crate) use replay::{Left, Recovered, recover};
