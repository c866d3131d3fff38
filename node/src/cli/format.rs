//! `cairn format`: creates a data directory.

use super::config::{durability_json, durability_text};
use super::exit::Exit;
use super::output::Output;
use super::server_options::ServerOptions;
use super::zeroing::{self, Estimate};
use cairn_engine::Identity;
use cairn_node::config::format_size;
use cairn_node::{Durability, NodeConfig};
use cairn_raft::NodeId;
use clap::Args;
use serde_json::json;

#[derive(Args)]
pub(crate) struct FormatArgs {
    #[command(flatten)]
    server: ServerOptions,

    /// Size of the whole directory in bytes, such as 100GiB; `cairn grow` enlarges it
    #[arg(long)]
    size: Option<String>,

    /// About the bytes of a value, such as 256: with small values more of the directory is for keys;
    /// without it, the configuration's storage.value_size
    #[arg(long)]
    value_size: Option<String>,
}

pub(crate) async fn run(args: FormatArgs, output: &Output) -> anyhow::Result<Exit> {
    cairn_node::platform::check().map_err(cairn_node::Error::Platform)?;
    let layers = args.server.layers_sized(args.size, args.value_size)?;
    let config = NodeConfig::from_layers(&layers)?;
    let identity = format(&config, &|estimate| estimate.note(output)).await?;
    let id = NodeId::new(identity.slot, identity.incarnation);
    let directory = config.data_directory.display().to_string();
    let bytes = config.storage.size_bytes;
    let durability = Durability::of(&config).map_err(|error| error.to_string());
    output.either(
        || {
            json!({ "directory": directory, "bytes": bytes, "cluster": identity.cluster, "slot": identity.slot,
                    "node_id": id.to_string(), "durability": durability_json(&durability) })
        },
        || {
            format!(
                "formatted {directory}: {} for node {id} of cluster {}\n{}",
                format_size(bytes),
                identity.cluster,
                durability_text(&durability)
            )
        },
    )?;
    Ok(Exit::Done)
}

/// Creates the data directory of this configuration, with a progress bar on a terminal. `say` gets
/// the time that it will take.
pub(crate) async fn format(
    config: &NodeConfig,
    say: &(dyn Fn(&Estimate) + Sync),
) -> Result<Identity, cairn_node::Error> {
    let message = format!("formatting {}", config.data_directory.display());
    zeroing::show(message, say, async |progress| cairn_node::files::format(config, progress).await)
        .await
}
