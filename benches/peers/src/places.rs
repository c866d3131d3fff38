//! What the sides keep their objects in: made, filled, and closed again.
//!
//! What holds here: rows that differ only in what they sync use one store, one after the other. A
//! store that cannot be made, or not be filled in its time, takes its rows out of the run, with the
//! reason in their place.

#[cfg(feature = "rocksdb")]
use crate::store::rocks::Rocks;

use crate::plan::Plan;
use crate::preload::{self, Until};
use crate::sides::blocking;
use crate::store::Store;
use crate::store::fjall::Fjall;
use crate::store::redb::Redb;
use crate::values::Values;
use anyhow::{Context, Result};
use cairn_engine::Mode;
use cairn_engine::io::{AlignedBuf, Backend, Device, FileKind};
use cairn_experiments::{
    EngineLog, FileStore, FileSync, Place, Stop, Stopped, make_engine, make_raw_device,
    sync_filesystem,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// A thing, or why it is not there.
pub type Made<T> = std::result::Result<T, String>;

/// Bytes of the raw file that are filled at a time.
const PIECE: usize = 1 << 20;

/// Everything.
pub struct Places {
    /// Cairn in mode `replicated`.
    pub replicated: Made<EngineLog>,
    /// Cairn in mode `sync`.
    pub synced: Made<EngineLog>,
    /// The raw file, through Cairn's device code, and its path.
    pub raw: Made<(Arc<dyn Device>, PathBuf)>,
    /// RocksDB, buffered.
    pub rocks: Made<Arc<dyn Store>>,
    /// RocksDB, direct.
    pub direct: Made<Arc<dyn Store>>,
    /// The same, for gets.
    #[cfg(feature = "rocksdb")]
    pub direct_gets: Made<Arc<Rocks>>,
    /// redb.
    pub redb: Made<Arc<dyn Store>>,
    /// fjall.
    pub fjall: Made<Arc<dyn Store>>,
    /// The folder of the files.
    pub files: Made<PathBuf>,
    /// Whether files can be opened with `O_DIRECT`.
    pub o_direct: Made<()>,
}

struct Maker<'a> {
    plan: &'a Plan,
    values: &'a Values,
    place: &'a Place,
    stop: &'a Stop,
}

/// Makes and fills everything.
///
/// # Errors
/// `Stopped`.
pub async fn make(plan: &Plan, values: &Values, place: &Place, stop: &Stop) -> Result<Places> {
    let maker = Maker { plan, values, place, stop };
    let replicated = maker.one("Cairn, replicated", maker.engine(Mode::Replicated)).await?;
    let synced = maker.one("Cairn, sync", maker.engine(Mode::Sync)).await?;
    let raw = maker.one("the raw file", maker.raw()).await?;
    #[cfg(feature = "rocksdb")]
    let (rocks, direct_gets) = match &plan.without_rocksdb {
        Some(reason) => (Err(reason.clone()), Err(reason.clone())),
        None => (
            maker.one("RocksDB", maker.rocks("rocksdb", false)).await?,
            maker.one("RocksDB, direct", maker.rocks("rocksdb-direct", true)).await?,
        ),
    };
    #[cfg(feature = "rocksdb")]
    let (rocks, direct) = (as_store(&rocks), as_store(&direct_gets));
    #[cfg(not(feature = "rocksdb"))]
    let (rocks, direct) = {
        let reason = plan.without_rocksdb.clone();
        let reason = reason.unwrap_or_else(|| "this build is without RocksDB".to_owned());
        (Err(reason.clone()), Err(reason))
    };
    let redb = place.path("redb");
    let redb = maker.one("redb", maker.store(move || Redb::make(&redb))).await?;
    let fjall = place.path("fjall");
    let fjall = maker.one("fjall", maker.store(move || Fjall::make(&fjall))).await?;
    let files = maker.one("files", maker.files()).await?;
    sync_filesystem(&place.path("")).await?;
    Ok(Places {
        replicated,
        synced,
        raw,
        rocks,
        direct,
        #[cfg(feature = "rocksdb")]
        direct_gets,
        redb,
        fjall,
        files,
        o_direct: place.direct(),
    })
}

#[cfg(feature = "rocksdb")]
fn as_store(rocks: &Made<Arc<Rocks>>) -> Made<Arc<dyn Store>> {
    rocks.clone().map(|rocks| rocks as Arc<dyn Store>)
}

