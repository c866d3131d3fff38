//! Formatting a directory, and checking its identity.

use super::files::{open_devices, open_file};
use crate::checkpoint::{self, Capture, CheckpointPosition};
use crate::error::{Error, Result};
use crate::io::{Directory, FileKind};
use crate::superblock::{Superblock, SuperblockStore};
use crate::types::{Geometry, Identity};

const MAX_CLUSTER_BYTES: usize = 64;

/// Writes an empty checkpoint and then the superblock, which makes the directory valid. Ends
/// synced.
pub(crate) async fn format(
    directory: &dyn Directory,
    geometry: Geometry,
    identity: &Identity,
) -> Result<()> {
    geometry.check()?;
    check_identity(identity)?;
    let location = directory.location();
    let superblock = open_file(directory, FileKind::Superblock)?;
    let devices = open_devices(directory, &geometry)?;
    let capture = Capture { replaces: false, groups: Vec::new() };
    let place =
        CheckpointPosition { incarnation: identity.incarnation, number: 1, sequence: 0, chain: 0 };
    let [first, _] = &devices.checkpoints;
    checkpoint::write(first.as_ref(), FileKind::Checkpoint0, &location, &capture, place, async {
        Ok(())
    })
    .await?;
    let first = Superblock::first(identity.clone(), geometry);
    SuperblockStore::create(superblock, location, first).await.map(|_| ())
}

pub(super) fn check_identity(identity: &Identity) -> Result<()> {
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
