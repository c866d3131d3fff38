//! In mode `device`: checks that devices and filesystem still keep completed writes through a power cut.
//!
//! What holds here: once a device reports that completed writes can be lost, or a file has extents
//! that an overwrite does not reach in place, the node syncs each write before it acknowledges it; if
//! no sync reaches the device, it acknowledges nothing more. What cannot be asked has reported nothing.

use crate::doctor::{Cache, Contract, Mapping, Observation, Reason};
use cairn_engine::Engine;
use std::time::Duration;
use tracing::{error, warn};

/// How often the node asks.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Why the contract no longer holds, if so. Against an operator's assertion only the drive's own
/// report counts, and what the filesystem is seen to do.
fn withdrawn(contract: Contract, cache: Cache, mapping: Mapping) -> Option<Reason> {
    match (contract, cache) {
        (_, Cache::Unprotected | Cache::Unsyncable) => return Some(Reason::BackupFailed),
        (Contract::Shown, Cache::Volatile) => return Some(Reason::VolatileCache),
        _ => {}
    }
    // A new extent is in the filesystem's log only later: a power cut takes the write back.
    match mapping {
        Mapping::Shared => Some(Reason::ExtentsShared),
        Mapping::Unwritten => Some(Reason::ExtentsUnwritten),
        Mapping::Whole | Mapping::Unknown => None,
    }
}

