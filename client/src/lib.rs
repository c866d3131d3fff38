//! The Rust client of Cairn, a replicated key-value store.
//!
//! ```no_run
//! use cairn_client::{Client, Error, ListOptions};
//! use futures::TryStreamExt;
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::connect(["127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"]).await?;
//!
//! let written = client.put("users/ada", "countess").await?;
//! let read = client.get("users/ada").await?;
//! assert_eq!(read.map(|item| item.version), Some(written.version));
//!
//! // Only if nobody wrote in between.
//! match client.put_if_version("users/ada", "analyst", written.version).await {
//!     Ok(_) => println!("changed"),
//!     Err(Error::ConditionFailed { failed, .. }) => println!("somebody was faster: {failed:?}"),
//!     Err(Error::OutcomeUnknown { .. }) => println!("changed or not: read it again"),
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
//! - **Reads are linearizable**, unless they ask to be stale.
//! - **A write is applied at most once**, however often the client had to send it: each carries a client id and a
//!   sequence number, and the servers answer a repeated number with its first result.
//! - **One deadline** ([`Options::deadline`]) covers a request and all its retries.
//! - **An unknown outcome is an error of its own** ([`Error::OutcomeUnknown`]). After any other error of a write, it was
//!   not applied and will not be.
//! - **A condition that does not hold is an error** ([`Error::ConditionFailed`]) with the versions found, so that `?`
//!   never takes a refused write for an applied one.
//! - **A dead or hung node costs little**: the leader is remembered, hints are followed, a node that fails is left
//!   alone for a while, and the other members are learnt from whichever answers.
//! - Nothing here panics, and no type of a transport library is part of the interface.
//!
//! # How a request finds its way
//!
//! ```text
//!  put, get, list, batch        write.rs read.rs list.rs batch.rs
//!        |  limits                limits.rs   (published by the servers, enforced before sending)
//!        |  session, sequence     session.rs  (writes only)
//!        v
//!   attempts until the deadline   retry.rs    (whom to ask next, how long to wait)
//!        |                        failure.rs  (what a failure means, whether it may have had an effect)
//!        v
//!   nodes, leader, members        pool.rs
//!        v
//!   one node's connection         node.rs
//! ```
#![forbid(unsafe_code)]

mod batch;
mod client;
#[doc(hidden)]
pub mod codec;
mod convert;
mod error;
mod failure;
mod lane;
mod limits;
mod list;
mod node;
mod options;
mod pool;
#[doc(hidden)]
pub mod proto;
mod random;
mod read;
mod retry;
mod scrub;
mod session;
mod status;
mod types;
mod write;

pub use batch::Batch;
pub use bytes::Bytes;
pub use client::Client;
pub use error::Error;
pub use list::{ListOptions, Page, Pages};
pub use node::PROTOCOL;
pub use options::Options;
pub use read::ReadOptions;
pub use scrub::{ScrubAction, ScrubStatus};
pub use status::{DurabilityStatus, NodeStatus, StorageStatus};
pub use types::{BatchInfo, Condition, FailedCondition, KeyValue, Limits, Member, Version, WriteInfo};
