//! The Rust client of Cairn, a replicated key-value store.
//!
//! ```no_run
//! use cairn_client::{Client, Error, ListOptions};
//! use futures::TryStreamExt;
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::connect(["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"]).await?;
//!
//! let written = client.put("users/ada", "countess").await?;
//! let read = client.get("users/ada").await?;
//! assert_eq!(read.map(|item| item.version), Some(written.version));
//!
//! // Only if no other client wrote it in between.
//! match client.put_if_version("users/ada", "analyst", written.version).await {
//!     Ok(_) => println!("changed"),
//!     Err(Error::ConditionFailed { failed, .. }) => println!("not applied: {failed:?}"),
//!     Err(Error::OutcomeUnknown { .. }) => println!("unknown: read it again"),
//!     Err(error) => return Err(error),
//! }
//!
//! let mut users = client.list_all(ListOptions::prefix("users/"));
//! while let Some(user) = users.try_next().await? {
//!     println!("{:?} has {} bytes", user.key, user.value.len());
//! }
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! - **Reads are linearizable**, unless they ask to be stale. The leader answers them, or all members
//!   together ([`Options::read_from`]). [`Client::with_max_staleness`] bounds how old they may be.
//! - **A write is applied at most once**, however often the client had to send it. Each carries a
//!   client id and a sequence number, and the servers answer a repeated number with its first
//!   result.
//! - **Connecting waits or does not**: [`Options::connect`] tries each endpoint once, [`Options::connect_within`] waits until
//!   one answers, [`Options::build`] leaves it to the first request.
//! - **TLS** with certificates that are in files ([`Options::tls`]) or in memory ([`Options::tls_pem`]).
//! - **A scan shows one moment** ([`Client::scan`]): a range of any length at one log index. One whose end is missing is an
//!   error ([`Error::ScanBroken`]), never a shorter range.
//! - **One deadline** ([`Options::deadline`]) covers a request and all its retries; of a scan, its beginning.
//! - **An unknown outcome is an error of its own** ([`Error::OutcomeUnknown`]). After any other
//!   error of a write, it was not applied and will not be.
//! - **A condition that does not hold is an error** ([`Error::ConditionFailed`]) with the versions
//!   found, so that `?` never lets a refused write pass as an applied one.
//! - **A dead or hung node costs little**: the client remembers the leader, follows hints, skips a
//!   failed node for a while, and learns the other members from any node that answers.
//! - **A watch tells each change once and in order** ([`Client::watch`]), over the nodes' ends and restarts, and from a position
//!   that another process kept. If the cluster does not keep the changes any more, it says so and never leaves any out.
//!   [`Client::list_and_watch`] lists first, and lists anew then.
//! - **An operator's calls are apart** ([`Client::operator`]), so that an application does not reach
//!   them by accident.
//! - Nothing here panics, and the interface has no type of a transport library.
//!
//! # Errors
//!
//! An [`Error`] has one variant for each way to react, and its fields hold everything that its text says. [`Error::kind`]
//! says in one word what it means ([`ErrorKind`]): whether a write was applied, and whether a request may be repeated.
//!
//! ```
//! use cairn_client::{Error, ErrorKind};
//!
//! fn what_to_do(error: &Error) -> &'static str {
//!     match error.kind() {
//!         ErrorKind::ConditionFailed => "read again, and decide anew",
//!         ErrorKind::OutcomeUnknown => "it may have been applied: read before you write again",
//!         kind if kind.may_be_repeated() => "it was not applied: repeat it, later",
//!         _ => "it was not applied, and would not be if it were repeated",
//!     }
//! }
//! let empty = Error::InvalidKey { limit: 1024, actual: 0 };
//! assert_eq!((empty.kind(), empty.kind().name()), (ErrorKind::Invalid, "invalid"));
//! assert!(what_to_do(&empty).starts_with("it was not applied"));
//! ```
//!
//! Where an I/O error of the system is below, `source` returns it as a [`std::io::Error`]. The text of the error holds its
//! words already.
//!
//! # Traces
//!
//! Each write, read and page of a list is a span of level DEBUG of the crate `tracing`: `cairn.write`, `cairn.get`,
//! `cairn.get_many`, `cairn.list`, `cairn.scan` (its beginning), and each begin of a watch, `cairn.watch`, with `outcome`
//! (`done`, `condition_failed`, `unknown`, `failed`), and in it a `cairn.attempt` for each
//! node that was asked, with its `endpoint`. A write that was applied and a get that found its key have a `version`, a watch
//! that of the entry behind which it begins. Other
//! calls that look for the leader or for any node are no spans: each of their attempts is one. All lie within the span of
//! the caller. Neither they nor the events in them hold a key, a value or the text of an error: an attempt that failed says
//! so by one word, such as `not_leader`, `refused` or `lost`. An application that exports its spans, as with `tracing-opentelemetry`, exports these too, if
//! its filter lets `cairn_client=debug` through.
//!
//! # How a request is served
//!
//! ```text
//!  put, get, list, batch        write.rs read.rs many.rs list.rs batch.rs
//!  delete a range               delete_range.rs (pages, each a write)
//!  scan, count                  scan.rs     (begins as a read; then a stream of one node)
//!  watch a range                watch.rs     (begun anew, behind what was told, where a node is left)
//!        |  limits                limits.rs   (published by the servers, enforced before sending)
//!        |  session, sequence     session.rs  (writes only)
//!        v
//!   attempts until the deadline   attempts.rs (which node to ask next, how long to wait)
//!        |                        failure.rs  (what a failure means, and its possible effect)
//!        v
//!   nodes, leader                 pool.rs
//!        |  cluster, members      view.rs     (and which generation of it the client means)
//!        v
//!   one node's connection         node.rs
//!        |  many small requests   multiplexed.rs
//!        |  all watches           watch_stream.rs (and what of them is not read yet)
//! ```
#![forbid(unsafe_code)]

mod attempts;
mod backup;
mod batch;
mod caller;
mod client;
#[doc(hidden)]
pub mod codec;
mod convert;
mod delete_range;
mod error;
mod failure;
#[cfg(feature = "serde")]
mod json;
mod limits;
mod list;
mod many;
mod members;
mod multiplexed;
mod named;
mod node;
mod operator;
mod options;
mod pool;
mod position;
#[doc(hidden)]
pub mod proto;
mod random;
mod range;
mod read;
mod safe_to_stop;
mod scan;
mod scrub;
mod session;
pub mod shown;
mod spans;
mod status;
mod types;
mod upgrade;
mod view;
mod watch;
mod watch_stream;
mod write;

pub use backup::{HeldValues, State, StateHead, StateItem};
pub use batch::Batch;
pub use bytes::Bytes;
pub use client::Client;
pub use error::{Error, ErrorKind, SystemError};
pub use list::{ListOptions, Page, Pages};
pub use many::Many;
pub use members::{Leader, MemberChange};
pub use named::{Chosen, MemberState, Mode, Role};
pub use node::PROTOCOL;
pub use operator::{Operator, OperatorCall};
pub use options::{Options, ReadFrom};
pub use range::Range;
pub use read::ReadOptions;
pub use safe_to_stop::StopVerdict;
pub use scan::Scan;
pub use scrub::{ScrubAction, ScrubStatus};
pub use status::{DurabilityStatus, HistoryStatus, ModeStatus, NodeStatus, StorageStatus};
pub use types::{
    BatchInfo, Change, Condition, FailedCondition, KeyValue, Limits, Member, Position,
    RangeDeleted, Version, WriteInfo,
};
pub use upgrade::{MemberVersion, VersionStatus};
pub use watch::{Event, Watch, WatchOptions};
