//! After the upload path of storage nodes (Storj): a log of uploads, downloads and deletes is
//! replayed through files and through the engine, batch by batch.
//!
//! ```text
//! events    the log of events
//! replay    one client that replays it through one path
//! image     the same on a filesystem of its own, empty and full
//! mount     that filesystem
//! figures   batches as rows, sentences and a plot
//! ```
//!
//! What holds here: the user's filesystem is never filled, and none of its mount options changes.

mod events;
mod figures;
mod image;
mod mount;
mod replay;
mod rows;

use super::{Bounds, Context, Definition, Settings, mode_answered_by, small};
use crate::measure::Payloads;
use crate::report::Experiment;
use crate::subject::{EngineLog, FileStore, FileSync};
use anyhow::Result;
use cairn_engine::Mode;
use events::Pieces;
use figures::Measured;
use futures::future::BoxFuture;
use replay::{Client, Script, Store};
use std::sync::Arc;
use std::time::Duration;

pub(super) const DEFINITION: Definition = Definition {
    name: "uploads",
    question: "What do uploads, downloads and deletes cost with and without fsync?",
    source: "Storj forum, \"On the impact of fsync in the storage node upload code path on ext4\"",
    bounds,
    run: |context| -> BoxFuture<'_, _> {
        Box::pin(run(context, Effort::new(context.settings), context.place.direct()))
    },
};

/// The titles of the tables.
const HERE: &str = "Replay in the directory";
const OWN: &str = "Replay on a filesystem of its own";

const MIB: u64 = 1 << 20;
/// The seed of both logs of events.
const SEED: u64 = 19_325;
const FILES: [FileSync; 3] = [FileSync::Nothing, FileSync::File, FileSync::FileAndFolder];

fn files_row(sync: FileSync) -> &'static str {
    match sync {
        FileSync::Nothing => "files without fsync",
        FileSync::File => "files with fsync of the file",
        FileSync::FileAndFolder => "files with fsync of file and folder",
    }
}

fn engine_row(mode: Mode) -> &'static str {
    match mode {
        Mode::Device => "engine device",
        Mode::Replicated => "engine replicated",
        Mode::Sync => "engine sync",
    }
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Each engine's directory.
    engine: u64,
    /// Live pieces of each path.
    live: u64,
    /// The image of the filesystem of its own.
    image: u64,
    /// Each engine's directory on it.
    own_engine: u64,
    /// Live pieces of each path on it: they fit into the 10 % that the filler leaves.
    own_live: u64,
}

impl Sizes {
    fn new(settings: &Settings) -> Sizes {
        let Settings { quick, size_bytes, .. } = *settings;
        let between =
            |least: u64, most, full: u64| if quick { least } else { full.clamp(least, most) };
        let engine = between(64 * MIB, 512 * MIB, size_bytes / 8);
        let image = between(96 * MIB, 1024 * MIB, size_bytes / 2);
        let own_engine = between(24 * MIB, u64::MAX, image / 8);
        let own_live = (image / 25).min(own_engine / 4);
        Sizes { engine, live: engine / 8, image, own_engine, own_live }
    }
}

/// How long and how many.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Events of a batch.
    batch: usize,
    /// Batches of the log.
    batches: usize,
    /// The time of a path in the directory.
    limit: Duration,
    /// The time of a path on the filesystem of its own.
    own_limit: Duration,
}

impl Effort {
    fn new(settings: &Settings) -> Effort {
        let ms = Duration::from_millis;
        match settings.quick {
            true => Effort { batch: 500, batches: 30, limit: ms(1000), own_limit: ms(700) },
            false => {
                Effort { batch: 10_000, batches: 12, limit: ms(12_000), own_limit: ms(12_000) }
            }
        }
    }

    /// The log of events, and a path's time for it.
    fn script(&self, payloads: &Payloads, pieces: Pieces, live: u64, limit: Duration) -> Script {
        let warm_up = self.batch / 5;
        Script {
            events: events::log(SEED, warm_up + self.batch * self.batches, pieces, live),
            payloads: payloads.clone(),
            warm_up,
            warm_up_time: limit / 10,
            batch: self.batch,
            limit,
        }
    }
}

/// The modes that are justified here.
fn justified(settings: &Settings) -> impl Iterator<Item = Mode> {
    settings.modes.iter().filter(|(_, refused)| refused.is_none()).map(|(mode, _)| *mode)
}

