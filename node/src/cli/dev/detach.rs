//! A development cluster in the background.

use super::super::exit::Exit;
use super::super::output::Output;
use super::super::status::promises;
use super::{DevArgs, home, layout, stop_command, told};
use anyhow::Context;
use cairn_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_millis(50);
/// Longer than the nodes get to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts the same command in the background and returns when its cluster is ready.
pub(super) async fn start(args: &DevArgs, output: &Output) -> anyhow::Result<Exit> {
    std::fs::create_dir_all(&args.dir)?;
    // Before anything of a cluster that runs is touched.
    if let Some(id) = home::holder(&args.dir)? {
        return Err(home::in_use(&args.dir, Some(id)).into());
    }
    let ready = args.dir.join(layout::READY);
    // This may be left from a cluster that was killed.
    let _ = std::fs::remove_file(&ready);
    let log_file = args.dir.join("dev.log");
    // Another start at the same time may write there, too.
    let log = File::options().create(true).append(true).open(&log_file)?;
    let before = log.metadata()?.len();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["dev", "--dir"]).arg(&args.dir);
    if let Some(size) = &args.size {
        command.args(["--size", size]);
    }
    if let Some(port) = args.port {
        command.args(["--port", &port.to_string()]);
    }
    if args.restart {
        command.arg("--restart");
    }
    for assignment in &args.set {
        command.args(["--set", assignment]);
    }
    let mut process = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("cannot start the cluster in the background")?;
    loop {
        if let Some(status) = process.try_wait()? {
            anyhow::bail!("the cluster did not start ({status}):\n{}", said(&log_file, before));
        }
        // The last line may not be written yet.
        let text = std::fs::read_to_string(&ready).unwrap_or_default();
        if text.ends_with('\n') {
            let endpoints: Vec<&str> = text.lines().collect();
            let mode = promises(&told(&Client::connect(endpoints.clone()).await?).await);
            output.either(
                || {
                    json!({ "endpoints": endpoints, "process": process.id(), "mode": mode,
                            "stop": stop_command(&args.dir) })
                },
                || {
                    format!(
                        "A cluster of three nodes is ready at {}\nMode {}\nStop it with: {}",
                        endpoints.join(","),
                        mode.join("\n"),
                        stop_command(&args.dir)
                    )
                },
            )?;
            return Ok(Exit::Done);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// What was written into the log behind its first bytes.
fn said(log: &Path, before: u64) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let new = usize::try_from(before).ok().and_then(|before| text.get(before..));
    String::from_utf8_lossy(new.unwrap_or_default()).trim_end().to_owned()
}

/// Asks the process that holds the folder's lock to end, and waits until it has.
pub(super) async fn stop(dir: &Path, output: &Output) -> anyhow::Result<Exit> {
    let Some(id) = home::holder(dir)? else {
        let message = format!(
            "no cluster runs in {}; give the --dir with which it was started",
            dir.display()
        );
        return Err(anyhow::anyhow!(message));
    };
    let process = Pid::from_raw(id).context("not a process id")?;
    kill_process(process, Signal::TERM).with_context(|| format!("cannot stop process {id}"))?;
    let began = Instant::now();
    while home::holder(dir)?.is_some() {
        if began.elapsed() > STOP_TIMEOUT {
            anyhow::bail!("process {id} did not end within {} s", STOP_TIMEOUT.as_secs());
        }
        tokio::time::sleep(INTERVAL).await;
    }
    output.either(
        || json!({ "stopped": true }),
        || format!("the cluster in {} has stopped", dir.display()),
    )?;
    Ok(Exit::Done)
}
