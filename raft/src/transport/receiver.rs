//! Receiving a snapshot: one at a time, its pieces in order. A broken connection keeps what has
//! arrived.
//!
//! What holds here: a piece is taken only where it begins behind the last key that has arrived, and
//! with values that match their hash. A snapshot whose last entry the log already holds is not taken, since installing it would drop the
//! log's newer entries. A piece that was begun is taken to its end, even if its sender stops
//! waiting. A value may come as a hash only if this member holds the value of the same entry; else
//! the receiver asks for it.

use super::messages;
use crate::core::error::Malformed;
use crate::core::ids::GROUP;
use crate::core::types::SnapshotMeta;
use crate::core::{codec, proto, runtime};
use crate::storage::state_machine::{Incoming, Snapshot, SnapshotData};
use bytes::Bytes;
use cairn_engine::{Engine, Installer, LogId, SnapshotKey};
use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Mutex, oneshot};
use tonic::Status;

/// A transfer without a message for this long is dropped, and its space freed.
const KEEP_FOR: Duration = Duration::from_secs(120);

/// Collects the pieces of a snapshot.
pub(crate) struct SnapshotReceiver {
    engine: Engine,
    partial: Arc<Mutex<Option<Partial>>>,
    /// Why this member takes no snapshot any more: one was of another history.
    contradicted: OnceLock<String>,
}

struct Partial {
    last_log_id: LogId,
    installer: Installer,
    last_key: Bytes,
    used: runtime::Instant,
}

impl Partial {
    /// Adds the next piece if it is complete; else returns the keys whose values are missing.
    async fn take(
        mut self,
        items: Vec<proto::SnapshotItem>,
    ) -> Result<(Partial, Vec<Bytes>), Status> {
        let keys = checked(&self.last_key, items)?;
        let last_key = keys.last().map_or_else(|| self.last_key.clone(), |key| key.key().clone());
        let missing = self.installer.put(keys).await.map_err(engine_status)?;
        // Fail early: no checkpoint could hold the snapshot.
        self.installer.fits(0).map_err(engine_status)?;
        if missing.is_empty() {
            self.last_key = last_key;
        }
        self.used = runtime::now();
        Ok((self, missing))
    }
}

