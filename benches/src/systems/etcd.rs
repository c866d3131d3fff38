//! Three members of etcd as its packages ship it, driven in its own protocol.
//!
//! The load goes only to the leader, over as many connections as with Cairn, like etcd's own
//! `benchmark put --target-leader --conns --clients`: the fastest way to drive etcd.

use crate::progress::Step;
use crate::systems::built::GoProgram;
use crate::systems::workload::Store;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use cairn_launch::{HeldPort, Server, Signal, command};
use proto::kv_client::KvClient;
use proto::maintenance_client::MaintenanceClient;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use tonic::transport::{Channel, Endpoint};

/// Generated from `proto/etcd.proto`.
#[allow(missing_docs, clippy::all)]
mod proto {
    include!("../../generated/etcdserverpb.rs");
}

const MEMBERS: usize = 3;
const READY_WITHIN: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// A cluster of three.
pub struct EtcdCluster {
    members: Vec<(Server, String)>,
    leader: Endpoint,
    version: String,
    _ports: Vec<HeldPort>,
}

/// The server.
pub const PROGRAM: GoProgram = GoProgram {
    name: "etcd",
    module: "go.etcd.io/etcd/server/v3",
    version: "v3.7.3",
    main: Some("go.etcd.io/etcd/server/v3/etcdmain"),
};

impl EtcdCluster {
    /// Starts three members with their data below `path` and waits for a leader.
    /// `fsync`: as it ships, else with `--unsafe-no-fsync`.
    pub async fn start(path: &Path, fsync: bool) -> Result<EtcdCluster> {
        let program = PROGRAM.get()?;
        let _step = Step::new("starting three etcd members");
        let ports = cairn_launch::hold(MEMBERS * 2).context("free ports")?;
        let urls: Vec<String> =
            ports.iter().map(|port| format!("http://{}", port.address())).collect();
        let (client, peer) = urls.split_at(MEMBERS);
        let initial: Vec<String> =
            peer.iter().enumerate().map(|(index, url)| format!("m{index}={url}")).collect();
        let mut members = Vec::new();
        for (index, (client, peer)) in client.iter().zip(peer).enumerate() {
            let mut command = command(&program, ["--name", &format!("m{index}"), "--data-dir"]);
            command.arg(path.join(format!("etcd-{index}")));
            command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
            command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
            command.args(["--initial-cluster", &initial.join(",")]);
            command.args(["--initial-cluster-state", "new"]);
            command.args(["--quota-backend-bytes", "8589934592"]);
            command.args(["--logger", "zap", "--log-level", "error"]);
            if !fsync {
                command.arg("--unsafe-no-fsync");
            }
            let log = path.join(format!("etcd-{index}.log"));
            let server = Server::start(&format!("etcd member {index}"), command, &log)?;
            members.push((server, client.clone()));
        }
        let until = Instant::now() + READY_WITHIN;
        loop {
            for (server, _) in &mut members {
                server.check_running()?;
            }
            if let Some((leader, version)) = find_leader(&members).await {
                let leader = Endpoint::from_shared(leader)?;
                return Ok(EtcdCluster { members, leader, version, _ports: ports });
            }
            if Instant::now() > until {
                bail!("etcd has no leader within {READY_WITHIN:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The version that etcd reports.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The process ids of the members.
    pub fn pids(&self) -> Vec<u32> {
        self.members.iter().map(|(server, _)| server.id()).collect()
    }

    /// `connections` connections to the leader.
    pub async fn connect(&self, connections: usize) -> Result<Vec<EtcdStore>> {
        let mut pool = Vec::new();
        for _ in 0..connections.max(1) {
            let endpoint = self.leader.clone().tcp_nodelay(true);
            let channel = endpoint.connect().await.context("connecting to etcd")?;
            pool.push(EtcdStore(KvClient::new(channel)));
        }
        Ok(pool)
    }

    /// Stops all members.
    pub async fn stop(self) -> Result<()> {
        for (mut server, _) in self.members {
            server.signal(Signal::TERM)?;
            // etcd ends by the signal that stops it, so its exit status means nothing.
            spawn_blocking(move || server.wait(STOP_WITHIN)).await??;
        }
        Ok(())
    }
}

/// The leader's address and version, once each member knows the same leader.
async fn find_leader(members: &[(Server, String)]) -> Option<(String, String)> {
    let mut answers = Vec::new();
    for (_, url) in members {
        let endpoint = Endpoint::from_shared(url.clone()).ok()?.timeout(Duration::from_secs(2));
        let channel = endpoint.connect().await.ok()?;
        let mut stub = MaintenanceClient::new(channel);
        let status = stub.status(proto::StatusRequest {}).await.ok()?.into_inner();
        answers.push((status.header?.member_id, status.leader, url.clone(), status.version));
    }
    let leader = answers.first()?.1;
    if leader == 0 || answers.iter().any(|answer| answer.1 != leader) {
        return None;
    }
    answers.into_iter().find(|answer| answer.0 == leader).map(|(_, _, url, version)| (url, version))
}

/// A connection.
#[derive(Clone)]
pub struct EtcdStore(KvClient<Channel>);

impl Store for EtcdStore {
    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        let mut stub = self.0.clone();
        stub.put(proto::PutRequest { key, value }).await.context("put to etcd").map(drop)
    }

    async fn get(&self, key: Bytes) -> Result<Option<usize>> {
        let request = proto::RangeRequest { key };
        let found = self.0.clone().range(request).await.context("get from etcd")?.into_inner();
        Ok(found.kvs.first().map(|found| found.value.len()))
    }

    async fn put_all(&self, values: Vec<(Bytes, Bytes)>) -> Result<()> {
        let put =
            |(key, value)| proto::RequestOp { request_put: Some(proto::PutRequest { key, value }) };
        let request = proto::TxnRequest { success: values.into_iter().map(put).collect() };
        let answer = self.0.clone().txn(request).await.context("puts to etcd")?.into_inner();
        ensure!(answer.succeeded, "etcd did not put all keys");
        Ok(())
    }
}
