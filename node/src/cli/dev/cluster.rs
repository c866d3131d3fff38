//! The server processes of a development cluster.

use super::layout::DevNode;
use crate::cli::output::tell;
use anyhow::Context;
use cairn_client::{Client, Options};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::fs::OpenOptions;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

/// Time for three nodes to start, find each other and elect a leader.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_INTERVAL: Duration = Duration::from_millis(50);
/// Time for a node to stop cleanly; longer than it waits for its own requests.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Lines of a node's log shown when it ends.
const LOG_LINES: usize = 5;

/// The processes.
pub(super) struct Cluster {
    running: Vec<Running>,
    /// A node has answered: from then on a client may have written.
    answered: bool,
}

struct Running {
    node: DevNode,
    process: Child,
    /// A server stops when this is closed, which happens however this process ends.
    stdin: Option<ChildStdin>,
}

impl Cluster {
    /// Starts all nodes.
    pub(super) fn start(nodes: Vec<DevNode>) -> anyhow::Result<Cluster> {
        let running = nodes.into_iter().map(start_node).collect::<anyhow::Result<_>>()?;
        Ok(Cluster { running, answered: false })
    }

    /// The client addresses.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.running.iter().map(|running| running.node.client_address.clone()).collect()
    }

    /// Whether a client may have written.
    pub(super) fn may_hold_writes(&self) -> bool {
        self.answered
    }

    /// Returns when every node knows a leader.
    ///
    /// # Errors
    /// A node that ended, with the end of its log; or the timeout.
    pub(super) async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let client = Options::new(self.endpoints()).build()?;
        let began = Instant::now();
        loop {
            for running in &mut self.running {
                if let Some(status) = running.process.try_wait()? {
                    anyhow::bail!("{}", running.exit_report(status));
                }
            }
            if self.all_know_a_leader(&client).await {
                return Ok(());
            }
            if began.elapsed() > READY_TIMEOUT {
                anyhow::bail!(
                    "the cluster was not ready within {} s; see the nodes' logs",
                    READY_TIMEOUT.as_secs()
                );
            }
            tokio::time::sleep(READY_INTERVAL).await;
        }
    }

    async fn all_know_a_leader(&mut self, client: &Client) -> bool {
        for running in &self.running {
            let Ok(status) = client.status(&running.node.client_address).await else {
                return false;
            };
            self.answered = true;
            if status.leader.is_none() {
                return false;
            }
        }
        true
    }

    /// Reports each node that ends. Returns when none is left.
    pub(super) async fn watch(&mut self) {
        let total = self.running.len();
        let mut ends: FuturesUnordered<_> = self
            .running
            .iter_mut()
            .map(|running| async move {
                let status = running.process.wait().await;
                let report = |status| {
                    let again = running.node.config_file.display();
                    let ended = running.exit_report(status);
                    format!(
                        "{ended}\nStart it again with: {} serve --config {again}",
                        super::program()
                    )
                };
                status.map_or_else(|error| error.to_string(), report)
            })
            .collect();
        let mut left = total;
        while let Some(report) = ends.next().await {
            left -= 1;
            tell(&report);
            if left > 0 {
                let note = quorum_note(left, total);
                tell(&format!("{left} of {total} nodes are left; {note}"));
            }
        }
    }

    /// Stops all nodes, cleanly if they manage it in time.
    pub(super) async fn stop(mut self) {
        for running in &mut self.running {
            drop(running.stdin.take());
        }
        for running in &mut self.running {
            if tokio::time::timeout(STOP_TIMEOUT, running.process.wait()).await.is_err() {
                let limit = STOP_TIMEOUT.as_secs();
                tell(&format!("node {} did not stop within {limit} s; killed", running.node.slot));
                let _ = running.process.kill().await;
            }
        }
    }
}

fn quorum_note(left: usize, total: usize) -> &'static str {
    if left > total / 2 {
        "the cluster keeps working"
    } else {
        "no majority is left, and nothing can be read or written"
    }
}

fn start_node(node: DevNode) -> anyhow::Result<Running> {
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&node.log_file)
        .with_context(|| format!("cannot open {}", node.log_file.display()))?;
    let mut process = Command::new(std::env::current_exe()?)
        .args(["serve", "--stop-with-stdin", "--config"])
        .arg(&node.config_file)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C on the terminal is for this process. The nodes end when it closes their standard
        // input.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start node {}", node.slot))?;
    let stdin = process.stdin.take();
    Ok(Running { node, process, stdin })
}

impl Running {
    fn exit_report(&self, status: ExitStatus) -> String {
        let log = std::fs::read(&self.node.log_file).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().rev().take(LOG_LINES).collect();
        let last: Vec<String> = lines.into_iter().rev().map(|line| format!("  | {line}")).collect();
        format!(
            "node {} ended ({status}). The end of {}:\n{}",
            self.node.slot,
            self.node.log_file.display(),
            last.join("\n")
        )
    }
}
