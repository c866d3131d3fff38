//! Puts of 4 KiB objects: what fsync costs, what it costs to change filesystem metadata, and what
//! parts of a write path gain on raw files. After Fractalbits, "Removing fsync".
//!
//! ```text
//! mod      sizes, bounds, the order of the run
//! cases    the rows of all tables
//! clients  clients that put and delete, on files and on the engine
//! keys     objects under keys of an engine, with a node's wait for space
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

use super::{Bounds, Case, Context, Definition, Settings, close, little_checks};
use crate::measure::Limit;
use crate::report::Experiment;
use crate::subject::{BlockWrites, Load, sync_filesystem};
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
        let settings = context.settings;
        let pace = Pace { rounds: settings.rounds(), limit: settings.limit() };
        Box::pin(run(context, pace, context.place.direct()))
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

    /// All objects of a file store, with the temporary files.
    fn files(&self) -> u64 {
        self.objects + self.others + 2 * DEPTH as u64
    }
}

/// The rounds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rounds: usize,
    limit: Limit,
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
    let files_bytes = sizes.files() * FILE_BYTES;
    let folders_bytes = 256 * 2 * FILE_BYTES;
    let fill = |bytes: u64| match settings.quick {
        true => Duration::from_millis((bytes * 1000).div_ceil(200 << 20)),
        false => Settings::fill_time(bytes),
    };
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

/// Runs the cases as [`alternate`](super::alternate) does, but every second round in the reverse
/// order, until another round would not end in time. Returns how many rounds it ran, at least one.
async fn rounds(
    context: &Context<'_>,
    cases: &mut [Case],
    pace: Pace,
    until: Instant,
) -> Result<usize> {
    for round in 0..pace.rounds {
        let began = Instant::now();
        // A row follows another one each time.
        let mut ordered: Vec<&mut Case> = cases.iter_mut().collect();
        if round % 2 == 1 {
            ordered.reverse();
        }
        for case in ordered {
            let Ok(subject) = &mut case.subject else { continue };
            context.step(&format!("round {} of {}: {}", round + 1, pace.rounds, case.name))?;
            let stop = context.stop.clone();
            let load = Load { depth: DEPTH, limit: pace.limit, seed: round as u64 + 1, stop };
            let samples = subject.round(&load).await;
            case.rounds.push(samples.map_err(|error| error.context(case.name.clone()))?);
        }
        if Instant::now() + began.elapsed() > until {
            return Ok(round + 1);
        }
    }
    Ok(pace.rounds)
}

async fn run(context: &Context<'_>, pace: Pace, direct: Result<(), String>) -> Result<Experiment> {
    let sizes = Sizes::new(context.settings);
    let until = Instant::now() + bounds(context.settings).time - end_time(context.settings);
    context.step("syncing the filesystem")?;
    sync_filesystem(&context.place.path("")).await?;
    let mut made = cases::make(context, &sizes, direct).await?;
    // At least one round of the third table follows.
    let beside = u32::try_from(made.beside.len()).unwrap_or(u32::MAX);
    let puts_until = until - beside * context.settings.round_time();
    let found = [
        rounds(context, &mut made.puts, pace, puts_until).await?,
        rounds(context, &mut made.beside, pace, until).await?,
    ];
    let mut checks = little_checks(&made.puts, DEPTH);
    checks.extend(little_checks(&made.beside, DEPTH / 2));
    let puts = rows::table(rows::PUTS, &made.puts, |name| !rows::PARTS_ONLY.contains(&name));
    let parts = rows::parts_table(&made.puts);
    let deletes = rows::deletes_table(&made.beside, &made.deletes);
    let mut notes = words::notes(&sizes, &made.laid_out);
    notes.extend(words::gains(&parts));
    for (name, keys, before) in &made.engines {
        notes.extend(words::waits(name, keys.waits().await.saturating_sub(*before)));
    }
    notes.extend(words::rounds(&found, pace.rounds));
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
