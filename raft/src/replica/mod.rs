//! The handle of a running replica, the service that answers the other members, and the tasks
//! beside replication.

mod append_capacity;
mod coalesce;
mod maintenance;
mod pacer;
mod peer_service;
mod read_barrier;
mod retention;
mod scrub;
mod serving;
mod start;
mod state_hash;
mod status;
mod surveys;

pub use peer_service::PeerService;
pub use scrub::ScrubStatus;
pub use status::{Member, Part, ReplicaStatus, Role};

use crate::core::codec::{self, MAX_META_BYTES};
use crate::core::command::{Command, WriteOutcome};
use crate::core::error::{Error, ReadError, WriteError};
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::{Answer, Reply, TypeConfig};
use crate::core::version::Versions;
use crate::durability::leadership::To;
use crate::durability::{
    Act, Drain, Event, LEADER_ALIVE, LocalMember, UnsafeRecovery, is_most_up_to_date, leadership,
};
use crate::membership::{ChangeError, MemberChange};
use crate::storage::mode_in_force::{Modes, first_mode};
use crate::storage::state_machine::{StateReader, UnsafeRecoveries, sessions};
use bytes::Bytes;
use cairn_engine::{BootEpoch, Engine, KeyEntry, ListItem, LogId, Mode, Need, View};
use futures::future::{BoxFuture, Either, select};
use openraft::ServerState;
use openraft::errors::{ClientWriteError, Fatal, ForwardReason};
use openraft::raft::ClientWriteResult;
use read_barrier::ReadBarrier;
use scrub::Scrubber;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use surveys::Surveys;

/// How often [`Replica::wait_stopped`] checks.
const STOPPED_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A running replica. Clones share it.
#[derive(Clone)]
pub struct Replica {
    inner: Arc<Inner>,
}

struct Inner {
    member: Arc<LocalMember>,
    service: PeerService,
    /// For reads while this member leads, and while it does not.
    barrier: ReadBarrier,
    follower_barrier: ReadBarrier,
    /// Of the members, for callers here.
    surveys: Surveys,
    scrubber: Scrubber,
}

impl Drop for Inner {
    /// Dropping the last handle ends the tasks beside replication.
    fn drop(&mut self) {
        self.member.stopping.store(true, Ordering::SeqCst);
    }
}

impl Replica {
    /// What answers the other members: serve with it each connection to the peer address.
    pub fn peer_service(&self) -> PeerService {
        self.inner.service.clone()
    }

    /// Whether writes are proposed here. Says so before it costs a place among the writes in flight: a
    /// leader that was cut off keeps those of what it could not commit, and must not answer that it has
    /// too many.
    ///
    /// # Errors
    /// `Stopped`, `NotLeader`, `NoLeader`.
    pub async fn check_leads(&self) -> Result<(), WriteError> {
        let (leads, runs) = with_metrics(&self.inner.member.raft, |metrics| {
            (metrics.state == ServerState::Leader, metrics.running_state.is_ok())
        });
        if !runs && let Some(reason) = self.stopped() {
            return Err(WriteError::Stopped(reason));
        }
        if self.inner.member.check_quorum.is_suspended() {
            return Err(WriteError::NoLeader);
        }
        if leads {
            return Ok(());
        }
        let own = self.inner.member.identity.id();
        let leader = with_metrics(&self.inner.member.raft, leadership::leader);
        Err(self.elsewhere(leader.filter(|(id, _)| *id != own), false).await)
    }

    /// Replicates and applies a command. Leader only. May be cancelled; the command may then be
    /// applied or not.
    ///
    /// # Errors
    /// See [`WriteError`]: each case says whether anything was proposed.
    pub async fn write(&self, command: Command) -> Result<WriteOutcome, WriteError> {
        self.write_holding(command, ()).await
    }

