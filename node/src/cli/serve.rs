//! `cairn serve`: runs one member until it is asked to stop or fails.

use super::exit::{self, Exit};
use super::format::format;
use super::logging::{self, SetLevel};
use super::output::Output;
use super::reload::Reload;
use super::server_options::ServerOptions;
use super::service_manager::ServiceManager;
use anyhow::Context;
use cairn_engine::Engine;
use cairn_engine::io::FileDirectory;
use cairn_node::config::{Layers, LogConfig, Source, format_size};
use cairn_node::{Environment, Error, Node, NodeConfig};
use cairn_raft::NodeId;
use clap::Args;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

/// Between two attempts to read a damaged directory again.
const READ_AGAIN: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    server: ServerOptions,

    /// How to write the log
    #[arg(long, value_parser = ["human", "json"])]
    log_format: Option<String>,

    /// Stop when standard input ends, so that no server outlives the program that started it
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

/// Runs the server. Whatever ends it is said in the form of its log.
pub(crate) async fn run(args: ServeArgs, output: &Output) -> anyhow::Result<Exit> {
    // From now on SIGHUP does not end the process, which a service manager would take for a clean end.
    let hangups = signal(SignalKind::hangup());
    let (read, form) = args.server.layers_and_log_format(args.log_format.as_deref());
    let json = output.is_json() || form.as_deref() == Some("json");
    let log = match &read {
        // A level that is none is said in the form, too.
        Ok(layers) => LogConfig { json, ..LogConfig::from_layers(layers)? },
        Err(_) => LogConfig { json, level: String::new() },
    };
    let set_level = logging::start(&log)?;
    let manager = ServiceManager::of_environment();
    let served = serve(args, read?, set_level, hangups?, &manager);
    tokio::select! {
        biased;
        ended = served => ended,
        // Beside all of it, also while the node stops.
        () = manager.keep_alive() => Ok(Exit::Done),
    }
}

/// Says why a server ends, in the form of its log.
pub(super) fn failed(output: &Output, error: &anyhow::Error) -> ExitCode {
    let exit = exit::of(error);
    match logging::ends(&format!("{error:#}"), exit as u8) {
        true => exit.into(),
        false => exit::failed(output, error),
    }
}

async fn serve(
    args: ServeArgs,
    layers: Layers,
    set_level: SetLevel,
    hangups: Signal,
    manager: &ServiceManager,
) -> anyhow::Result<Exit> {
    // Heard from now on, also by a process that no signal ends by itself: the first one of a container.
    let mut asked = pin!(asked_to_stop(args.stop_with_stdin));
    if let Poll::Ready(asked) = futures::poll!(asked.as_mut()) {
        info!(reason = %asked?, "stopping before the start began");
        return Ok(Exit::Done);
    }
    cairn_node::platform::check().map_err(Error::Platform)?;
    let config = NodeConfig::from_layers(&layers)?;
    // Before anything is formatted.
    config.tls()?;
    let (server, log_format, running) = (args.server, args.log_format, layers.settings());
    let reload = Reload { server, log_format, set_level, running, hangups };
    cairn_node::platform::raise_descriptors();
    let open = config.open_access(&layers).map(str::to_owned);
    for warning in layers.ignored().into_iter().chain(config.exposed_key()).chain(open) {
        warn!("{warning}");
    }

    if config.storage.format_empty && is_unformatted(&config.data_directory)? {
        let identity = format(&config, &|estimate| info!("{}", estimate.text())).await?;
        let node = NodeId::new(identity.slot, identity.incarnation);
        warn!(%node, directory = %config.data_directory.display(), "the data directory was empty and has been formatted");
    }
    let environment = Environment::from_files(&config)?;
    // The start may wait for the other members.
    let node = tokio::select! {
        biased;
        asked = &mut asked => {
            info!(reason = %asked?, "stopping before the start completed");
            manager.stopping();
            return Ok(Exit::Done);
        }
        node = Node::start(config, environment) => node?,
    };
    if let Some(sentence) = other_size(&layers, &node)? {
        warn!("{sentence}");
    }
    manager.serving();
    tokio::select! {
        biased;
        () = reload.run(&node) => Ok(Exit::Done),
        reason = node.stopped() => {
            // The engine has already logged its failure.
            match node.engine().status().failed {
                Some(_) => info!(%reason, "the node failed and stops"),
                None => error!(%reason, "the node failed and stops"),
            }
            // Sync what can still be synced. An error of that is ignored: the reason above is the
            // one to act on.
            let _ = node.shutdown().await;
            anyhow::bail!("the node failed and stopped: {reason}");
        }
        asked = asked => {
            info!(reason = %asked?, "stopping");
            manager.stopping();
            node.shutdown().await?;
            Ok(Exit::Done)
        }
        () = readable_again(node.engine()) => {
            warn!("the damaged data directory can be read again, and nothing of it was overwritten: the node starts again with \
                   all of it");
            node.shutdown().await?;
            manager.starting_again();
            Err(begin_anew())
        }
    }
}

