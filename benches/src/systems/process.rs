//! A server process that ends with the measurement.
//!
//! A server runs in its own process group. The whole group is killed when the guard is dropped,
//! also if the server runs under a tracer.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A started server, with its output in a file.
pub struct Server {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts `command` with its output in `log`, without environment variables that configure a
    /// Cairn node.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Server> {
        use std::os::unix::process::CommandExt;
        without_configuration(&mut command);
        let output = File::create(log).with_context(|| log.display().to_string())?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("log file")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Server { child, name: name.to_owned(), log: log.to_owned() })
    }

    /// The process that was started: the server, or its tracer.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error, with the end of the log, if the process has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, self.log_tail()),
        }
    }

    /// Sends SIGTERM to `pid`, and waits until the started process has ended. `pid` is the server,
    /// which a tracer may have started.
    pub async fn stop(mut self, pid: u32, timeout: Duration) -> Result<ExitStatus> {
        kill_process(as_pid(pid)?, Signal::TERM)
            .with_context(|| format!("stopping {}", self.name))?;
        let until = Instant::now() + timeout;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!("{} did not stop within {timeout:?}:\n{}", self.name, self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The last lines of the server's output.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            if let Ok(pid) = as_pid(self.child.id()) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

fn as_pid(pid: u32) -> Result<Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is not a process id"))
}

/// Removes this shell's `CAIRN_…` variables from the node's environment: the file that we wrote is
/// its configuration.
pub fn without_configuration(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CAIRN_") {
            command.env_remove(name);
        }
    }
}

/// Runs a command to its end. An error contains its output.
pub async fn run_to_end(program: &OsStr, arguments: &[&OsStr]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    without_configuration(&mut command);
    let mut command = tokio::process::Command::from(command);
    let output = command
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("running {}", program.display()))?;
    if !output.status.success() {
        bail!(
            "{} {} ended with {}:\n{}{}",
            program.display(),
            arguments.join(OsStr::new(" ")).display(),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// The first file with this name on the search path.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
