//! A disk in memory that loses power at a chosen operation.
//!
//! A write is in flight until its future is polled a second time. When the power goes, each block
//! of a write in flight is kept, lost or garbled. On a disk with a volatile cache, each block of a
//! completed write that no sync covers is kept or lost. A sync may fail; what it should have
//! covered becomes safe only by being written again.

mod held;

use cairn_engine::Geometry;
use cairn_engine::io::{
    AlignedBuf, BLOCK, Device, Directory, FileKind, IoFuture, SUPERBLOCK_BYTES,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// What the disk's cache does when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Completed writes stay.
    Protected,
    /// Completed writes stay only if a sync covers them.
    Volatile,
}

#[derive(Clone, Default)]
struct File {
    /// What reads return.
    current: Vec<u8>,
    /// What survives a power cut.
    synced: Vec<u8>,
    /// For each synced block, the number of the arrival whose content `synced` has.
    kept: BTreeMap<u64, u64>,
    /// Blocks of completed writes that no sync covers, each with the number of its last arrival.
    unsynced: BTreeMap<u64, u64>,
    /// Those of `unsynced` that a failed sync should have covered.
    failed_sync: BTreeSet<u64>,
    /// Writes in flight.
    in_flight: BTreeMap<u64, (u64, Vec<u8>)>,
}

pub struct Core {
    files: BTreeMap<FileKind, File>,
    next_write: u64,
    /// Writes and syncs so far.
    pub operations: u64,
    /// Reads so far.
    pub reads: u64,
    /// The operation at which the power goes.
    pub cut_at: Option<u64>,
    dead: bool,
    epoch: u64,
    pub fail_syncs: bool,
    /// Syncs so far, and which of them fail.
    pub syncs: u64,
    pub failing: Range<u64>,
    /// The next write of a living engine to this file fails; the next of any never returns.
    pub fail_write: Option<FileKind>,
    pub hang_write: Option<FileKind>,
    /// A read ends a moment after it began.
    pub slow_reads: bool,
    /// Reads of this file never return, from the read of this number on.
    pub hang_reads: Option<(FileKind, u64)>,
    /// After `misread_after` reads of anything, the next read of each of these blocks returns a
    /// flipped bit.
    pub misread: Vec<(FileKind, u64)>,
    pub misread_after: u32,
    /// Blocks that cannot be read until they are written again.
    pub worn: BTreeSet<(FileKind, u64)>,
    /// The next write to this file ends only with [`Disk::end_stalled`], even if its caller stops
    /// waiting.
    pub stall_next: Option<FileKind>,
    stalled: Option<(FileKind, u64)>,
    /// Writes and syncs of this file do not end until [`Disk::release`].
    held: Option<FileKind>,
    /// Writes that have arrived.
    arrivals: u64,
    /// Returns how much is acknowledged, for [`Disk::durable`].
    counts: Option<Arc<dyn Fn() -> usize + Send + Sync>>,
    /// What `counts` returned when the last completed sync of a file began.
    durable: BTreeMap<FileKind, usize>,
    /// Blocks whose completed writes the last power cut lost.
    lost: u64,
}

/// The disk. It outlives the engines that use it.
#[derive(Clone)]
pub struct Disk {
    pub core: Arc<Mutex<Core>>,
    pub died: Arc<Notify>,
    /// Notified of the first sync of `failing`.
    pub sync_failed: Arc<Notify>,
    released: Arc<Notify>,
}

impl Disk {
    pub fn new(geometry: Geometry) -> Disk {
        let size = |kind| match kind {
            FileKind::Superblock => SUPERBLOCK_BYTES,
            FileKind::Journal => geometry.journal_bytes,
            FileKind::Data => geometry.data_bytes,
            _ => geometry.checkpoint_bytes,
        };
        let file = |kind| {
            let zeros = vec![0; size(kind) as usize];
            (kind, File { current: zeros.clone(), synced: zeros, ..File::default() })
        };
        let core = Core {
            files: FileKind::ALL.into_iter().map(file).collect(),
            next_write: 0,
            operations: 0,
            reads: 0,
            cut_at: None,
            dead: false,
            epoch: 0,
            fail_syncs: false,
            syncs: 0,
            failing: 0..0,
            fail_write: None,
            hang_write: None,
            slow_reads: false,
            hang_reads: None,
            misread: Vec::new(),
            misread_after: 0,
            worn: BTreeSet::new(),
            stall_next: None,
            stalled: None,
            held: None,
            arrivals: 0,
            counts: None,
            durable: BTreeMap::new(),
            lost: 0,
        };
        Disk {
            core: Arc::new(Mutex::new(core)),
            died: Arc::default(),
            sync_failed: Arc::default(),
            released: Arc::default(),
        }
    }

