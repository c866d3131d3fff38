//! Programs: this build of `cairn` and other ones, with a limit on how long they run.

use super::{POLL, WAIT_LIMIT};
use cairn_launch::HeldPort;
use rustix::process::{Pid, Signal, getpgid, kill_process_group};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    /// The exit code; for a process that a signal ended, the negative number of the signal.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Whether a command for which the test allows little time was at its end before any node had answered:
    /// on a busy machine it can say no more than that.
    pub fn was_cut_short(&self) -> bool {
        let said = ["no answer within", "no connection before the deadline", "nothing was sent"];
        said.iter().any(|words| self.stderr.contains(words))
    }
}

/// The document that a command printed.
pub fn json_of(ran: &Ran) -> serde_json::Value {
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
}

/// That a command ended with this code, and said this.
pub fn refused(ran: &Ran, code: i32, says: &[&str]) {
    assert_eq!(ran.code, code, "{ran:?}");
    for says in says {
        assert!(ran.stderr.contains(says), "`{says}` is not in: {}", ran.stderr);
    }
}

/// The build under test.
pub const CAIRN: &str = env!("CARGO_BIN_EXE_cairn");

/// `cairn` with these arguments in this folder, without the CAIRN_ variables of the environment.
pub fn command<S: AsRef<std::ffi::OsStr>>(folder: &Path, arguments: &[S]) -> Command {
    let mut command = cairn_launch::command(CAIRN, arguments);
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub fn run<S: AsRef<std::ffi::OsStr>>(folder: &Path, arguments: &[S]) -> Ran {
    finish(
        command(folder, arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cairn starts"),
    )
}

/// Waits for the end of a command. One that does not end in time is killed and fails the test.
pub fn finish(child: Child) -> Ran {
    finish_within(WAIT_LIMIT, child)
}

/// Calls `each` with the process's number, over and over, until it has ended.
pub fn watch(limit: Duration, child: Child, mut each: impl FnMut(u32)) -> Ran {
    let pid = child.id();
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| finish_within(limit, child));
        while !ran.is_finished() {
            each(pid);
            std::thread::sleep(POLL);
        }
        ran.join().expect("the command ended")
    })
}

/// The same as [`finish`] with a limit of one's own. With a command that leads a process group, what it started is
/// killed too.
pub fn finish_within(limit: Duration, mut child: Child) -> Ran {
    let stdout = child.stdout.take().map(read_all);
    let stderr = child.stderr.take().map(read_all);
    let text = |reader: Option<JoinHandle<Vec<u8>>>| {
        let bytes = reader.map(|reader| reader.join().expect("a reader")).unwrap_or_default();
        String::from_utf8(bytes).expect("text")
    };
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return Ran { code: code(status), stdout: text(stdout), stderr: text(stderr) };
        }
        if began.elapsed() > limit {
            kill(&mut child);
            std::thread::sleep(POLL);
            // What the command started may be alive, and would hold the pipe open for ever.
            let said = match stderr {
                Some(reader) if !reader.is_finished() => {
                    "its standard error is still open".to_owned()
                }
                reader => text(reader),
            };
            panic!("the command did not end: {said}");
        }
        std::thread::sleep(POLL);
    }
}

fn kill(child: &mut Child) {
    let pid = Pid::from_child(child);
    // Any other command is in the group of the tests.
    match getpgid(Some(pid)).is_ok_and(|group| group == pid) {
        true => kill_process_group(pid, Signal::KILL).expect("our own group"),
        false => child.kill().expect("our own child"),
    }
}

/// [`Ran::code`].
pub fn code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| -signal)).expect("an end")
}

/// Reads the pipe while the process runs, since a full pipe would block the process.
fn read_all(mut pipe: impl std::io::Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe");
        bytes
    })
}

/// Ports for a test's servers, held until they are dropped, and their addresses.
pub fn hold(count: usize) -> (Vec<HeldPort>, Vec<String>) {
    let ports = cairn_launch::hold(count).expect("ports");
    let addresses = ports.iter().map(|port| port.address().to_string()).collect();
    (ports, addresses)
}

/// A complete HTTP response.
pub fn http_get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("HTTP is served");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("an answer");
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read, pipe};
    use std::os::unix::process::CommandExt;

    /// A command that starts another one. Both can write to their standard error and to this pipe, and the other one
    /// runs until the standard input ends.
    fn parent() -> (Command, PipeReader) {
        let (said, output) = pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command.args(["-c", "exec 3<&0; (echo ready; exec cat <&3) & wait"]);
        command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped());
        (command, said)
    }

    /// The story: a command was killed at its limit, and what it had started held its standard error open. The test
    /// that should have failed waited for ever.
    #[test]
    fn a_command_that_is_killed_at_its_limit_fails_though_what_it_started_runs_on() {
        let (mut command, mut said) = parent();
        let mut child = command.spawn().expect("sh starts");
        let stdin = child.stdin.take();
        said.read_exact(&mut [0; 6]).expect("the other one runs");
        let ran = std::thread::spawn(move || finish_within(Duration::ZERO, child)).join();
        let failed = ran.expect_err("it does not end");
        let why = failed.downcast_ref::<String>().expect("a text");
        assert_eq!(why, "the command did not end: its standard error is still open");
        drop(stdin);
    }

    #[test]
    fn what_a_command_started_is_killed_with_it_if_it_leads_a_process_group() {
        let (mut command, mut said) = parent();
        let mut child = command.process_group(0).spawn().expect("sh starts");
        let stdin = child.stdin.take();
        said.read_exact(&mut [0; 6]).expect("the other one runs");
        let ran = std::thread::spawn(move || finish_within(Duration::ZERO, child)).join();
        assert!(ran.is_err(), "it does not end");
        // The pipe ends with the last process that may write to it.
        drop(command);
        assert_eq!(said.read(&mut [0]).expect("a pipe"), 0);
        drop(stdin);
    }
}
