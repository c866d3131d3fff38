//! A file of a directory in use. Its errors name the directory and the file.

use super::{AlignedBuf, BLOCK, Device, FileKind};
use crate::error::{Error, Result};
use std::io;
use std::sync::Arc;

/// How often blocks are read until two reads agree.
const AGREEMENTS: usize = 4;

/// An open file. Clones share the device.
#[derive(Clone)]
pub(crate) struct OpenFile {
    pub kind: FileKind,
    /// The directory.
    pub location: Arc<str>,
    pub device: Arc<dyn Device>,
    /// The bytes in use, from the beginning. An interrupted growth leaves a longer file.
    pub bytes: u64,
}

impl OpenFile {
    /// The bytes in use.
    pub(crate) fn size(&self) -> u64 {
        self.bytes
    }

    /// Reads the blocks that hold the `bytes` bytes from `offset` on. The read begins at the first
    /// poll.
    pub(crate) async fn read(&self, offset: u64, bytes: usize) -> io::Result<AlignedBuf> {
        let (result, buf) = self.device.read(offset, AlignedBuf::zeroed(bytes)).await;
        result.map(|()| buf)
    }

    /// Reads whole blocks until two reads agree, for a write that puts them back: an error of a
    /// single read must not reach the device. Blocks that cannot be read are zeros. One that timed
    /// out may be intact.
    pub(crate) async fn read_stable(&self, offset: u64, bytes: usize) -> Result<AlignedBuf> {
        let mut buf = self.read_or_zeros(offset, bytes).await?;
        for _ in 0..AGREEMENTS {
            let again = self.read_or_zeros(offset, bytes).await?;
            if *again == *buf {
                return Ok(buf);
            }
            buf = again;
        }
        Err(Error::Io {
            location: self.location.to_string(),
            operation: "read",
            reason: format!(
                "the {bytes} bytes at {offset} of `{}` read differently each time",
                self.kind.name()
            ),
        })
    }

    async fn read_or_zeros(&self, offset: u64, bytes: usize) -> Result<AlignedBuf> {
        if let Ok(buf) = self.read(offset, bytes).await {
            return Ok(buf);
        }
        let mut all = AlignedBuf::zeroed(bytes);
        for (place, at) in all.chunks_mut(BLOCK).zip((offset..).step_by(BLOCK)) {
            match self.read(at, BLOCK).await {
                Ok(block) => place.copy_from_slice(&block),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(self.failed("read", error));
                }
                Err(_) => {}
            }
        }
        Ok(all)
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
