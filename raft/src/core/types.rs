//! openraft's types, chosen once. Crate-private.

use super::command::WriteOutcome;
use super::ids::{MemberAddress, NodeId};
use super::runtime::Runtime;
use bytes::Bytes;
use cairn_engine::Value;
use openraft::alias::{CommittedLeaderIdOf, LogIdOf};
use openraft::entry::RaftEntry;
use openraft::impls::leader_id_std;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// One leader per term, so that an entry's term and index name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Proposal;
    type R = Answer;
    type NodeId = NodeId;
    type Node = MemberAddress;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, NodeId>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Proposal, NodeId, MemberAddress>;
    type Entry = Entry;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = Reply<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type Payload = openraft::alias::PayloadOf<TypeConfig>;
pub(crate) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(crate) type RaftLogId = LogIdOf<TypeConfig>;
pub(crate) type Membership = openraft::Membership<NodeId, MemberAddress>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
pub(crate) type AppendRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;

/// openraft's log id for the engine's.
pub(crate) fn raft_log_id(id: cairn_engine::LogId) -> RaftLogId {
    RaftLogId::new_term_index(id.term, id.index)
}

/// The engine's log id for openraft's.
pub(crate) fn engine_log_id(id: &RaftLogId) -> cairn_engine::LogId {
    let leader: &CommittedLeaderIdOf<TypeConfig> = id.committed_leader_id();
    cairn_engine::LogId { term: leader.term, index: id.index() }
}

/// A command in the form in which it is stored and sent: the leader encodes it once.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proposal {
    /// Everything but the values, as [`crate::core::codec`] encodes it.
    pub(crate) meta: Bytes,
    /// The puts' values, in order. Empty in an entry that was read only to be applied: the engine
    /// links the values that it holds. A receiver counts puts and values, so it does not accept
    /// such an entry as complete.
    pub(crate) values: Vec<Value>,
}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.values.iter().map(|value| value.bytes().len()).sum();
        write!(
            f,
            "{} bytes of meta, {} values of {bytes} bytes",
            self.meta.len(),
            self.values.len()
        )
    }
}

/// A log entry on its way through openraft.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) log_id: RaftLogId,
    pub(crate) payload: Payload,
    /// The capacity that is reserved for an entry that a leader sent, until the entry has its
    /// extents or is dropped.
    pub(crate) held: Option<Held>,
}

/// Something that is released when the last of its owners is dropped.
pub(crate) type Held = Arc<dyn Any + Send + Sync>;

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.log_id == other.log_id && self.payload == other.payload
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.log_id, self.payload)
    }
}

impl RaftEntry for Entry {
    type CommittedLeaderId = CommittedLeaderIdOf<TypeConfig>;
    type Payload = Payload;

    fn new(log_id: RaftLogId, payload: Payload) -> Entry {
        Entry { log_id, payload, held: None }
    }

    fn log_id_parts(&self) -> (&CommittedLeaderIdOf<TypeConfig>, u64) {
        (self.log_id.committed_leader_id(), self.log_id.index())
    }

    fn set_log_id(&mut self, log_id: RaftLogId) {
        self.log_id = log_id;
    }

    fn get_membership(&self) -> Option<Membership> {
        match &self.payload {
            Payload::Membership(membership) => Some(membership.clone()),
            _ => None,
        }
    }
}

/// The result of applying an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A blank or a membership entry.
    Nothing,
    /// A command's outcome, now or when it was first applied.
    Outcome(WriteOutcome),
    /// The command's session is no longer known; it was not applied.
    SessionExpired,
}

/// Where a caller waits for a result. The caller may go away.
pub(crate) struct Reply<T> {
    sender: tokio::sync::oneshot::Sender<T>,
    /// Dropped when openraft is done with the request.
    _held: Box<dyn Send>,
}

impl<T> Reply<T> {
    pub(crate) fn pair(held: Box<dyn Send>) -> (Reply<T>, tokio::sync::oneshot::Receiver<T>) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        (Reply { sender, _held: held }, receiver)
    }
}

impl<T: Send + 'static> openraft::raft::responder::Responder<TypeConfig, T> for Reply<T> {
    fn on_complete(self, result: T) {
        // The caller may have gone away.
        self.sender.send(result).ok();
    }
}
