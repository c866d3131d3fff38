//! The disk's state: files, their unsynced writes, and the valid handles.
//!
//! What holds here:
//! - a handle is valid until it is closed or the power is cut; afterwards neither a write nor a
//!   sync through it has any effect, so a late write of an ended process cannot land;
//! - a sync makes safe what had been written when it began, and only if no power cut came before
//!   its end;
//! - the files below hold the synced image and nothing else (their own page cache is not under
//!   test).

use super::file::Stored;
use super::overlay::{BLOCK, Cut, CutStyle, Damage, Overlay};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// How many of the last write requests before a power cut count as in flight: their blocks may be
/// torn.
const IN_FLIGHT: usize = 8;

/// How often a flip looks for a block that is not all zeros.
const FLIP_TRIES: usize = 2000;

/// How the disk treats writes and syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Unsynced writes may be lost with the power: a volatile cache, honest about syncs.
    Volatile,
    /// Completed writes survive: what mode `device` assumes.
    Honour,
    /// Reports syncs that it does not do.
    Lie,
}

/// Counts of a disk's operations and damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Write requests.
    pub writes: u64,
    /// Syncs that made something safe.
    pub syncs: u64,
    /// Syncs reported and not done.
    pub lies: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Requests through handles from before a cut.
    pub fenced: u64,
    /// Bits flipped.
    pub flips: u64,
    /// Damage done by all cuts.
    pub damage: Damage,
}

/// One flipped bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// The byte's offset in its file.
    pub offset: u64,
    /// The bit in that byte.
    pub bit: u8,
}

#[derive(Debug)]
struct Store {
    behaviour: Behaviour,
    files: BTreeMap<u64, Stored>,
    /// Open handles and their files.
    handles: BTreeMap<u64, u64>,
    next_handle: u64,
    /// The number of the last write request; the disk's own order of events.
    writes: u64,
    recent: VecDeque<u64>,
    /// How long a sync takes, on average.
    sync_time: Duration,
    rng: StdRng,
    stats: Stats,
}

/// One machine's disk. Clones share it.
#[derive(Clone, Debug)]
pub struct Disk {
    store: Arc<Mutex<Store>>,
}

impl Disk {
    /// An empty disk.
    pub fn new(behaviour: Behaviour) -> Disk {
        let store = Store {
            behaviour,
            files: BTreeMap::new(),
            handles: BTreeMap::new(),
            next_handle: 1,
            writes: 0,
            recent: VecDeque::new(),
            sync_time: Duration::ZERO,
            rng: StdRng::seed_from_u64(0),
            stats: Stats::default(),
        };
        Disk { store: Arc::new(Mutex::new(store)) }
    }

    /// Changes how it treats writes and syncs from now on.
    pub fn behave(&self, behaviour: Behaviour) {
        self.store.lock().behaviour = behaviour;
    }

    /// Makes each sync take a random time from now on, with this average. Writes take no extra
    /// time.
    pub fn sync_takes(&self, time: Duration) {
        self.store.lock().sync_time = time;
    }

    /// Cuts the power in a given style; a disk that honours completed writes keeps them in any
    /// style. To be called when the process that uses the disk has been sent SIGKILL: its later
    /// requests get an error.
    ///
    /// # Errors
    /// Errors of the files below: then the disk's content is undefined.
    pub fn cut(&self, style: CutStyle, rng: &mut StdRng) -> io::Result<Damage> {
        self.store.lock().cut(style, rng)
    }

    /// Counts so far.
    pub fn stats(&self) -> Stats {
        self.store.lock().stats
    }

    /// Flips one bit in a random block of the file that holds not only zeros, in the content that
    /// the disk would return now. `None` if no such block was found.
    ///
    /// # Errors
    /// Errors of the files below.
    pub fn flip(&self, file: u64, rng: &mut StdRng) -> io::Result<Option<Flip>> {
        self.flip_within(file, 0..u64::MAX, rng)
    }

    /// Like [`Disk::flip`], in one of these 4 KiB blocks.
    ///
    /// # Errors
    /// As [`Disk::flip`].
    pub fn flip_within(
        &self,
        file: u64,
        blocks: Range<u64>,
        rng: &mut StdRng,
    ) -> io::Result<Option<Flip>> {
        self.store.lock().flip(file, blocks, rng)
    }

