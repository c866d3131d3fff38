//! The end of a run: all faults end, and the cluster must serve and agree within a time limit.

use super::cluster::Cluster;
use super::kinds::FaultKind;
use super::machine::{Condition, Death, Machine};
use super::minority_down;
use super::moves::is_logged;
use super::network::Links;
use super::observe::{Seen, read_log};
use super::scrub;
use crate::check::repaired;
use cairn_client::Client;
use cairn_clients::Violation;
use cairn_clients::check::acknowledged::FinalKeys;
use cairn_clients::history::GROUP_KEYS;
use cairn_clients::workload::{Recorder, encode_key, read_everything};
use cairn_engine::{Engine, LogId};
use cairn_node::Node;
use cairn_raft::{GROUP, NodeId, Role, UnsafeRecovery};
use parking_lot::Mutex;
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The property's name.
const LIVENESS: &str = "a healed cluster serves and converges";
/// The event of a cluster that waits for an operator.
pub(super) const STOPPED: &str = "stopped for an operator";
/// Part of the error that a member logs while the cluster waits for an operator.
pub(super) const BLOCKED_ERROR: &str = "`cairn unsafe-recovery` decides; waiting does not help";
/// The event of an operator's unsafe recovery.
pub(super) const UNSAFE_RECOVERY: &str = "operator's unsafe recoveries";
/// Limits, in virtual time.
const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const SERVE_LIMIT: Duration = Duration::from_secs(30);
const CONVERGE_LIMIT: Duration = Duration::from_secs(30);
/// When this long and one sync interval have passed since the last acknowledgement, a power cut
/// loses nothing: the 0.3 s that the operator is promised, and a few operations of a slow disk.
const IDLE: Duration = Duration::from_millis(300 + 500);
/// Longer than several elections and a recovery take.
const STUCK_LIMIT: Duration = Duration::from_secs(20);
/// Longer than the members need to find that waiting does not help.
const REPORT_LIMIT: Duration = Duration::from_secs(15);
/// The length of the workload's longest values, in bytes; there are at most some dozens of them.
const LONGEST: u64 = 20_000;
const POLL: Duration = Duration::from_millis(50);

/// Ends all faults of links, clocks, processes and disks. In some of the seeds a minority stays
/// down; its members are returned.
pub(super) async fn heal(cluster: &Arc<Cluster>, links: &Links) -> Vec<usize> {
    cluster.trace.event("heal");
    cluster.end_faults();
    links.heal();
    links.restore_quality();
    for machine in &cluster.machines {
        machine.disk.behave();
        cairn_raft::set_clock_rate(machine.host, 1_000_000);
        cluster.resume(machine);
    }
    if !wait_until(STOP_LIMIT, || cluster.stopping.load(Ordering::Relaxed) == 0).await {
        cluster.violation(Violation::new(LIVENESS, "a clean stop does not end"));
    }
    let dead = minority_down::choose(cluster);
    minority_down::keep_down(cluster, &dead);
    minority_down::slow_down(cluster);
    // A process may have ended just now.
    tokio::time::sleep(POLL).await;
    let others: Vec<usize> =
        (0..cluster.machines.len()).filter(|number| !dead.contains(number)).collect();
    start(cluster, &others).await;
    dead
}

/// Starts these members, and waits until all of them run. A leader gives a lost identity another
/// one, so where an operator must let one lead first, such a member runs only after that.
pub(super) async fn start(cluster: &Arc<Cluster>, members: &[usize]) {
    let machines = || members.iter().filter_map(|number| cluster.machines.get(*number));
    machines().for_each(|machine| cluster.start(machine));
    let runs = |machine: &Machine| {
        machine.condition() == Condition::Up || machine.is_lost() && cluster.may_be_stuck()
    };
    if !wait_until(START_LIMIT, || machines().all(runs)).await {
        let conditions: Vec<_> = cluster.machines.iter().map(|m| (m.slot, m.condition())).collect();
        cluster
            .violation(Violation::new(LIVENESS, format!("not all nodes started: {conditions:?}")));
    }
}

