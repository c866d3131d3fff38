//! A cluster of processes: how its nodes are formatted, started, ended, moved and replaced.

mod asks;

use super::WAIT_LIMIT;
use super::certificates::Certificates;
use super::machine::Machine;
use super::program::{CAIRN, code, hold, run};
use cairn_launch::{HeldPort, Member, Members, Server, Signal, serve};
use cairn_lossy::disk::Damage;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A cluster of server processes.
pub struct Cluster {
    /// The token of the clients that this makes.
    token: Option<String>,
    nodes: Vec<Node>,
    ports: Vec<HeldPort>,
    /// The cluster has certificates, and this is where.
    pub certificates: Option<Certificates>,
    /// What the disks lost in power cuts.
    pub damage: Damage,
    /// The last field: the machines' disks in it must be unmounted before it is removed.
    pub folder: TempDir,
}

/// Where the nodes of a cluster run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// All on the machine of the test.
    ThisOne,
    /// Each on a machine of its own, whose power can be cut. The test calls
    /// [`machine::can_have_machines`] first.
    Machines,
}

struct Node {
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    /// What its configuration says.
    member: Member,
    known: Members,
    data: PathBuf,
    lines: String,
    /// Variables that its process has beside those of this one.
    environment: Vec<(String, String)>,
    process: Option<Server>,
    machine: Option<Machine>,
}

impl Node {
    fn configure(&self) {
        let text = self.known.config(&self.member, &self.data, &self.lines);
        std::fs::write(&self.config, text).expect("a file");
    }

    /// Lets its configuration name only this member, as a seed if it is another one.
    fn know(&mut self, member: Member) {
        self.known.all = vec![member];
        self.configure();
    }

    fn format(&self, folder: &Path) {
        let ran = run(folder, &["format", "--config", self.config.to_str().expect("text")]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    }

    fn start(&mut self, folder: &Path, log: &Path) {
        let mut command = serve(&self.program, &self.config);
        command.current_dir(folder).envs(self.environment.iter().cloned());
        self.process = Some(Server::start("the node", command, log).expect("cairn starts"));
    }
}

/// A running node that is to take over a slot. Killed when dropped.
pub struct Successor(Node);

impl Successor {
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.0.log).unwrap_or_default()
    }
}

impl Cluster {
    /// Formats `size` members of `storage_bytes` each, with `more` lines in every configuration.
    /// Starts none.
    pub fn format(size: usize, storage_bytes: &str, more: &str) -> Cluster {
        Cluster::format_with(size, storage_bytes, |_, _| format!("insecure = true\n{more}"))
    }

    /// The same on these hosts.
    pub fn format_on(hosts: Hosts, size: usize, storage_bytes: &str, more: &str) -> Cluster {
        let more = |_: &Path, _| format!("insecure = true\n{more}");
        Cluster::format_of(hosts, (size, size), storage_bytes, more)
    }

    /// The same with certificates, which the command line makes.
    pub fn secured(size: usize, storage_bytes: &str, more: &str) -> Cluster {
        Cluster::secured_of(Hosts::ThisOne, (size, size), storage_bytes, more)
    }

    /// The same on these hosts, where only the first one forms a cluster, and the others can join it.
    pub fn growing(hosts: Hosts, size: usize, storage_bytes: &str, more: &str) -> Cluster {
        Cluster::secured_of(hosts, (size, 1), storage_bytes, more)
    }

    fn secured_of(hosts: Hosts, sizes: (usize, usize), storage_bytes: &str, more: &str) -> Cluster {
        let keys = |folder: &Path, slot: usize| {
            let keys = Certificates::at(folder).keys(&format!("member-{slot}"));
            format!("{keys}{more}")
        };
        let mut cluster = Cluster::format_of(hosts, sizes, storage_bytes, keys);
        let certificates = Certificates::make(cluster.folder.path(), sizes.0);
        cluster.certificates = Some(certificates);
        cluster
    }

    /// The same as [`Cluster::growing`], without certificates.
    pub fn growing_insecure(size: usize, storage_bytes: &str, more: &str) -> Cluster {
        let more = |_: &Path, _| format!("insecure = true\n{more}");
        Cluster::format_of(Hosts::ThisOne, (size, 1), storage_bytes, more)
    }

    /// `more`: further lines of the configuration of a slot.
    fn format_with(
        size: usize,
        storage_bytes: &str,
        more: impl Fn(&Path, usize) -> String,
    ) -> Cluster {
        Cluster::format_of(Hosts::ThisOne, (size, size), storage_bytes, more)
    }