/// Has the engine sync first once the contract no longer holds. Runs until no sync reaches the device, and
/// the engine has failed.
pub(super) async fn watch(
    engine: Engine,
    contract: Contract,
    interval: Duration,
    ask: impl Fn() -> Observation + Clone + Send + 'static,
) {
    let (mut answers, mut syncs) = (true, false);
    loop {
        tokio::time::sleep(interval).await;
        let Ok(Observation { cache, mapping }) = tokio::task::spawn_blocking(ask.clone()).await
        else {
            continue;
        };
        let reasons = [cache.as_ref().err(), mapping.as_ref().err()];
        let reason = reasons.into_iter().flatten().cloned().collect::<Vec<_>>().join("; ");
        if std::mem::replace(&mut answers, reason.is_empty()) && !reason.is_empty() {
            warn!(
                reason,
                "it cannot be seen whether device and filesystem still keep completed writes"
            );
        }
        // One that does not answer does not hide what the other one says.
        let (cache, mapping) =
            (cache.unwrap_or(Cache::Unknown), mapping.unwrap_or(Mapping::Unknown));
        let Some(reason) = withdrawn(contract, cache, mapping) else { continue };
        if cache == Cache::Unsyncable {
            error!(
                "{}, and syncs do not reach it: the node stops. {}",
                reason.sentence(),
                reason.way_out()
            );
            engine.fail_device(reason.sentence());
            return;
        }
        // The story: a copy shared extents, and nobody asked the drive any more, which lost its protection later.
        if std::mem::replace(&mut syncs, true) {
            continue;
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
            let found = withdrawn(contract, cache, Mapping::Whole);
            assert_eq!(found, reason, "{contract:?}, {cache:?}");
        }
    }

    #[test]
    fn an_assertion_about_the_device_says_nothing_for_extents_that_a_write_leaves() {
        for contract in [Contract::Shown, Contract::Asserted] {
            for (mapping, reason) in [
                (Mapping::Whole, None),
                (Mapping::Unknown, None),
                (Mapping::Shared, Some(Reason::ExtentsShared)),
                (Mapping::Unwritten, Some(Reason::ExtentsUnwritten)),
            ] {
                let found = withdrawn(contract, Cache::None, mapping);
                assert_eq!(found, reason, "{contract:?}, {mapping:?}");
            }
        }
        let both = withdrawn(Contract::Shown, Cache::Unsyncable, Mapping::Shared);
        assert_eq!(both, Some(Reason::BackupFailed), "syncs do not help there");
    }

    /// An engine in mode `device`, in a directory of its own.
    async fn engine(folder: &tempfile::TempDir) -> Engine {
        let path = folder.path().join("data");
        let geometry = Geometry::for_total(16 << 20).expect("a size");
        FileDirectory::create(&path, &geometry, &mut |_, _| std::ops::ControlFlow::Continue(()))
            .expect("a directory");
        let directory = FileDirectory::open(&path, Backend::Threads).expect("a directory");
        let identity = Identity { cluster: "c".into(), slot: 1, incarnation: 1 };
        Engine::format(&directory, geometry, &identity).await.expect("a format");
        let options = Options::new(Mode::Device, KernelBootId(1), 1);
        Engine::open(Arc::new(directory), None, options).await.expect("an engine")
    }

    async fn watch_until_it_syncs(
        engine: &Engine,
        contract: Contract,
        ask: impl Fn() -> Observation + Clone + Send + 'static,
    ) {
        let watching = watch(engine.clone(), contract, Duration::from_millis(1), ask);
        let syncs = async {
            while engine.status().mode != Mode::Sync {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = watching => panic!("the engine has failed"),
            () = syncs => {}
        }
    }

    const GOOD: Observation = Observation { cache: Ok(Cache::None), mapping: Ok(Mapping::Whole) };

    #[tokio::test]
    async fn a_device_whose_protection_fails_is_synced_first_from_then_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = engine(&folder).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let (counted, seen) = (calls.clone(), engine.clone());
        let ask = move || match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Observation { cache: Err("not now".into()), ..GOOD },
            1 => {
                assert_eq!(seen.status().mode, Mode::Device);
                GOOD
            }
            // Files that cannot be examined do not hide what the drive says.
            _ => Observation { cache: Ok(Cache::Unprotected), mapping: Err("not now".into()) },
        };
        watch_until_it_syncs(&engine, Contract::Shown, ask).await;
        assert!(calls.load(Ordering::SeqCst) >= 3);
        engine.close().await.expect("a close");
    }

    /// The story: `cp -a` of coreutils 9 made a copy of a running member's directory on XFS by sharing its
    /// extents. From then on an overwrite went to new blocks, which the filesystem knew in memory alone,
    /// and mode `device` still acknowledged it without a sync. Only the next start saw that.
    #[tokio::test]
    async fn files_whose_extents_a_copy_shares_are_synced_first_from_then_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = engine(&folder).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let (counted, seen) = (calls.clone(), engine.clone());
        let ask = move || match counted.fetch_add(1, Ordering::SeqCst) {
            0 => GOOD,
            1 => {
                assert_eq!(seen.status().mode, Mode::Device);
                Observation { mapping: Ok(Mapping::Shared), ..GOOD }
            }
            _ => Observation { mapping: Ok(Mapping::Shared), ..GOOD },
        };
        watch_until_it_syncs(&engine, Contract::Asserted, ask).await;
        assert!(calls.load(Ordering::SeqCst) >= 2);
        engine.close().await.expect("a close");
    }

    #[tokio::test]
    async fn a_drive_whose_syncs_reach_nothing_stops_a_node_that_syncs_first_already() {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = engine(&folder).await;
        let (calls, seen) = (AtomicUsize::new(0), engine.clone());
        let calls = Arc::new(calls);
        let ask = move || match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Observation { mapping: Ok(Mapping::Shared), ..GOOD },
            _ => {
                assert_eq!(seen.status().mode, Mode::Sync);
                Observation { cache: Ok(Cache::Unsyncable), mapping: Ok(Mapping::Shared) }
            }
        };
        watch(engine.clone(), Contract::Shown, Duration::from_millis(1), ask).await;
        assert!(engine.status().failed.is_some());
    }

    /// What the two closures above answer is what the doctor finds in a directory that a node has open.
    #[tokio::test]
    async fn the_files_of_a_node_in_use_are_seen_as_they_were_formatted() {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = engine(&folder).await;
        let found = crate::doctor::observe(&folder.path().join("data")).mapping;
        assert!(matches!(found, Ok(Mapping::Whole | Mapping::Unknown)), "{found:?}");
        let missing = crate::doctor::observe(&folder.path().join("other"));
        assert!(missing.mapping.is_err_and(|reason| reason.contains("other/data")));
        engine.close().await.expect("a close");
    }
}
