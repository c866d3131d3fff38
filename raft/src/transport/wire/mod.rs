//! The bytes between members: calls and append streams as frames on one connection.
//!
//! ```text
//! client ──► framed ◄── server      the two ends of a connection
//!              │
//!            frame                  a header, a message without its values, the values
//! ```
//!
//! A connection begins with [`PREFACE`]. Then both sides send frames. The side that connected makes
//! calls, each with a number of its own; the other side answers each with a message or a refusal. An
//! append stream is a call with many requests, whose answers come in their order.
//!
//! What holds here: a frame that is damaged, too long, or against the protocol ends the connection;
//! what is received and not served yet, and what is answered and not sent yet, has a bound; no call
//! outlives its connection.

pub(crate) mod client;
mod frame;
mod framed;
mod message;
pub(crate) mod server;

use std::time::Duration;

pub(crate) use message::{Message, Method, Packed, methods};

/// The first bytes of a connection: a name that no other protocol begins with, and the version of
/// what follows.
pub(crate) const PREFACE: [u8; 8] = *b"cairnpr\x02";

/// A slower link between members is as good as none: a message has the time that this rate needs,
/// beside what an answer may take.
const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;

/// How long so many bytes may be on their way. The story: a value that took longer than an answer may
/// take was sent from its beginning again and again, and nothing was committed behind it.
pub(crate) fn transfer_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES_PER_SECOND)
}
