//! `cairn mode`: the least that an acknowledgement means in the cluster, and what it means at each
//! member.

use super::ConnectOptions;
use super::exit::Exit;
use super::members::ClusterView;
use super::output::{Output, table_with_notes};
use super::status::promises;
use cairn_client::{ModeStatus, NodeStatus};
use cairn_raft::NodeId;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Args)]
pub(crate) struct ModeArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show the cluster's mode, and what each member's acknowledgements mean now
    Show {
        #[command(flatten)]
        connect: ConnectOptions,
    },
    /// Set the least that an acknowledgement means from now on. A member whose machine allows less
    /// stays stricter
    Set {
        /// What an acknowledgement means
        #[arg(value_enum)]
        mode: Mode,

        #[command(flatten)]
        connect: ConnectOptions,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Mode {
    /// Synced on a majority
    Sync,
    /// On the devices of a majority, which keep completed writes through a power cut
    Device,
    /// On the devices of a majority, synced in the background; needs three voters
    Replicated,
}

impl From<Mode> for cairn_client::Mode {
    fn from(mode: Mode) -> cairn_client::Mode {
        match mode {
            Mode::Sync => cairn_client::Mode::Sync,
            Mode::Device => cairn_client::Mode::Device,
            Mode::Replicated => cairn_client::Mode::Replicated,
        }
    }
}

pub(crate) async fn run(args: ModeArgs, output: &Output) -> anyhow::Result<Exit> {
    match args.action {
        Action::Show { connect } => {
            let found = ClusterView::ask(&connect.client()?).await?;
            output.either(|| as_json(&found), || as_text(&found))?;
        }
        Action::Set { mode, connect } => {
            let (client, mode) = (connect.client()?, mode.into());
            client.operator().set_mode(mode).await?;
            // Only for the sentences: the mode is set, whether this answers or not.
            let found = ClusterView::ask(&client).await.ok();
            let stricter: Vec<u16> = found.iter().flat_map(|found| stricter(found, mode)).collect();
            output.either(
                || json!({ "mode": mode, "stricter_slots": stricter }),
                || {
                    let set = format!("the cluster's mode is {mode}");
                    let notes = stricter.iter().map(|slot| {
                        format!("slot {slot} stays stricter: its machine does not allow less; `cairn mode show`")
                    });
                    std::iter::once(set).chain(notes).collect::<Vec<_>>().join("\n")
                },
            )?;
        }
    }
    Ok(Exit::Done)
}

/// The nodes with their modes, by slot.
fn nodes(found: &ClusterView) -> Vec<(&NodeStatus, &ModeStatus)> {
    let modes = found.nodes().filter_map(|node| Some((node, node.modes.as_ref()?)));
    let mut modes: Vec<_> = modes.collect();
    modes.sort_by_key(|(node, _)| (node.slot, node.node_id));
    modes
}

/// The slots whose acknowledgements mean more than the cluster's mode.
fn stricter(found: &ClusterView, mode: cairn_client::Mode) -> Vec<u16> {
    // A member that has not applied the new mode yet is not stricter by its machine.
    let nodes = nodes(found).into_iter();
    let applied = |modes: &ModeStatus| modes.cluster == Some(mode);
    let stricter = nodes.filter(|(_, modes)| applied(modes) && modes.effective != mode);
    stricter.map(|(node, _)| node.slot).collect()
}

/// The cluster's mode, as the node knows it that has applied most.
fn cluster(found: &ClusterView) -> Option<cairn_client::Mode> {
    let newest = nodes(found).into_iter().max_by_key(|(node, _)| node.applied_index);
    newest.and_then(|(_, modes)| modes.cluster)
}

fn as_json(found: &ClusterView) -> Value {
    let one = |(node, modes): &(&NodeStatus, &ModeStatus)| {
        json!({
            "slot": node.slot,
            "node_id": NodeId::from_u64(node.node_id).to_string(),
            "own": modes.own,
            "effective": modes.effective,
        })
    };
    json!({
        "cluster": cluster(found),
        "nodes": nodes(found).iter().map(one).collect::<Value>(),
    })
}

fn as_text(found: &ClusterView) -> String {
    let row = |(node, modes): (&NodeStatus, &ModeStatus)| {
        vec![
            node.slot.to_string(),
            NodeId::from_u64(node.node_id).to_string(),
            modes.own.to_string(),
            modes.effective.to_string(),
        ]
    };
    let first = match cluster(found) {
        Some(mode) => format!("the cluster's mode is {mode}"),
        None => "the cluster has no mode yet: each member goes by its own".into(),
    };
    let silent = found.answers.iter().filter_map(|(endpoint, answer)| {
        answer.as_ref().err().map(|reason| format!("{endpoint}: {reason}"))
    });
    let notes = promises(&found.answers).into_iter().chain(silent);
    let head = ["SLOT", "NODE", "ITS MACHINE ALLOWS", "ACKNOWLEDGES"];
    format!(
        "{first}\n{}",
        table_with_notes(&head, nodes(found).into_iter().map(row).collect(), notes)
    )
}
