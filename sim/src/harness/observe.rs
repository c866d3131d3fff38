//! Checks every node all the time, and reads its log after each start and at the end.

use super::cluster::Cluster;
use super::live;
use super::machine::{Condition, Machine};
use super::moves;
use super::network::Links;
use crate::check::leaders::Leaders;
use crate::check::logs::Logs;
use crate::check::majority;
use crate::check::members::Members;
use crate::check::states::States;
use cairn_clients::Violation;
use cairn_engine::{Engine, Entry, LogId, MemberState, Value};
use cairn_raft::{GROUP, NodeId, Role};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// The time between two checks.
const INTERVAL: Duration = Duration::from_millis(50);
/// One check in this many includes all keys.
const ROUNDS_TO_KEYS: u32 = 7;
/// Bytes of log read at once.
const PAGE_BYTES: u64 = 1 << 20;

/// Everything seen so far.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) leaders: Leaders,
    pub(super) logs: Logs,
    pub(super) states: States,
    pub(super) members: Members,
    /// The life of each node whose log was read.
    read: BTreeMap<u16, u32>,
    /// The end of each node's log at the last check.
    last_log: BTreeMap<u16, Option<LogId>>,
    checkpoints: BTreeMap<(u16, u32), u64>,
    /// The last line traced for each node, so that only changes are traced.
    shown: BTreeMap<u16, String>,
}

/// Checks until the run ends.
pub(super) async fn watch(cluster: Arc<Cluster>, links: Arc<Links>, seen: Arc<Mutex<Seen>>) {
    for round in 0_u32.. {
        tokio::time::sleep(INTERVAL).await;
        for machine in &cluster.machines {
            if cluster.decided() {
                return;
            }
            if let Some((_, node)) = machine.node().filter(|_| round.is_multiple_of(ROUNDS_TO_KEYS))
            {
                live::check(&cluster, machine, &node).await;
            }
            if let Some(engine) = check(&cluster, &links, machine, &seen) {
                read_log(&cluster, machine, &engine, &seen).await;
            }
        }
        cluster_wide(&cluster);
    }
}

/// Looks for the last applied entry of any node in the logs of the others.
fn cluster_wide(cluster: &Cluster) {
    let Some((applied, by, configurations)) = last_applied(cluster) else { return };
    let engines = cluster
        .machines
        .iter()
        .filter(|machine| !machine.is_stale())
        .filter_map(|machine| Some(machine.node()?.1))
        .map(|node| (node.replica().node_id(), node.engine().clone()));
    let lacks = |engine: &Engine| {
        let purged =
            engine.log_bounds(GROUP).purged.is_some_and(|purged| purged.index >= applied.index);
        !purged && engine.log_id_at(GROUP, applied.index) != Some(applied)
    };
    let lacking: BTreeSet<NodeId> = engines
        .filter(|(_, engine)| engine.member_state() == MemberState::Active && lacks(engine))
        .map(|(id, _)| id)
        .collect();
    if let Some(violation) = majority::check(&configurations, applied, by, &lacking) {
        cluster.violation(violation);
    }
}

/// The last entry that any node has applied, the node, and the configurations that are in force
/// there: none if the node knows a later membership, which may not be committed.
pub(super) fn last_applied(cluster: &Cluster) -> Option<(LogId, u16, Vec<BTreeSet<NodeId>>)> {
    let nodes = cluster.machines.iter().filter(|machine| !machine.is_stale());
    let nodes = nodes.filter_map(|machine| Some((machine.slot, machine.node()?.1)));
    let (applied, slot, node) = nodes
        .filter_map(|(slot, node)| Some((node.engine().applied(GROUP)?, slot, node)))
        .max_by_key(|(applied, slot, _)| (*applied, *slot))?;
    let status = node.replica().status();
    let in_force = status.membership_log_id <= Some(applied);
    Some((applied, slot, if in_force { status.configurations } else { Vec::new() }))
}