    /// As [`Replica::write`]. `held` is dropped when the command is applied or abandoned, even if
    /// the caller stopped waiting.
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
        let result_bytes =
            command.session.map_or(0, |_| sessions::write_bytes(command.operations.len()));
        let proposal = codec::encode_command(command, self.inner.member.config.max_sessions);
        if proposal.meta.len() > MAX_META_BYTES {
            return Err(WriteError::Invalid(format!(
                "the command's keys exceed {MAX_META_BYTES} bytes"
            )));
        }
        // Only a leader can judge its own capacity, and a write is proposed only with a reservation.
        // What arrives in an election, at the member that wins it, has none.
        self.check_leads().await?;
        let lengths = || proposal.values.iter().map(|value| value.bytes().len() as u64);
        let need = Need {
            bytes,
            puts: !proposal.values.is_empty(),
            index_bytes: Engine::index_bytes(lengths(), proposal.meta.len())
                + Engine::applied_bytes(lengths(), proposal.meta.len())
                + result_bytes,
        };
        let proposed = self.inner.service.append_capacity.reserve_write(need).map_err(refused)?;
        // The caller may stop waiting; the reservation lasts until openraft is done with the
        // command.
        let (reply, answer) = Reply::pair(Box::new((proposed, held)));
        let raft = &self.inner.member.raft;
        // Boxed, since it is large, and soon gone; the write waits for longer.
        if let Err(fatal) = Box::pin(raft.client_write_ff(proposal, Some(reply))).await {
            return Err(WriteError::Stopped(self.reason(&fatal)));
        }
        let suspended = pin!(self.inner.member.check_quorum.until_suspended());
        let answer = match select(answer, suspended).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                return Err(WriteError::OutcomeUnknown(
                    "no majority answers this leader, and the write is not committed yet".into(),
                ));
            }
        };
        match answer {
            Ok(result) => {
                let hands_over = hands_over(&result);
                match outcome(result) {
                    Err(WriteError::NotLeader { leader }) => {
                        Err(self.elsewhere(Some(leader), hands_over).await)
                    }
                    Err(WriteError::NoLeader) => Err(self.elsewhere(None, hands_over).await),
                    done => done,
                }
            }
            // openraft ended while it had the proposal.
            Err(_) => Err(WriteError::OutcomeUnknown(
                "this member stopped before the outcome was known".into(),
            )),
        }
    }

    /// Returns when this replica has applied everything that was acknowledged before the call: a
    /// read of the engine after it is linearizable. A member that does not lead asks the leader, after
    /// which entry that is. Concurrent callers share a round to the quorum.
    ///
    /// # Errors
    /// See [`ReadError`]. A barrier changes nothing, so it can always be retried.
    pub async fn read_barrier(&self) -> Result<(), ReadError> {
        if self.inner.member.check_quorum.is_suspended() {
            return Err(ReadError::NoLeader);
        }
        let leads = || {
            with_metrics(&self.inner.member.raft, |metrics| metrics.state == ServerState::Leader)
        };
        let applied = match self.inner.barrier.wait().await {
            // One that hands leadership over names the next leader.
            Err(ReadError::NotLeader { .. }) if !leads() => {
                self.inner.follower_barrier.wait().await
            }
            led => led,
        };
        match applied {
            Ok(_) => Ok(()),
            Err(ReadError::NotLeader { leader }) => {
                Err(ReadError::NotLeader { leader: self.at_present(leader) })
            }
            Err(ReadError::NoLeader) => {
                let next = self.next_leader(false).await;
                Err(next.map_or(ReadError::NoLeader, |leader| ReadError::NotLeader { leader }))
            }
            Err(stopped) => Err(stopped),
        }
    }

    /// The refusal of a write that another member takes: this one, or the next. Boxed, since few of the
    /// many writes under way need it.
    fn elsewhere(
        &self,
        leader: Option<(NodeId, MemberAddress)>,
        hands_over: bool,
    ) -> BoxFuture<'_, WriteError> {
        Box::pin(async move {
            let next = self.next_leader(hands_over).await;
            let leader = next.or_else(|| leader.map(|leader| self.at_present(leader)));
            leader.map_or(WriteError::NoLeader, |leader| WriteError::NotLeader { leader })
        })
    }

    /// Who leads next, while this member hands leadership over or is being stopped. Waits until
    /// somebody leads, at most for the shortest election. A client that is refused without a name
    /// asks again and again, later each time, and finds the next leader later than it is there.
    async fn next_leader(&self, hands_over: bool) -> Option<(NodeId, MemberAddress)> {
        let member = &self.inner.member;
        if !hands_over && !member.standing().leaves() {
            return None;
        }
        let limit = Duration::from_millis(member.config.election_min_ms);
        let leader = leadership::another_leader(member, limit).await?;
        Some(self.at_present(leader))
    }

    /// A key's state and value. If the value is damaged here, this fetches it from another member
    /// and repairs it, which takes some milliseconds. May be cancelled.
    ///
    /// # Errors
    /// Those of [`Engine::get`]; `Corrupt` only if no member that answers has the value.
    pub async fn get(&self, key: &[u8]) -> cairn_engine::Result<Option<(KeyEntry, Bytes)>> {
        self.inner.member.repairer.get(key).await
    }

    /// The value of a listed key. Repairs a damaged value as [`Replica::get`] does.
    ///
    /// # Errors
    /// Those of [`View::read`]; `Corrupt` only if no member that answers has the value.
    pub async fn read(&self, view: &View, item: &ListItem) -> cairn_engine::Result<Bytes> {
        self.inner.member.repairer.read(view, &item.key, &item.entry).await
    }

    /// The present state, for a copy of all of it. What is deleted or overwritten meanwhile keeps its
    /// space until this is dropped.
    pub fn state(&self) -> StateReader {
        StateReader::new(self.engine(), self.inner.member.repairer.clone())
    }

    /// Begins a scrub of everything now, even if the scrubber was paused. Runs in the background.
    pub fn start_scrub(&self) {
        self.inner.scrubber.start();
    }

    /// Pauses or resumes the scrubber. The choice survives restarts.
    pub fn pause_scrub(&self, pause: bool) {
        self.inner.scrubber.pause(pause);
    }

    /// Lets the scrubber read at most this many bytes a second from now on.
    pub fn set_scrub_rate(&self, bytes_per_s: u64) {
        self.inner.scrubber.set_rate(bytes_per_s);
    }

    /// The scrubber's progress and counters.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.inner.scrubber.status()
    }

    /// The engine, for reads of [`GROUP`].
    pub fn engine(&self) -> &Engine {
        &self.inner.member.engine
    }

    /// This member's identity.
    pub fn node_id(&self) -> NodeId {
        self.inner.member.identity.id()
    }

    /// Whether this replica holds everything that it acknowledged. One that recovers may have lost
    /// some of it: it does not vote, and no read may be served from it.
    pub fn holds_all(&self) -> bool {
        self.inner.member.may(Act::Vouch).is_ok()
    }

    /// Its part in the cluster.
    pub fn part(&self) -> Part {
        match self.removed_reason() {
            Some(reason) => Part::Removed(reason),
            None if !self.holds_all() => Part::Recovering,
            None if !self.votes() => Part::Joining,
            None => Part::Active,
        }
    }

    /// Whether this identity is a voter according to its own log. Before it is, it may hold too
    /// little of the state to be read.
    pub fn votes(&self) -> bool {
        with_metrics(&self.inner.member.raft, |metrics| {
            metrics.membership_config.voter_ids().any(|voter| voter == metrics.id)
        })
    }

    /// Whether the log, as far as it is applied here, has this boot epoch of a member or a later
    /// one: from then on every member refuses an older copy of its disk.
    pub fn knows_epoch(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.inner.member.identity.identities.has_logged(member, epoch)
    }

    /// Why this identity is no longer a member: another member said so, or the log does.
    pub fn removed_reason(&self) -> Option<String> {
        let member = &self.inner.member;
        let told = member.removed_reason.lock().clone();
        let logged = || member.identity.identities.is_removed(self.node_id());
        told.or_else(|| logged().then(|| "this identity was removed from the cluster".into()))
    }

    /// The unsafe recoveries so far: each one discarded what no member held any more.
    pub fn unsafe_recoveries(&self) -> UnsafeRecoveries {
        self.inner.member.progress.unsafe_recoveries()
    }

    /// Gives this member an unsafe-recovery grant: an operator has seen what every member holds,
    /// accepts that acknowledged writes may be lost, and names the candidate that shall lead. Call
    /// it on the candidate and on the other recovering members. The candidate refuses if a voter
    /// that answers holds a longer log. Members vote by the grant for [`UnsafeRecovery::LIFETIME`];
    /// a restart ends it.
    ///
    /// # Errors
    /// Why the grant is not needed here, or does not fit.
    pub async fn unsafe_recovery(&self, unsafe_recovery: UnsafeRecovery) -> Result<(), String> {
        let member = &self.inner.member;
        let candidate = unsafe_recovery.candidate;
        let may_take =
            || member.may(Act::TakeGrant { candidate }).map_err(|refusal| refusal.to_string());
        may_take()?;
        let own = member.engine.boot_epoch();
        if unsafe_recovery.candidate == self.node_id() {
            if unsafe_recovery.epoch != own {
                return Err(format!(
                    "this member restarted since it was surveyed (boot epoch {}, now {}); check again",
                    unsafe_recovery.epoch.number, own.number
                ));
            }
            is_most_up_to_date(member).await?;
            may_take()?;
            // It may lead: what it lacks is given up.
            member.engine.begin(false).await.map_err(|error| error.to_string())?;
            // Copying a damaged directory aside takes seconds. A voter with a longer log may have
            // returned meanwhile, or a leader: ask again. No await from the last answer to the grant.
            is_most_up_to_date(member).await?;
        }
        member.take_grant(unsafe_recovery).map_err(|refusal| refusal.to_string())?;
        tracing::warn!(
            node = %self.node_id(), candidate = %unsafe_recovery.candidate,
            "unsafe recovery: an operator accepts that what no member holds any more is lost; this member holds the grant"
        );
        Ok(())
    }

    /// Takes the next step of a change of the members that an operator asks for. `None`: the change
    /// is done. Else what it waits for: ask again, whoever leads by then.
    ///
    /// # Errors
    /// `NotLeader`; `Refused`, with the reason and the way out; `Stopped`.
    pub async fn change_members(
        &self,
        change: MemberChange,
    ) -> Result<Option<String>, ChangeError> {
        self.inner.service.reconciler.change(change).await.map_err(|error| self.at_leader(error))
    }

    /// Commits the least that an acknowledgement means from now on. When this returns, it holds for
    /// every write that is acknowledged from then on.
    ///
    /// # Errors
    /// As [`Replica::change_members`].
    pub async fn set_mode(&self, mode: Mode) -> Result<(), ChangeError> {
        self.inner.service.reconciler.set_mode(mode).await.map_err(|error| self.at_leader(error))
    }

    /// Commits that the cluster's version is this one from now on. No release of a lower version runs
    /// in the cluster after that, and what the versions up to it brought is used.
    ///
    /// # Errors
    /// As [`Replica::change_members`]. `Refused` if a member is not known to run that version.
    pub async fn finish_upgrade(&self, version: u32) -> Result<(), ChangeError> {
        let finished = self.inner.service.reconciler.finish_upgrade(version).await;
        finished.map_err(|error| self.at_leader(error))
    }

    /// Which version this build speaks, and those of the cluster and its members by the log.
    pub fn versions(&self) -> Versions {
        status::versions(&self.inner.member.identity.identities)
    }

    /// What acknowledgements will mean in a cluster whose log says nothing of it yet, if this member
    /// leads. Until then each is synced.
    pub fn first_mode(&self) -> Mode {
        let configured = self.inner.member.config.formation_mode;
        with_metrics(&self.inner.member.raft, |metrics| {
            match metrics.membership_config.voter_ids().next() {
                None => configured,
                Some(_) => first_mode(configured, metrics.membership_config.membership()),
            }
        })
    }

    /// What acknowledgements mean in the cluster and on this member.
    pub fn modes(&self) -> Modes {
        self.inner.member.modes.modes()
    }

    /// Has the member of slot `to` lead, or the one with the most up-to-date log. Returns who leads
    /// then.
    ///
    /// # Errors
    /// As [`Replica::change_members`].
    pub async fn move_leader(&self, to: Option<u16>) -> Result<NodeId, ChangeError> {
        self.inner.service.reconciler.move_leader(to).await.map_err(|error| self.at_leader(error))
    }

    /// Gives leadership away, if this member leads, and keeps out of elections for this time, or
    /// until it restarts. It goes on voting and acknowledging. Zero ends that. If for some elections
    /// nobody leads, it campaigns, and gives leadership away again when another member may lead.
    ///
    /// # Errors
    /// `Refused`, if no other member can lead; `Stopped`.
    pub async fn drain(&self, time: Duration) -> Result<(), ChangeError> {
        let member = &self.inner.member;
        if let Some(reason) = self.stopped() {
            return Err(ChangeError::Stopped(reason));
        }
        let leads = || with_metrics(&member.raft, |metrics| metrics.state == ServerState::Leader);
        if !time.is_zero() && leads() {
            leadership::hand_over(member, To::Best, leadership::HAND_OVER_LIMIT).await;
            // Not before another one leads: perhaps no other one may, and nobody did then.
            let limit = Duration::from_millis(member.config.election_max_ms);
            if leads() || leadership::another_leader(member, limit).await.is_none() {
                return Err(ChangeError::Refused(
                    "this member leads, and no other voter could take over: look at `cairn status`"
                        .into(),
                ));
            }
        }
        let from = runtime::now();
        member.change(Event::Drained(Drain { from, until: from + time }));
        if !time.is_zero() {
            tracing::warn!(node = %self.node_id(), seconds = time.as_secs(), "an operator keeps this member from leading");
        }
        Ok(())
    }

    /// How long an operator still keeps this member from leading.
    pub fn drained_for(&self) -> Option<Duration> {
        self.inner.member.standing().drained_for(runtime::now())
    }

    /// The same refusal, with the leader where it is reached now.
    fn at_leader(&self, error: ChangeError) -> ChangeError {
        match error {
            ChangeError::NotLeader { leader } => {
                ChangeError::NotLeader { leader: leader.map(|leader| self.at_present(leader)) }
            }
            error => error,
        }
    }

    /// Who leads, if known.
    pub fn leader(&self) -> Option<(NodeId, MemberAddress)> {
        if self.inner.member.check_quorum.is_suspended() {
            return None;
        }
        let leader = with_metrics(&self.inner.member.raft, leadership::leader);
        leader.map(|leader| self.at_present(leader))
    }

    /// A member with the addresses at which it is reached now.
    fn at_present(&self, (member, logged): (NodeId, MemberAddress)) -> (NodeId, MemberAddress) {
        (member, self.inner.member.addresses.present(member, &logged))
    }

    /// This replica's view of itself and of the cluster. Cheap.
    pub fn status(&self) -> ReplicaStatus {
        let stopped = self.stopped();
        // Calls to the engine may block, so they are made outside the read of the metrics.
        let metrics = with_metrics(&self.inner.member.raft, Clone::clone);
        let mut status = status::of(&metrics, self.engine(), &self.inner.member.addresses, stopped);
        if status.role == Role::Leader && self.inner.member.check_quorum.is_suspended() {
            (status.role, status.leader) = (Role::Follower, None);
        }
        // openraft keeps reporting the last leader on a node that does not campaign or wins no
        // election; hide it if no message came lately.
        if status.role != Role::Leader && !self.inner.member.heard_within(LEADER_ALIVE) {
            status.leader = None;
        }
        status
    }

    /// The applied position, and a hash over all keys, versions, values' hashes and the machine
    /// image: replicas that have applied the same position have the same hash.
    pub fn state_hash(&self) -> (Option<LogId>, u128) {
        state_hash::of(&self.engine().view(GROUP))
    }

    /// Resolves when replication stops without a call of `shutdown`, with the reason. Never
    /// resolves while it runs, nor after `shutdown`.
    ///
    /// Polls every [`STOPPED_POLL_INTERVAL`]: openraft's metrics change with every batch of
    /// entries, and a waiter that each change wakes costs a tenth of a busy leader's processor
    /// time.
    pub async fn wait_stopped(&self) -> String {
        loop {
            if let Some(reason) = self.stopped() {
                if self.inner.member.stops() {
                    return std::future::pending().await;
                }
                return reason;
            }
            runtime::sleep(STOPPED_POLL_INTERVAL).await;
        }
    }

    /// Prepares a stop. From now on this replica does not lead, and other leaders do not count on
    /// it; it still votes, acknowledges, and names the leader. Returns once another member leads, if
    /// this one led. If no other one can take over, returns after the time of an election: by waiting
    /// longer nothing would be gained. A second call does nothing.
    pub async fn leave(&self) {
        let member = &self.inner.member;
        if !member.change(Event::Leaves) || self.stopped().is_some() {
            return;
        }
        let leads = || with_metrics(&member.raft, |metrics| metrics.state == ServerState::Leader);
        if !leads() {
            return;
        }
        let limit = Duration::from_millis(member.config.election_max_ms);
        leadership::hand_over(member, To::Best, limit).await;
        if !leads() {
            // With its first message the new leader is known, and clients can be sent to it.
            leadership::another_leader(member, limit).await;
        }
    }

    /// Whether this replica is being stopped.
    pub fn leaves(&self) -> bool {
        self.inner.member.standing().leaves()
    }

    /// Stops replication, after [`Replica::leave`]. The engine stays open: the caller closes it next.
    ///
    /// # Errors
    /// `Stopped`, if a task ended abnormally.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.leave().await;
        self.inner.member.stopping.store(true, Ordering::SeqCst);
        self.inner.member.raft.shutdown().await.map_err(|error| Error::Stopped(error.to_string()))
    }

    fn stopped(&self) -> Option<String> {
        let state = with_metrics(&self.inner.member.raft, |metrics| metrics.running_state.clone());
        state.err().map(|fatal| self.reason(&fatal))
    }

    /// Why openraft ended: the engine's own error, or the state machine's, if one of them failed first.
    fn reason(&self, fatal: &Fatal<TypeConfig>) -> String {
        let failure = self.engine().status().failed;
        let failure = failure.or_else(|| self.inner.member.progress.failure());
        failure.unwrap_or_else(|| fatal.to_string())
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

/// Whether a proposal is refused because leadership is being handed over.
fn hands_over(result: &ClientWriteResult<TypeConfig>) -> bool {
    let Err(ClientWriteError::ForwardToLeader(forward)) = result else { return false };
    matches!(forward.reason, ForwardReason::LeadershipTransfer)
}

fn outcome(result: ClientWriteResult<TypeConfig>) -> Result<WriteOutcome, WriteError> {
    let response = match result {
        Ok(response) => response,
        Err(ClientWriteError::ForwardToLeader(forward)) => {
            return Err(read_barrier::leader(forward)
                .map_or(WriteError::NoLeader, |leader| WriteError::NotLeader { leader }));
        }
        // Another leader's entries replaced it in this member's log. Other members may still hold
        // it.
        Err(error) => return Err(WriteError::OutcomeUnknown(error.to_string())),
    };
    match response.data {
        Answer::Outcome(outcome) => Ok(outcome),
        Answer::SessionExpired => Err(WriteError::SessionExpired),
        Answer::Nothing => {
            Err(WriteError::OutcomeUnknown("the entry was applied as another kind".into()))
        }
    }
}

#[cfg(test)]
mod tests;
