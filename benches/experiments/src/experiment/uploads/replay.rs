//! One client replays the log of events through one path, batch by batch.
//!
//! What holds here: events are replayed in order, and none is left out. A path ends at the log's
//! end or once its time is over, also within a batch.

use super::events::Event;
use crate::measure::{Payloads, Stop};
use crate::subject::{EngineLog, FileStore, sync_filesystem};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What all paths replay.
pub(super) struct Script {
    pub events: Vec<Event>,
    pub payloads: Payloads,
    /// Events before the first batch, which are not counted.
    pub warm_up: usize,
    /// The most time for them. What is left then belongs to the first batch.
    pub warm_up_time: Duration,
    /// Events of a batch.
    pub batch: usize,
    /// The time that a path has for its batches and for the syncs after them.
    pub limit: Duration,
}

impl Script {
    /// Batches in the log.
    pub(super) fn batches(&self) -> usize {
        self.events.len().saturating_sub(self.warm_up) / self.batch.max(1)
    }
}

/// Where pieces are kept.
#[derive(Clone)]
pub(super) enum Store {
    Files(FileStore),
    Engine(EngineLog),
}

/// A batch that was replayed, or the part of it that fitted into the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub events: usize,
    pub elapsed: Duration,
    /// Whether all its events were replayed.
    pub whole: bool,
}

impl Batch {
    /// Seconds of 10,000 events at this batch's speed.
    pub(super) fn seconds(&self) -> f64 {
        self.elapsed.as_secs_f64() * 10_000.0 / self.events as f64
    }
}

/// A sync of the filesystem. It follows one or more batches and is not part of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Synced {
    /// Events since the sync before.
    pub events: usize,
    pub elapsed: Duration,
}

/// What a path did.
#[derive(Clone, Debug, Default)]
pub(super) struct Replayed {
    pub batches: Vec<Batch>,
    pub syncs: Vec<Synced>,
    /// How often an upload waited until the engine had space, also in the warm-up.
    pub waits: u64,
}

impl Replayed {
    /// The whole batches; the first batch as far as it went if no batch is whole.
    pub(super) fn counted(&self) -> Vec<Batch> {
        let whole: Vec<Batch> = self.batches.iter().filter(|batch| batch.whole).copied().collect();
        match whole.is_empty() {
            true => self.batches.iter().filter(|batch| batch.events > 0).copied().collect(),
            false => whole,
        }
    }

    /// The time of all batches.
    pub(super) fn replaying(&self) -> Duration {
        self.batches.iter().map(|batch| batch.elapsed).sum()
    }

    fn syncing(&self) -> Duration {
        self.syncs.iter().map(|sync| sync.elapsed).sum()
    }

    /// Seconds of syncs for 10,000 events. None if no event was synced.
    pub(super) fn sync_seconds(&self) -> Option<f64> {
        let events: usize = self.syncs.iter().map(|sync| sync.events).sum();
        (events > 0).then(|| self.syncing().as_secs_f64() * 10_000.0 / events as f64)
    }

    fn spent(&self) -> Duration {
        self.replaying() + self.syncing()
    }
}

/// One path, and how far it is.
pub(super) struct Client {
    pub store: Store,
    script: Arc<Script>,
    stop: Stop,
    next: usize,
    /// The first event behind the last sync.
    synced: usize,
    ended: bool,
    pub replayed: Replayed,
}

impl Client {
    pub(super) fn new(store: Store, script: &Arc<Script>, stop: &Stop) -> Client {
        let (script, stop) = (Arc::clone(script), stop.clone());
        Client {
            store,
            script,
            stop,
            next: 0,
            synced: 0,
            ended: false,
            replayed: Replayed::default(),
        }
    }

    /// Whether the time is over or the log has ended.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Replays the events before the first batch, as far as their time allows, and syncs the
    /// filesystem of this folder.
    ///
    /// # Errors
    /// The store's; the system's; [`Stopped`](crate::Stopped).
    pub(super) async fn warm_up(&mut self, folder: &Path) -> Result<()> {
        let until = Instant::now() + self.script.warm_up_time;
        self.next = self.replay(self.script.warm_up, until).await?;
        sync_filesystem(folder).await?;
        self.synced = self.next;
        Ok(())
    }

