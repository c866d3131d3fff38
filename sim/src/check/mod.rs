//! What must hold inside a simulated cluster: one property per file. What clients see is checked by
//! `cairn-clients`.
//!
//! | file | property |
//! |---|---|
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

pub mod crash_image;
pub mod damage;
pub mod leaders;
pub mod logs;
pub mod majority;
pub mod members;
pub mod mended;
pub mod states;
