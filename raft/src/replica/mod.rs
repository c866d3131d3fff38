//! The handle of a running replica, the service that answers the other members, and what goes on beside replication.

mod admission;
mod maintenance;
mod pacer;
mod peer_service;
mod read_barrier;
mod scrub;
mod start;
mod state_hash;
mod status;

pub use peer_service::{PeerServer, PeerService};
pub use scrub::ScrubStatus;
pub use status::{Member, ReplicaStatus, Role};

use crate::core::codec::{self, MAX_META_BYTES};
use crate::core::command::{Command, WriteOutcome};
use crate::core::error::{Error, ReadError, WriteError};
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::metrics::look_at;
use crate::core::proto::MAX_MESSAGE_BYTES;
use crate::core::runtime;
use crate::core::types::{Answer, Reply, TypeConfig};
use crate::durability::{LocalMember, Mandate, leadership, reaches_furthest};
use crate::storage::state_machine::{Losses, sessions};
use bytes::Bytes;
use cairn_engine::{Engine, KeyEntry, ListItem, LogId, Need, Run, Standing, View};
use maintenance::Maintained;
use openraft::ServerState;
use openraft::errors::{ClientWriteError, Fatal};
use openraft::raft::ClientWriteResult;
use parking_lot::Mutex;
use read_barrier::ReadBarrier;
use scrub::Scrubber;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A leader that sent something within this time is alive.
const LEADER_ALIVE: Duration = Duration::from_secs(5);
/// How often [`Replica::wait_stopped`] looks.
const STOPPED_PAUSE: Duration = Duration::from_millis(100);

/// A running replica. Clones share it.
#[derive(Clone)]
pub struct Replica {
    inner: Arc<Inner>,
}

struct Inner {
    member: Arc<LocalMember>,
    service: PeerService,
    maintained: Arc<Maintained>,
    barrier: ReadBarrier,
    scrubber: Scrubber,
    /// Why this identity has no place in the cluster any more.
    outcast: Arc<Mutex<Option<String>>>,
}

impl Drop for Inner {
    /// What runs beside replication and is not told otherwise ends with the last handle.
    fn drop(&mut self) {
        self.member.stopping.store(true, Ordering::SeqCst);
    }
}

impl Replica {
    /// The service that answers the other members: to be added to the server on the peer address.
    pub fn peer_service(&self) -> PeerServer {
        PeerServer::new(runtime::behind_network(self.inner.service.clone()))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Replicates and applies a command. Leader only. May be cancelled; the command may then be applied or not.
    ///
    /// # Errors
    /// See [`WriteError`], which tells of each case whether anything was proposed.
    pub async fn write(&self, command: Command) -> Result<WriteOutcome, WriteError> {
        self.write_holding(command, ()).await
    }

    /// The same; `held` is dropped when the command is applied or given up, however long its caller waits.
    ///
    /// # Errors
    /// As [`Replica::write`].
    pub async fn write_holding(
        &self,
        command: Command,
        held: impl Send + 'static,
    ) -> Result<WriteOutcome, WriteError> {
        if command.operations.is_empty() {
            return Err(WriteError::Invalid("a command without operations".into()));
        }
        let bytes = command.bytes();
        let remembered = command.session.map_or(0, |_| sessions::write_bytes(command.operations.len()));
        let proposal = codec::encode_command(command, self.inner.member.config.max_sessions);
        if proposal.meta.len() > MAX_META_BYTES {
            return Err(WriteError::Invalid(format!("the command's keys exceed {MAX_META_BYTES} bytes")));
        }
        // Another member's room is not this one's to judge.
        let (leads, runs) = look_at(&self.inner.member.raft, |metrics| {
            (metrics.state == ServerState::Leader, metrics.running_state.is_ok())
        });
        if !runs && let Some(reason) = self.stopped() {
            return Err(WriteError::Stopped(reason));
        }
        let need = Need {
            bytes,
            longest: proposal.values.iter().map(|value| value.len() as u64).max(),
            index_bytes: Engine::index_bytes(proposal.values.len(), proposal.meta.len())
                + Engine::applied_bytes(proposal.values.len(), proposal.meta.len())
                + remembered,
        };
        let proposed = leads.then(|| self.inner.service.room.propose(need)).transpose().map_err(refused)?;
        // Whoever asked may give up waiting; what it takes is taken until openraft is done with it.
        let (reply, answer) = Reply::pair(Box::new((proposed, held)));
        let raft = &self.inner.member.raft;
        if let Err(fatal) = raft.client_write_ff(proposal, Some(reply)).await {
            return Err(WriteError::Stopped(self.reason(&fatal)));
        }
        match answer.await {
            Ok(result) => outcome(result),
            // openraft ended with the proposal in its hands.
            Err(_) => {
                Err(WriteError::OutcomeUnknown("this member stopped before the outcome was known".into()))
            }
        }
    }

    /// Returns when this replica has applied everything that was acknowledged before the call: a read of the engine
    /// after it is linearizable. Leader only; concurrent callers share a round to the quorum.
    ///
    /// # Errors
    /// See [`ReadError`]. Nothing is changed by a barrier, so it can always be repeated.
    pub async fn read_barrier(&self) -> Result<(), ReadError> {
        self.inner.barrier.wait().await
    }

    /// A key's state and value. A value that is damaged here is fetched from another member and put right; that takes some
    /// milliseconds. May be cancelled.
    ///
    /// # Errors
    /// Those of [`Engine::get`]; `Corrupt` only where no member that answers has the value.
    pub async fn get(&self, key: &[u8]) -> cairn_engine::Result<Option<(KeyEntry, Bytes)>> {
        self.inner.maintained.mender.get(key).await
    }

    /// The value of a listed key; as [`Replica::get`] where it is damaged.
    ///
    /// # Errors
    /// Those of [`View::read`]; `Corrupt` only where no member that answers has the value.
    pub async fn read(&self, view: &View, item: &ListItem) -> cairn_engine::Result<Bytes> {
        self.inner.maintained.mender.read(view, &item.key, &item.entry).await
    }

    /// Begins a scrub of everything now, also where it was paused. Goes on in the background.
    pub fn start_scrub(&self) {
        self.inner.scrubber.start();
    }

    /// Pauses the scrubber, or lets it go on. Kept over restarts.
    pub fn pause_scrub(&self, pause: bool) {
        self.inner.scrubber.pause(pause);
    }

    /// What the scrubber says of itself.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.inner.scrubber.status()
    }

