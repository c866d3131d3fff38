//! Sends the state of one log index to somebody who saves it.
//!
//! What holds here: the state has everything that was acknowledged before the call, and nothing of
//! later. Few streams are open at once. Before each piece the caller's roles are looked at again. Nothing is left out
//! by an entry that is not in this member's log. What else ends a stream is in [`super::state_stream`].

use super::state_stream::{
    self, Bounds, COPIES, Memory, Next, PIECE_BYTES, Reading, TAKES_WITHIN, bytes_of,
};
use super::{Inner, read};
use crate::access::{Denied, Identity, Need, Principal, Session};
use crate::admission::caller::Caller;
use crate::admission::refusal;
use bytes::Bytes;
use cairn_client::proto::{self, backup_part};
use cairn_engine::LogId;
use cairn_raft::{GROUP, Item, Replica, StateReader};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Streams of one node that are open at once.
pub(super) const STREAMS: usize = 2;
/// What whoever saves it can do where space is scarce.
const WAY_OUT: &str =
    "save it when less is written, or faster; `cairn backup save` goes on where it was";

/// The parts of the state, as they are sent.
pub(super) type Parts = state_stream::Parts<proto::BackupPart>;

/// What is left of a state to send.
struct Sending {
    replica: Replica,
    reader: StateReader,
    caller: Caller,
    session: Session,
    held: Vec<(LogId, Bytes)>,
    after: Option<Bytes>,
    keys: u64,
    memory: Memory,
    at: At,
    _permit: OwnedSemaphorePermit,
}

/// What is sent next.
enum At {
    Head(proto::BackupHead),
    Keys,
    End,
    Nothing,
}

