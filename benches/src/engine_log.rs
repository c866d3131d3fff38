//! The engine driven as a replicated log drives it, without replication: append, wait until written, apply in order,
//! purge behind.
//!
//! What holds here: a put is answered after its entry is written *and* applied, so its latency covers everything that
//! a node does to its own disk; entries are purged as a node would, so checkpoints and reuse of space are in the
//! numbers.

use crate::load::Worker;
use crate::payload::Payloads;
use anyhow::{Result, anyhow};
use bytes::Bytes;
use cairn_engine::{Change, Engine, Error, GroupId, LogId, NewEntry, Promise, Transition};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

const GROUP: GroupId = GroupId(0);
const TERM: u64 = 1;
/// Applied in one call at most.
const APPLY_BATCH: usize = 512;

struct Written {
    id: LogId,
    key: Bytes,
    outcome: Result<(), Error>,
    answer: oneshot::Sender<Result<(), Error>>,
}

/// One log and the task that applies it.
#[derive(Clone)]
pub struct EngineLog {
    engine: Engine,
    next: Arc<Mutex<u64>>,
    written: mpsc::UnboundedSender<Written>,
}

impl EngineLog {
    /// Takes over a freshly formatted engine. About `retain_bytes` of applied log are kept.
    pub fn start(engine: Engine, retain_bytes: u64) -> EngineLog {
        let (written, queue) = mpsc::unbounded_channel();
        tokio::spawn(apply(engine.clone(), queue, retain_bytes));
        EngineLog {
            engine,
            next: Arc::new(Mutex::new(0)),
            written,
        }
    }

    /// Writes and applies one put.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        {
            let mut next = self.next.lock();
            let id = LogId {
                term: TERM,
                index: *next,
            };
            let written = self.written.clone();
            let entry = NewEntry {
                id,
                meta: key.clone(),
                values: vec![value],
            };
            let done = move |outcome| {
                // A closed queue means that the run is over.
                let _ = written.send(Written {
                    id,
                    key,
                    outcome,
                    answer,
                });
            };
            self.engine
                .append(GROUP, vec![entry], Promise::Mode, Box::new(done))?;
            *next += 1;
        }
        answered
            .await
            .map_err(|_| anyhow!("the engine dropped a put"))??;
        Ok(())
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

async fn apply(engine: Engine, mut queue: mpsc::UnboundedReceiver<Written>, retain_bytes: u64) {
    let mut batch = Vec::with_capacity(APPLY_BATCH);
    let mut purging: Option<tokio::task::JoinHandle<()>> = None;
    while queue.recv_many(&mut batch, APPLY_BATCH).await > 0 {
        let mut answers = Vec::with_capacity(batch.len());
        let mut transitions = Vec::with_capacity(batch.len());
        for Written {
            id,
            key,
            outcome,
            answer,
        } in batch.drain(..)
        {
            if outcome.is_ok() {
                transitions.push(Transition {
                    applied: id,
                    changes: vec![Change::Put { key, value: 0 }],
                });
            }
            answers.push((answer, outcome));
        }
        let last = transitions.last().map(|transition| transition.applied);
        let applied = engine.apply(GROUP, transitions, Arc::new(Vec::new()));
        for (answer, outcome) in answers {
            let _ = answer.send(outcome.and_then(|()| applied.clone()));
        }
        if let Some(last) = last
            && purging.as_ref().is_none_or(tokio::task::JoinHandle::is_finished)
            && let Some(through) = purge_point(&engine, last, retain_bytes)
        {
            let engine = engine.clone();
            purging = Some(tokio::spawn(async move {
                if let Err(error) = engine.purge(GROUP, through).await {
                    eprintln!("purge: {error}");
                }
            }));
        }
    }
}

/// Where to cut once the log is twice as long as it should be.
fn purge_point(engine: &Engine, last: LogId, retain_bytes: u64) -> Option<LogId> {
    let bytes = engine.log_bytes(GROUP);
    if bytes < retain_bytes.saturating_mul(2) {
        return None;
    }
    let purged = engine.log_bounds(GROUP).purged.map_or(0, |id| id.index);
    let entries = last.index.saturating_sub(purged);
    let keep = (u128::from(entries) * u128::from(retain_bytes) / u128::from(bytes.max(1))) as u64;
    Some(LogId {
        term: TERM,
        index: last.index.saturating_sub(keep.max(1)),
    })
}

/// One client that puts random values under random keys.
pub struct Putter {
    log: EngineLog,
    payloads: Payloads,
    value_bytes: usize,
    rng: StdRng,
}

impl Putter {
    /// As many clients as `clients`, each with random numbers of its own.
    pub fn many(
        log: &EngineLog,
        payloads: &Payloads,
        value_bytes: usize,
        clients: usize,
        seed: u64,
    ) -> Vec<Putter> {
        (0..clients as u64)
            .map(|client| Putter {
                log: log.clone(),
                payloads: payloads.clone(),
                value_bytes,
                rng: StdRng::seed_from_u64(seed ^ (client << 32)),
            })
            .collect()
    }
}

impl Worker for Putter {
    async fn step(&mut self) -> Result<()> {
        let key = self.payloads.key(&mut self.rng);
        let value = self.payloads.value(&mut self.rng, self.value_bytes);
        self.log.put(key, value).await
    }
}