    /// Changes the stored bytes of a file.
    pub fn damage(&self, kind: FileKind, change: impl FnOnce(&mut [u8])) {
        let mut core = self.core.lock().unwrap();
        let file = core.files.get_mut(&kind).unwrap();
        change(&mut file.current);
        file.synced = file.current.clone();
    }

    /// Makes a file longer, by zeros that are synced, or shorter.
    pub fn resize(&self, kind: FileKind, bytes: u64) {
        let mut core = self.core.lock().unwrap();
        let file = core.files.get_mut(&kind).unwrap();
        file.current.resize(bytes as usize, 0);
        file.synced.resize(bytes as usize, 0);
    }

    pub fn bytes(&self, kind: FileKind) -> Vec<u8> {
        self.core.lock().unwrap().files[&kind].current.clone()
    }

    /// What a power cut certainly leaves.
    pub fn synced(&self, kind: FileKind) -> Vec<u8> {
        self.core.lock().unwrap().files[&kind].synced.clone()
    }

    /// The machine boots again; `random` decides what was lost.
    pub fn reboot(&self, cache: Cache, mut random: impl FnMut() -> u64) {
        let mut core = self.core.lock().unwrap();
        core.dead = false;
        core.cut_at = None;
        core.held = None;
        // The next open syncs whatever is left.
        core.counts = None;
        core.epoch += 1;
        let mut lost = 0;
        for file in core.files.values_mut() {
            let mut image =
                if cache == Cache::Protected { file.current.clone() } else { file.synced.clone() };
            if cache == Cache::Volatile {
                for block in file.unsynced.keys() {
                    let range = *block as usize * BLOCK..(*block as usize + 1) * BLOCK;
                    if random().is_multiple_of(2) {
                        image[range.clone()].copy_from_slice(&file.current[range]);
                    } else {
                        lost += u64::from(image[range.clone()] != file.current[range]);
                    }
                }
            }
            for (offset, bytes) in std::mem::take(&mut file.in_flight).into_values() {
                for (i, block) in bytes.chunks(BLOCK).enumerate() {
                    if random().is_multiple_of(2) {
                        let at = offset as usize + i * BLOCK;
                        image[at..at + BLOCK].copy_from_slice(block);
                    }
                    if cache == Cache::Volatile && random().is_multiple_of(4) {
                        // A sector that was being written when the power went.
                        let at = offset as usize + i * BLOCK + 512 * (random() % 8) as usize;
                        image[at..at + 512].iter_mut().for_each(|byte| *byte ^= 0x5a);
                    }
                }
            }
            file.unsynced.clear();
            file.failed_sync.clear();
            file.current = image.clone();
            file.synced = image;
        }
        core.lost = lost;
    }

    /// The process dies and the machine keeps running: writes in flight end in any way, no
    /// completed write is lost.
    pub fn kill(&self, random: impl FnMut() -> u64) {
        let unsynced: Vec<_> = {
            let core = self.core.lock().unwrap();
            core.files
                .iter()
                .map(|(k, f)| (*k, f.unsynced.clone(), f.failed_sync.clone(), f.synced.clone()))
                .collect()
        };
        self.reboot(Cache::Protected, random);
        let mut core = self.core.lock().unwrap();
        core.arrivals += 1;
        let arrived = core.arrivals;
        for (kind, blocks, failed_sync, synced) in unsynced {
            let file = core.files.get_mut(&kind).unwrap();
            file.unsynced = blocks;
            // Also what was in flight and arrived: a later sync covers it.
            let pairs = file.current.chunks(BLOCK).zip(synced.chunks(BLOCK));
            for (block, (current, synced)) in (0..).zip(pairs) {
                if current != synced && !failed_sync.contains(&block) {
                    file.unsynced.entry(block).or_insert(arrived);
                }
            }
            file.failed_sync = failed_sync;
            file.synced = synced;
        }
    }

