//! The server processes of a development cluster.

use super::layout::DevNode;
use crate::cli::output::tell;
use cairn_client::{Client, Options};
use cairn_launch::{Server, serve};
use std::time::Duration;
use tokio::time::Instant;

/// Time for three nodes to start, find each other and elect a leader.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_INTERVAL: Duration = Duration::from_millis(50);
/// Time for a node to stop cleanly; longer than it waits for its own requests.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Soon enough for a reader of the report, and seldom enough for an idle cluster.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// The processes.
pub(super) struct Cluster {
    running: Vec<Running>,
    /// A node has answered: from then on a client may have written.
    answered: bool,
}

struct Running {
    node: DevNode,
    server: Server,
}

impl Cluster {
    /// Starts all nodes.
    pub(super) fn start(nodes: Vec<DevNode>) -> anyhow::Result<Cluster> {
        let program = std::env::current_exe()?;
        let start = |node: DevNode| {
            let command = serve(&program, &node.config_file);
            let server = Server::start(&format!("node {}", node.slot), command, &node.log_file)?;
            Ok(Running { node, server })
        };
        let running = nodes.into_iter().map(start).collect::<anyhow::Result<_>>()?;
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
                running.server.check_running()?;
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
        let mut left = total;
        while left > 0 {
            self.running.retain_mut(|Running { node, server }| {
                let Err(ended) = server.check_running() else { return true };
                left -= 1;
                let (cairn, again) = (super::program(), node.config_file.display());
                tell(&format!("{ended}\nStart it again with: {cairn} serve --config {again}"));
                if left > 0 {
                    let note = quorum_note(left, total);
                    tell(&format!("{left} of {total} nodes are left; {note}"));
                }
                false
            });
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    /// Stops all nodes, cleanly if they manage it in time.
    pub(super) fn stop(mut self) {
        for running in &mut self.running {
            running.server.begin_stop();
        }
        for running in &mut self.running {
            if let Err(killed) = running.server.wait(STOP_TIMEOUT) {
                tell(&killed.to_string());
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
