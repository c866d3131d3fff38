//! What nodes report about themselves and the cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use tonic::Response;

use crate::attempts::Attempts;
use crate::failure::Failure;
#[cfg(feature = "serde")]
use crate::json;
use crate::named::{Chosen, MemberState, Mode, Role};
use crate::node::Stub;
use crate::operator::{OperatorCall, operator_call};
use crate::pool::Target;
use crate::scrub::{ScrubStatus, scrub_status};
use crate::shown::{of_node, some_of_node};
use crate::types::Member;
use crate::upgrade::{VersionStatus, version_status};
use crate::{Client, Error, convert, proto};

/// One node's status and its view of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeStatus {
    /// The name of the cluster.
    pub cluster: String,
    /// The node's identity: slot in the high 16 bits, incarnation in the others.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::node_id"))]
    pub node_id: u64,
    /// The node's slot.
    pub slot: u16,
    /// The version of the server.
    pub server_version: String,
    /// What the node does in the cluster.
    pub role: Role,
    /// The node's term.
    pub term: u64,
    /// The identity of the leader, if the node knows one.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::some_node_id"))]
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
    /// The identities of the voters: one set, or two while a change is under way; then a majority of
    /// each is needed. Empty from a server that does not tell them.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::configurations"))]
    pub configurations: Vec<BTreeSet<u64>>,
    /// The node's storage; absent if the node has none open.
    pub storage: Option<StorageStatus>,
    /// What the node's acknowledgements promise; absent if its version does not say.
    pub durability: Option<DurabilityStatus>,
    /// How long the node has been running.
    #[cfg_attr(feature = "serde", serde(rename = "uptime_ms", serialize_with = "json::millis"))]
    pub uptime: Duration,
    /// What is damaged in the node's data directory, while nothing of it is overwritten yet: if its
    /// device can be read again by then, nothing is lost.
    pub damage: Option<String>,
    /// Why the node has stopped serving, `None` while it serves.
    pub stopped_reason: Option<String>,
    /// The node's part in the cluster.
    pub member_state: MemberState,
    /// Why no leader can be elected by waiting alone, as the node sees it.
    pub election_blocked: Option<String>,
    /// Why the node serves no client now; `None` while it does.
    pub not_ready: Option<String>,
    /// The node's scrubber; `None` from a server that has none.
    pub scrub: Option<ScrubStatus>,
    /// The term of the last entry of the node's log.
    pub last_log_term: u64,
    /// The node's boot epoch: the number of times that its data directory was opened, and a random
    /// nonce of this open.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::first"))]
    pub boot_epoch: (u64, u64),
    /// Unsafe recoveries of this cluster so far. Each may have discarded acknowledged writes that
    /// no member held.
    pub unsafe_recoveries: u64,
    /// If there were any: versions up to this one may belong to a history that lacks acknowledged
    /// writes.
    pub last_unsafe_recovery_index: u64,
    /// Names the cluster that the node belongs to, if an operator made it anew of one member: random.
    /// Else 0.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::generation"))]
    pub generation: u32,
    /// The log entry, term and index, of the membership that the node uses.
    pub membership: (u64, u64),
    /// The node takes connections without certificates: whoever reaches its ports can read, write,
    /// and act as a member.
    pub insecure: bool,
    /// How much longer the node's certificate is valid, with what lies between it and the CA; zero: no
    /// longer. `None`: it has no end, or the node has none, has not looked yet, or its version does not
    /// say.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "certificate_left_s", serialize_with = "json::some_seconds")
    )]
    pub certificate_left: Option<Duration>,
    /// The same of the CA that signed it. Members and clients of Cairn do not check that, and other
    /// programs do.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ca_left_s", serialize_with = "json::some_seconds")
    )]
    pub ca_left: Option<Duration>,
    /// What acknowledgements mean; `None` from a server whose cluster has no mode of its own.
    pub modes: Option<ModeStatus>,
    /// How much longer the node gives leadership away and does not campaign; `None`: it may lead.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "drained_ms", serialize_with = "json::some_millis")
    )]
    pub drained: Option<Duration>,
    /// The versions of the cluster and its members; `None` from a server before versions.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub versions: Option<VersionStatus>,
    /// The latest calls of operators to the node since it started, the oldest first. Its log has
    /// all of them.
    pub operator_calls: Vec<OperatorCall>,
    /// How far back the node can tell what was changed; `None` from a server that keeps no history.
    pub history: Option<HistoryStatus>,
}

/// How far back a node can tell what was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HistoryStatus {
    /// The log entry, term and index, behind which it can; `None`: all along, or nothing was applied
    /// yet.
    pub oldest: Option<(u64, u64)>,
    /// The entries behind it.
    pub entries: u64,
    /// The bytes of keys and values that the log keeps for them, and of the keys of ranges that they deleted.
    pub bytes: u64,
    /// The time since the node applied the first of them, at most; zero if there is none.
    #[cfg_attr(feature = "serde", serde(rename = "age_ms", serialize_with = "json::millis"))]
    pub age: Duration,
}

