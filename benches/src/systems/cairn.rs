//! Three `cairn serve` processes from the release build.

use crate::progress::Step;
use crate::systems::workload::{Caller, Store, Workload};
use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use cairn_client::proto::kv_client::KvClient;
use cairn_client::proto::{StatusRequest, StatusResponse, Storage};
use cairn_client::{Client, Options, proto};
use cairn_experiments::{Limit, drive};
use cairn_launch::{HeldPort, Members, Server, command, log_end, run, serve};
use cairn_tls::issue::{Authority, Issued, Validity};
use cairn_tls::{CertificateName, Connector, Expected, Files, Tls};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use tonic::transport::Endpoint;

const MEMBERS: usize = 3;
const READY_WITHIN: Duration = Duration::from_secs(30);
const LOG_LINES: usize = 20;
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// A cluster switches between the safe and the fast ack mode within seconds. These puts show the
/// switch.
const ACK_MODE_WITHIN: Duration = Duration::from_secs(30);
const ACK_MODE_PUTS: u64 = 500;

/// The command to put before `cairn serve`, for the folder of the run and a slot.
pub type Wrapper = Box<dyn Fn(&Path, u16) -> Option<Command> + Send + Sync>;

/// How the cluster runs.
pub struct ClusterOptions {
    /// Size of each data directory in bytes.
    pub size_bytes: u64,
    /// The durability mode: device, replicated or sync.
    pub mode: String,
    /// The I/O backend: auto, io_uring or threads.
    pub backend: &'static str,
    /// A tracer: the program and arguments to put before `cairn serve`, for each slot.
    pub wrapper: Wrapper,
    /// Another `cairn` than this workspace's.
    pub program: Option<PathBuf>,
    /// Connections with certificates.
    pub tls: bool,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            size_bytes: 4 << 30,
            mode: "replicated".to_owned(),
            backend: "auto",
            wrapper: Box::new(|_, _| None),
            program: None,
            tls: false,
        }
    }
}

/// One node.
pub struct CairnNode {
    server: Server,
    /// The process id of `cairn serve` itself.
    pid: u32,
    client_address: String,
    tls: Option<Tls>,
}

impl CairnNode {
    /// The process id of `cairn serve`, also if a tracer started it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    async fn stop(mut self) -> Result<()> {
        let status = spawn_blocking(move || self.server.stop(STOP_WITHIN)).await??;
        if !status.success() {
            bail!("a cairn node ended with {status}");
        }
        Ok(())
    }

    /// The storage part of the node's status.
    pub async fn status(&self) -> Result<Storage> {
        self.full_status().await?.storage.context("the node's status has no storage")
    }

    async fn full_status(&self) -> Result<StatusResponse> {
        status(&self.client_address, self.tls.as_ref()).await
    }
}

/// A cluster of three.
pub struct CairnCluster {
    nodes: Vec<CairnNode>,
    _ports: Vec<HeldPort>,
    tls: Option<Files>,
}

