//! The engine as openraft's state machine.
//!
//! What holds here: entries are applied without a hole; the entries of one call are applied in
//! steps as they become ready, each step all or nothing; an answer is sent only after the engine
//! made the effect visible, and the history has it; a snapshot is an O(1) view.

mod apply;
pub(crate) mod identities;
pub(crate) mod image;
pub(crate) mod recoveries;
pub(crate) mod sessions;
mod snapshot;

pub(crate) use image::Image;
pub use recoveries::UnsafeRecoveries;
pub(crate) use snapshot::{Incoming, Outgoing, PinnedSnapshot, SnapshotData};
pub use snapshot::{Item, KeyRange, StateReader};

use super::history::{Effect, History};
use super::progress::Progress;
use super::repair::Repairer;
use crate::core::codec::LogRecord;
use crate::core::error::Error;
use crate::core::ids::GROUP;
use crate::core::types::{
    Answer, RaftLogId, SnapshotMeta, StoredMembership, TypeConfig, engine_log_id, raft_log_id,
};
use crate::core::version::{self, Feature};
use apply::ApplyBatch;
use cairn_engine::io::yield_once;
use cairn_engine::{Engine, LogId};
use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use std::sync::Arc;
use std::{io, iter};

/// The engine gets at most this many entries at once.
const BATCH: usize = 512;

/// A snapshot as openraft passes it around.
pub(crate) type Snapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotData>;

/// Entries that reach the engine together, and who waits for what became of them.
struct Step<'e> {
    batch: ApplyBatch<'e, Engine>,
    answers: Vec<(ApplyResponder<TypeConfig>, Answer)>,
}

/// The key half of the engine, with membership and sessions.
pub(crate) struct StateMachine {
    engine: Engine,
    image: Image,
    progress: Arc<Progress>,
    pinned: PinnedSnapshot,
    repairer: Arc<Repairer>,
    history: Arc<History>,
}

impl StateMachine {
    /// The state as the engine recovered it.
    ///
    /// # Errors
    /// `State`, and `TooOld`: then a later release is needed to read it.
    pub(crate) fn new(
        engine: Engine,
        progress: Arc<Progress>,
        pinned: PinnedSnapshot,
        repairer: Arc<Repairer>,
        history: Arc<History>,
    ) -> Result<StateMachine, Error> {
        let image = Image::decode(&engine.view(GROUP).machine());
        let image = image.map_err(|error| Error::State(error.to_string()))?;
        version::check(image.version)?;
        let applied = engine.applied(GROUP);
        // What is applied again is recorded again.
        history.restart(applied);
        let mut machine =
            StateMachine { engine, image: Image::default(), progress, pinned, repairer, history };
        machine.publish(image, applied);
        Ok(machine)
    }

    async fn apply_batch(
        &mut self,
        entries: Vec<EntryResponder<TypeConfig>>,
    ) -> Result<(), io::Error> {
        let engine = self.engine.clone();
        let applied = engine.applied(GROUP);
        let mut step = self.begin_step(&engine, entries.len());
        let mut due = applied.map(|applied| applied.index + 1);
        for (entry, responder) in entries {
            let id = entry.log_id;
            if due.is_some_and(|due| due != id.index())
                && engine.log_bounds(GROUP).last.map(|id| id.index) >= due
            {
                return Err(io::Error::other(format!(
                    "entry {id} cannot be applied: index {} is next",
                    due.unwrap_or_default()
                )));
            }
            due = Some(id.index() + 1);
            let record = LogRecord::of(entry.payload)
                .map_err(|error| io::Error::other(format!("log entry {id}: {error}")))?;
            if step.batch.has_to_end_before(&record) {
                self.finish_step(step)?;
                // One range takes milliseconds, and after a restart hundreds of them may be ready.
                yield_once().await;
                step = self.begin_step(&engine, 1);
            }
            let answer = step.batch.apply(id, record);
            if let Some(responder) = responder {
                step.answers.push((responder, answer));
            }
        }
        self.finish_step(step)
    }

