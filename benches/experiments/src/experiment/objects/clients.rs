//! Clients that put objects of 4 KiB, into files and into the engine, and clients that delete
//! beside them.
//!
//! What holds here: the objects of the puts that are measured and the other clients' objects are
//! different ones. Files have numbers: the others' objects come first.

use super::keys::Keys;
use crate::measure::{BlockingWorker, Limit, Samples, Stop, Worker, drive_blocking, drive_until};
use crate::subject::{FileStore, Load, Subject};
use anyhow::Result;
use cairn_engine::io::{AlignedBuf, BLOCK};
use futures::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// What a client does with its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Puts random ones.
    Put,
    /// Deletes a random one, then puts it again, and so on.
    DeleteAndPut,
}

/// The object that a client deleted and has not put again. It outlives the round.
pub(super) type Deleted = Arc<Mutex<Option<u64>>>;

/// Picks what a client does next.
struct Choice {
    objects: Range<u64>,
    act: Act,
    deleted: Deleted,
    rng: StdRng,
}

enum Next {
    Put(u64),
    Delete(u64),
}

impl Choice {
    fn new(objects: Range<u64>, act: Act, seed: u64, client: usize) -> Choice {
        let rng = StdRng::seed_from_u64(seed ^ ((client as u64) << 32));
        Choice { objects, act, deleted: Deleted::default(), rng }
    }

    fn next(&mut self) -> Next {
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(object) = deleted.take() {
            return Next::Put(object);
        }
        let count = self.objects.end.saturating_sub(self.objects.start).max(1);
        let object = self.objects.start + self.rng.random_range(0..count);
        match self.act {
            Act::Put => Next::Put(object),
            Act::DeleteAndPut => {
                *deleted = Some(object);
                Next::Delete(object)
            }
        }
    }
}

/// The share of `all` that belongs to client number `client` of `clients`.
fn share(all: &Range<u64>, client: usize, clients: usize) -> Range<u64> {
    let each = ((all.end - all.start) / clients.max(1) as u64).max(1);
    let start = all.start + each * client as u64;
    start..start + each
}

/// One client of a file store.
struct FileClient {
    store: FileStore,
    number: usize,
    choice: Choice,
    value: AlignedBuf,
}

impl FileClient {
    fn new(store: &FileStore, number: usize, choice: Choice) -> FileClient {
        let mut client =
            FileClient { store: store.clone(), number, choice, value: AlignedBuf::zeroed(BLOCK) };
        client.choice.rng.fill_bytes(&mut client.value);
        client
    }
}

impl BlockingWorker for FileClient {
    fn step(&mut self) -> Result<()> {
        match self.choice.next() {
            Next::Put(object) => {
                if let Some(head) = self.value.get_mut(..8) {
                    head.copy_from_slice(&self.choice.rng.next_u64().to_le_bytes());
                }
                self.store.put(self.number, object, &self.value)
            }
            Next::Delete(object) => self.store.delete(object).map(|_| ()),
        }
    }
}

/// One client of an engine.
struct EngineClient {
    keys: Keys,
    choice: Choice,
}

impl Worker for EngineClient {
    async fn step(&mut self) -> Result<()> {
        match self.choice.next() {
            Next::Put(object) => self.keys.put(object, &mut self.choice.rng).await,
            Next::Delete(object) => self.keys.delete(object).await,
        }
    }
}

struct FileLayer {
    client: FileClient,
    next: Arc<AtomicU64>,
}

impl BlockingWorker for FileLayer {
    fn step(&mut self) -> Result<()> {
        let object = self.next.fetch_add(1, Ordering::Relaxed);
        self.client.store.put(self.client.number, object, &self.client.value)
    }
}

/// Puts the objects below `count`, in order, until the time is over. Returns how many it put.
///
/// # Errors
/// The system's; `Stopped`.
pub(super) async fn lay_out_files(
    store: &FileStore,
    count: u64,
    time: Duration,
    stop: &Stop,
) -> Result<u64> {
    let next = Arc::new(AtomicU64::new(0));
    let layer = |number| FileLayer {
        client: FileClient::new(store, number, Choice::new(0..count, Act::Put, 1, number)),
        next: Arc::clone(&next),
    };
    let layers = (0..4).map(layer).collect();
    drive_blocking(layers, Limit::Bounded { operations: count, time }, stop).await?;
    Ok(next.load(Ordering::Relaxed))
}

/// Clients that put random ones of the objects.
pub(super) struct FilePuts {
    pub store: FileStore,
    pub objects: Range<u64>,
}

impl Subject for FilePuts {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        let clients = file_clients(&self.store, &self.objects, load);
        Box::pin(drive_blocking(clients, load.limit, &load.stop))
    }
}

fn file_clients(store: &FileStore, objects: &Range<u64>, load: &Load) -> Vec<FileClient> {
    let choice = |number| Choice::new(objects.clone(), Act::Put, load.seed, number);
    (0..load.depth).map(|number| FileClient::new(store, number, choice(number))).collect()
}

/// The same with an engine.
pub(super) struct EnginePuts {
    pub keys: Keys,
    pub objects: Range<u64>,
}

