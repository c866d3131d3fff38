//! The disk behind the engine's device seam, under the simulated clock.
//!
//! Every operation begins when it is called and completes after a random time, on a host of its
//! own: pausing or killing the node does not stop the device, and dropping the future cancels
//! nothing.

use cairn_disk::{Core, Damage, Decay, DiskStats, FailedSyncs, Failing, Files};
use cairn_engine::Geometry;
use cairn_engine::io::{AlignedBuf, Device, Directory, FileKind, IoFuture};
use madsim::runtime::NodeHandle;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

struct Inner {
    core: Core,
    /// Generates latencies, and the fate of writes at kills and power cuts.
    rng: StdRng,
    /// One operation in this many takes tens of milliseconds.
    slow_one_in: u32,
    /// An ordinary operation that is not immediate takes up to this many microseconds.
    usual_max_us: u64,
    waiters: Vec<Waiter>,
    /// Until this time no operation completes, or none on this one file.
    stalled: Option<(Instant, Option<FileKind>)>,
    /// Every operation takes this much longer.
    slower: Duration,
    /// No operation takes any time.
    instant: bool,
}

/// The operations that a waiter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Writes to any file.
    Write,
    /// Writes to this one.
    WriteTo(FileKind),
    /// Operations of any kind.
    Operation,
}

/// Wakes a waiter when `left` more of its operations have begun.
struct Waiter {
    moment: Moment,
    left: u32,
    sender: oneshot::Sender<()>,
}

/// One machine's disk. Clones share it; it lives as long as the simulation.
#[derive(Clone)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
    host: NodeHandle,
    name: String,
}

impl SimDisk {
    /// A zeroed disk for this geometry; its operations complete on `host`.
    pub fn new(
        name: String,
        geometry: &Geometry,
        honours_contract: bool,
        seed: u64,
        host: NodeHandle,
    ) -> SimDisk {
        let mut rng = StdRng::seed_from_u64(seed);
        let slow_one_in = *pick(&mut rng, &[20, 100], &1000);
        let usual_max_us = *pick(&mut rng, &[1_500, 2_500], &12_000);
        let core = Core::new(honours_contract, geometry);
        let inner = Inner::new(core, rng, slow_one_in, usual_max_us);
        SimDisk { inner: Arc::new(Mutex::new(inner)), host, name }
    }

    /// A disk that holds these files, for opening a crash image: its operations take no time.
    pub fn of(name: String, files: Files, host: NodeHandle) -> SimDisk {
        let inner = Inner::new(Core::of(true, files), StdRng::seed_from_u64(0), u32::MAX, 1);
        SimDisk { inner: Arc::new(Mutex::new(Inner { instant: true, ..inner })), host, name }
    }

    /// What a power cut now would leave; see [`Core::after_a_cut`].
    pub fn after_a_cut(&self, worst: bool, rng: &mut StdRng) -> Files {
        self.inner.lock().core.after_a_cut(worst, rng)
    }

    /// See [`Core::as_written`].
    pub fn as_written(&self, kind: FileKind, offset: u64, len: usize) -> bool {
        self.inner.lock().core.as_written(kind, offset, len)
    }

    /// See [`Core::is_damaged`].
    pub fn is_damaged(&self, kind: FileKind, number: u64) -> bool {
        self.inner.lock().core.is_damaged(kind, number)
    }

    /// See [`Core::size`].
    pub fn size(&self, kind: FileKind) -> Option<u64> {
        self.inner.lock().core.size(kind)
    }

    /// See [`Core::bytes`].
    pub fn bytes(&self, kind: FileKind, offset: u64, len: usize) -> Option<Vec<u8>> {
        self.inner.lock().core.bytes(kind, offset, len)
    }

    /// From now on every operation takes this much longer than usual.
    pub fn slow_down(&self, by: Duration) {
        self.inner.lock().slower = by;
    }

    /// When the latest stall ends or ended, if there was one.
    pub fn stalled_until(&self) -> Option<Instant> {
        self.inner.lock().stalled.map(|(until, _)| until)
    }

    /// The directory that a node opens.
    pub fn directory(&self) -> Arc<SimDirectory> {
        Arc::new(SimDirectory { disk: self.clone() })
    }

    /// The process ended. To be called in the same poll as madsim's `kill`.
    ///
    /// With `drops` reads may see older content of blocks that failed syncs should have covered.
    pub fn kill(&self, drops: bool) -> Damage {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        let failed = if drops { FailedSyncs::Dropped } else { FailedSyncs::Kept };
        core.kill(|_| failed, rng)
    }

    /// The machine lost power. To be called in the same poll as madsim's `kill`.
    pub fn cut(&self) -> Damage {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.cut(rng)
    }

    /// See [`Core::lose_power`].
    pub fn lose_power(&self, away: bool) -> Option<Damage> {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.lose_power(away, rng)
    }

    /// Counts so far.
    pub fn stats(&self) -> DiskStats {
        self.inner.lock().core.stats()
    }

    /// The digest of every operation so far.
    pub fn digest(&self) -> u64 {
        self.inner.lock().core.digest()
    }

