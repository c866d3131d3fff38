//! `cairn status`: asks every endpoint, and every member that one of them names, for its status.

use super::ConnectOptions;
use super::exit::Exit;
use super::output::{Output, table_with_notes};
use cairn_client::proto::generation_text;
use cairn_client::{DurabilityStatus, Error, ModeStatus, NodeStatus, OperatorCall, StorageStatus};
use cairn_engine::MemberState;
use cairn_node::config::format_rounded;
use cairn_node::durability;
use cairn_node::promise::{self, SyncWindow};
use cairn_raft::NodeId;
use clap::Args;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long one node may take. A node that is down must not delay the answers of the others.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// Operators' calls of each node that the text shows. JSON has all that the node reports.
const OPERATOR_CALLS: usize = 3;

#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    connect: ConnectOptions,

    /// Only the nodes given with --endpoints, not the other members that they name; exit code 6 if
    /// one of them serves no client now
    #[arg(long)]
    only: bool,
}

/// A node's address and its answer, or why it has none.
pub(super) type Answer = (String, Result<NodeStatus, Error>);

pub(crate) async fn run(args: StatusArgs, output: &Output) -> anyhow::Result<Exit> {
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    if !args.only {
        // This learns the members beyond the given endpoints. If nothing answers, the error of each
        // endpoint follows below.
        let _ = client.members().await;
    }
    // Without the members above, the client knows the given endpoints alone.
    let mut answers = client.statuses().await;
    answers.sort_by_key(|(endpoint, answer)| {
        (answer.as_ref().map_or(u16::MAX, |node| node.slot), endpoint.clone())
    });
    output.either(|| answers.iter().map(as_json).collect(), || as_text(&answers))?;
    let has_leader =
        answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(|node| node.leader.is_some()));
    let denied = answers.iter().any(|(_, answer)| answer.as_ref().is_err_and(Error::is_denied));
    let ready = |(_, answer): &Answer| answer.as_ref().is_ok_and(|node| node.not_ready.is_none());
    let good = if args.only { answers.iter().all(ready) } else { has_leader };
    let (exit, why) = match good {
        _ if denied => (Exit::NotAllowed, "a node does not allow it"),
        true => return Ok(Exit::Done),
        false if args.only => (Exit::Unavailable, "a node of --endpoints serves no client now"),
        false => (Exit::Unavailable, "no node that answers knows a leader"),
    };
    if output.is_json() {
        output.error(&format!("{why}; each node's own words are on standard output"), exit as u8);
    }
    Ok(exit)
}

fn as_json((endpoint, answer): &Answer) -> Value {
    let node = match answer {
        Ok(node) => node,
        Err(reason) => return json!({ "endpoint": endpoint, "error": reason.to_string() }),
    };
    json!({
        "endpoint": endpoint,
        "cluster": node.cluster,
        "node_id": NodeId::from_u64(node.node_id).to_string(),
        "slot": node.slot,
        "server_version": node.server_version,
        "role": node.role,
        "term": node.term,
        "leader": node.leader,
        "last_log_index": node.last_log_index,
        "committed_index": node.committed_index,
        "applied_index": node.applied_index,
        "purged_index": node.purged_index,
        "uptime_ms": millis(node.uptime),
        "stopped_reason": node.stopped_reason,
        "member_state": node.member_state,
        "election_blocked": node.election_blocked,
        "not_ready": node.not_ready,
        "last_log_term": node.last_log_term,
        "boot_epoch": node.boot_epoch.0,
        "insecure": node.insecure,
        "drained_ms": node.drained.map(millis),
        "modes": node.modes.as_ref().map(modes_json),
        "version": node.versions.as_ref().map(|versions| versions.own),
        "cluster_version": node.versions.as_ref().map(|versions| versions.cluster),
        "unsafe_recoveries": node.unsafe_recoveries,
        "last_unsafe_recovery_index": node.last_unsafe_recovery_index,
        "generation": generation_text(node.generation),
        "operator_calls": node.operator_calls.iter().map(operator_call_json).collect::<Value>(),
        "storage": node.storage.as_ref().map(storage_json),
        "durability": node.durability.as_ref().map(durability_json),
    })
}

fn modes_json(modes: &ModeStatus) -> Value {
    json!({ "cluster": modes.cluster, "own": modes.own, "effective": modes.effective })
}

