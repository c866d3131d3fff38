//! What must hold inside a simulated cluster: one property per file. `cairn-clients` checks what
//! clients see.
//!
//! | file | property |
//! |---|---|
//! | `leaders` | at most one leader per term, and no node leads a term again after a restart |
//! | `logs` | in the whole cluster a log id has one content, and a committed index one log id |
//! | `states` | equal applied position, equal state; applied never goes back while a process runs |
//! | `crash_image` | what a power cut would leave at any moment holds what others count on |
//! | `damage` | a checksum failure is never "not found", never other bytes |
//! | `repaired` | after the faults a scrub of each member finds nothing, and all read every key alike |
//! | `members` | at most one voter per slot; a dropped identity never votes or leads again |
//! | `majority` | what one node has applied is in the logs of a majority |
//!
//! A check that cannot decide reports a failure.

pub mod crash_image;
pub mod damage;
pub mod leaders;
pub mod logs;
pub mod majority;
pub mod members;
pub mod repaired;
pub mod states;