    /// Replays the next batch, as far as the time allows.
    ///
    /// # Errors
    /// The store's; [`Stopped`](crate::Stopped).
    pub(super) async fn batch(&mut self) -> Result<()> {
        let (script, from) = (Arc::clone(&self.script), self.next);
        let through = script.warm_up + (self.replayed.batches.len() + 1) * script.batch;
        let left = script.limit.saturating_sub(self.replayed.spent());
        let began = Instant::now();
        self.next = self.replay(through, began + left).await?;
        let (events, elapsed) = (self.next - from, began.elapsed());
        let whole = self.next == through;
        self.replayed.batches.push(Batch { events, elapsed, whole });
        self.end_if_over();
        Ok(())
    }

    /// Syncs the filesystem of this folder, so that the next path does not pay for what this one
    /// left in the page cache.
    ///
    /// # Errors
    /// The system's.
    pub(super) async fn sync(&mut self, folder: &Path) -> Result<()> {
        let began = Instant::now();
        sync_filesystem(folder).await?;
        let (events, elapsed) = (self.next - self.synced, began.elapsed());
        self.synced = self.next;
        self.replayed.syncs.push(Synced { events, elapsed });
        self.end_if_over();
        Ok(())
    }

    fn end_if_over(&mut self) {
        let next_ends = self.script.warm_up + (self.replayed.batches.len() + 1) * self.script.batch;
        let cut = self.replayed.batches.last().is_some_and(|batch| !batch.whole);
        let over = self.replayed.spent() >= self.script.limit;
        self.ended = cut || over || next_ends > self.script.events.len();
    }

    /// Replays from the next event to the one before `through`, until the time is over. Returns
    /// the next event.
    async fn replay(&self, through: usize, until: Instant) -> Result<usize> {
        let (script, stop, from) = (Arc::clone(&self.script), self.stop.clone(), self.next);
        match &self.store {
            Store::Files(files) => {
                let files = files.clone();
                let replay = move || replay_files(&files, &script, from, through, until, &stop);
                tokio::task::spawn_blocking(replay).await.context("the replay ended early")?
            }
            Store::Engine(log) => replay_engine(log, &script, from, through, until, &stop).await,
        }
    }

    /// Ends what runs in the background.
    ///
    /// # Errors
    /// The engine's.
    pub(super) async fn close(mut self) -> Result<Replayed> {
        if let Store::Engine(log) = self.store {
            self.replayed.waits = log.waits().await;
            let engine = log.engine().clone();
            drop(log);
            engine.close().await?;
        }
        Ok(self.replayed)
    }
}

fn value(script: &Script, piece: u64, bytes: u32) -> Bytes {
    script.payloads.value(&mut StdRng::seed_from_u64(piece), bytes as usize)
}

fn check_length(piece: u64, found: Option<usize>, bytes: u32) -> Result<()> {
    let meant = Some(bytes as usize);
    ensure!(found == meant, "piece {piece}: {found:?} bytes are read instead of {meant:?}");
    Ok(())
}

fn replay_files(
    files: &FileStore,
    script: &Script,
    from: usize,
    through: usize,
    until: Instant,
    stop: &Stop,
) -> Result<usize> {
    let mut read = Vec::new();
    for (at, event) in script.events.iter().enumerate().take(through).skip(from) {
        if Instant::now() >= until {
            return Ok(at);
        }
        stop.check()?;
        match *event {
            Event::Upload { piece, bytes } => files.put(0, piece, &value(script, piece, bytes))?,
            Event::Download { piece, bytes } => {
                let found = files.get(piece, &mut read)?.then_some(read.len());
                check_length(piece, found, bytes)?;
            }
            Event::Delete { piece } => {
                ensure!(files.delete(piece)?, "piece {piece} is gone before its delete");
            }
        }
    }
    Ok(through.min(script.events.len()))
}

async fn replay_engine(
    log: &EngineLog,
    script: &Script,
    from: usize,
    through: usize,
    until: Instant,
    stop: &Stop,
) -> Result<usize> {
    let key = |piece: u64| Bytes::from(format!("{piece:016x}"));
    for (at, event) in script.events.iter().enumerate().take(through).skip(from) {
        if Instant::now() >= until {
            return Ok(at);
        }
        stop.check()?;
        match *event {
            Event::Upload { piece, bytes } => {
                log.put(key(piece), value(script, piece, bytes)).await?;
            }
            Event::Download { piece, bytes } => {
                let found = log.get(&key(piece)).await?;
                check_length(piece, found.map(|value| value.len()), bytes)?;
            }
            Event::Delete { piece } => log.delete(key(piece)).await?,
        }
    }
    Ok(through.min(script.events.len()))
}

#[cfg(test)]
mod tests {
    use super::super::events::{Pieces, log};
    use super::*;
    use crate::subject::{FileSync, make_engine};
    use cairn_engine::Mode;
    use cairn_engine::io::Backend;