/// Filling runs at 200 MiB/s in a quick run, else at 50 MiB/s. A path overruns its time by one
/// operation, and by two syncs of its live pieces: after its warm-up and at its end.
fn bounds(settings: &Settings) -> Bounds {
    let (sizes, effort) = (Sizes::new(settings), Effort::new(settings));
    let fill = |bytes: u64| settings.fill_time(bytes);
    let engines = justified(settings).count() as u64 * sizes.engine;
    // Folders of the shards and the temporary file.
    let files = FILES.len() as u64 * (sizes.live + 2 * MIB);
    let row = |limit: Duration, live: u64| limit + limit / 10 + fill(2 * live);
    let paths = (FILES.len() + justified(settings).count()) as u32;
    let second = Duration::from_secs(1);
    let mut bounds = Bounds {
        bytes: engines + files,
        time: second + fill(engines) + row(effort.limit, sizes.live) * paths,
    };
    if settings.root {
        let states = rows::State::ALL.len() as u32;
        let kinds = rows::Kind::all(settings);
        let engine = |kind: &&rows::Kind| matches!(kind, rows::Kind::Engine(_, None));
        let (rows, own_engines) = (kinds.len() as u32, kinds.iter().filter(engine).count() as u64);
        let state = second / 2
            + fill(own_engines * sizes.own_engine)
            + row(effort.own_limit, sizes.own_live) * rows;
        bounds.bytes = bounds.bytes.max(sizes.image + MIB);
        // The filler and the engines together fill the image once more.
        bounds.time += fill(2 * sizes.image) + state * states;
    }
    bounds
}

/// `direct` is whether files can be opened with `O_DIRECT`, or why not.
async fn run(
    context: &Context<'_>,
    effort: Effort,
    direct: Result<(), String>,
) -> Result<Experiment> {
    let sizes = Sizes::new(context.settings);
    context.step("writing the log of events")?;
    let payloads = Payloads::new(1, SEED);
    let script = |pieces, live, limit| Arc::new(effort.script(&payloads, pieces, live, limit));
    let here = script(Pieces::Mixed, sizes.live, effort.limit);
    let own = script(Pieces::Small, sizes.own_live, effort.own_limit);
    let here_rows = in_the_directory(context, &sizes, &here, &direct).await?;
    let own_rows = image::run(context, sizes, &own).await?;
    let (here_table, own_table) =
        (figures::table(HERE, &here_rows), figures::table(OWN, &own_rows));
    let mut sentences = figures::sentences(&here_table);
    sentences.extend(figures::own_sentences(&own_table, &own_rows));
    let mut notes = figures::notes(context, &effort, &sizes, [&here, &own]);
    notes.extend(figures::cut_notes(&here_rows, here.batches()));
    notes.extend(figures::cut_notes(&own_rows, own.batches()));
    notes.extend(figures::waits_notes(&here_rows, sizes.engine));
    notes.extend(figures::waits_notes(&own_rows, sizes.own_engine));
    notes.extend(figures::commit_note(&own_rows));
    let plots = figures::plot(&here_table, &here_rows).into_iter().collect();
    let tables = vec![here_table, own_table];
    Ok(Experiment { tables, plots, sentences, notes, ..Experiment::default() })
}