    /// The engine, for reads of [`GROUP`].
    pub fn engine(&self) -> &Engine {
        &self.inner.member.engine
    }

    /// Who this is.
    pub fn node_id(&self) -> NodeId {
        self.inner.member.identity.id()
    }

    /// Whether this replica remembers everything that it acknowledged. While it does not, it neither votes nor may it be
    /// read from.
    pub fn standing(&self) -> Standing {
        match self.inner.member.gate.is_open() {
            true => Standing::Active,
            false => Standing::Recovering,
        }
    }

    /// Whether this identity is a voter, as far as its own log says. One that is not yet has nothing that is worth
    /// reading.
    pub fn votes(&self) -> bool {
        look_at(&self.inner.member.raft, |metrics| {
            metrics.membership_config.voter_ids().any(|voter| voter == metrics.id)
        })
    }

    /// Whether the log says, as far as it is applied here, that a member has made this start or a later one: from then on
    /// an older copy of its disk is refused by everybody.
    pub fn knows_start(&self, member: NodeId, run: Run) -> bool {
        self.inner.member.identity.starts().has_logged(member, run)
    }

    /// Why this identity has no place in the cluster any more, if others said so.
    pub fn outcast(&self) -> Option<String> {
        self.inner.outcast.lock().clone()
    }

    /// How often an operator gave up what no member held any more.
    pub fn losses(&self) -> Losses {
        self.inner.member.progress.losses()
    }

    /// An operator has seen what every member holds, accepts that acknowledged writes may be lost, and names who shall
    /// lead. The candidate refuses where a voter that answers it holds a longer log. To be given to the candidate and to the other
    /// recovering members. Votes are given by it for
    /// [`Mandate::LIFETIME`]; forgotten by a restart.
    ///
    /// # Errors
    /// Says why it is not needed here, or does not fit.
    pub async fn mandate(&self, mandate: Mandate) -> Result<(), String> {
        let member = &self.inner.member;
        if member.gate.is_open() {
            return Err("this member is active and needs no mandate to vote".into());
        }
        if member.gate.heard_within(LEADER_ALIVE) {
            return Err("a leader is alive and brings this member back; nothing is to be decided".into());
        }
        let own = member.engine.run();
        if mandate.candidate == self.node_id() && mandate.run != own {
            return Err(format!(
                "this member has started again since it was looked at (start {}, now {}); look again",
                mandate.run.start, own.start
            ));
        }
        if mandate.candidate == self.node_id() {
            reaches_furthest(member).await?;
        }
        tracing::warn!(
            node = %self.node_id(), candidate = %mandate.candidate,
            "the loss of what no member holds any more is accepted, and this member is named to lead"
        );
        member.gate.give_mandate(mandate);
        if mandate.candidate == self.node_id() {
            member.raft.runtime_config().elect(true);
        }
        Ok(())
    }