/// Writes once and reads everything.
pub(super) async fn serve(
    cluster: &Arc<Cluster>,
    client: Client,
    number: u32,
    recorder: &Recorder,
) -> FinalKeys {
    let groups = cluster.plan.profile.groups;
    let end =
        read_everything(number, client.with_deadline(SERVE_LIMIT), groups, recorder.clone()).await;
    if end.written && end.keys.len() == groups as usize * GROUP_KEYS {
        cluster.trace.event("served");
    } else {
        let detail = format!("a write took effect: {}; keys read: {}", end.written, end.keys.len());
        cluster.violation(Violation::new(LIVENESS, detail));
        describe(cluster);
    }
    end.keys
}

/// Waits for equal applied positions; `observe` compares the states at equal positions. Then reads
/// all logs.
pub(super) async fn converge(cluster: &Arc<Cluster>, seen: &Mutex<Seen>) {
    let positions = || -> Vec<_> {
        let nodes = cluster.machines.iter().map(|machine| machine.node());
        nodes.map(|node| node.map(|(_, node)| node.replica().state_hash())).collect()
    };
    let equal = || {
        let all = positions();
        all.iter().all(|one| one.is_some() && *one == all.first().copied().flatten())
            && is_complete(cluster)
    };
    if wait_until(CONVERGE_LIMIT, equal).await
        || replace_the_full(cluster).await && wait_until(CONVERGE_LIMIT, equal).await
    {
        cluster.trace.event(format!("converged: {:?}", positions().first()));
    } else {
        cluster.violation(Violation::new(LIVENESS, format!("no agreement: {:?}", positions())));
        describe(cluster);
    }
    for machine in &cluster.machines {
        if let Some((_, node)) = machine.node() {
            read_log(cluster, machine, &node.engine().clone(), seen).await;
        }
    }
}

/// Replaces members that can never catch up: those that fell behind while their data areas were
/// [`full`]. Such a member cannot take a snapshot beside its own state, so an operator gives it an empty
/// directory. Returns whether there was such a member.
async fn replace_the_full(cluster: &Arc<Cluster>) -> bool {
    let full = full(cluster);
    if full.is_empty() || full.len() > (cluster.machines.len() - 1) / 2 {
        return false;
    }
    let mut rng = cluster.plan.rng(10);
    for machine in full {
        cluster.end(machine, Death::Killed);
        machine.open(true);
        machine.lose();
        drop(machine.disk.take_out());
        tokio::time::sleep(POLL).await;
        if let Err(error) = cluster.format(machine, rng.random_range(1..1_u64 << 48)).await {
            cluster.violation(Violation::new("an empty disk is formatted", error.to_string()));
        }
        machine.open(false);
        cluster.start(machine);
        cluster.count_event("members without space for a snapshot replaced");
        cluster
            .trace
            .event(format!("node {} has no space for a snapshot and is replaced", machine.slot));
    }
    true
}

/// The members that fell behind while their data areas were full: their free space is less than the
/// others' data, or than a few values.
pub(super) fn full(cluster: &Cluster) -> Vec<&Machine> {
    if !cluster.plan.decays.contains(&FaultKind::Fill) {
        return Vec::new();
    }
    let nodes = cluster.machines.iter().filter_map(|machine| Some((machine, machine.node()?.1)));
    let nodes: Vec<(&Machine, Arc<Node>)> = nodes.collect();
    let most_up_to_date = nodes.iter().max_by_key(|(_, node)| node.engine().applied(GROUP));
    let Some((_, most_up_to_date)) = most_up_to_date else { return Vec::new() };
    let (applied, needed) =
        (most_up_to_date.engine().applied(GROUP), most_up_to_date.engine().status().live_bytes);
    let full = nodes.iter().filter(|(_, node)| {
        let (engine, free) = (node.engine(), node.engine().status().free_bytes);
        engine.applied(GROUP) < applied && (free < needed || !has_capacity(engine, &[LONGEST; 24]))
    });
    full.map(|(machine, _)| *machine).collect()
}

