//! A small store, and functions to put values into it.

use super::{Disk, geometry, identity};
use bytes::Bytes;
use cairn_engine::{
    Change, Engine, GroupId, KernelBootId, LogId, Mode, Need, NewEntry, Options, Promise,
    SharedImage, Transition,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

pub const GROUP: GroupId = GroupId(0);

pub fn options(mode: Mode) -> Options {
    let mut options = Options::new(mode, KernelBootId(1), 1);
    options.sync_interval = Duration::from_millis(1);
    options
}

pub fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

pub fn image(n: u64) -> SharedImage {
    Arc::new(n.to_le_bytes().to_vec())
}

pub async fn fresh(mode: Mode) -> (Disk, Engine) {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = Engine::open(Arc::new(disk.clone()), None, options(mode)).await.unwrap();
    engine.raise_format();
    (disk, engine)
}

pub async fn append(engine: &Engine, entries: Vec<NewEntry>) -> cairn_engine::Result<()> {
    let (done, written) = oneshot::channel();
    engine.append(GROUP, entries, Promise::Mode, Box::new(move |r| drop(done.send(r)))).await?;
    written.await.unwrap()
}

pub fn entry(index: u64, value: Bytes) -> NewEntry {
    NewEntry::new(id(index), Bytes::from_static(b"meta"), vec![value])
}

pub fn put(index: u64, key: &str) -> Transition {
    Transition {
        applied: id(index),
        changes: vec![Change::Put { key: Bytes::from(key.to_owned()), value: 0 }],
    }
}

pub async fn put_one(
    engine: &Engine,
    index: u64,
    key: &str,
    value: Bytes,
) -> cairn_engine::Result<()> {
    append(engine, vec![entry(index, value)]).await?;
    engine.apply(GROUP, vec![put(index, key)], image(index))
}

pub fn filled(len: usize, with: u64) -> Bytes {
    Bytes::from((0..len).map(|i| (with as usize * 31 + i) as u8).collect::<Vec<_>>())
}

/// The same options for an engine on which no timer decides anything: a busy machine syncs and records no
/// more often than a quiet one.
pub fn patient_options(mode: Mode) -> Options {
    Options { sync_interval: Duration::from_secs(3600), ..options(mode) }
}

/// A small store whose engine was opened with [`patient_options`].
pub async fn patient(mode: Mode) -> (Disk, Engine) {
    let (disk, engine) = fresh(mode).await;
    engine.close().await.unwrap();
    drop(engine);
    let opened = Engine::open(Arc::new(disk.clone()), None, patient_options(mode)).await;
    (disk, opened.unwrap())
}

/// The capacity that a client's write needs.
pub fn need(bytes: u64) -> Need {
    Need { bytes, puts: true, index_bytes: 0 }
}
