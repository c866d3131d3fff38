//! In mode `device`: watches that the device goes on keeping completed writes through a power cut.
//!
//! What holds here: once a device reports that they can be lost, nothing more is acknowledged before it is synced, or at all
//! where no sync reaches the device. What cannot be asked has reported nothing.

use crate::doctor::{Cache, Contract, Reason};
use cairn_engine::Engine;
use std::time::Duration;
use tracing::{error, warn};

/// How often the device is asked.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// What the device has taken back. Of what an operator states in its place, only the drive's own word does.
fn taken_back(contract: Contract, cache: Cache) -> Option<Reason> {
    match (contract, cache) {
        (_, Cache::Unprotected | Cache::Unsyncable) => Some(Reason::BackupFailed),
        (Contract::Shown, Cache::Volatile) => Some(Reason::VolatileCache),
        _ => None,
    }
}

/// Runs until the contract is taken back, and the engine syncs first or has failed.
pub(super) async fn watch(
    engine: Engine,
    contract: Contract,
    pause: Duration,
    ask: impl Fn() -> Result<Cache, String> + Clone + Send + 'static,
) {
    let mut asked = true;
    loop {
        tokio::time::sleep(pause).await;
        let cache = match tokio::task::spawn_blocking(ask.clone()).await {
            Ok(Ok(cache)) => cache,
            Ok(Err(reason)) => {
                if std::mem::take(&mut asked) {
                    warn!(reason, "whether the device still keeps completed writes cannot be asked");
                }
                continue;
            }
            Err(_) => continue,
        };
        asked = true;
        let Some(reason) = taken_back(contract, cache) else { continue };
        if cache == Cache::Unsyncable {
            error!("{}, and syncs do not reach it: the node stops. {}", reason.sentence(), reason.way_out());
            engine.give_device_up(reason.sentence());
            return;
        }
        error!(
            "mode `device` ends: {}. From now on every write is synced before it is acknowledged, as in mode `sync`. \
             {} and restart the node",
            reason.sentence(),
            reason.way_out()
        );
        if let Err(error) = engine.distrust_device().await {
            warn!(%error, "what was acknowledged before could not be synced");
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::io::{Backend, FileDirectory};
    use cairn_engine::{BootId, Geometry, Identity, Mode, Options};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn an_operators_statement_stands_until_the_drive_itself_takes_it_back() {
        for (contract, cache, reason) in [
            (Contract::Shown, Cache::None, None),
            (Contract::Shown, Cache::Unknown, None),
            (Contract::Shown, Cache::Volatile, Some(Reason::VolatileCache)),
            (Contract::Shown, Cache::Unprotected, Some(Reason::BackupFailed)),
            (Contract::Asserted, Cache::Volatile, None),
            (Contract::Asserted, Cache::Unprotected, Some(Reason::BackupFailed)),
        ] {
            assert_eq!(taken_back(contract, cache), reason, "{contract:?}, {cache:?}");
        }
    }

    #[tokio::test]
    async fn a_device_whose_protection_fails_is_synced_first_from_then_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        let geometry = Geometry::for_total(16 << 20).expect("a size");
        FileDirectory::create(&path, &geometry, &mut |_, _| {}).expect("a directory");
        let directory = FileDirectory::open(&path, Backend::Threads).expect("a directory");
        let identity = Identity { cluster: "c".into(), slot: 1, incarnation: 1 };
        Engine::format(&directory, geometry, &identity).await.expect("a format");
        let options = Options::new(Mode::Device, BootId(1), 1);
        let engine = Engine::open(Arc::new(directory), None, options).await.expect("an engine");
        let looks = Arc::new(AtomicUsize::new(0));
        let (counted, seen) = (looks.clone(), engine.clone());
        let ask = move || match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Err("not now".into()),
            1 => Ok(Cache::None),
            _ => {
                assert_eq!(seen.status().mode, Mode::Device);
                Ok(Cache::Unprotected)
            }
        };
        watch(engine.clone(), Contract::Shown, Duration::from_millis(1), ask).await;
        assert_eq!((looks.load(Ordering::SeqCst), engine.status().mode), (3, Mode::Sync));
        engine.close().await.expect("a close");
    }
}
