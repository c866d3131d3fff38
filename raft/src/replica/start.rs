//! Starting a replica: the parts that openraft uses, openraft itself, and the tasks beside it.
//!
//! What holds here: no task begins before openraft runs; the tasks begin in a fixed order, so that
//! a simulation repeats. All of them end once the member stops, which the last handle's drop
//! causes; those of read barriers and surveys end with the last handles of these.

use super::append_capacity::AppendCapacity;
use super::maintenance::Maintenance;
use super::peer_service::PeerService;
use super::read_barrier::{NewestRound, ReadBarrier};
use super::scrub::Scrubber;
use super::surveys::Surveys;
use super::{Inner, Replica, serving};
use crate::core::codec::LogRecord;
use crate::core::config::ReplicaConfig;
use crate::core::error::Error;
use crate::core::ids::GROUP;
use crate::core::raft_metrics::LateMetrics;
use crate::core::types::TypeConfig;
use crate::core::{runtime, version};
use crate::durability::{
    AckModes, Act, CheckQuorum, EpochRecords, Lag, LocalMember, Policy, Standing, ended_leader,
    leadership,
};
use crate::membership::{Outreach, Reconciler, forming};
use crate::storage::Raft;
use crate::storage::history::History;
use crate::storage::log_store::LogStore;
use crate::storage::mode_in_force::ModeInForce;
use crate::storage::progress::Progress;
use crate::storage::repair::Repairer;
use crate::storage::state_machine::identities::Identities;
use crate::storage::state_machine::{PinnedSnapshot, StateMachine, sessions};
use crate::transport::generation::is_uninitialized;
use crate::transport::identity::IsBlank;
use crate::transport::{Addresses, Connections, PeerIdentity, Peers, SnapshotReceiver, terms};
use cairn_engine::{Engine, MemberState};
use openraft::RaftState;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
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
        let blank = is_uninitialized(&engine) && engine.member_state() == MemberState::Active;
        let last = engine.log_bounds(GROUP).last.map(|last| last.index);
        let modes = Arc::new(ModeInForce::new(engine.clone(), config.mode, last));
        let ack_modes = Arc::new(AckModes::new(modes.clone()));
        let member = build(bounded(config, &engine), engine, &ack_modes, modes).await?;
        member.time_passes();
        member.raft.run();
        let member = Arc::new(member);
        member.identity.is_carried_out(is_blank(Arc::downgrade(&member)));
        Ok(Replica { inner: Arc::new(background(member, ack_modes, blank)) })
    }
}

fn is_blank(member: Weak<LocalMember>) -> IsBlank {
    Box::new(move || {
        let member = member.upgrade();
        Box::pin(async move {
            let Some(member) = member else { return false };
            let blank = |state: &RaftState<TypeConfig>| {
                state.vote_ref().leader_id.term == 0 && state.log_ids.last().is_none()
            };
            // openraft answers in turn, after all that came before.
            member.raft.with_raft_state(blank).await.unwrap_or(false)
        })
    })
}

/// Bounds the table of sessions, which shares a checkpoint area with the keys.
fn bounded(config: ReplicaConfig, engine: &Engine) -> ReplicaConfig {
    let sessions =
        engine.status().index_capacity_bytes / SESSIONS_PART / sessions::BYTES_PER_SESSION;
    let max_sessions =
        config.max_sessions.min(usize::try_from(sessions).unwrap_or(usize::MAX)).max(1);
    ReplicaConfig { max_sessions, ..config }
}

/// Why the log cannot be read or applied. If a later release wrote to it, it has the record of the
/// version that this needs.
fn of_log(engine: &Engine, error: impl std::fmt::Display) -> Error {
    let bounds = engine.log_bounds(GROUP);
    let first = bounds.purged.map_or(0, |purged| purged.index + 1);
    let end = bounds.last.map_or(first, |last| last.index + 1);
    let metas = engine.read_metas(GROUP, first..end, usize::MAX);
    let versions = metas.iter().filter_map(|(_, meta)| match LogRecord::of_members(meta) {
        Ok(Some(LogRecord::Version(version))) => Some(version),
        _ => None,
    });
    match versions.max().map(version::check) {
        Some(Err(too_old)) => too_old.into(),
        _ => Error::State(error.to_string()),
    }
}

