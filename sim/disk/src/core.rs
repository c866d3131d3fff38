//! The disk of one machine: its files, the handles to them, and a running digest of all operations.
//!
//! Pure, like the files under it. What holds here:
//! - a handle carries the epoch in which it was opened; a kill or a power cut begins a new epoch,
//!   and a handle of an older epoch can neither read, write nor sync;
//! - within one epoch a file is open at most once: the lock of a real open file description;
//! - the digest covers kind, offset, content and order of every operation, so two runs with the
//!   same digest did the same I/O.

use crate::cut::{Damage, FailedSyncs};
use crate::image::FileImage;
use crate::wrong::{self, Wrongs};
use cairn_engine::Geometry;
use cairn_engine::io::{BLOCK, FileKind};
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The offset of the flipped bit's byte in its block.
const FLIPPED: u64 = 100;

/// Counts of a disk's operations and damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Reads begun.
    pub reads: u64,
    /// Writes begun.
    pub writes: u64,
    /// Bytes of those writes.
    pub bytes_written: u64,
    /// Syncs begun.
    pub syncs: u64,
    /// Damage done by kills and cuts.
    pub damage: Damage,
    /// Operations that did not do what was asked.
    pub wrongs: Wrongs,
}

/// Part of the text of every arranged error of a write or a sync. Such an error ends a node, which
/// must log it. An error of a read must not end a node.
pub const ARRANGED: &str = "simulated I/O error";

/// The operation that an arranged error is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// A write: what it leaves is unknown.
    Write,
    /// A sync: what it should have covered may be lost, and no later sync brings it back.
    Sync,
    /// A write or a sync never returns, not even with an error.
    Hang,
}

/// An arranged error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arranged {
    pub(crate) failing: Failing,
    pub(crate) kind: Option<FileKind>,
    /// How many operations of the kind succeed before it.
    pub(crate) spared: u32,
}

/// The files of a disk, taken out of its machine.
#[derive(Debug)]
pub struct Files(BTreeMap<FileKind, FileImage>);

/// A disk's whole state.
#[derive(Debug)]
pub struct Core {
    /// Whether the next power cut keeps completed writes, and tears none in flight.
    pub honours_contract: bool,
    pub(crate) files: BTreeMap<FileKind, FileImage>,
    locked: BTreeSet<FileKind>,
    epoch: u64,
    next_id: u64,
    digest: u64,
    stats: DiskStats,
    pub(crate) arranged: Option<Arranged>,
    /// Writes and syncs that end with an error.
    pub(crate) doomed: BTreeSet<u64>,
    /// How often the disk alone lost power.
    pub(crate) power_losses: u64,
    /// The disk is absent: every write and sync fails until the process ends.
    pub(crate) away: bool,
    /// How often blocks at rest were damaged.
    pub(crate) harms: u64,
    /// Arranged errors that were applied.
    pub(crate) errors: u64,
    /// Reads of this block of a file return a flipped bit until the process ends.
    pub(crate) misread: Option<(FileKind, u64)>,
    pub(crate) wrong: wrong::Arranged,
}

impl Core {
    /// A disk with zeroed files.
    pub fn new(honours_contract: bool, geometry: &Geometry) -> Core {
        let zeroed = |kind| (kind, FileImage::zeroed(geometry.bytes_of(kind)));
        Core::of(honours_contract, Files(FileKind::ALL.into_iter().map(zeroed).collect()))
    }

    /// A disk that holds these files.
    pub fn of(honours_contract: bool, files: Files) -> Core {
        Core {
            honours_contract,
            files: files.0,
            locked: BTreeSet::new(),
            epoch: 0,
            next_id: 0,
            digest: 0,
            stats: DiskStats::default(),
            arranged: None,
            doomed: BTreeSet::new(),
            power_losses: 0,
            away: false,
            harms: 0,
            errors: 0,
            misread: None,
            wrong: wrong::Arranged::default(),
        }
    }

    /// Replaces the files and returns the previous ones. Handles of the previous ones are dead.
    pub fn exchange(&mut self, files: Files) -> Files {
        self.end_epoch();
        Files(std::mem::replace(&mut self.files, files.0))
    }

    /// A copy of the disk's files, for a disk at rest, whose process has ended.
    pub fn copy(&self) -> Files {
        Files(self.files.clone())
    }

