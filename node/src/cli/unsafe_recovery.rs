//! `cairn unsafe-recovery`: for a cluster in which so many machines lost power at once that no
//! member can be elected.

use super::ConnectOptions;
use super::confirm::confirm;
use super::exit::{Exit, UsageError};
use super::output::{Output, table_with_notes, tell};
use anyhow::{Context, anyhow, bail};
use cairn_client::{Client, NodeStatus};
use cairn_engine::MemberState;
use cairn_node::outage::{MemberSurvey, NotApplied, decide, survey};
use cairn_raft::{NodeId, UnsafeRecovery};
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the cluster may take to elect the chosen member and to bring the others back.
const ELECTION_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// What follows for clients: log indexes now name other writes than before.
const VOID: &str =
    "Every version that a client read before is void: read again before a conditional write.";

#[derive(Args)]
pub(crate) struct UnsafeRecoveryArgs {
    #[command(flatten)]
    connect: ConnectOptions,

    /// Let the member with the most up-to-date log lead, and discard acknowledged writes that no
    /// member holds
    #[arg(long)]
    accept_data_loss: bool,

    /// Continue although members cannot be reached or have another data directory; discards what
    /// only they held
    #[arg(long, requires = "accept_data_loss")]
    allow_missing: bool,

    /// Do not ask
    #[arg(long, requires = "accept_data_loss")]
    yes: bool,
}

pub(crate) async fn run(args: UnsafeRecoveryArgs, output: &Output) -> anyhow::Result<Exit> {
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    let found = survey(&client).await;
    if let Some((endpoint, leader)) = &found.leader {
        let id = NodeId::from_u64(leader.node_id);
        output.either(
            || json!({ "needed": false, "leader": id.to_string() }),
            || format!("{}\nnode {id} at {endpoint} leads: the cluster recovers automatically, and no decision is needed", text(&found)),
        )?;
        return Ok(Exit::Done);
    }
    let chosen = found.chosen().map_err(|reason| anyhow!(reason))?;
    if !args.accept_data_loss {
        output.either(|| to_json(&found, chosen, false), || explained(&found, chosen))?;
        return Ok(Exit::Unavailable);
    }
    check_answers(&found, args.allow_missing)?;
    if !args.yes && !confirmed(&found, chosen)? {
        bail!("nothing was changed");
    }
    match decide(&client, &found, chosen).await {
        Err(NotApplied::Refused(refusal)) => {
            return Err(refusal).with_context(|| {
                format!("not every member accepted the unsafe-recovery grant; {}", grants_expire())
            });
        }
        decided => decided?,
    }
    let after = wait_for_leader(&client, chosen.node_id).await?;
    if !after.counts_recovery_since(chosen) {
        // If a member votes and restarts before it asks the leader for the record, it no longer has
        // its grant.
        bail!(
            "node {} leads, but no unsafe recovery was counted, probably because a member restarted during it: acknowledged \
             writes may be lost nevertheless, and `cairn status` does not show it; make a note of it. {VOID}",
            NodeId::from_u64(chosen.node_id)
        );
    }
    output.either(
        || to_json(&after, chosen, true),
        || {
            format!(
                "{}\nnode {} leads; acknowledged writes that no member held are lost, and `cairn status -o json` counts the unsafe recovery\n{VOID}",
                text(&after),
                NodeId::from_u64(chosen.node_id)
            )
        },
    )?;
    Ok(Exit::Done)
}

fn check_answers(found: &MemberSurvey, allow_missing: bool) -> anyhow::Result<()> {
    let (voters, answered) = found.answered();
    if answered <= voters / 2 {
        bail!(
            "{answered} of {voters} voters answered; a majority must answer: {}",
            found.missing.join("; ")
        );
    }
    if !found.missing.is_empty() && !allow_missing {
        return Err(UsageError(format!(
            "not all members can be reached, and a missing one may hold writes that the others lost: start them, each with \
             its own data directory, or add --allow-missing to discard what only they hold ({})",
            found.missing.join("; ")
        ))
        .into());
    }
    Ok(())
}

fn text(found: &MemberSurvey) -> String {
    let head = ["NODE", "ENDPOINT", "STATE", "ROLE", "TERM", "LAST LOG", "APPLIED"];
    let row = |(endpoint, node): &(String, NodeStatus)| {
        vec![
            NodeId::from_u64(node.node_id).to_string(),
            endpoint.clone(),
            node.member_state.clone(),
            node.role.clone(),
            node.term.to_string(),
            format!("{}-{}", node.last_log_term, node.last_log_index),
            node.applied_index.to_string(),
        ]
    };
    table_with_notes(&head, found.nodes.iter().map(row).collect(), found.missing.iter().cloned())
}

fn explained(found: &MemberSurvey, chosen: &NodeStatus) -> String {
    format!(
        "{}\n\nNo member leads, and too many members may have lost acknowledged writes: their machines lost power within \
         one sync window. The newest acknowledged writes, of at most that window, may be lost.\nNode {} has the most \
         up-to-date log ({}-{}). `cairn unsafe-recovery --accept-data-loss` lets it lead and brings the others back to it.",
        text(found),
        NodeId::from_u64(chosen.node_id),
        chosen.last_log_term,
        chosen.last_log_index
    )
}

fn to_json(found: &MemberSurvey, chosen: &NodeStatus, done: bool) -> Value {
    let one = |(endpoint, node): &(String, NodeStatus)| {
        json!({
            "endpoint": endpoint,
            "node_id": NodeId::from_u64(node.node_id).to_string(),
            "member_state": node.member_state,
            "role": node.role,
            "term": node.term,
            "last_log_term": node.last_log_term,
            "last_log_index": node.last_log_index,
            "applied_index": node.applied_index,
            "unsafe_recoveries": node.unsafe_recoveries,
        })
    };
    json!({
        "needed": true,
        "done": done,
        "chosen": NodeId::from_u64(chosen.node_id).to_string(),
        "nodes": found.nodes.iter().map(one).collect::<Value>(),
        "missing": found.missing,
    })
}

/// Asks on the terminal.
fn confirmed(found: &MemberSurvey, chosen: &NodeStatus) -> anyhow::Result<bool> {
    tell(&text(found));
    let node = NodeId::from_u64(chosen.node_id);
    confirm(&format!("Let node {node} lead, and discard what no member holds?"), "add --yes")
}

fn grants_expire() -> String {
    format!("unsafe-recovery grants expire after {} s", UnsafeRecovery::LIFETIME.as_secs())
}

/// Waits until the chosen member leads and no voter that answers is recovering.
async fn wait_for_leader(client: &Client, chosen: u64) -> anyhow::Result<MemberSurvey> {
    let ready = async {
        loop {
            let found = survey(client).await;
            let leads =
                found.nodes.iter().any(|(_, node)| node.node_id == chosen && node.role == "leader");
            let active = found
                .nodes
                .iter()
                .all(|(_, node)| node.member_state != MemberState::Recovering.name());
            if leads && active {
                return found;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(ELECTION_LIMIT, ready).await.map_err(|_| {
        anyhow!(
            "node {} does not lead all members yet after {} s; {}: if no member leads by then, \
             check `cairn status` and decide again",
            NodeId::from_u64(chosen),
            ELECTION_LIMIT.as_secs(),
            grants_expire()
        )
    })
}
