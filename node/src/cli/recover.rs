//! `cairn recover`: after so many machines lost power at once that no member can be elected.

use super::ConnectOptions;
use super::exit::{Exit, UsageError};
use super::output::{Output, table};
use anyhow::{Context, anyhow, bail};
use cairn_client::{Client, NodeStatus};
use cairn_engine::Standing;
use cairn_node::outage::{Found, Undecided, decide, look};
use cairn_raft::{Mandate, NodeId};
use clap::Args;
use serde_json::{Value, json};
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the cluster may take to elect the chosen member and to bring the others back.
const ELECTION_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// What follows for clients: indexes stand for other writes than before.
const VOID: &str = "Every version that a client read before is void: read again before a conditional write.";

#[derive(Args)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    connect: ConnectOptions,

    /// Let the member whose log reaches furthest lead, and give up what no member holds any more
    #[arg(long)]
    accept_loss: bool,

    /// Do so although some members cannot be reached, or came with another directory; what they alone held is given up too
    #[arg(long, requires = "accept_loss")]
    allow_missing: bool,

    /// Do not ask
    #[arg(long, requires = "accept_loss")]
    yes: bool,
}

pub(crate) async fn run(args: RecoverArgs, output: &Output) -> anyhow::Result<Exit> {
    let timeout = args.connect.timeout().min(NODE_TIMEOUT);
    let client = args.connect.options()?.deadline(timeout).build()?;
    let found = look(&client).await;
    if let Some((endpoint, leader)) = &found.leader {
        let id = NodeId::from_u64(leader.node_id);
        output.either(
            || json!({ "needed": false, "leader": id.to_string() }),
            || format!("{}\nnode {id} at {endpoint} leads: the cluster recovers by itself, and nothing is to be decided", text(&found)),
        )?;
        return Ok(Exit::Done);
    }
    let chosen = found.chosen().map_err(|reason| anyhow!(reason))?;
    if !args.accept_loss {
        output.either(|| to_json(&found, chosen, false), || explained(&found, chosen))?;
        return Ok(Exit::Unavailable);
    }
    may_be_accepted(&found, args.allow_missing)?;
    if !args.yes && !confirmed(&found, chosen)? {
        bail!("nothing was changed");
    }
    match decide(&client, &found, chosen).await {
        Err(Undecided::Refused(refusal)) => {
            return Err(refusal)
                .with_context(|| format!("not every member took its mandate; {}", mandates_end()));
        }
        decided => decided?,
    }
    let after = wait_for_leader(&client, chosen.node_id).await?;
    if !after.counts_loss_since(chosen) {
        // One that votes, and is started again before it asks to be brought back, does not know of the mandate any more.
        bail!(
            "node {} leads, but no loss was counted, as where a member was started again while it came back: acknowledged \
             writes may be lost all the same, and `cairn status` will not tell; make a note of it. {VOID}",
            NodeId::from_u64(chosen.node_id)
        );
    }
    output.either(
        || to_json(&after, chosen, true),
        || {
            format!(
                "{}\nnode {} leads; acknowledged writes that no member held are lost, and `cairn status` counts the loss\n{VOID}",
                text(&after),
                NodeId::from_u64(chosen.node_id)
            )
        },
    )?;
    Ok(Exit::Done)
}

fn may_be_accepted(found: &Found, allow_missing: bool) -> anyhow::Result<()> {
    let (voters, answered) = found.answered();
    if answered <= voters / 2 {
        bail!("{answered} of {voters} voters answered; a majority must: {}", found.missing.join("; "));
    }
    if !found.missing.is_empty() && !allow_missing {
        return Err(UsageError(format!(
            "not all members can be reached, and one of them may hold writes that the others lost: start them, each with \
             the data directory that it had, or add --allow-missing to give up what they alone hold ({})",
            found.missing.join("; ")
        ))
        .into());
    }
    Ok(())
}

fn text(found: &Found) -> String {
    let head = ["NODE", "ENDPOINT", "STANDING", "ROLE", "TERM", "LAST LOG", "APPLIED"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    for (endpoint, node) in &found.nodes {
        rows.push(vec![
            NodeId::from_u64(node.node_id).to_string(),
            endpoint.clone(),
            node.standing.clone(),
            node.role.clone(),
            node.term.to_string(),
            format!("{}-{}", node.last_log_term, node.last_log_index),
            node.applied_index.to_string(),
        ]);
    }
    std::iter::once(table(&rows)).chain(found.missing.iter().cloned()).collect::<Vec<_>>().join("\n")
}

fn explained(found: &Found, chosen: &NodeStatus) -> String {
    format!(
        "{}\n\nNo member leads, and too many may have forgotten what they acknowledged: their machines lost power within \
         one sync window. The newest acknowledged writes, of at most that window, may be lost.\nThe log of node {} \
         reaches furthest ({}-{}). `cairn recover --accept-loss` lets it lead and brings the others back to it.",
        text(found),
        NodeId::from_u64(chosen.node_id),
        chosen.last_log_term,
        chosen.last_log_index
    )
}

fn to_json(found: &Found, chosen: &NodeStatus, done: bool) -> Value {
    let nodes: Vec<Value> = found
        .nodes
        .iter()
        .map(|(endpoint, node)| {
            json!({
                "endpoint": endpoint,
                "node_id": NodeId::from_u64(node.node_id).to_string(),
                "standing": node.standing,
                "role": node.role,
                "term": node.term,
                "last_log_term": node.last_log_term,
                "last_log_index": node.last_log_index,
                "applied_index": node.applied_index,
                "losses": node.losses,
            })
        })
        .collect();
    json!({
        "needed": true,
        "done": done,
        "chosen": NodeId::from_u64(chosen.node_id).to_string(),
        "nodes": nodes,
        "missing": found.missing,
    })
}

/// Asks on the terminal.
fn confirmed(found: &Found, chosen: &NodeStatus) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(UsageError("nobody can be asked here: add --yes".into()).into());
    }
    eprintln!("{}", text(found));
    eprint!(
        "Let node {} lead, and give up what no member holds any more? Type `yes`: ",
        NodeId::from_u64(chosen.node_id)
    );
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

fn mandates_end() -> String {
    format!("mandates end by themselves after {} s", Mandate::LIFETIME.as_secs())
}

/// Waits until the chosen member leads and every voter that answers is active.
async fn wait_for_leader(client: &Client, chosen: u64) -> anyhow::Result<Found> {
    let ready = async {
        loop {
            let found = look(client).await;
            let leads = found.nodes.iter().any(|(_, node)| node.node_id == chosen && node.role == "leader");
            let active = found.nodes.iter().all(|(_, node)| node.standing != Standing::Recovering.name());
            if leads && active {
                return found;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(ELECTION_LIMIT, ready).await.map_err(|_| {
        anyhow!(
            "node {} does not lead all members yet after {} s; {}: if no member leads by then, \
             look at `cairn status`, and decide again",
            NodeId::from_u64(chosen),
            ELECTION_LIMIT.as_secs(),
            mandates_end()
        )
    })
}
