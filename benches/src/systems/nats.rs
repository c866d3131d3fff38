//! Three servers of NATS with JetStream and a key-value bucket of three replicas, driven by its own
//! client library.
//!
//! The load goes only to the leader of the bucket's stream, over as many connections as with Cairn:
//! the fastest way to drive it.

use crate::progress::Step;
use crate::systems::built::GoProgram;
use crate::systems::workload::Store;
use anyhow::{Context, Result, bail};
use async_nats::jetstream::{self, kv, stream::StorageType};
use bytes::Bytes;
use cairn_launch::{HeldPort, Server, Signal, command};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// The server.
pub const PROGRAM: GoProgram = GoProgram {
    name: "nats-server",
    module: "github.com/nats-io/nats-server/v2",
    version: "v2.15.2",
    main: None,
};

const SERVERS: usize = 3;
const READY_WITHIN: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(30);
const BUCKET: &str = "bench";

/// A cluster of three.
pub struct NatsCluster {
    servers: Vec<Server>,
    leader: String,
    version: String,
    _ports: Vec<HeldPort>,
}

impl NatsCluster {
    /// Starts three servers with their data below `path`, and makes the bucket. `sync_always`: they
    /// sync before they acknowledge, which is not their default.
    ///
    /// # Errors
    /// If there is no such program, or there is no leader in time.
    pub async fn start(path: &Path, sync_always: bool) -> Result<NatsCluster> {
        let program = PROGRAM.get()?;
        let _step = Step::new("starting three NATS servers");
        let ports = cairn_launch::hold(SERVERS * 2).context("free ports")?;
        let addresses: Vec<String> = ports.iter().map(|port| port.address().to_string()).collect();
        let (clients, routes) = addresses.split_at(SERVERS);
        let all: Vec<String> =
            routes.iter().map(|route| format!("{:?}", format!("nats://{route}"))).collect();
        let mut servers = Vec::new();
        for (index, (client, route)) in clients.iter().zip(routes).enumerate() {
            let folder = path.join(format!("nats-{index}"));
            let sync = if sync_always { "sync_interval: always" } else { "" };
            let config = format!(
                "server_name: n{index}\nlisten: {client:?}\n\
                 jetstream {{ store_dir: {folder:?}, max_file_store: 16GB, {sync} }}\n\
                 cluster {{ name: bench, listen: {route:?}, routes: [{}] }}\n",
                all.join(", ")
            );
            let file = path.join(format!("nats-{index}.conf"));
            std::fs::write(&file, config).context("configuration")?;
            let mut command = command(&program, ["--config"]);
            command.arg(&file);
            let log = path.join(format!("nats-{index}.log"));
            servers.push(Server::start(&format!("NATS server {index}"), command, &log)?);
        }
        let until = Instant::now() + READY_WITHIN;
        loop {
            for server in &mut servers {
                server.check_running()?;
            }
            match find_leader(clients).await {
                Ok((leader, version)) => {
                    return Ok(NatsCluster { servers, leader, version, _ports: ports });
                }
                Err(error) if Instant::now() > until => {
                    return Err(
                        error.context(format!("NATS has no leader within {READY_WITHIN:?}"))
                    );
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// The version that the servers report.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The process ids of the servers.
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().map(Server::id).collect()
    }

    /// `connections` connections to the leader of the bucket's stream.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn connect(&self, connections: usize) -> Result<Vec<NatsStore>> {
        let mut pool = Vec::new();
        for _ in 0..connections.max(1) {
            let client = async_nats::connect(&self.leader).await.context("connecting to NATS")?;
            let bucket =
                jetstream::new(client).get_key_value(BUCKET).await.context("the bucket")?;
            pool.push(NatsStore(bucket));
        }
        Ok(pool)
    }

    /// Stops all servers.
    ///
    /// # Errors
    /// If one does not stop in time.
    pub async fn stop(self) -> Result<()> {
        for mut server in self.servers {
            server.signal(Signal::TERM)?;
            spawn_blocking(move || server.wait(STOP_WITHIN)).await??;
        }
        Ok(())
    }
}

/// Makes the bucket if there is none, and returns the address of its leader and its version.
async fn find_leader(clients: &[String]) -> Result<(String, String)> {
    let first = clients.first().context("a server")?;
    let client = async_nats::connect(first).await?;
    let config = kv::Config {
        bucket: BUCKET.to_owned(),
        history: 1,
        num_replicas: SERVERS,
        storage: StorageType::File,
        ..kv::Config::default()
    };
    let mut bucket = jetstream::new(client).create_key_value(config).await?;
    let info = bucket.stream.info().await?;
    let cluster = info.cluster.as_ref().context("no cluster")?;
    let leader = cluster.leader.clone().filter(|name| !name.is_empty()).context("no leader")?;
    if cluster.replicas.len() + 1 < SERVERS || cluster.replicas.iter().any(|other| !other.current) {
        bail!("a server does not follow yet");
    }
    for address in clients {
        let client = async_nats::connect(address).await?;
        let info = client.server_info();
        if info.server_name == leader {
            return Ok((address.clone(), info.version));
        }
    }
    bail!("none of the servers is the leader {leader}")
}

/// A connection.
#[derive(Clone)]
pub struct NatsStore(kv::Store);

impl Store for NatsStore {
    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        let key = std::str::from_utf8(&key).context("a key that is no text")?;
        self.0.put(key, value).await.context("put to NATS").map(drop)
    }

    async fn get(&self, _: Bytes) -> Result<Option<usize>> {
        bail!("any replica of NATS answers gets, also one that lags: they cannot be compared")
    }

    async fn put_all(&self, values: Vec<(Bytes, Bytes)>) -> Result<()> {
        for (key, value) in values {
            self.put(key, value).await?;
        }
        Ok(())
    }
}
