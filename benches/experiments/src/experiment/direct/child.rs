//! A process of its own that writes one file: its memory can be limited, and its processor time is
//! that of the writes.
//!
//! What holds here: the child ends when its parent does, whatever the parent's end is: it watches
//! its standard input, which only the parent holds open. The parent believes nothing that the child
//! says before it has checked it.

use super::write::{Task, Written, write_file};
use crate::measure::Stop;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::Instant;

/// The most bytes that are read of what a child says.
const MOST_ANSWER: u64 = 16 << 10;
/// How often the parent looks whether the run is to end.
const LOOK: Duration = Duration::from_millis(50);
/// How long a child may take beyond its task's limit, for what no limit cuts: its last sync.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a child is asked, as JSON in its only argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// The `cgroup.procs` that it joins first.
    pub join: Option<PathBuf>,
    /// The file to write in its current directory. None if it only shows that it can join.
    pub task: Option<Task>,
}

/// What a child answers, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    written: Option<Written>,
}

/// The whole life of the child process: it joins a cgroup, writes a file, and prints its figures.
///
/// # Errors
/// Arguments that are not the parent's; the system's.
pub fn run_child(arguments: &[String]) -> Result<()> {
    // The parent never writes: this ends when the parent closes the pipe or is killed.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let answer = answer(arguments, Path::new("."))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").and_then(|()| out.flush()).context("answering")
}

/// What the child does and prints.
fn answer(arguments: &[String], folder: &Path) -> Result<String> {
    let [request] = arguments else { bail!("one argument, not {}", arguments.len()) };
    let request: Request = serde_json::from_str(request).context("the request")?;
    if let Some(procs) = &request.join {
        let joined = fs::write(procs, std::process::id().to_string());
        joined.with_context(|| format!("joining {}", procs.display()))?;
    }
    let written = match &request.task {
        Some(task) => Some(write_file(folder, task, &Stop::default())?),
        None => None,
    };
    Ok(serde_json::to_string(&Answer { written })?)
}

/// What a child's answer means.
fn parse(output: &[u8], task: Option<&Task>) -> Result<Option<Written>> {
    let answer: Answer = serde_json::from_slice(output).context("the child's answer")?;
    match (answer.written, task) {
        (Some(written), Some(task)) => {
            written.check(task).context("the child's answer")?;
            Ok(Some(written))
        }
        (None, None) => Ok(None),
        _ => bail!("the child answers something else than it was asked"),
    }
}

/// The program of the child, and its first arguments.
pub(super) type Program = (PathBuf, Vec<String>);

/// Runs a child in `folder`. The child is killed when this is dropped.
///
/// # Errors
/// The child's own, if it ends early, or if it says what cannot be; `Stopped`.
pub(super) async fn ask(
    program: &Program,
    folder: &Path,
    request: &Request,
    stop: &Stop,
) -> Result<Option<Written>> {
    let (path, arguments) = program;
    let mut child = Command::new(path)
        .args(arguments)
        .arg(serde_json::to_string(request)?)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", path.display()))?;
    // `wait` would close it.
    let _stdin = child.stdin.take();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let limit = request.task.as_ref().map_or(0, |task| task.limit_ms);
    let until = Instant::now() + Duration::from_millis(limit) + PATIENCE;
    let ended = async {
        let (stdout, stderr) = tokio::join!(heard(stdout), heard(stderr));
        let status = child.wait().await.context("waiting for the child")?;
        Ok::<_, anyhow::Error>((status, stdout?, stderr?))
    };
    tokio::pin!(ended);
    let (status, stdout, stderr) = loop {
        match tokio::time::timeout(LOOK, &mut ended).await {
            Ok(ended) => break ended?,
            Err(_) => stop.check()?,
        }
        if Instant::now() >= until {
            bail!("the child that writes does not answer");
        }
    };
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        let said = said.trim();
        let colon = if said.is_empty() { "" } else { ": " };
        bail!("the child that writes ended with {status}{colon}{said}");
    }
    parse(&stdout, request.task.as_ref())
}

