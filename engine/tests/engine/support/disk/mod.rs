//! A disk in memory that loses power at a chosen operation. What it loses, tears and damages then is
//! up to `cairn-disk`; this decides when an operation ends.
//!
//! A write is in flight until its future is polled a second time. If that never happens, it stays in
//! flight until the process or the power ends.

mod held;

use cairn_disk::{FailedSyncs, Failing, FileImage, Files};
use cairn_engine::Geometry;
use cairn_engine::io::{AlignedBuf, BLOCK, Device, Directory, FileKind, IoFuture};
use rand::{SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::future::pending;
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

/// What becomes of that which may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Kept,
    Lost,
    /// Each block has its own fate, drawn from this seed.
    Random(u64),
}

pub struct Core {
    pub rules: cairn_disk::Core,
    /// Writes and syncs so far.
    pub operations: u64,
    /// Reads so far.
    pub reads: u64,
    /// Bytes of the writes to each file so far.
    pub written: BTreeMap<FileKind, u64>,
    /// The operation at which the power goes.
    pub cut_at: Option<u64>,
    dead: bool,
    pub fail_syncs: bool,
    /// Syncs so far, and which of them fail.
    pub syncs: u64,
    pub failing: Range<u64>,
    /// A read ends a moment after it began.
    pub slow_reads: bool,
    /// Reads of this file never return, from the read of this number on.
    pub hang_reads: Option<(FileKind, u64)>,
    /// After `misread_after` reads of anything, the next read of each of these blocks returns a
    /// flipped bit.
    pub misread: Vec<(FileKind, u64)>,
    pub misread_after: u32,
    /// The next write to this file ends only with [`Disk::end_stalled`], even if its caller stops
    /// waiting.
    pub stall_next: Option<FileKind>,
    stalled: Option<Stalled>,
    /// Writes and syncs of this file do not end until [`Disk::release`].
    held: Option<FileKind>,
    /// Returns how much is acknowledged, for [`Disk::durable`].
    counts: Option<Arc<dyn Fn() -> usize + Send + Sync>>,
    /// What `counts` returned when the last completed sync of a file began.
    durable: BTreeMap<FileKind, usize>,
    /// Blocks whose completed writes the last power cut lost.
    lost: u64,
}

