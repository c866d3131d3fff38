//! Three members of one cluster in one process, for tests of what they do together.

use super::*;
use crate::storage::tests::engine_of;
use openraft::ServerState;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Three members of one cluster, in one process.
pub(super) struct Members {
    pub(super) replicas: Vec<Replica>,
    folders: Vec<TempDir>,
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
        Members::over(None, count, after).await
    }

    /// The same, over links of which each connection carries so many bytes a second to a member.
    pub(super) async fn over(
        bytes_per_second: Option<u64>,
        count: u16,
        after: impl Fn(u16) -> u64,
    ) -> Members {
        let incoming: Vec<TcpListener> = (1..=count).map(|_| bind()).collect();
        let peer = |one: &TcpListener| {
            let address = one.local_addr().unwrap();
            bytes_per_second.map_or(address, |rate| slow_link(address, rate)).to_string()
        };
        let address =
            |one: &TcpListener| MemberAddress { peer: peer(one), client: "client:1".into() };
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
            tokio::spawn(replica.peer_service().serve(accepted(incoming)));
            replicas.push(replica);
            folders.push(folder);
        }
        let members = Members { replicas, folders };
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
        let waited = runtime::timeout(WAIT_LIMIT, wait).await;
        waited.unwrap_or_else(|| panic!("never: {what}"))
    }

    /// Waits until every start is recorded and all logs are equal: nothing is logged unasked any more.
    pub(super) async fn settled(&self) {
        let leader = self.leader();
        let last = |one: &Replica| one.engine().log_bounds(GROUP).last;
        let recorded = |one: &Replica| leader.knows_epoch(one.node_id(), one.engine().boot_epoch());
        let settled = |one: &Replica| recorded(one) && last(one) == last(leader);
        self.until("all are equal", |_| self.replicas.iter().all(settled).then_some(())).await;
    }

    /// A copy of a member's directory, as a power cut would leave it.
    pub(super) fn copy_of(&self, number: usize) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(self.folders[number].path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        folder
    }

    /// The leader, when there is one.
    pub(super) async fn leader_now(&self) -> &Replica {
        let number = self.until("a leader", |one| leads(one).then(|| one.node_id())).await;
        self.replicas.iter().find(|one| one.node_id() == number).unwrap()
    }

    pub(super) fn leader(&self) -> &Replica {
        self.replicas.iter().find(|one| leads(one)).unwrap()
    }
}

pub(super) fn leads(replica: &Replica) -> bool {
    with_metrics(&replica.inner.member.raft, |metrics| metrics.state == ServerState::Leader)
}

/// Where connections are taken that carry so many bytes a second to this address.
fn slow_link(to: SocketAddr, bytes_per_second: u64) -> SocketAddr {
    let listener = bind();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((taken, _)) = listener.accept().await {
            tokio::spawn(carry(taken, to, bytes_per_second));
        }
    });
    address
}

async fn carry(taken: TcpStream, to: SocketAddr, bytes_per_second: u64) -> std::io::Result<()> {
    let (mut from, mut back) = taken.into_split();
    let (mut answers, mut into) = TcpStream::connect(to).await?.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
    let mut piece = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return into.shutdown().await;
        }
        into.write_all(&piece[..count]).await?;
        runtime::sleep(Duration::from_micros(count as u64 * 1_000_000 / bytes_per_second)).await;
    }
}

/// A port of this machine.
pub(super) fn bind() -> TcpListener {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    TcpListener::from_std(listener).unwrap()
}

/// The connections to it.
pub(super) fn accepted(listener: TcpListener) -> impl Stream<Item = (TcpStream, Remote)> {
    futures::stream::unfold(listener, |listener| async {
        let (stream, address) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        Some(((stream, Remote { certificate: None, address: Some(address) }), listener))
    })
}