    /// The target range of a stalled write.
    pub fn stalled(&self) -> Option<Range<u64>> {
        let core = self.core.lock().unwrap();
        let (kind, number) = core.stalled?;
        let (offset, bytes) = &core.files[&kind].in_flight[&number];
        Some(*offset..offset + bytes.len() as u64)
    }

    /// Completes the stalled write.
    pub fn end_stalled(&self) {
        let mut core = self.core.lock().unwrap();
        let (kind, number) = core.stalled.take().unwrap();
        core.arrives(kind, number);
    }

    /// The kernel drops some of what failed syncs should have covered: reads return the content
    /// before. Returns the number of blocks.
    pub fn drop_failed_syncs(&self, mut drops: impl FnMut(FileKind) -> bool) -> u64 {
        let mut core = self.core.lock().unwrap();
        let mut dropped = 0;
        for (kind, file) in &mut core.files {
            let File { current, synced, unsynced, failed_sync, .. } = file;
            failed_sync.retain(|block| {
                let drop = drops(*kind);
                if drop {
                    let range = *block as usize * BLOCK..(*block as usize + 1) * BLOCK;
                    current[range.clone()].copy_from_slice(&synced[range]);
                    unsynced.remove(block);
                    dropped += 1;
                }
                !drop
            });
        }
        dropped
    }
}

impl Core {
    /// Completes a write in flight, if it has not completed yet.
    fn arrives(&mut self, kind: FileKind, number: u64) {
        let file = self.files.get_mut(&kind).unwrap();
        let Some((offset, bytes)) = file.in_flight.remove(&number) else { return };
        file.current[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
        let first = offset / BLOCK as u64;
        let blocks = first..first + (bytes.len() / BLOCK) as u64;
        self.arrivals += 1;
        file.unsynced.extend(blocks.clone().map(|block| (block, self.arrivals)));
        for block in blocks.clone() {
            file.failed_sync.remove(&block);
        }
        self.worn.retain(|(worn, block)| *worn != kind || !blocks.contains(block));
    }
}

struct Handle {
    disk: Disk,
    kind: FileKind,
    epoch: u64,
}

impl Handle {
    /// Counts an operation. Returns `false` once the power is gone.
    fn begins(&self, core: &mut Core) -> bool {
        if core.epoch != self.epoch {
            return false;
        }
        core.operations += 1;
        if core.cut_at == Some(core.operations) {
            core.dead = true;
            self.disk.died.notify_one();
        }
        !core.dead
    }

    fn alive(&self, core: &Core) -> bool {
        core.epoch == self.epoch && !core.dead
    }
}

impl Directory for Disk {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        let epoch = self.core.lock().unwrap().epoch;
        Ok(Arc::new(Handle { disk: self.clone(), kind, epoch }))
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn backend(&self) -> &'static str {
        "simulated"
    }
}

