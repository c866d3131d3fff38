//! `cairn game-day`: faults on a running cluster that nobody needs, under a load of its own with a checker.
//!
//! ```text
//! checks     whether it may begin: the cluster is well, and nobody else uses it
//! runner     one fault after another
//! processes  what reaches the members: signals to processes here, or the operator's commands
//! shell      runs such a command
//! load       writes, and reads back what was acknowledged
//! told       what each key was told, and what is lost by that
//! report     what was expected, what happened, and what was lost
//! ```
//!
//! What holds here: what was done to a member is undone on every way out, also after a signal, and the keys
//! of the run are removed. A cluster that is seen to be used is left alone unless that was asked for.

mod checks;
mod fault;
mod gap;
mod load;
mod losses;
mod processes;
mod report;
mod runner;
mod shell;
mod told;

use super::ConnectOptions;
use super::confirm::confirm;
use super::connect::time;
use super::dev;
use super::exit::{Exit, StateError, UsageError};
use super::output::{Output, tell};
use super::signals::{end_with_terminal, termination};
use anyhow::Context;
use cairn_client::ReadFrom;
use cairn_node::config::parse_size;
use cairn_node::health::Report;
use clap::Args;
use fault::{FAULTS, Fault};
use load::Load;
use processes::{CommandArgs, Control, Processes};
use report::GameDay;
use runner::Runner;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep};

/// Between two looks at what other clients do.
const LOOK: Duration = Duration::from_secs(3);
/// How often that is tried while the leader changes.
const LOOKS: usize = 10;
/// How often a cluster that is not well yet is asked.
const POLL: Duration = Duration::from_millis(250);

#[derive(Args)]
pub(crate) struct GameDayArgs {
    /// Do not ask, though members are stopped and killed
    #[arg(long)]
    yes: bool,

    /// Folder of the cluster, which `cairn dev --restart` runs on this machine
    #[arg(long, default_value = dev::DEFAULT_DIR)]
    dir: PathBuf,

    #[command(flatten)]
    commands: CommandArgs,

    /// Only these faults, separated by commas
    #[arg(long, value_name = "FAULTS", value_enum, value_delimiter = ',')]
    only: Vec<Fault>,

    /// Let a member lose its disk, too: its data directory is replaced by an empty one, and removed in the
    /// end
    #[arg(long)]
    lose_a_disk: bool,

    /// Begin though other clients use the cluster
    #[arg(long)]
    with_traffic: bool,

    /// How long each fault lasts
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    lasts: Duration,

    /// How long the cluster may take to be well again after a fault
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    wait: Duration,

    /// Do not fill a cluster that has more free than this
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = parse_size)]
    fill_max: u64,

    /// Write the report to this file as well, as Markdown; it must not exist
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: GameDayArgs, output: &Output) -> anyhow::Result<Exit> {
    let question = "A game day stops, kills and pauses members of this cluster, and fills it. It is for a cluster that nobody needs. Go on?";
    if !args.yes && !confirm(question, "add --yes")? {
        return Err(UsageError("nothing was done".into()).into());
    }
    let processes = match args.commands.are_given() {
        true => Processes::Commands(args.commands.clone()),
        false => Processes::Dev(dev::members(&args.dir)?),
    };
    let mut runner = begin(&args, processes).await?;
    // Made now: a report that cannot be written is told before anything is done.
    let file = args.report.as_deref().map(create).transpose()?;
    let mut day = GameDay {
        cluster: runner.client.cluster().unwrap_or_default(),
        began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        trials: Vec::new(),
        trouble: None,
    };
    end_with_terminal()?;
    let signal = tokio::select! {
        biased;
        signal = termination() => Some(signal.unwrap_or("a signal")),
        () = runner.play(&mut day) => None,
    };
    if let Some(signal) = signal {
        tell(&format!("{signal} received; what was done is being undone"));
        day.add_trouble(&format!("{signal} was received, and the rest was not done"));
    }
    let prefix = runner.load.prefix().to_owned();
    let again = tokio::select! {
        biased;
        signal = termination() => Some(signal.unwrap_or("a signal")),
        () = runner.undo(&mut day) => None,
    };
    if let Some(signal) = again {
        day.add_trouble(&format!(
            "{signal} was received again: members may be down or paused, and keys left below {prefix}"
        ));
    }
    if let Some((file, path)) = file.zip(args.report.as_deref()) {
        write(file, &day.as_markdown())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    output.either(|| day.as_json(), || day.as_text())?;
    if day.is_passed() {
        return Ok(Exit::Done);
    }
    if output.is_json() {
        let why = "not all went as expected; what happened is on standard output";
        output.error(why, Exit::Failed as u8);
    }
    Ok(Exit::Failed)
}

/// What is needed for the faults, once it is known that they may be done.
async fn begin(args: &GameDayArgs, processes: Processes) -> anyhow::Result<Runner> {
    let client = args.connect.connected(1, ReadFrom::Leader).await?;
    let mut faults = FAULTS.to_vec();
    faults.retain(|fault| args.only.is_empty() || args.only.contains(fault));
    let load = Load::new(&client);
    let runner = Runner {
        client,
        control: Control::new(Processes::Dev(Vec::new())),
        load,
        faults,
        lasts: args.lasts,
        wait: args.wait,
        lose_a_disk: args.lose_a_disk,
        fill_max: args.fill_max,
    };
    let began = Instant::now();
    let report = loop {
        let report = Report::ask(|| runner.answers()).await;
        if checks::is_well(&report).is_ok() || began.elapsed() > args.connect.timeout() {
            break report;
        }
        sleep(POLL).await;
    };
    checks::is_well(&report)?;
    if let Processes::Dev(members) = &processes {
        let leader = runner::leader(&report.answers)
            .ok_or_else(|| StateError("no node says that it leads".to_owned()))?;
        checks::is_cluster_of(members, &runner::targets(&leader))?;
    }
    if !args.with_traffic {
        is_unused(&runner, &processes).await?;
    }
    Ok(Runner { control: Control::new(processes), ..runner })
}

/// Looks twice at what was done to the cluster.
async fn is_unused(runner: &Runner, processes: &Processes) -> anyhow::Result<()> {
    for _ in 0..LOOKS {
        let (before, asked) = (runner.answers().await, requests(processes).await);
        sleep(LOOK).await;
        let (after, now) = (runner.answers().await, requests(processes).await);
        // What one leader has written is not compared with what another one has.
        if !checks::have_one_leader(&before, &after) {
            continue;
        }
        let more = now.zip(asked).map(|(now, then)| now.saturating_sub(then));
        if more.is_none() && matches!(processes, Processes::Dev(_)) {
            tell(
                "not all members tell how many requests they answered: clients that only read are not noticed",
            );
        }
        checks::is_unused(&before, &after, more)?;
        return Ok(());
    }
    let why = "the leader changed, or did not answer, at each look, so it is not known whether other clients use this cluster; \
               wait until it keeps its leader, or add --with-traffic";
    Err(StateError(why.to_owned()).into())
}

/// How many requests of clients the members have answered; `None`: not all of them tell.
async fn requests(processes: &Processes) -> Option<u64> {
    let Processes::Dev(members) = processes else { return None };
    let mut sum = 0_u64;
    for member in members {
        sum = sum.saturating_add(member.requests().await?);
    }
    Some(sum)
}

fn create(path: &Path) -> Result<File, UsageError> {
    File::options().write(true).create_new(true).open(path).map_err(|error| {
        UsageError(format!(
            "--report {}: {error}; name a file that is not there yet",
            path.display()
        ))
    })
}

fn write(mut file: File, text: &str) -> std::io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
