//! Puts of 4 KiB objects: what fsync costs, what it costs to change filesystem metadata, and what
//! parts of a write path gain on raw files. After Fractalbits, "Removing fsync".
//!
//! ```text
//! mod      sizes, bounds, the order of the run
//! cases    the rows of all tables
//! clients  clients that put and delete, on files and on the engine
//! keys     objects under keys of an engine
//! rows     names of rows, and the tables
//! words    sentences, notes and plots
//! ```
//!
//! What holds here: the rows of the first two tables alternate in one series of rounds, so that any
//! two of them can be compared. All rows have the same number of objects, and the same number of
//! requests under way. What a row leaves unsynced is synced before the next row, outside of the
//! measured time, and every second round runs the rows in the reverse order. Rounds that would end
//! after the bound are left out.

mod cases;
mod clients;
mod keys;
mod rows;
mod words;

pub(super) use rows::{DIRECT_FSYNC_BOTH, DSYNC, FSYNC_BOTH, NO_FSYNC, PUTS, cairn};

use super::finding::waits;
use super::{Bounds, Context, Definition, Settings, close, little_checks, rounds};
use crate::measure::Limit;
use crate::report::Experiment;
use crate::subject::{BlockWrites, sync_filesystem};
use anyhow::Result;
use cairn_engine::io::BLOCK;
use futures::future::BoxFuture;
use std::time::{Duration, Instant};

pub(super) const DEFINITION: Definition = Definition {
    name: "objects",
    question: "What do puts of 4 KiB objects gain without fsync, and what without filesystem \
         metadata?",
    source: "Fractalbits, “Removing fsync”",
    bounds,
    run: |context| -> BoxFuture<'_, _> {
        Box::pin(run(context, context.settings.limit(), context.place.direct()))
    },
};

/// Requests under way.
pub(super) const DEPTH: usize = 32;

/// A file of one block: its data, and its inode and name.
const FILE_BYTES: u64 = BLOCK as u64 + 512;

/// Rows without those of the engines.
const ROWS: usize = 6 + 3 + 7 + 2;

/// How large everything is, and how long the preparations may last.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Objects of the puts that are measured.
    objects: u64,
    /// Objects of the clients beside them.
    others: u64,
    /// An engine's directory. The objects take less than a quarter of it.
    engine_bytes: u64,
    /// A file with a block for each object.
    file_bytes: u64,
    /// Laying out files ends after this time, with fewer files.
    files_time: Duration,
    /// Laying out an engine's objects ends after this time, with fewer objects.
    engine_time: Duration,
}

impl Sizes {
    fn new(settings: &Settings) -> Sizes {
        let objects = (settings.size_bytes >> 16).max(1024);
        let (files_ms, engine_ms) = if settings.quick { (1000, 300) } else { (6000, 3000) };
        Sizes {
            objects,
            others: objects / 16,
            engine_bytes: (settings.size_bytes / 8 * 3).max(16 << 20),
            file_bytes: objects * BLOCK as u64,
            files_time: Duration::from_millis(files_ms),
            engine_time: Duration::from_millis(engine_ms),
        }
    }
}

/// The time for closing the engines and removing the files.
fn end_time(settings: &Settings) -> Duration {
    Duration::from_millis(if settings.quick { 2000 } else { 3000 })
}

/// The time of the full run has zeroing at 50 MiB/s. That of the quick run assumes 200 MiB/s, since
/// there it is short beside the rounds.
fn bounds(settings: &Settings) -> Bounds {
    let sizes = Sizes::new(settings);
    let engines = settings.modes.iter().filter(|(_, refused)| refused.is_none()).count();
    let journal_bytes = BlockWrites::JOURNAL_BLOCKS * BLOCK as u64;
    let zeroed_bytes = engines as u64 * sizes.engine_bytes + 2 * sizes.file_bytes + journal_bytes;
    // With the temporary files.
    let files_bytes = (sizes.objects + sizes.others + 2 * DEPTH as u64) * FILE_BYTES;
    let folders_bytes = 256 * 2 * FILE_BYTES;
    let fill = |bytes: u64| settings.fill_time(bytes);
    let beside = if engines > 0 { 2 } else { 0 };
    let rows = u32::try_from(ROWS + engines + beside).unwrap_or(u32::MAX);
    let rounds = u32::try_from(settings.rounds()).unwrap_or(u32::MAX);
    // A sync follows each row. It takes 40 ms after the half of them that leave their writes to it,
    // and 10 ms after the others. The two of files without fsync leave all their objects to it.
    let settle = rows * Duration::from_millis(25) + 2 * fill(files_bytes);
    let engines = u32::try_from(engines).unwrap_or(u32::MAX);
    Bounds {
        // One of the files that each round makes anew is there at a time.
        bytes: zeroed_bytes + sizes.file_bytes + files_bytes + folders_bytes + (1 << 20),
        time: rounds * (rows * settings.round_time() + settle)
            + fill(zeroed_bytes)
            + sizes.files_time
            + engines * sizes.engine_time
            + end_time(settings),
    }
}

async fn run(
    context: &Context<'_>,
    limit: Limit,
    direct: Result<(), String>,
) -> Result<Experiment> {
    let sizes = Sizes::new(context.settings);
    let until = Instant::now() + bounds(context.settings).time - end_time(context.settings);
    context.step("syncing the filesystem")?;
    sync_filesystem(&context.place.path("")).await?;
    let mut made = cases::make(context, &sizes, direct).await?;
    // At least one round of the third table follows.
    let beside = u32::try_from(made.beside.len()).unwrap_or(u32::MAX);
    let puts_until = until - beside * context.settings.round_time();
    let found = [
        rounds(context, &mut made.puts, DEPTH, limit, Some(puts_until)).await?,
        rounds(context, &mut made.beside, DEPTH, limit, Some(until)).await?,
    ];
    let mut checks = little_checks(&made.puts, DEPTH);
    checks.extend(little_checks(&made.beside, DEPTH / 2));
    let puts = rows::table(rows::PUTS, &made.puts, |name| !rows::PARTS_ONLY.contains(&name));
    let is_part = |name: &str| rows::PARTS_PAIRS.iter().any(|(_, a, b)| [*a, *b].contains(&name));
    let parts = rows::table(rows::PARTS, &made.puts, is_part);
    let deletes = rows::deletes_table(&made.beside, &made.deletes);
    let mut notes = words::notes(&sizes, &made.laid_out);
    notes.extend(words::gains(&parts));
    for (name, keys, before) in &made.engines {
        let times = keys.log.waits().await.saturating_sub(*before);
        notes.extend(waits(name, times, sizes.engine_bytes, true));
    }
    notes.extend(words::rounds(&found, context.settings.rounds()));
    context.step("removing the files")?;
    close(made.beside).await?;
    close(made.puts).await?;
    for name in &made.folders {
        context.place.remove(name)?;
    }
    Ok(Experiment {
        plots: words::plots(&puts, &deletes),
        sentences: words::sentences(&puts),
        tables: vec![puts, parts, deletes],
        notes,
        checks,
        ..Experiment::default()
    })
}

#[cfg(test)]
mod tests;
