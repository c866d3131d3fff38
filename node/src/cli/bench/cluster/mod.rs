//! `cairn bench` without a subcommand: puts load on a running cluster and measures it.
//!
//! Each of `--clients` keeps one request under way, so rate × mean latency = clients (Little's
//! law). The result shows that product. If it is far from the number of clients, the machine that
//! ran this command was the bottleneck.

mod load;
mod report;

use super::super::ConnectOptions;
use super::super::exit::{Exit, UsageError};
use super::super::output::Output;
use cairn_node::config::parse_size;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use load::{Bound, Plan};
use std::time::Duration;

/// No configuration allows longer values.
const MAX_SIZE: usize = 64 << 20;

#[derive(Args)]
pub(super) struct ClusterArgs {
    /// Requests under way at any time
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,

    /// Connections to each node; the clients share them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,

    /// Bytes of each value
    #[arg(long, default_value = "4KiB", value_parser = parse_size)]
    size: u64,

    /// Share of puts, in hundredths; the rest are linearizable gets
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100))]
    mix: u32,

    /// Different keys, each 16 random bytes
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,

    /// How long to run
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration, conflicts_with = "count")]
    seconds: Duration,

    /// Total requests, instead of a time
    #[arg(long)]
    count: Option<u64>,

    /// Read from any node, which may be out of date
    #[arg(long)]
    stale: bool,

    /// Seed of the random keys and values
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Print JSON; the same as -o json
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(super) async fn run(args: ClusterArgs, output: &Output) -> anyhow::Result<Exit> {
    let too_large = || {
        UsageError(format!(
            "--size {}: no cluster accepts values above {MAX_SIZE} bytes",
            args.size
        ))
    };
    let size =
        usize::try_from(args.size).ok().filter(|size| *size <= MAX_SIZE).ok_or_else(too_large)?;
    let plan = Plan {
        clients: args.clients,
        size,
        puts_percent: args.mix,
        keys: args.keys,
        bound: args.count.map_or(Bound::Time(args.seconds), Bound::Count),
        stale: args.stale,
        seed: args.seed,
    };
    // A client keeps at most 512 writes under way.
    let handles = args.clients.div_ceil(256).max(1);
    let mut clients = Vec::new();
    for _ in 0..handles {
        let connections = usize::try_from(args.connections.div_ceil(handles))?;
        clients.push(args.connect.connected(connections).await?);
    }
    let bar = progress_bar(plan.bound);
    let measured = load::run(&plan, &clients, &bar).await;
    bar.finish_and_clear();
    let measured = measured?;
    output.either(|| report::as_json(&plan, &measured), || report::as_text(&plan, &measured))?;
    if !measured.failed() {
        return Ok(Exit::Done);
    }
    if output.is_json() {
        output.error("requests failed; `errors` on standard output has why", Exit::Failed as u8);
    }
    Ok(Exit::Failed)
}

fn progress_bar(bound: Bound) -> ProgressBar {
    let (length, template) = match bound {
        Bound::Time(time) => {
            (u64::try_from(time.as_millis()).unwrap_or(u64::MAX), "{wide_bar} {elapsed}  {msg}")
        }
        Bound::Count(count) => (count, "{wide_bar} {pos}/{len}  {msg}"),
    };
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
