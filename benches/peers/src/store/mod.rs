//! The embedded peers: stores whose calls block, so that each request under way is a thread.
//!
//! What holds here: a peer has its own defaults, but for what its file says. Values are random bytes
//! and nothing is compressed.

#[cfg(feature = "rocksdb")]
pub mod rocks;

pub mod fjall;
pub mod group;
pub mod redb;

use anyhow::Result;
use bytes::Bytes;
use std::time::Instant;

/// A put: the key and the value.
pub type Put = (Bytes, Bytes);

/// A store of one peer.
pub trait Store: Send + Sync + 'static {
    /// Writes all puts, as one batch if they are several. If `synced`, they are on the disk when it
    /// returns.
    ///
    /// # Errors
    /// The store's.
    fn put(&self, puts: &[Put], synced: bool) -> Result<()>;

    /// Waits until the store has nothing to do in the background, or until `until`. False if it
    /// still has.
    ///
    /// # Errors
    /// The store's.
    fn settle(&self, until: Instant) -> Result<bool>;

    /// Writes to files what is in memory.
    ///
    /// # Errors
    /// The store's.
    fn flush(&self) -> Result<()>;

    /// Its version, as it tells itself or as its package says.
    fn version(&self) -> String;

    /// The sizes that it was given, or that it chose: write buffers and caches.
    fn settings(&self) -> String;
}

/// The version of a package in the lock file of this build.
pub fn locked(package: &str) -> String {
    let lock = include_str!("../../Cargo.lock");
    let entry = format!("name = \"{package}\"\nversion = \"");
    let version = lock.split_once(&entry).and_then(|(_, rest)| rest.split_once('"'));
    version.map_or("unknown", |(version, _)| version).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_package_is_that_of_the_lock_file() {
        assert!(locked("redb").starts_with(|digit: char| digit.is_ascii_digit()));
        assert_eq!(locked("no-such-package"), "unknown");
    }
}
