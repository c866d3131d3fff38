//! Who calls, and what it may do.
//!
//! ```text
//! request ──► credentials ──► AccessTable ──► Identity: principal, roles ──► may(need)? ──► served
//!             certificate     names and                                         └──► Denied
//!             or token        token hashes
//! ```
//!
//! What holds here:
//! - A token that is not known is refused, whatever certificate comes with it.
//! - A name without an entry has no role, and no role is implied by another but read by write.
//! - What is allowed costs no allocation. What is refused names who asked, what it lacks, and what
//!   would allow it.
//! - A plain token is never kept. The configuration has its hash.
//!
//! | file | is about |
//! |---|---|
//! | `credentials` | what a request proves |
//! | `token` | tokens and their hashes |
//! | `roles` | what a name may do, and its notation |
//! | `entries` | the names of the configuration |
//! | `identity` | a principal with its roles; the refusals |
//! | `table` | from credentials to an identity, as the configuration is now |
//! | `audit` | the log of operators' calls |

pub(crate) mod audit;
pub(crate) mod credentials;
mod entries;
mod identity;
mod roles;
mod table;
mod token;

pub use credentials::CertificateName;
pub use entries::{Entries, Entry, check_name};
pub use identity::Denied;
pub use identity::Principal;
pub(crate) use identity::{Identity, Need};
pub use roles::Roles;
pub(crate) use table::{AccessTable, Session};
pub use token::{TokenHash, random_token};