    /// The content of a snapshot taken below the running machine: of the writes in flight it holds
    /// some, and some blocks of others.
    pub fn snapshot(&self, rng: &mut StdRng) -> Files {
        let mut files = self.copy();
        for file in files.0.values_mut() {
            file.kill(FailedSyncs::Kept, rng);
        }
        files
    }

    /// What a power cut now would leave: in the worst case, or a random case.
    pub fn after_a_cut(&self, worst: bool, rng: &mut StdRng) -> Files {
        let mut files = self.copy();
        for file in files.0.values_mut() {
            match worst {
                true => file.fall_back(self.honours_contract),
                false => drop(file.cut(self.honours_contract, rng)),
            }
        }
        files
    }

    /// Whether each of these bytes of a file is as it was last written.
    pub fn as_written(&self, kind: FileKind, offset: u64, len: usize) -> bool {
        self.files.get(&kind).is_some_and(|file| file.as_written(offset, len))
    }

    /// Whether a block is damaged; see [`FileImage::is_damaged`].
    pub fn is_damaged(&self, kind: FileKind, number: u64) -> bool {
        self.files.get(&kind).is_some_and(|file| file.is_damaged(number))
    }

    /// The size of a file in bytes, if it is there.
    pub fn size(&self, kind: FileKind) -> Option<u64> {
        self.files.get(&kind).map(FileImage::size)
    }

    /// These bytes of a file, without counting as a read; `None` if they cannot be read.
    pub fn bytes(&self, kind: FileKind, offset: u64, len: usize) -> Option<Vec<u8>> {
        self.files.get(&kind)?.bytes(offset, len)
    }

    /// All bytes of a file, also those of blocks that cannot be read.
    pub fn content(&self, kind: FileKind) -> Vec<u8> {
        self.files.get(&kind).map(FileImage::content).unwrap_or_default()
    }

    /// Files of the same sizes, all zeros.
    pub fn blank(&self) -> Files {
        let sizes = self.files.iter().map(|(kind, file)| (*kind, file.size()));
        Files(sizes.map(|(kind, size)| (kind, FileImage::zeroed(size))).collect())
    }

    /// Frees all files.
    pub fn wipe(&mut self) {
        self.files.clear();
    }

