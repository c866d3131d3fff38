//! The changes behind an entry, for those who follow them.
//!
//! What holds here: what is told of an entry is what it changed when it was applied; entries come in
//! order, each as a whole and none left out. Where that is not possible, the caller hears why: the
//! changes are no longer kept, or the position is of another history.
//!
//! A member that may lack something tells nothing. Nor does one that may hold what an unsafe recovery
//! discarded: it was away meanwhile, vouches for all that it applied, and has not got the new leader's
//! snapshot yet. So each call is a read: the barrier comes first, and then the look at what it holds.

use super::Replica;
use crate::core::error::{HistoryError, Malformed};
use crate::core::ids::GROUP;
use crate::core::runtime;
use crate::storage::history::{Effect, History, HistoryStatus, KeyChange, changes_of};
use bytes::Bytes;
use cairn_engine::{Engine, LogId};

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
    /// applied yet. A term of 0 in `after` stands for whichever entry has that index, and is refused once
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
        let member = &self.inner.member;
        let recovered = member.progress.recovered_entries();
        behind(&member.engine, &member.history, after, most_entries, &recovered)
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

fn behind(
    engine: &Engine,
    history: &History,
    after: LogId,
    most: usize,
    recovered: &[LogId],
) -> Result<Vec<EntryChanges>, HistoryError> {
    let effects = || {
        follow_log(engine, history);
        let applied = engine.applied(GROUP).filter(|applied| after.index <= applied.index);
        let there = applied.and_then(|_| engine.log_id_at(GROUP, after.index));
        history.behind(after, most, there, recovered)
    };
    let told = read(engine, effects()?)?;
    if told.is_empty() {
        // There is nothing, or the log let it go meanwhile.
        effects()?;
    }
    Ok(told)
}

/// The changes of these entries, up to the first that the log no longer has.
fn read(engine: &Engine, effects: Vec<(LogId, Effect)>) -> Result<Vec<EntryChanges>, HistoryError> {
    let Some((first, _)) = effects.first() else {
        return Ok(Vec::new());
    };
    let metas = engine.read_metas(GROUP, first.index..u64::MAX, effects.len());
    let mut told = Vec::with_capacity(metas.len());
    for ((id, effect), (logged, meta)) in effects.into_iter().zip(metas) {
        let Some(values) = engine.values_of(GROUP, id.index).filter(|_| logged == id) else {
            break;
        };
        let lengths: Vec<u32> = values.iter().map(|value| value.len).collect();
        let changes = changes_of(&meta, &lengths, &effect);
        let unreadable =
            |error: Malformed| HistoryError::Unreadable { at: id, reason: error.to_string() };
        told.push(EntryChanges { id, changes: changes.map_err(unreadable)? });
    }
    Ok(told)
}
