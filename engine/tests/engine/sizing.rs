//! For which values a directory is divided: the checkpoint areas, which hold the keys, and the data
//! area are full at about the same number of keys.
//!
//! `CAIRN_FILL_MIB=1792 cargo test --release -p cairn-engine --test engine sizing:: -- --nocapture`
//! prints how many keys a directory of that size takes.

use crate::support::store::{GROUP, append, id, image, options};
use crate::support::{Disk, Fate, identity, run, until};
use bytes::Bytes;
use cairn_engine::{
    Change, Engine, EngineStatus, Error, Geometry, Growth, Mode, Need, NewEntry, Sizing,
    Transition, io::FileKind,
};
use std::sync::Arc;

/// Keys of one entry.
const BATCH: u64 = 100;
/// Entries between two purges of the log.
const PURGE_EVERY: u64 = 20;

fn total_bytes() -> u64 {
    let set = std::env::var("CAIRN_FILL_MIB").ok().map(|mib| mib.parse::<u64>().unwrap());
    set.unwrap_or(48) << 20
}

async fn formatted(geometry: Geometry) -> (Disk, Engine) {
    let disk = Disk::new(geometry);
    Engine::format(&disk, geometry, &identity()).await.unwrap();
    (disk.clone(), opened(&disk).await)
}

async fn opened(disk: &Disk) -> Engine {
    Engine::open(Arc::new(disk.clone()), None, options(Mode::Replicated)).await.unwrap()
}

fn need_of(len: u64) -> Need {
    let meta_len = BATCH as usize * 32;
    let lengths = || (0..BATCH).map(|_| len);
    let index_bytes =
        Engine::index_bytes(lengths(), meta_len) + Engine::applied_bytes(lengths(), meta_len);
    Need { bytes: BATCH * len, puts: true, index_bytes }
}

/// Puts values of this length under keys of 16 bytes until the engine refuses one for good. Returns
/// why.
async fn fill(engine: &Engine, len: usize) -> Error {
    let mut index = engine.log_bounds(GROUP).last.map_or(0, |last| last.index + 1);
    loop {
        if let Err(error) = engine.check_capacity(need_of(len as u64)) {
            // What is dead is freed first.
            if let Some(last) = engine.log_bounds(GROUP).last {
                engine.purge(GROUP, last).await.unwrap();
                engine.checkpoint().await.unwrap();
            }
            let free =
                || engine.status().space.dead_unrecorded + engine.status().space.dead_unsynced == 0;
            until("what is dead is free", free).await;
            if engine.check_capacity(need_of(len as u64)).is_err() {
                return error;
            }
        }
        let value = |number: u64| {
            let seed = index * BATCH + number;
            Bytes::from((0..len as u64).map(|at| (seed ^ (at * 7)) as u8).collect::<Vec<_>>())
        };
        let entry = NewEntry::new(id(index), vec![0; BATCH as usize * 32], (0..BATCH).map(value));
        append(engine, vec![entry]).await.unwrap();
        let change = |number: u64| Change::Put {
            key: format!("{:016}", index * BATCH + number).into(),
            value: number as usize,
        };
        let changes = (0..BATCH).map(change).collect();
        let transition = Transition { applied: id(index), changes };
        engine.apply(GROUP, vec![transition], image(index)).unwrap();
        if index.is_multiple_of(PURGE_EVERY) {
            engine.purge(GROUP, id(index)).await.unwrap();
        }
        index += 1;
    }
}

fn free_percent(status: &EngineStatus) -> u64 {
    status.free_bytes * 100 / status.data_bytes
}

async fn filled_directory(sizing: Sizing, len: usize) -> (EngineStatus, Error) {
    let (_, engine) = formatted(sizing.geometry().unwrap()).await;
    let refused = fill(&engine, len).await;
    let status = engine.status();
    println!(
        "{} MiB for values of {:?}: {} keys with values of {len}, {} % of the data area free; {refused}",
        sizing.total_bytes >> 20,
        sizing.value_bytes,
        status.keys,
        free_percent(&status)
    );
    (status, refused)
}

/// The story: values of 256 bytes filled a directory at 2.57 million keys, "storage is full", while
/// the status showed that 47 % of it were free: each key also takes space in the checkpoint areas,
/// whose share was the same for all values, and nobody was told so.
#[test]
fn a_directory_for_small_values_takes_them_until_its_data_area_is_full() {
    run(async {
        let total_bytes = total_bytes();
        let (before, refused) = filled_directory(total_bytes.into(), 256).await;
        assert!(free_percent(&before) > 35, "{before:?}");
        assert!(matches!(refused, Error::IndexFull { mean_value: 256, .. }), "{refused}");
        for words in ["the checkpoint areas are full", "--value-size 256"] {
            assert!(refused.to_string().contains(words), "{refused}");
        }
        let sizing = Sizing { total_bytes, value_bytes: Some(256) };
        let (after, _) = filled_directory(sizing, 256).await;
        assert!(free_percent(&after) < 15, "{after:?}");
        assert!(after.keys * 10 > before.keys * 14, "{} instead of {}", after.keys, before.keys);
    });
}

#[test]
fn a_directory_for_large_values_wastes_nothing_on_keys() {
    run(async {
        let total_bytes = total_bytes().min(64 << 20);
        let (before, _) = filled_directory(total_bytes.into(), 16_384).await;
        let sizing = Sizing { total_bytes, value_bytes: Some(16_384) };
        let (after, refused) = filled_directory(sizing, 16_384).await;
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(after.keys * 10 > before.keys * 11, "{} instead of {}", after.keys, before.keys);
    });
}

/// The way out that the error names: a growth that keeps the data area gives the rest to the keys.
#[test]
fn a_directory_whose_checkpoint_areas_are_full_takes_more_keys_after_they_grew() {
    run(async {
        let (disk, engine) = formatted(Geometry::for_total(32 << 20).unwrap()).await;
        let refused = fill(&engine, 256).await;
        assert!(matches!(refused, Error::IndexFull { .. }), "{refused}");
        let full = engine.status();
        assert_eq!(full.index_limit_bytes, full.index_capacity_bytes / 100 * 60);
        engine.close().await.unwrap();
        drop(engine);
        disk.kill(Fate::Kept);

        let sizing = Sizing { total_bytes: 40 << 20, value_bytes: Some(256) };
        let begun = Growth::begin(&disk, None, sizing).await.unwrap();
        let (from, to) = (begun.from(), begun.to());
        assert!(to.checkpoint_bytes > from.checkpoint_bytes && to.data_bytes >= from.data_bytes);
        drop(begun);
        for (kind, bytes) in [
            (FileKind::Checkpoint0, to.checkpoint_bytes),
            (FileKind::Checkpoint1, to.checkpoint_bytes),
            (FileKind::Data, to.data_bytes),
        ] {
            disk.resize(kind, bytes);
        }
        Growth::begin(&disk, None, sizing).await.unwrap().record(&disk).await.unwrap();
        let engine = opened(&disk).await;
        assert_eq!(engine.status().keys, full.keys);
        let _ = fill(&engine, 256).await;
        let grown = engine.status();
        assert!(grown.keys * 2 > full.keys * 3, "{} instead of {}", grown.keys, full.keys);
        engine.close().await.unwrap();
        drop(engine);
        disk.kill(Fate::Kept);
        let engine = opened(&disk).await;
        assert_eq!(engine.status().keys, grown.keys, "the larger checkpoint is read back");
    });
}
