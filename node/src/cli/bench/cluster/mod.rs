//! `cairn bench` without a subcommand: puts load on a running cluster and measures it.
//!
//! Each of `--clients` keeps one request under way, so rate × mean latency = clients (Little's
//! law). The result shows that product. If it is far from the number of clients, the machine that
//! ran this command was the bottleneck.
//!
//! What holds here: a run touches no key but those under a prefix of its own, which no other run has,
//! and removes them at the end, also after a signal. Where the cluster holds other keys it asks first.

mod keys;
mod load;
mod report;

use super::super::ConnectOptions;
use super::super::confirm::confirm;
use super::super::connect::time;
use super::super::exit::{Exit, UsageError};
use super::super::output::{Output, millis, tell};
use cairn_client::{Client, ReadFrom};
use cairn_node::config::parse_size;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use keys::Keys;
use load::{Bound, Plan};
use serde_json::json;
use std::sync::Arc;
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

    /// Share of puts, in hundredths; the rest are linearizable gets of keys that are put before, which
    /// is not measured
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100))]
    mix: u32,

    /// Different keys, under a prefix that no other run has. All are put once before one is put again
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,

    /// How long to run
    #[arg(long, default_value = "10s", value_parser = time, conflicts_with = "count")]
    seconds: Duration,

    /// Total requests, instead of a time
    #[arg(long)]
    count: Option<u64>,

    /// Read from any node, which may be out of date
    #[arg(long)]
    stale: bool,

    /// Linearizable reads from the member with the least to do, instead of from the leader
    #[arg(long, conflicts_with = "stale")]
    read_from_members: bool,

    /// Seed of the random values, and of the order of requests
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Do not ask, though the cluster holds other keys
    #[arg(long)]
    yes: bool,

    /// Print JSON; the same as -o json
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Options of `cairn bench clean`.
#[derive(Args)]
pub(super) struct CleanArgs {
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Removes the keys of all runs, those that are going on too.
pub(super) async fn clean(args: CleanArgs, output: &Output) -> anyhow::Result<Exit> {
    let removed =
        keys::remove_all(&args.connect.connected(2, ReadFrom::Leader).await?, keys::PREFIX).await?;
    output.either(|| json!({ "removed": removed }), || format!("removed {removed} keys"))?;
    Ok(Exit::Done)
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
        bound: args.count.map_or(Bound::Time(args.seconds), Bound::Count),
        stale: args.stale,
        seed: args.seed,
    };
    // A client keeps at most 512 writes under way.
    let handles = args.clients.div_ceil(256).max(1);
    let mut clients = Vec::new();
    let read_from = if args.read_from_members { ReadFrom::Members } else { ReadFrom::Leader };
    for _ in 0..handles {
        let connections = usize::try_from(args.connections.div_ceil(handles))?;
        clients.push(args.connect.connected(connections, read_from).await?);
    }
    let Some(first) = clients.first() else {
        return Err(UsageError("--clients: expected at least one".into()).into());
    };
    if !args.yes && keys::holds_others(first).await? {
        let question = format!(
            "The cluster holds other keys. The load slows their users down, and its keys, under {}, take space until they are \
             removed at the end. Go on?",
            keys::PREFIX
        );
        if !confirm(&question, "add --yes")? {
            return Err(UsageError("nothing was measured".into()).into());
        }
    }
    let keys = Arc::new(Keys::new(args.keys));
    let ran = tokio::select! {
        biased;
        signal = crate::cli::signals::termination() => signal.map(Err)?,
        measured = measure(&plan, &keys, &clients) => Ok(measured),
    };
    let removed = remove(&keys, first, ran.is_err()).await;
    let measured = match ran {
        Ok(measured) => measured?,
        Err(signal) => {
            removed?;
            anyhow::bail!("{signal} received: the run was ended, and its keys are removed");
        }
    };
    output.either(
        || report::as_json(&plan, &keys, &measured),
        || report::as_text(&plan, &keys, &measured),
    )?;
    removed?;
    if !measured.failed() {
        return Ok(Exit::Done);
    }
    if output.is_json() {
        output.error("requests failed; `errors` on standard output has why", Exit::Failed as u8);
    }
    Ok(Exit::Failed)
}

/// Puts the keys that gets will find, and runs the plan.
async fn measure(
    plan: &Plan,
    keys: &Arc<Keys>,
    clients: &[Client],
) -> anyhow::Result<load::Measured> {
    if plan.puts_percent < 100 {
        load::fill(plan, keys, clients).await?;
    }
    let bar = progress_bar(plan.bound);
    let measured = load::run(plan, keys, clients, &bar).await;
    bar.finish_and_clear();
    measured
}

/// Removes the keys of the run. A signal ends that, with the way out.
async fn remove(keys: &Keys, client: &Client, ended: bool) -> anyhow::Result<()> {
    if ended {
        tell("ending; the keys of this run are being removed");
    }
    let way_out = "`cairn bench clean` removes the keys that are left";
    tokio::select! {
        biased;
        signal = crate::cli::signals::termination() => anyhow::bail!("{} received: {way_out}", signal?),
        removed = keys::remove_all(client, keys.prefix()) => {
            removed.map(drop).map_err(|error| error.context(way_out))
        }
    }
}

fn progress_bar(bound: Bound) -> ProgressBar {
    let (length, template) = match bound {
        Bound::Time(time) => (millis(time), "{wide_bar} {elapsed}  {msg}"),
        Bound::Count(count) => (count, "{wide_bar} {pos}/{len}  {msg}"),
    };
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