impl Device for Handle {
    fn size(&self) -> u64 {
        self.disk.core.lock().unwrap().files[&self.kind].current.len() as u64
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let mut core = self.disk.core.lock().unwrap();
        let alive = self.alive(&core);
        core.reads += 1;
        let file = &core.files[&self.kind];
        let len = buf.len();
        buf.copy_from_slice(&file.current[offset as usize..offset as usize + len]);
        let first = offset / BLOCK as u64;
        let blocks = first..first + (len / BLOCK) as u64;
        let worn = blocks.clone().any(|block| core.worn.contains(&(self.kind, block)));
        let hangs = |(kind, from)| kind == self.kind && core.reads > from;
        let alive = alive && !core.hang_reads.is_some_and(hangs);
        let slow = core.slow_reads;
        let spared = core.misread_after > 0;
        core.misread_after = core.misread_after.saturating_sub(1);
        core.misread.retain(|(kind, block)| {
            let struck = !spared && *kind == self.kind && blocks.contains(block);
            if struck {
                buf[(block - first) as usize * BLOCK + 1000] ^= 1;
            }
            !struck
        });
        drop(core);
        Box::pin(async move {
            if !alive {
                std::future::pending::<()>().await;
            }
            if slow {
                tokio::task::yield_now().await;
            }
            (if worn { Err(io::Error::other("worn")) } else { Ok(()) }, buf)
        })
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let disk = self.disk.clone();
        let (kind, epoch) = (self.kind, self.epoch);
        let mut core = disk.core.lock().unwrap();
        let number = core.next_write;
        core.next_write += 1;
        let alive = self.begins(&mut core) || core.epoch == epoch;
        if alive {
            // The write that triggers the cut is in flight like the others.
            core.files.get_mut(&kind).unwrap().in_flight.insert(number, (offset, buf.to_vec()));
            if core.stall_next == Some(kind) {
                (core.stall_next, core.stalled) = (None, Some((kind, number)));
            }
        }
        let fails = alive && core.fail_write.take_if(|failing| *failing == kind).is_some();
        let hangs = core.hang_write.take_if(|hanging| *hanging == kind).is_some();
        drop(core);
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            if fails {
                return (Err(io::Error::other("injected")), buf);
            }
            tokio::task::yield_now().await;
            disk.while_held(kind, number).await;
            while disk.core.lock().unwrap().stalled == Some((kind, number)) {
                tokio::task::yield_now().await;
            }
            let gone = {
                let mut core = disk.core.lock().unwrap();
                let gone = core.dead || core.epoch != epoch;
                if !gone {
                    core.arrives(kind, number);
                }
                gone
            };
            if gone {
                std::future::pending::<()>().await;
            }
            (Ok(()), buf)
        })
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let disk = self.disk.clone();
        let (kind, epoch) = (self.kind, self.epoch);
        let mut core = disk.core.lock().unwrap();
        let alive = self.begins(&mut core);
        // The sync covers what completed before this call, with its present content.
        let file = &core.files[&kind];
        let range = |block: u64| block as usize * BLOCK..(block as usize + 1) * BLOCK;
        let covered: BTreeMap<u64, (u64, Vec<u8>)> = file
            .unsynced
            .iter()
            .map(|(block, arrival)| (*block, (*arrival, file.current[range(*block)].to_vec())))
            .collect();
        let acknowledged = core.counts.as_ref().map(|counts| counts());
        let number = core.syncs;
        core.syncs += 1;
        drop(core);
        Box::pin(async move {
            tokio::task::yield_now().await;
            disk.while_held(kind, number).await;
            let (gone, fails) = {
                let mut core = disk.core.lock().unwrap();
                let gone = !alive || core.dead || core.epoch != epoch;
                let fails = core.fail_syncs || core.failing.contains(&number);
                if fails && number == core.failing.start {
                    disk.sync_failed.notify_one();
                }
                if !gone && fails {
                    core.files.get_mut(&kind).unwrap().failed_sync.extend(covered.into_keys());
                } else if !gone {
                    let File { synced, kept, unsynced, failed_sync, .. } =
                        core.files.get_mut(&kind).unwrap();
                    for (block, (arrival, bytes)) in covered {
                        if failed_sync.contains(&block) {
                            continue;
                        }
                        // A later sync may have ended earlier.
                        let kept = kept.entry(block).or_default();
                        if *kept < arrival {
                            synced[range(block)].copy_from_slice(&bytes);
                            *kept = arrival;
                        }
                        if unsynced.get(&block) == Some(&arrival) {
                            unsynced.remove(&block);
                        }
                    }
                    if let Some(acknowledged) = acknowledged {
                        let durable = core.durable.entry(kind).or_default();
                        *durable = acknowledged.max(*durable);
                    }
                }
                (gone, fails)
            };
            if gone {
                std::future::pending::<()>().await;
            }
            if fails { Err(io::Error::other("injected")) } else { Ok(()) }
        })
    }
}
