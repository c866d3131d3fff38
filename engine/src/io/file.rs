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

/// What two reads agree on.
pub(crate) struct Stable {
    /// Whole blocks. One that cannot be read is zeros.
    pub bytes: AlignedBuf,
    /// The blocks that cannot be read, counted from the first one.
    pub unreadable: Vec<usize>,
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
    /// single read must not reach the device. A block whose read timed out may be intact, so that
    /// is an error.
    pub(crate) async fn read_stable(&self, offset: u64, bytes: usize) -> Result<Stable> {
        let mut found = self.read_what_can_be(offset, bytes).await?;
        for _ in 0..AGREEMENTS {
            let again = self.read_what_can_be(offset, bytes).await?;
            if *again.bytes == *found.bytes && again.unreadable == found.unreadable {
                return Ok(found);
            }
            found = again;
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

    async fn read_what_can_be(&self, offset: u64, bytes: usize) -> Result<Stable> {
        if let Ok(bytes) = self.read(offset, bytes).await {
            return Ok(Stable { bytes, unreadable: Vec::new() });
        }
        let mut found = Stable { bytes: AlignedBuf::zeroed(bytes), unreadable: Vec::new() };
        let places = found.bytes.chunks_mut(BLOCK).zip((offset..).step_by(BLOCK));
        for (number, (place, at)) in places.enumerate() {
            match self.read(at, BLOCK).await {
                Ok(block) => place.copy_from_slice(&block),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(self.failed("read", error));
                }
                Err(_) => found.unreadable.push(number),
            }
        }
        Ok(found)
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
