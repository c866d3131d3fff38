//! openraft's own storage conformance suite, on the real engine over real files.

use crate::core::types::TypeConfig;
use crate::storage::log_store::LogStore;
use crate::storage::modes::ModeInForce;
use crate::storage::progress::Progress;
use crate::storage::repair::{NoPeers, Repairer};
use crate::storage::state_machine::identities::Identities;
use crate::storage::state_machine::{PinnedSnapshot, StateMachine};
use cairn_engine::io::{Backend, FileDirectory};
use cairn_engine::{Engine, Geometry, Identity, KernelBootId, Mode, Options};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use std::ops::ControlFlow;
use std::sync::Arc;
use tempfile::TempDir;

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&folder).await;
        let repairer = Arc::new(Repairer::new(engine.clone(), Arc::new(NoPeers)));
        let modes = Arc::new(ModeInForce::new(engine.clone(), Mode::Device, None));
        let progress = Arc::new(Progress::new(Identities::default(), modes.clone()));
        let pinned = PinnedSnapshot::default();
        let machine = StateMachine::new(engine.clone(), progress, pinned, repairer.clone());
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
    let geometry = Geometry::for_total(16 << 20).unwrap();
    let identity = Identity { cluster: "suite".into(), slot, incarnation: slot.into() };
    FileDirectory::create(folder.path(), &geometry, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let directory = FileDirectory::open(folder.path(), Backend::Threads).unwrap();
    Engine::format(&directory, geometry, &identity).await.unwrap();
    let mut options = Options::new(Mode::Device, KernelBootId(1), 1);
    change(&mut options);
    Engine::open(Arc::new(directory), None, options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_passes_openrafts_storage_suite() {
    Suite::test_all(Builder).await.unwrap();
}
