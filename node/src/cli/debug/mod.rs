//! `cairn debug bundle`: one file with what explains a fault, for whoever is asked for help.
//!
//! ```text
//!  collect  the parts, from the cluster and this machine
//!  tail     the end of what is long
//!  redact   takes secrets out of them
//!  parts    their bounds, and the list of them
//!  archive  writes the file
//! ```
//!
//! What holds here: no key and no value is asked for. What is in the file is listed before it is written.
//! Nothing is changed but that file.

mod archive;
mod collect;
mod parts;
mod redact;
mod tail;

use super::ConnectOptions;
use super::confirm::confirm;
use super::connect::time;
use super::exit::{Exit, UsageError, in_full};
use super::http::address;
use super::output::Output;
use super::server_options::ServerOptions;
use super::signals::termination;
use anyhow::Context;
use cairn_node::NodeConfig;
use cairn_node::config::Layers;
use clap::{Args, Subcommand};
use collect::{Wanted, collect};
use parts::{Part, Parts, listing};
use redact::Redactor;
use serde_json::json;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The longest time between the metrics.
const LONGEST_TIME: Duration = Duration::from_secs(600);

#[derive(Args)]
pub(crate) struct DebugArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Write a file with status, health, metrics, log, configuration and facts of this machine, without
    /// keys, values and secrets
    Bundle(BundleArgs),
}

#[derive(Args)]
struct BundleArgs {
    /// The file to write, a .tar.zst, readable by its owner alone [default: cairn-debug-SECONDS.tar.zst]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// Time between the metrics at the begin and those at the end
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    seconds: Duration,

    /// `listen.http` of members, host:port each, separated by commas. Default: that of --config
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', value_parser = address)]
    http: Vec<String>,

    /// The server's configuration on this machine. Its client and HTTP port are asked, with its certificates, where
    /// no others are given
    #[arg(short, long, env = "CAIRN_CONFIG")]
    config: Option<PathBuf>,

    /// Also look into the data directory of --config, while its node does not run: a node that starts
    /// meanwhile is refused
    #[arg(long, requires = "config")]
    inspect: bool,

    /// File with the server's log, in place of the journal
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// The unit of the server, whose journal is taken
    #[arg(long, default_value = "cairn.service", conflicts_with = "log")]
    unit: String,

    /// Write the file without asking
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: DebugArgs, output: &Output) -> anyhow::Result<Exit> {
    let Action::Bundle(args) = args.action;
    bundle(args, output).await
}

async fn bundle(args: BundleArgs, output: &Output) -> anyhow::Result<Exit> {
    let path = args.to.clone().unwrap_or_else(default_file);
    let shown = path.display().to_string();
    if std::fs::symlink_metadata(&path).is_ok() {
        return Err(UsageError(format!("{shown} exists; --to names another file")).into());
    }
    // Nobody should wait for what cannot be confirmed then.
    if !args.yes && !io::stdin().is_terminal() {
        let why = "standard input is not a terminal, so nobody can confirm what the file holds: --yes writes it";
        return Err(UsageError(why.into()).into());
    }
    let redactor = Redactor::new(args.connect.token()?, std::env::vars_os());
    let (wanted, yes) = (wanted(&args), args.yes);
    let mut parts = Parts::new(redactor);
    tokio::select! {
        biased;
        signal = termination() => anyhow::bail!("{} received: no file was written", signal?),
        () = collect(&wanted, &mut parts) => {}
    }
    let parts = parts.finish();
    let list = listing(&parts);
    // Who is asked must have seen it.
    if !output.is_json() || !yes {
        super::output::tell(&format!("{shown} will hold:\n{list}"));
    }
    if !yes && !confirmed(format!("Write {shown}?")).await? {
        return Err(UsageError("not confirmed: no file was written".into()).into());
    }
    let bytes = write(path, parts.as_slice()).await?;
    output.either(
        || json!({ "file": shown, "bytes": bytes, "parts": parts }),
        || format!("wrote {shown}: {bytes} bytes; read it before you send it: `tar -xf {shown}`"),
    )?;
    Ok(Exit::Done)
}

/// Asks. A signal ends it: from the first wait for one on, none ends the process by itself.
async fn confirmed(question: String) -> anyhow::Result<bool> {
    let asked = tokio::task::spawn_blocking(move || confirm(&question, "--yes writes it"));
    tokio::select! {
        biased;
        signal = termination() => anyhow::bail!("{} received: no file was written", signal?),
        answer = asked => answer.context("nobody was asked")?,
    }
}

async fn write(path: PathBuf, parts: &[Part]) -> anyhow::Result<u64> {
    let there = parts.iter().filter(|part| part.failed.is_none());
    let files: Vec<(String, String)> =
        there.map(|part| (part.name.clone(), part.text.clone())).collect();
    let written = tokio::task::spawn_blocking(move || {
        archive::write(&path, files.iter().map(|(name, text)| (name.as_str(), text.as_bytes())))
    });
    written.await.context("the file was not written")?
}

fn default_file() -> PathBuf {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    PathBuf::from(format!("cairn-debug-{}.tar.zst", now.as_secs()))
}

/// What can be had with these arguments; of what cannot, why.
fn wanted(args: &BundleArgs) -> Wanted {
    let layers = args.config.clone().map(|config| {
        let options = ServerOptions { config: Some(config), ..ServerOptions::default() };
        options.layers().map_err(|error| error.to_string())
    });
    let of = |layers: &Result<Layers, String>| NodeConfig::from_layers(layers.as_ref().ok()?).ok();
    let config = layers.as_ref().and_then(of);
    let own_port = config.as_ref().and_then(|config| config.http_address.clone());
    let addresses = match args.http.is_empty() {
        true => own_port.into_iter().collect(),
        false => args.http.clone(),
    };
    // A member may ask as itself.
    let otherwise = config.as_ref().and_then(NodeConfig::tls_files);
    let http = args.connect.http_within(args.connect.timeout(), otherwise.clone());
    let reached = config.map(|config| config.advertise_client.unwrap_or(config.client_address));
    let client = args.connect.client_or(reached, otherwise);
    Wanted {
        client: client.map_err(|error| in_full(&error)),
        http: http.map_err(|error| error.to_string()),
        addresses,
        config: args.config.clone(),
        layers,
        inspect: args.inspect,
        log: args.log.clone(),
        unit: args.unit.clone(),
        time: args.seconds.min(LONGEST_TIME),
    }
}
