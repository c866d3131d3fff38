//! `cairn members`: who belongs to the cluster, and changes of that.

mod change;
mod removal;
mod view;

use super::ConnectOptions;
use super::exit::{Exit, UsageError};
use super::output::{Output, table};
use cairn_client::{Member, MemberChange};
use cairn_raft::NodeId;
use change::ChangeArgs;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
pub(super) use view::ClusterView;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MembersArgs {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    connect: ConnectOptions,
}

#[derive(Subcommand)]
enum Action {
    /// Show the members: who votes, who leads, and the state of each; the same as `cairn members`
    List {
        #[command(flatten)]
        connect: ConnectOptions,
    },
    /// Make the node of a slot that asks to join a learner, and a voter once it has caught up
    Add {
        /// Slot of the node, as its configuration says
        #[arg(value_parser = slot())]
        slot: u16,

        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Let the member of a slot leave; its data directory is refused from then on. Asks first
    Remove {
        /// Slot of the member
        #[arg(value_parser = slot())]
        slot: u16,

        /// Do not ask
        #[arg(long)]
        yes: bool,

        /// If no member has the slot, that counts as done, and is no error
        #[arg(long)]
        if_member: bool,

        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Let the node of a slot that asks to join take over from the slot's member, which is alive
    Replace {
        /// Slot of both
        #[arg(value_parser = slot())]
        slot: u16,

        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Make the learner of a slot a voter now
    Promote {
        /// Slot of the learner
        #[arg(value_parser = slot())]
        slot: u16,

        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Tell the cluster where a member is that it does not find by itself
    Move {
        /// Slot of the member
        #[arg(value_parser = slot())]
        slot: u16,

        /// Its address for members, host:port (`listen.peer`); it must answer there
        peer_address: String,

        #[command(flatten)]
        change: ChangeArgs,
    },
}

/// Slots are from 1.
pub(super) fn slot() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..)
}

pub(crate) async fn run(args: MembersArgs, output: &Output) -> anyhow::Result<Exit> {
    match args.action {
        None => list(&args.connect, output).await,
        Some(Action::List { connect }) => list(&connect, output).await,
        Some(Action::Add { slot, change }) => {
            change::run(MemberChange::Add(slot), &change, output).await
        }
        Some(Action::Remove { slot, yes, if_member, change }) => {
            let found = ClusterView::ask(&change.client()?).await?;
            match found.member(slot) {
                Some(member) if !yes => removal::confirm(&found, member)?,
                // A caller that does not wait repeats the command until it is done.
                None if change.waits() && !if_member => return Err(found.nobody(slot).into()),
                _ => {}
            }
            change::run(MemberChange::Remove(slot), &change, output).await
        }
        Some(Action::Replace { slot, change }) => {
            let found = ClusterView::ask(&change.client()?).await?;
            let old = found.member(slot).filter(|member| member.voter);
            let nobody =
                || UsageError(format!("slot {slot} has no voter; `cairn members add {slot}`"));
            let old = old.ok_or_else(nobody)?.node_id;
            change::run(MemberChange::Replace(old), &change, output).await
        }
        Some(Action::Promote { slot, change }) => {
            change::run(MemberChange::Promote(slot), &change, output).await
        }
        Some(Action::Move { slot, peer_address, change }) => {
            change::run(MemberChange::Move(slot, peer_address), &change, output).await
        }
    }
}

async fn list(connect: &ConnectOptions, output: &Output) -> anyhow::Result<Exit> {
    let found = ClusterView::ask(&connect.client()?).await?;
    let members = || found.members.iter();
    output.either(
        || members().map(|member| as_json(&found, member)).collect(),
        || {
            let head = ["SLOT", "NODE", "CLIENTS", "MEMBERS", "VOTER", "ROLE", "STATE"];
            table(&head, members().map(|member| row(&found, member)))
        },
    )?;
    Ok(Exit::Done)
}

fn as_json(found: &ClusterView, member: &Member) -> Value {
    let node = found.status(member);
    json!({
        "node_id": NodeId::from_u64(member.node_id).to_string(),
        "slot": member.slot,
        "client_address": member.client_address,
        "peer_address": member.peer_address,
        "voter": member.voter,
        "leader": found.leads(member),
        "role": node.map(|node| node.role),
        "member_state": node.map(|node| node.member_state),
    })
}

fn row(found: &ClusterView, member: &Member) -> Vec<String> {
    let role = match found.status(member) {
        Some(node) => node.role.to_string(),
        None if found.leads(member) => "leader".into(),
        None if !member.voter => "learner".into(),
        None => "?".into(),
    };
    vec![
        member.slot.to_string(),
        NodeId::from_u64(member.node_id).to_string(),
        member.client_address.clone(),
        member.peer_address.clone(),
        if member.voter { "yes" } else { "no" }.to_string(),
        role,
        found.state(member).to_string(),
    ]
}
