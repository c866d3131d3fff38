//! Who may speak on a connection: certificates, the names in them, and how both are checked, at the
//! socket, below whatever protocol runs there.
//!
//! ```text
//!  expiry.rs   when the own certificates end, and their CA
//!  files.rs    CA, certificate and key of this process, read again when they change
//!  origin.rs   where those come from: files, or memory
//!  accept.rs   an accepted socket -> a stream and the name of who connected
//!  connect.rs  a connected socket -> a stream to the member that was meant
//!  verify.rs   chain, validity and usage against the CA; then the name
//!  name.rs     cairn://CLUSTER/member/SLOT, cairn://CLUSTER/client/NAME
//!  names.rs    from the names of hosts to their addresses, without asking too often
//!  refusal.rs  why a handshake failed, in words for each side
//!  regular_file.rs  a whole file that an operator names, of bounded size
//!  issue.rs    makes certificates (feature `issue`)
//! ```
//!
//! What holds here:
//! - An address says where to connect, never who answers: host names are not checked, the name in
//!   the certificate is.
//! - A certificate whose chain, validity, usage or name does not fit is refused during the
//!   handshake. Sessions are never resumed, so each new connection is checked in full.
//! - Files that cannot be used never replace a pair that can.
#![forbid(unsafe_code)]

mod accept;
mod connect;
mod expiry;
mod files;
#[cfg(feature = "issue")]
pub mod issue;
mod name;
mod names;
mod origin;
mod refusal;
mod regular_file;
mod stream;
mod verify;

pub use accept::{HANDSHAKE_TIMEOUT, Port};
pub use connect::{Connector, Expected, connect, connect_http};
pub use expiry::Left;
pub use files::{RELOAD_INTERVAL, Tls};
pub use name::{CertificateName, Holder, NameError};
pub use origin::{Files, Origin, Pem, Place, Unusable};
pub use refusal::{Cause, Refusal};
pub use regular_file::read_file;
pub use stream::{Detached, Remote, Stream};