/// What acknowledgements mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ModeStatus {
    /// The least that the cluster asks of every member, as the node knows it; `None`: not logged yet.
    pub cluster: Option<Mode>,
    /// The laxest that the node's drive and engine allow.
    pub own: Mode,
    /// The stricter of both: what the node's acknowledgements mean now.
    pub effective: Mode,
}

/// The state of a node's storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StorageStatus {
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
    #[cfg_attr(feature = "serde", serde(rename = "unsynced_ms", serialize_with = "json::millis"))]
    pub unsynced: Duration,
    /// The size of the data area, in bytes.
    pub data_bytes: u64,
    /// The free part of the data area, in bytes.
    pub free_bytes: u64,
    /// The bytes of keys and values.
    pub live_bytes: u64,
    /// The number of keys.
    pub keys: u64,
    /// The bytes of the keys in a checkpoint, whose two areas have a size of their own.
    pub index_bytes: u64,
    /// Where puts are refused, whatever the data area has free; 0 from a server that does not say.
    pub index_limit_bytes: u64,
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
    /// Values that were found damaged.
    pub corrupt_values: u64,
    /// The unsynced-ack flag: acknowledged writes may be unsynced now, and a power cut of this
    /// machine may lose them.
    pub unsynced_acks: bool,
}

/// What a node's acknowledgements promise, and how its mode was chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DurabilityStatus {
    /// What its acknowledgements mean.
    pub mode: Mode,
    /// Who chose that.
    pub chosen: Chosen,
    /// In mode device, how its contract is known to hold: shown by the machine or asserted by the
    /// operator.
    pub device_contract: Option<String>,
    /// What the promise relies on although the machine does not show it.
    pub warnings: Vec<String>,
    /// From the leader: where the promise does not hold in this cluster, because voters fail
    /// together. Another node does not know all of them, and says none.
    pub exceptions: Vec<String>,
    /// The longest time between a write and the background sync that covers it.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "sync_interval_ms", serialize_with = "json::millis")
    )]
    pub sync_interval: Duration,
    /// The most written bytes before a background sync begins. Sixteen times as many may be lost where
    /// the promise says so.
    pub sync_bytes: u64,
}

impl Client {
    /// The status of the node at `endpoint` (`host:port`). Asks the node once; no leader is needed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer, [`Error::InvalidOptions`] if `endpoint` is not
    /// an address.
    pub async fn status(&self, endpoint: &str) -> Result<NodeStatus, Error> {
        let call = |mut stub: Stub, timeout| async move {
            let request = stub.request(proto::StatusRequest {}, timeout);
            stub.unary.status(request).await.map(Response::into_inner)
        };
        let (status, _) =
            self.ask_anybody(endpoint, self.pool.options.attempt_timeout, call).await?;
        Ok(NodeStatus::of(status))
    }

    /// Asks one node once, for so long at most. The client stays with the generation that serves it.
    pub(crate) async fn ask_one<T, F>(
        &self,
        endpoint: &str,
        limit: Duration,
        call: impl FnOnce(Stub, Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let (answer, named) = self.ask_anybody(endpoint, limit, call).await?;
        self.pool.stays(named, endpoint)?;
        Ok(answer)
    }

    /// Asks one node once, of whatever generation. Returns the one that the request named, too.
    async fn ask_anybody<T, F>(
        &self,
        endpoint: &str,
        limit: Duration,
        call: impl FnOnce(Stub, Duration) -> F,
    ) -> Result<(T, Option<u32>), Error>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let pool = &self.pool;
        let address = pool.normalize(endpoint)?;
        let known = pool.all().into_iter().find(|node| node.address() == address);
        let node = match known {
            Some(node) => node,
            None => std::sync::Arc::new(pool.unconnected(address.clone())?),
        };
        let timeout = self.deadline.min(limit);
        let failed = |status: tonic::Status| match Failure::of(&status) {
            Failure::Refused(refused) if refused.is_denied() => refused,
            Failure::Refused(refused @ (Error::Refused { .. } | Error::InvalidRequest(_))) => {
                refused
            }
            _ => Error::unavailable(endpoint, convert::why(&status)),
        };
        let ask = async {
            let stub = pool.connect(&node).await?.stub();
            let named = stub.named;
            Ok((call(stub, timeout).await.map_err(failed)?, named))
        };
        let late = || {
            Err(Error::unavailable(
                &address,
                format!("no answer within {} ms", timeout.as_millis()),
            ))
        };
        tokio::time::timeout(timeout, ask).await.unwrap_or_else(|_| late())
    }

    /// The status of every known node, with its `host:port`. Asks all at once.
    pub async fn statuses(&self) -> Vec<(String, Result<NodeStatus, Error>)> {
        let asked = self.endpoints().into_iter().map(|endpoint| async move {
            let status = self.status(&endpoint).await;
            (endpoint, status)
        });
        join_all(asked).await
    }

