//! `cairn dev`: a cluster of three real server processes on this machine.
//!
//! ```text
//! .cairn/endpoints        what later commands read, so that they need no flags
//! .cairn/dev/lock         held while the cluster runs; holds the process id
//! .cairn/dev/node-N.toml  configuration of each node: remembers its ports
//! .cairn/dev/node-N/      its data
//! .cairn/dev/node-N.log   its log
//! ```
//!
//! What holds here: the servers end when this process does, however it ends. A data directory gets
//! its name when it is complete, so an interrupted one is created again.

mod cluster;
mod demo;
mod detach;
mod home;
mod layout;

use super::exit::Exit;
use super::output::Output;
use super::status::promises;
use cairn_client::Client;
use clap::{Args, Subcommand};
use cluster::Cluster;
use home::Home;
use std::path::PathBuf;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DevArgs {
    #[command(subcommand)]
    action: Option<Action>,

    /// Folder of the cluster's data. It is kept, and used again by the next `cairn dev`
    #[arg(long, default_value = layout::DEFAULT_DIR)]
    dir: PathBuf,

    /// Size of each new data directory in bytes
    #[arg(long, default_value = layout::DEFAULT_SIZE)]
    size: String,

    /// First port of a new cluster; 0: any free ports. Default: 7400, or any free ports if one of
    /// its nine is in use. An existing cluster keeps its ports
    #[arg(long)]
    port: Option<u16>,

    /// Use a temporary folder that is removed at the end
    #[arg(long, conflicts_with = "dir")]
    ephemeral: bool,

    /// Further configuration of new nodes
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Put a value and read it back as soon as the cluster is ready
    #[arg(long)]
    demo: bool,

    /// Stop as soon as the cluster is ready, or after the demonstration
    #[arg(long)]
    exit: bool,

    /// Run in the background; `cairn dev stop` ends it
    #[arg(long, conflicts_with_all = ["demo", "exit", "ephemeral"])]
    detach: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Stop a cluster that runs in the background
    Stop {
        /// Folder of the cluster's data
        #[arg(long, default_value = layout::DEFAULT_DIR)]
        dir: PathBuf,
    },
}

pub(crate) async fn run(args: DevArgs, output: &Output) -> anyhow::Result<Exit> {
    cairn_node::platform::check().map_err(cairn_node::Error::Platform)?;
    if let Some(Action::Stop { dir }) = args.action {
        return detach::stop(&dir, output).await;
    }
    if args.detach {
        return detach::start(&args, output).await;
    }
    let home = if args.ephemeral { Home::temporary()? } else { Home::open(&args.dir)? };
    let (nodes, _ports) = layout::prepare(&home.path, &args.size, args.port, &args.set).await?;
    let mut cluster = Cluster::start(nodes)?;
    let served = tokio::select! {
        biased;
        signal = cairn_node::termination() => signal.map_err(Into::into).map(|signal| {
            eprintln!("{signal} received, stopping");
            Exit::Done
        }),
        served = serve(&mut cluster, &home, &args, output) => served,
    };
    home.forget();
    cluster.stop().await;
    served
}

async fn serve(
    cluster: &mut Cluster,
    home: &Home,
    args: &DevArgs,
    output: &Output,
) -> anyhow::Result<Exit> {
    cluster.wait_ready().await?;
    let endpoints = cluster.endpoints();
    let answers = Client::connect(endpoints.clone()).await?.statuses().await;
    home.remember(&endpoints)?;
    output.either(
        || serde_json::json!({ "endpoints": endpoints, "directory": home.path }),
        || announcement(&endpoints, home, &promises(&answers).join("\n")),
    )?;
    if args.demo {
        demo::run(&endpoints, output).await?;
    }
    if args.exit {
        return Ok(Exit::Done);
    }
    if !output.is_json() {
        output.line("\nCtrl-C stops the cluster.")?;
    }
    cluster.watch().await;
    anyhow::bail!("every node ended; their logs are in {}", home.path.display())
}

fn announcement(endpoints: &[String], home: &Home, promises: &str) -> String {
    let endpoints = endpoints.join(",");
    let cairn = program();
    format!(
        "A cluster of three nodes is ready at {endpoints}\n\
         Data and logs: {}\n\
         Mode {promises}\n\n  \
         {cairn} put greeting hello\n  \
         {cairn} get greeting\n  \
         {cairn} status",
        home.path.display()
    )
}

/// How this program was called, so that a printed command can be copied even if `cairn` is not on
/// the path.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "cairn".into())
}