/// Resolves when a damaged directory can be read again, before a leader had what is missing in it. A
/// majority may wait for its devices at once, and no leader comes before they can be read.
async fn readable_again(engine: &Engine) {
    let mut pause = READ_AGAIN;
    while engine.damage().is_some() {
        tokio::time::sleep(pause).await;
        let began = Instant::now();
        if engine.reads_whole().await {
            return;
        }
        // Reading takes at most a tenth of the time.
        pause = READ_AGAIN.max(began.elapsed() * 9);
    }
    std::future::pending().await
}

/// Replaces this process by the same program with the same arguments: whatever still holds the
/// directory's locks ends with it. Returns why it cannot.
fn begin_anew() -> anyhow::Error {
    let exec = || -> std::io::Error {
        // The lines that wait end with this process's threads.
        logging::finish();
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => return error,
        };
        Command::new(program).args(std::env::args_os().skip(1)).exec()
    };
    anyhow::Error::new(exec()).context("the node cannot begin anew; start it again")
}

/// A warning if `storage.size` is configured and the directory has another size.
fn other_size(layers: &Layers, node: &Node) -> anyhow::Result<Option<String>> {
    let given = layers
        .settings()
        .into_iter()
        .any(|setting| setting.key == "storage.size" && setting.source != Source::Default);
    let config = node.config();
    let size = config.storage.size_bytes;
    let status = node.engine().status();
    let there = status.data_bytes;
    // How it is divided may differ: a growth takes nothing from any area.
    let differs = given
        && there + 2 * status.index_capacity_bytes
            != config.storage.sizing().geometry()?.growing_bytes();
    Ok(differs.then(|| {
        format!(
            "storage.size is {}, but {} has another size, of which {} hold data: stop the node and run `cairn grow` \
             to enlarge it, or correct storage.size; a data directory never shrinks",
            format_size(size),
            config.data_directory.display(),
            format_size(there)
        )
    }))
}

/// Whether the directory is missing or empty, or holds what an unfinished format left. A filesystem's
/// own `lost+found` does not count.
fn is_unformatted(directory: &Path) -> anyhow::Result<bool> {
    if FileDirectory::is_unfinished(directory) {
        return Ok(true);
    }
    let mut entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        entries => entries.with_context(|| format!("data_dir {}", directory.display()))?,
    };
    let kept = entries
        .find(|entry| entry.as_ref().map_or(true, |entry| entry.file_name() != "lost+found"));
    Ok(kept.is_none())
}

/// Resolves with the reason when the server is asked to end.
async fn asked_to_stop(with_stdin: bool) -> std::io::Result<String> {
    tokio::select! {
        biased;
        signal = crate::cli::signals::termination() => signal.map(|name| format!("{name} received")),
        () = stdin_ended(with_stdin) => Ok("standard input ended".to_string()),
    }
}

/// Waits on a thread, because a blocked read of standard input cannot be cancelled and would keep
/// the runtime from ending.
async fn stdin_ended(watch: bool) {
    if !watch {
        return std::future::pending().await;
    }
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = ended.send(());
    });
    let _ = end.await;
}
