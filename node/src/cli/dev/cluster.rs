//! The server processes of a development cluster.
//!
//! What holds here: a node that ends is reported once for each end. With `--restart` it is started again,
//! with an empty directory if its own is gone, unless another process holds it down ([`hold`]). One that
//! ends over and over is started more and more seldom.

use super::hold;
use super::layout::{self, DevNode};
use crate::cli::output::tell;
use anyhow::Context;
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
/// How long a node that ended stays down: at first, and if it ends over and over.
const DOWN_FIRST: Duration = Duration::from_secs(1);
const DOWN_LONGEST: Duration = Duration::from_secs(30);
/// A node that ran for so long did start.
const DID_START: Duration = Duration::from_secs(60);

/// The processes.
pub(super) struct Cluster {
    running: Vec<Running>,
    /// A node has answered: from then on a client may have written.
    answered: bool,
}

struct Running {
    node: DevNode,
    server: Server,
    since: Instant,
    /// Since when it is down, and told so.
    down: Option<Instant>,
    /// How long it stays down.
    pause: Duration,
    /// Another process held it down.
    held: bool,
}

impl Running {
    fn start(node: DevNode) -> anyhow::Result<Running> {
        hold::remove_stale(&node.hold_file)
            .with_context(|| format!("cannot remove {}", node.hold_file.display()))?;
        let server = start(&node)?;
        let (since, pause) = (Instant::now(), DOWN_FIRST);
        Ok(Running { node, server, since, down: None, pause, held: false })
    }

    /// Starts the node again if it has ended and it is time for that.
    async fn keep(&mut self) {
        let Err(ended) = self.server.check_running() else { return };
        let Some(down) = self.down else {
            tell(&format!("{ended}\nIt is started again"));
            self.pause = match self.since.elapsed() < DID_START {
                true => self.pause.saturating_mul(2).min(DOWN_LONGEST),
                false => DOWN_FIRST,
            };
            self.down = Some(Instant::now());
            return;
        };
        if hold::is_held(&self.node.hold_file) {
            self.held = true;
            return;
        }
        if !self.held && down.elapsed() < self.pause {
            return;
        }
        self.held = false;
        match self.start_again().await {
            Ok(()) => (self.down, self.since) = (None, Instant::now()),
            Err(error) => {
                tell(&format!("node {} cannot be started again: {error:#}", self.node.slot));
                self.pause = self.pause.saturating_mul(2).min(DOWN_LONGEST);
                self.down = Some(Instant::now());
            }
        }
    }

    async fn start_again(&mut self) -> anyhow::Result<()> {
        if let Some(home) = self.node.config_file.parent() {
            layout::prepare_node(home, self.node.slot).await?;
        }
        self.server = start(&self.node)?;
        Ok(())
    }
}

fn start(node: &DevNode) -> anyhow::Result<Server> {
    let command = serve(std::env::current_exe()?, &node.config_file);
    Ok(Server::start(&format!("node {}", node.slot), command, &node.log_file)?)
}

impl Cluster {
    /// Starts all nodes.
    pub(super) fn start(nodes: Vec<DevNode>) -> anyhow::Result<Cluster> {
        let running = nodes.into_iter().map(Running::start).collect::<anyhow::Result<_>>()?;
        Ok(Cluster { running, answered: false })
    }

    /// The client addresses.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.running.iter().map(|running| running.node.client_address.clone()).collect()
    }

    /// The HTTP ports, of nodes that have one.
    pub(super) fn http_ports(&self) -> Vec<String> {
        self.running.iter().filter_map(|running| running.node.http_address.clone()).collect()
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
            self.running.retain_mut(|Running { node, server, .. }| {
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

    /// Starts each node that ends again. Does not return.
    pub(super) async fn keep_running(&mut self) {
        loop {
            for running in &mut self.running {
                running.keep().await;
            }
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
