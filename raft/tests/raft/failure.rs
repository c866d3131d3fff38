//! A device that fails ends the replica, and it says why.

use crate::support::{Cluster, put, until, write};
use cairn_engine::io::{AlignedBuf, Backend, Device, Directory, FileDirectory, FileKind, IoFuture};
use cairn_engine::{Engine, KernelBootId, Mode, Options};
use cairn_raft::{ReadError, Replica, ReplicaConfig, Role, WriteError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A directory whose devices fail every write and sync once they are told to.
struct Failing {
    real: FileDirectory,
    fail: Arc<AtomicBool>,
}

struct FailingDevice {
    real: Arc<dyn Device>,
    fail: Arc<AtomicBool>,
}

fn broken() -> io::Error {
    io::Error::other("the device is broken")
}

impl Directory for Failing {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(FailingDevice { real: self.real.open(kind)?, fail: self.fail.clone() }))
    }

    fn location(&self) -> String {
        self.real.location()
    }

    fn backend(&self) -> &'static str {
        self.real.backend()
    }
}

impl Device for FailingDevice {
    fn size(&self) -> u64 {
        self.real.size()
    }

    fn read(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        self.real.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        match self.fail.load(Ordering::SeqCst) {
            true => Box::pin(std::future::ready((Err(broken()), buf))),
            false => self.real.write(offset, buf),
        }
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        match self.fail.load(Ordering::SeqCst) {
            true => Box::pin(std::future::ready(Err(broken()))),
            false => self.real.sync(),
        }
    }
}

/// The leader of a cluster of one, and a switch that breaks its device.
async fn leader_that_may_fail() -> (Cluster, Replica, Arc<AtomicBool>) {
    let cluster = Cluster::new(1, |_| ()).await;
    let fail = Arc::new(AtomicBool::new(false));
    let real = FileDirectory::open(cluster.members[0].folder.path(), Backend::Threads).unwrap();
    let directory = Arc::new(Failing { real, fail: fail.clone() });
    let engine = Engine::open(directory, None, Options::new(Mode::Device, KernelBootId(7), 1))
        .await
        .unwrap();
    let mut config = ReplicaConfig::new(Mode::Device, cluster.addresses.clone());
    config.maintenance_ms = 20;
    let replica = Replica::start(config, engine).await.unwrap();
    until("leadership", || (replica.status().role == Role::Leader).then_some(())).await;
    (cluster, replica, fail)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_device_ends_the_replica_with_its_reason() {
    let (_cluster, replica, fail) = leader_that_may_fail().await;
    write(&replica, put("a", "1")).await;

    fail.store(true, Ordering::SeqCst);
    let lost = replica.write(put("b", "2")).await;
    assert!(
        matches!(lost, Err(WriteError::OutcomeUnknown(_) | WriteError::Stopped(_))),
        "{lost:?}"
    );
    let reason = replica.wait_stopped().await;
    assert!(reason.contains("the device is broken"), "{reason}");
    assert_eq!(replica.status().role, Role::Stopped);
    assert_eq!(replica.status().stopped_reason, Some(reason));
    assert!(matches!(replica.write(put("c", "3")).await, Err(WriteError::Stopped(_))));
    assert!(matches!(replica.read_barrier().await, Err(ReadError::Stopped(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_breaks_while_nothing_is_written_is_noticed() {
    let (_cluster, replica, fail) = leader_that_may_fail().await;
    fail.store(true, Ordering::SeqCst);
    // No request reaches replication: a background sync is what fails.
    assert!(replica.engine().sync().await.is_err());
    let reason = replica.wait_stopped().await;
    assert!(reason.contains("the device is broken"), "{reason}");
}
