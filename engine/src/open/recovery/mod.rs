//! From the bytes of a data directory to its state. Writes nothing.
//!
//! Recovery loads the newest intact checkpoint and follows the journal behind it block by block
//! along the chain. Then it judges the end of the chain: a torn tail is cut; anything else is
//! corruption and stops the start. If the caller has peers that hold what is missing here, recovery
//! keeps the longest verified prefix instead.

mod carried;
mod progress;
mod recover;
mod replay;
mod salvage;
mod scan;
mod shared_extent;

pub(super) use recover::{Recovered, recover};
pub(super) use scan::{ShutdownEvidence, is_written};
