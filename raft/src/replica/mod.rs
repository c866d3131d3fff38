//! The handle of a running replica, the service that answers the other members, and what goes on beside replication.

mod admission;
mod maintenance;
mod pacer;
mod peer_service;
mod read_barrier;
mod scrub;
mod state_hash;
mod status;

pub use peer_service::{PeerServer, PeerService};
pub use scrub::ScrubStatus;
pub use status::{Member, ReplicaStatus, Role};

use crate::core::codec::{self, MAX_META_BYTES};
use crate::core::command::{Command, WriteOutcome};
use crate::core::config::ReplicaConfig;
use crate::core::error::{Error, ReadError, WriteError};
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::metrics::{LateMetrics, look_at};
use crate::core::proto::MAX_MESSAGE_BYTES;
use crate::core::runtime;
use crate::core::types::{Answer, Reply, TypeConfig};
use crate::durability::{
    Gate, Mandate, Policy, Recovery, Redundancy, StartRecords, leadership, reaches_furthest,
};
use crate::membership::{Forming, Newcomer, Steward};
use crate::storage::Raft;
use crate::storage::log_store::LogStore;
use crate::storage::progress::Progress;
use crate::storage::repair::Mender;
use crate::storage::state_machine::retired::Retired;
use crate::storage::state_machine::starts::Starts;
use crate::storage::state_machine::{Losses, PinnedSnapshot, StateMachine, sessions};
use crate::transport::{Connections, PeerIdentity, Peers, SnapshotReceiver, terms};
use admission::Room;
use bytes::Bytes;
use cairn_engine::{Engine, KeyEntry, ListItem, LogId, Mode, Need, Run, Standing, View};
use maintenance::Maintained;
use openraft::ServerState;
use openraft::errors::{ClientWriteError, Fatal};
use openraft::raft::ClientWriteResult;
use parking_lot::Mutex;
use peer_service::{Shared, is_blank};
use read_barrier::ReadBarrier;
use scrub::Scrubber;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A leader that sent something within this time is alive.
const LEADER_ALIVE: Duration = Duration::from_secs(5);
/// How often [`Replica::wait_stopped`] looks.
const STOPPED_PAUSE: Duration = Duration::from_millis(100);

/// The part of a checkpoint area that the table of sessions may take.
const SESSIONS_PART: u64 = 8;

/// A running replica. Clones share it.
#[derive(Clone)]
pub struct Replica {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    maintained: Arc<Maintained>,
    barrier: ReadBarrier,
    scrubber: Scrubber,
    /// Why this identity has no place in the cluster any more.
    outcast: Arc<Mutex<Option<String>>>,
    stopping: Arc<AtomicBool>,
}

impl Drop for Inner {
    /// What runs beside replication and is not told otherwise ends with the last handle.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
    }
}

