//! `cairn recover`: after so many machines lost power at once that no member can be elected.

use super::ConnectOptions;
use super::exit::{Exit, UsageError};
use super::output::{Output, table};
use anyhow::bail;
use cairn_client::{Client, NodeStatus};
use cairn_engine::Standing;
use cairn_raft::NodeId;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the cluster may take to elect the chosen member and to bring the others back.
const ELECTION_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    connect: ConnectOptions,

    /// Let the member whose log reaches furthest lead, and give up what no member holds any more
    #[arg(long)]
    accept_loss: bool,

    /// Do so although some members cannot be reached; what they alone hold is given up too
    #[arg(long, requires = "accept_loss")]
    allow_missing: bool,

    /// Do not ask
    #[arg(long, requires = "accept_loss")]
    yes: bool,
}

/// What was found.
struct Found {
    /// Those that answered, the one that should lead first.
    nodes: Vec<(String, NodeStatus)>,
    /// Those that did not, with their reasons.
    missing: Vec<String>,
    /// Voters in all.
    voters: usize,
}

pub(crate) async fn run(args: RecoverArgs, output: &Output) -> anyhow::Result<Exit> {
    let timeout = args.connect.timeout().min(NODE_TIMEOUT);
    let client = args.connect.options()?.deadline(timeout).build()?;
    let found = look(&client).await;
    if let Some((endpoint, leader)) = found.nodes.iter().find(|(_, node)| node.role == "leader") {
        let id = NodeId::from_u64(leader.node_id);
        output.either(
            || json!({ "needed": false, "leader": id.to_string() }),
            || format!("{}\nnode {id} at {endpoint} leads: the cluster recovers by itself, and nothing is to be decided", found.text()),
        )?;
        return Ok(Exit::Done);
    }
    let recovering =
        found.nodes.iter().filter(|(_, node)| node.standing == Standing::Recovering.name()).count();
    let Some((_, chosen)) = found.nodes.first() else {
        bail!("no node answered: {}", found.missing.join("; "));
    };
    if found.nodes.len() - recovering > found.voters / 2 {
        bail!(
            "{} of {} voters remember everything they acknowledged: they elect a leader by themselves once they reach \
             one another; look at the network between them",
            found.nodes.len() - recovering,
            found.voters
        );
    }
    if let Some((endpoint, newer)) = found.nodes.iter().find(|(_, node)| node.membership > chosen.membership)
    {
        bail!(
            "node {} at {endpoint} knows of a later membership ({}-{}) than node {}, whose log reaches furthest ({}-{}): \
             others of that membership may go on by themselves; start them, or look at the network between them",
            NodeId::from_u64(newer.node_id),
            newer.membership.0,
            newer.membership.1,
            NodeId::from_u64(chosen.node_id),
            chosen.last_log_term,
            chosen.last_log_index
        );
    }
    if !args.accept_loss {
        output.either(|| found.json(chosen, false), || found.explained(chosen))?;
        return Ok(Exit::Unavailable);
    }
    if found.nodes.len() <= found.voters / 2 {
        bail!(
            "{} of {} voters answered; a majority must: {}",
            found.nodes.len(),
            found.voters,
            found.missing.join("; ")
        );
    }
    if !found.missing.is_empty() && !args.allow_missing {
        return Err(UsageError(format!(
            "not all members can be reached, and one of them may hold writes that the others lost: start them, or add \
             --allow-missing to give up what they alone hold ({})",
            found.missing.join("; ")
        ))
        .into());
    }
    if !args.yes && !confirmed(&found, chosen)? {
        bail!("nothing was changed");
    }
    for (endpoint, node) in found.nodes.iter().rev() {
        if node.standing == Standing::Recovering.name() {
            client.mandate(endpoint, chosen.node_id, chosen.run).await?;
        }
    }
    wait_for_leader(&client, chosen.node_id).await?;
    let after = look(&client).await;
    output.either(
        || after.json(chosen, true),
        || {
            format!(
                "{}\nnode {} leads; acknowledged writes that no member held are lost, and `cairn status` counts the loss",
                after.text(),
                NodeId::from_u64(chosen.node_id)
            )
        },
    )?;
    Ok(Exit::Done)
}

/// Asks every member that is known.
async fn look(client: &Client) -> Found {
    // Learns the members beyond the endpoints given; whoever does not answer is named below.
    let _ = client.members().await;
    let (mut nodes, mut missing) = (Vec::new(), Vec::new());
    for (endpoint, answer) in client.statuses().await {
        match answer {
            Ok(node) => nodes.push((endpoint, node)),
            Err(reason) => missing.push(reason.to_string()),
        }
    }
    // One that is about to take a slot, or has lost it, has no say.
    nodes.retain(|(_, node)| node.standing != "joining" && node.standing != "retired");
    nodes.sort_by_key(|(_, node)| std::cmp::Reverse((node.last_log_term, node.last_log_index, node.node_id)));
    nodes.dedup_by_key(|(_, node)| node.node_id);
    // In the middle of a replacement a slot has two voters, one in each half of the configuration.
    let slots = |node: &NodeStatus| -> BTreeSet<u32> {
        node.members.iter().filter(|member| member.voter).map(|member| u32::from(member.slot)).collect()
    };
    let newest = nodes.iter().max_by_key(|(_, node)| node.membership);
    let voters = newest.map(|(_, node)| slots(node).len());
    let voters = voters.unwrap_or(0).max(nodes.len());
    Found { nodes, missing, voters }
}

impl Found {
    fn text(&self) -> String {
        let head = ["NODE", "ENDPOINT", "STANDING", "ROLE", "TERM", "LAST LOG", "APPLIED"];
        let mut rows = vec![head.map(str::to_string).to_vec()];
        for (endpoint, node) in &self.nodes {
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
        std::iter::once(table(&rows)).chain(self.missing.iter().cloned()).collect::<Vec<_>>().join("\n")
    }

    fn explained(&self, chosen: &NodeStatus) -> String {
        format!(
            "{}\n\nNo member leads, and too many may have forgotten what they acknowledged: their machines lost power within \
             one sync window. The newest acknowledged writes, of at most that window, may be lost.\nThe log of node {} \
             reaches furthest ({}-{}). `cairn recover --accept-loss` lets it lead and brings the others back to it.",
            self.text(),
            NodeId::from_u64(chosen.node_id),
            chosen.last_log_term,
            chosen.last_log_index
        )
    }

    fn json(&self, chosen: &NodeStatus, done: bool) -> Value {
        let nodes: Vec<Value> = self
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
            "missing": self.missing,
        })
    }
}

/// Asks on the terminal.
fn confirmed(found: &Found, chosen: &NodeStatus) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(UsageError("nobody can be asked here: add --yes".into()).into());
    }
    eprintln!("{}", found.text());
    eprint!(
        "Let node {} lead, and give up what no member holds any more? Type `yes`: ",
        NodeId::from_u64(chosen.node_id)
    );
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

/// Waits until the chosen member leads and everybody who answered is active.
async fn wait_for_leader(client: &Client, chosen: u64) -> anyhow::Result<()> {
    let ready = async {
        loop {
            let found = look(client).await;
            let leads = found.nodes.iter().any(|(_, node)| node.node_id == chosen && node.role == "leader");
            let active = found.nodes.iter().all(|(_, node)| node.standing != Standing::Recovering.name());
            if leads && active {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(ELECTION_LIMIT, ready).await.is_err() {
        bail!(
            "node {} does not lead all members yet after {} s; look at `cairn status`",
            NodeId::from_u64(chosen),
            ELECTION_LIMIT.as_secs()
        );
    }
    Ok(())
}
