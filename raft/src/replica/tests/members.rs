//! Three members of one cluster in one process, for tests of what they do together.

use super::*;
use crate::storage::tests::engine_of;
use openraft::ServerState;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Three members of one cluster, in one process.
pub(super) struct Members {
    pub(super) replicas: Vec<Replica>,
    _folders: Vec<TempDir>,
}

impl Members {
    /// One of them leads, and has logged the first mode.
    pub(super) async fn started() -> Members {
        Members::with_elections(|_| 60_000).await
    }

    /// A member campaigns after this many milliseconds, by its slot.
    pub(super) async fn with_elections(after: impl Fn(u16) -> u64) -> Members {
        Members::of(3, after).await
    }

    /// So many members.
    pub(super) async fn of(count: u16, after: impl Fn(u16) -> u64) -> Members {
        let bind = |_| TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let incoming: Vec<TcpIncoming> = (1..=count).map(bind).collect();
        let peer = |one: &TcpIncoming| one.local_addr().unwrap().to_string();
        let address =
            |one: &TcpIncoming| MemberAddress { peer: peer(one), client: "client:1".into() };
        let addresses: BTreeMap<u16, MemberAddress> =
            (1..).zip(incoming.iter().map(address)).collect();
        let (mut replicas, mut folders) = (Vec::new(), Vec::new());
        for (slot, incoming) in (1..).zip(incoming) {
            let folder = tempfile::tempdir().unwrap();
            let mut config = ReplicaConfig::new(Mode::Device, addresses.clone());
            let after = after(slot);
            (config.election_min_ms, config.election_max_ms) = (after, 2 * after);
            config.maintenance_ms = 20;
            let engine = engine_of(&folder, slot, |_| ()).await;
            let replica = Replica::start(config, engine).await.unwrap();
            let server = Server::builder().add_service(replica.peer_service());
            tokio::spawn(server.serve_with_incoming(incoming));
            replicas.push(replica);
            folders.push(folder);
        }
        let members = Members { replicas, _folders: folders };
        members
            .until("a leader", |one| (leads(one) && one.modes().cluster.is_some()).then_some(()))
            .await;
        members
    }

    /// What is so of a member, soon.
    pub(super) async fn until<T: Send>(
        &self,
        what: &str,
        so: impl Fn(&Replica) -> Option<T> + Send + Sync,
    ) -> T {
        let wait = async {
            loop {
                if let Some(found) = self.replicas.iter().find_map(&so) {
                    return found;
                }
                runtime::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = runtime::timeout(Duration::from_secs(20), wait).await;
        waited.unwrap_or_else(|| panic!("never: {what}"))
    }

    pub(super) fn leader(&self) -> &Replica {
        self.replicas.iter().find(|one| leads(one)).unwrap()
    }
}

pub(super) fn leads(replica: &Replica) -> bool {
    with_metrics(&replica.inner.member.raft, |metrics| metrics.state == ServerState::Leader)
}