impl CairnCluster {
    /// Formats three directories below `path`, starts three processes and waits until a put
    /// succeeds.
    pub async fn start(path: &Path, options: &ClusterOptions) -> Result<CairnCluster> {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => program()?,
        };
        let step = Step::new("starting three cairn nodes");
        let ports = cairn_launch::hold(MEMBERS * 3).context("free ports")?;
        let mut members = Members::at("bench", &ports);
        for member in &mut members.all {
            member.http = "none".to_owned();
        }
        let certificates = options.tls.then(|| Certificates::make(path)).transpose()?;
        let own = match &certificates {
            Some(certificates) => {
                Some(certificates.issue(&CertificateName::client("bench", "bench")?, "client")?)
            }
            None => None,
        };
        let tls = own.clone().map(Tls::load).transpose()?;
        let mut nodes = Vec::new();
        for member in &members.all {
            let slot = member.slot;
            let security = match &certificates {
                Some(certificates) => certificates.keys(slot)?,
                None if knows_certificates(&program) => "insecure = true\n".to_owned(),
                None => String::new(),
            };
            let lines = format!(
                "{security}mode = {:?}\nstorage.size = \"{}\"\nstorage.backend = {:?}\n\
                 storage.assert_device_contract = {}\nlog.level = \"warn\"",
                options.mode,
                options.size_bytes,
                options.backend,
                // The benchmark measures what the mode costs, not whether this disk keeps its
                // promise.
                options.mode == "device",
            );
            let data_dir = path.join(format!("cairn-{slot}"));
            let config = path.join(format!("cairn-{slot}.toml"));
            std::fs::write(&config, members.config(member, &data_dir, &lines))
                .context("configuration")?;
            run(command(&program, ["format", "--config"]).arg(&config))?;
            let mut command = serve(&program, &config);
            if let Some(mut wrapper) = (options.wrapper)(path, slot) {
                wrapper.arg(command.get_program()).args(command.get_args());
                command = wrapper;
            }
            let name = format!("cairn node {slot}");
            let server = Server::start(&name, command, &log_file(path, slot))?;
            nodes.push(CairnNode {
                pid: server.id(),
                server,
                client_address: member.client.clone(),
                tls: tls.clone(),
            });
        }
        let mut cluster = CairnCluster { nodes, _ports: ports, tls: own };
        cluster.wait_ready(path).await?;
        drop(step);
        Ok(cluster)
    }

    async fn wait_ready(&mut self, path: &Path) -> Result<()> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            let mut ready = 0;
            for node in &mut self.nodes {
                node.server.check_running()?;
                let leader = node.full_status().await.ok().and_then(|status| status.leader);
                ready += usize::from(leader.is_some());
            }
            if ready == MEMBERS {
                break;
            }
            if Instant::now() > until {
                let log = |slot| log_end(&log_file(path, slot), LOG_LINES);
                let logs: Vec<String> = (1..).take(MEMBERS).map(log).collect();
                bail!("no leader within {READY_WITHIN:?}:\n{}", logs.join("\n--\n"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for node in &mut self.nodes {
            node.pid = traced_child(node.server.id()).unwrap_or(node.server.id());
        }
        let client = self.client().await?;
        client.put("ready", "yes").await.context("first put")?;
        Ok(())
    }

    /// The nodes, by slot.
    pub fn nodes(&self) -> &[CairnNode] {
        &self.nodes
    }

    /// The process ids of the nodes.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(CairnNode::pid).collect()
    }

    /// Where clients reach the nodes.
    pub fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.client_address.clone()).collect()
    }

    /// A new client with its own connections.
    pub async fn client(&self) -> Result<Client> {
        let options = Options::new(self.endpoints());
        let options = match self.tls.clone() {
            Some(Files { ca, certificate, key }) => options.tls(ca, certificate, key),
            None => options,
        };
        options.connect().await.context("connecting to cairn")
    }

    /// `clients` closed loops over `connections` clients.
    pub async fn callers(
        &self,
        workload: &Workload,
        clients: usize,
        connections: usize,
        seed: u64,
    ) -> Result<Vec<Caller<Client>>> {
        let mut pool = Vec::new();
        for _ in 0..connections.max(1) {
            pool.push(self.client().await?);
        }
        Ok(workload.callers(&pool, clients, seed))
    }

    /// Puts until every node acknowledges before it syncs. A new cluster begins in the safe ack
    /// mode; its leader switches to the fast mode when all members were healthy for a while, and
    /// then each node sets its unsynced-ack flag.
    pub async fn wait_for_fast_mode(&self, workload: &Workload, clients: usize) -> Result<()> {
        self.put_until_unsynced_acks(true, workload, clients).await
    }

    /// Stops one follower, and puts until the quorum is degraded and the others sync before they
    /// acknowledge.
    pub async fn degrade(&mut self, workload: &Workload, clients: usize) -> Result<()> {
        let mut follower = None;
        for (number, node) in self.nodes.iter().enumerate() {
            if node.full_status().await?.role() == proto::Role::Follower {
                follower = Some(number);
            }
        }
        let node = self.nodes.remove(follower.context("the cluster has no follower")?);
        node.stop().await?;
        self.put_until_unsynced_acks(false, workload, clients).await
    }

    async fn put_until_unsynced_acks(
        &self,
        unsynced_acks: bool,
        workload: &Workload,
        clients: usize,
    ) -> Result<()> {
        let puts = Workload { puts_percent: 100, ..workload.clone() };
        let until = Instant::now() + ACK_MODE_WITHIN;
        while Instant::now() < until {
            let putters = self.callers(&puts, clients, 1, 1).await?;
            drive(putters, Limit::Operations(ACK_MODE_PUTS)).await?;
            if self.all_have_unsynced_acks(unsynced_acks).await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!(
            "after {ACK_MODE_WITHIN:?} of puts not all nodes have their unsynced-ack flag {}",
            if unsynced_acks { "set" } else { "clear" }
        )
    }

    /// Whether the unsynced-ack flag of every node has this value.
    pub async fn all_have_unsynced_acks(&self, unsynced_acks: bool) -> Result<bool> {
        for node in &self.nodes {
            if node.status().await?.unsynced_acks != unsynced_acks {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Stops all nodes gracefully.
    pub async fn stop(self) -> Result<()> {
        for node in self.nodes {
            node.stop().await?;
        }
        Ok(())
    }
}

impl Store for Client {
    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        Client::put(self, key, value).await.context("put to cairn").map(drop)
    }

    async fn get(&self, key: Bytes) -> Result<Option<usize>> {
        let found = Client::get(self, key).await.context("get from cairn")?;
        Ok(found.map(|found| found.value.len()))
    }

    async fn put_all(&self, values: Vec<(Bytes, Bytes)>) -> Result<()> {
        let batch =
            values.into_iter().fold(self.batch(), |batch, (key, value)| batch.put(key, value));
        batch.commit().await.context("puts to cairn").map(drop)
    }
}

/// The certificates of a cluster.
struct Certificates {
    folder: PathBuf,
    ca: PathBuf,
    authority: Authority,
}

impl Certificates {
    fn make(folder: &Path) -> Result<Certificates> {
        let (authority, Issued { certificate, .. }) =
            Authority::create("bench", Validity::days(1))?;
        let (folder, ca) = (folder.to_owned(), folder.join("ca.pem"));
        std::fs::write(&ca, certificate).context("a CA")?;
        Ok(Certificates { folder, ca, authority })
    }

    fn issue(&self, name: &CertificateName, file: &str) -> Result<Files> {
        let issued = self.authority.issue(name, &[], Validity::days(1))?;
        let [certificate, key] =
            ["pem", "key"].map(|ending| self.folder.join(format!("{file}.{ending}")));
        std::fs::write(&certificate, issued.certificate).context("a certificate")?;
        std::fs::write(&key, issued.key).context("a key")?;
        Ok(Files { ca: self.ca.clone(), certificate, key })
    }

    /// The lines of a member's configuration.
    fn keys(&self, slot: u16) -> Result<String> {
        let name = CertificateName::member("bench", slot)?;
        let Files { ca, certificate, key } = self.issue(&name, &format!("member-{slot}"))?;
        Ok(format!("tls.ca = {ca:?}\ntls.certificate = {certificate:?}\ntls.key = {key:?}\n"))
    }
}

fn log_file(path: &Path, slot: u16) -> PathBuf {
    path.join(format!("cairn-{slot}.log"))
}

/// Whether this `cairn` is not older than certificates.
fn knows_certificates(program: &Path) -> bool {
    run(&mut command(program, ["config", "print", "--set", "insecure=true"])).is_ok()
}

async fn status(address: &str, tls: Option<&Tls>) -> Result<StatusResponse> {
    let ask = async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).context("an address")?;
        let channel = match tls.cloned() {
            None => endpoint.connect_lazy(),
            Some(tls) => {
                let expected = Expected::AnyMember;
                endpoint.connect_with_connector_lazy(Connector::new(Some(tls), expected))
            }
        };
        let mut stub = KvClient::new(channel);
        Ok::<_, anyhow::Error>(
            stub.status(StatusRequest {}).await.map_err(|s| anyhow!("status: {s}"))?.into_inner(),
        )
    };
    tokio::time::timeout(Duration::from_secs(5), ask)
        .await
        .context("a node did not send its status in time")?
}

/// The tracer's only child.
fn traced_child(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The program to measure: `CAIRN_BIN`, or else the release build of this source tree. It is built
/// now, so that it is never out of date.
pub fn program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("CAIRN_BIN") {
        return Ok(PathBuf::from(program));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("workspace")?;
    let _step = Step::new("building cairn");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "--package", "cairn-node", "--bin", "cairn"];
    run(command(cargo, build).arg("--manifest-path").arg(workspace.join("Cargo.toml")))
        .context("building cairn; or set CAIRN_BIN to a binary")?;
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace.join("target"), PathBuf::from);
    Ok(target.join("release").join("cairn"))
}