impl Replica {
    /// Starts replication over an open engine. When this returns, everything that was applied before the last restart
    /// is applied again; the cluster may still have to be formed, which goes on in the background.
    ///
    /// # Errors
    /// `Config`, `Engine`, `State`.
    pub async fn start(config: ReplicaConfig, engine: Engine) -> Result<Replica, Error> {
        // The table of sessions shares a checkpoint area with the keys.
        let sessions = engine.status().index_capacity_bytes / SESSIONS_PART / sessions::BYTES_PER_SESSION;
        let max_sessions = config.max_sessions.min(usize::try_from(sessions).unwrap_or(usize::MAX)).max(1);
        let config = ReplicaConfig { max_sessions, ..config };
        let (starts, retired) = (Starts::default(), Retired::default());
        let identity = PeerIdentity::of(&engine, starts.clone(), retired.clone());
        let id = identity.id();
        let raft_config = Arc::new(config.for_openraft(&engine.identity().cluster, id)?);
        let patience = Duration::from_millis(config.election_max_ms.max(1000));
        let progress = Arc::new(Progress::new(retired, starts.clone()));
        let pinned = PinnedSnapshot::default();
        terms::warn_if_misled(&engine, id);
        let blank = is_blank(&engine) && engine.standing() == Standing::Active;
        let (metrics, configured) = (LateMetrics::default(), Arc::new(config.initial_members.clone()));
        let peers =
            Peers { identity: identity.clone(), configured: configured.clone(), metrics: metrics.clone() };
        let mender = Arc::new(Mender::new(engine.clone(), Arc::new(peers)));
        let machine = StateMachine::new(engine.clone(), progress.clone(), pinned.clone(), mender.clone())
            .map_err(|error| Error::State(error.to_string()))?;
        let redundancy = Arc::new(Redundancy::new(engine.clone()));
        let gate = Arc::new(Gate::new(engine.standing()));
        let policy = Policy { gate: gate.clone(), redundancy: redundancy.clone(), metrics: metrics.clone() };
        let connections =
            Connections::new(identity.clone(), Arc::new(policy), pinned.clone(), configured, patience);
        let raft =
            Raft::build(id, raft_config, connections, LogStore::new(engine.clone(), mender.clone()), machine)
                .await
                .map_err(|fatal| Error::State(fatal.to_string()))?;
        metrics.set(raft.metrics());
        raft.runtime_config().elect(gate.is_open());
        raft.run();
        let voters =
            raft.with_raft_state(|state| state.membership_state.effective().voter_ids().count()).await;
        if let Err(error) =
            voters.map_err(|fatal| Error::State(fatal.to_string())).and_then(|voters| config.fits(voters))
        {
            raft.shutdown().await.ok();
            return Err(error);
        }

        let receiver = Arc::new(SnapshotReceiver::new(engine.clone()));
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = {
            let stopping = stopping.clone();
            move || stopping.load(Ordering::SeqCst)
        };
        let maintained = Arc::new(Maintained {
            engine: engine.clone(),
            raft: raft.clone(),
            progress: progress.clone(),
            pinned,
            receiver: receiver.clone(),
            config: config.clone(),
            mender: mender.clone(),
        });
        runtime::spawn(maintenance::run(Arc::downgrade(&maintained), stop.clone()));
        if config.mode == Mode::Replicated {
            let patience = Duration::from_millis(config.election_min_ms);
            let watched = Arc::downgrade(&redundancy);
            runtime::spawn(Redundancy::run(watched, raft.clone(), progress.clone(), patience, stop.clone()));
        }
        let records = Arc::new(StartRecords::new(raft.clone()));
        let steward = Arc::new(Steward::new(raft.clone(), starts.clone(), records.clone(), engine.run()));
        runtime::spawn(Steward::run(Arc::downgrade(&steward), stop.clone()));
        let outcast = Arc::default();
        let newcomer = Newcomer {
            identity: identity.clone(),
            raft: raft.clone(),
            gate: gate.clone(),
            members: config.initial_members.clone(),
            outcast: Arc::clone(&outcast),
        };
        if config.initial_members.len() > 1 {
            runtime::spawn(newcomer.run(stop.clone()));
        }
        let forming = Forming {
            identity: identity.clone(),
            raft: raft.clone(),
            members: config.initial_members.clone(),
        };
        let recovery = Recovery {
            identity: identity.clone(),
            engine: engine.clone(),
            raft: raft.clone(),
            records: records.clone(),
            gate: gate.clone(),
            progress: progress.clone(),
            members: config.initial_members,
            stopping: stopping.clone(),
        };
        if blank && forming.is_mine() {
            runtime::spawn(forming.run(stop));
        } else if !gate.is_open() {
            runtime::spawn(recovery.clone().run());
        }
        let (rate, cycle) = (config.scrub_rate_bytes, config.scrub_cycle);
        let scrubber = Scrubber::new(engine.clone(), mender, gate.clone(), rate, cycle, stopping.clone());
        runtime::spawn(scrubber.clone().run());
        let barrier = ReadBarrier::start(raft.clone(), progress, patience);
        let room = Room::new(engine.clone());
        let contradicted = AtomicBool::new(false);
        let shared = Arc::new(Shared {
            identity,
            engine,
            raft,
            gate,
            redundancy,
            receiver,
            steward,
            room,
            recovery,
            contradicted,
        });
        Ok(Replica { inner: Arc::new(Inner { shared, maintained, barrier, scrubber, outcast, stopping }) })
    }