fn engine_status(error: cairn_engine::Error) -> Status {
    match error {
        cairn_engine::Error::Full { .. } | cairn_engine::Error::IndexFull { .. } => {
            Status::resource_exhausted(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

impl SnapshotReceiver {
    pub(crate) fn new(engine: Engine) -> SnapshotReceiver {
        SnapshotReceiver { engine, partial: Arc::default(), contradicted: OnceLock::new() }
    }

    /// Whether this member holds everything through this entry, and keeps it as its mode promises:
    /// an entry of the log, or an installed snapshot, is visible before that.
    async fn already_held(&self, last: LogId) -> Result<bool, Status> {
        let visible = self.engine.applied(GROUP) >= Some(last)
            || self.engine.log_id_at(GROUP, last.index) == Some(last);
        if visible {
            self.engine.barrier().await.map_err(engine_status)?;
        }
        Ok(visible)
    }

    /// Refuses a snapshot with these entries in its history, if that lacks what is applied here: applied
    /// entries are committed and keep their ids, and terms never fall along a log, so it has no entry of
    /// a later term up to there, and none of an earlier one from there on. From then on every snapshot is
    /// refused, since what is applied stays. A leader that is deposed by now is no witness: it may be the
    /// one whose entries were discarded.
    ///
    /// The story: a member was missing while an operator discarded what it held, and came back when the
    /// log was purged beyond that. A snapshot replaced the last copy of acknowledged writes without a
    /// word.
    fn refuse_contradiction(
        &self,
        entries: impl IntoIterator<Item = LogId>,
        leads: impl Fn() -> bool,
    ) -> Result<(), Status> {
        if let Some(applied) = self.engine.applied(GROUP) {
            let contradicts = |id: &LogId| match id.index.cmp(&applied.index) {
                Ordering::Less => id.term > applied.term,
                Ordering::Equal => id.term != applied.term,
                Ordering::Greater => id.term < applied.term,
            };
            if let Some(id) = entries.into_iter().find(contradicts) {
                // Asked behind `applied`: what a later leader wrote is applied behind the vote for it.
                if !leads() {
                    return Err(Status::aborted("another member leads; ask for the offset"));
                }
                let reason = format!(
                    "a leader sends a snapshot with entry {id} in its history, where this member has applied {applied}: what it \
                     holds was discarded with `cairn unsafe-recovery`; keep its data directory if that matters, and give it an \
                     empty one"
                );
                if self.contradicted.set(reason.clone()).is_ok() {
                    tracing::error!(slot = self.engine.identity().slot, reason);
                }
            }
        }
        self.contradicted
            .get()
            .map_or(Ok(()), |reason| Err(Status::failed_precondition(reason.clone())))
    }

    /// Whether a leader sent a snapshot of a history that lacks what is applied here.
    pub(crate) fn is_contradicted(&self) -> bool {
        self.contradicted.get().is_some()
    }

    /// Resumes a transfer, or begins it; `leads`: whether this member knows no later leader than the
    /// sender. Returns the last key that has arrived, empty if none has.
    /// `None`: this member already holds everything through the snapshot's last entry.
    pub(crate) async fn offset(
        &self,
        last: LogId,
        leads: impl Fn() -> bool,
    ) -> Result<Option<Bytes>, Status> {
        // First: an entry of another history may look like an earlier one than what is applied.
        self.refuse_contradiction([last], leads)?;
        if self.already_held(last).await? {
            return Ok(None);
        }
        let mut partial = self.partial.lock().await;
        if let Some(partial) = partial.as_mut().filter(|partial| partial.last_log_id == last) {
            partial.used = runtime::now();
            return Ok(Some(partial.last_key.clone()));
        }
        // Drop the old transfer first, so that the new one can use its space.
        *partial = None;
        *partial = Some(Partial {
            last_log_id: last,
            installer: self.engine.begin_install(GROUP).await.map_err(engine_status)?,
            last_key: Bytes::new(),
            used: runtime::now(),
        });
        Ok(Some(Bytes::new()))
    }

    /// Takes a piece, the keys behind `after`; not if others have arrived last. Returns the last key
    /// that has arrived, and the keys whose values this member lacks: if there are any, the piece is
    /// expected again, with those. May be cancelled: a piece that was begun is still taken, and a
    /// call of `offset` waits for that.
    ///
    /// The sender may cut a snapshot differently when it resumes it, and a piece of an earlier
    /// attempt may arrive late: so no number says which keys a piece holds.
    pub(crate) async fn chunk(
        &self,
        last: LogId,
        after: Bytes,
        items: Vec<proto::SnapshotItem>,
        leads: impl Fn() -> bool,
    ) -> Result<(Bytes, Vec<Bytes>), Status> {
        let mut slot = self.partial.clone().lock_owned().await;
        let gone = || Status::aborted("no such snapshot is being received; ask for the offset");
        let partial = slot.as_ref().filter(|partial| partial.last_log_id == last);
        let last_key = &partial.ok_or_else(gone)?.last_key;
        if after != *last_key {
            return Ok((last_key.clone(), Vec::new()));
        }
        let written = items.iter().map(|item| LogId { term: item.term, index: item.index });
        if let Err(refused) = self.refuse_contradiction(written, leads) {
            *slot = None;
            return Err(refused);
        }
        // After an error a part of the piece may be stored, so the transfer is gone and must begin
        // again.
        let partial = slot.take().ok_or_else(gone)?;
        let (done, taken) = oneshot::channel();
        runtime::spawn(async move {
            let took = partial
                .take(items)
                .await
                .map(|(partial, missing)| (slot.insert(partial).last_key.clone(), missing));
            drop(slot);
            done.send(took).ok();
        });
        taken.await.unwrap_or_else(|_| Err(Status::aborted("this member ends")))
    }

    /// Hands over a snapshot that has arrived up to its last key, to be installed. `None`: this
    /// member already holds everything through it.
    pub(crate) async fn finish(
        &self,
        last: LogId,
        meta: SnapshotMeta,
        last_key: Bytes,
        machine: Bytes,
        leads: impl Fn() -> bool,
    ) -> Result<Option<Snapshot>, Status> {
        let mut slot = self.partial.lock().await;
        if let Err(refused) = self.refuse_contradiction([last], &leads) {
            *slot = None;
            return Err(refused);
        }
        if self.already_held(last).await? {
            *slot = None;
            return Ok(None);
        }
        match slot.take() {
            Some(partial) if partial.last_log_id == last && partial.last_key == last_key => {
                // Report missing space here: during the install it would end replication.
                partial.installer.fits(machine.len() as u64).map_err(engine_status)?;
                let incoming = Incoming::new(partial.installer, &machine, &meta)?;
                self.refuse_contradiction(incoming.known_entries(), &leads)?;
                Ok(Some(Snapshot { meta, snapshot: SnapshotData::Incoming(Box::new(incoming)) }))
            }
            other => {
                *slot = other;
                Err(Status::aborted(
                    "the snapshot's pieces have not all arrived; ask for the offset",
                ))
            }
        }
    }

    /// Whether a snapshot is being received, as far as nobody has abandoned it.
    pub(crate) fn receives(&self) -> bool {
        // Locked: a piece of it is being taken.
        self.partial.try_lock().map_or(true, |partial| partial.is_some())
    }

    /// Drops an abandoned transfer.
    pub(crate) fn expire(&self) {
        // Locked: a piece of it is being taken.
        let Ok(mut partial) = self.partial.try_lock() else { return };
        if partial.as_ref().is_some_and(|partial| runtime::now() - partial.used > KEEP_FOR) {
            *partial = None;
        }
    }
}

/// Checks that keys ascend, and that each value matches its hash.
fn checked(last_key: &Bytes, items: Vec<proto::SnapshotItem>) -> Result<Vec<SnapshotKey>, Status> {
    let mut keys: Vec<SnapshotKey> = Vec::with_capacity(items.len());
    for item in items {
        if !codec::is_key(&item.key) {
            return Err(Malformed("a key that is empty or too long").into());
        }
        if item.key <= keys.last().map_or(last_key, |before| before.key()) {
            return Err(Malformed("a snapshot's keys out of order").into());
        }
        let hash: Option<[u8; 16]> = item.hash.as_ref().try_into().ok();
        let hash = hash.map(u128::from_le_bytes).ok_or(Malformed("not a hash"))?;
        let version = LogId { term: item.term, index: item.index };
        let key = SnapshotKey::checked(item.key, version, item.length, hash, item.value);
        let wrong = || Status::data_loss("a snapshot's value does not match its hash");
        keys.push(key.ok_or_else(wrong)?);
    }
    Ok(keys)
}

/// The snapshot that a message names, if a leader with this vote can have sent it.
pub(crate) fn named(
    meta: Option<proto::SnapshotMeta>,
    vote: &crate::core::types::Vote,
) -> Result<(LogId, SnapshotMeta), Status> {
    let (last, meta) = messages::snapshot_meta_from_proto(meta)?;
    match vote.is_committed() && last.term <= vote.leader_id.term {
        true => Ok((last, meta)),
        false => Err(Status::invalid_argument("a snapshot beyond its sender's leadership")),
    }
}

#[cfg(test)]
mod tests;
