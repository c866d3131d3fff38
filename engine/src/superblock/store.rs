//! Reading and updating the four copies.

use super::layout::{FIRST_FORMAT, FIRST_REVISION, NEWEST_FORMAT, Superblock, Unusable};
use crate::error::{Corruption, Error, Result};
use crate::io::{AlignedBuf, BLOCK, FileKind, OpenFile, SUPERBLOCK_BYTES};
use futures::future::join_all;

const COPIES: u64 = 4;
/// Why a directory is not formatted, if its superblock's file holds nothing.
pub(crate) const NO_SUPERBLOCK: &str =
    "its superblock is empty, as an unfinished format leaves it; if so, `cairn format` begins anew";
const SPACING: u64 = SUPERBLOCK_BYTES / COPIES;
/// Copies that must agree.
const QUORUM: usize = 2;

/// The superblock in memory, and its file.
pub(crate) struct SuperblockStore {
    file: OpenFile,
    current: Superblock,
    /// Which copies may read back but not be on the medium.
    unsynced: UnsyncedCopies,
    /// The failure after which nothing is written any more.
    failed: Option<Error>,
}

/// Copies whose last write no sync is known to have covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnsyncedCopies {
    None,
    /// The first half or the second. The other one is on the medium.
    Half(usize),
    /// Any of them.
    Any,
}

impl SuperblockStore {
    /// Writes the first superblock of a new directory, synced.
    pub(crate) async fn create(file: OpenFile, current: Superblock) -> Result<()> {
        let unsynced = UnsyncedCopies::None;
        SuperblockStore { file, current, unsynced, failed: None }.write().await
    }

    /// Reads the newest content held by at least two copies.
    ///
    /// # Errors
    /// `NotFormatted`, `OtherFormat`, or `Corrupt` if no two copies agree.
    pub(crate) async fn read(file: OpenFile) -> Result<SuperblockStore> {
        let current = match elect(&file.location, &read_copies(&file).await) {
            // Read once more before believing the loss.
            Err(Error::Corrupt(_)) => elect(&file.location, &read_copies(&file).await)?,
            elected => elected?,
        };
        let unsynced = UnsyncedCopies::Any;
        Ok(SuperblockStore { file, current, unsynced, failed: None })
    }

    /// Writes all four copies again. A sync of an earlier process may have failed; then the copies
    /// that it should have covered can be read, but may not be on the medium. Call this before an
    /// update, which overwrites two copies at once and relies on the other two.
    ///
    /// # After a crash
    /// During this call: the same content, or, if that never reached the medium, the one before it.
    /// Copies are written one by one. Damaged copies come first, since they hold nothing to lose.
    /// Then come the current ones: three other copies survive each such write. Old copies come
    /// last, because they are needed until the newer ones are synced.
    ///
    /// Returns how many copies were damaged.
    pub(crate) async fn rewrite_copies(&mut self) -> Result<u64> {
        let [damaged, same, old] = self.sorted_copies().await;
        let found = damaged.len() as u64;
        for offset in damaged.into_iter().chain(same).chain(old) {
            self.write_copies(&[offset]).await?;
        }
        self.unsynced = UnsyncedCopies::None;
        Ok(found)
    }