    /// Makes `image` the content of the file with number `file`, unless that is known already.
    pub(super) fn adopt(
        &self,
        file: u64,
        image: impl FnOnce() -> io::Result<File>,
    ) -> io::Result<()> {
        let mut store = self.store.lock();
        if let std::collections::btree_map::Entry::Vacant(vacant) = store.files.entry(file) {
            vacant.insert(Stored { image: image()?, overlay: Overlay::default() });
        }
        Ok(())
    }

    /// A new handle on a file that was adopted.
    pub(super) fn open(&self, file: u64) -> u64 {
        let mut store = self.store.lock();
        let handle = store.next_handle;
        store.next_handle += 1;
        store.handles.insert(handle, file);
        handle
    }

    pub(super) fn close(&self, handle: u64) {
        self.store.lock().handles.remove(&handle);
    }

    pub(super) fn read(&self, handle: u64, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let mut store = self.store.lock();
        store.file(handle)?.read(offset, size)
    }

    pub(super) fn write(&self, handle: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.store.lock().write(handle, offset, bytes)
    }

    /// Begins a sync. Returns the last write that it will make safe, and how long it takes.
    pub(super) fn begin_sync(&self, handle: u64) -> io::Result<(u64, Duration)> {
        self.store.lock().begin_sync(handle)
    }

    /// Ends a sync that was begun through this handle.
    pub(super) fn end_sync(&self, handle: u64, through: u64) -> io::Result<()> {
        self.store.lock().end_sync(handle, through)
    }

    /// Sets the file's size.
    pub(super) fn resize(&self, file: u64, size: u64) -> io::Result<()> {
        let mut store = self.store.lock();
        let stored = store.files.get_mut(&file).ok_or_else(fenced)?;
        stored.overlay.truncate(size.div_ceil(BLOCK as u64));
        stored.image.set_len(size)
    }

    /// Makes the file at least this large.
    pub(super) fn extend(&self, file: u64, size: u64) -> io::Result<()> {
        let mut store = self.store.lock();
        store.files.get_mut(&file).ok_or_else(fenced)?.extend(size)
    }
}

/// The error for a handle from before a power cut.
fn fenced() -> io::Error {
    io::Error::from_raw_os_error(nix::libc::EIO)
}

impl Store {
    fn file(&mut self, handle: u64) -> io::Result<&mut Stored> {
        let file = self.handles.get(&handle).copied();
        match file.and_then(|file| self.files.get_mut(&file)) {
            Some(stored) => Ok(stored),
            None => {
                self.stats.fenced += 1;
                Err(fenced())
            }
        }
    }

    fn write(&mut self, handle: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let number = self.writes + 1;
        self.file(handle)?.write(number, offset, bytes)?;
        self.writes = number;
        self.stats.writes += 1;
        self.recent.push_back(number);
        if self.recent.len() > IN_FLIGHT {
            self.recent.pop_front();
        }
        Ok(())
    }

    fn begin_sync(&mut self, handle: u64) -> io::Result<(u64, Duration)> {
        self.file(handle)?;
        let micros = u64::try_from(self.sync_time.as_micros()).unwrap_or(u64::MAX);
        let time = if micros == 0 { 0 } else { self.rng.random_range(0..=2 * micros) };
        Ok((self.writes, Duration::from_micros(time)))
    }

    fn end_sync(&mut self, handle: u64, through: u64) -> io::Result<()> {
        let lies = self.behaviour == Behaviour::Lie;
        let stored = self.file(handle)?;
        if lies {
            self.stats.lies += 1;
            return Ok(());
        }
        stored.sync(through)?;
        self.stats.syncs += 1;
        Ok(())
    }

    fn cut(&mut self, style: CutStyle, rng: &mut StdRng) -> io::Result<Damage> {
        self.handles.clear();
        let style = if self.behaviour == Behaviour::Honour { CutStyle::Everything } else { style };
        let first = self.files.values().filter_map(|file| file.overlay.first_number()).min();
        let survives_through = match (style, first) {
            (CutStyle::InOrder, Some(first)) => rng.random_range(first - 1..=self.writes),
            _ => self.writes,
        };
        let recent = self.recent.front().map_or(self.writes, |first| first - 1);
        let torn_above = match style {
            CutStyle::InOrder => survives_through.saturating_sub(IN_FLIGHT as u64),
            _ => recent,
        };
        let cut = Cut { style, survives_through, torn_above };
        let mut damage = Damage::default();
        for stored in self.files.values_mut() {
            let (survivors, done) = stored.overlay.cut(cut, rng);
            damage.add(done);
            for survivor in survivors {
                stored.land(&survivor)?;
            }
        }
        self.recent.clear();
        self.stats.cuts += 1;
        self.stats.damage.add(damage);
        Ok(damage)
    }

