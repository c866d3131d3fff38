//! What the node reports about itself: to a client that connects, and to an operator.

use super::{Inner, scrub};
use crate::access::audit::AuditedCall;
use crate::admission::refusal;
use crate::doctor::Contract;
use crate::durability::in_force;
use crate::failure_domains;
use crate::readiness::readiness;
use cairn_client::{Chosen, MemberState, proto};
use cairn_engine::{LogId, Mode};
use cairn_raft::{HistoryStatus, Modes, NodeId, Part, ReplicaStatus, Role, StopVerdict, Versions};
use cairn_tls::Tls;
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::Status;

pub(super) fn hello(inner: &Inner) -> proto::HelloResponse {
    let limits = inner.limits();
    let bounded = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let status = inner.replica.status();
    proto::HelloResponse {
        cluster: inner.config.cluster.clone(),
        limits: Some(proto::Limits {
            max_key_bytes: bounded(limits.max_key_bytes),
            max_value_bytes: bounded(limits.max_value_bytes),
            max_batch_operations: bounded(limits.max_batch_operations),
            max_request_bytes: bounded(limits.max_request_bytes),
        }),
        applied_index: index(status.applied),
        members: members(&status),
        leader: leader(&status),
        server_version: env!("CARGO_PKG_VERSION").to_string(),
        protocol: cairn_client::PROTOCOL,
        membership_term: status.membership_log_id.map_or(0, |id| id.term),
        membership_index: index(status.membership_log_id),
        generation: inner.engine.generation(),
    }
}

pub(super) fn status(inner: &Inner) -> proto::StatusResponse {
    let status = inner.replica.status();
    let engine = inner.engine.status();
    // Until the log says it, acknowledgements wait for syncs; this is what they will mean.
    let mode = match inner.replica.modes().cluster {
        Some(_) => in_force(&inner.replica, engine.mode),
        None => inner.replica.first_mode(),
    };
    let (member_state, removed) = match inner.replica.part() {
        Part::Active => (MemberState::Active, None),
        Part::Recovering => (MemberState::Recovering, None),
        Part::Joining => (MemberState::Joining, None),
        Part::Removed(reason) => (MemberState::Removed, Some(reason)),
    };
    let unsafe_recoveries = inner.replica.unsafe_recoveries();
    let left = inner.tls.as_ref().map(Tls::left).unwrap_or_default();
    let seconds = |left: Duration| left.as_secs();
    proto::StatusResponse {
        cluster: inner.config.cluster.clone(),
        node_id: status.node_id.as_u64(),
        slot: u32::from(status.node_id.slot()),
        server_version: env!("CARGO_PKG_VERSION").to_string(),
        role: role(status.role).into(),
        term: status.term,
        last_log_index: index(status.last_log),
        committed_index: index(status.committed),
        applied_index: index(status.applied),
        purged_index: index(status.purged),
        members: members(&status),
        configurations: configurations(&status),
        damage: inner.engine.damage().map(|damage| damage.to_string()).unwrap_or_default(),
        leader: leader(&status),
        storage: Some(proto::Storage {
            backend: engine.backend.to_string(),
            directory: inner.config.data_directory.display().to_string(),
            written_sequence: engine.written_sequence,
            synced_sequence: engine.synced_sequence,
            unsynced_bytes: engine.unsynced_bytes,
            unsynced_ms: engine.unsynced_ms,
            data_bytes: engine.data_bytes,
            free_bytes: engine.free_bytes,
            live_bytes: engine.live_bytes,
            keys: engine.keys,
            index_bytes: engine.index_bytes - engine.index_log_bytes,
            index_limit_bytes: engine.index_limit_bytes,
            journal_blocks: engine.journal_blocks,
            journal_used_blocks: engine.journal_used_blocks,
            checkpoints: engine.checkpoints,
            device_bytes_written: engine.device_bytes_written,
            user_bytes_written: engine.user_bytes_written,
            syncs: engine.syncs,
            corrupt_values: engine.corrupt_values,
            unsynced_acks: engine.unsynced_acks,
        }),
        uptime_ms: u64::try_from(inner.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        durability: Some(durability(inner, engine.mode, mode)),
        modes: Some(modes(
            inner.replica.modes(),
            engine.mode,
            in_force(&inner.replica, engine.mode),
        )),
        drained_ms: inner
            .replica
            .drained_for()
            .map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)),
        versions: Some(versions(inner.replica.versions())),
        stopped_reason: status.stopped_reason.or(engine.failed).or(removed).unwrap_or_default(),
        member_state: member_state.into(),
        scrub: Some(scrub::status(&inner.replica.scrub_status())),
        last_log_term: status.last_log.map_or(0, |id| id.term),
        boot_epoch: inner.engine.boot_epoch().number,
        boot_nonce: inner.engine.boot_epoch().nonce,
        membership_term: status.membership_log_id.map_or(0, |id| id.term),
        membership_index: index(status.membership_log_id),
        unsafe_recoveries: unsafe_recoveries.count,
        last_unsafe_recovery_index: unsafe_recoveries.last_index,
        election_blocked: inner.election_blocked().unwrap_or_default(),
        insecure: inner.config.tls_files().is_none(),
        certificate_left_s: left.certificate.map(seconds),
        ca_left_s: left.ca.map(seconds),
        generation: inner.engine.generation(),
        operator_calls: inner.audit.latest().into_iter().map(operator_call).collect(),
        not_ready: readiness(&inner.replica, &inner.election_blocked_state)
            .err()
            .unwrap_or_default(),
        history: Some(history(inner.replica.history())),
    }
}