/// Whether on every machine the last configuration that is committed has the identities of all
/// machines and no others, the log has all where they are, and the mode is the one that an operator
/// was told last.
fn is_complete(cluster: &Cluster) -> bool {
    let nodes = || cluster.machines.iter().filter_map(Machine::node);
    let all: BTreeSet<NodeId> = nodes().map(|(_, node)| node.replica().node_id()).collect();
    all.len() == cluster.machines.len()
        && nodes().all(|(_, node)| {
            let status = node.replica().status();
            let mode = cluster.promises.mode();
            status.configurations.as_slice() == std::slice::from_ref(&all)
                && status.applied >= status.membership_log_id
                && status.members.len() == cluster.machines.len()
                && cluster.machines.iter().all(|machine| is_logged(machine, &status))
                && mode.is_none_or(|mode| node.replica().modes().cluster == Some(mode))
        })
}

fn has_capacity(engine: &Engine, lengths: &[u64]) -> bool {
    let blocks = Engine::blocks_for([(lengths.iter().copied(), 0)]);
    engine.has_capacity(blocks, 0).is_ok()
}

/// If any disk was damaged, scrubs every member until nothing is found. Then checks that every key
/// reads alike on all of them, and that every log is readable.
pub(super) async fn scrub(cluster: &Arc<Cluster>, seen: &Mutex<Seen>) {
    if !cluster.machines.iter().any(Machine::damaged) {
        return;
    }
    let mut scrubs = BTreeMap::new();
    for machine in &cluster.machines {
        scrubs.insert(machine.slot, scrub::until_clean(cluster, machine).await);
    }
    let mut found = repaired::check_scrubs(&scrubs);
    let keys = (0..cluster.plan.profile.groups)
        .flat_map(|group| (0..GROUP_KEYS).map(move |key| encode_key(group, key)));
    for key in keys {
        let mut reads = BTreeMap::new();
        for machine in &cluster.machines {
            let Some((_, node)) = machine.node() else { continue };
            // From the disk, whatever is in memory.
            let read = match node.engine().lookup(GROUP, &key) {
                None => Ok(None),
                Some(entry) => {
                    let read = node.engine().view(GROUP).read(&entry).await;
                    read.map(|_| Some((entry.version.index, entry.value.hash)))
                }
            };
            let read = read.map_err(|error| error.to_string());
            reads.insert(machine.slot, read);
        }
        found.extend(repaired::check_key(&key, &reads));
    }
    for violation in found {
        cluster.violation(violation);
    }
    for machine in &cluster.machines {
        machine.repaired();
        if let Some((_, node)) = machine.node() {
            read_log(cluster, machine, &node.engine().clone(), seen).await;
        }
    }
    cluster.trace.event("scrubbed");
}

/// Whether so many members lack what they acknowledged that no leader can be elected: then the
/// cluster must have stopped.
pub(super) async fn stuck(cluster: &Cluster) -> bool {
    let led = || {
        let mut nodes = cluster.machines.iter().filter_map(|machine| machine.node());
        nodes.any(|(_, node)| node.replica().status().role == Role::Leader)
    };
    // A cluster that needs no operator recovers within this time.
    let stuck =
        cluster.may_be_stuck() && !wait_until(STUCK_LIMIT, led).await && cluster.may_be_stuck();
    if stuck {
        cluster.count_event(STOPPED);
        cluster.trace.event(
            "too many members lack what they acknowledged: the cluster waits for an operator",
        );
        let says = |machine: &&Machine| {
            machine.node().is_some_and(|(_, node)| node.election_blocked().is_some())
        };
        if !wait_until(REPORT_LIMIT, || cluster.voting().iter().all(says)).await {
            cluster.violation(Violation::new(
                "a cluster that needs an operator says so",
                "not every member does",
            ));
        }
    }
    stuck
}

