//! RocksDB, with its own defaults but for these: no compression, as many background jobs as
//! processors, a Bloom filter of 10 bits for each key.
//!
//! A put with a synced WAL joins those of other threads in one group commit, as RocksDB always does.

use super::{Put, Store};
use anyhow::{Context, Result};
use rocksdb::{
    BlockBasedOptions, DB, DBCompressionType, FlushOptions, Options, WaitForCompactOptions,
    WriteBatch, WriteOptions,
};
use std::path::{Path, PathBuf};
use std::time::Instant;

const WRITE_BUFFER_BYTES: usize = 64 << 20;

/// A database.
pub struct Rocks {
    db: DB,
    folder: PathBuf,
    direct: bool,
}

impl Rocks {
    /// A new database. With `direct`, its tables are read and written with `O_DIRECT`, and no block
    /// of theirs is cached. RocksDB has no direct writes of the WAL.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn make(folder: &Path, direct: bool) -> Result<Rocks> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(WRITE_BUFFER_BYTES);
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        options.increase_parallelism(i32::try_from(processors)?.max(2));
        options.set_use_direct_reads(direct);
        options.set_use_direct_io_for_flush_and_compaction(direct);
        let mut tables = BlockBasedOptions::default();
        tables.set_bloom_filter(10.0, false);
        if direct {
            tables.disable_cache();
        }
        options.set_block_based_table_factory(&tables);
        let db = DB::open(&options, folder).context("RocksDB")?;
        Ok(Rocks { db, folder: folder.to_path_buf(), direct })
    }

    /// The bytes of a key's value; none if there is no such key.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.db.get_pinned(key).context("RocksDB")?.map(|value| value.len()))
    }
}

impl Store for Rocks {
    fn put(&self, puts: &[Put], synced: bool) -> Result<()> {
        let mut options = WriteOptions::default();
        options.set_sync(synced);
        let mut batch = WriteBatch::default();
        for (key, value) in puts {
            batch.put(key, value);
        }
        self.db.write_opt(batch, &options).context("RocksDB")
    }

    fn settle(&self, until: Instant) -> Result<bool> {
        let left = until.saturating_duration_since(Instant::now());
        let mut options = WaitForCompactOptions::default();
        // Zero would wait for ever.
        options.set_timeout(u64::try_from(left.as_micros())?.max(1));
        match self.db.wait_for_compact(&options) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == rocksdb::ErrorKind::TimedOut => Ok(false),
            Err(error) => Err(error).context("RocksDB"),
        }
    }

    fn flush(&self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        self.db.flush_opt(&options).context("RocksDB")
    }

    /// The library writes its version into its log: also one of the system that was linked instead
    /// of the package's.
    fn version(&self) -> String {
        let log = std::fs::read(self.folder.join("LOG")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let version = log.lines().find_map(|line| line.split_once("RocksDB version: "));
        version.map_or("unknown", |(_, version)| version.trim()).to_owned()
    }

    fn settings(&self) -> String {
        let cache = if self.direct { "no block cache" } else { "block cache 32 MiB" };
        format!("write buffers of {} MiB, {cache}, no compression", WRITE_BUFFER_BYTES >> 20)
    }
}