fn history(history: HistoryStatus) -> proto::History {
    proto::History {
        oldest: history.oldest.map(|id| proto::Position { term: id.term, index: id.index }),
        entries: history.entries,
        bytes: history.bytes,
        age_ms: u64::try_from(history.age.as_millis()).unwrap_or(u64::MAX),
    }
}

/// Which members may be stopped now, as the leader says.
pub(super) async fn safe_to_stop(inner: &Inner) -> Result<proto::SafeToStopResponse, Status> {
    let verdicts = inner.replica.stop_verdicts().await.map_err(refusal::cannot_tell)?;
    let verdict = |verdict: StopVerdict| proto::StopVerdict {
        node_id: verdict.member.as_u64(),
        slot: u32::from(verdict.member.slot()),
        obstacles: verdict.obstacles,
    };
    Ok(proto::SafeToStopResponse { verdicts: verdicts.into_iter().map(verdict).collect() })
}

fn versions(versions: Versions) -> proto::Versions {
    let members = versions.members.into_iter().map(|member| proto::MemberVersion {
        node_id: member.id.as_u64(),
        version: member.version,
        release: member.release,
    });
    proto::Versions { own: versions.own, cluster: versions.cluster, members: members.collect() }
}

fn operator_call(call: AuditedCall) -> proto::OperatorCall {
    proto::OperatorCall {
        principal: call.principal,
        call: call.call.to_string(),
        arguments: call.arguments,
        result: call.result,
        ago_ms: u64::try_from(call.at.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

fn role(role: Role) -> cairn_client::Role {
    match role {
        Role::Leader => cairn_client::Role::Leader,
        Role::Follower => cairn_client::Role::Follower,
        Role::Candidate => cairn_client::Role::Candidate,
        Role::Learner => cairn_client::Role::Learner,
        Role::Stopped => cairn_client::Role::Stopped,
        _ => cairn_client::Role::Unknown,
    }
}

pub(super) fn told_mode(mode: Mode) -> cairn_client::Mode {
    match mode {
        Mode::Device => cairn_client::Mode::Device,
        Mode::Replicated => cairn_client::Mode::Replicated,
        Mode::Sync => cairn_client::Mode::Sync,
    }
}

/// `engine` is the laxest mode that the engine allows now, and `mode` the one in force.
fn modes(modes: Modes, engine: Mode, mode: Mode) -> proto::Modes {
    let own = if engine == Mode::Sync { engine } else { modes.own };
    proto::Modes {
        cluster: modes.cluster.map(told_mode).unwrap_or_default().into(),
        own: told_mode(own).into(),
        effective: told_mode(mode).into(),
    }
}

/// `engine` is the laxest mode that the engine allows now, and `mode` the one in force.
fn durability(inner: &Inner, engine: Mode, mode: Mode) -> proto::Durability {
    let durability = &inner.durability;
    let window = durability.window;
    let contract = durability.contract.filter(|_| mode == durability.mode);
    let mut warnings: Vec<_> =
        durability.warnings.iter().map(|reason| reason.sentence().to_string()).collect();
    let withdrawn = engine != durability.bound;
    if withdrawn {
        warnings.push(format!(
            "the device reports that it no longer keeps completed writes through a power cut: mode `{}` has ended",
            durability.bound
        ));
    }
    let chosen = match mode == durability.mode || withdrawn {
        true => durability.chosen,
        false => Chosen::Cluster,
    };
    proto::Durability {
        mode: told_mode(mode).into(),
        chosen: chosen.into(),
        device_contract: contract.map(Contract::words).unwrap_or_default().to_string(),
        warnings,
        exceptions: failure_domains::exceptions(&inner.replica, mode, window),
        sync_interval_ms: u64::try_from(window.interval.as_millis()).unwrap_or(u64::MAX),
        sync_bytes: window.bytes,
    }
}

fn members(status: &ReplicaStatus) -> Vec<proto::Member> {
    let member = |member: &cairn_raft::Member| proto::Member {
        node_id: member.id.as_u64(),
        slot: u32::from(member.id.slot()),
        client_address: member.address.client.clone(),
        peer_address: member.address.peer.clone(),
        voter: member.voter,
    };
    status.members.iter().map(member).collect()
}

fn configurations(status: &ReplicaStatus) -> Vec<proto::Configuration> {
    let one = |voters: &BTreeSet<NodeId>| proto::Configuration {
        voters: voters.iter().map(|id| id.as_u64()).collect(),
    };
    status.configurations.iter().map(one).collect()
}

fn leader(status: &ReplicaStatus) -> Option<proto::Leader> {
    status.leader.clone().map(refusal::leader_message)
}

fn index(id: Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index)
}
