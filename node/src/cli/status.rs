//! `cairn status`: asks every endpoint, and every member that one of them names, for its status.

use super::ConnectOptions;
use super::exit::Exit;
use super::output::{Output, table_with_notes};
use cairn_client::{DurabilityStatus, Error, NodeStatus, StorageStatus};
use cairn_engine::MemberState;
use cairn_node::config::format_rounded;
use cairn_node::{durability, promise};
use cairn_raft::NodeId;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long one node may take. A node that is down must not delay the answers of the others.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    connect: ConnectOptions,
}

/// A node's address and its answer, or why it has none.
type Answer = (String, Result<NodeStatus, Error>);

pub(crate) async fn run(args: StatusArgs, output: &Output) -> anyhow::Result<Exit> {
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    // This learns the members beyond the given endpoints. If nothing answers, the error of each
    // endpoint follows below.
    let _ = client.members().await;
    let mut answers = client.statuses().await;
    answers.sort_by_key(|(endpoint, answer)| {
        (answer.as_ref().map_or(u16::MAX, |node| node.slot), endpoint.clone())
    });
    output.either(|| answers.iter().map(as_json).collect(), || as_text(&answers))?;
    let has_leader =
        answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(|node| node.leader.is_some()));
    Ok(if has_leader { Exit::Done } else { Exit::Unavailable })
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
        "last_log_term": node.last_log_term,
        "boot_epoch": node.boot_epoch.0,
        "insecure": node.insecure,
        "unsafe_recoveries": node.unsafe_recoveries,
        "last_unsafe_recovery_index": node.last_unsafe_recovery_index,
        "storage": node.storage.as_ref().map(storage_json),
        "durability": node.durability.as_ref().map(durability_json),
    })
}

fn durability_json(durability: &DurabilityStatus) -> Value {
    json!({
        "mode": durability.mode,
        "chosen": durability.chosen,
        "device_contract": durability.device_contract,
        "promise": durability.mode.parse().ok().map(promise::sentence),
        "warnings": durability.warnings,
    })
}

fn storage_json(storage: &StorageStatus) -> Value {
    json!({
        "mode": storage.mode,
        "backend": storage.backend,
        "directory": storage.directory,
        "keys": storage.keys,
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
        "NODE", "ENDPOINT", "ROLE", "TERM", "APPLIED", "UP", "KEYS", "LIVE", "FREE", "UNSYNCED",
        "MODE", "DISK",
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
    for (endpoint, answer) in answers {
        match answer {
            Ok(node) => {
                rows.push(row(endpoint, node));
                let warnings = node.durability.iter().flat_map(|durability| &durability.warnings);
                notes.extend(warnings.map(|warning| format!("{endpoint}: warning: {warning}")));
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
                if node.member_state == "joining" {
                    notes.push(format!(
                        "{endpoint} is joining: it is not a voter yet; in a formed cluster it takes its slot once the leader had \
                         no contact with the old identity of the slot for 5 s and everything is copied"
                    ));
                }
                if let Some(reason) = &node.stopped_reason {
                    notes.push(format!("{endpoint} has stopped serving: {reason}"));
                }
            }
            Err(reason) => {
                rows.push(vec!["?".into(), endpoint.clone(), "unreachable".into()]);
                notes.push(format!("{endpoint}: {reason}"));
            }
        }
    }
    table_with_notes(&head, rows, notes)
}

/// The promise of each mode that some node runs in.
pub(super) fn promises(answers: &[Answer]) -> Vec<String> {
    let nodes = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let modes: BTreeSet<&str> =
        nodes.filter_map(|node| Some(node.durability.as_ref()?.mode.as_str())).collect();
    let sentence = |mode: &str| Some(format!("{mode}: {}", promise::sentence(mode.parse().ok()?)));
    modes.into_iter().filter_map(sentence).collect()
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
            format_rounded(storage.live_bytes),
            format_rounded(storage.free_bytes),
            format!("{}, {} ms", format_rounded(storage.unsynced_bytes), millis(storage.unsynced)),
            mode(node, storage),
            storage.backend.clone(),
        ]);
    }
    row
}
