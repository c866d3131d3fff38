//! Admission: what a request may be, how long it may take, which account it is charged to, and
//! whether there is capacity for it. Only this module decides that. It knows the configuration, but
//! nothing about the node that serves.
//!
//! | file | decides |
//! |---|---|
//! | `validate` | what a request may be |
//! | `shares` | how a capacity is shared between clients |
//! | `writes` | how many writes are under way, and how many bytes |
//! | `turns` | whose turn it is to delete a range |
//! | `scans` | how many scans are open |
//! | `memory` | how a budget of memory is charged, and who waits for it |
//! | `requests` | what streams, messages that arrive and calls under way may take |
//! | `caller` | whose account a request is charged to |
//! | `deadline` | how long a request is worked on |
//! | `refusal` | the error that a refused client gets |

pub(crate) mod caller;
pub(crate) mod deadline;
pub mod memory;
pub(crate) mod refusal;
pub mod requests;
pub(crate) mod scans;
pub(crate) mod shares;
pub(crate) mod turns;
pub(crate) mod validate;
pub(crate) mod writes;
