//! A file of a directory in use. Its errors name the directory and the file.

use super::{AlignedBuf, Device, FileKind};
use crate::error::{Error, Result};
use std::io;
use std::sync::Arc;

/// An open file. Clones share the device.
#[derive(Clone)]
pub(crate) struct OpenFile {
    pub kind: FileKind,
    /// The directory.
    pub location: Arc<str>,
    pub device: Arc<dyn Device>,
}

impl OpenFile {
    pub(crate) fn size(&self) -> u64 {
        self.device.size()
    }

    /// Reads the blocks that hold the `bytes` bytes from `offset` on. The read begins at the first
    /// poll.
    pub(crate) async fn read(&self, offset: u64, bytes: usize) -> io::Result<AlignedBuf> {
        let (result, buf) = self.device.read(offset, AlignedBuf::zeroed(bytes)).await;
        result.map(|()| buf)
    }

    /// As [`Device::write`]. The write begins with the call.
    pub(crate) fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let written = self.write_reusing(offset, buf);
        async move { written.await.0 }
    }

    /// As [`OpenFile::write`]. Returns the buffer for another write.
    pub(crate) fn write_reusing(
        &self,
        offset: u64,
        buf: AlignedBuf,
    ) -> impl Future<Output = (Result<()>, AlignedBuf)> + Send + use<> {
        let (file, begun) = (self.clone(), self.device.write(offset, buf));
        async move {
            let (result, buf) = begun.await;
            (result.map_err(|error| file.failed("write", error)), buf)
        }
    }

    /// As [`Device::sync`]. The sync begins with the call.
    pub(crate) fn sync(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let (file, begun) = (self.clone(), self.device.sync());
        async move { begun.await.map_err(|error| file.failed("sync", error)) }
    }

    /// The error for an operation that failed.
    pub(crate) fn failed(&self, operation: &'static str, reason: impl ToString) -> Error {
        Error::failed(&self.location, self.kind, operation, reason)
    }
}
