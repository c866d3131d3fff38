//! `cairn grow`: enlarges the data directory of a stopped node.

use super::exit::{Exit, UsageError};
use super::output::Output;
use super::server_options::ServerOptions;
use super::zeroing;
use cairn_node::config::{Source, format_size};
use cairn_node::{NodeConfig, files};
use clap::Args;
use serde_json::json;

#[derive(Args)]
pub(crate) struct GrowArgs {
    #[command(flatten)]
    server: ServerOptions,

    /// New size of the whole directory in bytes, such as 200GiB; without it, the configuration's
    /// storage.size
    #[arg(long)]
    size: Option<String>,

    /// About the bytes of a value, such as 256: with small values more of the directory is for keys;
    /// without it, the configuration's storage.value_size
    #[arg(long)]
    value_size: Option<String>,
}

pub(crate) async fn run(args: GrowArgs, output: &Output) -> anyhow::Result<Exit> {
    cairn_node::platform::check().map_err(cairn_node::Error::Platform)?;
    let layers = args.server.layers_sized(args.size, args.value_size)?;
    let given = layers
        .settings()
        .into_iter()
        .any(|setting| setting.key == "storage.size" && setting.source != Source::Default);
    if !given {
        let reason = "the new size is missing: give --size, or set storage.size".to_owned();
        return Err(UsageError(reason).into());
    }
    let config = NodeConfig::from_layers(&layers)?;
    let directory = config.data_directory.display().to_string();
    let say = |estimate: &zeroing::Estimate| estimate.note(output);
    let grow = async |progress: files::Progress<'_>| files::grow(&config, progress).await;
    let (from, to) = zeroing::show(format!("growing {directory}"), &say, grow).await?;
    let asked = format_size(config.storage.size_bytes);
    output.either(
        || {
            let sizes = |geometry: cairn_engine::Geometry| {
                json!({ "bytes": geometry.total_bytes(), "data_bytes": geometry.data_bytes,
                        "checkpoint_bytes": geometry.checkpoint_bytes })
            };
            json!({ "directory": directory, "grown": from != to, "from": sizes(from), "to": sizes(to) })
        },
        || match from == to {
            true => format!(
                "{directory} already has the size {asked}; nothing was changed. More space for keys takes a larger --size: \
                 the data area never shrinks"
            ),
            false => format!(
                "grew {directory} to {asked}: {} instead of {} hold data, and each checkpoint area, for keys, has {} \
                 instead of {}. Set storage.size and storage.value_size to the same if the configuration says something else",
                format_size(to.data_bytes),
                format_size(from.data_bytes),
                format_size(to.checkpoint_bytes),
                format_size(from.checkpoint_bytes)
            ),
        },
    )?;
    Ok(Exit::Done)
}
