//! Receiving a snapshot: one at a time, its pieces in order, kept when the connection breaks.
//!
//! What holds here: a piece is taken once, in order, and only with values that match their hash; a snapshot whose last
//! entry the log already holds is not taken at all, since installing it would drop the log's newer entries.

use super::proto;
use crate::GROUP;
use crate::codec::{self, Malformed};
use crate::convert;
use crate::runtime;
use crate::state_machine::{Incoming, Snapshot, SnapshotData};
use crate::types::SnapshotMeta;
use bytes::Bytes;
use cairn_engine::{Engine, Installer, LogId};
use std::time::Duration;
use tokio::sync::Mutex;
use tonic::Status;
use xxhash_rust::xxh3::xxh3_128;

/// A transfer of which nothing arrives for this long is forgotten, and its room given back.
const KEEP_FOR: Duration = Duration::from_secs(120);

/// Where pieces are gathered.
pub(crate) struct SnapshotReceiver {
    engine: Engine,
    partial: Mutex<Option<Partial>>,
}

struct Partial {
    last_log_id: LogId,
    installer: Installer,
    next_chunk: u64,
    last_key: Bytes,
    used: runtime::Instant,
}

/// Where a transfer stands.
pub(super) enum Standing {
    /// The log already holds what the snapshot ends with.
    Needless,
    /// The next piece, and the last key before it.
    Expects(u64, Bytes),
}

fn engine_status(error: cairn_engine::Error) -> Status {
    match error {
        cairn_engine::Error::Full { .. } | cairn_engine::Error::IndexFull { .. } => {
            Status::resource_exhausted(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

fn invalid(error: Malformed) -> Status {
    Status::invalid_argument(error.to_string())
}

impl SnapshotReceiver {
    pub(crate) fn new(engine: Engine) -> SnapshotReceiver {
        SnapshotReceiver { engine, partial: Mutex::new(None) }
    }

    fn needless(&self, last: LogId) -> bool {
        self.engine.applied(GROUP) >= Some(last) || self.engine.log_id_at(GROUP, last.index) == Some(last)
    }

    /// What is applied is committed, and has no other ids: replication takes a contradiction for a broken invariant.
    fn refuse_contradiction(&self, last: LogId) -> Result<(), Status> {
        match self.engine.applied(GROUP) {
            Some(applied) if last.index <= applied.index && last > applied => {
                let reason = format!("a snapshot through {last} contradicts what is applied here, {applied}");
                Err(Status::failed_precondition(reason))
            }
            _ => Ok(()),
        }
    }

    /// Goes on with a transfer, or begins it.
    pub(super) async fn offset(&self, last: LogId) -> Result<Standing, Status> {
        if self.needless(last) {
            return Ok(Standing::Needless);
        }
        self.refuse_contradiction(last)?;
        let mut partial = self.partial.lock().await;
        if let Some(partial) = partial.as_mut().filter(|partial| partial.last_log_id == last) {
            partial.used = runtime::now();
            return Ok(Standing::Expects(partial.next_chunk, partial.last_key.clone()));
        }
        // Dropped first, so that it does not take the room of the new one.
        *partial = None;
        *partial = Some(Partial {
            last_log_id: last,
            installer: self.engine.begin_install(GROUP).await.map_err(engine_status)?,
            next_chunk: 0,
            last_key: Bytes::new(),
            used: runtime::now(),
        });
        Ok(Standing::Expects(0, Bytes::new()))
    }

    /// Takes a piece; returns the number of the next one.
    pub(super) async fn chunk(
        &self,
        last: LogId,
        chunk: u64,
        items: Vec<proto::SnapshotItem>,
    ) -> Result<u64, Status> {
        let mut slot = self.partial.lock().await;
        match slot.as_ref().filter(|partial| partial.last_log_id == last) {
            None => return Err(Status::aborted("no such snapshot is being received; ask for the offset")),
            Some(partial) if chunk != partial.next_chunk => return Ok(partial.next_chunk),
            Some(_) => {}
        }
        // Where this ends early, by an error or because the sender waits no longer, part of the piece is in, and part of an
        // earlier one may be lost: only a new beginning is certain.
        let Some(mut partial) = slot.take() else {
            return Err(Status::aborted("no snapshot is being received"));
        };
        check(&partial.last_key, &items)?;
        let mut last_key = partial.last_key.clone();
        for item in items {
            last_key = item.key.clone();
            let version = LogId { term: item.term, index: item.index };
            partial.installer.put(item.key, version, item.value).await.map_err(engine_status)?;
        }
        // What no checkpoint can hold need not be sent to its end.
        partial.installer.fits(0).map_err(engine_status)?;
        partial.last_key = last_key;
        partial.next_chunk += 1;
        partial.used = runtime::now();
        Ok(slot.insert(partial).next_chunk)
    }

    /// Gives out a snapshot whose pieces have all arrived, to be installed. `None`: needless by now.
    pub(super) async fn finish(
        &self,
        last: LogId,
        meta: SnapshotMeta,
        chunks: u64,
        machine: Bytes,
    ) -> Result<Option<Snapshot>, Status> {
        let mut slot = self.partial.lock().await;
        if self.needless(last) {
            *slot = None;
            return Ok(None);
        }
        self.refuse_contradiction(last)?;
        match slot.take() {
            Some(mut partial) if partial.last_log_id == last && partial.next_chunk == chunks => {
                // Room that is missing is said here: met while the state is replaced, it would end replication.
                partial.installer.flush().await.map_err(engine_status)?;
                partial.installer.fits(machine.len() as u64).map_err(engine_status)?;
                let incoming = Incoming::new(partial.installer, &machine, &meta).map_err(invalid)?;
                Ok(Some(Snapshot { meta, snapshot: SnapshotData::Incoming(Box::new(incoming)) }))
            }
            other => {
                *slot = other;
                Err(Status::aborted("the snapshot's pieces have not all arrived; ask for the offset"))
            }
        }
    }

    /// Forgets a transfer that came to nothing.
    pub(crate) async fn expire(&self) {
        let mut partial = self.partial.lock().await;
        if partial.as_ref().is_some_and(|partial| runtime::now() - partial.used > KEEP_FOR) {
            *partial = None;
        }
    }
}

/// Keys rise, and each value is what was first written.
fn check(last_key: &Bytes, items: &[proto::SnapshotItem]) -> Result<(), Status> {
    let mut before = last_key;
    for item in items {
        if !codec::is_key(&item.key) {
            return Err(invalid(Malformed("a key that is empty or too long")));
        }
        if item.key <= before {
            return Err(invalid(Malformed("a snapshot's keys out of order")));
        }
        if item.hash != xxh3_128(&item.value).to_le_bytes()[..] {
            return Err(Status::data_loss("a snapshot's value does not match its hash"));
        }
        before = &item.key;
    }
    Ok(())
}

/// The snapshot that a message names, if a leader with this vote can have sent it.
pub(super) fn named(
    meta: Option<proto::SnapshotMeta>,
    vote: &crate::types::Vote,
) -> Result<(LogId, SnapshotMeta), Status> {
    let (last, meta) = convert::snapshot_meta_from_proto(meta).map_err(invalid)?;
    match vote.is_committed() && last.term <= vote.leader_id.term {
        true => Ok((last, meta)),
        false => Err(Status::invalid_argument("a snapshot beyond its sender's leadership")),
    }
}
