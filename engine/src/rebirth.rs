//! A directory whose identity cannot be read any more: what it still holds becomes a head start for another identity.
//!
//! The superblock holds the votes. With no two of its copies left nobody knows what this member promised, so nobody may
//! speak for it: the directory gets a new identity, which promised nothing. The log and the values are still what the
//! cluster's leaders wrote, as far as their checksums say so, and need not travel once more.
//!
//! What holds here: an identity that can be read is never replaced; what another member wrote is never inherited; a crash
//! on the way leaves a directory without an identity, or one whose new identity is whole.

use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::io::{Device, Directory, FileKind, SUPERBLOCK_BYTES};
use crate::journal::{self, Ring};
use crate::open::{check_expected, check_identity, open_devices, open_file, rebuild_space};
use crate::recovery::{Left, is_written, recover};
use crate::settle::{begin_epoch, settle};
use crate::superblock::{Clean, Superblock, SuperblockStore, readable_copies};
use crate::types::{Geometry, Identity};

/// Why a directory without a readable superblock cannot be opened. One copy suffices to tell a directory of somebody else,
/// and a journal that was written to tells an erased superblock from a format that did not end.
pub(crate) async fn judge(
    directory: &dyn Directory,
    superblock: &dyn Device,
    expected: Option<&(String, u16)>,
    error: Error,
) -> Error {
    match error {
        Error::Corrupt(_) => {
            let copies = readable_copies(superblock).await;
            let foreign = copies
                .iter()
                .find_map(|c| check_expected(&directory.location(), &c.identity, expected).err());
            foreign.unwrap_or(error)
        }
        Error::NotFormatted { .. } => {
            let Ok(journal) = open_file(directory, FileKind::Journal) else { return error };
            match is_written(journal.as_ref()).await {
                true => Error::Corrupt(Corruption {
                    file: FileKind::Superblock,
                    offset: 0,
                    length: SUPERBLOCK_BYTES,
                    kind: CorruptionKind::Superblock,
                    expected: "the superblock of a directory whose journal was written to".to_owned(),
                    found: "empty copies".to_owned(),
                    log_ids: Vec::new(),
                }),
                false => error,
            }
        }
        error => error,
    }
}

/// Makes the directory that of `identity`, with the longest verified prefix of what the member of incarnation `before` wrote
/// there, be it nothing. Leaves it as it is where its identity can be read after all. Ends synced.
pub(crate) async fn rebirth(directory: &dyn Directory, identity: &Identity, before: u64) -> Result<()> {
    check_identity(identity)?;
    let location = directory.location();
    let device = open_file(directory, FileKind::Superblock)?;
    let Err(error) = SuperblockStore::read(device.clone(), location.clone()).await else {
        return Ok(());
    };
    let expected = (identity.cluster.clone(), identity.slot);
    let lost = judge(directory, device.as_ref(), Some(&expected), error).await;
    if !lost.is_identity_lost() {
        return Err(lost);
    }
    let geometry = geometry_of(directory)?;
    let devices = open_devices(directory, &geometry)?;
    let copies = readable_copies(device.as_ref()).await;
    let known = copies.into_iter().filter(|c| c.identity.incarnation == before).max_by_key(|c| c.revision);

    // As after a power cut that took all that no sync covers: nothing may be counted on that was not checked.
    let left = Left { power_cut: true, kept_written: false, reaches: None, synced: 0 };
    let of = Identity { incarnation: before, ..identity.clone() };
    let ring = Ring::new(geometry.journal_blocks());
    let mut recovered = recover(&devices, &Superblock::first(of, geometry), ring, left, true).await?;
    rebuild_space(&geometry, &recovered.groups)?;
    // Whether an earlier sync failed is not known any more.
    settle(&devices, ring, &location, &mut recovered, true, identity.incarnation).await?;
    let header = journal::Header {
        incarnation: identity.incarnation,
        epoch: 0,
        sequence: recovered.end + 1,
        previous: recovered.chain,
        written: recovered.end,
        synced: recovered.end,
    };
    let checksum = begin_epoch(devices.journal.as_ref(), ring, &location, &header).await?;
    let first = Superblock {
        clean: Clean { sequence: header.sequence, checksum },
        // What the old identity voted for binds the new one too: no term is lived through a second time.
        votes: known.map(|copy| copy.votes).unwrap_or_default(),
        ..Superblock::first(identity.clone(), geometry)
    };
    SuperblockStore::create(device, location.clone(), first).await?;
    tracing::warn!(
        location,
        before = format!("{before:012x}"),
        now = format!("{:012x}", identity.incarnation),
        last_entries = ?recovered.groups.values().map(|g| g.log.bounds().last).collect::<Vec<_>>(),
        "the directory's identity could not be read: it has a new one, and what could be verified of the old one's log and \
         values as a head start"
    );
    Ok(())
}

/// As the files are: the superblock, which says how they should be, cannot be read.
fn geometry_of(directory: &dyn Directory) -> Result<Geometry> {
    let size = |kind| open_file(directory, kind).map(|device| device.size());
    let geometry = Geometry {
        journal_bytes: size(FileKind::Journal)?,
        checkpoint_bytes: size(FileKind::Checkpoint0)?,
        data_bytes: size(FileKind::Data)?,
    };
    geometry.check()?;
    Ok(geometry)
}
