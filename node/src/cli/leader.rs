//! `cairn leader`: who leads, and who should.

use super::ConnectOptions;
use super::exit::Exit;
use super::members::{ClusterView, slot};
use super::output::{Output, millis};
use cairn_client::{Client, Error, NodeStatus};
use cairn_raft::NodeId;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often the members are asked who leads.
const POLL: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct LeaderArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show who leads, and which members are kept from leading
    Show {
        #[command(flatten)]
        connect: ConnectOptions,
    },
    /// Let another member lead
    Move {
        /// Slot of the member that should lead; without it, the voter that can take over soonest
        #[arg(value_parser = slot())]
        slot: Option<u16>,

        #[command(flatten)]
        connect: ConnectOptions,
    },
    /// Let a member give leadership away and not campaign for a while, or until it restarts
    Drain {
        /// Slot of the member
        #[arg(value_parser = slot())]
        slot: u16,

        /// For how long [default: 10m]
        #[arg(long = "for", value_name = "TIME", default_value = "10m")]
        #[arg(value_parser = super::connect::time, hide_default_value = true)]
        time: Duration,

        /// Let it lead again
        #[arg(long, conflicts_with = "time")]
        end: bool,

        #[command(flatten)]
        connect: ConnectOptions,
    },
}

pub(crate) async fn run(args: LeaderArgs, output: &Output) -> anyhow::Result<Exit> {
    match args.action {
        Action::Show { connect } => show(&connect, output).await,
        Action::Move { slot, connect } => {
            let leader = connect.client()?.operator().move_leader(slot).await?;
            let id = NodeId::from_u64(leader.node_id);
            output.either(
                || {
                    json!({ "leader": {
                        "node_id": id.to_string(),
                        "slot": id.slot(),
                        "client_address": leader.client_address,
                    } })
                },
                || format!("slot {} leads: node {id} at {}", id.slot(), leader.client_address),
            )?;
            Ok(Exit::Done)
        }
        Action::Drain { slot, time, end, connect } => {
            let time = if end { Duration::ZERO } else { time };
            drain(slot, time, &connect, output).await
        }
    }
}

async fn show(connect: &ConnectOptions, output: &Output) -> anyhow::Result<Exit> {
    let client = connect.client()?;
    let found = ClusterView::ask(&client).await?;
    let Some(leader) = found.leader() else {
        let tried = client.endpoints();
        // A node that knows why nobody leads says more.
        return Err(match found.nodes().find_map(|node| node.not_ready.clone()) {
            Some(last_error) => Error::Unavailable { tried, last_error, source: None },
            None => Error::NoLeader { tried },
        }
        .into());
    };
    let drained = || found.nodes().filter_map(|node| Some((node.slot, node.drained?)));
    output.either(
        || {
            let one = |(slot, left): (u16, Duration)| json!({ "slot": slot, "ms": millis(left) });
            json!({ "leader": as_json(leader), "term": leader.term, "drained": drained().map(one).collect::<Value>() })
        },
        || {
            let notes = drained().map(|(slot, left)| {
                format!("slot {slot} does not campaign for {}", seconds(left))
            });
            let first = format!("{} in term {}", as_text(leader), leader.term);
            std::iter::once(first).chain(notes).collect::<Vec<_>>().join("\n")
        },
    )?;
    Ok(Exit::Done)
}

/// Drains the member of this slot, and waits until it does not lead.
async fn drain(
    slot: u16,
    time: Duration,
    connect: &ConnectOptions,
    output: &Output,
) -> anyhow::Result<Exit> {
    let client = connect.client()?;
    let found = ClusterView::ask(&client).await?;
    let Some(member) = found.member(slot) else {
        return Err(found.nobody(slot).into());
    };
    client.operator().drain(&member.client_address, time).await?;
    let leader = match time.is_zero() {
        true => found.leader().cloned(),
        false => Some(other_leader(&client, slot, connect.timeout()).await?),
    };
    output.either(
        || json!({ "slot": slot, "drained_ms": millis(time), "leader": leader.as_ref().map(as_json) }),
        || match &leader {
            Some(leader) if !time.is_zero() => format!(
                "slot {slot} does not campaign for {}, or until it restarts; {}",
                seconds(time),
                as_text(leader)
            ),
            _ => format!("slot {slot} may lead again"),
        },
    )?;
    Ok(Exit::Done)
}

/// Waits until a member of another slot leads.
async fn other_leader(client: &Client, slot: u16, limit: Duration) -> anyhow::Result<NodeStatus> {
    let began = Instant::now();
    loop {
        let found = ClusterView::ask(client).await?;
        if let Some(leader) = found.leader().filter(|leader| leader.slot != slot) {
            return Ok(leader.clone());
        }
        if began.elapsed() + POLL > limit {
            let last_error = format!(
                "slot {slot} gives leadership away, and nobody else leads yet; `cairn leader show` says when"
            );
            return Err(Error::DeadlineExceeded { last_error, source: None }.into());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Where clients reach this node, as its own list of members says.
fn address(node: &NodeStatus) -> &str {
    let own = node.members.iter().find(|member| member.node_id == node.node_id);
    own.map_or("", |member| member.client_address.as_str())
}

fn as_json(node: &NodeStatus) -> Value {
    json!({
        "node_id": NodeId::from_u64(node.node_id).to_string(),
        "slot": node.slot,
        "client_address": address(node),
    })
}

fn as_text(node: &NodeStatus) -> String {
    let id = NodeId::from_u64(node.node_id);
    format!("slot {} leads: node {id} at {}", node.slot, address(node))
}

fn seconds(time: Duration) -> String {
    match Duration::from_secs(time.as_secs()) {
        Duration::ZERO => "less than a second".into(),
        whole => humantime::format_duration(whole).to_string(),
    }
}
