//! What a test asks of a running cluster: through clients, by commands, and of the system.

use super::{Cluster, Node};
use crate::support::program::{Ran, command, finish, run};
use crate::support::{COMMAND_TIMEOUT, POLL, WAIT_LIMIT};
use cairn_client::{Client, MemberState, NodeStatus, Options, Role};
use cairn_launch::Signal;
use cairn_raft::VERSION;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long a node that runs may take to connect, or to answer, on a busy machine.
const STATUS_LIMIT: Duration = Duration::from_secs(10);

impl Cluster {
    pub fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.member.client.clone()).collect()
    }

    pub fn options(&self) -> Options {
        self.options_at(self.endpoints())
    }

    /// Options of a client that knows these nodes alone.
    pub fn options_of(&self, nodes: &[usize]) -> Options {
        self.options_at(nodes.iter().map(|node| self.nodes[*node].member.client.clone()))
    }

    fn options_at(&self, endpoints: impl IntoIterator<Item = String>) -> Options {
        let options = Options::new(endpoints);
        let options = match &self.certificates {
            None => options,
            Some(certificates) => {
                let [ca, certificate, key] = certificates.files("client");
                options.tls(ca, certificate, key)
            }
        };
        self.token.iter().fold(options, |options, token| options.token(token).expect("a token"))
    }

    /// A client with a long deadline, which gives no node up that only is slow.
    pub fn client(&self) -> Client {
        let options = self.options().connect_timeout(STATUS_LIMIT).attempt_timeout(STATUS_LIMIT);
        options.deadline(WAIT_LIMIT).build().expect("good options")
    }

    pub fn logs(&self) -> String {
        let read = |node: &Node| std::fs::read_to_string(&node.log).unwrap_or_default();
        self.nodes
            .iter()
            .map(|node| format!("--- {}\n{}", node.log.display(), read(node)))
            .collect()
    }

    /// Bytes of memory that a running node has now.
    pub fn memory(&self, node: usize) -> u64 {
        self.memory_of(node, "VmRSS:")
    }

    /// The peak since [`Cluster::forget_peak`].
    pub fn peak_memory(&self, node: usize) -> u64 {
        self.memory_of(node, "VmHWM:")
    }

    pub fn forget_peak(&self, node: usize) {
        std::fs::write(self.proc(node).join("clear_refs"), "5").expect("our own child");
    }

    fn proc(&self, node: usize) -> PathBuf {
        let process = self.nodes[node].process.as_ref().expect("it runs");
        PathBuf::from(format!("/proc/{}", process.id()))
    }

    /// Whether the kernel may give a running node huge pages.
    pub fn may_have_huge_pages(&self, node: usize) -> bool {
        self.kernel_says(node, "THP_enabled:") != "0"
    }

    /// Whether a running node has a handler for this signal.
    pub fn hears(&self, node: usize, signal: Signal) -> bool {
        let caught = u64::from_str_radix(&self.kernel_says(node, "SigCgt:"), 16).expect("a mask");
        caught & (1 << (signal.as_raw() - 1)) != 0
    }

    fn memory_of(&self, node: usize, what: &str) -> u64 {
        let line = self.kernel_says(node, what);
        line.trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    fn kernel_says(&self, node: usize, what: &str) -> String {
        let status =
            std::fs::read_to_string(self.proc(node).join("status")).expect("our own child");
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        line.expect("Linux reports it").trim().to_owned()
    }

    /// A command of the client against this cluster.
    pub fn cairn(&self, arguments: &[&str]) -> Ran {
        finish(self.spawn(arguments))
    }

    /// A command that asks no node.
    pub fn cairn_alone(&self, arguments: &[&str]) -> Ran {
        run(self.folder.path(), arguments)
    }

    /// A command of the client against this node alone.
    pub fn cairn_at(&self, node: usize, arguments: &[&str]) -> Ran {
        finish(self.spawn_at(&self.nodes[node].member.client, arguments))
    }

    /// The same as [`Cluster::cairn`], while it runs.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.spawn_at(&self.endpoints().join(","), arguments)
    }

    fn spawn_at(&self, endpoints: &str, arguments: &[&str]) -> Child {
        let mut all = arguments.to_vec();
        all.extend(["--endpoints", endpoints]);
        let files = self.certificates.as_ref().map(|certificates| {
            certificates.files("client").map(|file| file.to_str().expect("text").to_owned())
        });
        if let Some([ca, certificate, key]) = &files {
            all.extend(["--tls-ca", ca, "--tls-certificate", certificate, "--tls-key", key]);
        }
        if !all.contains(&"--timeout") {
            all.extend(["--timeout", COMMAND_TIMEOUT]);
        }
        let mut command = command(self.folder.path(), &all);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("cairn starts")
    }

    /// The status of every running node.
    pub async fn statuses(&self) -> Vec<NodeStatus> {
        let options = self.options().connect_timeout(STATUS_LIMIT).attempt_timeout(STATUS_LIMIT);
        let client = options.build().expect("good options");
        let mut statuses = Vec::new();
        for node in self.nodes.iter().filter(|node| node.process.is_some()) {
            statuses.extend(client.status(&node.member.client).await);
        }
        statuses
    }

    /// The logs, once they satisfy this: a node writes a line a moment after it did what the line says.
    pub async fn logs_with(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        self.until(what, async || Some(self.logs()).filter(|logs| holds(logs))).await
    }

    /// Waits until something has happened, and fails with all logs if it does not.
    pub async fn until<T>(&self, what: &str, mut happened: impl AsyncFnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(value) = happened().await {
                return value;
            }
            assert!(began.elapsed() < WAIT_LIMIT, "never: {what}\n{}", self.logs());
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the statuses of all running nodes satisfy this at the same time.
    pub async fn until_all(
        &self,
        what: &str,
        holds: impl Fn(&NodeStatus) -> bool,
    ) -> Vec<NodeStatus> {
        let running = self.nodes.iter().filter(|node| node.process.is_some()).count();
        let all = async || {
            Some(self.statuses().await).filter(|all| all.len() == running && all.iter().all(&holds))
        };
        self.until(what, all).await
    }

    /// Returns when the cluster's version is this build's on every running node. An operator finishes the upgrade: where
    /// a founder is silent for some seconds, as on a slow machine, a cluster begins at an earlier version and stays there.
    pub async fn until_newest_version(&self) {
        let operator = self.client().operator();
        // It is refused until every member's version is in the log.
        let finish = async || operator.finish_upgrade(VERSION).await.ok();
        self.until("the upgrade is finished", finish).await;
        let risen = |node: &NodeStatus| {
            node.versions.as_ref().is_some_and(|versions| versions.cluster == VERSION)
        };
        self.until_all("the newest version", risen).await;
    }

    /// Returns when ranges are deleted.
    pub async fn until_ranges(&self) {
        self.until_newest_version().await;
    }

    /// Returns when every running node knows a leader. Fails at once if one has ended.
    pub async fn wait_ready(&mut self) {
        let began = Instant::now();
        loop {
            let running = self.nodes.iter().filter(|node| node.process.is_some()).count();
            let statuses = self.statuses().await;
            if statuses.iter().filter(|status| status.leader.is_some()).count() == running {
                return;
            }
            let mut processes = self.nodes.iter_mut().filter_map(|node| node.process.as_mut());
            let ended = processes.any(|process| process.check_running().is_err());
            assert!(
                !ended && began.elapsed() < WAIT_LIMIT,
                "the cluster is not ready:\n{}",
                self.logs()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the node of this slot is an active voter under a new identity, and the old
    /// identity is no longer a member. (During the joint change that replaces it, both vote.)
    pub async fn wait_replaced(&self, before: &NodeStatus) -> NodeStatus {
        let replaced = async || {
            let own = self.statuses().await.into_iter().find(|status| status.slot == before.slot);
            own.filter(|own| own.members.iter().all(|member| member.node_id != before.node_id))
                .filter(|own| {
                    own.member_state == MemberState::Active && own.node_id != before.node_id
                })
        };
        self.until("a new member in the slot", replaced).await
    }

    /// The running node that leads.
    pub async fn leader(&self) -> usize {
        let leader = async || {
            let statuses = self.statuses().await;
            let leader = statuses.iter().find(|status| status.role == Role::Leader)?;
            Some(usize::from(leader.slot) - 1)
        };
        self.until("a leader", leader).await
    }

    /// Where every member is by the logs, once all running nodes agree on this.
    pub async fn until_logged(&self) {
        let endpoints = self.endpoints();
        let agrees = |status: &NodeStatus| {
            let members = status.members.iter();
            members.map(|member| member.client_address.clone()).collect::<Vec<_>>() == endpoints
        };
        self.until_all("every member at its present address", agrees).await;
    }
}
