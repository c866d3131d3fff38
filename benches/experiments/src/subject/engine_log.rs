//! Drives the engine as a replicated log does, without replication: append, wait until written,
//! apply in order, purge old entries.
//!
//! A put is answered after its entry is written *and* applied, so its latency covers everything
//! that a node does to its own disk. Entries are purged as on a node, so the numbers contain
//! checkpoints and the reuse of space. As on a node, a put waits while the engine has no space for
//! it: a small engine is slow, not full.

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use cairn_engine::{Change, Engine, Error, GroupId, LogId, Need, NewEntry, Promise, Transition};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, mpsc, oneshot};

const GROUP: GroupId = GroupId(0);
const TERM: u64 = 1;
/// The most entries of one append, and about the most bytes of their values.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 1 << 20;

/// A node's `checkpoint_bytes`.
const CHECKPOINT_BYTES: u64 = 1 << 30;

/// How long a put waits for space before it fails.
const SPACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A change of one key: a put with a value, else a delete.
struct Put {
    key: Bytes,
    value: Option<Bytes>,
    answer: Answer,
}

type Answer = oneshot::Sender<Result<(), Error>>;

/// The entries of one append, in order.
struct Written {
    entries: Vec<(LogId, Change, Answer)>,
    outcome: Result<(), Error>,
}

/// One log: a task that appends, like a leader, and a task that applies.
#[derive(Clone)]
pub struct EngineLog {
    engine: Engine,
    puts: mpsc::UnboundedSender<Put>,
    /// Held by the put that makes space for all, and how often one had to.
    space: Arc<Mutex<u64>>,
    /// Why the log has ended.
    ended: Arc<OnceLock<Error>>,
    /// Held while it runs.
    upkeep: Arc<Mutex<Upkeep>>,
}

impl EngineLog {
    /// Starts the log behind the engine's last entry, up to which everything is applied. It keeps
    /// about `retain_bytes` of applied log.
    pub fn start(engine: Engine, retain_bytes: u64) -> EngineLog {
        let (puts, put_queue) = mpsc::unbounded_channel();
        let (written, written_queue) = mpsc::unbounded_channel();
        let upkeep = Upkeep { engine: engine.clone(), retain_bytes, held: false };
        let upkeep = Arc::new(Mutex::new(upkeep));
        let log = EngineLog { engine, puts, space: Arc::default(), ended: Arc::default(), upkeep };
        let (ended, upkeep) = (&log.ended, Arc::clone(&log.upkeep));
        tokio::spawn(append(log.engine.clone(), put_queue, written, Arc::clone(ended)));
        tokio::spawn(apply(log.engine.clone(), written_queue, upkeep, Arc::clone(ended)));
        log
    }

