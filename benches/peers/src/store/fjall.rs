//! fjall, with its own defaults but for compression. A put with a synced journal is an insert and a
//! `persist`, as its documentation shows: each thread syncs for itself.

use super::{Put, Store, locked};
use anyhow::{Context, Result};
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often its background work is asked for.
const PERIOD: Duration = Duration::from_millis(5);

/// A database.
pub struct Fjall {
    db: Database,
    objects: Keyspace,
}

impl Fjall {
    /// A new database in a new folder.
    ///
    /// # Errors
    /// fjall's.
    pub fn make(folder: &Path) -> Result<Fjall> {
        let db = Database::builder(folder).journal_compression(CompressionType::None).open();
        let db = db.context("fjall")?;
        let none = CompressionPolicy::disabled();
        let options = || KeyspaceCreateOptions::default().data_block_compression_policy(none);
        let objects = db.keyspace("objects", options).context("fjall")?;
        Ok(Fjall { db, objects })
    }
}

impl Store for Fjall {
    fn put(&self, puts: &[Put], synced: bool) -> Result<()> {
        match puts {
            [(key, value)] => {
                self.objects.insert(key.as_ref(), value.as_ref()).context("fjall")?;
            }
            _ => {
                let mut batch = self.db.batch().durability(Some(PersistMode::Buffer));
                for (key, value) in puts {
                    batch.insert(&self.objects, key.as_ref(), value.as_ref());
                }
                batch.commit().context("fjall")?;
            }
        }
        if synced {
            self.db.persist(PersistMode::SyncData).context("fjall")?;
        }
        Ok(())
    }

    fn settle(&self, until: Instant) -> Result<bool> {
        while self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0 {
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(PERIOD);
        }
        Ok(true)
    }

    fn flush(&self) -> Result<()> {
        self.objects.rotate_memtable_and_wait().context("fjall")
    }

    fn version(&self) -> String {
        locked("fjall")
    }

    fn settings(&self) -> String {
        let cache = self.db.cache_capacity() >> 20;
        format!("write buffers of 64 MiB, block cache {cache} MiB, no compression")
    }
}
