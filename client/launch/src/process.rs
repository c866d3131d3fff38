//! Processes: commands that run to their end, and servers.
//!
//! What holds here: a server ends with its [`Server`], and so does all that it started. If this
//! process ends without dropping it, the server's standard input is closed, which stops [`serve`].

use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(10);
/// How much of its log an error about a server shows.
const LOG_LINES: usize = 5;

/// A program with these arguments, without the `CAIRN_` variables of this process. They would
/// override the configuration that the program is given.
pub fn command(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Command {
    let mut command = Command::new(program);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("CAIRN_") {
            command.env_remove(variable);
        }
    }
    command.args(arguments);
    command
}

/// `cairn serve` with this configuration. It stops when its standard input is closed.
pub fn serve(program: impl AsRef<OsStr>, config: &Path) -> Command {
    let mut command = command(program, ["serve", "--stop-with-stdin", "--config"]);
    command.arg(config);
    command
}

/// Runs a command to its end, and returns its output.
///
/// # Errors
/// If it does not start, and, with its output, if it fails.
pub fn run(command: &mut Command) -> io::Result<Output> {
    let output = command.output().map_err(in_context(format!("cannot run {command:?}")))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(io::Error::other(format!(
        "{command:?} ended ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )))
}

/// The last lines of a log, each behind a bar. There are none if there is no log.
pub fn log_end(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut last: Vec<String> =
        text.lines().rev().take(lines).map(|line| format!("  | {line}")).collect();
    last.reverse();
    last.join("\n")
}

fn in_context(what: String) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// A started server. It is killed when this is dropped.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts a server whose output is appended to `log`. `name` is for errors. A signal that the
    /// terminal sends to this process, as for Ctrl-C, does not reach the server.
    ///
    /// # Errors
    /// If the log cannot be opened, or the command does not start.
    pub fn start(name: &str, mut command: Command, log: &Path) -> io::Result<Server> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(in_context(format!("cannot open {}", log.display())))?;
        let child = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(in_context(format!("cannot start {name}")))?;
        Ok(Server { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// The id of the process that was started.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Nothing, if the process has not ended.
    ///
    /// # Errors
    /// How it ended, with the end of its log.
    pub fn check_running(&mut self) -> io::Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        Err(io::Error::other(format!(
            "{} ended ({status}). The end of {}:\n{}",
            self.name,
            self.log.display(),
            log_end(&self.log, LOG_LINES)
        )))
    }

    /// Sends a signal to the process and to all that it started, unless the process has ended.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(kill_process_group(Pid::from_child(&self.child), signal)?),
            Some(_) => Ok(()),
        }
    }

    /// Closes standard input, which [`serve`] takes for the request to stop.
    pub fn begin_stop(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Closes standard input, and waits for the end of the process.
    ///
    /// # Errors
    /// As [`Server::wait`].
    pub fn stop(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        self.begin_stop();
        self.wait(limit)
    }

    /// Waits for the end of the process. It blocks the calling thread.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if the process did not end within the limit. It was killed then.
    pub fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > limit {
                self.signal(Signal::KILL)?;
                self.child.wait()?;
                let message =
                    format!("{} did not stop within {} s; killed", self.name, limit.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    const LIMIT: Duration = Duration::from_secs(60);

    fn start(folder: &Path, script: &str) -> Server {
        Server::start("the server", command("sh", ["-c", script]), &folder.join("log")).unwrap()
    }

    #[test]
    fn a_server_that_ended_is_reported_with_the_end_of_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = start(folder.path(), "seq 8; echo last >&2; read line; exit 3");
        server.check_running().unwrap();
        assert_eq!(server.stop(LIMIT).unwrap().code(), Some(3));
        let report = server.check_running().unwrap_err().to_string();
        assert!(report.starts_with("the server ended (exit status: 3). The end of "), "{report}");
        let end: Vec<&str> = report.lines().skip(1).collect();
        assert_eq!((end.len(), end.first(), end.last()), (5, Some(&"  | 5"), Some(&"  | last")));
        // It has no effect on a process that has ended.
        server.signal(Signal::KILL).unwrap();
    }

    #[test]
    fn a_server_that_does_not_stop_is_killed_after_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = start(folder.path(), "exec sleep 1000");
        let error = server.stop(Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the server did not stop within 0 s; killed");
        assert!(server.check_running().is_err());
    }

    #[test]
    fn what_a_dropped_server_started_ends_too() {
        let folder = tempfile::tempdir().unwrap();
        // The pipe ends with the last process that may write to it.
        let (mut read, write) = io::pipe().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), write.as_raw_fd());
        let script = format!("(echo ready >&2; exec sleep 1000) > {path} & wait");
        let server = start(folder.path(), &script);
        while log_end(&folder.path().join("log"), 1).is_empty() {
            std::thread::sleep(POLL);
        }
        drop((server, write));
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_failed_command_is_an_error_with_its_output() {
        let error = run(&mut command("sh", ["-c", "echo out; echo err >&2; exit 7"])).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("exit status: 7") && error.ends_with("out\nerr\n"), "{error}");
        let missing = run(&mut command("/no such program", [""; 0])).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
