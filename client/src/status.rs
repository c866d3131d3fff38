//! What nodes say of themselves and of the cluster.

use std::time::Duration;

use futures::future::join_all;

use crate::node::{Node, Stub, normalize};
use crate::pool::Target;
use crate::scrub::{ScrubStatus, scrub_status};
use crate::types::Member;
use crate::{Client, Error, convert, proto};

/// One node's own picture of itself and of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The name of the cluster.
    pub cluster: String,
    /// The node's identity: slot in the high 16 bits, incarnation in the others.
    pub node_id: u64,
    /// The node's slot.
    pub slot: u16,
    /// The version of the server's program.
    pub server_version: String,
    /// leader, follower, candidate, learner or stopped.
    pub role: String,
    /// The node's term.
    pub term: u64,
    /// The identity of the leader, if the node knows one.
    pub leader_id: Option<u64>,
    /// `host:port` of the leader, if the node knows one.
    pub leader: Option<String>,
    /// The last index of the node's log.
    pub last_log_index: u64,
    /// The last index known to be committed.
    pub committed_index: u64,
    /// The last index applied.
    pub applied_index: u64,
    /// The last index purged from the log.
    pub purged_index: u64,
    /// The members as the node knows them.
    pub members: Vec<Member>,
    /// The node's storage; absent if the node has none open.
    pub storage: Option<StorageStatus>,
    /// What the node's acknowledgements promise; absent if its version does not say.
    pub durability: Option<DurabilityStatus>,
    /// How long the node has been running.
    pub uptime: Duration,
    /// Why the node serves no more, `None` while it does.
    pub stopped_reason: Option<String>,
    /// `active`. Or `recovering`: its machine lost power with acknowledged writes unsynced, or its journal or checkpoints
    /// were damaged; it neither votes nor serves until a leader has brought it up to date. Or `joining`: it is not a voter
    /// yet. Or `retired`: another identity has taken its slot.
    pub standing: String,
    /// Nobody leads, and waiting alone elects nobody: what the cluster waits for, as the node has it.
    pub waits_for: Option<String>,
    /// The node's scrubber; `None` from a server that has none.
    pub scrub: Option<ScrubStatus>,
    /// The term of the last entry of the node's log.
    pub last_log_term: u64,
    /// This start of the node: how many there were, and a random number.
    pub run: (u64, u64),
    /// How often an operator gave up writes that no member held any more.
    pub losses: u64,
    /// If so: versions up to this one may be of a history that lacks acknowledged writes.
    pub last_loss_index: u64,
    /// The log entry, term and index, of the membership that the node goes by.
    pub membership: (u64, u64),
}

/// The state of a node's storage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageStatus {
    /// device, replicated or sync.
    pub mode: String,
    /// io_uring or threads.
    pub backend: String,
    /// The data directory.
    pub directory: String,
    /// The last journal sequence written.
    pub written_sequence: u64,
    /// The last journal sequence covered by a sync.
    pub synced_sequence: u64,
    /// Bytes written since the last sync.
    pub unsynced_bytes: u64,
    /// The age of the oldest write not yet synced.
    pub unsynced: Duration,
    /// The size of the data area, in bytes.
    pub data_bytes: u64,
    /// The free part of the data area, in bytes.
    pub free_bytes: u64,
    /// The bytes of keys and values.
    pub live_bytes: u64,
    /// The number of keys.
    pub keys: u64,
    /// The journal's size, in blocks.
    pub journal_blocks: u64,
    /// The used part of the journal, in blocks.
    pub journal_used_blocks: u64,
    /// Checkpoints taken since the node started.
    pub checkpoints: u64,
    /// Bytes written to the device since the node started.
    pub device_bytes_written: u64,
    /// Bytes of keys and values written since the node started.
    pub user_bytes_written: u64,
    /// Syncs since the node started.
    pub syncs: u64,
    /// Values found damaged.
    pub corrupt_values: u64,
    /// Whether acknowledgements may run ahead of syncs at the moment: a power cut of this machine would take some.
    pub lazy: bool,
}

/// What a node's acknowledgements promise, and how it came to that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DurabilityStatus {
    /// device, replicated or sync.
    pub mode: String,
    /// configured or auto.
    pub chosen: String,
    /// In mode device, how its contract is known to hold: shown by the machine or asserted by the operator.
    pub device_contract: Option<String>,
    /// What the promise rests on without its being shown.
    pub warnings: Vec<String>,
}

impl Client {
    /// What the node at `endpoint` (`host:port`) says of itself. It is asked once and needs no leader.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer, [`Error::InvalidOptions`] if `endpoint` is no address.
    pub async fn status(&self, endpoint: &str) -> Result<NodeStatus, Error> {
        let call = |mut stub: Stub, timeout| async move { stub.status(timeout).await };
        let answer = self.ask_one(endpoint, call).await?;
        Ok(node_status(answer.map_err(|status| Error::unavailable(endpoint, convert::describe(&status)))?))
    }

