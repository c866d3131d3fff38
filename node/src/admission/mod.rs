//! The one place that decides what may come in: what a request may be, how long it has, who pays for
//! it, and whether there is room. It knows the configuration and nothing of the node that serves.
//!
//! | file | decides |
//! |---|---|
//! | `validate` | what a request may be |
//! | `writes` | how many writes are under way, and how many bytes |
//! | `memory` | what reads and their answers may take |
//! | `caller` | which connection's account a read is charged to |
//! | `deadline` | how long a request is worked on |
//! | `refusal` | what a client is told that is refused |

pub(crate) mod caller;
pub(crate) mod deadline;
pub mod memory;
pub(crate) mod refusal;
pub(crate) mod validate;
pub(crate) mod writes;