    /// Writes and applies one put, once there is space for it.
    ///
    /// # Errors
    /// The engine's; if no space was freed for ten seconds.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        if !self.has_space(&key, &value)? {
            self.make_space(&key, &value).await?;
        }
        self.change(key, Some(value)).await
    }

    /// Whether the engine takes one more put, as a node asks it before each one.
    fn has_space(&self, key: &Bytes, value: &Bytes) -> Result<bool> {
        let value_bytes = value.len() as u64;
        let need = Need { bytes: value_bytes + key.len() as u64, puts: true, index_bytes: 0 };
        match self.engine.check_capacity(need) {
            Ok(()) => Ok(true),
            Err(Error::Full { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Overwritten and purged values free their space once a sync has recorded them. A put that
    /// comes before that waits for it, and its latency has the wait in it.
    async fn make_space(&self, key: &Bytes, value: &Bytes) -> Result<()> {
        let until = Instant::now() + SPACE_TIMEOUT;
        while !self.has_space(key, value)? {
            let mut waits = self.space.lock().await;
            if !self.has_space(key, value)? {
                ensure!(Instant::now() < until, "no space was freed for {SPACE_TIMEOUT:?}");
                *waits += 1;
                // The barrier writes a block that says what the last sync reached.
                self.engine.barrier().await?;
                self.engine.sync().await?;
            }
        }
        Ok(())
    }

    /// How often puts had to wait for space so far.
    pub async fn waits(&self) -> u64 {
        *self.space.lock().await
    }

    /// Writes and applies one delete: an entry without values.
    ///
    /// # Errors
    /// The engine's.
    pub async fn delete(&self, key: Bytes) -> Result<()> {
        self.change(key, None).await
    }

    async fn change(&self, key: Bytes, value: Option<Bytes>) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let sent = self.puts.send(Put { key, value, answer }).is_ok();
        if sent && let Ok(outcome) = answered.await {
            return Ok(outcome?);
        }
        // The queue is closed once the reason is there.
        self.puts.closed().await;
        Err(self.ended.get().map_or(anyhow!("the log has ended"), |error| error.clone().into()))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The engine's.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.engine.get(GROUP, key).await?.map(|(_, value)| value))
    }

    /// From now on the log takes no checkpoint by itself, and purges only as far as others cover.
    pub async fn hold_checkpoints(&self) {
        self.upkeep.lock().await.held = true;
    }

    /// Takes a checkpoint now, and purges all that is applied but about `keep_bytes`.
    ///
    /// # Errors
    /// The engine's.
    pub async fn trim(&self, keep_bytes: u64) -> Result<()> {
        let upkeep = self.upkeep.lock().await;
        let Some(last) = self.engine.applied(GROUP) else { return Ok(()) };
        self.engine.checkpoint().await?;
        Ok(upkeep.purge(last, keep_bytes).await?)
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// Appends the queued puts, at most `BATCH` at once, one entry for each put.
async fn append(
    engine: Engine,
    mut queue: mpsc::UnboundedReceiver<Put>,
    written: mpsc::UnboundedSender<Written>,
    ended: Arc<OnceLock<Error>>,
) {
    let mut next = engine.log_bounds(GROUP).last.map_or(0, |last| last.index + 1);
    let mut received = Vec::with_capacity(BATCH);
    let mut batch = VecDeque::with_capacity(BATCH);
    loop {
        if batch.is_empty() && queue.recv_many(&mut received, BATCH).await == 0 {
            return;
        }
        batch.extend(received.drain(..));
        let mut new_entries = Vec::with_capacity(batch.len());
        let mut entries = Vec::with_capacity(batch.len());
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(Put { key, value, answer }) = batch.pop_front()
        {
            bytes += value.as_ref().map_or(0, Bytes::len);
            let id = LogId { term: TERM, index: next };
            next += 1;
            let change = match &value {
                Some(_) => Change::Put { key: key.clone(), value: 0 },
                None => Change::Delete { key: key.clone() },
            };
            new_entries.push(NewEntry::new(id, key, Vec::from_iter(value)));
            entries.push((id, change, answer));
        }
        let written = written.clone();
        let done = move |outcome| {
            // A closed queue means that the measurement is over.
            let _ = written.send(Written { entries, outcome });
        };
        if let Err(error) = engine.append(GROUP, new_entries, Promise::Mode, Box::new(done)).await {
            let _ = ended.set(error);
            return;
        }
    }
}

async fn apply(
    engine: Engine,
    mut queue: mpsc::UnboundedReceiver<Written>,
    upkeep: Arc<Mutex<Upkeep>>,
    ended: Arc<OnceLock<Error>>,
) {
    let mut running: Option<tokio::task::JoinHandle<()>> = None;
    while let Some(Written { entries, outcome }) = queue.recv().await {
        let last = entries.last().map(|(id, ..)| *id);
        let outcome = outcome.and_then(|()| {
            let transitions = entries
                .iter()
                .map(|(id, change, _)| Transition { applied: *id, changes: vec![change.clone()] })
                .collect();
            engine.apply(GROUP, transitions, Arc::new(Vec::new()))
        });
        for (_, _, answer) in entries {
            let _ = answer.send(outcome.clone());
        }
        if let Some(task) = running.take_if(|task| task.is_finished())
            && task.await.is_err()
        {
            return;
        }
        if let Some(last) = last
            && running.is_none()
            && let Ok(mut upkeep) = Arc::clone(&upkeep).try_lock_owned()
            && upkeep.is_due(last)
        {
            let ended = Arc::clone(&ended);
            running = Some(tokio::spawn(async move {
                match upkeep.run(last).await {
                    Ok(()) | Err(Error::Closed) => {}
                    Err(error) => drop(ended.set(error)),
                }
            }));
        }
    }
}

/// Takes checkpoints and purges the log, by a node's rule.
struct Upkeep {
    engine: Engine,
    retain_bytes: u64,
    /// It takes no checkpoint by itself.
    held: bool,
}

impl Upkeep {
    /// Whether the log is twice as long as it should be, and can be purged or is worth a checkpoint
    /// for that.
    fn is_due(&self, last: LogId) -> bool {
        self.engine.log_bytes(GROUP) >= self.retain_bytes.saturating_mul(2)
            && (self.purgeable(last, self.retain_bytes).is_some() || self.is_worth_a_checkpoint())
    }

    fn is_worth_a_checkpoint(&self) -> bool {
        !self.held && self.engine.status().is_checkpoint_due(CHECKPOINT_BYTES)
    }

    /// The entry to purge through so that `keep_bytes` remain: as far as a checkpoint covers the
    /// surplus.
    fn purgeable(&self, last: LogId, keep_bytes: u64) -> Option<LogId> {
        let covered = self.engine.checkpointed(GROUP)?.index;
        let bytes = self.engine.log_bytes(GROUP).max(1);
        let purged = self.engine.log_bounds(GROUP).purged.map_or(0, |id| id.index);
        let entries = u128::from(last.index.saturating_sub(purged));
        let keep = (entries * u128::from(keep_bytes) / u128::from(bytes)) as u64;
        let index = last.index.saturating_sub(keep.max(1)).min(covered);
        (index > purged).then_some(LogId { term: TERM, index })
    }

    async fn run(&mut self, last: LogId) -> Result<(), Error> {
        if self.is_worth_a_checkpoint() {
            self.engine.checkpoint().await?;
        }
        self.purge(last, self.retain_bytes).await
    }

    async fn purge(&self, last: LogId, keep_bytes: u64) -> Result<(), Error> {
        match self.purgeable(last, keep_bytes) {
            Some(through) => self.engine.purge(GROUP, through).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::make_engine;
    use cairn_engine::Mode;
    use cairn_engine::io::Backend;

    #[tokio::test]
    async fn a_deleted_key_is_gone_until_it_is_put_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine");
        let zeroed = &mut |_, _| std::ops::ControlFlow::Continue(());
        let engine = make_engine(&path, 16 << 20, Mode::Sync, Backend::Auto, zeroed).await.unwrap();
        let log = EngineLog::start(engine.clone(), 1 << 20);
        let key = Bytes::from_static(b"key");
        let is_there = || engine.lookup(GROUP, b"key").is_some();
        log.delete(key.clone()).await.unwrap();
        assert!(!is_there());
        for _ in 0..2 {
            log.put(key.clone(), vec![7; 4096].into()).await.unwrap();
            assert!(is_there());
            log.delete(key.clone()).await.unwrap();
            assert!(!is_there());
        }
        engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_trimmed_log_keeps_about_what_it_is_asked_to_and_the_keys_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine");
        let zeroed = &mut |_, _| std::ops::ControlFlow::Continue(());
        let engine = make_engine(&path, 16 << 20, Mode::Sync, Backend::Auto, zeroed).await.unwrap();
        let log = EngineLog::start(engine.clone(), 1 << 30);
        log.trim(0).await.unwrap();
        let key = |number: u32| Bytes::from(number.to_string());
        for number in 0..64 {
            log.put(key(number), vec![7; 16 << 10].into()).await.unwrap();
        }
        assert!(engine.log_bytes(GROUP) >= 1 << 20, "nothing is purged by itself");
        let checkpoints = engine.status().checkpoints;
        log.trim(256 << 10).await.unwrap();
        let kept = engine.log_bytes(GROUP);
        assert!((240 << 10..=280 << 10).contains(&kept), "{kept}");
        assert_eq!(engine.status().checkpoints, checkpoints + 1);
        log.trim(0).await.unwrap();
        assert!(engine.log_bytes(GROUP) <= 20 << 10, "the last entry stays");
        assert!((0..64).all(|number| engine.lookup(GROUP, &key(number)).is_some()));
        engine.close().await.unwrap();
    }
}