    /// Asks a node for a new `Hello`.
    pub(crate) async fn hello(&self) -> Result<(), Error> {
        let call = |mut stub: Stub, (), timeout| async move { stub.hello(timeout).await };
        let attempts = Attempts::new(Target::Any, self.deadline).of_any_generation();
        let hello = self.ask(attempts, || (), call).await?;
        self.pool.learn("(a connected node)", hello)
    }
}

impl NodeStatus {
    /// What a node's message says. Its texts are bounded, and safe to print.
    #[doc(hidden)]
    pub fn of(status: proto::StatusResponse) -> NodeStatus {
        let leader = status.leader;
        NodeStatus {
            cluster: of_node(&status.cluster),
            node_id: status.node_id,
            slot: u16::try_from(status.slot).unwrap_or(u16::MAX),
            server_version: of_node(&status.server_version),
            role: Role::of(status.role),
            term: status.term,
            leader_id: leader.as_ref().map(|leader| leader.node_id),
            leader: leader.map(|leader| of_node(&leader.client_address)),
            last_log_index: status.last_log_index,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            purged_index: status.purged_index,
            members: status.members.into_iter().map(convert::member).collect(),
            configurations: status
                .configurations
                .into_iter()
                .map(|configuration| configuration.voters.into_iter().collect())
                .collect(),
            storage: status.storage.map(storage_status),
            durability: status.durability.map(durability_status),
            uptime: Duration::from_millis(status.uptime_ms),
            damage: some_of_node(&status.damage),
            stopped_reason: some_of_node(&status.stopped_reason),
            member_state: MemberState::of(status.member_state),
            election_blocked: some_of_node(&status.election_blocked),
            not_ready: some_of_node(&status.not_ready),
            scrub: status.scrub.map(scrub_status),
            last_log_term: status.last_log_term,
            boot_epoch: (status.boot_epoch, status.boot_nonce),
            unsafe_recoveries: status.unsafe_recoveries,
            generation: status.generation,
            last_unsafe_recovery_index: status.last_unsafe_recovery_index,
            membership: (status.membership_term, status.membership_index),
            insecure: status.insecure,
            certificate_left: status.certificate_left_s.map(Duration::from_secs),
            ca_left: status.ca_left_s.map(Duration::from_secs),
            modes: status.modes.map(mode_status),
            drained: (status.drained_ms > 0).then(|| Duration::from_millis(status.drained_ms)),
            versions: status.versions.map(version_status),
            operator_calls: status.operator_calls.into_iter().map(operator_call).collect(),
            history: status.history.map(history_status),
        }
    }
}

fn history_status(history: proto::History) -> HistoryStatus {
    HistoryStatus {
        oldest: history.oldest.map(|oldest| (oldest.term, oldest.index)),
        entries: history.entries,
        bytes: history.bytes,
        age: Duration::from_millis(history.age_ms),
    }
}

fn mode_status(modes: proto::Modes) -> ModeStatus {
    ModeStatus {
        cluster: Some(Mode::of(modes.cluster)).filter(|mode| *mode != Mode::Unknown),
        own: Mode::of(modes.own),
        effective: Mode::of(modes.effective),
    }
}

fn durability_status(durability: proto::Durability) -> DurabilityStatus {
    DurabilityStatus {
        mode: Mode::of(durability.mode),
        chosen: Chosen::of(durability.chosen),
        device_contract: some_of_node(&durability.device_contract),
        warnings: durability.warnings.iter().map(|text| of_node(text)).collect(),
        exceptions: durability.exceptions.iter().map(|text| of_node(text)).collect(),
        sync_interval: Duration::from_millis(durability.sync_interval_ms),
        sync_bytes: durability.sync_bytes,
    }
}

fn storage_status(storage: proto::Storage) -> StorageStatus {
    StorageStatus {
        backend: of_node(&storage.backend),
        directory: of_node(&storage.directory),
        written_sequence: storage.written_sequence,
        synced_sequence: storage.synced_sequence,
        unsynced_bytes: storage.unsynced_bytes,
        unsynced: Duration::from_millis(storage.unsynced_ms),
        data_bytes: storage.data_bytes,
        free_bytes: storage.free_bytes,
        live_bytes: storage.live_bytes,
        keys: storage.keys,
        index_bytes: storage.index_bytes,
        index_limit_bytes: storage.index_limit_bytes,
        journal_blocks: storage.journal_blocks,
        journal_used_blocks: storage.journal_used_blocks,
        checkpoints: storage.checkpoints,
        device_bytes_written: storage.device_bytes_written,
        user_bytes_written: storage.user_bytes_written,
        syncs: storage.syncs,
        corrupt_values: storage.corrupt_values,
        unsynced_acks: storage.unsynced_acks,
    }
}

#[cfg(test)]
mod tests;
