//! `cairn dev`: a cluster of three real server processes on this machine.
//!
//! ```text
//! .cairn/endpoints        what later commands read, so that they need no flags
//! .cairn/http             the nodes' HTTP ports, which `cairn top` reads
//! .cairn/dev/lock         held while the cluster runs; holds the process id
//! .cairn/dev/node-N.toml  configuration of each node: remembers its ports
//! .cairn/dev/node-N/      its data
//! .cairn/dev/node-N.log   its log
//! .cairn/dev/node-N.hold  with --restart: the process that holds the node down
//! ```
//!
//! What holds here: the servers end when this process does, however it ends. A data directory gets
//! its name when it is complete, so an interrupted one is created again. A first
//! start that fails leaves nothing but logs, so that the next one is a first start again.

mod cluster;
mod demo;
mod detach;
mod hold;
mod home;
mod layout;
mod members;
mod requests;

use super::exit::Exit;
use super::output::{Output, tell};
use super::signals;
use super::status::promises;
use cairn_client::Client;
use cairn_node::health::Answer;
use clap::{Args, Subcommand};
use cluster::Cluster;
use demo::Demo;
use home::Home;
pub(crate) use layout::DEFAULT_DIR;
pub(crate) use members::{DevMember, members};
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// A new leader hears of the other nodes' machines within a heartbeat.
const TELL_ATTEMPTS: u32 = 20;
const TELL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DevArgs {
    #[command(subcommand)]
    action: Option<Action>,

    /// Folder of the cluster's data. It is kept, and used again by the next `cairn dev`
    #[arg(long, default_value = layout::DEFAULT_DIR)]
    dir: PathBuf,

    /// Size of each data directory of a new cluster in bytes [default: 1GiB]. An existing cluster keeps
    /// its sizes
    #[arg(long)]
    size: Option<String>,

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

    /// Start a node again that ended, with an empty data directory if its own is gone
    #[arg(long, conflicts_with = "exit")]
    restart: bool,

    /// Run in the background; the command that stops it is printed
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
    // Heard from now on, so that nothing stays of what is made until then.
    let mut asked = pin!(signals::termination());
    if let Poll::Ready(signal) = futures::poll!(asked.as_mut()) {
        return stopping(signal);
    }
    signals::end_with_terminal()?;
    let home = if args.ephemeral { Home::temporary()? } else { Home::open(&args.dir)? };
    let prepared = layout::prepare(&home.path, args.size.as_deref(), args.port, &args.set).await;
    // It ended a format that was under way, too.
    if let Poll::Ready(signal) = futures::poll!(asked.as_mut()) {
        return stopping(signal);
    }
    let (nodes, _ports, mut created) = prepared?;
    let mut cluster = Cluster::start(nodes)?;
    let served = tokio::select! {
        biased;
        signal = asked.as_mut() => stopping(signal),
        served = serve(&mut cluster, &home, &args, output) => served,
    };
    if served.is_ok() || cluster.may_hold_writes() {
        created.keep();
    }
    home.forget();
    cluster.stop();
    if args.exit && !args.ephemeral && !output.is_json() && served.is_ok() {
        let again = stop_command(&args.dir).replacen(" dev stop", " dev", 1);
        output.line(&format!(
            "\nThe cluster has stopped and keeps its data; `{again}` starts it again."
        ))?;
    }
    served
}

fn stopping(signal: io::Result<&str>) -> anyhow::Result<Exit> {
    tell(&format!("{} received, stopping", signal?));
    Ok(Exit::Done)
}

async fn serve(
    cluster: &mut Cluster,
    home: &Home,
    args: &DevArgs,
    output: &Output,
) -> anyhow::Result<Exit> {
    cluster.wait_ready().await?;
    let endpoints = cluster.endpoints();
    let answers = told(&Client::connect(endpoints.clone()).await?).await;
    home.remember(&endpoints, &cluster.http_ports())?;
    let demo = match args.demo {
        true => Some(demo::run(&endpoints).await?),
        false => None,
    };
    let mode = promises(&answers);
    output.either(
        || {
            json!({ "endpoints": endpoints, "directory": home.path, "mode": mode,
                    "demo": demo.as_ref().map(|demo| &demo.json) })
        },
        || announcement(&endpoints, home, &mode.join("\n"), demo.as_ref(), args),
    )?;
    if args.exit {
        return Ok(Exit::Done);
    }
    if !output.is_json() {
        output.line("\nCtrl-C stops the cluster.")?;
    }
    if args.restart {
        cluster.keep_running().await;
    }
    cluster.watch().await;
    anyhow::bail!("every node ended; their logs are in {}", home.path.display())
}

/// The nodes' statuses, once the leader knows that all of them run on this machine.
async fn told(client: &Client) -> Vec<Answer> {
    let mut answers = Vec::new();
    for _ in 0..TELL_ATTEMPTS {
        answers = client.statuses().await;
        let exceptions = |(_, answer): &Answer| {
            let durability = answer.as_ref().ok().and_then(|node| node.durability.as_ref());
            durability.is_some_and(|durability| !durability.exceptions.is_empty())
        };
        if answers.iter().any(exceptions) {
            break;
        }
        tokio::time::sleep(TELL_INTERVAL).await;
    }
    answers
}

/// What a user needs to know of the cluster, and what there is to try as long as it runs.
fn announcement(
    endpoints: &[String],
    home: &Home,
    mode: &str,
    demo: Option<&Demo>,
    args: &DevArgs,
) -> String {
    let endpoints = endpoints.join(",");
    let removed = if args.ephemeral { " (removed at the end)" } else { "" };
    let mut parts = vec![format!(
        "A cluster of three nodes is ready at {endpoints}\nData and logs: {}{removed}\nMode {mode}",
        home.path.display()
    )];
    if !args.exit {
        let cairn = program();
        parts.push(format!(
            "  {cairn} put greeting hello\n  {cairn} get greeting\n  {cairn} status"
        ));
    }
    parts.extend(demo.map(|demo| demo.text.clone()));
    parts.join("\n\n")
}

/// The command that stops the cluster in this folder, from any folder.
fn stop_command(dir: &Path) -> String {
    let cairn = program();
    if dir == Path::new(layout::DEFAULT_DIR) {
        return format!("{cairn} dev stop");
    }
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    format!("{cairn} dev stop --dir {}", quoted(&dir.display().to_string()))
}

/// A word for the shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// How this program was called, so that a printed command can be copied even if `cairn` is not on
/// the path.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "cairn".into())
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_folder_with_a_space_is_one_word_for_the_shell() {
        assert_eq!(quoted("/tmp/a-b_c.d"), "/tmp/a-b_c.d");
        assert_eq!(quoted("/tmp/it's here"), r"'/tmp/it'\''s here'");
    }
}