/// Builds openraft, which re-applies what was applied before the last restart, and the parts that
/// it uses.
async fn build(
    config: ReplicaConfig,
    engine: Engine,
    ack_modes: &Arc<AckModes>,
    modes: Arc<ModeInForce>,
) -> Result<LocalMember, Error> {
    let identities = Identities::default();
    let identity = PeerIdentity::of(&engine, identities.clone())
        .with_tls(config.tls.clone())
        .on(config.machine.clone());
    let (id, metrics) = (identity.id(), LateMetrics::default());
    let standing = Standing::new(id, engine.member_state(), leadership::patience(&config));
    let standing = Arc::new(Mutex::new(standing));
    let advertised = config.advertised(id.slot());
    let addresses = Addresses::new(id, advertised, identities.clone(), metrics.clone());
    let progress = Arc::new(Progress::new(identities, modes.clone()));
    let pinned = PinnedSnapshot::default();
    let peers = Peers { identity: identity.clone(), addresses: addresses.clone() };
    let repairer = Arc::new(Repairer::new(engine.clone(), Arc::new(peers)));
    let settings = Arc::new(config.for_openraft(&engine.identity().cluster, id)?);
    terms::warn_if_misled(&engine, id);
    let history = Arc::new(History::default());
    let machine = StateMachine::new(
        engine.clone(),
        progress.clone(),
        pinned.clone(),
        repairer.clone(),
        history.clone(),
    )?;
    let check_quorum = Arc::new(CheckQuorum::default());
    let policy = Policy {
        standing: standing.clone(),
        ack_modes: ack_modes.clone(),
        check_quorum: check_quorum.clone(),
        metrics: metrics.clone(),
    };
    let connections = Connections::new(
        identity.clone(),
        Arc::new(policy),
        pinned.clone(),
        addresses.clone(),
        [answer_timeout(&config), Duration::from_millis(config.heartbeat_ms)],
    );
    let log = LogStore::new(engine.clone(), repairer.clone(), modes.clone());
    let raft = Raft::build(id, settings, connections, log, machine).await;
    let raft = raft.map_err(|error| of_log(&engine, error))?;
    metrics.set(raft.metrics());
    Ok(LocalMember {
        identity,
        addresses,
        records: Arc::new(EpochRecords::new(raft.clone())),
        receiver: SnapshotReceiver::new(engine.clone()),
        engine,
        raft,
        config,
        standing,
        check_quorum,
        progress,
        modes,
        pinned,
        repairer,
        history,
        handing_over: Arc::default(),
        removed_reason: Mutex::default(),
        lag: Lag::default(),
        leader_changes: AtomicU64::new(0),
        leads_since: Mutex::default(),
        stuck: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
    })
}

/// The time limit for a follower's answer, and for a round of reads.
fn answer_timeout(config: &ReplicaConfig) -> Duration {
    Duration::from_millis(config.election_max_ms.max(1000))
}

/// Starts the tasks beside openraft. `blank`: nothing was ever voted, logged or applied here, and
/// nothing was lost.
fn background(member: Arc<LocalMember>, ack_modes: Arc<AckModes>, blank: bool) -> Inner {
    runtime::spawn(Maintenance::new(member.clone()).run());
    runtime::spawn(ack_modes.clone().run(member.clone()));
    let stops = {
        let member = member.clone();
        move || member.stops()
    };
    runtime::spawn(member.check_quorum.clone().run(
        member.raft.clone(),
        member.config.clone(),
        stops,
    ));
    runtime::spawn(leadership::approach_refused_terms(member.clone()));
    runtime::spawn(ended_leader::end_leases(member.clone()));
    let reconciler = Arc::new(Reconciler::new(member.clone(), ack_modes.clone()));
    runtime::spawn(reconciler.clone().run());
    runtime::spawn(Outreach::new(member.clone()).run());
    if blank && forming::is_mine(&member) {
        runtime::spawn(forming::run(member.clone()));
    } else if member.may(Act::Vouch).is_err() {
        runtime::spawn(member.clone().recover());
    }
    let scrubber = Scrubber::new(member.clone());
    runtime::spawn(scrubber.clone().run());
    let timeout = answer_timeout(&member.config);
    let newest_round = NewestRound::default();
    let barrier = ReadBarrier::of_leader(&member, timeout, &newest_round);
    let follower_barrier = ReadBarrier::of_follower(&member, timeout, &newest_round);
    let surveys = Surveys::of_leader(&barrier, &reconciler);
    let append_capacity = AppendCapacity::new(member.engine.clone());
    let contradicted = Arc::default();
    let service = PeerService {
        member: member.clone(),
        ack_modes,
        reconciler,
        append_capacity,
        barrier: barrier.clone(),
        newest_round: newest_round.clone(),
        surveys,
        contradicted,
        requests: Arc::default(),
    };
    let surveys = serving::surveys(&service);
    Inner { member, service, barrier, follower_barrier, newest_round, surveys, scrubber }
}
