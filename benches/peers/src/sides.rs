//! What a row measures: one round of load on one side.
//!
//! What holds here: each side has the same number of requests under way. Cairn's requests are tasks;
//! those of stores whose calls block are threads.

#[cfg(feature = "rocksdb")]
use crate::store::rocks::Rocks;

use crate::store::{Put, Store, group};
use crate::values::{Values, key};
use anyhow::{Context, Result, ensure};
use cairn_engine::io::{AlignedBuf, Device};
use cairn_experiments::{
    BlockingWorker, EngineLog, FileReader, FileStore, Limit, RawReader, Samples, Stop, Worker,
    drive_blocking, drive_until,
};
use rand::rngs::StdRng;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a side may work in the background after a round.
const SETTLE: Duration = Duration::from_secs(10);

/// The load of one round.
pub struct Load {
    /// Requests under way.
    pub depth: usize,
    /// When it ends.
    pub limit: Limit,
    /// Of the random numbers.
    pub seed: u64,
    /// Ends it early.
    pub stop: Stop,
}

/// One side.
#[derive(Clone)]
pub enum Side {
    /// Puts into Cairn's engine.
    EnginePuts(EngineLog),
    /// Gets from it.
    EngineGets(EngineLog),
    /// Direct reads of a file, through the engine's device code.
    RawReads(Arc<dyn Device>),
    /// The same reads of the same file, by threads.
    FileReads(PathBuf),
    /// Puts into a peer.
    StorePuts {
        /// The peer's store.
        store: Arc<dyn Store>,
        /// Whether a put is synced before it is answered.
        synced: bool,
        /// Whether puts go through [`group`].
        grouped: bool,
    },
    /// Gets from RocksDB.
    #[cfg(feature = "rocksdb")]
    RocksGets(Arc<Rocks>),
    /// Puts, each into a file of its own.
    FilePuts(FileStore),
    /// Direct reads of such files.
    FileGets(FileStore),
}

impl Side {
    /// One round.
    ///
    /// # Errors
    /// The first error of a client; `Stopped`.
    pub async fn round(&self, values: &Values, load: &Load) -> Result<Samples> {
        let Load { depth, limit, seed, .. } = *load;
        let stop = &load.stop;
        let clients = (0..depth).map(|number| Client {
            values: values.clone(),
            number,
            rng: Values::client(seed, number),
        });
        match self {
            Side::EnginePuts(log) => {
                let puts = clients.map(|client| EnginePut(log.clone(), client)).collect();
                drive_until(puts, limit, stop).await
            }
            Side::EngineGets(log) => {
                let gets = clients.map(|client| EngineGet(log.clone(), client)).collect();
                drive_until(gets, limit, stop).await
            }
            Side::RawReads(device) => {
                drive_until(RawReader::many(device, depth, seed), limit, stop).await
            }
            Side::FileReads(file) => {
                let readers = FileReader::many(file, depth, seed)?;
                drive_blocking(readers, limit, stop).await
            }
            Side::StorePuts { store, synced, grouped: false } => {
                let put = |client| StorePut(Arc::clone(store), *synced, client);
                drive_blocking(clients.map(put).collect(), limit, stop).await
            }
            Side::StorePuts { store, synced, grouped: true } => {
                let ways = group::Client::many(store, *synced, depth)?;
                let puts = ways.into_iter().zip(clients);
                let puts = puts.map(|(way, client)| GroupedPut(way, client)).collect();
                drive_blocking(puts, limit, stop).await
            }
            #[cfg(feature = "rocksdb")]
            Side::RocksGets(store) => {
                let get = |client| RocksGet(Arc::clone(store), client);
                drive_blocking(clients.map(get).collect(), limit, stop).await
            }
            Side::FilePuts(store) => {
                let put = |client: Client| FilePut {
                    store: store.clone(),
                    value: AlignedBuf::zeroed(client.values.bytes),
                    client,
                };
                drive_blocking(clients.map(put).collect(), limit, stop).await
            }
            Side::FileGets(store) => {
                let get = |client: Client| FileGet {
                    store: store.clone(),
                    into: AlignedBuf::zeroed(client.values.bytes),
                    client,
                };
                drive_blocking(clients.map(get).collect(), limit, stop).await
            }
        }
    }

