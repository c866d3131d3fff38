//! `cairn recover`: after so many machines lost power at once that no member can be elected.

use super::ConnectOptions;
use super::exit::{Exit, UsageError};
use super::output::{Output, table};
use anyhow::{Context, anyhow, bail};
use cairn_client::{Client, Member, NodeStatus};
use cairn_engine::Standing;
use cairn_raft::{Mandate, NodeId};
use clap::Args;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
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

/// What was found.
struct Found {
    /// The voters that answered as themselves, the one that should lead first.
    nodes: Vec<(String, NodeStatus)>,
    /// Whoever leads.
    leader: Option<(String, NodeStatus)>,
    /// Whoever knows of the latest membership.
    newest: Option<(String, NodeStatus)>,
    /// Its voters by slot: in the middle of a replacement a slot has two, one in each half of the configuration.
    slots: BTreeMap<u16, BTreeSet<u64>>,
    /// Who did not answer: endpoints, and voters in whose place nobody or somebody else did; with reasons.
    missing: Vec<String>,
}

pub(crate) async fn run(args: RecoverArgs, output: &Output) -> anyhow::Result<Exit> {
    let timeout = args.connect.timeout().min(NODE_TIMEOUT);
    let client = args.connect.options()?.deadline(timeout).build()?;
    let found = look(&client).await;
    if let Some((endpoint, leader)) = &found.leader {
        let id = NodeId::from_u64(leader.node_id);
        output.either(
            || json!({ "needed": false, "leader": id.to_string() }),
            || format!("{}\nnode {id} at {endpoint} leads: the cluster recovers by itself, and nothing is to be decided", found.text()),
        )?;
        return Ok(Exit::Done);
    }
    let chosen = found.chosen()?;
    if !args.accept_loss {
        output.either(|| found.json(chosen, false), || found.explained(chosen))?;
        return Ok(Exit::Unavailable);
    }
    found.may_be_accepted(args.allow_missing)?;
    if !args.yes && !confirmed(&found, chosen)? {
        bail!("nothing was changed");
    }
    // Whoever was asked took their time: a member may be back, or have started again and forgotten more.
    if !look(&client).await.is_as(&found) {
        bail!(
            "not all members are as they were a moment ago, and nothing was changed: look with `cairn recover`, and decide \
             again"
        );
    }
    give_mandates(&client, &found, chosen).await?;
    let after = wait_for_leader(&client, chosen.node_id).await?;
    after.counts_loss_since(chosen)?;
    output.either(
        || after.json(chosen, true),
        || {
            format!(
                "{}\nnode {} leads; acknowledged writes that no member held are lost, and `cairn status` counts the loss\n{VOID}",
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
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for (endpoint, answer) in client.statuses().await {
        match answer {
            Ok(node) => answers.push((endpoint, node)),
            Err(reason) => silent.push((endpoint, reason.to_string())),
        }
    }
    Found::of(answers, &silent)
}

impl Found {
    fn of(mut answers: Vec<(String, NodeStatus)>, silent: &[(String, String)]) -> Found {
        answers.sort_by_key(|(_, node)| {
            std::cmp::Reverse((node.last_log_term, node.last_log_index, node.node_id))
        });
        // A node may be reached at two addresses, and its log may have grown between the answers.
        let mut seen = BTreeSet::new();
        answers.retain(|(_, node)| seen.insert(node.node_id));
        // One that is about to take a slot, or has lost it, has no say.
        let has_say = |node: &NodeStatus| node.standing != "joining" && node.standing != "retired";
        let members = || answers.iter().filter(|(_, node)| has_say(node));
        let leader = members().find(|(_, node)| node.role == "leader").cloned();
        let newest = members().max_by_key(|(_, node)| node.membership).cloned();
        let mut slots: BTreeMap<u16, BTreeSet<u64>> = BTreeMap::new();
        let mut missing = Vec::new();
        let known = newest.iter().flat_map(|(_, node)| &node.members);
        for voter in known.filter(|member| member.voter) {
            slots.entry(voter.slot).or_default().insert(voter.node_id);
            if !members().any(|(_, node)| node.node_id == voter.node_id) {
                missing.push(absence(voter, &answers, silent));
            }
        }
        let named = |endpoint: &str| {
            let mut known = newest.iter().flat_map(|(_, node)| &node.members);
            known.any(|member| member.voter && member.client_address == endpoint)
        };
        missing.extend(silent.iter().filter(|(endpoint, _)| !named(endpoint)).map(|(_, why)| why.clone()));
        let votes = |node: &NodeStatus| slots.values().any(|voters| voters.contains(&node.node_id));
        let nodes = members().filter(|(_, node)| votes(node)).cloned().collect();
        Found { nodes, leader, newest, slots, missing }
    }

    /// Slots of which every voter answered and is `such`: a majority of them is one in both halves of a configuration, since
    /// one slot at most has two voters.
    fn slots_with(&self, such: impl Fn(&NodeStatus) -> bool) -> usize {
        let is_such = |id: &u64| self.nodes.iter().any(|(_, node)| node.node_id == *id && such(node));
        self.slots.values().filter(|voters| voters.iter().all(is_such)).count()
    }

    /// The voter whose log reaches furthest, where a decision is needed.
    fn chosen(&self) -> anyhow::Result<&NodeStatus> {
        let Some((_, chosen)) = self.nodes.first() else {
            bail!("no voter answered; name more members with --endpoints: {}", self.missing.join("; "));
        };
        let remember = self.slots_with(|node| node.standing != Standing::Recovering.name());
        if remember > self.slots.len() / 2 {
            bail!(
                "{remember} of {} voters remember everything they acknowledged: they elect a leader by themselves once they \
                 reach one another; look at the network between them",
                self.slots.len()
            );
        }
        if let Some((endpoint, newer)) =
            self.newest.as_ref().filter(|(_, n)| n.membership > chosen.membership)
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
        Ok(chosen)
    }

    fn may_be_accepted(&self, allow_missing: bool) -> anyhow::Result<()> {
        let (answered, voters) = (self.slots_with(|_| true), self.slots.len());
        if answered <= voters / 2 {
            bail!("{answered} of {voters} voters answered; a majority must: {}", self.missing.join("; "));
        }
        if !self.missing.is_empty() && !allow_missing {
            return Err(UsageError(format!(
                "not all members can be reached, and one of them may hold writes that the others lost: start them, each with \
                 the data directory that it had, or add --allow-missing to give up what they alone hold ({})",
                self.missing.join("; ")
            ))
            .into());
        }
        Ok(())
    }

    /// Whether the same members answered, in the same runs, with the same one to lead.
    fn is_as(&self, before: &Found) -> bool {
        let first = |found: &Found| found.nodes.first().map(|(_, node)| node.node_id);
        let runs = |found: &Found| -> BTreeSet<(u64, (u64, u64))> {
            found.nodes.iter().map(|(_, node)| (node.node_id, node.run)).collect()
        };
        self.leader.is_none() && first(self) == first(before) && runs(self) == runs(before)
    }

    /// The loss is counted by the marks of the members that came back. One that votes, and is started again before it asks for
    /// its mark, comes back without knowing of the mandate.
    fn counts_loss_since(&self, chosen: &NodeStatus) -> anyhow::Result<()> {
        if self.nodes.iter().any(|(_, node)| node.last_loss_index > chosen.last_log_index) {
            return Ok(());
        }
        bail!(
            "node {} leads, but no loss was counted, as where a member was started again while it came back: acknowledged \
             writes may be lost all the same, and `cairn status` will not tell; make a note of it. {VOID}",
            NodeId::from_u64(chosen.node_id)
        )
    }

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

/// Why a voter counts as missing.
fn absence(voter: &Member, answers: &[(String, NodeStatus)], silent: &[(String, String)]) -> String {
    let address = &voter.client_address;
    let other = answers.iter().find(|(endpoint, _)| endpoint == address).map(|(_, node)| {
        format!("node {} answers there, which is {}", NodeId::from_u64(node.node_id), node.standing)
    });
    let failed = || silent.iter().find(|(endpoint, _)| endpoint == address).map(|(_, why)| why.clone());
    let why = other.or_else(failed).unwrap_or_else(|| "not asked; name it with --endpoints".into());
    format!("node {} at {address}: {why}", NodeId::from_u64(voter.node_id))
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

/// Gives every member that recovers its mandate, the chosen one last.
async fn give_mandates(client: &Client, found: &Found, chosen: &NodeStatus) -> anyhow::Result<()> {
    for (endpoint, node) in found.nodes.iter().rev() {
        if node.standing == Standing::Recovering.name() {
            let given = client.mandate(endpoint, chosen.node_id, chosen.run).await;
            given.with_context(|| format!("not every member took its mandate; {}", mandates_end()))?;
        }
    }
    Ok(())
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
