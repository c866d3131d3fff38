//! The disk behind the engine's device seam, under the simulated clock.
//!
//! Every operation begins when it is called and completes after a random time, on a host of its own: pausing or
//! killing the node does not stop the device, and dropping the future cancels nothing.

use super::core::{Core, DiskStats};
use super::image::Damage;
use cairn_engine::Geometry;
use cairn_engine::io::{AlignedBuf, Device, Directory, FileKind, IoFuture, SUPERBLOCK_BYTES};
use madsim::runtime::NodeHandle;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

struct Inner {
    core: Core,
    /// Latencies, and the fate of writes at kills and cuts.
    rng: StdRng,
    /// One operation in this many takes tens of milliseconds.
    slow_one_in: u32,
    /// The usual operation that is not immediate takes up to this many microseconds.
    usual_max_us: u64,
    /// Rung when so many more writes have begun.
    alarm: Option<(u32, oneshot::Sender<()>)>,
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
        let sizes = [
            (FileKind::Superblock, SUPERBLOCK_BYTES),
            (FileKind::Journal, geometry.journal_bytes),
            (FileKind::Checkpoint0, geometry.checkpoint_bytes),
            (FileKind::Checkpoint1, geometry.checkpoint_bytes),
            (FileKind::Data, geometry.data_bytes),
        ];
        let mut rng = StdRng::seed_from_u64(seed);
        let slow_one_in = *pick(&mut rng, &[20, 100], &1000);
        let usual_max_us = *pick(&mut rng, &[1_500, 2_500], &12_000);
        let core = Core::new(honours_contract, &sizes);
        let inner = Inner { core, rng, slow_one_in, usual_max_us, alarm: None };
        SimDisk { inner: Arc::new(Mutex::new(inner)), host, name }
    }

    /// The directory that a node opens.
    pub fn directory(&self) -> Arc<SimDirectory> {
        Arc::new(SimDirectory { disk: self.clone() })
    }

    /// The process died. To be called in the same poll as madsim's `kill`.
    pub fn kill(&self) -> Damage {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.kill(rng)
    }

    /// The machine lost power. To be called in the same poll as madsim's `kill`.
    pub fn cut(&self) -> Damage {
        let Inner { core, rng, .. } = &mut *self.inner.lock();
        core.cut(rng)
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

    /// Resolves as soon as `writes` more writes have begun: a moment at which something is in flight.
    pub async fn after_writes(&self, writes: u32) {
        let (bell, rung) = oneshot::channel();
        self.inner.lock().alarm = Some((writes, bell));
        // An alarm that another one replaced rings at once.
        let _ = rung.await;
    }

    /// Runs `finish` on the disk after a random time and hands its result over.
    fn later<T: Send + 'static>(
        &self,
        finish: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let delay = self.inner.lock().latency();
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
    fn tick(&mut self) {
        match &mut self.alarm {
            Some((writes, _)) if *writes > 1 => *writes -= 1,
            Some(_) => {
                if let Some((_, bell)) = self.alarm.take() {
                    // Nobody may be waiting any more.
                    let _ = bell.send(());
                }
            }
            None => {}
        }
    }

    /// Nothing means as soon as the scheduler comes by; madsim's shortest sleep is a millisecond.
    fn latency(&mut self) -> Option<Duration> {
        if self.rng.random_ratio(1, self.slow_one_in) {
            return Some(Duration::from_micros(self.rng.random_range(5_000..60_000)));
        }
        let immediate = self.rng.random_bool(0.5);
        (!immediate).then(|| Duration::from_micros(self.rng.random_range(1_000..self.usual_max_us)))
    }
}

/// One of `some` or `other`, each as likely.
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
        let done = self.disk.later(move |core| {
            let result = core.read(epoch, kind, offset, &mut buf);
            (result, buf)
        });
        Box::pin(async move { done.await.unwrap_or_else(|_| (Err(gone()), AlignedBuf::zeroed(0))) })
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (epoch, kind) = (self.epoch, self.kind);
        let begun = {
            let mut inner = self.disk.inner.lock();
            inner.tick();
            inner.core.begin_write(epoch, kind, offset, &buf)
        };
        let id = match begun {
            Ok(id) => id,
            Err(error) => return Box::pin(async move { (Err(error), buf) }),
        };
        let done = self.disk.later(move |core| core.complete_write(epoch, kind, id));
        Box::pin(async move { (done.await.unwrap_or_else(|_| Err(gone())), buf) })
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let (epoch, kind) = (self.epoch, self.kind);
        let watermark = match self.disk.inner.lock().core.begin_sync(epoch, kind) {
            Ok(watermark) => watermark,
            Err(error) => return Box::pin(async move { Err(error) }),
        };
        let done = self.disk.later(move |core| core.complete_sync(epoch, kind, watermark));
        Box::pin(async move { done.await.unwrap_or_else(|_| Err(gone())) })
    }
}