    /// Who leads, if known.
    pub fn leader(&self) -> Option<(NodeId, MemberAddress)> {
        look_at(&self.inner.member.raft, leadership::leader)
    }

    /// What it can say of itself. Cheap.
    pub fn status(&self) -> ReplicaStatus {
        let stopped = self.stopped();
        // What is asked of the engine may have to wait, so not within the look.
        let metrics = look_at(&self.inner.member.raft, Clone::clone);
        let mut status = status::of(&metrics, self.engine(), self.standing(), stopped);
        // Who does not campaign, or is refused by all, remembers whom it followed once.
        if status.role != Role::Leader && !self.inner.member.gate.heard_within(LEADER_ALIVE) {
            status.leader = None;
        }
        status
    }

    /// The applied position, and a hash over all keys, versions, values' hashes and the machine image: replicas that
    /// have applied the same position have the same hash.
    pub fn state_hash(&self) -> (Option<LogId>, u128) {
        state_hash::of(&self.engine().view(GROUP))
    }

    /// Resolves when replication stops by itself, with the reason. Never resolves while it runs, nor after `shutdown`.
    ///
    /// It looks every [`STOPPED_PAUSE`]: openraft's metrics change with every batch of entries, and a waiter woken by
    /// each of them costs a tenth of a busy leader's processor time.
    pub async fn wait_stopped(&self) -> String {
        loop {
            if let Some(reason) = self.stopped() {
                if self.inner.member.stops() {
                    return std::future::pending().await;
                }
                return reason;
            }
            runtime::sleep(STOPPED_PAUSE).await;
        }
    }

    /// Stops replication, after handing leadership over if this replica leads and another one can take it at once. The
    /// engine stays open: the caller closes it next.
    ///
    /// # Errors
    /// `Stopped`, if a task ended abnormally.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.inner.member.stopping.store(true, Ordering::SeqCst);
        let patience = Duration::from_millis(self.inner.member.config.election_min_ms);
        leadership::hand_over(&self.inner.member.raft, patience).await;
        self.inner.member.raft.shutdown().await.map_err(|error| Error::Stopped(error.to_string()))
    }

    fn stopped(&self) -> Option<String> {
        let state = look_at(&self.inner.member.raft, |metrics| metrics.running_state.clone());
        state.err().map(|fatal| self.reason(&fatal))
    }

    /// Why openraft ended; the engine's own words, where it was the engine.
    fn reason(&self, fatal: &Fatal<TypeConfig>) -> String {
        self.engine().status().failed.unwrap_or_else(|| fatal.to_string())
    }
}

fn refused(error: cairn_engine::Error) -> WriteError {
    match error {
        cairn_engine::Error::Full { .. } | cairn_engine::Error::IndexFull { .. } => {
            WriteError::Full(error.to_string())
        }
        error => WriteError::Stopped(error.to_string()),
    }
}

fn outcome(result: ClientWriteResult<TypeConfig>) -> Result<WriteOutcome, WriteError> {
    let response = match result {
        Ok(response) => response,
        Err(ClientWriteError::ForwardToLeader(forward)) => {
            return Err(match read_barrier::leader(forward) {
                Some(leader) => WriteError::NotLeader { leader: Some(leader) },
                None => WriteError::NoLeader,
            });
        }
        // It was in the log, and another leader's entries took its place: here. Elsewhere it may still be.
        Err(error) => return Err(WriteError::OutcomeUnknown(error.to_string())),
    };
    match response.data {
        Answer::Outcome { term, index, applied, results } => {
            Ok(WriteOutcome { log_id: LogId { term, index }, applied, results })
        }
        Answer::SessionExpired => Err(WriteError::SessionExpired),
        Answer::Nothing => Err(WriteError::OutcomeUnknown("the entry was applied as another kind".into())),
    }
}

#[cfg(test)]
mod tests;
