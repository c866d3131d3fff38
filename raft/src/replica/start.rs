//! Starting a replica: the parts that openraft uses, openraft itself, and the tasks beside it.
//!
//! What holds here: no task begins before openraft runs; the tasks begin in a fixed order, so that
//! a simulation repeats. A task that must end with the last handle holds weak references only.

use super::append_capacity::AppendCapacity;
use super::maintenance::{self, Maintained};
use super::peer_service::{PeerService, is_uninitialized};
use super::read_barrier::ReadBarrier;
use super::scrub::Scrubber;
use super::{Inner, Replica};
use crate::core::config::ReplicaConfig;
use crate::core::error::Error;
use crate::core::raft_metrics::LateMetrics;
use crate::core::runtime;
use crate::durability::{AckModes, EpochRecords, Gate, LocalMember, Policy};
use crate::membership::{Joiner, Reconciler, forming};
use crate::storage::Raft;
use crate::storage::log_store::LogStore;
use crate::storage::progress::Progress;
use crate::storage::repair::Repairer;
use crate::storage::state_machine::boot_epochs::BootEpochs;
use crate::storage::state_machine::removed::Removed;
use crate::storage::state_machine::{PinnedSnapshot, StateMachine, sessions};
use crate::transport::{Connections, PeerIdentity, Peers, SnapshotReceiver, terms};
use cairn_engine::{Engine, MemberState, Mode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The table of sessions may take one part in this many of a checkpoint area.
const SESSIONS_PART: u64 = 8;

impl Replica {
    /// Starts replication over an open engine. When this returns, everything that was applied
    /// before the last restart is applied again. The cluster may not be formed yet; that continues
    /// in the background.
    ///
    /// # Errors
    /// `Config`, `Engine`, `State`.
    pub async fn start(config: ReplicaConfig, engine: Engine) -> Result<Replica, Error> {
        let parts = Parts::of(bounded(config, &engine), engine);
        let blank =
            is_uninitialized(&parts.engine) && parts.engine.member_state() == MemberState::Active;
        let raft = parts.build_raft().await?;
        parts.begin(&raft).await?;
        Ok(Replica { inner: Arc::new(parts.background(raft, blank)) })
    }
}

/// Bounds the table of sessions, which shares a checkpoint area with the keys.
fn bounded(config: ReplicaConfig, engine: &Engine) -> ReplicaConfig {
    let sessions =
        engine.status().index_capacity_bytes / SESSIONS_PART / sessions::BYTES_PER_SESSION;
    let max_sessions =
        config.max_sessions.min(usize::try_from(sessions).unwrap_or(usize::MAX)).max(1);
    ReplicaConfig { max_sessions, ..config }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::State(error.to_string())
}

/// The parts that openraft uses, and what shares them.
struct Parts {
    config: ReplicaConfig,
    engine: Engine,
    identity: PeerIdentity,
    metrics: LateMetrics,
    progress: Arc<Progress>,
    pinned: PinnedSnapshot,
    repairer: Arc<Repairer>,
    ack_modes: Arc<AckModes>,
    gate: Arc<Gate>,
}

impl Parts {
    fn of(config: ReplicaConfig, engine: Engine) -> Parts {
        let (boot_epochs, removed) = (BootEpochs::default(), Removed::default());
        let identity = PeerIdentity::of(&engine, boot_epochs.clone(), removed.clone());
        let configured = config.initial_members.clone();
        let metrics = LateMetrics::default();
        let peers = Peers { identity: identity.clone(), configured, metrics: metrics.clone() };
        Parts {
            identity,
            metrics,
            progress: Arc::new(Progress::new(removed, boot_epochs)),
            pinned: PinnedSnapshot::default(),
            repairer: Arc::new(Repairer::new(engine.clone(), Arc::new(peers))),
            ack_modes: Arc::new(AckModes::new(engine.clone())),
            gate: Arc::new(Gate::new(engine.member_state())),
            config,
            engine,
        }
    }

    /// The time limit for a follower's answer, and for a round of reads.
    fn answer_timeout(&self) -> Duration {
        Duration::from_millis(self.config.election_max_ms.max(1000))
    }

    /// Builds openraft, which re-applies what was applied before the last restart.
    async fn build_raft(&self) -> Result<Raft, Error> {
        let (engine, id) = (&self.engine, self.identity.id());
        let config = Arc::new(self.config.for_openraft(&engine.identity().cluster, id)?);
        terms::warn_if_misled(engine, id);
        let (progress, pinned, repairer) = (&self.progress, &self.pinned, &self.repairer);
        let machine =
            StateMachine::new(engine.clone(), progress.clone(), pinned.clone(), repairer.clone())
                .map_err(unreadable)?;
        let (gate, ack_modes) = (self.gate.clone(), self.ack_modes.clone());
        let policy = Arc::new(Policy { gate, ack_modes, metrics: self.metrics.clone() });
        let (identity, members) =
            (self.identity.clone(), Arc::new(self.config.initial_members.clone()));
        let connections =
            Connections::new(identity, policy, pinned.clone(), members, self.answer_timeout());
        let log = LogStore::new(engine.clone(), repairer.clone());
        let raft = Raft::build(id, config, connections, log, machine).await.map_err(unreadable)?;
        self.metrics.set(raft.metrics());
        Ok(raft)
    }

    /// Lets openraft run, unless the settings do not fit the cluster.
    async fn begin(&self, raft: &Raft) -> Result<(), Error> {
        raft.runtime_config().elect(self.gate.is_open());
        raft.run();
        let voters = raft
            .with_raft_state(|state| state.membership_state.effective().voter_ids().count())
            .await;
        let fits = voters.map_err(unreadable).and_then(|voters| self.config.fits(voters));
        if fits.is_err() {
            raft.shutdown().await.ok();
        }
        fits
    }

    /// Starts the tasks beside openraft. `blank`: nothing was ever voted, logged or applied here,
    /// and nothing was lost.
    fn background(self, raft: Raft, blank: bool) -> Inner {
        let timeout = self.answer_timeout();
        let Parts { config, engine, identity, progress, pinned, repairer, ack_modes, gate, .. } =
            self;
        let (receiver, append_capacity) =
            (Arc::new(SnapshotReceiver::new(engine.clone())), AppendCapacity::new(engine.clone()));
        let (records, stopping) =
            (Arc::new(EpochRecords::new(raft.clone())), AtomicBool::new(false));
        let member = Arc::new(LocalMember {
            identity,
            engine,
            raft,
            config,
            gate,
            progress,
            records,
            stopping,
        });
        let maintained = Arc::new(Maintained {
            member: member.clone(),
            pinned,
            receiver: receiver.clone(),
            repairer: repairer.clone(),
        });
        runtime::spawn(maintenance::run(Arc::downgrade(&maintained)));
        if member.config.mode == Mode::Replicated {
            runtime::spawn(AckModes::run(Arc::downgrade(&ack_modes), member.clone()));
        }
        let reconciler = Arc::new(Reconciler::new(member.clone()));
        runtime::spawn(Reconciler::run(Arc::downgrade(&reconciler)));
        let removed_reason = Arc::default();
        if member.config.initial_members.len() > 1 {
            let joiner =
                Joiner { member: member.clone(), removed_reason: Arc::clone(&removed_reason) };
            runtime::spawn(joiner.run());
        }
        if blank && forming::is_mine(&member) {
            runtime::spawn(forming::run(member.clone()));
        } else if !member.gate.is_open() {
            runtime::spawn(member.clone().recover());
        }
        let scrubber = Scrubber::new(member.clone(), repairer);
        runtime::spawn(scrubber.clone().run());
        let barrier = ReadBarrier::start(member.raft.clone(), member.progress.clone(), timeout);
        let contradicted = Arc::default();
        let service = PeerService {
            member: member.clone(),
            ack_modes,
            receiver,
            reconciler,
            append_capacity,
            contradicted,
        };
        Inner { member, service, maintained, barrier, scrubber, removed_reason }
    }
}
