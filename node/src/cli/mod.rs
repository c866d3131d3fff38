//! The command line: one file per command, and what they share.

mod access;
mod backup;
mod bar;
mod bench;
mod bulk_write;
mod bytes_text;
mod certs;
mod cluster_view;
mod completions;
mod config;
mod confirm;
mod connect;
mod copy;
mod debug;
mod delete;
mod dev;
mod doctor;
mod exit;
mod export;
mod format;
mod game_day;
mod get;
mod grow;
mod health;
mod help;
mod http;
mod import;
mod inspect;
mod json_lines;
mod leader;
mod list;
mod logging;
mod man;
mod members;
mod mode;
mod output;
mod put;
mod recover;
mod reload;
mod scrub;
mod senders;
mod serve;
mod server_options;
mod service_manager;
mod signals;
mod state;
mod status;
mod top;
mod unsafe_recovery;
mod upgrade;
mod usage;
mod watch;
mod zeroing;

use cairn_node::config::exposed_secret;
use clap::builder::Resettable;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use connect::ConnectOptions;
use exit::Exit;
use output::Output;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The default address of a server.
const DEFAULT_ENDPOINT: &str = "127.0.0.1:7400";

#[derive(Parser)]
#[command(
    name = "cairn",
    version,
    about = "A replicated key-value store for NVMe machines, without an fsync on its write path",
    after_help = help::after(),
    max_term_width = 100
)]
struct Cli {
    /// Print `text` for people, or one `json` document
    #[arg(short, long, value_enum, default_value_t = Output::Text, global = true)]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    output: Output,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a three-node cluster on this machine, for trying and developing
    Dev(dev::DevArgs),
    /// Create a data directory: all files at full size, all of it written
    Format(format::FormatArgs),
    /// Enlarge the data directory of a stopped node
    Grow(grow::GrowArgs),
    /// Examine what a data directory's machine can promise, and why
    Doctor(doctor::DoctorArgs),
    /// Show what a data directory that no node has open holds, and what of it verifies
    Inspect(inspect::InspectArgs),
    /// Run one member of a cluster
    Serve(serve::ServeArgs),
    /// Store a value under a key
    Put(put::PutArgs),
    /// Read a key; exit code 3 if it does not exist
    Get(get::GetArgs),
    /// Remove a key
    Delete(delete::DeleteArgs),
    /// List keys in byte order
    List(list::ListArgs),
    /// Tell what is changed, a line for each change, until Ctrl-C
    Watch(watch::WatchArgs),
    /// Write keys and values to a file, as lines of JSON
    Export(export::ExportArgs),
    /// Put keys and values of a file: lines of JSON, or a snapshot of etcd
    Import(import::ImportArgs),
    /// Copy keys from one cluster to another while both serve
    Copy(copy::CopyArgs),
    /// Show the status that each node reports
    Status(status::StatusArgs),
    /// Ask whether the cluster is well, or would go on without a member; exit code 4 if not
    Health(health::HealthArgs),
    /// Watch the cluster on the terminal: whether it is well, its members, their load and space
    Top(top::TopArgs),
    /// Read everything that the nodes hold and repair what is damaged; or show the progress
    Scrub(scrub::ScrubArgs),
    /// Show the members of the cluster, add, remove, replace, promote or move one
    Members(members::MembersArgs),
    /// Show or set what an acknowledgement means in the cluster
    Mode(mode::ModeArgs),
    /// Show who leads, let another member lead, or keep one from leading
    Leader(leader::LeaderArgs),
    /// Show which versions the members run, or finish an upgrade
    Upgrade(upgrade::UpgradeArgs),
    /// Recover a cluster in which too many machines lost power at once; may lose acknowledged
    /// writes
    UnsafeRecovery(unsafe_recovery::UnsafeRecoveryArgs),
    /// Make a cluster anew of one stopped node, after a majority of the disks was lost for good
    Recover(recover::RecoverArgs),
    /// Save the state of a cluster, check what is saved, and restore it
    Backup(backup::BackupArgs),
    /// Put load on a running cluster and measure it; or measure a disk
    Bench(bench::BenchArgs),
    /// Stop, kill and fill a cluster that nobody needs, and see that no acknowledged write is lost
    GameDay(game_day::GameDayArgs),
    /// Make tokens for clients
    Access(access::AccessArgs),
    /// Make a cluster's CA, and certificates for its members and clients
    Certs(certs::CertsArgs),
    /// Show the server's configuration
    Config(config::ConfigArgs),
    /// Collect what explains a fault of a cluster or a node
    Debug(debug::DebugArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual into a folder: one page for each command
    Man(man::ManArgs),
}

/// Longest wait at exit for calls that run on threads.
const END_LIMIT: Duration = Duration::from_secs(1);
/// By how much the commands of backups let others go first.
const NICE: i32 = 10;

/// The command line. A variable that is empty counts as unset, for every option: files that set
/// variables often leave one empty.
fn command() -> clap::Command {
    fn of_set_variables(command: clap::Command) -> clap::Command {
        let is_empty = |arg: &Arg| {
            arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty())
        };
        command
            .mut_args(|arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg })
            .mut_subcommands(of_set_variables)
    }
    of_set_variables(Cli::command())
}

