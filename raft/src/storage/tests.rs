//! openraft's own storage conformance suite, on the real engine over real files.

use crate::core::ids::GROUP;
use crate::core::runtime;
use crate::core::types::{SnapshotMeta, TypeConfig, raft_log_id};
use crate::storage::history::{Effect, History, HistoryStatus};
use crate::storage::log_store::LogStore;
use crate::storage::mode_in_force::ModeInForce;
use crate::storage::progress::Progress;
use crate::storage::repair::{NoPeers, Repairer};
use crate::storage::state_machine::identities::Identities;
use crate::storage::state_machine::{Image, Incoming, PinnedSnapshot, SnapshotData, StateMachine};
use cairn_engine::io::{AlignedBuf, Backend, Device, Directory, FileDirectory, FileKind, IoFuture};
use cairn_engine::{
    Engine, Geometry, Identity, KernelBootId, LogId, MachineImage as _, Mode, Options,
};
use openraft::StorageError;
use openraft::storage::RaftStateMachine;
use openraft::testing::log::{StoreBuilder, Suite};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::watch;

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&folder).await;
        let repairer = Arc::new(Repairer::new(engine.clone(), Arc::new(NoPeers)));
        let modes = Arc::new(ModeInForce::new(engine.clone(), Mode::Device, None));
        let progress = Arc::new(Progress::new(Identities::default(), modes.clone()));
        let pinned = PinnedSnapshot::default();
        let history = Arc::new(History::default());
        let machine =
            StateMachine::new(engine.clone(), progress, pinned, repairer.clone(), history);
        Ok((folder, LogStore::new(engine, repairer, modes), machine.unwrap()))
    }
}

pub(crate) async fn engine(folder: &TempDir) -> Engine {
    engine_with(folder, |_| ()).await
}

pub(crate) async fn engine_with(folder: &TempDir, change: impl FnOnce(&mut Options)) -> Engine {
    engine_of(folder, 1, change).await
}

/// That of the member of `slot`, whose incarnation is the same number.
pub(crate) async fn engine_of(
    folder: &TempDir,
    slot: u16,
    change: impl FnOnce(&mut Options),
) -> Engine {
    format(folder, slot).await;
    let directory = FileDirectory::open(folder.path(), Backend::Threads).unwrap();
    open(Arc::new(directory), change).await
}

/// An engine whose writes and syncs can be held back.
pub(crate) async fn engine_to_hold(
    folder: &TempDir,
    change: impl FnOnce(&mut Options),
) -> (Engine, Hold) {
    format(folder, 1).await;
    let (directory, hold) = HeldDirectory::open(folder.path());
    (open(Arc::new(directory), change).await, hold)
}

async fn format(folder: &TempDir, slot: u16) {
    let geometry = Geometry::for_total(16 << 20).unwrap();
    let identity = Identity { cluster: "suite".into(), slot, incarnation: slot.into() };
    FileDirectory::create(folder.path(), &geometry, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let directory = FileDirectory::open(folder.path(), Backend::Threads).unwrap();
    Engine::format(&directory, geometry, &identity).await.unwrap();
}

async fn open(directory: Arc<dyn Directory>, change: impl FnOnce(&mut Options)) -> Engine {
    let mut options = Options::new(Mode::Device, KernelBootId(1), 1);
    change(&mut options);
    Engine::open(directory, None, options).await.unwrap()
}

/// A directory whose writes, syncs and copies wait while they are held.
pub(crate) struct HeldDirectory {
    real: FileDirectory,
    hold: Hold,
}

/// Holds back what a [`HeldDirectory`] is asked for.
#[derive(Clone, Default)]
pub(crate) struct Hold {
    held: watch::Sender<bool>,
    waiting: watch::Sender<u64>,
}

impl Hold {
    pub(crate) fn begin(&self) {
        self.held.send_replace(true);
    }

    pub(crate) fn end(&self) {
        self.held.send_replace(false);
    }

    /// Returns once something waits, or has waited.
    pub(crate) async fn holds_something(&self) {
        self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await.unwrap();
    }

    async fn pass(self) {
        if *self.held.borrow() {
            self.waiting.send_modify(|waiting| *waiting += 1);
        }
        self.held.subscribe().wait_for(|held| !held).await.unwrap();
    }
}

impl HeldDirectory {
    pub(crate) fn open(path: &Path) -> (HeldDirectory, Hold) {
        let (real, hold) = (FileDirectory::open(path, Backend::Threads).unwrap(), Hold::default());
        (HeldDirectory { real, hold: hold.clone() }, hold)
    }
}

impl Directory for HeldDirectory {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(HeldDevice { real: self.real.open(kind)?, hold: self.hold.clone() }))
    }

    fn location(&self) -> String {
        self.real.location()
    }

    fn backend(&self) -> &'static str {
        self.real.backend()
    }

    fn set_aside(&self, number: u64) -> IoFuture<io::Result<String>> {
        let (pass, copy) = (self.hold.clone().pass(), self.real.set_aside(number));
        Box::pin(async move {
            pass.await;
            copy.await
        })
    }
}