    /// A step that begins after what is applied.
    fn begin_step<'e>(&self, engine: &'e Engine, capacity: usize) -> Step<'e> {
        let applied = engine.applied(GROUP);
        let batch = ApplyBatch::new(engine, self.image.clone(), applied, capacity);
        Step { batch, answers: Vec::with_capacity(capacity) }
    }

    /// Hands the entries of a step to the engine and to the history, and answers them.
    fn finish_step(&mut self, step: Step<'_>) -> Result<(), io::Error> {
        let Step { mut batch, answers } = step;
        let effects = batch.take_effects();
        let (transitions, image) = batch.finish();
        let Some(last) = transitions.last().map(|transition| transition.applied) else {
            return Ok(());
        };
        version::check(image.version).map_err(io::Error::other)?;
        self.engine.apply(GROUP, transitions, Arc::new(image.clone())).map_err(io::Error::other)?;
        self.record(effects);
        self.publish(image, Some(last));
        for (responder, answer) in answers {
            responder.send(answer);
        }
        Ok(())
    }

    /// Keeps what applied entries changed.
    fn record(&self, effects: Vec<(LogId, Effect)>) {
        let ends = effects.first().zip(effects.last());
        let Some(range) = ends.map(|((first, _), (last, _))| first.index..last.index + 1) else {
            return;
        };
        let bytes = self.engine.entry_bytes(GROUP, range).into_iter().chain(iter::repeat(0));
        let entries = effects.into_iter().zip(bytes);
        self.history.applied(entries.map(|((id, effect), bytes)| (id, effect, bytes)));
    }

    /// The engine has the state `through` this entry, and `image` is the rest of it. Whoever waits
    /// for the entry reads the engine next.
    fn publish(&mut self, image: Image, through: Option<LogId>) {
        let applied = self.engine.applied(GROUP);
        assert!(applied == through, "{through:?} is told, and {applied:?} is applied");
        if Feature::CheckpointsOfChanges.is_used(image.version) {
            self.engine.raise_format();
        }
        self.image = image;
        self.progress.publish(&self.image, through);
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<RaftLogId>, StoredMembership), io::Error> {
        let applied = self.engine.applied(GROUP).map(raft_log_id);
        Ok((applied, self.image.membership.as_ref().clone()))
    }

    async fn apply<S>(&mut self, entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut ready = entries.ready_chunks(BATCH);
        while let Some(chunk) = ready.next().await {
            let applied = match chunk.into_iter().collect::<Result<Vec<_>, io::Error>>() {
                Ok(chunk) => self.apply_batch(chunk).await,
                Err(error) => Err(error),
            };
            applied.inspect_err(|error| self.progress.failed(error))?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { outgoing: Arc::new(Outgoing::of(&self.engine, &self.image, &self.repairer)) }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: SnapshotData,
    ) -> Result<(), io::Error> {
        let Some(applied) = meta.last_log_id.as_ref().map(engine_log_id) else {
            return Err(io::Error::other("a snapshot of nothing"));
        };
        let installed = data.install(&self.engine, applied, &self.progress).await;
        let image = installed.inspect_err(|error| self.progress.failed(error))?;
        // A snapshot does not say how its state came about.
        self.history.restart(Some(applied));
        self.publish(image, Some(applied));
        Ok(())
    }

    /// The snapshot of a broken transfer is returned again, so that the transfer can resume.
    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        if self.engine.applied(GROUP).is_none() {
            return Ok(None);
        }
        let purged = self.engine.log_bounds(GROUP).purged;
        let outgoing = match self.pinned.get(purged) {
            Some(outgoing) => outgoing,
            None => Arc::new(Outgoing::of(&self.engine, &self.image, &self.repairer)),
        };
        Ok(Some(snapshot(outgoing)))
    }
}

/// Builds a snapshot: a view. The engine keeps what it covers, in its checkpoints and in its log,
/// which it purges only as far as a checkpoint covers it.
pub(crate) struct Builder {
    outgoing: Arc<Outgoing>,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        Ok(snapshot(self.outgoing.clone()))
    }
}

fn snapshot(outgoing: Arc<Outgoing>) -> Snapshot {
    Snapshot { meta: outgoing.meta().clone(), snapshot: SnapshotData::Outgoing(outgoing) }
}