/// Does what an operator would: surveys what every member holds and lets the one with the most
/// up-to-date log lead. What was lost stays lost; the cluster must serve and agree again.
pub(super) async fn decide(cluster: &Arc<Cluster>) {
    let voting = cluster.voting();
    let nodes: Vec<_> =
        voting.iter().filter_map(|machine| machine.node()).map(|(_, node)| node).collect();
    if nodes.is_empty() || nodes.len() < voting.len() {
        cluster.violation(Violation::new(LIVENESS, "not all nodes run for the operator to survey"));
        return;
    }
    let Some(chosen) = unsafe_recovery(cluster, &nodes).await else { return };
    let back = || {
        let leads = chosen.replica().status().role == Role::Leader;
        let active = nodes.iter().all(|node| node.replica().holds_all());
        let states: Vec<_> = nodes.iter().map(|node| node.replica().state_hash()).collect();
        leads
            && active
            && states.iter().all(|state| Some(state) == states.first())
            && chosen.replica().unsafe_recoveries().count > 0
    };
    if !wait_until(CONVERGE_LIMIT, back).await {
        cluster.violation(Violation::new(
            "a cluster that an operator recovered serves and agrees",
            "it does not",
        ));
        describe(cluster);
        return;
    }
    check_count_kept(cluster, &voting, chosen.replica().unsafe_recoveries().count).await;
}

/// Checks that members report the unsafe recovery also after all have restarted.
async fn check_count_kept(cluster: &Arc<Cluster>, voting: &[&Machine], unsafe_recoveries: u64) {
    for machine in &cluster.machines {
        // From here on the checkpoint holds the count, not an entry of the log.
        if let Some((_, node)) = machine.node()
            && let Err(error) = node.engine().checkpoint().await
        {
            cluster.violation(Violation::new(LIVENESS, format!("a checkpoint: {error}")));
        }
        cluster.end(machine, Death::Killed);
    }
    tokio::time::sleep(POLL).await;
    for machine in &cluster.machines {
        cluster.start(machine);
    }
    let reporting = || {
        let nodes = voting.iter().map(|machine| machine.node().map(|(_, node)| node));
        nodes
            .flatten()
            .filter(|node| node.replica().unsafe_recoveries().count == unsafe_recoveries)
            .count()
    };
    if !wait_until(START_LIMIT, || reporting() == voting.len()).await {
        let detail = format!(
            "{} of {} members report {unsafe_recoveries} unsafe recoveries",
            reporting(),
            voting.len()
        );
        cluster.violation(Violation::new("an unsafe recovery is reported from then on", detail));
        describe(cluster);
    }
}

/// Lets the node with the most up-to-date log lead.
pub(super) async fn unsafe_recovery(cluster: &Cluster, nodes: &[Arc<Node>]) -> Option<Arc<Node>> {
    let takes_part = |machine: &&Machine| {
        let node = machine.node().map(|(_, node)| node);
        node.is_some_and(|node| nodes.iter().any(|one| Arc::ptr_eq(one, &node)))
    };
    let leads = most_up_to_date(nodes)?;
    let is_of_its_history = |machine: &&Machine| {
        let node = machine.node().map(|(_, node)| node);
        takes_part(machine) && node.is_some_and(|node| is_of_one_history(&node, leads))
    };
    cluster.decide_without(
        cluster.machines.iter().filter(|machine| !takes_part(machine)),
        cluster.machines.iter().filter(is_of_its_history),
    );
    let (chosen, refused) = try_unsafe_recovery(cluster, nodes).await?;
    if let Some(reason) = refused {
        cluster.violation(Violation::new("an operator can decide", reason));
    }
    cluster.count_event(UNSAFE_RECOVERY);
    Some(chosen)
}

