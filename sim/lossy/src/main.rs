//! `cargo lossy`: power cuts and flipped bits under real `cairn` processes. Prints figures; fails
//! if anything was lost.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use cairn_lossy::cluster::Setup;
use cairn_lossy::disk::{isolate, missing};
use cairn_lossy::figures::Figures;
use cairn_lossy::flips;
use cairn_lossy::run::Plan;
use cairn_lossy::scenario::{self, Canary};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Real `cairn` processes on a disk that loses what was not synced.
#[derive(Debug, Parser)]
#[command(name = "cargo lossy")]
struct Arguments {
    /// Cut the power of one machine under load this many times
    #[arg(long, default_value_t = 0)]
    cuts: u64,
    /// Cut the power of all machines under load this many times
    #[arg(long, default_value_t = 0)]
    all_cuts: u64,
    /// Cut the power of all machines, one after another, under load this many times
    #[arg(long, default_value_t = 0)]
    rolling_cuts: u64,
    /// Cut the power of all machines while idle this many times
    #[arg(long, default_value_t = 0)]
    idle_cuts: u64,
    /// Cut the power of all machines on disks that lie about syncs this many times: a loss must be
    /// found
    #[arg(long, default_value_t = 0)]
    lies: u64,
    /// Cut the power of all machines in `replicated` mode this many times, hidden by an unchanged
    /// boot id: as with --lies
    #[arg(long, default_value_t = 0)]
    hidden_cuts: u64,
    /// Flip bits in every file of a machine under load this many times
    #[arg(long, default_value_t = 0)]
    flips: u64,
    /// The durability mode
    #[arg(long, default_value = "sync", value_parser = ["sync", "replicated", "device"])]
    mode: String,
    /// The seed of everything random, except what depends on time
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Clients that send requests at the same time
    #[arg(long, default_value_t = 12)]
    writers: u32,
    /// Bytes of each machine's data directory
    #[arg(long, default_value = "128MiB")]
    size: String,
    /// How long a sync of a disk takes on average, in microseconds
    #[arg(long, default_value_t = 2000)]
    sync_us: u64,
    /// A further line for each machine's configuration, such as 'storage.backend = "threads"'
    #[arg(long)]
    set: Vec<String>,
    /// The binary to test; by default it is built now from this source tree, with this program's
    /// profile
    #[arg(long, env = "CAIRN_BIN")]
    cairn: Option<PathBuf>,
    /// End with an error after this many seconds
    #[arg(long, default_value_t = 3600)]
    limit: u64,
    /// Keep the machines' folders
    #[arg(long)]
    keep: bool,
    /// Print one JSON object per scenario
    #[arg(long)]
    json: bool,
    /// Print what each round did
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    if let Some(missing) = missing() {
        anyhow::bail!("{missing}");
    }
    let cairn = match &arguments.cairn {
        Some(cairn) => std::path::absolute(cairn)?,
        None => build()?,
    };
    ensure!(cairn.is_file(), "{} does not exist", cairn.display());
    let setup = Setup {
        cairn,
        mode: arguments.mode.clone(),
        size: arguments.size.clone(),
        sync_time: Duration::from_micros(arguments.sync_us),
        more: arguments.set.join("\n"),
        keep: arguments.keep,
    };
    let plan = Plan {
        setup,
        seed: arguments.seed,
        writers: arguments.writers.max(1),
        verbose: arguments.verbose,
    };
    // Before any thread is created: all threads, and the servers, must see the mounts of this one.
    isolate()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let limit = Duration::from_secs(arguments.limit);
    runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            done = tokio::time::timeout(limit, scenarios(arguments, &plan)) => {
                done.with_context(|| format!("not done within {limit:?}"))?
            }
            _ = terminate.recv() => anyhow::bail!("SIGTERM received"),
            _ = interrupt.recv() => anyhow::bail!("SIGINT received"),
        }
    })
}

async fn scenarios(arguments: &Arguments, plan: &Plan) -> Result<bool> {
    let mut right = true;
    let mut show = |figures: Figures| -> Result<()> {
        right &= figures.wrong.is_empty();
        if arguments.json {
            println!("{}", serde_json::to_string(&figures)?);
        } else {
            print!("{figures}");
        }
        Ok(())
    };
    if arguments.cuts > 0 {
        show(scenario::one_machine(plan, arguments.cuts).await?)?;
    }
    if arguments.idle_cuts > 0 {
        show(scenario::all_idle(plan, arguments.idle_cuts).await?)?;
    }
    if arguments.rolling_cuts > 0 {
        show(scenario::one_after_another(plan, arguments.rolling_cuts).await?)?;
    }
    if arguments.all_cuts > 0 {
        show(scenario::all_under_load(plan, arguments.all_cuts).await?)?;
    }
    if arguments.lies > 0 {
        show(scenario::canary(plan, Canary::LyingDisks, arguments.lies).await?)?;
    }
    if arguments.hidden_cuts > 0 {
        show(scenario::canary(plan, Canary::HiddenCuts, arguments.hidden_cuts).await?)?;
    }
    if arguments.flips > 0 {
        show(flips::flipped_bits(plan, arguments.flips).await?)?;
    }
    Ok(right)
}

/// Builds `cairn` from this source tree, so that it is never an older one, in the profile of this
/// program. It builds for the whole workspace, so that a test of the workspace has built the same
/// binary already, with the same features.
fn build() -> Result<PathBuf> {
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("the workspace")?;
    let (flags, folder): (&[&str], _) =
        if cfg!(debug_assertions) { (&[], "debug") } else { (&["--release"], "release") };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--workspace", "--bin", "cairn", "--manifest-path"])
        .arg(workspace.join("Cargo.toml"))
        .args(flags)
        .status()
        .context("building cairn; or give one with --cairn")?;
    ensure!(status.success(), "cairn could not be built; or give one with --cairn");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace.join("target"), PathBuf::from);
    Ok(target.join(folder).join("cairn"))
}