    /// Completed blocks that no sync covers.
    pub fn dirty_blocks(&self) -> usize {
        self.inner.lock().core.dirty_blocks()
    }

    /// Resolves as soon as `count` more of these operations have begun: a moment at which one is in
    /// flight.
    pub async fn after(&self, moment: Moment, count: u32) {
        let (sender, begun) = oneshot::channel();
        self.inner.lock().waiters.push(Waiter { moment, left: count, sender });
        // A waiter's sender is dropped only after it sent.
        let _ = begun.await;
    }

    /// Replaces the files by an empty disk's, after a kill or a power cut. Returns the previous
    /// files.
    pub fn take_out(&self) -> Files {
        let core = &mut self.inner.lock().core;
        let blank = core.blank();
        core.exchange(blank)
    }

    /// A copy of the disk's files, after a kill or a power cut.
    pub fn copy(&self) -> Files {
        self.inner.lock().core.copy()
    }

    /// A copy of the disk's files while they are in use.
    pub fn snapshot(&self) -> Files {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.snapshot(rng)
    }

    /// Puts these files in, and drops the previous ones.
    pub fn put_in(&self, files: Files) {
        drop(self.inner.lock().core.exchange(files));
    }

    /// Frees the disk's files at the end of a run.
    pub fn wipe(&self) {
        self.inner.lock().core.wipe();
    }

    /// Arranges an error; see [`Core::arrange`].
    pub fn arrange(&self, failing: Failing, kind: Option<FileKind>, spared: u32) {
        self.inner.lock().core.arrange(failing, kind, spared);
    }

    /// See [`Core::takes_superblock`].
    pub fn takes_superblock(&self) -> bool {
        self.inner.lock().core.takes_superblock()
    }

    /// Cancels an arranged error that was not applied yet.
    pub fn disarm(&self) {
        self.inner.lock().core.disarm();
    }

    /// How many arranged errors were applied so far.
    pub fn errors(&self) -> u64 {
        self.inner.lock().core.errors()
    }

    /// See [`Core::misread_journal`].
    pub fn misread_journal(&self) -> bool {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.misread_journal(rng)
    }

    /// Ends the misreading.
    pub fn read_right(&self) {
        self.inner.lock().core.read_right();
    }

    /// Whether a block is misread at present.
    pub fn misreads(&self) -> bool {
        self.inner.lock().core.misreads()
    }

    /// See [`Core::decay`].
    pub fn decay(&self, decay: Decay, kind: FileKind, count: usize) -> usize {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.decay(decay, kind, count, rng)
    }

    /// See [`Core::decay_block`].
    pub fn decay_block(&self, decay: Decay, kind: FileKind, number: u64) -> bool {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.decay_block(decay, kind, number, rng)
    }

    /// See [`Core::lose_identity`].
    pub fn lose_identity(&self) {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.lose_identity(rng);
    }

    /// See [`Core::erase`].
    pub fn erase(&self, kind: FileKind) {
        self.inner.lock().core.erase(kind);
    }

    /// See [`Core::flip`].
    pub fn flip(&self, kind: FileKind, offset: u64) -> bool {
        self.inner.lock().core.flip(kind, offset)
    }

    /// See [`Core::arrange_wrong_write`].
    pub fn arrange_wrong_write(&self, kind: FileKind, astray: Option<u64>) -> bool {
        self.inner.lock().core.arrange_wrong_write(kind, astray)
    }

    /// See [`Core::arrange_wrong_read`].
    pub fn arrange_wrong_read(&self, kind: FileKind, choice: u64) {
        self.inner.lock().core.arrange_wrong_read(kind, choice);
    }

    /// From now on every operation does what was asked.
    pub fn behave(&self) {
        self.inner.lock().core.behave();
    }

    /// See [`Core::has_identity`].
    pub fn has_identity(&self) -> bool {
        self.inner.lock().core.has_identity()
    }

    /// The number of damaged blocks that were not forgiven.
    pub fn decayed(&self) -> usize {
        self.inner.lock().core.decayed()
    }

    /// See [`Core::harms`].
    pub fn harms(&self) -> u64 {
        self.inner.lock().core.harms()
    }

    /// See [`Core::harmed_beside_data`].
    pub fn harmed_beside_data(&self) -> usize {
        self.inner.lock().core.harmed_beside_data()
    }

    /// Stops counting the blocks that are still damaged: the harness has checked that they are not
    /// needed.
    pub fn forgive(&self) {
        self.inner.lock().core.forgive();
    }

    /// For this long no operation completes, or none on one file.
    pub fn stall(&self, lasts: Duration, only: Option<FileKind>) {
        self.inner.lock().stalled = Some((Instant::now() + lasts, only));
    }

    /// Runs `finish` on the disk after a random time and sends its result.
    fn later<T: Send + 'static>(
        &self,
        kind: FileKind,
        finish: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let delay = self.inner.lock().delay(kind);
        let inner = self.inner.clone();
        self.host.spawn(async move {
            if let Some(delay) = delay {
                madsim::time::sleep(delay).await;
            }
            let result = finish(&mut inner.lock().core);
            // The caller may be gone: a dropped future does not cancel the operation.
            let _ = sender.send(result);
        });
        receiver
    }
}