    /// `initial` of `size` form the cluster; the others know the first one to join it.
    fn format_of(
        hosts: Hosts,
        (size, initial): (usize, usize),
        storage_bytes: &str,
        more: impl Fn(&Path, usize) -> String,
    ) -> Cluster {
        let folder = tempfile::tempdir().expect("a folder");
        let ports = cairn_launch::hold(size * 3).expect("ports");
        let mut members = Members::at("tested", &ports);
        members.initial = initial;
        let mut nodes = Vec::new();
        for member in &members.all {
            let slot = member.slot;
            let machine =
                (hosts == Hosts::Machines).then(|| Machine::new(folder.path(), &slot.to_string()));
            let own = folder.path().join(format!("data-{slot}"));
            let data = machine.as_ref().map_or(own, Machine::data);
            let keys = machine.as_ref().map(Machine::keys).unwrap_or_default();
            let more = more(folder.path(), slot.into());
            let node = Node {
                program: CAIRN.into(),
                config: folder.path().join(format!("{slot}.toml")),
                log: folder.path().join(format!("{slot}.log")),
                member: member.clone(),
                known: members.clone(),
                data,
                lines: format!("storage.size = \"{storage_bytes}\"\n{more}\n{keys}"),
                environment: Vec::new(),
                process: None,
                machine,
            };
            node.configure();
            node.format(folder.path());
            nodes.push(node);
        }
        let damage = Damage::default();
        Cluster { token: None, nodes, ports, certificates: None, damage, folder }
    }

    /// The same, for clients with this token.
    pub fn with_token(mut self, token: &str) -> Cluster {
        self.token = Some(token.into());
        self
    }

    /// Formats, starts, and waits until every node knows a leader.
    pub async fn start(size: usize, storage_bytes: &str, more: &str) -> Cluster {
        let mut cluster = Cluster::format(size, storage_bytes, more);
        cluster.start_all().await;
        cluster
    }

    /// Starts every node, and waits until every node knows a leader.
    pub async fn start_all(&mut self) {
        for node in 0..self.len() {
            self.start_node(node);
        }
        self.wait_ready().await;
    }

    pub fn start_node(&mut self, node: usize) {
        let log = self.nodes[node].log.clone();
        self.start_node_writing_to(node, &log);
    }

    /// The same with another log.
    pub fn start_node_writing_to(&mut self, node: usize, log: &Path) {
        self.nodes[node].start(self.folder.path(), log);
    }

    /// Whether the node's process was started and not stopped.
    pub fn runs(&self, node: usize) -> bool {
        self.nodes[node].process.is_some()
    }

    /// Whether the node's process was started, and has ended by itself.
    pub fn has_ended(&mut self, node: usize) -> bool {
        let process = self.nodes[node].process.as_mut();
        process.is_some_and(|process| process.check_running().is_err())
    }

    /// Sends SIGKILL, and returns when the process is gone.
    pub fn kill_node(&mut self, node: usize) {
        self.nodes[node].process = None;
    }

    /// Cuts the power of the node's machine. A node without a machine of its own only gets SIGKILL.
    pub fn fail_node(&mut self, node: usize) {
        let server = &mut self.nodes[node];
        if let Some(process) = &mut server.process {
            process.signal(Signal::KILL).expect("our own child");
        }
        if let Some(machine) = &mut server.machine {
            let damage = machine.cut_power();
            println!("slot {} lost its power: {damage:?}", node + 1);
            self.damage.add(damage);
        }
        self.kill_node(node);
    }

    /// Lets each sync of the machine of this node take a random time with this average; `None`: as long as before.
    pub fn sync_takes(&self, node: usize, time: Option<Duration>) {
        self.nodes[node].machine.as_ref().expect("a machine").sync_takes(time);
    }

    /// Takes the disk of a node that is down.
    pub fn lose_disk(&self, node: usize) {
        std::fs::remove_dir_all(self.data(node)).expect("the directory");
    }

    /// Sends SIGKILL to all before it waits for any of them.
    pub fn kill_all(&mut self) {
        let mut killed: Vec<Server> =
            self.nodes.iter_mut().filter_map(|node| node.process.take()).collect();
        for process in &mut killed {
            process.signal(Signal::KILL).expect("our own child");
        }
    }