fn operator_call_json(call: &OperatorCall) -> Value {
    json!({
        "principal": call.principal,
        "call": call.call,
        "arguments": call.arguments,
        "result": call.result,
        "ago_ms": millis(call.ago),
    })
}

/// What an operator did last, as a sentence.
fn operator_note(endpoint: &str, call: &OperatorCall) -> String {
    let ago = humantime::format_duration(Duration::from_secs(call.ago.as_secs()));
    let OperatorCall { principal, call, arguments, result, .. } = call;
    format!("{endpoint}: {ago} ago {principal} called {call} ({arguments}): {result}")
}

fn durability_json(durability: &DurabilityStatus) -> Value {
    json!({
        "mode": durability.mode,
        "chosen": durability.chosen,
        "device_contract": durability.device_contract,
        "promise": durability.mode.parse().ok().map(|mode| promise::sentence(mode, window(durability))),
        "warnings": durability.warnings,
        "exceptions": durability.exceptions,
        "sync_interval_ms": millis(durability.sync_interval),
        "sync_bytes": durability.sync_bytes,
    })
}

fn storage_json(storage: &StorageStatus) -> Value {
    json!({
        "mode": storage.mode,
        "backend": storage.backend,
        "directory": storage.directory,
        "keys": storage.keys,
        "index_bytes": storage.index_bytes,
        "index_limit_bytes": storage.index_limit_bytes,
        "live_bytes": storage.live_bytes,
        "free_bytes": storage.free_bytes,
        "data_bytes": storage.data_bytes,
        "written_sequence": storage.written_sequence,
        "synced_sequence": storage.synced_sequence,
        "unsynced_bytes": storage.unsynced_bytes,
        "unsynced_ms": millis(storage.unsynced),
        "journal_blocks": storage.journal_blocks,
        "journal_used_blocks": storage.journal_used_blocks,
        "checkpoints": storage.checkpoints,
        "device_bytes_written": storage.device_bytes_written,
        "user_bytes_written": storage.user_bytes_written,
        "syncs": storage.syncs,
        "corrupt_values": storage.corrupt_values,
        "unsynced_acks": storage.unsynced_acks,
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn as_text(answers: &[Answer]) -> String {
    let head = [
        "NODE",
        "ENDPOINT",
        "ROLE",
        "TERM",
        "APPLIED",
        "UP",
        "KEYS",
        "KEYS FREE",
        "LIVE",
        "FREE",
        "UNSYNCED",
        "MODE",
        "DISK",
    ];
    let mut rows = Vec::new();
    let mut notes = promises(answers);
    let nodes = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    if nodes.clone().any(|node| node.insecure) {
        notes.push(
            "insecure: connections have no certificates; whoever reaches the ports can read, write, and act as a member".into(),
        );
    }
    let blocked: BTreeSet<&String> =
        nodes.filter_map(|node| node.election_blocked.as_ref()).collect();
    notes.extend(blocked.into_iter().cloned());
    notes.extend(warnings(answers));
    for (endpoint, answer) in answers {
        match answer {
            Ok(node) => {
                rows.push(row(endpoint, node));
                let latest = node.operator_calls.len().saturating_sub(OPERATOR_CALLS);
                let calls = node.operator_calls.iter().skip(latest);
                notes.extend(calls.map(|call| operator_note(endpoint, call)));
                if node.member_state == MemberState::Recovering.name() {
                    let until = match node.election_blocked {
                        Some(_) => "",
                        None => " until it has caught up with a leader",
                    };
                    notes.push(format!(
                        "{endpoint} is recovering: its machine lost power with acknowledged writes unsynced, or its journal or \
                         checkpoints were damaged; it neither votes nor serves{until}"
                    ));
                }
                // A node of a cluster that is not formed yet joins nothing.
                let joins = node.not_ready.as_ref().is_none_or(|why| why.starts_with("joining"));
                if node.member_state == "joining" && joins {
                    notes.push(format!(
                        "{endpoint} is joining: it is not a voter yet; in a formed cluster it takes its slot once the leader had \
                         no contact with the old identity of the slot for 5 s and everything is copied, or after \
                         `cairn members add {slot}` or `replace {slot}`",
                        slot = node.slot
                    ));
                }
                if let Some(left) = node.drained {
                    let left =
                        humantime::format_duration(Duration::from_secs(left.as_secs().max(1)));
                    notes.push(format!(
                        "{endpoint} is drained: it does not campaign for {left}; `cairn leader drain {} --end` ends that",
                        node.slot
                    ));
                }
                if node.member_state == "removed" {
                    let reason = node.stopped_reason.as_deref().unwrap_or_default();
                    notes.push(format!("{endpoint} is removed and serves nobody: {reason}"));
                } else if let Some(reason) = &node.stopped_reason {
                    notes.push(format!("{endpoint} has stopped serving: {reason}"));
                } else if let Some(reason) = untold(node) {
                    notes.push(format!("{endpoint} is not ready: {reason}"));
                }
            }
            Err(reason) => {
                let why = if reason.is_denied() { "not allowed" } else { "unreachable" };
                rows.push(vec!["?".into(), endpoint.clone(), why.into()]);
                notes.push(format!("{endpoint}: {reason}"));
            }
        }
    }
    table_with_notes(&head, rows, notes)
}

/// Each warning once, with the nodes that it concerns.
fn warnings(answers: &[Answer]) -> Vec<String> {
    let mut concerned: BTreeMap<&String, Vec<&str>> = BTreeMap::new();
    for (endpoint, answer) in answers {
        let durability = answer.as_ref().ok().and_then(|node| node.durability.as_ref());
        for warning in durability.into_iter().flat_map(|durability| &durability.warnings) {
            concerned.entry(warning).or_default().push(endpoint);
        }
    }
    let note = |(warning, endpoints): (&String, Vec<&str>)| {
        format!("{}: warning: {warning}", endpoints.join(", "))
    };
    concerned.into_iter().map(note).collect()
}

/// Why the node is not ready, unless another note says it.
fn untold(node: &NodeStatus) -> Option<&String> {
    let reason = node.not_ready.as_ref().filter(|_| node.election_blocked.is_none())?;
    let told = ["joining", "recovering"].iter().any(|state| reason.starts_with(state));
    (!told).then_some(reason)
}

/// The promise of each mode that some node runs in, and where it does not hold.
pub(super) fn promises(answers: &[Answer]) -> Vec<String> {
    let nodes =
        || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.durability.as_ref());
    let sentence = |durability: &DurabilityStatus| {
        let sentence = promise::sentence(durability.mode.parse().ok()?, window(durability));
        Some(format!("{}: {sentence}", durability.mode))
    };
    let promises: BTreeSet<String> = nodes().filter_map(sentence).collect();
    let exceptions: BTreeSet<String> = nodes()
        .flat_map(|durability| &durability.exceptions)
        .map(|sentence| format!("but {sentence}"))
        .collect();
    promises.into_iter().chain(exceptions).collect()
}

fn window(durability: &DurabilityStatus) -> SyncWindow {
    SyncWindow { interval: durability.sync_interval, bytes: durability.sync_bytes }
}

/// How much of what the checkpoint areas can hold of keys is free: it may run out long before the
/// data area.
fn keys_free(storage: &StorageStatus) -> String {
    let free = storage.index_limit_bytes.saturating_sub(storage.index_bytes);
    let percent = (free * 100).checked_div(storage.index_limit_bytes);
    percent.map_or_else(|| "?".into(), |percent| format!("{percent}%"))
}

/// The mode, how it was chosen, and for mode `device` how its contract is known.
fn mode(node: &NodeStatus, storage: &StorageStatus) -> String {
    node.durability.as_ref().map_or_else(
        || storage.mode.clone(),
        |found| durability::words(&found.mode, &found.chosen, found.device_contract.as_deref()),
    )
}

fn row(endpoint: &str, node: &NodeStatus) -> Vec<String> {
    let mut row = vec![
        NodeId::from_u64(node.node_id).to_string(),
        endpoint.to_string(),
        node.role.clone(),
        node.term.to_string(),
        node.applied_index.to_string(),
        humantime::format_duration(Duration::from_secs(node.uptime.as_secs())).to_string(),
    ];
    if let Some(storage) = &node.storage {
        row.extend([
            storage.keys.to_string(),
            keys_free(storage),
            format_rounded(storage.live_bytes),
            format_rounded(storage.free_bytes),
            format!("{}, {} ms", format_rounded(storage.unsynced_bytes), millis(storage.unsynced)),
            mode(node, storage),
            storage.backend.clone(),
        ]);
    }
    row
}