pub(super) async fn backup(
    inner: &Inner,
    (caller, session): (Caller, Session),
    request: proto::BackupRequest,
    budget: Duration,
    streams: Arc<Semaphore>,
) -> Result<Parts, Status> {
    caller.may(Need::State)?;
    is_member(&inner.replica, &session.identity().map_err(refusal::denied)?)?;
    let permit = streams.try_acquire_owned().map_err(|_| {
        refusal::refused(format!(
            "this node sends its state to {STREAMS} others already: wait until one has ended, or ask another member"
        ))
    })?;
    read::fresh(inner, budget).await?;
    let engine = read::readable(inner)?;
    let reader = inner.replica.state();
    let applied = reader.applied().unwrap_or(LogId { term: 0, index: 0 });
    let head = proto::BackupHead {
        cluster: engine.identity().cluster.clone(),
        generation: engine.generation(),
        cluster_version: inner.replica.versions().cluster,
        term: applied.term,
        index: applied.index,
        keys: reader.keys() as u64,
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let held = request.held.into_iter().map(|held| {
        (LogId { term: held.through_term, index: held.through_index }, held.through_key)
    });
    let purged = engine.log_bounds(GROUP).purged;
    let held = held.filter(|(through, _)| {
        may_be_in_log(*through, engine.log_id_at(GROUP, through.index), purged)
    });
    let sending = Sending {
        replica: inner.replica.clone(),
        reader,
        caller,
        session,
        held: held.collect(),
        after: None,
        keys: 0,
        memory: Memory::new(),
        at: At::Head(head),
        _permit: permit,
    };
    let bounds = Bounds { longest: None, takes_within: TAKES_WITHIN, yields: 1, way_out: WAY_OUT };
    Ok(state_stream::send(sending, bounds, engine.clone(), inner.stopping.clone()))
}

/// Whether an entry may be of this member's history, by what its log has there, and by the last entry that was
/// purged: terms never decrease along a log. One that the log has not come to says nothing; the caller
/// compares versions.
fn may_be_in_log(entry: LogId, there: Option<LogId>, purged: Option<LogId>) -> bool {
    if let Some(there) = there {
        return there.term == entry.term;
    }
    purged.is_none_or(|purged| match entry.index.cmp(&purged.index) {
        Ordering::Less => entry.term <= purged.term,
        Ordering::Equal => entry.term == purged.term,
        Ordering::Greater => true,
    })
}

/// A member's certificate is valid for longer than its slot is a member's, and may be made before.
fn is_member(replica: &Replica, caller: &Identity) -> Result<(), Status> {
    let Principal::Member(slot) = caller.principal() else { return Ok(()) };
    if replica.status().members.iter().any(|member| member.id.slot() == *slot) {
        return Ok(());
    }
    Err(refusal::denied(Denied::Lacks {
        principal: caller.principal().clone(),
        what: "take the state".into(),
        way_out: "the cluster has no member of this slot".into(),
    }))
}

impl Reading for Sending {
    type Part = proto::BackupPart;

    async fn next(&mut self) -> Result<Next<proto::BackupPart>, Status> {
        let next = match std::mem::replace(&mut self.at, At::Keys) {
            At::Head(head) => Next::Part(backup_part::Kind::Head(head)),
            At::Keys => self.keys().await?.map(backup_part::Kind::Items),
            At::End => {
                self.at = At::Nothing;
                Next::Part(backup_part::Kind::End(proto::BackupEnd { keys: self.keys }))
            }
            At::Nothing => {
                self.at = At::Nothing;
                Next::End
            }
        };
        Ok(next.map(|kind| proto::BackupPart { kind: Some(kind) }))
    }
}

impl Sending {
    async fn keys(&mut self) -> Result<Next<proto::BackupItems>, Status> {
        let now = self.session.identity().map_err(refusal::denied)?;
        for need in [Need::Backup, Need::State] {
            now.may(need).map_err(refusal::denied)?;
        }
        is_member(&self.replica, &now)?;
        // A larger piece is charged once it is read: one value of more than 2 MiB, or many keys without values. Few streams
        // are open, so that is bounded.
        let Some(mut charge) = self.memory.admit(&self.caller).await? else {
            return Ok(Next::Waiting);
        };
        let held = &self.held;
        let is_held = |key: &Bytes, version: LogId| {
            let has = |(through, last): &(LogId, Bytes)| {
                version <= *through && (last.is_empty() || key <= last)
            };
            held.iter().any(has)
        };
        let after = self.after.take();
        let range = self.reader.next_keys(after.clone(), PIECE_BYTES, is_held).await;
        let range = range.map_err(|error| {
            let key = after.as_deref().unwrap_or_default();
            match error {
                cairn_engine::Error::Corrupt(corruption) => {
                    let message = format!(
                        "a value behind key `{}` could not be read intact on this node, and no other member that answers has it: \
                         {corruption}; save the state again when all members are up, or of another one",
                        key.escape_ascii()
                    );
                    refusal::unreadable(message)
                }
                other => refusal::of_engine_read(key, other),
            }
        })?;
        self.after = range.items.last().map(|item| item.key.clone());
        self.keys += range.items.len() as u64;
        if range.last {
            self.at = At::End;
        }
        let bytes = |item: &Item| bytes_of(item, item.value.is_some());
        let bytes: usize = range.items.iter().map(bytes).sum();
        charge.resize(bytes.saturating_mul(COPIES));
        self.caller.answer(charge);
        let items = range.items.into_iter().map(|Item { key, entry, value }| proto::BackupItem {
            key,
            term: entry.version.term,
            index: entry.version.index,
            length: entry.value.len,
            hash: Bytes::copy_from_slice(&entry.value.hash.to_le_bytes()),
            value,
        });
        Ok(Next::Part(proto::BackupItems { items: items.collect() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: an unsafe recovery gave an index to another entry, and values were left out which only the discarded one
    /// had written.
    #[test]
    fn an_entry_is_of_this_history_if_the_log_has_it_or_may_have_had_it() {
        let id = |term, index| LogId { term, index };
        let purged = Some(id(5, 100));
        for (entry, there, expected) in [
            (id(6, 200), Some(id(6, 200)), true),
            (id(5, 200), Some(id(6, 200)), false),
            (id(7, 200), Some(id(6, 200)), false),
            (id(5, 100), None, true),
            (id(4, 100), None, false),
            (id(4, 99), None, true),
            (id(6, 99), None, false),
            // As `cairn export` asks, for a part of the keys.
            (id(u64::MAX, u64::MAX), None, true),
        ] {
            assert_eq!(may_be_in_log(entry, there, purged), expected, "{entry}");
        }
        assert!(may_be_in_log(id(9, 9), None, None), "nothing is known");
    }
}
