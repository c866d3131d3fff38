//! `cairn members`.

use super::ConnectOptions;
use super::exit::Exit;
use super::output::{Output, table};
use cairn_client::Member;
use cairn_raft::NodeId;
use clap::Args;
use serde_json::{Value, json};

#[derive(Args)]
pub(crate) struct MembersArgs {
    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: MembersArgs, output: &Output) -> anyhow::Result<Exit> {
    let client = args.connect.client()?;
    let members = client.members().await?;
    if members.is_empty() {
        let answers = client.statuses().await;
        let why = answers.into_iter().find_map(|(_, answer)| answer.ok()?.not_ready);
        let tried = client.endpoints();
        let last_error = why.unwrap_or_else(|| "the cluster is not formed".into());
        return Err(cairn_client::Error::Unavailable { tried, last_error }.into());
    }
    output.either(|| members.iter().map(as_json).collect(), || as_text(&members))?;
    Ok(Exit::Done)
}

fn as_json(member: &Member) -> Value {
    json!({
        "node_id": NodeId::from_u64(member.node_id).to_string(),
        "slot": member.slot,
        "client_address": member.client_address,
        "peer_address": member.peer_address,
        "voter": member.voter,
    })
}

fn as_text(members: &[Member]) -> String {
    let row = |member: &Member| {
        vec![
            member.slot.to_string(),
            NodeId::from_u64(member.node_id).to_string(),
            member.client_address.clone(),
            member.peer_address.clone(),
            if member.voter { "yes" } else { "no" }.to_string(),
        ]
    };
    table(&["SLOT", "NODE", "CLIENTS", "MEMBERS", "VOTER"], members.iter().map(row))
}