    /// Makes all four copies equal again; synced when this returns. Writes only copies that are not
    /// current, so a power cut during this call leaves the current ones. Returns how many copies
    /// were damaged.
    pub(crate) async fn repair_copies(&mut self) -> Result<u64> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let [damaged, _, old] = self.sorted_copies().await;
        let found = damaged.len() as u64;
        let mut wrong = [damaged, old].concat();
        wrong.sort_unstable();
        if !wrong.is_empty() {
            self.unsynced = UnsyncedCopies::Any;
            self.write_copies(&wrong).await?;
        }
        self.unsynced = UnsyncedCopies::None;
        Ok(found)
    }

    /// The offsets of the copies: those that are damaged or cannot be read, the current ones, and
    /// those that an interrupted update left behind.
    async fn sorted_copies(&self) -> [Vec<u64>; 3] {
        let [mut damaged, mut same, mut old] = [const { Vec::new() }; 3];
        for (offset, copy) in offsets().zip(read_copies(&self.file).await) {
            match copy {
                Ok(copy) if copy == self.current => same.push(offset),
                Ok(_) => old.push(offset),
                Err(_) => damaged.push(offset),
            }
        }
        [damaged, same, old]
    }

    pub(crate) fn current(&self) -> &Superblock {
        &self.current
    }

    /// Changes the superblock; synced when this returns.
    ///
    /// # After a crash
    /// During this call: the old content or the new one. No caller has relied on the new one yet.
    pub(crate) async fn update(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        change(&mut self.current);
        self.current.revision += 1;
        self.write().await
    }

    async fn write(&mut self) -> Result<()> {
        // If the last update stopped half-way, continue with the half that is already not known to
        // be synced.
        let first = usize::from(self.unsynced == UnsyncedCopies::Half(1));
        for half in [first, 1 - first] {
            self.unsynced = UnsyncedCopies::Half(half);
            self.write_half(half).await?;
        }
        self.unsynced = UnsyncedCopies::None;
        Ok(())
    }

    async fn write_half(&mut self, half: usize) -> Result<()> {
        let offsets: Vec<u64> = offsets().skip(half * QUORUM).take(QUORUM).collect();
        self.write_copies(&offsets).await
    }

    /// Writes the current content to these copies at once, and syncs. At once, because a vote waits
    /// for it.
    async fn write_copies(&mut self, offsets: &[u64]) -> Result<()> {
        let bytes = self.current.encode();
        let write = |offset: &u64| self.file.write(*offset, AlignedBuf::copied_from(&bytes));
        let written = join_all(offsets.iter().map(write)).await;
        let mut done: Result<()> = written.into_iter().collect();
        if done.is_ok() {
            done = self.file.sync().await;
        }
        if let Err(error) = &done {
            self.failed.get_or_insert_with(|| error.clone());
        }
        done
    }

    /// Tries to record that a write or sync failed, of this file or another one. It is the last
    /// thing written. It goes to the half of the copies that may already be unsynced, where it can
    /// do no harm. The other half follows only if that sync succeeded. Without a sync the record
    /// lasts as long as the machine runs, which is as long as it is needed.
    ///
    /// # Errors
    /// `Failed`: the next open will not see the record.
    pub(crate) async fn record_failed_sync(&mut self, acknowledged: u64) -> Result<()> {
        let half = match self.unsynced {
            UnsyncedCopies::None => 0,
            UnsyncedCopies::Half(half) => half,
            UnsyncedCopies::Any => {
                return Err(self.file.failed("write", "no copy is known to be safe"));
            }
        };
        // An open that has not begun keeps what is recorded, and may know of less itself.
        self.current.failed_sync = self.current.failed_sync.max(Some(acknowledged));
        self.current.revision += 1;
        self.unsynced = UnsyncedCopies::Half(half);
        match self.write_half(half).await {
            Ok(()) => self.write_half(1 - half).await.or(Ok(())),
            Err(error) if error.is_failed_sync() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Makes all copies unusable, synced.
///
/// # After a crash
/// During this call: the old content, or no usable content.
pub(crate) async fn void_copies(file: &OpenFile) -> Result<()> {
    for offset in offsets() {
        file.write(offset, AlignedBuf::copied_from(&Superblock::void())).await?;
    }
    file.sync().await
}

/// For inspection: the revision of each copy, or why it cannot be used.
pub(crate) async fn copies(file: &OpenFile) -> Vec<std::result::Result<u64, String>> {
    let copies = read_copies(file).await.into_iter();
    let described = copies.map(|copy| {
        copy.map(|superblock| superblock.revision).map_err(|unusable| match unusable {
            Unusable::Absent => "empty, or never written".to_owned(),
            Unusable::Version(version) => format!("of format {version}"),
            Unusable::Damaged => "damaged, void or unreadable".to_owned(),
        })
    });
    described.collect()
}

/// The copies that can be read, also if no two of them agree: that is no identity, but shows whose
/// directory it was.
pub(crate) async fn readable_copies(file: &OpenFile) -> Vec<Superblock> {
    read_copies(file).await.into_iter().flatten().collect()
}

async fn read_copies(file: &OpenFile) -> Vec<std::result::Result<Superblock, Unusable>> {
    let mut copies = Vec::new();
    for offset in offsets() {
        let block = file.read(offset, BLOCK).await.map_err(|_| Unusable::Damaged);
        copies.push(block.and_then(|block| Superblock::decode(&block)));
    }
    copies
}

fn offsets() -> impl Iterator<Item = u64> {
    (0..COPIES).map(|copy| copy * SPACING)
}

/// The newest content that at least two copies hold.
fn elect(
    location: &str,
    copies: &[std::result::Result<Superblock, Unusable>],
) -> Result<Superblock> {
    let usable: Vec<&Superblock> = copies.iter().flatten().collect();
    let agreed = usable
        .iter()
        .filter(|a| usable.iter().filter(|b| a == b).count() >= QUORUM)
        .max_by_key(|a| a.revision);
    if let Some(superblock) = agreed {
        return Ok((*superblock).clone());
    }
    let other = copies.iter().find_map(|c| match c {
        Err(Unusable::Version(version)) => Some(*version),
        _ => None,
    });
    if let Some(found) = other {
        let location = location.to_owned();
        let supported = FIRST_FORMAT..=NEWEST_FORMAT;
        return Err(Error::OtherFormat { location, found, supported });
    }
    let not_formatted = |reason: &str| {
        Err(Error::NotFormatted { location: location.to_owned(), reason: reason.to_owned() })
    };
    let absent = copies.iter().filter(|copy| matches!(copy, Err(Unusable::Absent))).count();
    if absent == copies.len() {
        return not_formatted(NO_SUPERBLOCK);
    }
    // A format writes two of them at once, and only then the others.
    if let [only] = usable[..]
        && only.revision == FIRST_REVISION
        && absent + 1 == copies.len()
    {
        return not_formatted(
            "its superblock is not whole, as a format leaves it that is killed in its last step; if so, remove the files in it",
        );
    }
    let expected = format!("{QUORUM} of {COPIES} copies that agree");
    let found = format!("{} readable, none twice", usable.len());
    Err(Corruption::new(FileKind::Superblock, 0, SUPERBLOCK_BYTES, expected, found).into())
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
        // (copies, revision elected); the states that a torn update or two damaged copies can
        // leave.
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
        use Unusable::{Absent, Damaged, Version};
        let absent = elect("d", &[Err(Absent), Err(Absent), Err(Absent), Err(Absent)]);
        assert!(matches!(absent, Err(Error::NotFormatted { .. })));
        let of_revision = |n| Superblock { revision: n, ..example() };
        for copy in 0..QUORUM {
            let mut killed = vec![Err(Absent); 4];
            killed[copy] = Ok(of_revision(FIRST_REVISION));
            assert!(matches!(elect("d", &killed), Err(Error::NotFormatted { .. })));
            killed[copy] = Ok(of_revision(FIRST_REVISION + 1));
            assert!(matches!(elect("d", &killed), Err(Error::Corrupt(_))), "it was opened");
            killed[copy] = Ok(of_revision(FIRST_REVISION));
            killed[3] = Err(Damaged);
            assert!(matches!(elect("d", &killed), Err(Error::Corrupt(_))), "it had four copies");
        }
        for found in [1, 9] {
            let other = Err(Version(found));
            let copies = [other.clone(), other.clone(), other, Err(Damaged)];
            let error = elect("d", &copies).unwrap_err();
            assert!(!error.is_identity_lost(), "it is never formatted again by itself");
            let message = error.to_string();
            let versions = format!("format version {found}; this program reads versions 2 to 3");
            let way_out = if found == 1 { "into a new cluster" } else { "newer cairn" };
            assert!(message.contains(&versions) && message.contains(way_out), "{message}");
        }
        let damaged = elect("d", &[Err(Damaged), Err(Absent), Err(Absent), Err(Absent)]);
        assert!(matches!(damaged, Err(Error::Corrupt(_))));
    }
}