struct HeldDevice {
    real: Arc<dyn Device>,
    hold: Hold,
}

impl Device for HeldDevice {
    fn size(&self) -> u64 {
        self.real.size()
    }

    fn read(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        self.real.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (real, pass) = (self.real.clone(), self.hold.clone().pass());
        Box::pin(async move {
            pass.await;
            real.write(offset, buf).await
        })
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let (real, pass) = (self.real.clone(), self.hold.clone().pass());
        Box::pin(async move {
            pass.await;
            real.sync().await
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_passes_openrafts_storage_suite() {
    Suite::test_all(Builder).await.unwrap();
}

/// The story: a member of mode `device` took a snapshot whose mode is `sync`. What it appended
/// before the snapshot was published, it acknowledged without a sync.
#[tokio::test(flavor = "multi_thread")]
async fn the_mode_of_a_snapshot_binds_before_its_state_is_visible() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, hold) = engine_to_hold(&folder, |_| ()).await;
    let repairer = Arc::new(Repairer::new(engine.clone(), Arc::new(NoPeers)));
    let modes = Arc::new(ModeInForce::new(engine.clone(), Mode::Device, None));
    let progress = Arc::new(Progress::new(Identities::default(), modes.clone()));
    let (pinned, history) = (PinnedSnapshot::default(), Arc::new(History::default()));
    let machine = StateMachine::new(engine.clone(), progress, pinned, repairer, history.clone());
    let mut machine = machine.unwrap();
    let before = [LogId { term: 1, index: 3 }, LogId { term: 1, index: 4 }];
    history.applied(before.map(|id| (id, Effect::One(0), 0)));
    assert_eq!(history.status(runtime::now()).entries, 2);
    modes.applied(3, Some(Mode::Device), 3);
    let last = LogId { term: 1, index: 9 };
    let meta = SnapshotMeta { last_log_id: Some(raft_log_id(last)), ..SnapshotMeta::default() };
    let image = Image { mode: Some(Mode::Sync), mode_index: 8, ..Image::default() };
    let installer = engine.begin_install(GROUP).await.unwrap();
    let incoming = Incoming::new(installer, &image.encode(), &meta).unwrap();
    assert_eq!(modes.binding(), Mode::Device);
    hold.begin();
    let meanwhile = async {
        hold.holds_something().await;
        let seen = (engine.applied(GROUP), modes.binding());
        hold.end();
        seen
    };
    let install = machine.install_snapshot(&meta, SnapshotData::Incoming(Box::new(incoming)));
    let (installed, seen) = tokio::join!(install, meanwhile);
    installed.unwrap();
    assert_eq!(seen, (Some(last), Mode::Sync));
    assert!(!modes.is_changing());
    let HistoryStatus { oldest, entries, .. } = history.status(runtime::now());
    assert_eq!((oldest, entries), (Some(last), 0), "a snapshot does not say what came before it");
}
