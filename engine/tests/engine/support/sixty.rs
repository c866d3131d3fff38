//! A directory with sixty entries, and what must remain of them after damage.

use super::{Disk, Fate, geometry, identity};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{
    Change, Engine, Error, GroupId, KernelBootId, LogId, Mode, NewEntry, Options, Promise,
    SharedImage, Transition,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

pub const GROUP: GroupId = GroupId(0);

/// Without a checkpoint at the end: the journal behind the last one is what these tests are about.
pub fn options(salvage: bool) -> Options {
    let sync_interval = Duration::from_millis(1);
    Options {
        sync_interval,
        salvage,
        log_cache_bytes: 0,
        last_checkpoint: Duration::ZERO,
        ..Options::new(Mode::Replicated, KernelBootId(1), 1)
    }
}

pub async fn open(disk: &Disk, salvage: bool) -> cairn_engine::Result<Engine> {
    Engine::open(Arc::new(disk.clone()), None, options(salvage)).await
}

pub fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

pub fn image(n: u64) -> SharedImage {
    Arc::new(n.to_le_bytes().to_vec())
}

pub fn key(index: u64) -> Bytes {
    format!("k{}", index % 20).into()
}

pub fn value(index: u64) -> Bytes {
    Bytes::from((0..3000).map(|i| (index as usize * 31 + i) as u8).collect::<Vec<_>>())
}

pub fn entry(index: u64, meta: usize) -> NewEntry {
    NewEntry::new(id(index), vec![index as u8; meta], vec![value(index)])
}

pub fn transition(index: u64) -> Transition {
    Transition { applied: id(index), changes: vec![Change::Put { key: key(index), value: 0 }] }
}

pub async fn append(engine: &Engine, entry: NewEntry) {
    append_all(engine, vec![entry]).await;
}

pub async fn append_all(engine: &Engine, entries: Vec<NewEntry>) {
    let (done, written) = oneshot::channel();
    engine
        .append(GROUP, entries, Promise::Mode, Box::new(move |r| drop(done.send(r))))
        .await
        .unwrap();
    written.await.unwrap().unwrap();
}

/// Entries 0 to 59, with checkpoints at 20 and 40, all applied. Every fifth entry has its body in
/// the data area.
pub async fn filled() -> (Disk, Engine) {
    filled_with(options(false)).await
}

/// The same, of which the last ones are acknowledged and not synced: no timer syncs.
pub async fn filled_ahead_of_syncs() -> (Disk, Engine) {
    let sync_interval = Duration::from_secs(3600);
    let (disk, engine) = filled_with(Options { sync_interval, ..options(false) }).await;
    assert!(engine.status().unsynced_acks);
    (disk, engine)
}

async fn filled_with(options: Options) -> (Disk, Engine) {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
    for index in 0..60 {
        append(&engine, entry(index, if index % 5 == 0 { 2000 } else { 10 })).await;
        engine.apply(GROUP, vec![transition(index)], image(index)).unwrap();
        if index == 20 || index == 40 {
            engine.checkpoint().await.unwrap();
        }
    }
    engine.save_vote(GROUP, b"the vote").await.unwrap();
    (disk, engine)
}

pub async fn stopped() -> Disk {
    let (disk, engine) = filled().await;
    engine.close().await.unwrap();
    drop(engine);
    disk.kill(Fate::Kept);
    disk
}

/// The checkpoint area that was written last, and a block in the middle of the journal behind it. How
/// many blocks the journal has depends on the syncs between: a busy machine has more.
pub async fn newest_and_middle(disk: &Disk) -> (FileKind, u64) {
    let found = cairn_engine::inspect(disk, KernelBootId(1), false).await.unwrap();
    let contents = found.contents.unwrap();
    let areas = contents.checkpoints.iter().filter_map(|area| Some((area.holds?.1, area.file)));
    let (covered, newest) = areas.max_by_key(|(covered, _)| *covered).unwrap();
    (newest, (covered + contents.journal_end) / 2)
}

/// Where a block of the journal is in its file.
pub fn block_at(sequence: u64) -> usize {
    let blocks = geometry().journal_bytes / BLOCK as u64;
    (sequence % blocks) as usize * BLOCK
}

/// Checks that the log is a prefix of what was written, and that the engine can be used from there
/// on.
pub async fn check_prefix(engine: &Engine, what: &str) -> u64 {
    let bounds = engine.log_bounds(GROUP);
    let next = bounds.last.map_or(0, |last| last.index + 1);
    assert!(next <= 60, "{what}");
    let applied = engine.applied(GROUP);
    assert!(applied <= bounds.last, "{what}: applied {applied:?} of {bounds:?}");
    assert!(engine.applied_before_restart(GROUP) <= bounds.last, "{what}");
    for (found, _) in engine.read_metas(GROUP, 0..60, 60) {
        assert_eq!(found, id(found.index), "{what}");
    }
    let again: Vec<Transition> =
        (applied.map_or(0, |a| a.index + 1)..next).map(transition).collect();
    if let Some(last) = again.last().map(|t| t.applied.index) {
        engine.apply(GROUP, again, image(last)).unwrap();
    }
    for index in next.saturating_sub(20)..next {
        match engine.get(GROUP, &key(index)).await {
            Ok(found) => {
                let (entry, bytes) = found.unwrap_or_else(|| panic!("{what}: {index} is gone"));
                assert_eq!((entry.version, bytes), (id(index), value(index)), "{what}");
            }
            Err(Error::Corrupt(_)) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
    next
}