/// What a pipe gives, up to a bound. The pipe is closed then: who writes more gets an error.
async fn heard(pipe: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MOST_ANSWER).read_to_end(&mut bytes).await.context("reading the child")?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::write::How;
    use super::super::write::tests::task;
    use super::*;

    fn request(join: Option<PathBuf>, task: Option<Task>) -> Vec<String> {
        vec![serde_json::to_string(&Request { join, task }).unwrap()]
    }

    #[test]
    fn a_child_writes_its_file_and_the_parent_understands_the_answer() {
        let folder = tempfile::tempdir().unwrap();
        let task = task(How::Buffered, 1, 1 << 20);
        let printed = answer(&request(None, Some(task.clone())), folder.path()).unwrap();
        assert!(!printed.contains('\n'));
        let written = parse(printed.as_bytes(), Some(&task)).unwrap().unwrap();
        assert_eq!(written.bytes, 1 << 20);
        assert_eq!(std::fs::metadata(folder.path().join("file")).unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_child_joins_before_it_writes_and_writes_nothing_if_it_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let procs = folder.path().join("cgroup.procs");
        let printed = answer(&request(Some(procs.clone()), None), folder.path()).unwrap();
        assert_eq!(parse(printed.as_bytes(), None).unwrap(), None);
        assert_eq!(std::fs::read_to_string(&procs).unwrap(), std::process::id().to_string());
        let missing = Some(folder.path().join("none/cgroup.procs"));
        let task = task(How::Buffered, 1, 1 << 20);
        let refused = answer(&request(missing, Some(task)), folder.path()).unwrap_err();
        assert!(format!("{refused:#}").contains("joining"), "{refused:#}");
        assert!(!folder.path().join("file").exists());
    }

    #[test]
    fn arguments_and_answers_of_somebody_else_are_refused() {
        let here = Path::new(".");
        for arguments in [vec![], vec!["{}".into(), "{}".into()], vec!["--help".to_owned()]] {
            assert!(answer(&arguments, here).is_err(), "{arguments:?}");
        }
        let task = task(How::Buffered, 1, 1 << 20);
        let good = r#"{"written":{"bytes":131072,"write_s":1.0,"safe_s":2.0,"user_s":0.0,"system_s":0.0,"machine_s":0.0}}"#;
        parse(good.as_bytes(), Some(&task)).unwrap();
        assert!(parse(good.as_bytes(), None).is_err(), "an answer to another question");
        let bad = [
            String::new(),
            "null".into(),
            r#"{"written":null}"#.into(),
            good.replace("131072", "0"),
            good.replace("131072", "1048577"),
            good.replace("131072", "-1"),
            good.replace("\"safe_s\":2.0", "\"safe_s\":0.5"),
            good.replace("\"user_s\":0.0", "\"user_s\":-0.1"),
            good.replace("\"user_s\":0.0", "\"user_s\":1e999"),
            good.replace("\"user_s\"", "\"user\""),
            format!("{good} {good}"),
        ];
        for bad in bad {
            assert!(parse(bad.as_bytes(), Some(&task)).is_err(), "{bad}");
        }
    }

    fn shell(script: &str) -> Program {
        ("/bin/sh".into(), vec!["-c".into(), script.into()])
    }

    #[tokio::test]
    async fn what_a_strange_program_says_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let request = Request { join: None, task: None };
        let stop = Stop::default();
        for (script, expected) in [
            ("echo '{\"written\":null}'", None),
            ("echo no", Some("the child's answer")),
            ("echo 'out of memory' >&2; exit 3", Some("out of memory")),
            ("kill -9 $$", Some("signal: 9")),
            ("while echo y; do :; done", Some("ended with")),
        ] {
            let answered = ask(&shell(script), folder.path(), &request, &stop).await;
            match expected {
                None => assert_eq!(answered.unwrap(), None),
                Some(expected) => {
                    let error = format!("{:#}", answered.unwrap_err());
                    let hostile = script.starts_with("while");
                    assert!(hostile || error.contains(expected), "{script}: {error}");
                }
            }
        }
        let none = ("/no/such/program".into(), vec![]);
        assert!(ask(&none, folder.path(), &request, &stop).await.is_err());
    }

    #[tokio::test]
    async fn a_stop_ends_a_child_that_would_wait_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let stop = Stop::default();
        stop.set();
        let request = Request { join: None, task: None };
        // `cat` reads its standard input, which the parent holds open.
        let ended = ask(&shell("exec cat"), folder.path(), &request, &stop).await;
        assert!(ended.unwrap_err().is::<crate::Stopped>());
    }
}