    fn flip(
        &mut self,
        file: u64,
        blocks: Range<u64>,
        rng: &mut StdRng,
    ) -> io::Result<Option<Flip>> {
        let stored = self.files.get_mut(&file).ok_or(io::ErrorKind::NotFound)?;
        let blocks = blocks.start..blocks.end.min(stored.image.metadata()?.len() / BLOCK as u64);
        if blocks.is_empty() {
            return Ok(None);
        }
        for _ in 0..FLIP_TRIES {
            let number = rng.random_range(blocks.clone());
            let mut block = stored.block(number)?;
            let used: Vec<usize> = (0..BLOCK).filter(|at| block.get(*at) != Some(&0)).collect();
            if used.is_empty() {
                continue;
            }
            let at = used.get(rng.random_range(0..used.len())).copied().unwrap_or_default();
            let bit = rng.random_range(0..8_u8);
            if let Some(byte) = block.get_mut(at) {
                *byte ^= 1 << bit;
            }
            let start = number * BLOCK as u64;
            if !stored.overlay.replace_newest(number, Arc::new(block)) {
                stored.image.write_all_at(&block, start)?;
            }
            self.stats.flips += 1;
            return Ok(Some(Flip { offset: start + at as u64, bit }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 7;

    fn disk() -> (Disk, u64) {
        let disk = Disk::new(Behaviour::Volatile);
        disk.adopt(FILE, tempfile::tempfile).unwrap();
        disk.extend(FILE, 8 * BLOCK as u64).unwrap();
        let handle = disk.open(FILE);
        (disk, handle)
    }

    fn first_bytes(disk: &Disk) -> [u8; 2] {
        let handle = disk.open(FILE);
        [0, 1].map(|block| disk.read(handle, block * BLOCK as u64, BLOCK).unwrap()[0])
    }

    fn lose_all(disk: &Disk) -> Damage {
        disk.cut(CutStyle::Nothing, &mut StdRng::seed_from_u64(0)).unwrap()
    }

    #[test]
    fn a_sync_covers_nothing_written_after_it_began() {
        let (disk, handle) = disk();
        disk.write(handle, 0, &[1; BLOCK]).unwrap();
        let (through, _) = disk.begin_sync(handle).unwrap();
        disk.write(handle, BLOCK as u64, &[2; BLOCK]).unwrap();
        disk.write(handle, 0, &[3; BLOCK]).unwrap();
        disk.end_sync(handle, through).unwrap();
        assert_eq!(first_bytes(&disk), [3, 2]);
        lose_all(&disk);
        assert_eq!(first_bytes(&disk), [1, 0]);
    }

    #[test]
    fn a_sync_that_a_cut_overtakes_fails_and_makes_nothing_safe() {
        let (disk, handle) = disk();
        disk.write(handle, 0, &[1; BLOCK]).unwrap();
        let (through, _) = disk.begin_sync(handle).unwrap();
        let damage = lose_all(&disk);
        assert_eq!(damage, Damage { kept: 0, dropped: 1, torn: 0 });
        assert!(disk.end_sync(handle, through).is_err());
        assert_eq!(first_bytes(&disk), [0, 0]);
        assert_eq!(disk.stats().syncs, 0);
    }

    #[test]
    fn syncs_take_a_random_time_around_the_one_given() {
        let (disk, handle) = disk();
        assert!(disk.begin_sync(handle).unwrap().1.is_zero());
        disk.sync_takes(Duration::from_millis(2));
        let times: Vec<Duration> = (0..100).map(|_| disk.begin_sync(handle).unwrap().1).collect();
        assert!(times.iter().all(|time| *time <= Duration::from_millis(4)));
        assert!(times.iter().any(|time| *time > Duration::from_millis(3)));
    }
}
