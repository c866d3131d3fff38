//! Reading a file from front to back: some requests are always on their way, and their buffers are
//! used again, so that the memory stays in the processor's cache.

use super::{AlignedBuf, OpenFile};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use std::io;
use std::ops::Range;

/// Requests on their way. More of them bring little: what is done with the bytes takes as long.
const AHEAD: usize = 4;

/// The bytes at an offset, or why they cannot be read.
pub(crate) struct Piece<'a> {
    pub at: Range<u64>,
    pub bytes: io::Result<&'a [u8]>,
}

type Read = (Range<u64>, io::Result<()>, AlignedBuf);

/// The pieces of a file, in the order given.
pub(crate) struct ReadAhead<'a> {
    file: &'a OpenFile,
    /// What is not asked for yet.
    ranges: Box<dyn Iterator<Item = Range<u64>> + Send + 'a>,
    on_their_way: FuturesOrdered<BoxFuture<'a, Read>>,
    last: Option<AlignedBuf>,
}

impl<'a> ReadAhead<'a> {
    /// Each range consists of whole blocks.
    pub(crate) fn new(
        file: &'a OpenFile,
        ranges: impl Iterator<Item = Range<u64>> + Send + 'a,
    ) -> ReadAhead<'a> {
        let ranges = Box::new(ranges);
        ReadAhead { file, ranges, on_their_way: FuturesOrdered::new(), last: None }
    }

    /// The next piece; `None` behind the last.
    pub(crate) async fn next(&mut self) -> Option<Piece<'_>> {
        while self.on_their_way.len() < AHEAD
            && let Some(range) = self.ranges.next()
        {
            let bytes = (range.end - range.start) as usize;
            let buf = self.last.take().unwrap_or_else(|| AlignedBuf::zeroed(bytes)).resized(bytes);
            let read = self.file.device.read(range.start, buf);
            self.on_their_way.push_back(Box::pin(async move {
                let (result, buf) = read.await;
                (range, result, buf)
            }));
        }
        let (at, result, buf) = self.on_their_way.next().await?;
        let buf = self.last.insert(buf);
        Some(Piece { at, bytes: result.map(|()| &**buf) })
    }
}

/// Cuts a range into pieces of so many bytes; the last one may be shorter.
pub(crate) fn pieces(range: Range<u64>, bytes: u64) -> impl Iterator<Item = Range<u64>> + Send {
    let starts = range.clone().step_by(bytes as usize);
    starts.map(move |start| start..range.end.min(start + bytes))
}
