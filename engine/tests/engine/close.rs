//! After a clean stop the next open replays nothing. Whatever cuts the stop off, nothing is lost.

use crate::support::store::{GROUP, filled, fresh, id, image, options, put, put_one};
use crate::support::{Cache, Disk, Fate, Random, geometry, identity, run};
use cairn_disk::Failing;
use cairn_engine::io::FileKind;
use cairn_engine::{Engine, Error, KernelBootId, Mode, Options};
use std::sync::Arc;
use std::time::Duration;

const KEYS: u64 = 20;

async fn filled_disk(mode: Mode) -> (Disk, Engine) {
    let (disk, engine) = fresh(mode).await;
    for index in 0..KEYS {
        put_one(&engine, index, &format!("k{index}"), filled(5000, index)).await.unwrap();
    }
    (disk, engine)
}

async fn reopened(disk: &Disk, mode: Mode) -> Engine {
    Engine::open(Arc::new(disk.clone()), None, options(mode)).await.unwrap()
}

/// The blocks that this open replayed. The last one written is its own, which is empty.
fn replayed(engine: &Engine) -> u64 {
    let status = engine.status();
    status.written_sequence - 1 - status.checkpoint_sequence
}

/// Applies what an open has not, as the caller does, and checks every value.
async fn check(engine: &Engine, what: &str) {
    let next = engine.applied(GROUP).map_or(0, |applied| applied.index + 1);
    for index in next..KEYS {
        engine.apply(GROUP, vec![put(index, &format!("k{index}"))], image(index)).unwrap();
    }
    for index in 0..KEYS {
        let found = engine.get(GROUP, format!("k{index}").as_bytes()).await.unwrap();
        assert!(found.is_some_and(|(_, value)| value == filled(5000, index)), "{what}: k{index}");
    }
}

#[test]
fn an_open_after_a_clean_stop_replays_nothing_and_after_a_kill_it_replays_the_journal() {
    for mode in [Mode::Device, Mode::Replicated, Mode::Sync] {
        run(async {
            let (disk, engine) = filled_disk(mode).await;
            engine.close().await.unwrap();
            assert_eq!(engine.status().checkpoint_sequence, engine.status().written_sequence);
            drop(engine);
            disk.kill(Fate::Kept);
            let engine = reopened(&disk, mode).await;
            assert_eq!((replayed(&engine), engine.applied(GROUP)), (0, Some(id(KEYS - 1))));
            check(&engine, "after a clean stop").await;
            put_one(&engine, KEYS, "more", filled(10, 1)).await.unwrap();
            drop(engine);
            disk.kill(Fate::Kept);
            let engine = reopened(&disk, mode).await;
            assert!(replayed(&engine) > 0);
            assert_eq!(engine.log_bounds(GROUP).last, Some(id(KEYS)));
            check(&engine, "after a kill").await;
        });
    }
}

#[test]
fn a_stop_with_nothing_new_writes_no_checkpoint() {
    run(async {
        let (disk, engine) = filled_disk(Mode::Replicated).await;
        engine.close().await.unwrap();
        engine.close().await.unwrap();
        assert_eq!(engine.status().checkpoints, 1);
        drop(engine);
        // The block that begins the boot epoch is empty: it needs no checkpoint.
        let engine = reopened(&disk, Mode::Replicated).await;
        assert_eq!(replayed(&engine), 0);
        engine.close().await.unwrap();
        assert_eq!(engine.status().checkpoints, 0);
    });
}

/// The story: the last applied entries were in the checkpoint of a clean end alone. It was damaged,
/// and an open from the older one did not know that blocks of older values had been freed since.
#[test]
fn the_journal_knows_what_was_applied_before_a_clean_stop() {
    run(async {
        let (disk, engine) = filled_disk(Mode::Replicated).await;
        engine.close().await.unwrap();
        drop(engine);
        disk.kill(Fate::Kept);
        disk.damage(FileKind::Checkpoint1, |bytes| bytes[40..3 * 4096].fill(1));
        let engine = reopened(&disk, Mode::Replicated).await;
        assert!(replayed(&engine) > 0, "the older checkpoint was loaded");
        assert_eq!(engine.applied_before_restart(GROUP), Some(id(KEYS - 1)));
        check(&engine, "from the older checkpoint").await;
    });
}

#[test]
fn a_checkpoint_that_takes_too_long_does_not_hold_up_the_stop_and_nothing_is_lost() {
    run(async {
        let mode = Mode::Replicated;
        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        let options = Options { last_checkpoint: Duration::from_millis(1), ..options(mode) };
        let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
        for index in 0..KEYS {
            put_one(&engine, index, &format!("k{index}"), filled(5000, index)).await.unwrap();
        }
        disk.hold(FileKind::Checkpoint1);
        engine.close().await.unwrap();
        assert_eq!(engine.status().checkpoints, 0);
        assert!(!engine.status().unsynced_acks);
        drop(engine);
        disk.reboot(Cache::Volatile, Fate::Random(1));
        let engine = reopened(&disk, mode).await;
        assert!(replayed(&engine) > 0);
        check(&engine, "after a stop without a checkpoint").await;
    });
}

#[test]
fn an_engine_that_failed_takes_no_checkpoint_at_its_end() {
    run(async {
        let (disk, engine) = filled_disk(Mode::Replicated).await;
        disk.arrange(Failing::Write, FileKind::Journal);
        put_one(&engine, KEYS, "more", filled(10, 1)).await.unwrap_err();
        let before = [FileKind::Checkpoint0, FileKind::Checkpoint1].map(|kind| disk.bytes(kind));
        engine.close().await.unwrap_err();
        assert!(before == [FileKind::Checkpoint0, FileKind::Checkpoint1].map(|k| disk.bytes(k)));
    });
}

#[test]
fn a_write_that_fails_in_the_checkpoint_at_the_end_is_reported_and_recorded() {
    run(async {
        let (disk, engine) = filled_disk(Mode::Replicated).await;
        disk.arrange(Failing::Write, FileKind::Checkpoint1);
        let error = engine.close().await.unwrap_err();
        assert!(matches!(error, Error::Failed { file: FileKind::Checkpoint1, .. }), "{error}");
        assert!(engine.status().failed_sync_recorded);
        drop(engine);
        disk.kill(Fate::Kept);
        check(&reopened(&disk, Mode::Replicated).await, "after a failed write").await;
    });
}

#[test]
fn a_power_cut_at_any_operation_of_a_stop_loses_nothing() {
    for cache in [Cache::Protected, Cache::Volatile] {
        let mode = if cache == Cache::Protected { Mode::Device } else { Mode::Sync };
        let mut at = 1;
        loop {
            let ended = run(async {
                let (disk, engine) = filled_disk(mode).await;
                {
                    let mut core = disk.core.lock().unwrap();
                    core.cut_at = Some(core.operations + at);
                }
                let ended = tokio::select! {
                    biased;
                    () = disk.died.notified() => false,
                    closed = engine.close() => closed.is_ok(),
                };
                drop(engine);
                let mut random = Random(at);
                disk.reboot(cache, random.fate());
                let after = Options { boot: KernelBootId(2), ..options(mode) };
                let engine = Engine::open(Arc::new(disk.clone()), None, after).await.unwrap();
                check(&engine, &format!("{cache:?}, cut at {at}")).await;
                ended
            });
            if ended {
                break;
            }
            at += 1;
        }
        assert!(at > 8, "a stop has its syncs, the superblock and a checkpoint: {at}");
    }
}
