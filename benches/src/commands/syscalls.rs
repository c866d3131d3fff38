//! Sync-like system calls of each node during puts.
//!
//! The claim: in mode `replicated` the write path calls no fsync, fdatasync, sync_file_range,
//! ftruncate or fallocate. What remains are the background syncs, one per interval or per number of
//! bytes, and the records of an election, which are always synced. Syncs through io_uring are not
//! system calls, so strace cannot see them. So the command runs with io_uring and with threads, and
//! compares the engine's own count of syncs too.

use crate::progress::Step;
use crate::report::{Line, Report};
use crate::systems::cairn::{CairnCluster, ClusterOptions};
use crate::systems::workload::Workload;
use crate::target::DiskArguments;
use anyhow::{Context, Result};
use cairn_experiments::{Limit, Payloads, drive};
use cairn_launch::command;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FORBIDDEN: [&str; 6] =
    ["fsync", "sync_file_range", "syncfs", "sync", "ftruncate", "fallocate"];
const COUNTED: [&str; 7] =
    ["fdatasync", "fsync", "sync_file_range", "syncfs", "sync", "ftruncate", "fallocate"];
/// The node's defaults. The run does not change them.
const SYNC_INTERVAL_S: f64 = 1.0;
const SYNC_BYTES: f64 = (4 << 20) as f64;
/// One background sync covers the data file and the journal.
const FILES_PER_SYNC: f64 = 2.0;
/// A checkpoint syncs what it covers, its area and its header.
const SYNCS_PER_CHECKPOINT: f64 = 6.0;
/// An election inside the window would sync votes and a first append.
const ELECTION_ALLOWANCE: f64 = 12.0;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// Puts during which system calls are counted.
    #[arg(long, default_value_t = 20_000)]
    puts: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 4096)]
    value_bytes: usize,
    /// Clients, each with one request at a time.
    #[arg(long, default_value_t = 100)]
    clients: usize,
}

/// Runs the cluster under strace, once through io_uring and once through threads.
pub async fn run(arguments: Arguments) -> Result<Report> {
    cairn_launch::run(&mut command("strace", ["-V"])).context(
        "strace is not on the search path; install it (Debian, Ubuntu: `apt-get install strace`)",
    )?;
    let mut report = Report::new("syscalls");
    report.set("puts", arguments.puts);
    report.set("value bytes", arguments.value_bytes);
    report.set("clients", arguments.clients);
    for backend in ["auto", "threads"] {
        measure(&arguments, backend, &mut report)
            .await
            .with_context(|| format!("backend {backend}"))?;
    }
    report.notes.push("rates under strace do not show how fast the cluster is".to_owned());
    Ok(report)
}

async fn measure(arguments: &Arguments, backend: &'static str, report: &mut Report) -> Result<()> {
    let scratch = arguments.disk.scratch()?;
    let options = ClusterOptions {
        size_bytes: 1 << 30,
        backend,
        wrapper: Box::new(|path, slot| Some(strace(path, slot))),
        ..ClusterOptions::default()
    };
    let cluster = CairnCluster::start(scratch.path(), &options).await?;
    let workload = Workload::puts(&Payloads::new(10_000, 1), arguments.value_bytes);
    cluster.wait_for_fast_mode(&workload, arguments.clients).await?;
    let putters = cluster.callers(&workload, arguments.clients, 1, 1).await?;
    let step = Step::new("putting under strace");
    let mut before = Vec::new();
    for node in cluster.nodes() {
        before.push(node.status().await?);
    }
    let begin = since_epoch();
    let samples = drive(putters, Limit::Operations(arguments.puts)).await?;
    let end = since_epoch();
    let mut after = Vec::new();
    for node in cluster.nodes() {
        after.push(node.status().await?);
    }
    cluster.stop().await?;
    drop(step);
    let used = after.first().map_or_else(String::new, |storage| storage.backend.clone());
    report.lines.push(Line::new(format!("puts under strace, {used}"), &samples, arguments.clients));
    for (slot, (before, after)) in (1..).zip(before.iter().zip(&after)) {
        let name = format!("{used}, node {slot}");
        let trace =
            std::fs::read_to_string(trace_file(scratch.path(), slot)).context("strace's output")?;
        let counts = count(&trace, begin, end);
        let syncs = after.syncs - before.syncs;
        let seen = counts.get("fdatasync").copied().unwrap_or(0);
        let forbidden: u64 = FORBIDDEN.iter().filter_map(|call| counts.get(call)).sum();
        report.figure(format!("{name}: calls of other kinds"), forbidden as f64, "");
        report.figure(format!("{name}: fdatasyncs by strace"), seen as f64, "");
        report.figure(format!("{name}: syncs by the engine's count"), syncs as f64, "");
        report.figure(format!("{name}: time"), end - begin, "s");
        let all: Vec<String> =
            counts.iter().map(|(call, number)| format!("{call} {number}")).collect();
        report.check(format!("{name}: no call but fdatasync"), forbidden == 0, all.join(", "));
        let device_bytes = (after.device_bytes_written - before.device_bytes_written) as f64;
        let rounds = (end - begin) / SYNC_INTERVAL_S + device_bytes / SYNC_BYTES + 2.0;
        let checkpoints = (after.checkpoints - before.checkpoints) as f64;
        let most =
            rounds * FILES_PER_SYNC + checkpoints * SYNCS_PER_CHECKPOINT + ELECTION_ALLOWANCE;
        report.check(
            format!("{name}: only background syncs"),
            (syncs.max(seen) as f64) <= most,
            format!(
                "{syncs} syncs by the engine's count, {seen} seen by strace, in {:.1} s; at most {most:.0} are explained",
                end - begin
            ),
        );
    }
    Ok(())
}

fn strace(path: &Path, slot: u16) -> Command {
    // --seccomp-bpf stops the node only at the calls that are counted.
    let arguments = ["-f", "--seccomp-bpf", "-ttt", "-e", "signal=none", "-e"];
    let mut command = command("strace", arguments);
    command.arg(format!("trace={}", COUNTED.join(",")));
    command.arg("-o").arg(trace_file(path, slot));
    command
}

fn trace_file(path: &Path, slot: u16) -> PathBuf {
    path.join(format!("strace-{slot}.txt"))
}

fn since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// Counts the calls that began inside a window: lines like `PID SECONDS call(…`. The line of a
/// resumed call does not count.
fn count(trace: &str, begin: f64, end: f64) -> BTreeMap<&'static str, u64> {
    let mut counts: BTreeMap<&'static str, u64> = COUNTED.iter().map(|call| (*call, 0)).collect();
    for line in trace.lines() {
        let mut words = line.split_whitespace().skip(1);
        let time = words.next().and_then(|word| word.parse::<f64>().ok());
        let call = words.next().and_then(|word| word.split_once('(')).map(|(call, _)| call);
        if time.is_some_and(|time| (begin..=end).contains(&time))
            && let Some(number) = call.and_then(|call| counts.get_mut(call))
        {
            *number += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_inside_the_window_are_counted_once() {
        let trace = "7 100.5 fdatasync(5) = 0\n\
                     7 200.1 fdatasync(5 <unfinished ...>\n\
                     8 200.2 fsync(3)  = 0\n\
                     7 200.3 <... fdatasync resumed>) = 0\n\
                     7 200.4 +++ exited with 0 +++\n\
                     7 300.0 fdatasync(5) = 0\n";
        let counts = count(trace, 200.0, 201.0);
        assert_eq!(counts.get("fdatasync"), Some(&1));
        assert_eq!(counts.get("fsync"), Some(&1));
        assert_eq!(counts.get("ftruncate"), Some(&0));
    }
}
