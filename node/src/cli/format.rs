//! `cairn format`: creates a data directory.

use super::config::{durability_json, durability_text};
use super::exit::Exit;
use super::output::Output;
use super::server_options::ServerOptions;
use cairn_engine::Identity;
use cairn_node::config::{Source, format_size};
use cairn_node::{Durability, NodeConfig};
use cairn_raft::NodeId;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Args)]
pub(crate) struct FormatArgs {
    #[command(flatten)]
    server: ServerOptions,

    /// Size of the whole directory in bytes, such as 100GiB; it never changes afterwards
    #[arg(long)]
    size: Option<String>,
}

pub(crate) async fn run(args: FormatArgs, output: &Output) -> anyhow::Result<Exit> {
    cairn_node::platform::check().map_err(cairn_node::Error::Platform)?;
    let mut layers = args.server.layers()?;
    if let Some(size) = args.size {
        layers.set("storage.size", size, Source::Flag("--size".into()))?;
    }
    let config = NodeConfig::from_layers(&layers)?;
    let identity = format(&config).await?;
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

/// Creates the data directory of this configuration, with a progress bar on a terminal.
pub(crate) async fn format(config: &NodeConfig) -> Result<Identity, cairn_node::Error> {
    let style = ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    let bar = ProgressBar::new(config.storage.size_bytes);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(format!("formatting {}", config.data_directory.display()));
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    // The zeros are written without a pause, so the signal is awaited beside them.
    let waiting = tokio::spawn(async move {
        if cairn_node::termination().await.is_ok() {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let mut progress = |done: u64, total: u64| {
        bar.set_length(total);
        bar.set_position(done);
        if stopped.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let formatted = cairn_node::format(config, &mut progress).await;
    waiting.abort();
    bar.finish_and_clear();
    formatted
}