    /// Closes standard input, which stops a server like SIGTERM does, and returns its exit code.
    pub fn stop_node(&mut self, node: usize) -> i32 {
        let mut process = self.nodes[node].process.take().expect("it runs");
        code(process.stop(WAIT_LIMIT).expect("it stops"))
    }

    /// Waits for the end of a node that ends by itself, and returns its exit code.
    pub fn ended(&mut self, node: usize) -> i32 {
        let mut process = self.nodes[node].process.take().expect("it was started");
        code(process.wait(WAIT_LIMIT).expect("it ends"))
    }

    /// Lets another build run the node from its next start on.
    pub fn install(&mut self, node: usize, program: &Path) {
        self.nodes[node].program = program.to_owned();
    }

    /// Gives the node these variables from its next start on.
    pub fn in_environment(&mut self, node: usize, variables: Vec<(String, String)>) {
        self.nodes[node].environment = variables;
    }

    /// Sends a signal to a running node.
    pub fn signal_node(&mut self, node: usize, signal: Signal) {
        let process = self.nodes[node].process.as_mut().expect("it runs");
        process.signal(signal).expect("our own child");
    }

    /// Adds lines to the configuration of a node.
    pub fn configure(&mut self, node: usize, lines: &str) {
        self.nodes[node].lines += &format!("{lines}\n");
        self.nodes[node].configure();
    }

    pub fn log(&self, node: usize) -> String {
        std::fs::read_to_string(&self.nodes[node].log).unwrap_or_default()
    }

    /// Gives a stopped node other addresses, in its own configuration only.
    pub fn move_node(&mut self, node: usize) {
        let (ports, new) = hold(2);
        self.ports.extend(ports);
        let node = &mut self.nodes[node];
        (node.member.client, node.member.peer) = (new[0].clone(), new[1].clone());
        node.configure();
    }

    /// Lets a node's configuration name itself as the only member, and no mode.
    pub fn configure_alone(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let kept = node.lines.lines().filter(|line| !line.starts_with("mode"));
        node.lines = kept.flat_map(|line| [line, "\n"]).collect();
        node.know(node.member.clone());
    }

    /// Lets a node's configuration name only this seed, and no members.
    pub fn join_only(&mut self, node: usize, seed: usize) {
        let seed = self.nodes[seed].member.clone();
        self.nodes[node].know(seed);
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn config(&self, node: usize) -> &str {
        self.nodes[node].config.to_str().expect("text")
    }

    pub fn data(&self, node: usize) -> PathBuf {
        self.nodes[node].data.clone()
    }

    /// Another machine for the slot of a running node: it has an empty directory and addresses of its
    /// own, asks to join, and runs beside that node.
    pub fn start_successor(&mut self, node: usize) -> Successor {
        let ports = cairn_launch::hold(3).expect("ports");
        let own = Members::at("tested", &ports).all.remove(0);
        self.ports.extend(ports);
        let (folder, old) = (self.folder.path(), &self.nodes[node]);
        let mut lines = old.lines.clone();
        let machine = old.machine.as_ref().map(|machine| {
            let own = Machine::new(folder, &format!("{}-next", node + 1));
            lines = lines.replace(&machine.keys(), &own.keys());
            own
        });
        let mut next = Node {
            program: CAIRN.into(),
            config: old.config.with_extension("next.toml"),
            log: old.log.with_extension("next.log"),
            member: Member { slot: old.member.slot, ..own },
            known: old.known.clone(),
            data: machine.as_ref().map_or(old.data.with_extension("next"), Machine::data),
            lines,
            environment: old.environment.clone(),
            process: None,
            machine,
        };
        // A member refuses whoever claims its own slot.
        next.know(self.nodes[if node == 0 { 1 } else { 0 }].member.clone());
        next.format(folder);
        let log = next.log.clone();
        next.start(folder, &log);
        Successor(next)
    }

    /// Stops the node, and takes its successor in its place. Returns the old directory.
    pub fn succeed(&mut self, node: usize, successor: Successor) -> PathBuf {
        self.kill_node(node);
        std::mem::replace(&mut self.nodes[node], successor.0).data.clone()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_all();
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

/// The value of a text key in a configuration file written by [`Cluster::format`].
pub fn value_of(config: &str, key: &str) -> String {
    let text = std::fs::read_to_string(config).expect("a configuration");
    let line =
        text.lines().find_map(|line| line.strip_prefix(&format!("{key} = \""))).expect("the key");
    line.trim_end_matches('"').to_string()
}
