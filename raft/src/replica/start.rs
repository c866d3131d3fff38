//! Starting a replica: what openraft is given, openraft itself, and what runs beside it.
//!
//! What holds here: no task begins before openraft runs; the tasks begin in one order, so that a simulation repeats. A task
//! that must end with the last handle holds what it looks after weakly.

use super::admission::Room;
use super::maintenance::{self, Maintained};
use super::peer_service::{PeerService, is_blank};
use super::read_barrier::ReadBarrier;
use super::scrub::Scrubber;
use super::{Inner, Replica};
use crate::core::config::ReplicaConfig;
use crate::core::error::Error;
use crate::core::metrics::LateMetrics;
use crate::core::runtime;
use crate::durability::{Gate, LocalMember, Policy, Redundancy, StartRecords};
use crate::membership::{Newcomer, Steward, forming};
use crate::storage::Raft;
use crate::storage::log_store::LogStore;
use crate::storage::progress::Progress;
use crate::storage::repair::Mender;
use crate::storage::state_machine::retired::Retired;
use crate::storage::state_machine::starts::Starts;
use crate::storage::state_machine::{PinnedSnapshot, StateMachine, sessions};
use crate::transport::{Connections, PeerIdentity, Peers, SnapshotReceiver, terms};
use cairn_engine::{Engine, Mode, Standing};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The part of a checkpoint area that the table of sessions may take.
const SESSIONS_PART: u64 = 8;

impl Replica {
    /// Starts replication over an open engine. When this returns, everything that was applied before the last restart
    /// is applied again; the cluster may still have to be formed, which goes on in the background.
    ///
    /// # Errors
    /// `Config`, `Engine`, `State`.
    pub async fn start(config: ReplicaConfig, engine: Engine) -> Result<Replica, Error> {
        let parts = Parts::of(bounded(config, &engine), engine);
        let blank = is_blank(&parts.engine) && parts.engine.standing() == Standing::Active;
        let raft = parts.build_raft().await?;
        parts.begin(&raft).await?;
        Ok(Replica { inner: Arc::new(parts.background(raft, blank)) })
    }
}

/// The table of sessions shares a checkpoint area with the keys.
fn bounded(config: ReplicaConfig, engine: &Engine) -> ReplicaConfig {
    let sessions = engine.status().index_capacity_bytes / SESSIONS_PART / sessions::BYTES_PER_SESSION;
    let max_sessions = config.max_sessions.min(usize::try_from(sessions).unwrap_or(usize::MAX)).max(1);
    ReplicaConfig { max_sessions, ..config }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::State(error.to_string())
}

/// What openraft is given, and what shares it.
struct Parts {
    config: ReplicaConfig,
    engine: Engine,
    identity: PeerIdentity,
    metrics: LateMetrics,
    progress: Arc<Progress>,
    pinned: PinnedSnapshot,
    mender: Arc<Mender>,
    redundancy: Arc<Redundancy>,
    gate: Arc<Gate>,
}

impl Parts {
    fn of(config: ReplicaConfig, engine: Engine) -> Parts {
        let (starts, retired) = (Starts::default(), Retired::default());
        let identity = PeerIdentity::of(&engine, starts.clone(), retired.clone());
        let configured = config.initial_members.clone();
        let metrics = LateMetrics::default();
        let peers = Peers { identity: identity.clone(), configured, metrics: metrics.clone() };
        Parts {
            identity,
            metrics,
            progress: Arc::new(Progress::new(retired, starts)),
            pinned: PinnedSnapshot::default(),
            mender: Arc::new(Mender::new(engine.clone(), Arc::new(peers))),
            redundancy: Arc::new(Redundancy::new(engine.clone())),
            gate: Arc::new(Gate::new(engine.standing())),
            config,
            engine,
        }
    }

    /// How long a follower may take to answer, and a round of reads.
    fn patience(&self) -> Duration {
        Duration::from_millis(self.config.election_max_ms.max(1000))
    }

    /// Applies again what was applied before the last restart.
    async fn build_raft(&self) -> Result<Raft, Error> {
        let (engine, id) = (&self.engine, self.identity.id());
        let config = Arc::new(self.config.for_openraft(&engine.identity().cluster, id)?);
        terms::warn_if_misled(engine, id);
        let (progress, pinned, mender) = (&self.progress, &self.pinned, &self.mender);
        let machine = StateMachine::new(engine.clone(), progress.clone(), pinned.clone(), mender.clone())
            .map_err(unreadable)?;
        let (gate, redundancy) = (self.gate.clone(), self.redundancy.clone());
        let policy = Arc::new(Policy { gate, redundancy, metrics: self.metrics.clone() });
        let (identity, members) = (self.identity.clone(), Arc::new(self.config.initial_members.clone()));
        let connections = Connections::new(identity, policy, pinned.clone(), members, self.patience());
        let log = LogStore::new(engine.clone(), mender.clone());
        let raft = Raft::build(id, config, connections, log, machine).await.map_err(unreadable)?;
        self.metrics.set(raft.metrics());
        Ok(raft)
    }

    /// Lets openraft run, unless the settings do not fit the cluster.
    async fn begin(&self, raft: &Raft) -> Result<(), Error> {
        raft.runtime_config().elect(self.gate.is_open());
        raft.run();
        let voters =
            raft.with_raft_state(|state| state.membership_state.effective().voter_ids().count()).await;
        let fits = voters.map_err(unreadable).and_then(|voters| self.config.fits(voters));
        if fits.is_err() {
            raft.shutdown().await.ok();
        }
        fits
    }

    /// Begins what runs beside openraft. `blank`: nothing was ever voted, logged or applied here, nor forgotten.
    fn background(self, raft: Raft, blank: bool) -> Inner {
        let patience = self.patience();
        let Parts { config, engine, identity, progress, pinned, mender, redundancy, gate, .. } = self;
        let (receiver, room) = (Arc::new(SnapshotReceiver::new(engine.clone())), Room::new(engine.clone()));
        let (records, stopping) = (Arc::new(StartRecords::new(raft.clone())), AtomicBool::new(false));
        let member =
            Arc::new(LocalMember { identity, engine, raft, config, gate, progress, records, stopping });
        let maintained = Arc::new(Maintained {
            member: member.clone(),
            pinned,
            receiver: receiver.clone(),
            mender: mender.clone(),
        });
        runtime::spawn(maintenance::run(Arc::downgrade(&maintained)));
        if member.config.mode == Mode::Replicated {
            runtime::spawn(Redundancy::run(Arc::downgrade(&redundancy), member.clone()));
        }
        let steward = Arc::new(Steward::new(member.clone()));
        runtime::spawn(Steward::run(Arc::downgrade(&steward)));
        let outcast = Arc::default();
        if member.config.initial_members.len() > 1 {
            let newcomer = Newcomer { member: member.clone(), outcast: Arc::clone(&outcast) };
            runtime::spawn(newcomer.run());
        }
        if blank && forming::is_mine(&member) {
            runtime::spawn(forming::run(member.clone()));
        } else if !member.gate.is_open() {
            runtime::spawn(member.clone().recover());
        }
        let scrubber = Scrubber::new(member.clone(), mender);
        runtime::spawn(scrubber.clone().run());
        let barrier = ReadBarrier::start(member.raft.clone(), member.progress.clone(), patience);
        let contradicted = Arc::default();
        let service =
            PeerService { member: member.clone(), redundancy, receiver, steward, room, contradicted };
        Inner { member, service, maintained, barrier, scrubber, outcast }
    }
}
