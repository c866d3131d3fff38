//! Backups: the state of a cluster at one log index, as objects in a folder or a bucket.
//!
//! `docs/backups.md` has the layout. What holds here:
//! - the manifest is written last, and names every object with its length and checksum: a backup
//!   without a manifest is none, and one with a manifest is whole or found to be damaged;
//! - every value has the hash that the cluster stores of it, and the manifest has a hash over all keys,
//!   versions and value hashes in order: what is restored is what was there;
//! - no object is ever overwritten. A backup that builds on an earlier one names the objects of that
//!   one which it still needs, and those stay for as long as a manifest names them;
//! - a backup is encrypted as a whole or not at all, and what it builds on is encrypted to the same: what
//!   is read of an encrypted one was encrypted;
//! - what comes from the target is hostile: names, lengths and numbers are checked before they are used.

mod bucket;
mod cluster;
mod encryption;
mod error;
mod fetch;
mod folder;
mod keys;
mod latest;
mod links;
mod manifest;
mod paths;
mod prune;
mod read;
mod record;
mod save;
mod shown;
mod sources;
mod target;
#[cfg(test)]
mod tests;

pub use cluster::ClusterId;
pub use encryption::Encryption;
pub use error::{Error, Result};
pub use keys::{Identities, Recipients};
pub use latest::{Ended, OfCluster, ended_last, latest, reaches_back};
pub use manifest::{Head, Manifest, Object, Overview};
pub use prune::{Keep, Own, Pruned, prune, prune_own};
pub use read::{Backup, Items};
pub use record::Item;
pub use save::Saver;
pub use sources::{Held, LeftOut, Sources};
pub use target::{Found, Target};