    /// Ends what the last round left to the background. False if it did not end in time.
    ///
    /// # Errors
    /// The store's.
    pub async fn settle(&self) -> Result<bool> {
        match self {
            Side::EnginePuts(log) => {
                log.engine().sync().await?;
                Ok(true)
            }
            Side::StorePuts { store, .. } => {
                let store = Arc::clone(store);
                blocking(move || store.settle(Instant::now() + SETTLE)).await
            }
            _ => Ok(true),
        }
    }

    /// Ends what all rounds left: what is in memory is written, and what that leaves to the
    /// background too. False if it did not end in time.
    ///
    /// # Errors
    /// The store's.
    pub async fn finish(&self) -> Result<bool> {
        match self {
            Side::EnginePuts(log) => {
                log.engine().checkpoint().await?;
                log.engine().sync().await?;
                Ok(true)
            }
            Side::StorePuts { store, .. } => {
                let store = Arc::clone(store);
                blocking(move || {
                    store.flush()?;
                    store.settle(Instant::now() + SETTLE)
                })
                .await
            }
            _ => Ok(true),
        }
    }
}

/// Runs work that blocks beside the runtime's threads.
///
/// # Errors
/// Those of the work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("the work ended early")?
}

/// A client of any side.
struct Client {
    values: Values,
    number: usize,
    rng: StdRng,
}

impl Client {
    fn any(&mut self) -> u64 {
        self.values.any(&mut self.rng)
    }

    fn put(&mut self) -> Put {
        (key(self.any()), self.values.value(&mut self.rng))
    }

    /// A get that finds nothing, or something else, measured nothing.
    fn check(&self, found: Option<usize>) -> Result<()> {
        let bytes = self.values.bytes;
        ensure!(found == Some(bytes), "a get found {found:?} bytes instead of {bytes}");
        Ok(())
    }
}

struct EnginePut(EngineLog, Client);

impl Worker for EnginePut {
    async fn step(&mut self) -> Result<()> {
        let (key, value) = self.1.put();
        self.0.put(key, value).await
    }
}

struct EngineGet(EngineLog, Client);

impl Worker for EngineGet {
    async fn step(&mut self) -> Result<()> {
        let found = self.0.get(&key(self.1.any())).await?;
        self.1.check(found.map(|value| value.len()))
    }
}

struct StorePut(Arc<dyn Store>, bool, Client);

impl BlockingWorker for StorePut {
    fn step(&mut self) -> Result<()> {
        let put = self.2.put();
        self.0.put(&[put], self.1)
    }
}

struct GroupedPut(group::Client, Client);

impl BlockingWorker for GroupedPut {
    fn step(&mut self) -> Result<()> {
        let put = self.1.put();
        self.0.put(put)
    }
}

#[cfg(feature = "rocksdb")]
struct RocksGet(Arc<Rocks>, Client);

#[cfg(feature = "rocksdb")]
impl BlockingWorker for RocksGet {
    fn step(&mut self) -> Result<()> {
        let found = self.0.get(&key(self.1.any()))?;
        self.1.check(found)
    }
}

struct FilePut {
    store: FileStore,
    value: AlignedBuf,
    client: Client,
}

impl BlockingWorker for FilePut {
    fn step(&mut self) -> Result<()> {
        let object = self.client.any();
        let value = self.client.values.value(&mut self.client.rng);
        // O_DIRECT needs aligned memory.
        let place =
            self.value.get_mut(..value.len()).context("a value is longer than its buffer")?;
        place.copy_from_slice(&value);
        self.store.put(self.client.number, object, place)
    }
}

struct FileGet {
    store: FileStore,
    into: AlignedBuf,
    client: Client,
}

impl BlockingWorker for FileGet {
    fn step(&mut self) -> Result<()> {
        let object = self.client.any();
        let found = self.store.get_direct(object, &mut self.into)?;
        self.client.check(found)
    }
}