/// The rows of the first table: the paths take turns, batch by batch.
async fn in_the_directory(
    context: &Context<'_>,
    sizes: &Sizes,
    script: &Arc<Script>,
    direct: &Result<(), String>,
) -> Result<Vec<Measured>> {
    const FILES_FOLDER: &str = "uploads-files";
    const ENGINES_FOLDER: &str = "uploads-engines";
    let folder = context.place.subfolder(FILES_FOLDER)?;
    context.place.subfolder(ENGINES_FOLDER)?;
    let mut paths = Vec::new();
    for sync in FILES {
        context.step(files_row(sync))?;
        let store = FileStore::make(&folder.join(format!("{sync:?}")), false, sync)?;
        let client = Client::new(Store::Files(store), script, &context.stop);
        paths.push((files_row(sync), sync.answered_by(), Ok(client)));
    }
    for (mode, refused) in &context.settings.modes {
        // Without O_DIRECT, its writes would end in the page cache.
        let client = match refused.clone().or_else(|| direct.clone().err()) {
            Some(refused) => Err(refused),
            None => {
                let name = format!("{ENGINES_FOLDER}/{mode}");
                let options = |boot| small(*mode, boot, sizes.engine);
                let engine = context.engine(&name, sizes.engine, options).await?;
                let log = EngineLog::start(engine, sizes.engine / 8);
                Ok(Client::new(Store::Engine(log), script, &context.stop))
            }
        };
        paths.push((engine_row(*mode), mode_answered_by(*mode), client));
    }
    for (name, _, client) in &mut paths {
        let Ok(client) = client else { continue };
        context.step(&format!("warm-up: {name}"))?;
        client.warm_up(&folder).await?;
    }
    for batch in 1..=script.batches() {
        for (name, _, client) in &mut paths {
            let Ok(client) = client else { continue };
            if client.ended() {
                continue;
            }
            context.step(&format!("batch {batch} of {}: {name}", script.batches()))?;
            client.batch().await.map_err(|error| error.context(*name))?;
            client.sync(&folder).await?;
        }
    }
    let mut rows = Vec::new();
    for (name, answered_by, client) in paths {
        rows.push(match client {
            Ok(client) => Measured::new(name, answered_by, client.close().await?),
            Err(reason) => Measured::not_made(name, reason),
        });
    }
    context.place.remove(FILES_FOLDER)?;
    context.place.remove(ENGINES_FOLDER)?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{run_alone, settings};
    use super::*;
    use crate::report::Outcome;

    /// Few events: what is tested is not the speed.
    fn few() -> Effort {
        let ms = Duration::from_millis;
        Effort { batch: 50, batches: 3, limit: ms(300), own_limit: ms(100) }
    }

    const SHORT: Definition =
        Definition { run: |context| Box::pin(run(context, few(), Ok(()))), ..DEFINITION };

    #[test]
    fn every_row_is_there_measured_or_with_its_reason() {
        let root = nix::unistd::Uid::effective().is_root();
        let found = run_alone(&SHORT, &Settings { root, ..settings() });
        let here = found.table(HERE).unwrap();
        for sync in FILES {
            assert!(here.value(files_row(sync), figures::TIME).unwrap() > 0.0, "{sync:?}");
        }
        for mode in [Mode::Replicated, Mode::Sync] {
            assert!(here.value(engine_row(mode), figures::TIME).unwrap() > 0.0, "{mode}");
        }
        let device = here.rows.iter().find(|row| row.name == engine_row(Mode::Device)).unwrap();
        assert!(matches!(&device.outcome, Outcome::NotMade(reason) if reason.contains("lose")));
        let own = found.table(OWN).unwrap();
        assert_eq!(own.rows.len(), 12);
        assert!(found.plots.len() == 1 && found.sentences.len() >= 2);
    }

    #[test]
    fn without_root_the_second_table_says_so() {
        let found = run_alone(&SHORT, &Settings { modes: Vec::new(), ..settings() });
        let own = found.table(OWN).unwrap();
        assert_eq!(own.rows.len(), 12);
        for row in &own.rows {
            let Outcome::NotMade(reason) = &row.outcome else { panic!("{row:?}") };
            assert!(reason.contains("not root"), "{reason}");
        }
    }

    #[test]
    fn without_o_direct_no_engine_is_measured_in_the_directory() {
        const BUFFERED: Definition = Definition {
            run: |context| Box::pin(run(context, few(), Err("no O_DIRECT".to_owned()))),
            ..DEFINITION
        };
        let found = run_alone(&BUFFERED, &settings());
        let here = found.table(HERE).unwrap();
        for (mode, refused) in settings().modes {
            // Its own reason counts before the place's.
            let reason = refused.unwrap_or_else(|| "no O_DIRECT".to_owned());
            let row = here.rows.iter().find(|row| row.name == engine_row(mode)).unwrap();
            assert_eq!(row.outcome, Outcome::NotMade(reason), "{mode}");
        }
        assert!(here.value(files_row(FileSync::Nothing), figures::TIME).unwrap() > 0.0);
    }

    #[test]
    fn live_pieces_leave_space_in_the_engines_and_beside_the_filler() {
        for size_bytes in [Settings::MIN_SIZE, Settings::DEFAULT_SIZE, 64 << 30] {
            let sizes = Sizes::new(&Settings { quick: false, size_bytes, ..settings() });
            assert!(sizes.live <= sizes.engine / 4 && sizes.own_live <= sizes.own_engine / 4);
            assert!(sizes.own_live + 2 * MIB <= sizes.image / 10 * 9 / 10);
        }
    }
}
