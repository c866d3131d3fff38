//! The replay on a filesystem of its own, empty and 90 % full, by ext4's commit interval.
//!
//! What holds here: everything runs on a thread with mounts of its own, and on the threads that it
//! starts. That thread has ended, and nothing is mounted any more, when [`run`] returns. The user's
//! filesystem holds the image, at full size from the start.

use super::Sizes;
use super::figures::Measured;
use super::mount::{Mounted, isolate, make_ext4};
use super::replay::{Client, Replayed, Script, Store};
use super::rows::{Kind, State};
use crate::experiment::{Context, mode_answered_by, small};
use crate::measure::{Stop, Stopped};
use crate::subject::{Content, EngineLog, FileStore, fill_file, make_engine_with, sync_filesystem};
use anyhow::{Context as _, Result};
use cairn_engine::io::Backend;
use cairn_engine::{Engine, Mode};
use nix::sys::statvfs::statvfs;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The image and the folder where it is mounted.
const IMAGE: &str = "image";
const MOUNT: &str = "own-filesystem";
/// The share of the filesystem that is used when it is full.
const FULL_PERCENT: u64 = 90;
/// How often the thread is told that the run ends.
const TELL: Duration = Duration::from_millis(50);

/// What the thread needs.
struct Job {
    image: PathBuf,
    mount: PathBuf,
    sizes: Sizes,
    script: Arc<Script>,
    kinds: Vec<Kind>,
    steps: mpsc::UnboundedSender<String>,
    stop: Stop,
}

/// Ends the thread when the experiment's future is dropped.
struct Ending(Stop);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// The rows of the second table, all of them: measured or with the reason.
///
/// # Errors
/// [`Stopped`]; if what was made cannot be removed. Whatever else fails is the rows' reason.
pub(super) async fn run(
    context: &Context<'_>,
    sizes: Sizes,
    script: &Arc<Script>,
) -> Result<Vec<Measured>> {
    let kinds = Kind::all(context.settings);
    if !context.settings.root {
        let reason = "a filesystem of its own is mounted by root, and this is not root";
        return Ok(complete(Vec::new(), &kinds, reason));
    }
    let (steps, mut heard) = mpsc::unbounded_channel();
    let ending = Ending(Stop::default());
    let job = Job {
        image: context.place.path(IMAGE),
        mount: context.place.subfolder(MOUNT)?,
        sizes,
        script: Arc::clone(script),
        kinds: kinds.clone(),
        steps,
        stop: ending.0.clone(),
    };
    let measured = move || {
        let mut rows = Vec::new();
        let outcome = job.measure(&mut rows);
        (rows, outcome)
    };
    let thread = std::thread::Builder::new().name("own-filesystem".to_owned());
    let thread = thread.spawn(measured).context("a thread")?;
    loop {
        match tokio::time::timeout(TELL, heard.recv()).await {
            Ok(Some(step)) => context.observer.step(&step),
            Ok(None) => break,
            Err(_) if context.stop.is_set() => ending.0.set(),
            Err(_) => {}
        }
    }
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    let outcome = joined.context("the thread is lost")?;
    let panicked = |_| (Vec::new(), Err(anyhow::anyhow!("the replay panicked")));
    let outcome = outcome.unwrap_or_else(panicked);
    context.place.remove(MOUNT)?;
    context.place.remove(IMAGE)?;
    context.stop.check()?;
    let (rows, outcome) = outcome;
    match outcome {
        Err(error) if error.is::<Stopped>() => Err(error),
        Err(error) => Ok(complete(rows, &kinds, &reason(&error))),
        Ok(()) => Ok(complete(rows, &kinds, "it was left out")),
    }
}

/// Adds the rows that are not there yet, with the reason.
fn complete(mut rows: Vec<Measured>, kinds: &[Kind], reason: &str) -> Vec<Measured> {
    let names = State::ALL.into_iter().flat_map(|state| kinds.iter().map(move |k| k.row(state)));
    let missing = names.skip(rows.len()).map(|name| Measured::not_made(name, reason));
    rows.extend(missing.collect::<Vec<_>>());
    rows
}

/// The first line of an error.
fn reason(error: &anyhow::Error) -> String {
    format!("{error:#}").lines().next().unwrap_or_default().to_owned()
}

impl Job {
    /// Adds the rows in order, until something ends it.
    fn measure(&self, rows: &mut Vec<Measured>) -> Result<()> {
        isolate()?;
        // Threads that are started from here on have the same mounts.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("a runtime")?;
        runtime.block_on(async {
            self.step("writing the image of a filesystem")?;
            self.fill(&self.image, self.sizes.image).await?;
            for state in State::ALL {
                self.state(state, rows).await?;
            }
            Ok(())
        })
    }

    fn step(&self, what: &str) -> Result<()> {
        self.stop.check()?;
        // Nobody listens once the run is over, and the stop says so too.
        let _ = self.steps.send(what.to_owned());
        Ok(())
    }

