//! redb, with its own defaults. It has one write transaction at a time and no group commit: a thread
//! waits until those before it have committed.

use super::{Put, Store, locked};
use anyhow::{Context, Result};
use redb::{Database, Durability, TableDefinition};
use std::path::Path;
use std::time::Instant;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");

/// A database.
pub struct Redb(Database);

impl Redb {
    /// A new database in a new file.
    ///
    /// # Errors
    /// redb's.
    pub fn make(file: &Path) -> Result<Redb> {
        Ok(Redb(Database::create(file).context("redb")?))
    }
}

impl Store for Redb {
    fn put(&self, puts: &[Put], synced: bool) -> Result<()> {
        let mut transaction = self.0.begin_write().context("redb")?;
        let durability = if synced { Durability::Immediate } else { Durability::None };
        transaction.set_durability(durability).context("redb")?;
        {
            let mut table = transaction.open_table(TABLE).context("redb")?;
            for (key, value) in puts {
                table.insert(key.as_ref(), value.as_ref()).context("redb")?;
            }
        }
        transaction.commit().context("redb")
    }

    /// It has no threads of its own. Commits without durability leave their pages to a durable one.
    fn settle(&self, _until: Instant) -> Result<bool> {
        self.flush()?;
        Ok(true)
    }

    fn flush(&self) -> Result<()> {
        let transaction = self.0.begin_write().context("redb")?;
        transaction.commit().context("redb")
    }

    fn version(&self) -> String {
        locked("redb")
    }

    fn settings(&self) -> String {
        "cache 1 GiB".to_owned()
    }
}
