//! Runs a command of the operator by a shell.
//!
//! What holds here: a command that is given up ends with all that it started in its process group. One that has
//! ended leaves running what it left in the background. Of its output a bounded part is kept.

use anyhow::Context;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;

/// How long one command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// How long the end of a command's error output may take once the command has ended: what it left in the
/// background may keep it open.
const REST_LIMIT: Duration = Duration::from_secs(1);
/// The most of a command's error output that an error shows, in bytes.
const SHOWN_BYTES: usize = 400;
/// The most of it that is kept, in bytes.
const KEPT_BYTES: usize = 64 << 10;

/// The processes of a command. They are killed with this, unless the command has ended.
///
/// The story: a command that hung was given up, and the shell was killed alone. What it had started stopped a
/// member minutes later.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            // Nobody is left to be told of an error.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

/// Reads error output to its end, and keeps its begin.
async fn keep_begin(mut from: ChildStderr, kept: Arc<Mutex<Vec<u8>>>) {
    let mut some = [0; 1 << 10];
    while let Ok(count @ 1..) = from.read(&mut some).await {
        let mut kept = kept.lock();
        let space = KEPT_BYTES.saturating_sub(kept.len());
        kept.extend(some.iter().take(count.min(space)));
    }
}

/// Runs a command of the operator. Returns once the command itself has ended.
///
/// The story: a command left the server that it started in the background. Its output, which the server
/// inherited, was read to the end, so the command was said to hang, and was killed together with the server.
pub(super) async fn run(text: &str) -> anyhow::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", text]).stdin(Stdio::null()).process_group(0);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let cannot = || format!("cannot run `{text}`");
    let mut child = command.spawn().with_context(cannot)?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
    // It reads on after the command has ended, so that no process in the background waits for a full pipe.
    let reading = child.stderr.take().map(|from| tokio::spawn(keep_begin(from, Arc::clone(&kept))));
    let status = timeout(COMMAND_LIMIT, child.wait())
        .await
        .with_context(|| format!("`{text}` did not end in {COMMAND_LIMIT:?}"))?
        .with_context(cannot)?;
    group.0 = None;
    if status.success() {
        return Ok(());
    }
    if let Some(reading) = reading {
        // What came until then is shown.
        let _ = timeout(REST_LIMIT, reading).await;
    }
    let kept = kept.lock();
    let said = String::from_utf8_lossy(&kept);
    let said = cairn_client::shown::excerpt(said.trim(), SHOWN_BYTES);
    anyhow::bail!("`{text}` ended ({status}): {said}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::kill_process;
    use tokio::time::sleep;

    const POLL: Duration = Duration::from_millis(20);

    /// A process that nobody waits for yet is dead all the same.
    fn lives(id: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    #[tokio::test]
    async fn a_command_that_is_given_up_ends_with_what_it_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("id");
        let text = format!("sleep 100000 & echo $! > {}; wait", file.display());
        let said = async {
            loop {
                let said = std::fs::read_to_string(&file).unwrap_or_default();
                if let Some(id) = said.strip_suffix('\n') {
                    break id.to_owned();
                }
                sleep(POLL).await;
            }
        };
        let id = tokio::select! {
            id = said => id,
            ended = run(&text) => panic!("it ended: {ended:?}"),
        };
        while lives(&id) {
            sleep(POLL).await;
        }
    }

    #[tokio::test]
    async fn a_server_that_a_command_leaves_in_the_background_lives_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("id");
        for (ends, is_well) in [("true", true), ("false", false)] {
            let text = format!("sleep 100000 & echo $! > {}; {ends}", file.display());
            let ended = run(&text).await;
            let id = std::fs::read_to_string(&file).expect("it was written");
            let id = id.trim();
            assert!(lives(id), "{ended:?}");
            let process = Pid::from_raw(id.parse().expect("a number")).expect("a process");
            kill_process(process, Signal::KILL).expect("our own process");
            assert_eq!(ended.is_ok(), is_well, "{ended:?}");
        }
    }

    #[tokio::test]
    async fn of_the_error_output_of_a_command_the_begin_is_kept_and_all_is_read() {
        let mut command = Command::new("sh");
        let text = "printf 'no such %s' unit >&2; head -c 1000000 /dev/zero >&2";
        let mut child = command.args(["-c", text]).stderr(Stdio::piped()).spawn().expect("a shell");
        let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
        keep_begin(child.stderr.take().expect("a pipe"), Arc::clone(&kept)).await;
        assert!(child.wait().await.expect("our own child").success(), "all was taken");
        let kept = kept.lock();
        assert!(kept.starts_with(b"no such unit\0") && kept.len() == KEPT_BYTES, "{}", kept.len());
    }
}