impl Inner {
    fn new(core: Core, rng: StdRng, slow_one_in: u32, usual_max_us: u64) -> Inner {
        let (waiters, stalled, slower, instant) = (Vec::new(), None, Duration::ZERO, false);
        Inner { core, rng, slow_one_in, usual_max_us, waiters, stalled, slower, instant }
    }

    /// Counts an operation that begins, and wakes waiters.
    fn tick(&mut self, kind: FileKind, writes: bool) {
        let matches = |moment: Moment| match moment {
            Moment::Operation => true,
            Moment::Write => writes,
            Moment::WriteTo(only) => writes && only == kind,
        };
        let mut waiting = Vec::new();
        for mut waiter in std::mem::take(&mut self.waiters) {
            waiter.left = waiter.left.saturating_sub(u32::from(matches(waiter.moment)));
            match waiter.left {
                // The waiter may be gone.
                0 => drop(waiter.sender.send(())),
                _ if waiter.sender.is_closed() => {}
                _ => waiting.push(waiter),
            }
        }
        self.waiters = waiting;
    }

    fn delay(&mut self, kind: FileKind) -> Option<Duration> {
        if self.instant {
            return None;
        }
        let usual = match self.slower {
            Duration::ZERO => self.latency(),
            slower => Some(self.latency().unwrap_or_default() + slower),
        };
        let left = self
            .stalled
            .filter(|(_, only)| only.is_none_or(|only| only == kind))
            .map(|(until, _)| until.saturating_duration_since(Instant::now()))
            .filter(|left| !left.is_zero());
        match left {
            Some(left) => Some(left + usual.unwrap_or_default()),
            None => usual,
        }
    }

    /// `None` means at the scheduler's next step; madsim's shortest sleep is a millisecond.
    fn latency(&mut self) -> Option<Duration> {
        if self.rng.random_ratio(1, self.slow_one_in) {
            return Some(Duration::from_micros(self.rng.random_range(5_000..60_000)));
        }
        let immediate = self.rng.random_bool(0.5);
        (!immediate).then(|| Duration::from_micros(self.rng.random_range(1_000..self.usual_max_us)))
    }
}

/// One of `some` or `other`, with equal probability.
fn pick<'a, T>(rng: &mut StdRng, some: &'a [T], other: &'a T) -> &'a T {
    some.get(rng.random_range(0..=some.len())).unwrap_or(other)
}

/// A simulated data directory.
pub struct SimDirectory {
    disk: SimDisk,
}

impl Directory for SimDirectory {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        let (epoch, size) = self.disk.inner.lock().core.open(kind)?;
        Ok(Arc::new(SimDevice { disk: self.disk.clone(), kind, epoch, size }))
    }

    fn location(&self) -> String {
        self.disk.name.clone()
    }

    fn backend(&self) -> &'static str {
        "simulated"
    }
}

/// An open file, fenced by the epoch in which it was opened.
struct SimDevice {
    disk: SimDisk,
    kind: FileKind,
    epoch: u64,
    size: u64,
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        self.disk.inner.lock().core.close(self.epoch, self.kind);
    }
}

fn gone() -> io::Error {
    io::Error::other("the simulated disk is gone")
}

impl Device for SimDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (epoch, kind) = (self.epoch, self.kind);
        self.disk.inner.lock().tick(kind, false);
        let done = self.disk.later(kind, move |core| {
            let result = core.read(epoch, kind, offset, &mut buf);
            (result, buf)
        });
        Box::pin(async move { done.await.unwrap_or_else(|_| (Err(gone()), AlignedBuf::zeroed(0))) })
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (epoch, kind) = (self.epoch, self.kind);
        let (begun, hangs) = {
            let mut inner = self.disk.inner.lock();
            inner.tick(kind, true);
            (inner.core.begin_write(epoch, kind, offset, &buf), inner.core.hangs(kind))
        };
        if hangs {
            return Box::pin(std::future::pending());
        }
        let id = match begun {
            Ok(id) => id,
            Err(error) => return Box::pin(async move { (Err(error), buf) }),
        };
        let done = self.disk.later(kind, move |core| core.complete_write(epoch, kind, id));
        Box::pin(async move { (done.await.unwrap_or_else(|_| Err(gone())), buf) })
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let (epoch, kind) = (self.epoch, self.kind);
        let (begun, hangs) = {
            let mut inner = self.disk.inner.lock();
            inner.tick(kind, false);
            (inner.core.begin_sync(epoch, kind), inner.core.hangs(kind))
        };
        if hangs {
            return Box::pin(std::future::pending());
        }
        let begun = match begun {
            Ok(begun) => begun,
            Err(error) => return Box::pin(async move { Err(error) }),
        };
        let done = self.disk.later(kind, move |core| core.complete_sync(epoch, kind, begun));
        Box::pin(async move { done.await.unwrap_or_else(|_| Err(gone())) })
    }
}