    /// Opens a file for the current epoch.
    ///
    /// # Errors
    /// `NotFound` without such a file, `WouldBlock` while it is open.
    pub fn open(&mut self, kind: FileKind) -> io::Result<(u64, u64)> {
        let size = self.files.get(&kind).map(FileImage::size).ok_or(io::ErrorKind::NotFound)?;
        if !self.locked.insert(kind) {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "the file is locked by another handle",
            ));
        }
        Ok((self.epoch, size))
    }

    /// Whether a handle of this epoch still works.
    pub fn is_current(&self, epoch: u64) -> bool {
        epoch == self.epoch
    }

    /// Releases the lock; a handle of an older epoch holds none.
    pub fn close(&mut self, epoch: u64, kind: FileKind) {
        if epoch == self.epoch {
            self.locked.remove(&kind);
        }
    }

    fn file(&mut self, epoch: u64, kind: FileKind) -> io::Result<&mut FileImage> {
        if epoch != self.epoch {
            return Err(io::Error::other("the process that opened this file is dead"));
        }
        self.files.get_mut(&kind).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Fills `target` from `offset`.
    ///
    /// # Errors
    /// `InvalidInput` for a range that a direct read would refuse; a fenced handle's error.
    pub fn read(
        &mut self,
        epoch: u64,
        kind: FileKind,
        offset: u64,
        target: &mut [u8],
    ) -> io::Result<()> {
        let file = self.file(epoch, kind)?;
        if !file.accepts(offset, target.len()) {
            return Err(refused("read", kind, offset, target.len()));
        }
        if let Some(block) = file.unreadable(offset, target.len()) {
            return Err(io::Error::other(format!("simulated medium error: block {block}")));
        }
        file.read(offset, target);
        if let Some((_, block)) = self.misread.filter(|(misread, _)| *misread == kind)
            && let Some(at) = (block * BLOCK as u64 + FLIPPED).checked_sub(offset)
            && let Some(byte) = target.get_mut(at as usize)
        {
            *byte ^= 0x10;
        }
        if let Some(file) = self.files.get(&kind) {
            self.wrong.complete_read(kind, file, offset, target, &mut self.stats.wrongs);
        }
        self.stats.reads += 1;
        self.note(b'r', kind, offset, target.len() as u64);
        Ok(())
    }

    /// Begins a write and returns its id.
    ///
    /// # Errors
    /// As [`Core::read`].
    pub fn begin_write(
        &mut self,
        epoch: u64,
        kind: FileKind,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<u64> {
        let id = self.next_id;
        let file = self.file(epoch, kind)?;
        if !file.accepts(offset, bytes.len()) {
            return Err(refused("write", kind, offset, bytes.len()));
        }
        file.begin(id, offset, bytes);
        if self.away || self.arranged_now(Failing::Write, kind) {
            self.doomed.insert(id);
        } else {
            self.wrong.begin_write(kind, id);
        }
        self.next_id += 1;
        self.stats.writes += 1;
        self.stats.bytes_written += bytes.len() as u64;
        self.note(b'w', kind, offset, xxh3_64_with_seed(bytes, bytes.len() as u64));
        Ok(id)
    }

    /// Completes a write.
    ///
    /// # Errors
    /// A fenced handle's error: then the write's fate was decided when its epoch ended.
    pub fn complete_write(&mut self, epoch: u64, kind: FileKind, id: u64) -> io::Result<()> {
        self.file(epoch, kind)?;
        if self.doomed.remove(&id) {
            // It stays in flight: what it leaves is decided when the process or the machine ends.
            self.note(b'E', kind, id, 0);
            return Err(io::Error::other(ARRANGED));
        }
        if let Some(file) = self.files.get_mut(&kind)
            && self.wrong.complete_write(id, file, &mut self.stats.wrongs)
        {
            self.note(b'x', kind, id, 0);
            return Ok(());
        }
        if !self.file(epoch, kind)?.complete(id) {
            return Err(io::Error::other("the write is unknown"));
        }
        self.note(b'c', kind, id, 0);
        Ok(())
    }

    /// Begins a sync. Returns its watermark, whether it will fail, and how often the disk had lost
    /// power before, for [`Core::complete_sync`].
    ///
    /// # Errors
    /// A fenced handle's error.
    pub fn begin_sync(&mut self, epoch: u64, kind: FileKind) -> io::Result<(u64, bool, u64)> {
        let watermark = self.file(epoch, kind)?.begin_sync();
        self.stats.syncs += 1;
        self.note(b's', kind, watermark, 0);
        Ok((watermark, self.arranged_now(Failing::Sync, kind), self.power_losses))
    }

    /// Ends a sync.
    ///
    /// # Errors
    /// A fenced handle's error, or the arranged one: then the sync made nothing safe.
    pub fn complete_sync(
        &mut self,
        epoch: u64,
        kind: FileKind,
        begun: (u64, bool, u64),
    ) -> io::Result<()> {
        let (watermark, fails, power_losses) = begun;
        let unpowered = self.away || self.power_losses > power_losses;
        let file = self.file(epoch, kind)?;
        if fails || unpowered {
            file.sync_failed(watermark);
            self.note(b'E', kind, watermark, 1);
            return Err(io::Error::other(ARRANGED));
        }
        file.synced_through(watermark);
        self.note(b'd', kind, watermark, 0);
        Ok(())
    }

    /// The process ended; the machine and its dirty blocks live on.
    pub fn kill(&mut self, failed: impl Fn(FileKind) -> FailedSyncs, rng: &mut StdRng) -> Damage {
        self.end_epoch();
        self.end_files(b'k', |kind, file| file.kill(failed(kind), rng))
    }

    /// The machine lost power.
    pub fn cut(&mut self, rng: &mut StdRng) -> Damage {
        self.end_epoch();
        self.cut_files(b'p', rng)
    }

    /// Applies a power cut to all files.
    pub(crate) fn cut_files(&mut self, code: u8, rng: &mut StdRng) -> Damage {
        let honours_contract = self.honours_contract;
        self.end_files(code, |_, file| file.cut(honours_contract, rng))
    }

    fn end_epoch(&mut self) {
        self.epoch += 1;
        self.locked.clear();
        self.doomed.clear();
        self.away = false;
        self.misread = None;
        self.wrong.forget_in_flight();
    }

    fn end_files(
        &mut self,
        code: u8,
        mut end: impl FnMut(FileKind, &mut FileImage) -> Damage,
    ) -> Damage {
        let mut damage = Damage::default();
        for (kind, file) in &mut self.files {
            damage.add(end(*kind, file));
        }
        self.stats.damage.add(damage);
        self.note(code, FileKind::Superblock, damage.kept, damage.landed);
        damage
    }

    /// Ends the writes in flight: all of them land, or none. To be called before the process or the
    /// power ends.
    pub fn settle(&mut self, land: bool) {
        self.files.values_mut().for_each(|file| file.settle(land));
    }

    /// Completed blocks that no sync covers yet.
    pub fn dirty_blocks(&self) -> usize {
        self.files.values().map(FileImage::dirty_blocks).sum()
    }

    /// Counts so far.
    pub fn stats(&self) -> DiskStats {
        self.stats
    }

    /// The digest of every operation so far, in order.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn note(&mut self, code: u8, kind: FileKind, at: u64, content: u64) {
        let mut line = [0_u8; 18];
        let (head, rest) = line.split_at_mut(2);
        head.copy_from_slice(&[code, kind as u8]);
        let (first, second) = rest.split_at_mut(8);
        first.copy_from_slice(&at.to_le_bytes());
        second.copy_from_slice(&content.to_le_bytes());
        self.digest = xxh3_64_with_seed(&line, self.digest);
    }
}

