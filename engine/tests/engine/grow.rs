//! Growth: the files become longer, then the superblock says so. Whatever cuts it off, the directory
//! opens with all that it holds.

use crate::support::store::{GROUP, filled, fresh, id, options, put_one};
use crate::support::{Cache, Disk, Fate, Random, geometry, identity, run};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind, SUPERBLOCK_BYTES};
use cairn_engine::{Engine, Error, Geometry, Growth, KernelBootId};
use cairn_engine::{Mode, inspect};
use std::sync::Arc;

const KEYS: u64 = 6;
const LARGER: u64 = 32 << 20;
const MODE: Mode = Mode::Device;

/// A stopped directory of the smallest size, half full.
async fn stopped() -> Disk {
    let (disk, engine) = fresh(MODE).await;
    for index in 0..KEYS {
        put_one(&engine, index, &format!("k{index}"), filled(300_000, index)).await.unwrap();
    }
    engine.close().await.unwrap();
    drop(engine);
    disk.kill(Fate::Kept);
    disk
}

fn larger() -> Geometry {
    let journal_bytes = geometry().journal_bytes;
    Geometry { journal_bytes, ..Geometry::for_total(LARGER).unwrap() }
}

fn bytes_of(geometry: &Geometry) -> [(FileKind, u64); 3] {
    [
        (FileKind::Checkpoint0, geometry.checkpoint_bytes),
        (FileKind::Checkpoint1, geometry.checkpoint_bytes),
        (FileKind::Data, geometry.data_bytes),
    ]
}

async fn open(disk: &Disk) -> Engine {
    Engine::open(Arc::new(disk.clone()), None, options(MODE)).await.unwrap()
}

async fn value(engine: &Engine, key: &str) -> Option<Bytes> {
    engine.get(GROUP, key.as_bytes()).await.unwrap().map(|(_, value)| value)
}

/// Opens the directory and reads all of it. Returns its sizes of data and checkpoint area.
async fn check(disk: &Disk, what: &str) -> (u64, u64) {
    let engine = open(disk).await;
    for index in 0..KEYS {
        assert!(
            value(&engine, &format!("k{index}")).await == Some(filled(300_000, index)),
            "{what}"
        );
    }
    let status = engine.status();
    assert_eq!(status.failed, None);
    engine.close().await.unwrap();
    (status.data_bytes, status.index_capacity_bytes)
}

const SMALL_SIZES: (u64, u64) = (4 << 20, 1 << 20);

async fn grow(disk: &Disk) {
    bytes_of(&larger()).into_iter().for_each(|(kind, bytes)| disk.resize(kind, bytes));
    let growth = Growth::begin(disk, None, LARGER).await.unwrap();
    assert_eq!(growth.to(), larger());
    growth.record(disk).await.unwrap();
}

#[test]
fn a_directory_that_grew_holds_what_it_held_and_more_than_would_have_fitted() {
    run(async {
        let disk = stopped().await;
        grow(&disk).await;
        let sizes = (larger().data_bytes, larger().checkpoint_bytes);
        assert_eq!(check(&disk, "grown").await, sizes);
        let engine = open(&disk).await;
        for index in KEYS..4 * KEYS {
            put_one(&engine, index, &format!("k{index}"), filled(900_000, index)).await.unwrap();
        }
        engine.close().await.unwrap();
        drop(engine);
        disk.kill(Fate::Kept);
        let engine = open(&disk).await;
        for index in KEYS..4 * KEYS {
            assert!(value(&engine, &format!("k{index}")).await == Some(filled(900_000, index)));
        }
        assert_eq!(engine.log_bounds(GROUP).last, Some(id(4 * KEYS - 1)));
        engine.close().await.unwrap();
        assert_eq!(check(&disk, "used").await, sizes);
    });
}

#[test]
fn files_that_an_unfinished_growth_made_longer_open_with_the_old_sizes_and_grow_again() {
    run(async {
        let original = stopped().await;
        let (small, large) = (bytes_of(&geometry()), bytes_of(&larger()));
        let block = BLOCK as u64;
        for (step, (kind, bytes)) in large.into_iter().enumerate() {
            for length in [small[step].1 + block, bytes - block, bytes] {
                let disk = original.copy();
                large[..step].iter().for_each(|(kind, bytes)| disk.resize(*kind, *bytes));
                disk.resize(kind, length);
                let what = format!("{kind:?} of {length} bytes");
                assert_eq!(check(&disk, &what).await, SMALL_SIZES, "{what}");
                let found = inspect(&disk, KernelBootId(1), true).await.unwrap();
                let contents = found.contents.unwrap();
                assert!(contents.damage.is_none(), "{what}: {:?}", contents.damage);
                assert!(contents.checkpoints.iter().all(|area| area.damage.is_none()), "{what}");
                let unfinished = Growth::begin(&disk, None, LARGER).await.unwrap();
                if (kind, length) != (FileKind::Data, bytes) {
                    let refused = unfinished.record(&disk).await;
                    assert!(matches!(refused, Err(Error::TooShort { .. })), "{what}: {refused:?}");
                    assert_eq!(check(&disk, &what).await, SMALL_SIZES, "{what}");
                }
                grow(&disk).await;
                assert_eq!(check(&disk, &what).await.0, larger().data_bytes, "{what}");
            }
        }
    });
}