    /// Tells the node at `endpoint` that an operator accepts the loss of what no member holds any more, and which member,
    /// in which of its runs ([`NodeStatus::run`]), shall lead: it may then vote for it, and for nobody else.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer; [`Error::InvalidRequest`] with its reason if it refuses.
    pub async fn mandate(&self, endpoint: &str, candidate: u64, run: (u64, u64)) -> Result<(), Error> {
        let request = proto::MandateRequest { candidate, start: run.0, run: run.1 };
        let call = |mut stub: Stub, timeout| async move { stub.mandate(request, timeout).await };
        match self.ask_one(endpoint, call).await? {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                Err(Error::InvalidRequest(format!("{endpoint}: {}", status.message())))
            }
            Err(status) => Err(Error::unavailable(endpoint, convert::describe(&status))),
        }
    }

    /// One question to one node.
    pub(crate) async fn ask_one<T, F>(
        &self,
        endpoint: &str,
        call: impl FnOnce(Stub, Duration) -> F,
    ) -> Result<Result<T, tonic::Status>, Error>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let pool = &self.inner.pool;
        let address = normalize(endpoint)?;
        let known = pool.all().into_iter().find(|node| node.address() == address);
        let node = match known {
            Some(node) => node,
            None => std::sync::Arc::new(Node::new(address.clone(), &pool.options)?),
        };
        let timeout = self.deadline.min(pool.options.attempt_timeout);
        let ask = async { Ok(call(pool.connect(&node).await?.stub(), timeout).await) };
        let late = || Err(Error::unavailable(&address, format!("no answer within {timeout:?}")));
        tokio::time::timeout(timeout, ask).await.unwrap_or_else(|_| late())
    }

    /// What every node known says of itself, all asked at once, with its `host:port`.
    pub async fn statuses(&self) -> Vec<(String, Result<NodeStatus, Error>)> {
        let asked = self.endpoints().into_iter().map(|endpoint| async move {
            let status = self.status(&endpoint).await;
            (endpoint, status)
        });
        join_all(asked).await
    }

    /// Has a node say anew what the cluster is.
    pub(crate) async fn hello(&self) -> Result<(), Error> {
        let call = |mut stub: Stub, (), timeout| async move { stub.hello(timeout).await };
        let hello = self.read(Target::Any, || (), call).await?;
        self.inner.pool.learn("(a connected node)", hello)
    }
}

fn node_status(status: proto::StatusResponse) -> NodeStatus {
    let leader = status.leader;
    NodeStatus {
        cluster: status.cluster,
        node_id: status.node_id,
        slot: u16::try_from(status.slot).unwrap_or(u16::MAX),
        server_version: status.server_version,
        role: status.role,
        term: status.term,
        leader_id: leader.as_ref().map(|leader| leader.node_id),
        leader: leader.map(|leader| leader.client_address),
        last_log_index: status.last_log_index,
        committed_index: status.committed_index,
        applied_index: status.applied_index,
        purged_index: status.purged_index,
        members: status.members.into_iter().map(convert::member).collect(),
        storage: status.storage.map(storage_status),
        durability: status.durability.map(durability_status),
        uptime: Duration::from_millis(status.uptime_ms),
        stopped_reason: Some(status.stopped_reason).filter(|reason| !reason.is_empty()),
        standing: status.standing,
        waits_for: Some(status.waits_for).filter(|sentence| !sentence.is_empty()),
        scrub: status.scrub.map(scrub_status),
        last_log_term: status.last_log_term,
        run: (status.start, status.run),
        losses: status.losses,
        last_loss_index: status.last_loss_index,
        membership: (status.membership_term, status.membership_index),
    }
}

fn durability_status(durability: proto::Durability) -> DurabilityStatus {
    DurabilityStatus {
        mode: durability.mode,
        chosen: durability.chosen,
        device_contract: Some(durability.device_contract).filter(|contract| !contract.is_empty()),
        warnings: durability.warnings,
    }
}

fn storage_status(storage: proto::Storage) -> StorageStatus {
    StorageStatus {
        mode: storage.mode,
        backend: storage.backend,
        directory: storage.directory,
        written_sequence: storage.written_sequence,
        synced_sequence: storage.synced_sequence,
        unsynced_bytes: storage.unsynced_bytes,
        unsynced: Duration::from_millis(storage.unsynced_ms),
        data_bytes: storage.data_bytes,
        free_bytes: storage.free_bytes,
        live_bytes: storage.live_bytes,
        keys: storage.keys,
        journal_blocks: storage.journal_blocks,
        journal_used_blocks: storage.journal_used_blocks,
        checkpoints: storage.checkpoints,
        device_bytes_written: storage.device_bytes_written,
        user_bytes_written: storage.user_bytes_written,
        syncs: storage.syncs,
        corrupt_values: storage.corrupt_values,
        lazy: storage.lazy,
    }
}
