//! In mode `device`: checks that the device still keeps completed writes through a power cut.
//!
//! What holds here: once a device reports that completed writes can be lost, the node syncs each
//! write before it acknowledges it; if no sync reaches the device, it acknowledges nothing more. A
//! device that cannot be asked has reported nothing.

use crate::doctor::{Cache, Contract, Reason};
use cairn_engine::Engine;
use std::time::Duration;
use tracing::{error, warn};

/// How often the node asks the device.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Why the contract no longer holds, if so. Against an operator's assertion only the drive's own
/// report counts.
fn withdrawn(contract: Contract, cache: Cache) -> Option<Reason> {
    match (contract, cache) {
        (_, Cache::Unprotected | Cache::Unsyncable) => Some(Reason::BackupFailed),
        (Contract::Shown, Cache::Volatile) => Some(Reason::VolatileCache),
        _ => None,
    }
}

/// Runs until the contract no longer holds, and the engine syncs first or has failed.
pub(super) async fn watch(
    engine: Engine,
    contract: Contract,
    interval: Duration,
    ask: impl Fn() -> Result<Cache, String> + Clone + Send + 'static,
) {
    let mut answers = true;
    loop {
        tokio::time::sleep(interval).await;
        let cache = match tokio::task::spawn_blocking(ask.clone()).await {
            Ok(Ok(cache)) => cache,
            Ok(Err(reason)) => {
                if std::mem::take(&mut answers) {
                    warn!(
                        reason,
                        "the device cannot be asked whether it still keeps completed writes"
                    );
                }
                continue;
            }
            Err(_) => continue,
        };
        answers = true;
        let Some(reason) = withdrawn(contract, cache) else { continue };
        if cache == Cache::Unsyncable {
            error!(
                "{}, and syncs do not reach it: the node stops. {}",
                reason.sentence(),
                reason.way_out()
            );
            engine.fail_device(reason.sentence());
            return;
        }
        error!(
            "mode `device` ends: {}. From now on every write is synced before it is acknowledged, as in mode `sync`. \
             {} and restart the node",
            reason.sentence(),
            reason.way_out()
        );
        if let Err(error) = engine.require_syncs().await {
            warn!(%error, "writes that were acknowledged before could not be synced");
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::io::{Backend, FileDirectory};
    use cairn_engine::{Geometry, Identity, KernelBootId, Mode, Options};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn an_operators_assertion_holds_until_the_drive_itself_contradicts_it() {
        for (contract, cache, reason) in [
            (Contract::Shown, Cache::None, None),
            (Contract::Shown, Cache::Unknown, None),
            (Contract::Shown, Cache::Volatile, Some(Reason::VolatileCache)),
            (Contract::Shown, Cache::Unprotected, Some(Reason::BackupFailed)),
            (Contract::Asserted, Cache::Volatile, None),
            (Contract::Asserted, Cache::Unprotected, Some(Reason::BackupFailed)),
        ] {
            assert_eq!(withdrawn(contract, cache), reason, "{contract:?}, {cache:?}");
        }
    }

    #[tokio::test]
    async fn a_device_whose_protection_fails_is_synced_first_from_then_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        let geometry = Geometry::for_total(16 << 20).expect("a size");
        FileDirectory::create(&path, &geometry, &mut |_, _| std::ops::ControlFlow::Continue(()))
            .expect("a directory");
        let directory = FileDirectory::open(&path, Backend::Threads).expect("a directory");
        let identity = Identity { cluster: "c".into(), slot: 1, incarnation: 1 };
        Engine::format(&directory, geometry, &identity).await.expect("a format");
        let options = Options::new(Mode::Device, KernelBootId(1), 1);
        let engine = Engine::open(Arc::new(directory), None, options).await.expect("an engine");
        let calls = Arc::new(AtomicUsize::new(0));
        let (counted, seen) = (calls.clone(), engine.clone());
        let ask = move || match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Err("not now".into()),
            1 => Ok(Cache::None),
            _ => {
                assert_eq!(seen.status().mode, Mode::Device);
                Ok(Cache::Unprotected)
            }
        };
        watch(engine.clone(), Contract::Shown, Duration::from_millis(1), ask).await;
        assert_eq!((calls.load(Ordering::SeqCst), engine.status().mode), (3, Mode::Sync));
        engine.close().await.expect("a close");
    }
}