    fn script(limit: Duration) -> Arc<Script> {
        Arc::new(Script {
            events: log(1, 520, Pieces::Small, 1 << 20),
            payloads: Payloads::new(1, 1),
            warm_up: 20,
            warm_up_time: limit,
            batch: 100,
            limit,
        })
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn files(folder: &Path) -> Store {
        Store::Files(FileStore::make(folder, false, FileSync::Nothing).unwrap())
    }

    async fn replay_all(client: &mut Client, folder: &Path) {
        client.warm_up(folder).await.unwrap();
        while !client.ended() {
            client.batch().await.unwrap();
            client.sync(folder).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn files_and_the_engine_replay_the_whole_log_and_keep_the_same_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let engine_path = folder.path().join("engine");
        let zeroed = &mut |_, _| std::ops::ControlFlow::Continue(());
        let made = make_engine(&engine_path, 16 << 20, Mode::Sync, Backend::Auto, zeroed).await;
        let log = EngineLog::start(made.unwrap(), 1 << 20);
        let script = script(HOUR);
        assert_eq!(script.batches(), 5);
        for store in [files(&folder.path().join("files")), Store::Engine(log)] {
            let mut client = Client::new(store, &script, &Stop::default());
            replay_all(&mut client, folder.path()).await;
            let batches = &client.replayed.batches;
            assert!(batches.iter().all(|batch| batch.whole && batch.events == 100));
            let synced: Vec<_> = client.replayed.syncs.iter().map(|sync| sync.events).collect();
            assert_eq!((batches.len(), synced), (5, vec![100; 5]));
            let mut live = std::collections::BTreeMap::new();
            for event in &script.events {
                match *event {
                    Event::Upload { piece, bytes } => drop(live.insert(piece, Some(bytes))),
                    Event::Delete { piece } => drop(live.insert(piece, None)),
                    Event::Download { .. } => {}
                }
            }
            for (piece, bytes) in live {
                let found = match &client.store {
                    Store::Files(files) => {
                        let mut read = Vec::new();
                        files.get(piece, &mut read).unwrap().then_some(read)
                    }
                    Store::Engine(log) => {
                        let key = format!("{piece:016x}");
                        let found = log.get(key.as_bytes()).await.unwrap();
                        found.map(|value| value.to_vec())
                    }
                };
                let meant = bytes.map(|bytes| value(&script, piece, bytes).to_vec());
                assert!(found == meant, "piece {piece}");
            }
            client.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_path_without_time_ends_and_has_no_figures() {
        let folder = tempfile::tempdir().unwrap();
        let store = files(&folder.path().join("files"));
        let mut client = Client::new(store, &script(Duration::ZERO), &Stop::default());
        replay_all(&mut client, folder.path()).await;
        assert!(client.replayed.counted().is_empty() && !client.replayed.batches[0].whole);
    }

    #[tokio::test]
    async fn a_stop_ends_a_replay() {
        let (folder, stop) = (tempfile::tempdir().unwrap(), Stop::default());
        stop.set();
        let mut client = Client::new(files(&folder.path().join("files")), &script(HOUR), &stop);
        assert!(client.batch().await.unwrap_err().is::<crate::Stopped>());
    }

    #[test]
    fn a_cut_batch_counts_only_where_no_batch_is_whole() {
        let batch = |events, whole| Batch { events, elapsed: Duration::from_secs(1), whole };
        let of = |batches: &[Batch]| {
            let replayed = Replayed { batches: batches.to_vec(), ..Replayed::default() };
            replayed.counted().iter().map(|batch| batch.events).collect::<Vec<_>>()
        };
        assert_eq!(of(&[batch(500, true), batch(20, false)]), [500]);
        assert_eq!(of(&[batch(20, false)]), [20]);
        assert!(of(&[batch(0, false)]).is_empty());
        assert_eq!(batch(500, true).seconds(), 20.0);
    }

    #[test]
    fn syncs_are_given_per_10_000_events_whatever_they_follow() {
        let of = |events: &[usize]| {
            let sync = |events: &usize| Synced { events: *events, elapsed: Duration::from_secs(1) };
            let syncs = events.iter().map(sync).collect();
            Replayed { syncs, ..Replayed::default() }.sync_seconds()
        };
        assert_eq!(of(&[500, 500]), Some(20.0));
        assert_eq!(of(&[40_000]), Some(0.25));
        assert_eq!((of(&[0]), of(&[])), (None, None));
    }
}
