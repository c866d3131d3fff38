//! A directory whose identity cannot be read any more: what it still holds becomes a head start for another identity.
//!
//! The superblock holds the votes. With no two of its copies left nobody knows what this member promised, so nobody may
//! speak for it: the directory gets a new identity, which promised nothing. The log and the values are still what the
//! cluster's leaders wrote, as far as their checksums say so, and need not travel once more.
//!
//! What holds here: an identity that can be read is never replaced; what another member wrote is neither inherited nor overwritten;
//! the first thing written says that the old identity is given up, so that it never comes back with less than it had; a crash on the
//! way leaves the old state, a directory without an identity whose rebirth goes on, or one whose new identity is whole.

use crate::checkpoint;
use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::io::{Device, Directory, FileKind, SUPERBLOCK_BYTES};
use crate::journal::{self, Ring};
use crate::open::{check_expected, check_identity, open_devices, open_file, open_superblock, rebuild_space};
use crate::recovery::{Left, Recovered, recover, writers};
use crate::settle::{begin_epoch, settle};
use crate::shared::Devices;
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
            match writers(journal.as_ref()).await.0 {
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
/// there, be it nothing. One that was begun goes on, for the heir that it was begun for. Leaves the directory as it is where its
/// identity can be read after all, or where it holds what somebody else wrote. Ends synced.
pub(crate) async fn rebirth(directory: &dyn Directory, identity: &Identity, before: u64) -> Result<()> {
    check_identity(identity)?;
    let location = directory.location();
    let device = open_superblock(directory)?;
    let Err(error) = SuperblockStore::read(device.clone(), location.clone()).await else {
        return Ok(());
    };
    let expected = (identity.cluster.clone(), identity.slot);
    let lost = judge(directory, device.as_ref(), Some(&expected), error).await;
    if !lost.is_identity_lost() {
        return Err(lost);
    }
    let copies = readable_copies(device.as_ref()).await;
    let geometry = copies.first().map_or_else(|| geometry_of(directory), |copy| Ok(copy.geometry))?;
    let devices = open_devices(directory, &geometry)?;
    let begun = copies.iter().find_map(|copy| copy.heir_of(before));
    let heir = Identity { incarnation: begun.unwrap_or(identity.incarnation), ..identity.clone() };
    let writers = writers_of(&devices, before, begun).await.map_err(|writer| Error::Foreign {
        location: location.clone(),
        found: format!("the member {writer:012x} that wrote it"),
        expected: format!("what member {before:012x} of slot {} wrote", identity.slot),
    })?;
    let known =
        copies.into_iter().filter(|c| c.identity.incarnation == before || c.heir_of(before).is_some());
    // What the old identity voted for binds the new one too: no term is lived through a second time.
    let votes = known.max_by_key(|copy| copy.revision).map(|copy| copy.votes).unwrap_or_default();
    // Before a byte of what the old identity had is overwritten: if its copies can be read again some day, they must not pass for
    // those of a whole directory.
    let given_up = Superblock::given_up(before, heir.clone(), geometry, votes.clone());
    SuperblockStore::create(device.clone(), location.clone(), given_up).await?;

    let ring = Ring::new(geometry.journal_blocks());
    let mut furthest: Option<Recovered> = None;
    for incarnation in writers {
        // As after a power cut that took all that no sync covers: nothing may be counted on that was not checked.
        let left = Left { power_cut: true, kept_written: false, reaches: None, synced: 0 };
        let of = Superblock::first(Identity { incarnation, ..heir.clone() }, geometry);
        let recovered = recover(&devices, &of, ring, left, true).await?;
        if furthest.as_ref().is_none_or(|known| entries(known) < entries(&recovered)) {
            furthest = Some(recovered);
        }
    }
    let mut recovered = furthest.ok_or(Error::Closed)?;
    rebuild_space(&geometry, &recovered.groups)?;
    // Whether an earlier sync failed is not known any more.
    settle(&devices, ring, &location, &mut recovered, true, heir.incarnation).await?;
    let header = journal::Header {
        incarnation: heir.incarnation,
        epoch: 0,
        sequence: recovered.end + 1,
        previous: recovered.chain,
        written: recovered.end,
        synced: recovered.end,
    };
    let checksum = begin_epoch(devices.journal.as_ref(), ring, &location, &header).await?;
    let clean = Clean { sequence: header.sequence, checksum };
    let first = Superblock { clean, votes, ..Superblock::first(heir.clone(), geometry) };
    SuperblockStore::create(device, location.clone(), first).await?;
    tracing::warn!(
        location,
        before = format!("{before:012x}"),
        now = format!("{:012x}", heir.incarnation),
        last_entries = ?recovered.groups.values().map(|g| g.log.bounds().last).collect::<Vec<_>>(),
        "the directory's identity could not be read: it has a new one, and what could be verified of the old one's log and \
         values as a head start"
    );
    Ok(())
}

/// How far the logs reach, all together.
fn entries(recovered: &Recovered) -> u64 {
    let lasts = recovered.groups.values().filter_map(|group| group.log.bounds().last);
    lasts.map(|last| last.index.saturating_add(1)).fold(0, u64::saturating_add)
}

/// Whose writing may be gone on from: that of `before`, and of the heir for whom a rebirth was begun.
///
/// # Errors
/// Who wrote what is here, if it was neither.
async fn writers_of(devices: &Devices, before: u64, heir: Option<u64>) -> std::result::Result<Vec<u64>, u64> {
    let (_, mut found) = writers(devices.journal.as_ref()).await;
    for device in &devices.checkpoints {
        found.extend(checkpoint::writers(device.as_ref()).await);
    }
    let ours: Vec<u64> = [before].into_iter().chain(heir).collect();
    match found.first() {
        Some(stranger) if !ours.iter().any(|own| found.contains(own)) => Err(*stranger),
        _ => Ok(ours),
    }
}

/// As the files are: no copy of the superblock says how they should be.
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
