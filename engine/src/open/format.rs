//! Formatting a directory, and checking its identity.

use super::files::{open_file, open_files};
use crate::checkpoint::{self, Capture, Header};
use crate::error::{Error, Result};
use crate::io::{Directory, FileKind};
use crate::state::Engine;
use crate::superblock::{Superblock, SuperblockStore};
use crate::types::{Geometry, Identity};
use std::collections::BTreeMap;

const MAX_CLUSTER_BYTES: usize = 64;

impl Engine {
    /// Formats a directory: five zeroed files of this geometry. Writes an empty checkpoint into each
    /// area, so that no single block is needed, and then the superblock, which makes the directory
    /// valid. Ends synced.
    ///
    /// # Errors
    /// `Invalid` for a bad identity or geometry, `TooShort`, `InUse`, `NotFormatted` for a missing
    /// file, `Failed`.
    pub async fn format(
        directory: &dyn Directory,
        geometry: Geometry,
        identity: &Identity,
    ) -> Result<()> {
        geometry.check()?;
        check_identity(identity)?;
        let superblock = open_file(directory, FileKind::Superblock)?;
        let files = open_files(directory, &geometry)?;
        let capture = Capture::whole(&BTreeMap::new());
        let incarnation = identity.incarnation;
        for (area, number) in [(1, 1), (0, 2)] {
            let header = Header { incarnation, number, ..Header::default() };
            checkpoint::write(files.area(area), &capture, header, async { Ok(()) }).await?;
        }
        SuperblockStore::create(superblock, Superblock::first(identity.clone(), geometry)).await
    }
}

/// Whether a directory may have this identity.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_identity(identity: &Identity) -> Result<()> {
    let len = identity.cluster.len();
    if len == 0 || len > MAX_CLUSTER_BYTES {
        return Err(Error::Invalid(format!(
            "a cluster name of {len} bytes: 1 to {MAX_CLUSTER_BYTES} bytes are allowed"
        )));
    }
    if identity.slot == 0
        || identity.incarnation == 0
        || identity.incarnation > Identity::MAX_INCARNATION
    {
        return Err(Error::Invalid(
            "slots count from 1, and an incarnation is 1 to 48 bits that are not all 0".into(),
        ));
    }
    Ok(())
}

pub(super) fn check_expected(
    location: &str,
    found: &Identity,
    expected: Option<&(String, u16)>,
) -> Result<()> {
    match expected {
        Some((cluster, slot)) if *cluster != found.cluster || *slot != found.slot => {
            Err(Error::Foreign {
                location: location.to_owned(),
                found: format!("slot {} of cluster `{}`", found.slot, found.cluster),
                expected: format!("slot {slot} of cluster `{cluster}`"),
            })
        }
        _ => Ok(()),
    }
}
