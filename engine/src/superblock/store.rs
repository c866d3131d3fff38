//! Reading and updating the four copies.

use super::layout::{Superblock, Unusable, VERSION};
use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, FileKind, SUPERBLOCK_BYTES};
use std::sync::Arc;

const COPIES: u64 = 4;
const SPACING: u64 = SUPERBLOCK_BYTES / COPIES;
/// Copies that must agree.
const QUORUM: usize = 2;

/// The superblock in memory, and its device.
pub(crate) struct SuperblockStore {
    device: Arc<dyn Device>,
    location: String,
    current: Superblock,
}

/// What rewriting the copies found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Healed {
    /// Copies that could not be read or did not match their checksum.
    pub damaged: u64,
    /// Copies that were left behind by an update that was cut short.
    pub old: u64,
}

impl SuperblockStore {
    /// Writes the first superblock of a new directory, synced.
    pub(crate) async fn create(
        device: Arc<dyn Device>,
        location: String,
        first: Superblock,
    ) -> Result<SuperblockStore> {
        let mut store = SuperblockStore { device, location, current: first };
        store.write().await?;
        Ok(store)
    }

    /// Reads the newest content held by at least two copies.
    ///
    /// # Errors
    /// `NotFormatted`, `NewerFormat`, or `Corrupt` where no two copies agree.
    pub(crate) async fn read(device: Arc<dyn Device>, location: String) -> Result<SuperblockStore> {
        let current = match elect(&location, &read_copies(device.as_ref()).await) {
            // Read once more before anything is believed to be lost.
            Err(Error::Corrupt(_)) => elect(&location, &read_copies(device.as_ref()).await)?,
            elected => elected?,
        };
        Ok(SuperblockStore { device, location, current })
    }

    /// Makes all four copies equal again; synced when this returns. Only copies that are not the truth are written, so a
    /// cut during this leaves those that are. To be done before an update, which overwrites two copies at once and relies
    /// on the other two.
    pub(crate) async fn heal(&mut self) -> Result<Healed> {
        let mut healed = Healed::default();
        let bytes = self.current.encode();
        for (offset, copy) in offsets().zip(read_copies(self.device.as_ref()).await) {
            match copy {
                Ok(copy) if copy == self.current => continue,
                Ok(_) => healed.old += 1,
                Err(_) => healed.damaged += 1,
            }
            let (result, _) = self.device.write(offset, AlignedBuf::copied_from(&bytes)).await;
            result.map_err(|e| self.failed("write", &e))?;
        }
        if healed != Healed::default() {
            self.device.sync().await.map_err(|e| self.failed("sync", &e))?;
        }
        Ok(healed)
    }

    pub(crate) fn current(&self) -> &Superblock {
        &self.current
    }

    /// Changes the superblock; synced when this returns.
    ///
    /// # After a crash
    /// During this call: either the old content or the new. The caller has told nobody yet.
    pub(crate) async fn update(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        change(&mut self.current);
        self.current.revision += 1;
        self.write().await
    }

    async fn write(&mut self) -> Result<()> {
        let bytes = self.current.encode();
        let offsets: Vec<u64> = offsets().collect();
        for half in offsets.chunks(QUORUM) {
            for offset in half {
                let (result, _) = self.device.write(*offset, AlignedBuf::copied_from(&bytes)).await;
                result.map_err(|e| self.failed("write", &e))?;
            }
            self.device.sync().await.map_err(|e| self.failed("sync", &e))?;
        }
        Ok(())
    }

    fn failed(&self, operation: &'static str, error: &std::io::Error) -> Error {
        let location = self.location.clone();
        Error::Failed { location, file: FileKind::Superblock, operation, reason: error.to_string() }
    }
}

async fn read_copies(device: &dyn Device) -> Vec<std::result::Result<Superblock, Unusable>> {
    let mut copies = Vec::new();
    for offset in offsets() {
        let (result, buf) = device.read(offset, AlignedBuf::zeroed(BLOCK)).await;
        copies.push(match result {
            Ok(()) => Superblock::decode(&buf),
            Err(_) => Err(Unusable::Damaged),
        });
    }
    copies
}

fn offsets() -> impl Iterator<Item = u64> {
    (0..COPIES).map(|copy| copy * SPACING)
}

/// The newest content that at least two copies hold.
fn elect(location: &str, copies: &[std::result::Result<Superblock, Unusable>]) -> Result<Superblock> {
    let usable: Vec<&Superblock> = copies.iter().flatten().collect();
    let agreed = usable
        .iter()
        .filter(|a| usable.iter().filter(|b| a == b).count() >= QUORUM)
        .max_by_key(|a| a.revision);
    if let Some(superblock) = agreed {
        return Ok((*superblock).clone());
    }
    let newer = copies.iter().find_map(|c| match c {
        Err(Unusable::Newer(version)) => Some(*version),
        _ => None,
    });
    if let Some(found) = newer {
        return Err(Error::NewerFormat { location: location.to_owned(), found, supported: VERSION });
    }
    if copies.iter().all(|c| matches!(c, Err(Unusable::Absent))) {
        let reason = "no superblock was found".to_owned();
        return Err(Error::NotFormatted { location: location.to_owned(), reason });
    }
    Err(Error::Corrupt(Corruption {
        file: FileKind::Superblock,
        offset: 0,
        length: SUPERBLOCK_BYTES,
        kind: CorruptionKind::Superblock,
        expected: format!("{QUORUM} of {COPIES} copies that agree"),
        found: format!("{} readable, none twice", usable.len()),
        log_ids: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::example;
    use super::*;

    fn revision(n: u64) -> std::result::Result<Superblock, Unusable> {
        Ok(Superblock { revision: n, ..example() })
    }

    #[test]
    fn the_newest_content_held_twice_wins_over_every_mixture_of_copies() {
        use Unusable::{Absent, Damaged};
        // (copies, revision elected); the states that a torn update or two damaged copies can leave.
        let table = [
            (vec![revision(1), revision(1), revision(1), revision(1)], Some(1)),
            (vec![revision(2), revision(1), revision(1), revision(1)], Some(1)),
            (vec![Err(Damaged), Err(Damaged), revision(1), revision(1)], Some(1)),
            (vec![revision(2), revision(2), revision(1), revision(1)], Some(2)),
            (vec![revision(2), revision(2), Err(Damaged), Err(Damaged)], Some(2)),
            (vec![revision(2), revision(2), revision(2), revision(1)], Some(2)),
            (vec![revision(2), Err(Damaged), revision(1), Err(Damaged)], None),
            (vec![Err(Absent), Err(Damaged), Err(Absent), revision(1)], None),
        ];
        for (copies, expected) in table {
            assert_eq!(elect("d", &copies).ok().map(|s| s.revision), expected, "{copies:?}");
        }
    }

    #[test]
    fn nothing_newer_and_damaged_are_different_errors() {
        use Unusable::{Absent, Damaged, Newer};
        let absent = elect("d", &[Err(Absent), Err(Absent), Err(Absent), Err(Absent)]);
        assert!(matches!(absent, Err(Error::NotFormatted { .. })));
        let newer = elect("d", &[Err(Newer(9)), Err(Newer(9)), Err(Newer(9)), Err(Damaged)]);
        assert!(matches!(newer, Err(Error::NewerFormat { found: 9, .. })));
        let damaged = elect("d", &[Err(Damaged), Err(Absent), Err(Absent), Err(Absent)]);
        assert!(matches!(damaged, Err(Error::Corrupt(_))));
    }
}