/// Checks a node once. Returns its engine if its log has not been read in this life.
fn check(
    cluster: &Cluster,
    links: &Links,
    machine: &Machine,
    seen: &Mutex<Seen>,
) -> Option<Engine> {
    let (life, node) = machine.node()?;
    let (status, holds_all) = (node.replica().status(), node.replica().holds_all());
    let (applied, hash) = node.replica().state_hash();
    let slot = machine.slot;
    // A member counts as a voter only if it votes in all configurations: in a joint change, a vote
    // in one half does not help a majority of the other half, where the identity that it replaces is
    // missing. Before the change is committed, others may still go by an earlier one.
    let id = status.node_id;
    let votes =
        node.replica().votes() && status.configurations.iter().all(|voters| voters.contains(&id));
    machine.saw_votes(votes);
    let in_force = status.membership_log_id <= node.engine().applied(GROUP);
    let mut seen = seen.lock();
    let mut found = Vec::new();
    let leads = matches!(status.role, Role::Leader | Role::Candidate);
    match holds_all {
        true if votes && in_force => machine.saw_active(life),
        true => {}
        false if leads => {
            let detail = format!("node {slot} is {} of term {}", status.role, status.term);
            found.push(Violation::new("a recovering node never campaigns", detail));
        }
        false => {}
    }
    moves::check(cluster, slot, &status.members);
    machine.saw_synced(cluster.promises.present().is_some_and(|period| {
        machine.condition() == Condition::Up
            && applied.is_some_and(|applied| applied.index >= period.after)
    }));
    let drained_above = machine.drained_above(status.term);
    if leads && drained_above.is_some_and(|term| status.term > term) && machine.heard_lately() {
        let detail = format!("node {slot} is {} of term {}", status.role, status.term);
        found.push(Violation::new("a drained member does not campaign beside a leader", detail));
    }
    if status.role == Role::Leader && machine.condition() == Condition::Up {
        let reached = |other: &&Machine| links.connects(&[machine.host, other.host].into());
        let others = cluster.machines.iter().filter(|other| other.slot != slot);
        others.filter(reached).for_each(Machine::hears_a_leader);
    }
    found.extend(seen.members.saw(&status.configurations));
    if !holds_all {
        if !machine.lacks_acks() && !machine.damaged() {
            let detail = format!(
                "node {slot} recovers after nothing that could have taken what it acknowledged"
            );
            found.push(Violation::new("a node recovers only if it may have lost writes", detail));
        }
        machine.saw_recovering(life);
    }
    if status.role == Role::Leader {
        found.extend(seen.members.leads(status.node_id, status.term));
        found.extend(cluster.operator.check(&status));
        if let [voters] = status.configurations.as_slice() {
            found.extend(seen.members.settled(status.term, voters));
        }
        found.extend(seen.leaders.saw(slot, life, status.term));
    }
    found.extend(seen.states.saw(slot, applied, hash));
    found.extend(seen.states.saw_progress(slot, life, status.applied));
    if status.purged > seen.last_log.get(&slot).copied().flatten()
        && seen.read.get(&slot) == Some(&life)
    {
        cluster.count_event("snapshots installed");
        cluster
            .trace
            .event(format!("node {slot} installed a snapshot through {:?}", status.purged));
    }
    seen.last_log.insert(slot, status.last_log);
    let checkpoints = node.engine().status().checkpoints;
    let before = seen.checkpoints.insert((slot, life), checkpoints).unwrap_or_default();
    for _ in before..checkpoints {
        cluster.count_event("checkpoints");
    }
    found.extend(applied.and_then(|applied| seen.logs.saw_committed(slot, applied)));
    let state = if holds_all { "active" } else { "recovering" };
    let line = format!("node {slot} {} of term {}, {state}", status.role, status.term);
    if seen.shown.insert(slot, line.clone()).as_ref() != Some(&line) {
        cluster.trace.event(line);
    }
    let fresh = seen.read.insert(slot, life) != Some(life);
    drop(seen);
    for violation in found {
        cluster.violation(violation);
    }
    (fresh && machine.condition() == Condition::Up).then(|| node.engine().clone())
}

/// Reads a node's whole log and compares it with all others.
pub(super) async fn read_log(
    cluster: &Cluster,
    machine: &Machine,
    engine: &Engine,
    seen: &Mutex<Seen>,
) {
    let change = machine.change();
    let bounds = engine.log_bounds(GROUP);
    let applied = engine.applied(GROUP);
    // After a restart an entry whose purge is due is there until it is applied once more, which
    // needs no value: its blocks may hold another one.
    let due = engine.purge_due(GROUP).map_or(0, |due| due.index + 1);
    let mut next = bounds.purged.map_or(0, |purged| purged.index + 1);
    let Some(last) = bounds.last else { return };
    while next <= last.index {
        let entries = match engine.read_log(GROUP, next..last.index + 1, PAGE_BYTES).await {
            Ok(entries) => entries,
            Err(_) if next < due => {
                next += 1;
                continue;
            }
            Err(error) => {
                // The log may have been purged or truncated, or the node killed, while it was read.
                let purged =
                    engine.log_bounds(GROUP).purged.is_some_and(|purged| purged.index >= next)
                        || engine.log_id_at(GROUP, last.index) != Some(last);
                if !purged && !machine.damaged() && machine.unchanged(change) {
                    let detail = format!("node {} from {next}: {error}", machine.slot);
                    cluster.violation(Violation::new("the log is readable", detail));
                }
                return;
            }
        };
        if entries.is_empty() {
            return;
        }
        for entry in &entries {
            next = entry.id.index + 1;
            let mut seen = seen.lock();
            let mut found = vec![seen.logs.saw(machine.slot, entry.id, content(entry))];
            seen.logs.saw_values(entry.id, entry.values.iter().map(Value::hash));
            if applied.is_some_and(|applied| entry.id.index <= applied.index) {
                found.push(seen.logs.saw_committed(machine.slot, entry.id));
            }
            drop(seen);
            for violation in found.into_iter().flatten() {
                cluster.violation(violation);
            }
        }
    }
}

fn content(entry: &Entry) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&entry.meta);
    for value in &entry.values {
        hash.update(&(value.bytes().len() as u64).to_le_bytes());
        hash.update(value.bytes());
    }
    hash.digest128()
}