    /// The service that answers the other members: to be added to the server on the peer address.
    pub fn peer_service(&self) -> PeerServer {
        PeerServer::new(runtime::behind_network(PeerService { shared: self.inner.shared.clone() }))
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
        let proposal = codec::encode_command(command, self.inner.maintained.config.max_sessions);
        if proposal.meta.len() > MAX_META_BYTES {
            return Err(WriteError::Invalid(format!("the command's keys exceed {MAX_META_BYTES} bytes")));
        }
        // Another member's room is not this one's to judge.
        let (leads, runs) = look_at(&self.inner.shared.raft, |metrics| {
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
        let proposed = leads.then(|| self.inner.shared.room.propose(need)).transpose().map_err(refused)?;
        // Whoever asked may give up waiting; what it takes is taken until openraft is done with it.
        let (reply, answer) = Reply::pair(Box::new((proposed, held)));
        let raft = &self.inner.shared.raft;
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
        &self.inner.shared.engine
    }

    /// Who this is.
    pub fn node_id(&self) -> NodeId {
        self.inner.shared.identity.id()
    }

    /// Whether this replica remembers everything that it acknowledged. While it does not, it neither votes nor may it be
    /// read from.
    pub fn standing(&self) -> Standing {
        match self.inner.shared.gate.is_open() {
            true => Standing::Active,
            false => Standing::Recovering,
        }
    }

    /// Whether this identity is a voter, as far as its own log says. One that is not yet has nothing that is worth
    /// reading.
    pub fn votes(&self) -> bool {
        look_at(&self.inner.shared.raft, |metrics| {
            metrics.membership_config.voter_ids().any(|voter| voter == metrics.id)
        })
    }

    /// Whether the log says, as far as it is applied here, that a member has made this start or a later one: from then on
    /// an older copy of its disk is refused by everybody.
    pub fn knows_start(&self, member: NodeId, run: Run) -> bool {
        self.inner.shared.identity.starts().has_logged(member, run)
    }

    /// Why this identity has no place in the cluster any more, if others said so.
    pub fn outcast(&self) -> Option<String> {
        self.inner.outcast.lock().clone()
    }

    /// How often an operator gave up what no member held any more.
    pub fn losses(&self) -> Losses {
        self.inner.maintained.progress.losses()
    }

    /// An operator has seen what every member holds, accepts that acknowledged writes may be lost, and names who shall
    /// lead. The candidate refuses where a voter that answers it holds a longer log. To be given to the candidate and to the other
    /// recovering members. Votes are given by it for
    /// [`Mandate::LIFETIME`]; forgotten by a restart.
    ///
    /// # Errors
    /// Says why it is not needed here, or does not fit.
    pub async fn mandate(&self, mandate: Mandate) -> Result<(), String> {
        let shared = &self.inner.shared;
        if shared.gate.is_open() {
            return Err("this member is active and needs no mandate to vote".into());
        }
        if shared.gate.heard_within(LEADER_ALIVE) {
            return Err("a leader is alive and brings this member back; nothing is to be decided".into());
        }
        let own = shared.engine.run();
        if mandate.candidate == self.node_id() && mandate.run != own {
            return Err(format!(
                "this member has started again since it was looked at (start {}, now {}); look again",
                mandate.run.start, own.start
            ));
        }
        if mandate.candidate == self.node_id() {
            let configured = &shared.recovery.members;
            reaches_furthest(&shared.identity, &shared.engine, &shared.raft, configured).await?;
        }
        tracing::warn!(
            node = %self.node_id(), candidate = %mandate.candidate,
            "the loss of what no member holds any more is accepted, and this member is named to lead"
        );
        shared.gate.give_mandate(mandate);
        if mandate.candidate == self.node_id() {
            shared.raft.runtime_config().elect(true);
        }
        Ok(())
    }

    /// Who leads, if known.
    pub fn leader(&self) -> Option<(NodeId, MemberAddress)> {
        look_at(&self.inner.shared.raft, leadership::leader)
    }

    /// What it can say of itself. Cheap.
    pub fn status(&self) -> ReplicaStatus {
        let stopped = self.stopped();
        // What is asked of the engine may have to wait, so not within the look.
        let metrics = look_at(&self.inner.shared.raft, Clone::clone);
        let mut status = status::of(&metrics, self.engine(), self.standing(), stopped);
        // Who does not campaign, or is refused by all, remembers whom it followed once.
        if status.role != Role::Leader && !self.inner.shared.gate.heard_within(LEADER_ALIVE) {
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
                if self.inner.stopping.load(Ordering::SeqCst) {
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
        self.inner.stopping.store(true, Ordering::SeqCst);
        let patience = Duration::from_millis(self.inner.maintained.config.election_min_ms);
        leadership::hand_over(&self.inner.shared.raft, patience).await;
        self.inner.shared.raft.shutdown().await.map_err(|error| Error::Stopped(error.to_string()))
    }

    fn stopped(&self) -> Option<String> {
        let state = look_at(&self.inner.shared.raft, |metrics| metrics.running_state.clone());
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