#[test]
fn a_cut_at_any_operation_of_the_record_leaves_the_old_sizes_or_the_new_ones() {
    run(async {
        let original = stopped().await;
        for cache in [Cache::Protected, Cache::Volatile] {
            let mut seen = [0, 0];
            for at in 1.. {
                let disk = original.copy();
                bytes_of(&larger()).into_iter().for_each(|(kind, bytes)| disk.resize(kind, bytes));
                {
                    let mut core = disk.core.lock().unwrap();
                    core.cut_at = Some(core.operations + at);
                }
                let growth = Growth::begin(&disk, None, LARGER).await.unwrap();
                let ended = tokio::select! {
                    biased;
                    () = disk.died.notified() => false,
                    recorded = growth.record(&disk) => { recorded.unwrap(); true }
                };
                let mut random = Random(at);
                disk.reboot(cache, random.fate());
                let what = format!("{cache:?}, cut at {at}");
                let (data_bytes, _) = check(&disk, &what).await;
                let new = data_bytes == larger().data_bytes;
                assert!(new || !ended && data_bytes == geometry().data_bytes, "{what}");
                seen[usize::from(new)] += 1;
                grow(&disk).await;
                assert_eq!(check(&disk, &what).await.0, larger().data_bytes, "{what}");
                if ended {
                    break;
                }
            }
            assert!(seen[0] > 3 && seen[1] > 1, "{cache:?}: {seen:?}");
        }
    });
}

#[test]
fn a_file_shorter_than_the_superblock_says_is_an_error_before_and_after_a_growth() {
    run(async {
        for grown in [false, true] {
            for (kind, bytes) in bytes_of(&if grown { larger() } else { geometry() }) {
                let disk = stopped().await;
                if grown {
                    grow(&disk).await;
                }
                disk.resize(kind, bytes - BLOCK as u64);
                let opened = Engine::open(Arc::new(disk.clone()), None, options(MODE)).await;
                assert!(matches!(opened, Err(Error::TooShort { file, .. }) if file == kind));
                let begun = Growth::begin(&disk, None, 2 * LARGER).await;
                assert!(matches!(begun, Err(Error::TooShort { file, .. }) if file == kind));
            }
        }
    });
}

#[test]
fn a_directory_does_not_shrink_and_its_own_size_changes_nothing() {
    run(async {
        let disk = Disk::new(Geometry::for_total(LARGER).unwrap());
        Engine::format(&disk, Geometry::for_total(LARGER).unwrap(), &identity()).await.unwrap();
        let before = disk.bytes(FileKind::Superblock);
        assert_eq!(before.len() as u64, SUPERBLOCK_BYTES);
        let Err(error) = Growth::begin(&disk, None, LARGER / 2).await else { panic!() };
        let (present, smaller) = (Geometry::for_total(LARGER), Geometry::for_total(LARGER / 2));
        for bytes in [present.unwrap().data_bytes, smaller.unwrap().data_bytes, LARGER / 2] {
            assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        }
        assert!(error.to_string().contains("never shrinks"), "{error}");
        let same = Growth::begin(&disk, None, LARGER).await.unwrap();
        assert_eq!(same.from(), same.to());
        same.record(&disk).await.unwrap();
        assert!(disk.bytes(FileKind::Superblock) == before);
        let other = ("another".to_owned(), 1);
        let foreign = Growth::begin(&disk, Some(&other), 2 * LARGER).await;
        assert!(matches!(foreign, Err(Error::Foreign { .. })));
    });
}

#[test]
fn a_lost_identity_beside_an_unfinished_growth_is_formatted_within_what_both_areas_have() {
    run(async {
        let disk = stopped().await;
        disk.resize(FileKind::Checkpoint0, larger().checkpoint_bytes);
        disk.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        let other = cairn_engine::Identity { incarnation: 99, ..identity() };
        Engine::format_again(&disk, &other).await.unwrap();
        let engine = open(&disk).await;
        assert_eq!(engine.status().index_capacity_bytes, geometry().checkpoint_bytes);
    });
}
