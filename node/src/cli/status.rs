//! `cairn status`: asks every endpoint, and every member that one of them names, for its status.

use super::ConnectOptions;
use super::exit::Exit;
use super::health::ask_all;
use super::output::{OfEndpoint, Output, millis, silence, table_with_notes};
use cairn_client::{DurabilityStatus, Error, NodeStatus, OperatorCall, StorageStatus};
use cairn_node::config::format_rounded;
use cairn_node::durability;
use cairn_node::health::{Answer, Kind, Report, days};
use cairn_node::promise::{self, SyncWindow};
use cairn_raft::NodeId;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;
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

pub(crate) async fn run(args: StatusArgs, output: &Output) -> anyhow::Result<Exit> {
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    let report = match args.only {
        // The client knows no others.
        true => Report::ask(|| client.statuses()).await,
        false => ask_all(&client).await,
    };
    let answers = &report.answers;
    output.either(|| answers.iter().map(as_json).collect(), || as_text(&report))?;
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

/// A node and its answer, for programs.
pub(super) fn as_json((endpoint, answer): &Answer) -> Value {
    let node = match answer {
        Ok(node) => node,
        Err(reason) => return json!({ "endpoint": endpoint, "error": reason.to_string() }),
    };
    let mut told = json!(OfEndpoint { endpoint, told: node });
    let promise = node.durability.as_ref().and_then(promise);
    if let Some(Value::Object(durability)) = told.get_mut("durability") {
        durability.insert("promise".into(), promise.into());
    }
    told
}

/// What an operator did last, as a sentence.
fn operator_note(endpoint: &str, call: &OperatorCall) -> String {
    let ago = humantime::format_duration(Duration::from_secs(call.ago.as_secs()));
    let OperatorCall { principal, call, arguments, result, .. } = call;
    format!("{endpoint}: {ago} ago {principal} called {call} ({arguments}): {result}")
}

fn as_text(Report { answers, findings }: &Report) -> String {
    let head = [
        "NODE",
        "ENDPOINT",
        "ROLE",
        "TERM",
        "APPLIED",
        "UP",
        "CERT DAYS",
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
    // What stands beside the promises is not said twice.
    let found = findings.iter();
    let found = found.filter(|finding| finding.kind != Kind::VotersFailTogether);
    notes.extend(found.map(|finding| finding.line()));
    for (endpoint, answer) in answers {
        match answer {
            Ok(node) => {
                rows.push(row(endpoint, node));
                let latest = node.operator_calls.len().saturating_sub(OPERATOR_CALLS);
                let calls = node.operator_calls.iter().skip(latest);
                notes.extend(calls.map(|call| operator_note(endpoint, call)));
            }
            Err(reason) => {
                rows.push(vec!["?".into(), endpoint.clone(), silence(reason).into()]);
            }
        }
    }
    table_with_notes(&head, rows, notes)
}

/// The promise of each mode that some node runs in, and where it does not hold.
pub(super) fn promises(answers: &[Answer]) -> Vec<String> {
    let nodes =
        || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.durability.as_ref());
    let sentence = |durability: &DurabilityStatus| {
        Some(format!("{}: {}", durability.mode, promise(durability)?))
    };
    let promises: BTreeSet<String> = nodes().filter_map(sentence).collect();
    let exceptions: BTreeSet<String> = nodes()
        .flat_map(|durability| &durability.exceptions)
        .map(|sentence| format!("but {sentence}"))
        .collect();
    promises.into_iter().chain(exceptions).collect()
}

/// What acknowledgements promise; `None` for a mode of a later release.
fn promise(durability: &DurabilityStatus) -> Option<String> {
    let window = SyncWindow { interval: durability.sync_interval, bytes: durability.sync_bytes };
    Some(promise::sentence(durability.mode.name().parse().ok()?, window))
}

/// How much of what the checkpoint areas can hold of keys is free: it may run out long before the
/// data area.
fn keys_free(storage: &StorageStatus) -> String {
    let free = storage.index_limit_bytes.saturating_sub(storage.index_bytes);
    let percent = (free * 100).checked_div(storage.index_limit_bytes);
    percent.map_or_else(|| "?".into(), |percent| format!("{percent}%"))
}

/// For how many days the certificate, or its CA if that ends before, is valid.
fn certificate_days(node: &NodeStatus) -> String {
    let left = [node.certificate_left, node.ca_left].into_iter().flatten().min();
    left.map_or_else(|| "-".into(), |left| days(left).to_string())
}

/// The mode, how it was chosen, and for mode `device` how its contract is known.
fn mode(node: &NodeStatus) -> String {
    let words = |found: &DurabilityStatus| {
        let contract = found.device_contract.as_deref();
        durability::words(found.mode.name(), found.chosen.name(), contract)
    };
    node.durability.as_ref().map(words).unwrap_or_default()
}

fn row(endpoint: &str, node: &NodeStatus) -> Vec<String> {
    let mut row = vec![
        NodeId::from_u64(node.node_id).to_string(),
        endpoint.to_string(),
        node.role.to_string(),
        node.term.to_string(),
        node.applied_index.to_string(),
        humantime::format_duration(Duration::from_secs(node.uptime.as_secs())).to_string(),
        certificate_days(node),
    ];
    if let Some(storage) = &node.storage {
        row.extend([
            storage.keys.to_string(),
            keys_free(storage),
            format_rounded(storage.live_bytes),
            format_rounded(storage.free_bytes),
            format!("{}, {} ms", format_rounded(storage.unsynced_bytes), millis(storage.unsynced)),
            mode(node),
            storage.backend.clone(),
        ]);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_days_of_what_ends_first_and_of_nobody_who_does_not_say() {
        let day = Duration::from_secs(24 * 3600);
        let of = |certificate: Option<u32>, ca: Option<u32>| {
            let mut node = NodeStatus::default();
            (node.certificate_left, node.ca_left) =
                (certificate.map(|days| days * day), ca.map(|days| days * day));
            certificate_days(&node)
        };
        assert_eq!(of(Some(300), Some(3000)), "300");
        assert_eq!(of(Some(300), Some(5)), "5");
        assert_eq!(of(Some(0), None), "0");
        assert_eq!(of(None, None), "-", "insecure, or an earlier version");
        let report = Report { answers: Vec::new(), findings: Vec::new() };
        assert!(as_text(&report).contains("  UP  CERT DAYS  KEYS  "), "{}", as_text(&report));
    }
}
