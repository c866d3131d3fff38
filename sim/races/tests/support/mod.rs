//! A disk in memory whose operations end in any order, and the exploration of a scenario.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

use raced_engine::io::{AlignedBuf, BLOCK, Device, Directory, FileKind, IoFuture};
use raced_engine::{
    Engine, Geometry, GroupId, Identity, KernelBootId, LogId, Mode, Options, SharedImage,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

pub const GROUP: GroupId = GroupId(0);
/// The offset of the unsynced-ack flag in a copy of the superblock, the number of copies, and their
/// distance.
const FLAG_AT: usize = 144;
const COPIES: usize = 4;
const SPACING: usize = 16 << 10;

#[derive(Clone, Default)]
struct File {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    unsynced: BTreeSet<usize>,
    /// Blocks that were ever written.
    written: BTreeSet<usize>,
}

/// No thread can be stopped while it holds this lock, so the lock need not be explored.
#[derive(Clone)]
pub struct Disk {
    files: Arc<Mutex<BTreeMap<FileKind, File>>>,
    /// A write to this file never ends.
    pub hangs: Option<FileKind>,
}

impl Disk {
    fn new() -> Disk {
        let zeros = |kind| vec![0; geometry().bytes_of(kind) as usize];
        let file =
            |kind| (kind, File { bytes: zeros(kind), synced: zeros(kind), ..File::default() });
        Disk {
            files: Arc::new(Mutex::new(FileKind::ALL.into_iter().map(file).collect())),
            hangs: None,
        }
    }

    fn copy(&self) -> Disk {
        Disk { files: Arc::new(Mutex::new(self.files.lock().unwrap().clone())), hangs: None }
    }

    /// Whether every copy of the superblock has the flag, synced.
    pub fn flag_is_synced(&self) -> bool {
        let files = self.files.lock().unwrap();
        (0..COPIES).all(|copy| files[&FileKind::Superblock].synced[copy * SPACING + FLAG_AT] == 1)
    }

    /// Whether a journal block with these bytes is synced.
    pub fn is_synced(&self, record: &[u8]) -> bool {
        let files = self.files.lock().unwrap();
        let journal = &files[&FileKind::Journal];
        journal.written.iter().any(|block| {
            let block = &journal.synced[block * BLOCK..(block + 1) * BLOCK];
            block.windows(record.len()).any(|bytes| bytes == record)
        })
    }
}

impl Directory for Disk {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(Handle { disk: self.clone(), kind }))
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn backend(&self) -> &'static str {
        "simulated"
    }
}

struct Handle {
    disk: Disk,
    kind: FileKind,
}

/// Waits for the task's next turn. Unlike a yield it requests nothing from the scheduler, so one
/// thread may do many operations while another is held back.
async fn later() {
    let mut waited = false;
    std::future::poll_fn(|context| match std::mem::replace(&mut waited, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

impl Device for Handle {
    fn size(&self) -> u64 {
        self.disk.files.lock().unwrap()[&self.kind].bytes.len() as u64
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (disk, kind) = (self.disk.clone(), self.kind);
        Box::pin(async move {
            later().await;
            let len = buf.len();
            buf.copy_from_slice(
                &disk.files.lock().unwrap()[&kind].bytes[offset as usize..offset as usize + len],
            );
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (disk, kind) = (self.disk.clone(), self.kind);
        Box::pin(async move {
            if disk.hangs == Some(kind) {
                std::future::pending::<()>().await;
            }
            later().await;
            {
                let mut files = disk.files.lock().unwrap();
                let file = files.get_mut(&kind).unwrap();
                file.bytes[offset as usize..offset as usize + buf.len()].copy_from_slice(&buf);
                let first = offset as usize / BLOCK;
                file.unsynced.extend(first..first + buf.len() / BLOCK);
                file.written.extend(first..first + buf.len() / BLOCK);
            }
            (Ok(()), buf)
        })
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let (disk, kind) = (self.disk.clone(), self.kind);
        let covered: Vec<(usize, Vec<u8>)> = {
            let files = disk.files.lock().unwrap();
            let file = &files[&kind];
            file.unsynced
                .iter()
                .map(|block| (*block, file.bytes[block * BLOCK..(block + 1) * BLOCK].to_vec()))
                .collect()
        };
        Box::pin(async move {
            later().await;
            let mut files = disk.files.lock().unwrap();
            let file = files.get_mut(&kind).unwrap();
            for (block, bytes) in covered {
                file.synced[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&bytes);
                if file.bytes[block * BLOCK..(block + 1) * BLOCK] == bytes {
                    file.unsynced.remove(&block);
                }
            }
            Ok(())
        })
    }
}

pub fn geometry() -> Geometry {
    Geometry { journal_bytes: 1 << 20, checkpoint_bytes: 1 << 20, data_bytes: 4 << 20 }
}

pub fn options(mode: Mode) -> Options {
    Options {
        log_cache_bytes: 0,
        io_timeout: Duration::from_secs(30),
        ..Options::new(mode, KernelBootId(1), 1)
    }
}

pub fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

pub fn image(n: u64) -> SharedImage {
    Arc::new(n.to_le_bytes().to_vec())
}

/// Runs a scenario once, to prepare a disk for other scenarios.
pub fn prepared<F: Future<Output = ()> + Send + 'static>(
    fill: impl Fn(Engine) -> F + Send + Sync + 'static,
) -> Disk {
    let disk = Disk::new();
    let (made, fill) = (disk.clone(), Arc::new(fill));
    let once = move || {
        tokio::time::reset();
        let (disk, fill) = (made.clone(), fill.clone());
        shuttle::future::block_on(async move {
            let identity = Identity { cluster: "test".into(), slot: 1, incarnation: 77 };
            Engine::format(&disk, geometry(), &identity).await.unwrap();
            let engine = Engine::open(Arc::new(disk), None, options(Mode::Sync)).await.unwrap();
            fill(engine.clone()).await;
            engine.close().await.unwrap();
        });
    };
    Runner::new(RandomScheduler::new_from_seed(1, 1), config()).run(once);
    disk
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config
}

/// Runs a scenario on a copy of a disk in many orders: `CAIRN_RACES` of them (`most` unless set)
/// chosen at random, and as many in which few threads are held back for long.
pub fn explore<F: Future<Output = ()> + Send + 'static>(
    disk: Disk,
    most: usize,
    scenario: impl Fn(Disk) -> F + Send + Sync + 'static,
) {
    let runs = std::env::var("CAIRN_RACES").map_or(most, |set| set.parse().unwrap());
    let scenario = Arc::new(move || {
        tokio::time::reset();
        let disk = disk.copy();
        shuttle::future::block_on(async {
            scenario(disk.clone()).await;
            // The engine's own tasks must end too.
            while Arc::strong_count(&disk.files) > 1 {
                tokio::time::advance(Duration::from_secs(1));
                shuttle::future::yield_now().await;
            }
        });
    });
    let again = scenario.clone();
    Runner::new(RandomScheduler::new_from_seed(11, runs), config()).run(move || scenario());
    Runner::new(PctScheduler::new_from_seed(12, 4, runs), config()).run(move || again());
}

pub async fn open(disk: &Disk, options: Options) -> Engine {
    Engine::open(Arc::new(disk.clone()), None, options).await.unwrap()
}