impl Subject for EnginePuts {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        let clients = engine_clients(&self.keys, &self.objects, load);
        Box::pin(async move {
            let samples = drive_until(clients, load.limit, &load.stop).await?;
            // What it leaves to the background.
            self.keys.log.engine().sync().await?;
            Ok(samples)
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { Ok(self.keys.log.engine().close().await?) })
    }
}

fn engine_clients(keys: &Keys, objects: &Range<u64>, load: &Load) -> Vec<EngineClient> {
    let client = |number| EngineClient {
        keys: keys.clone(),
        choice: Choice::new(objects.clone(), Act::Put, load.seed, number),
    };
    (0..load.depth).map(client).collect()
}

/// Where the puts and deletes of [`Beside`] go.
pub(super) enum Store {
    Files(FileStore),
    Engine(Keys),
}

/// Half of the clients put objects and are measured. The other half put other objects, or delete
/// and put them.
pub(super) struct Beside {
    pub store: Store,
    pub objects: Range<u64>,
    pub others: Range<u64>,
    pub act: Act,
    /// What each of the other clients deleted last, so that it puts it again in the next round.
    pub deleted: Vec<Deleted>,
    /// Told the deletes per second of each round.
    pub deletes: mpsc::Sender<f64>,
}

impl Beside {
    async fn run(&self, load: &Load) -> Result<Samples> {
        let half = Load { depth: (load.depth / 2).max(1), ..load.clone() };
        let choice = |client| {
            let objects = share(&self.others, client, half.depth);
            // Clients of the measured half have the numbers below.
            let choice = Choice::new(objects, self.act, load.seed, half.depth + client);
            let deleted = self.deleted.get(client).map(Arc::clone).unwrap_or_default();
            Choice { deleted, ..choice }
        };
        let (puts, others) = match &self.store {
            Store::Files(store) => {
                let puts = file_clients(store, &self.objects, &half);
                let other = |client| FileClient::new(store, half.depth + client, choice(client));
                let others = (0..half.depth).map(other).collect();
                tokio::try_join!(
                    drive_blocking(puts, load.limit, &load.stop),
                    drive_blocking(others, load.limit, &load.stop)
                )?
            }
            Store::Engine(keys) => {
                let puts = engine_clients(keys, &self.objects, &half);
                let other = |client| EngineClient { keys: keys.clone(), choice: choice(client) };
                let others = (0..half.depth).map(other).collect();
                let samples = tokio::try_join!(
                    drive_until(puts, load.limit, &load.stop),
                    drive_until(others, load.limit, &load.stop)
                )?;
                keys.log.engine().sync().await?;
                samples
            }
        };
        let deletes = match self.act {
            Act::Put => 0.0,
            // Every second operation of a client.
            Act::DeleteAndPut => others.rate() / 2.0,
        };
        // Nobody listens once the experiment is over.
        let _ = self.deletes.send(deletes);
        Ok(puts)
    }
}

impl Subject for Beside {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        Box::pin(self.run(load))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::FileSync;

    #[test]
    fn a_deleted_object_is_put_again_next() {
        let mut choice = Choice::new(10..14, Act::DeleteAndPut, 1, 0);
        for _ in 0..20 {
            let (Next::Delete(gone), Next::Put(back)) = (choice.next(), choice.next()) else {
                panic!("a delete, then a put");
            };
            assert_eq!(gone, back);
            assert!((10..14).contains(&gone));
        }
    }

    #[test]
    fn no_two_clients_delete_the_same_object() {
        let shares: Vec<_> = (0..16).map(|client| share(&(5..5 + 64), client, 16)).collect();
        assert_eq!((shares[0].start, shares[15].end), (5, 69));
        assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
    }

    #[tokio::test]
    async fn deletes_leave_the_objects_of_the_measured_puts_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::make(folder.path(), false, FileSync::Nothing).unwrap();
        let stop = Stop::default();
        let hour = Duration::from_secs(3600);
        assert_eq!(lay_out_files(&store, 24, hour, &stop).await.unwrap(), 24);
        let (deletes, told) = mpsc::channel();
        let (others, objects) = (0..4, 4..24);
        let act = Act::DeleteAndPut;
        let mut beside = Beside {
            store: Store::Files(store.clone()),
            objects: objects.clone(),
            others,
            act,
            deleted: vec![Deleted::default()],
            deletes,
        };
        // An odd number: a client of the others ends with a delete.
        let load = Load { depth: 2, limit: Limit::Operations(33), seed: 1, stop };
        assert_eq!(beside.round(&load).await.unwrap().latencies.len(), 33);
        assert!(told.recv().unwrap() > 0.0);
        let mut found = Vec::new();
        assert!(objects.clone().all(|object| store.get(object, &mut found).unwrap()));
        let gone = (0..4).filter(|object| !store.get(*object, &mut found).unwrap()).count();
        assert_eq!(gone, 1);
        // The next round begins with putting it again, so an odd number ends with a put.
        beside.round(&load).await.unwrap();
        assert!((0..4).all(|object| store.get(object, &mut found).unwrap()));
    }
}