/// The node that an operator lets lead.
fn most_up_to_date(nodes: &[Arc<Node>]) -> Option<&Arc<Node>> {
    nodes.iter().max_by_key(|node| node.replica().status().last_log)
}

/// Whether a node holds all that it acknowledged, and what it applied is in the log of the one that will lead. A node
/// that stays apart since an earlier decision may hold all too, and applied something else.
fn is_of_one_history(node: &Arc<Node>, leads: &Arc<Node>) -> bool {
    let is_held = |id: LogId| leads.engine().log_id_at(GROUP, id.index) == Some(id);
    let is_same = Arc::ptr_eq(node, leads);
    let (holds_all, applied) = (node.replica().holds_all(), node.replica().status().applied);
    holds_all && (is_same || applied.is_none_or(is_held))
}

/// Names the node with the most up-to-date log as the candidate to each recovering node, to itself
/// last. Also returns why one of them refused.
pub(super) async fn try_unsafe_recovery(
    cluster: &Cluster,
    nodes: &[Arc<Node>],
) -> Option<(Arc<Node>, Option<String>)> {
    let chosen = most_up_to_date(nodes)?.clone();
    let unsafe_recovery = UnsafeRecovery {
        candidate: chosen.replica().node_id(),
        epoch: chosen.engine().boot_epoch(),
    };
    let mut asked: Vec<Arc<Node>> = nodes.to_vec();
    asked.sort_by_key(|node| node.replica().node_id() == unsafe_recovery.candidate);
    asked.retain(|node| !node.replica().holds_all());
    for node in asked {
        let runs = |machine: &&Machine| {
            machine.node().is_some_and(|(_, running)| Arc::ptr_eq(&running, &node))
        };
        // It asks the other members, so it runs on its own host.
        let host = cluster.machines.iter().find(runs).and_then(|machine| cluster.host(machine))?;
        let answer = host.spawn({
            let node = node.clone();
            async move { node.replica().unsafe_recovery(unsafe_recovery).await }
        });
        match answer.await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return Some((chosen, Some(reason))),
            Err(error) => return Some((chosen, Some(error.to_string()))),
        }
    }
    Some((chosen, None))
}

/// All machines lose power once the cluster is idle: that loses nothing in any mode.
pub(super) async fn lose_power_idle(cluster: &Arc<Cluster>) {
    tokio::time::sleep(cluster.plan.sync_interval + IDLE).await;
    for machine in &cluster.machines {
        cluster.end(machine, Death::PowerCut);
    }
    cluster.count("power cut of all, idle");
    tokio::time::sleep(POLL).await;
    for machine in &cluster.machines {
        cluster.start(machine);
    }
    let active = || {
        cluster
            .machines
            .iter()
            .all(|machine| machine.node().is_some_and(|(_, node)| node.replica().holds_all()))
    };
    if !wait_until(START_LIMIT, active).await {
        cluster.violation(Violation::new(
            "an idle cluster survives a total power cut",
            "not all nodes are active",
        ));
        describe(cluster);
    }
}

/// Traces the status of every node, for finding the cause.
fn describe(cluster: &Cluster) {
    for machine in &cluster.machines {
        match machine.node() {
            Some((_, node)) => {
                cluster.trace.event(format!(
                    "node {} reports {:?}",
                    machine.slot,
                    node.replica().status()
                ));
                cluster.trace.event(format!(
                    "node {} has {:?}",
                    machine.slot,
                    node.engine().status()
                ));
            }
            None => {
                cluster.trace.event(format!("node {} is {:?}", machine.slot, machine.condition()))
            }
        }
    }
}

async fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let mut waited = Duration::ZERO;
    while !done() {
        if waited >= limit {
            return false;
        }
        tokio::time::sleep(POLL).await;
        waited += POLL;
    }
    true
}
