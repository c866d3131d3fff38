//! Files in memory for unit tests. Their operations are done when they begin.

use super::{AlignedBuf, Device, Directory, FileKind, IoFuture, OpenFile};
use crate::types::Geometry;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::ready;
use std::io;
use std::sync::Arc;

pub(crate) struct Memory(pub Mutex<Vec<u8>>);

impl Memory {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Memory> {
        Arc::new(Memory(Mutex::new(bytes)))
    }

    pub(crate) fn file(self: &Arc<Memory>, kind: FileKind) -> OpenFile {
        let bytes = self.size();
        OpenFile { kind, location: "here".into(), device: self.clone(), bytes }
    }
}

impl Device for Memory {
    fn size(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (from, len) = (offset as usize, buf.len());
        buf.copy_from_slice(&self.0.lock()[from..from + len]);
        Box::pin(ready((Ok(()), buf)))
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (from, len) = (offset as usize, buf.len());
        self.0.lock()[from..from + len].copy_from_slice(&buf);
        Box::pin(ready((Ok(()), buf)))
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

pub(crate) struct MemoryDirectory(BTreeMap<FileKind, Arc<Memory>>);

impl MemoryDirectory {
    pub(crate) fn new(geometry: &Geometry) -> MemoryDirectory {
        let file = |kind| (kind, Memory::new(vec![0; geometry.bytes_of(kind) as usize]));
        MemoryDirectory(FileKind::ALL.into_iter().map(file).collect())
    }
}

impl Directory for MemoryDirectory {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        Ok(self.0[&kind].clone())
    }

    fn location(&self) -> String {
        "memory".into()
    }

    fn backend(&self) -> &'static str {
        "memory"
    }
}
