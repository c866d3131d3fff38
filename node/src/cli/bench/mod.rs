//! `cairn bench`: load on a running cluster; `cairn bench disk`: what a disk can do.

mod cluster;
#[cfg(feature = "experiments")]
mod disk;

use super::exit::Exit;
use super::output::Output;
use clap::{Args, Subcommand};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    other: Option<Other>,

    #[command(flatten)]
    cluster: cluster::ClusterArgs,
}

#[derive(Subcommand)]
enum Other {
    /// Measure what fsync and filesystem metadata cost in a directory, without a cluster
    #[cfg(feature = "experiments")]
    Disk(disk::DiskArgs),
    /// Remove the keys that runs left which were ended before they could
    Clean(cluster::CleanArgs),
    /// Part of `disk`, in a process of its own
    #[cfg(feature = "experiments")]
    #[command(hide = true, name = disk::CHILD)]
    DiskChild { arguments: Vec<String> },
}

impl BenchArgs {
    /// Whether they ask for JSON by themselves.
    pub(super) fn is_json(&self) -> bool {
        self.cluster.json
    }
}

pub(crate) async fn run(args: BenchArgs, output: &Output) -> anyhow::Result<Exit> {
    match args.other {
        None => cluster::run(args.cluster, output).await,
        #[cfg(feature = "experiments")]
        Some(Other::Disk(args)) => disk::run(args, output).await,
        Some(Other::Clean(args)) => cluster::clean(args, output).await,
        #[cfg(feature = "experiments")]
        Some(Other::DiskChild { arguments }) => {
            cairn_experiments::run_child(&arguments)?;
            Ok(Exit::Done)
        }
    }
}
