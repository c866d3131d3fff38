//! The engine as openraft's log.
//!
//! What holds here: an entry can be read as soon as `append` returned; completions come in append
//! order, since the engine calls them in that order; before `save_vote` returns, the vote is synced
//! and every earlier append is done; in every mode, membership entries, the first entry of a term,
//! a mode, and a write that asks for it are synced before they are acknowledged.

mod reader;
mod vote;

pub(crate) use reader::LogReader;
pub use vote::vote_of;
pub(crate) use vote::{encode as encode_vote, stored_vote};

use super::mode_in_force::ModeInForce;
use super::repair::Repairer;
use crate::core::ids::GROUP;
use crate::core::types::{Entry, RaftLogId, TypeConfig, Vote, engine_log_id, raft_log_id};
use crate::core::{codec, hooks, runtime};
use cairn_engine::{Engine, NewEntry, Promise};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend};
use std::io;
use std::sync::Arc;

/// The log half of the engine.
pub(crate) struct LogStore {
    engine: Engine,
    repairer: Arc<Repairer>,
    modes: Arc<ModeInForce>,
}

impl LogStore {
    pub(crate) fn new(
        engine: Engine,
        repairer: Arc<Repairer>,
        modes: Arc<ModeInForce>,
    ) -> LogStore {
        LogStore { engine, repairer, modes }
    }

    /// What the append of these entries must promise. Synced: the first entry of a term, by which
    /// its leader rules out that it repeats a log id; a membership, which decides whose votes
    /// count; a mode; and a write whose client asked for it.
    fn promise(&self, entries: &[NewEntry]) -> Promise {
        let last_term = self.engine.log_bounds(GROUP).last.map(|id| id.term);
        let asked =
            |entry: &NewEntry| Some(entry.id.term) != last_term || codec::is_synced(&entry.meta);
        match entries.iter().any(asked) {
            true => Promise::Synced,
            false => Promise::Mode,
        }
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let bounds = self.engine.log_bounds(GROUP);
        Ok(LogState {
            last_purged_log_id: bounds.purged.map(raft_log_id),
            last_log_id: bounds.last.map(raft_log_id),
        })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        LogReader::new(self.engine.clone(), self.repairer.clone())
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        // openraft takes a stored vote as a sign that every earlier append is done, since its own
        // log keeps one order. Without this barrier, a follower whose write is still in flight
        // would tell a new leader that it holds the entry.
        self.engine.barrier().await.map_err(io::Error::other)?;
        self.engine.save_vote(GROUP, &vote::encode(vote)).await.map_err(io::Error::other)
    }

    /// After a restart the state machine is as old as the last checkpoint; openraft re-applies what
    /// was applied before.
    async fn read_committed(&mut self) -> Result<Option<RaftLogId>, io::Error> {
        Ok(self.engine.applied_before_restart(GROUP).map(raft_log_id))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<TypeConfig>,
    ) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut held = Vec::new();
        let entries: Vec<NewEntry> = entries
            .into_iter()
            .map(|entry| {
                self.modes.appended(entry.log_id.index(), &entry.payload);
                held.extend(entry.held);
                let (meta, values) = codec::encode_payload(entry.payload);
                NewEntry { id: engine_log_id(&entry.log_id), meta, values }
            })
            .collect();
        if entries.is_empty() {
            callback.io_completed(Ok(()));
            return Ok(());
        }
        let promise = self.promise(&entries);
        let (slot, last) = (self.engine.identity().slot, entries.last().map(|entry| entry.id));
        let (latency, began) = (self.engine.append_latency(), runtime::now());
        let done = Box::new(move |result: cairn_engine::Result<()>| {
            latency.observe(runtime::now() - began);
            if let Some(last) = last.filter(|_| result.is_ok()) {
                hooks::note_flushed(slot, last);
            }
            callback.io_completed(result.map_err(io::Error::other));
        });
        let appended =
            self.engine.append(GROUP, entries, promise, done).await.map_err(io::Error::other);
        // The entries have their extents, or the engine has failed.
        drop(held);
        appended
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> Result<(), io::Error> {
        let last = last.map(|id| id.index());
        self.engine.truncate_after(GROUP, last).await.map_err(io::Error::other)?;
        self.modes.truncated(last);
        Ok(())
    }

    async fn purge(&mut self, through: RaftLogId) -> Result<(), io::Error> {
        self.engine.purge(GROUP, engine_log_id(&through)).await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::{MemberAddress, NodeId};
    use crate::core::types::{Membership, Payload};
    use crate::storage::repair::NoPeers;
    use crate::storage::tests::engine;
    use crate::{Command, Condition, Operation};
    use cairn_engine::{LogId, Mode};

    fn put(synced: bool) -> Payload {
        let operation =
            Operation::Put { key: "k".into(), value: "v".into(), condition: Condition::None };
        let command = Command { synced, session: None, operations: vec![operation] };
        Payload::Normal(codec::encode_command(command, 1))
    }

    fn entry(term: u64, index: u64, payload: Payload) -> NewEntry {
        let (meta, values) = codec::encode_payload(payload);
        NewEntry { id: LogId { term, index }, meta, values }
    }

    /// What an acknowledgement before the sync could take back, and nobody would notice: whose votes
    /// count, what acknowledgements mean, what is read, and which log ids a term has used.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_must_not_be_forgotten_is_synced_before_it_is_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&folder).await;
        let repairer = Arc::new(Repairer::new(engine.clone(), Arc::new(NoPeers)));
        let modes = Arc::new(ModeInForce::new(engine.clone(), Mode::Replicated, None));
        let store = LogStore::new(engine.clone(), repairer, modes);
        assert_eq!(store.promise(&[entry(1, 1, put(false))]), Promise::Synced, "the first term");
        let done = Box::new(|done: cairn_engine::Result<()>| done.unwrap());
        engine.append(GROUP, vec![entry(1, 1, put(false))], Promise::Mode, done).await.unwrap();

        let member = NodeId::new(1, 1);
        let nodes = std::collections::BTreeMap::from([(member, MemberAddress::default())]);
        let membership = Membership::new(vec![[member].into()], nodes).unwrap();
        let synced = [
            ("a membership", Payload::Membership(membership)),
            ("a mode", Payload::Normal(codec::encode_mode(Mode::Replicated))),
            ("a version", Payload::Normal(codec::encode_version(2))),
            ("a write whose client asks for it", put(true)),
        ];
        for (what, payload) in synced {
            let entries = [entry(1, 2, put(false)), entry(1, 3, payload), entry(1, 4, put(false))];
            assert_eq!(store.promise(&entries), Promise::Synced, "{what}");
        }
        let later = [entry(1, 2, put(false)), entry(2, 3, put(false))];
        assert_eq!(store.promise(&later), Promise::Synced, "the first entry of a later term");
        assert_eq!(store.promise(&[entry(1, 2, put(false))]), Promise::Mode);
        assert_eq!(store.promise(&[entry(1, 2, Payload::Blank)]), Promise::Mode);
    }
}