    /// All rows on a new filesystem.
    async fn state(&self, state: State, rows: &mut Vec<Measured>) -> Result<()> {
        self.step(&format!("making a filesystem of its own, {}", state.name()))?;
        make_ext4(&self.image)?;
        let mounted = Mounted::new(&self.image, &self.mount)?;
        let mut engines = Vec::new();
        for kind in &self.kinds {
            if let Kind::Engine(mode, None) = kind {
                engines.push((*mode, self.engine(*mode).await?));
            }
        }
        if state == State::Full {
            self.step("filling the filesystem of its own")?;
            let bytes = filler_bytes(&self.mount)?;
            self.fill(&self.mount.join("filler"), bytes).await?;
        }
        for kind in &self.kinds {
            let name = kind.row(state);
            self.step(&name)?;
            let (store, answer) = match kind {
                Kind::Files(sync, commit) => {
                    if let Err(error) = mounted.set_commit_interval(*commit) {
                        rows.push(Measured::not_made(name, reason(&error)));
                        continue;
                    }
                    let store = FileStore::make(&self.mount.join("files"), false, *sync)?;
                    (Store::Files(store), sync.answered_by())
                }
                Kind::Engine(_, Some(refused)) => {
                    rows.push(Measured::not_made(name, refused));
                    continue;
                }
                Kind::Engine(mode, None) => {
                    let at = engines.iter().position(|(found, _)| found == mode);
                    let engine = at.map(|at| engines.swap_remove(at).1).context("no engine")?;
                    let log = EngineLog::start(engine, self.sizes.own_engine / 16);
                    // A sync reaches the disk in both cases.
                    let answer = match mounted.direct || *mode == Mode::Sync {
                        true => mode_answered_by(*mode),
                        false => "page cache below the loop device",
                    };
                    (Store::Engine(log), answer)
                }
            };
            sync_filesystem(&self.mount).await?;
            rows.push(match self.replay(store).await {
                Ok(replayed) => Measured::new(name, answer, replayed),
                Err(error) if error.is::<Stopped>() => return Err(error),
                Err(error) => Measured::not_made(name, reason(&error)),
            });
            if matches!(kind, Kind::Files(..)) {
                fs::remove_dir_all(self.mount.join("files")).context("removing files")?;
                sync_filesystem(&self.mount).await?;
            }
        }
        mounted.unmount().await
    }

    /// One row, batch after batch, with one sync before the first and one after the last: a commit
    /// interval shows only where nothing else commits.
    async fn replay(&self, store: Store) -> Result<Replayed> {
        let mut client = Client::new(store, &self.script, &self.stop);
        client.warm_up(&self.mount).await?;
        while !client.ended() {
            client.batch().await?;
        }
        client.sync(&self.mount).await?;
        client.close().await
    }

    async fn fill(&self, path: &Path, bytes: u64) -> Result<u64> {
        fill_file(path, bytes, Content::Random, false, Duration::MAX, &self.stop).await
    }

    async fn engine(&self, mode: Mode) -> Result<Engine> {
        let (path, bytes) = (self.mount.join(format!("engine-{mode}")), self.sizes.own_engine);
        let options = |boot| small(mode, boot, bytes);
        let go_on = &mut |_, _| {
            if self.stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let engine = make_engine_with(&path, bytes, Backend::Auto, go_on, options).await?;
        self.stop.check()?;
        Ok(engine)
    }
}

/// Bytes of a file that leaves 10 % of the filesystem free.
fn filler_bytes(mount: &Path) -> Result<u64> {
    let stat = statvfs(mount).context("the size of the filesystem")?;
    let left_free = stat.blocks() * (100 - FULL_PERCENT) / 100;
    Ok(stat.blocks_available().saturating_sub(left_free) * stat.fragment_size())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Settings;
    use crate::experiment::tests::settings;
    use std::collections::BTreeSet;

    #[test]
    fn rows_have_different_names_and_the_engines_have_their_reasons() {
        let mut settings = settings();
        let names = |settings: &Settings| {
            let kinds = Kind::all(settings);
            let rows = State::ALL.map(|state| kinds.iter().map(move |kind| kind.row(state)));
            rows.into_iter().flat_map(Iterator::collect::<Vec<_>>).collect::<Vec<_>>()
        };
        assert_eq!(names(&settings).iter().collect::<BTreeSet<_>>().len(), 12);
        let engines = |settings: &Settings| {
            let refused = Kind::all(settings).into_iter().filter_map(|kind| match kind {
                Kind::Engine(mode, refused) => Some((mode, refused.is_some())),
                Kind::Files(..) => None,
            });
            refused.collect::<Vec<_>>()
        };
        assert_eq!(engines(&settings), [(Mode::Replicated, false), (Mode::Sync, false)]);
        settings.modes.clear();
        assert_eq!(engines(&settings), [(Mode::Replicated, true), (Mode::Sync, true)]);
    }
}