struct Stalled {
    epoch: u64,
    kind: FileKind,
    id: u64,
    bytes: Range<u64>,
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
        Disk::of(cairn_disk::Core::new(false, &geometry).copy())
    }

    fn of(files: Files) -> Disk {
        let core = Core {
            rules: cairn_disk::Core::of(false, files),
            operations: 0,
            reads: 0,
            written: BTreeMap::new(),
            cut_at: None,
            dead: false,
            fail_syncs: false,
            syncs: 0,
            failing: 0..0,
            slow_reads: false,
            hang_reads: None,
            misread: Vec::new(),
            misread_after: 0,
            stall_next: None,
            stalled: None,
            held: None,
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

    /// The next write to this file fails, or never returns.
    pub fn arrange(&self, failing: Failing, kind: FileKind) {
        self.core.lock().unwrap().rules.arrange(failing, Some(kind), 0);
    }

    /// Changes a file behind the engine's back.
    pub fn with_file<T>(&self, kind: FileKind, change: impl FnOnce(&mut FileImage) -> T) -> T {
        change(self.core.lock().unwrap().rules.file_mut(kind).unwrap())
    }

    /// Changes the stored bytes of a file.
    pub fn damage(&self, kind: FileKind, change: impl FnOnce(&mut [u8])) {
        self.with_file(kind, |file| file.change(change));
    }

    /// Makes a file longer, by zeros that are synced, or shorter.
    pub fn resize(&self, kind: FileKind, bytes: u64) {
        self.with_file(kind, |file| file.resize(bytes));
    }

    /// These blocks cannot be read until they are written again.
    pub fn wear_out(&self, blocks: impl IntoIterator<Item = (FileKind, u64)>) {
        for (kind, block) in blocks {
            self.with_file(kind, |file| file.wear_out(block));
        }
    }

    /// Every block can be read again.
    pub fn unwear(&self) {
        FileKind::ALL.into_iter().for_each(|kind| self.with_file(kind, FileImage::unwear));
    }

    pub fn bytes(&self, kind: FileKind) -> Vec<u8> {
        self.with_file(kind, |file| file.content())
    }

    /// What a power cut certainly leaves.
    pub fn synced(&self, kind: FileKind) -> Vec<u8> {
        cairn_disk::Core::of(false, self.core.lock().unwrap().at_worst()).content(kind)
    }

    /// The machine boots again.
    pub fn reboot(&self, cache: Cache, fate: Fate) {
        let mut core = self.core.lock().unwrap();
        let mut rng = core.ends(fate);
        core.rules.honours_contract = cache == Cache::Protected || fate == Fate::Kept;
        if cache == Cache::Volatile && fate == Fate::Lost {
            let left = core.at_worst();
            core.rules.exchange(left);
        }
        let damage = core.rules.cut(&mut rng);
        core.lost = damage.dropped + damage.mixed;
    }

    /// The process dies and the machine keeps running: writes in flight end in any way, no
    /// completed write is lost.
    pub fn kill(&self, fate: Fate) {
        self.kill_and(|_| FailedSyncs::Unsafe, fate);
    }

    /// The same, and the kernel drops some of what failed syncs should have covered. Returns the
    /// number of blocks.
    pub fn kill_and(&self, failed: impl Fn(FileKind) -> FailedSyncs, fate: Fate) -> u64 {
        let mut core = self.core.lock().unwrap();
        let mut rng = core.ends(fate);
        core.lost = 0;
        core.rules.kill(failed, &mut rng).dropped
    }

    /// The target range of a stalled write.
    pub fn stalled(&self) -> Option<Range<u64>> {
        self.core.lock().unwrap().stalled.as_ref().map(|stalled| stalled.bytes.clone())
    }

    /// Completes the stalled write.
    pub fn end_stalled(&self) {
        let mut core = self.core.lock().unwrap();
        let Stalled { epoch, kind, id, .. } = core.stalled.take().unwrap();
        core.rules.complete_write(epoch, kind, id).unwrap();
    }
}

impl Core {
    /// The process or the power ends.
    fn ends(&mut self, fate: Fate) -> StdRng {
        (self.dead, self.cut_at, self.held) = (false, None, None);
        // The next open syncs whatever is left.
        self.counts = None;
        let seed = match fate {
            Fate::Random(seed) => seed,
            fate => {
                self.rules.settle(fate == Fate::Kept);
                0
            }
        };
        StdRng::seed_from_u64(seed)
    }

    /// The worst that a power cut may leave of a volatile cache.
    fn at_worst(&self) -> Files {
        self.rules.after_a_cut(true, &mut StdRng::seed_from_u64(0))
    }

    fn alive(&self, epoch: u64) -> bool {
        self.rules.is_current(epoch) && !self.dead
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
        if core.rules.is_current(self.epoch) {
            core.operations += 1;
            if core.cut_at == Some(core.operations) {
                core.dead = true;
                self.disk.died.notify_one();
            }
        }
        core.alive(self.epoch)
    }
}

impl Directory for Disk {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        let rules = &mut self.core.lock().unwrap().rules;
        let (epoch, _) = rules.open(kind)?;
        // A test opens the files again while tasks of a dropped engine still hold them.
        rules.close(epoch, kind);
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
        self.disk.core.lock().unwrap().rules.size(self.kind).unwrap()
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let mut core = self.disk.core.lock().unwrap();
        core.reads += 1;
        let result = core.rules.read(self.epoch, self.kind, offset, &mut buf);
        let hangs = |(kind, from)| kind == self.kind && core.reads > from;
        let hangs = !core.alive(self.epoch) || core.hang_reads.is_some_and(hangs);
        let slow = core.slow_reads;
        let spared = core.misread_after > 0;
        core.misread_after = core.misread_after.saturating_sub(1);
        let first = offset / BLOCK as u64;
        let blocks = first..first + (buf.len() / BLOCK) as u64;
        core.misread.retain(|(kind, block)| {
            let struck = !spared && *kind == self.kind && blocks.contains(block);
            if struck {
                buf[(block - first) as usize * BLOCK + 1000] ^= 1;
            }
            !struck
        });
        drop(core);
        Box::pin(async move {
            if hangs {
                pending::<()>().await;
            }
            if slow {
                tokio::task::yield_now().await;
            }
            (result, buf)
        })
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let disk = self.disk.clone();
        let (kind, epoch) = (self.kind, self.epoch);
        let mut core = disk.core.lock().unwrap();
        self.begins(&mut core);
        *core.written.entry(kind).or_default() += buf.len() as u64;
        // The write that triggers the cut is in flight like the others.
        let begun = core.rules.begin_write(epoch, kind, offset, &buf);
        let hangs = core.rules.hangs(kind);
        let stalls = core.stall_next.take_if(|next| *next == kind).is_some();
        if let (true, Ok(id)) = (stalls, &begun) {
            let bytes = offset..offset + buf.len() as u64;
            core.stalled = Some(Stalled { epoch, kind, id: *id, bytes });
        }
        drop(core);
        Box::pin(async move {
            if hangs {
                pending::<()>().await;
            }
            tokio::task::yield_now().await;
            disk.while_held(kind, *begun.as_ref().unwrap_or(&0)).await;
            while stalls && disk.stalled().is_some() {
                tokio::task::yield_now().await;
            }
            let ended = {
                let mut core = disk.core.lock().unwrap();
                core.alive(epoch).then(|| match stalls {
                    true => Ok(()),
                    false => begun.and_then(|id| core.rules.complete_write(epoch, kind, id)),
                })
            };
            match ended {
                Some(result) => (result, buf),
                None => pending().await,
            }
        })
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let disk = self.disk.clone();
        let (kind, epoch) = (self.kind, self.epoch);
        let mut core = disk.core.lock().unwrap();
        let alive = self.begins(&mut core);
        let begun = core.rules.begin_sync(epoch, kind);
        let acknowledged = core.counts.as_ref().map(|counts| counts());
        let number = core.syncs;
        core.syncs += 1;
        drop(core);
        Box::pin(async move {
            tokio::task::yield_now().await;
            disk.while_held(kind, number).await;
            let ended = {
                let mut core = disk.core.lock().unwrap();
                let chosen = core.fail_syncs || core.failing.contains(&number);
                if chosen && number == core.failing.start {
                    disk.sync_failed.notify_one();
                }
                (alive && core.alive(epoch)).then(|| {
                    let (watermark, fails, power_losses) = begun?;
                    let begun = (watermark, fails || chosen, power_losses);
                    core.rules.complete_sync(epoch, kind, begun)?;
                    if let Some(acknowledged) = acknowledged {
                        let durable = core.durable.entry(kind).or_default();
                        *durable = acknowledged.max(*durable);
                    }
                    Ok(())
                })
            };
            match ended {
                Some(result) => result,
                None => pending().await,
            }
        })
    }
}