/// The secret files that a client's or a backup's options name, of whichever command.
fn secret_files(given: &ArgMatches) -> Vec<PathBuf> {
    let named =
        |id| given.try_get_many::<PathBuf>(id).ok().flatten().into_iter().flatten().cloned();
    let below = given.subcommand().map(|(_, below)| secret_files(below));
    let ids = [
        "token_file",
        "tls_key",
        "identity",
        "from_token_file",
        "from_tls_key",
        "to_token_file",
        "to_tls_key",
    ];
    let own = ids.into_iter().flat_map(named);
    own.chain(below.unwrap_or_default()).collect()
}

/// Parses the command line, runs the command, and returns the exit code.
pub(crate) fn main() -> ExitCode {
    let given = command().try_get_matches();
    let secrets = given.as_ref().map(secret_files).unwrap_or_default();
    let cli = match given.and_then(|given| Cli::from_arg_matches(&given)) {
        Ok(cli) => cli,
        Err(error) => return usage::refused(&error),
    };
    let output = match &cli.command {
        Command::Bench(args) if args.is_json() => Output::Json,
        _ => cli.output,
    };
    for warning in secrets.iter().filter_map(|file| exposed_secret(file)) {
        output.warning(&warning);
    }
    let server = matches!(cli.command, Command::Serve(_));
    if matches!(cli.command, Command::Backup(_)) {
        // Its threads inherit this. A member on the same machine comes first; it does not matter if it fails.
        let _ = rustix::process::nice(NICE);
    }
    let runtime = match runtime(&cli.command) {
        Ok(runtime) => runtime,
        Err(error) => {
            return exit::failed(&output, &anyhow::Error::new(error).context("cannot start"));
        }
    };
    let exit = match runtime.block_on(run(cli.command, &output)) {
        Ok(exit) => exit.into(),
        Err(error) if server => serve::failed(&output, &error),
        Err(error) => exit::failed(&output, &error),
    };
    logging::finish();
    // A call to a device that hangs must not keep the process.
    runtime.shutdown_timeout(END_LIMIT);
    exit
}

/// A server has one thread for replication, storage and sockets, so that a request costs no switch
/// from one thread to another. The other commands use all processors.
fn runtime(command: &Command) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = match command {
        Command::Serve(_) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.enable_all().build()
}

async fn run(command: Command, output: &Output) -> anyhow::Result<Exit> {
    match command {
        Command::Dev(args) => dev::run(args, output).await,
        Command::Format(args) => format::run(args, output).await,
        Command::Grow(args) => grow::run(args, output).await,
        Command::Doctor(args) => doctor::run(args, output).await,
        Command::Inspect(args) => inspect::run(args, output).await,
        Command::Serve(args) => serve::run(args, output).await,
        Command::Put(args) => put::run(args, output).await,
        Command::Get(args) => get::run(args, output).await,
        Command::Delete(args) => delete::run(args, output).await,
        Command::List(args) => list::run(args, output).await,
        Command::Watch(args) => watch::run(args, output).await,
        Command::Export(args) => export::run(args, output).await,
        Command::Import(args) => import::run(args, output).await,
        Command::Copy(args) => copy::run(args, output).await,
        Command::Status(args) => status::run(args, output).await,
        Command::Health(args) => health::run(args, output).await,
        Command::Top(args) => top::run(args, output).await,
        Command::Scrub(args) => scrub::run(args, output).await,
        Command::Members(args) => members::run(args, output).await,
        Command::Mode(args) => mode::run(args, output).await,
        Command::Leader(args) => leader::run(args, output).await,
        Command::Upgrade(args) => upgrade::run(args, output).await,
        Command::UnsafeRecovery(args) => unsafe_recovery::run(args, output).await,
        Command::Recover(args) => recover::run(args, output).await,
        Command::Backup(args) => backup::run(args, output).await,
        Command::Bench(args) => bench::run(args, output).await,
        Command::GameDay(args) => game_day::run(args, output).await,
        Command::Access(args) => access::run(args, output),
        Command::Certs(args) => certs::run(&args, output),
        Command::Config(args) => config::run(args, output).await,
        Command::Debug(args) => debug::run(args, output).await,
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args, output),
    }
}

#[cfg(test)]
mod tests;