impl Maker<'_> {
    /// One of them. Only a stop is an error.
    async fn one<T>(&self, name: &str, making: impl Future<Output = Result<T>>) -> Result<Made<T>> {
        let from = Instant::now();
        let made = making.await;
        if self.stop.is_set() {
            return Err(Stopped.into());
        }
        eprintln!("{name}: ready after {:.1} s", from.elapsed().as_secs_f64());
        Ok(made.map_err(|error| format!("{error:#}")))
    }

    fn until(&self) -> Until {
        Until { time: self.plan.preload, stop: self.stop.clone() }
    }

    fn zeroed(&self) -> impl FnMut(u64, u64) -> ControlFlow<()> + Send + use<> {
        let stop = self.stop.clone();
        move |_, _| if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    async fn engine(&self, mode: Mode) -> Result<EngineLog> {
        self.place.direct().map_err(anyhow::Error::msg)?;
        let path = self.place.path(&format!("engine-{mode}"));
        let bytes = self.plan.engine_bytes();
        let engine = make_engine(&path, bytes, mode, Backend::Auto, &mut self.zeroed()).await?;
        let log = EngineLog::start(engine, self.plan.retain_bytes());
        preload::engine(&log, self.values, &self.until()).await?;
        log.engine().sync().await?;
        Ok(log)
    }

    /// A file of random bytes, as large as all objects.
    async fn raw(&self) -> Result<(Arc<dyn Device>, PathBuf)> {
        self.place.direct().map_err(anyhow::Error::msg)?;
        let bytes = self.plan.data_bytes().next_multiple_of(PIECE as u64);
        let path = self.place.path("raw");
        let device = make_raw_device(&path, bytes, Backend::Auto, &mut self.zeroed())?;
        let mut rng = StdRng::seed_from_u64(1);
        let mut buf = AlignedBuf::zeroed(PIECE);
        for offset in (0..bytes).step_by(PIECE) {
            rng.fill_bytes(&mut buf);
            let (written, same) = device.write(offset, buf).await;
            written.context("raw write")?;
            buf = same;
        }
        device.sync().await.context("raw sync")?;
        Ok((device, path.join(FileKind::Data.name())))
    }

    async fn store<S: Store>(
        &self,
        make: impl FnOnce() -> Result<S> + Send + 'static,
    ) -> Result<Arc<dyn Store>> {
        let store: Arc<dyn Store> = Arc::new(blocking(make).await?);
        preload::store(&store, self.values, &self.until()).await?;
        Ok(store)
    }

    #[cfg(feature = "rocksdb")]
    async fn rocks(&self, folder: &str, direct: bool) -> Result<Arc<Rocks>> {
        let folder = self.place.path(folder);
        let rocks = Arc::new(blocking(move || Rocks::make(&folder, direct)).await?);
        let store: Arc<dyn Store> = rocks.clone();
        preload::store(&store, self.values, &self.until()).await?;
        let end = Instant::now() + self.plan.preload;
        let flushed = Arc::clone(&rocks);
        blocking(move || flushed.flush().and_then(|()| flushed.settle(end))).await?;
        Ok(rocks)
    }

    async fn files(&self) -> Result<PathBuf> {
        let folder = self.place.path("files");
        let store = FileStore::make(&folder, false, FileSync::Nothing)?;
        preload::files(&store, self.values, &self.until()).await?;
        Ok(folder)
    }
}

impl Places {
    /// The peers that were made: their names, versions and settings.
    pub fn peers(&self) -> Vec<(String, String)> {
        let all = [
            ("RocksDB", &self.rocks),
            ("RocksDB, direct I/O", &self.direct),
            ("redb", &self.redb),
            ("fjall", &self.fjall),
        ];
        all.into_iter()
            .map(|(name, store)| {
                let text = match store {
                    Ok(store) => format!("{}, {}", store.version(), store.settings()),
                    Err(reason) => format!("not measured: {reason}"),
                };
                (name.to_owned(), text)
            })
            .collect()
    }

    /// Closes everything. All rows are gone.
    ///
    /// # Errors
    /// The engine's.
    pub async fn close(self) -> Result<()> {
        for log in [&self.replicated, &self.synced].into_iter().flatten() {
            log.engine().close().await?;
        }
        // The end of a store waits for its threads.
        blocking(move || {
            drop(self);
            Ok(())
        })
        .await
    }
}