fn refused(operation: &str, kind: FileKind, offset: u64, len: usize) -> io::Error {
    let message = format!(
        "{operation} of {len} bytes at {offset} in `{}`: unaligned or out of range",
        kind.name()
    );
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rand::SeedableRng;

    pub(crate) fn geometry() -> Geometry {
        Geometry { journal_bytes: 1 << 20, checkpoint_bytes: 1 << 20, data_bytes: 1 << 20 }
    }

    fn disk() -> Core {
        let mut disk = Core::new(false, &geometry());
        disk.files.remove(&FileKind::Superblock);
        disk
    }

    #[test]
    fn a_file_is_open_once_until_it_is_closed_or_its_process_dies() {
        let mut disk = disk();
        let (epoch, size) = disk.open(FileKind::Journal).unwrap();
        assert_eq!(size, 1 << 20);
        assert_eq!(disk.open(FileKind::Journal).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        disk.close(epoch, FileKind::Journal);
        disk.open(FileKind::Journal).unwrap();
        disk.kill(|_| FailedSyncs::Kept, &mut StdRng::seed_from_u64(1));
        disk.open(FileKind::Journal).unwrap();
        disk.close(epoch, FileKind::Journal);
        assert!(disk.open(FileKind::Journal).is_err(), "a dead handle's close frees nothing");
        assert_eq!(disk.open(FileKind::Superblock).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_dead_process_can_do_nothing_more() {
        let mut disk = disk();
        let (epoch, _) = disk.open(FileKind::Data).unwrap();
        let id = disk.begin_write(epoch, FileKind::Data, 0, &[1; 4096]).unwrap();
        let watermark = disk.begin_sync(epoch, FileKind::Data).unwrap();
        disk.cut(&mut StdRng::seed_from_u64(1));
        assert!(disk.complete_write(epoch, FileKind::Data, id).is_err());
        assert!(disk.complete_sync(epoch, FileKind::Data, watermark).is_err());
        assert!(disk.begin_write(epoch, FileKind::Data, 0, &[1; 4096]).is_err());
        assert!(disk.read(epoch, FileKind::Data, 0, &mut [0; 4096]).is_err());
    }

    #[test]
    fn equal_operations_give_equal_digests_and_other_content_another() {
        let digest = |byte: u8| {
            let mut disk = disk();
            let (epoch, _) = disk.open(FileKind::Data).unwrap();
            let id = disk.begin_write(epoch, FileKind::Data, 0, &[byte; 4096]).unwrap();
            disk.complete_write(epoch, FileKind::Data, id).unwrap();
            disk.digest()
        };
        assert_eq!(digest(1), digest(1));
        assert_ne!(digest(1), digest(2));
    }

    #[test]
    fn unaligned_io_is_refused() {
        let mut disk = disk();
        let (epoch, _) = disk.open(FileKind::Data).unwrap();
        let error = disk.begin_write(epoch, FileKind::Data, 512, &[0; 4096]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
