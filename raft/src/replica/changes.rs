//! The changes behind an entry, for those who follow them.
//!
//! What holds here: what is told of an entry is what it changed when it was applied; entries come in
//! order, each as a whole and none left out. Where that is not possible, the caller hears why: the
//! changes are no longer kept, or the position is of another history.
//!
//! A member that may lack something tells nothing. Nor does one that may hold what an unsafe recovery
//! discarded: it was away meanwhile, vouches for all that it applied, and has not got the new leader's
//! snapshot yet. So telling is a read: the barrier comes first, and then the look at what it holds. Who tells many
//! changes may share a barrier among them, and calls [`Replica::applied_changes`] behind it.

use super::Replica;
use crate::core::command::RANGE_KEYS_MAX;
use crate::core::error::{HistoryError, Malformed};
use crate::core::ids::GROUP;
use crate::core::runtime;
use crate::storage::history::{Effect, History, HistoryStatus, KeyChange, changes_of};
use bytes::Bytes;
use cairn_engine::{Engine, LogId};

/// So many changes are told at once, or those of one entry.
const CHANGES_MOST: usize = 4 * RANGE_KEYS_MAX as usize;

/// How much is told at once.
pub(super) struct Most {
    pub(super) entries: usize,
    /// The first entry is told whatever it has.
    pub(super) changes: usize,
}

/// What an applied entry changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChanges {
    /// The entry.
    pub id: LogId,
    /// In the order of its operations, each key once; empty if it changed nothing.
    pub changes: Vec<KeyChange>,
}

impl Replica {
    /// What the entries behind `after` changed, at most so many entries, in order; nothing if none is
    /// applied yet. They are fewer where they would have more than 16,384 changes together. A term of 0 in
    /// `after` stands for whichever entry has that index, and is refused once
    /// there was an unsafe recovery. Waits for a read barrier ([`Replica::read_barrier`]), whose round
    /// concurrent callers share; no I/O on the disk. May be cancelled.
    ///
    /// # Errors
    /// See [`HistoryError`]. It changes nothing, so it can always be retried.
    pub async fn changes(
        &self,
        after: LogId,
        most_entries: usize,
    ) -> Result<Vec<EntryChanges>, HistoryError> {
        self.read_barrier().await?;
        if !self.holds_all() {
            return Err(HistoryError::Recovering);
        }
        self.applied_changes(after, most_entries)
    }

    /// The same of what is applied here, without a barrier: asks nobody, and looks at nothing but this member. Tell
    /// nobody of it unless a barrier ([`Replica::read_barrier_within`]) was passed before, and this member
    /// [holds all](Replica::holds_all).
    ///
    /// # Errors
    /// `Compacted`, `Discarded`, `Ahead`, `Unreadable`.
    pub fn applied_changes(
        &self,
        after: LogId,
        most_entries: usize,
    ) -> Result<Vec<EntryChanges>, HistoryError> {
        let member = &self.inner.member;
        let recovered = member.progress.recovered_entries();
        let most = Most { entries: most_entries, changes: CHANGES_MOST };
        behind(&member.engine, &member.history, after, &most, &recovered)
    }

    /// Whether everything behind `after` that is applied here can be told, without a barrier, as
    /// [`Replica::applied_changes`].
    ///
    /// # Errors
    /// Why not: `Compacted`, `Discarded`, `Ahead`.
    pub fn follows(&self, after: LogId) -> Result<(), HistoryError> {
        self.applied_changes(after, 0).map(drop)
    }

    /// A value of an entry that [`Replica::changes`] told. Repairs a damaged one as [`Replica::get`]
    /// does. `None`: the log no longer has the entry. May be cancelled.
    ///
    /// # Errors
    /// Those of [`Engine::read_logged`]; `Corrupt` only if no member that answers has the value.
    pub async fn logged_value(
        &self,
        id: LogId,
        number: usize,
    ) -> cairn_engine::Result<Option<Bytes>> {
        self.inner.member.repairer.read_logged(id, number).await
    }

    /// Returns when an entry behind this one is applied. Never returns if this member stops before.
    pub async fn applied_behind(&self, after: LogId) {
        self.inner.member.progress.wait_behind(after.index).await;
    }

    /// How far back changes can be told here.
    pub fn history(&self) -> HistoryStatus {
        let member = &self.inner.member;
        follow_log(&member.engine, &member.history);
        member.history.status(runtime::now())
    }
}

/// The history begins no earlier than the log. Values of entries whose purge is due may be gone, too.
pub(super) fn follow_log(engine: &Engine, history: &History) {
    let gone = engine.log_bounds(GROUP).purged.max(engine.purge_due(GROUP));
    if let Some(gone) = gone {
        history.cut(gone);
    }
}

pub(super) fn behind(
    engine: &Engine,
    history: &History,
    after: LogId,
    most: &Most,
    recovered: &[LogId],
) -> Result<Vec<EntryChanges>, HistoryError> {
    let effects = || {
        follow_log(engine, history);
        let applied = engine.applied(GROUP).filter(|applied| after.index <= applied.index);
        let there = applied.and_then(|_| engine.log_id_at(GROUP, after.index));
        history.behind(after, most.entries, there, recovered)
    };
    let told = read(engine, effects()?, most.changes)?;
    if told.is_empty() {
        // There is nothing, or the log let it go meanwhile.
        effects()?;
    }
    Ok(told)
}

/// The changes of these entries, up to the first that the log no longer has, or with which they would have
/// more than `most`.
fn read(
    engine: &Engine,
    effects: Vec<(LogId, Effect)>,
    most: usize,
) -> Result<Vec<EntryChanges>, HistoryError> {
    let Some((first, _)) = effects.first() else {
        return Ok(Vec::new());
    };
    let metas = engine.read_metas(GROUP, first.index..u64::MAX, effects.len());
    let (mut told, mut count) = (Vec::with_capacity(metas.len()), 0_usize);
    for ((id, effect), (logged, meta)) in effects.into_iter().zip(metas) {
        let Some(values) = engine.values_of(GROUP, id.index).filter(|_| logged == id) else {
            break;
        };
        let lengths: Vec<u32> = values.iter().map(|value| value.len).collect();
        let changes = changes_of(&meta, &lengths, &effect);
        let unreadable =
            |error: Malformed| HistoryError::Unreadable { at: id, reason: error.to_string() };
        let changes = changes.map_err(unreadable)?;
        count = count.saturating_add(changes.len());
        if count > most && !told.is_empty() {
            break;
        }
        told.push(EntryChanges { id, changes });
    }
    Ok(told)
}
