//! Scans: the keys of a range at one log index, as a stream; and how many there are.
//!
//! What holds here: a scan that fails before its first key is asked for again, of another node too. Behind that it cannot
//! go on elsewhere, since another node has no view of that index: it ends with an error. One whose end is missing, whose
//! keys are out of order, or of which the node counted another number, is never taken for whole. One piece is in memory
//! at a time.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::vec;

use bytes::Bytes;
use futures::Stream;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tonic::{Status, Streaming};

use crate::error::Why;
use crate::failure::Failure;
use crate::node::Stub;
use crate::proto::scan_part::Kind;
use crate::proto::scan_request::Wanted;
use crate::range::Range;
use crate::spans;
use crate::types::{KeyValue, Position};
use crate::{Client, Error, convert, proto};

/// How long a scan may take, however steadily it arrives. A node ends it earlier.
const STREAM: Duration = Duration::from_secs(600);
/// How long the next part may take.
const PART: Duration = Duration::from_secs(60);

/// The parts that a node sends.
type Parts = Streaming<proto::ScanPart>;

/// The next part, and those behind it.
type Awaited = BoxFuture<'static, (Result<Option<proto::ScanPart>, Status>, Parts)>;

/// The keys of a range at one log index, in byte order. Take them steadily: the node keeps the space of what is deleted
/// meanwhile, and ends the scan if nothing is taken for a minute, after five minutes, or when its space is scarce.
///
/// It is a stream, too, which ends after its first error. Dropping it ends it at the node.
pub struct Scan {
    position: Position,
    range: proto::Range,
    /// What has arrived and was not taken.
    items: vec::IntoIter<proto::KeyValue>,
    /// The key that arrived last.
    last: Option<Bytes>,
    received: u64,
    rest: Rest,
    /// When it ends at the latest.
    until: Instant,
    /// The stream has told its error.
    told: bool,
}

/// What is behind the keys that have arrived.
enum Rest {
    Open(Awaited),
    /// Nothing: all keys have arrived.
    Ended,
    Broken(Error),
}

impl Client {
    /// The keys of a range with their values, at one log index, however many there are. Returns once the first of
    /// them have arrived: the deadline of the client covers that, and no later part. Any member sends them. A
    /// linearizable read, or as old as [`Client::with_max_staleness`] allows; [`Client::list_all`] reads each page
    /// at an index of its own.
    ///
    /// What has arrived and was not taken is in memory: one piece, of 1 MiB or one value, and what is on the way, up to
    /// 2 MiB more. A client has at most four scans of a node open; other requests go on beside them.
    ///
    /// ```no_run
    /// # async fn example(client: cairn_client::Client) -> Result<(), cairn_client::Error> {
    /// use cairn_client::Range;
    /// let mut users = client.scan(Range::prefix("users/")).await?;
    /// println!("the users at index {}", users.position().index);
    /// while let Some(user) = users.next().await? {
    ///     println!("{:?} has {} bytes", user.key, user.value.len());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`], and [`Error::Overloaded`] if this client, or all together, have as many scans open as each
    /// node takes; [`Error::InvalidRequest`] if no key can be in the range; [`Error::Unsupported`] if every
    /// member runs an earlier release.
    pub async fn scan(&self, range: impl Into<Range>) -> Result<Scan, Error> {
        self.scanned(range.into(), Wanted::Values).await
    }

    /// The same without the values, which are not read: they are empty.
    ///
    /// # Errors
    /// As [`Client::scan`].
    pub async fn scan_keys(&self, range: impl Into<Range>) -> Result<Scan, Error> {
        self.scanned(range.into(), Wanted::Keys).await
    }

    /// How many keys a range has, at one log index. They are counted within the deadline of the client: allow for some
    /// seconds where there are tens of millions.
    ///
    /// # Errors
    /// As [`Client::scan`].
    pub async fn count(&self, range: impl Into<Range>) -> Result<u64, Error> {
        let range: Range = range.into();
        let begun = self.begun(&range.to_proto()?, Wanted::Count).await?;
        match begun.first.kind {
            Some(Kind::End(end)) => Ok(end.keys),
            _ => Err(Error::InvalidRequest(
                "the server was asked for the number of keys, and sent something else".to_owned(),
            )),
        }
    }

    async fn scanned(&self, range: Range, wanted: Wanted) -> Result<Scan, Error> {
        let range = range.to_proto()?;
        let Begun { at, first, parts } = self.begun(&range, wanted).await?;
        let mut scan = Scan {
            position: Position { term: at.term, index: at.index },
            range,
            items: Vec::new().into_iter(),
            last: None,
            received: 0,
            rest: Rest::Ended,
            until: Instant::now() + STREAM,
            told: false,
        };
        if scan.arrived(Some(first))? {
            scan.rest = Rest::Open(awaited(parts, scan.until));
        }
        Ok(scan)
    }

    /// Asks until a node sends a position, and what comes behind it.
    async fn begun(&self, range: &proto::Range, wanted: Wanted) -> Result<Begun, Error> {
        let (target, max_stale_ms) = self.freshness(false);
        let message = || proto::ScanRequest {
            range: Some(range.clone()),
            wanted: wanted.into(),
            max_stale_ms,
        };
        let work = pin!(self.read(target, message, begin));
        spans::within(spans::scan(), work, |begun| Some(begun.at.index)).await
    }
}

/// A scan of which something has arrived.
struct Begun {
    at: proto::Position,
    /// What came behind the position.
    first: proto::ScanPart,
    parts: Parts,
}

/// One attempt to begin a scan.
async fn begin(mut stub: Stub, request: proto::ScanRequest, _: Duration) -> Result<Begun, Status> {
    let request = stub.request(request, STREAM);
    let mut parts = stub.unary.scan(request).await?.into_inner();
    let Some(Kind::At(at)) = parts.message().await?.and_then(|part| part.kind) else {
        return Err(Status::unavailable("it began a scan without a position"));
    };
    match parts.message().await? {
        Some(first) => Ok(Begun { at, first, parts }),
        None => Err(Status::unavailable("it ended a scan before anything was sent")),
    }
}

/// Waits for the next part once it is polled.
fn awaited(mut parts: Parts, until: Instant) -> Awaited {
    Box::pin(async move {
        let limit = match time_left(Instant::now(), until) {
            Ok(limit) => limit,
            Err(late) => return (Err(late), parts),
        };
        let part = match tokio::time::timeout(limit, parts.message()).await {
            Ok(part) => part,
            Err(_) => {
                let why = format!("nothing arrived for {} s", limit.as_secs());
                Err(Status::deadline_exceeded(why))
            }
        };
        (part, parts)
    })
}

/// How long the next part may take.
fn time_left(now: Instant, until: Instant) -> Result<Duration, Status> {
    let left = until.saturating_duration_since(now);
    if left.is_zero() {
        let why = format!("it was not at its end after {} s", STREAM.as_secs());
        return Err(Status::deadline_exceeded(why));
    }
    Ok(left.min(PART))
}

impl Scan {
    /// The last entry of the log whose changes the scan shows.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The next key; `None` once all were returned. May be cancelled: nothing is lost. After an error it returns that
    /// again.
    ///
    /// # Errors
    /// [`Error::ScanBroken`] if the node, the connection or its space gave out before all keys were sent;
    /// [`Error::ValueUnreadable`] if the node cannot read a value; [`Error::PermissionDenied`] and
    /// [`Error::Unauthenticated`] if the client may not read the range any more. What was returned before is then no
    /// whole range: take it from the start.
    pub async fn next(&mut self) -> Result<Option<KeyValue>, Error> {
        poll_fn(|context| self.poll_item(context)).await
    }

    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<KeyValue>, Error>> {
        loop {
            if let Some(item) = self.items.next() {
                return Poll::Ready(Ok(Some(convert::key_value(item))));
            }
            let waiting = match &mut self.rest {
                Rest::Open(waiting) => waiting,
                Rest::Ended => return Poll::Ready(Ok(None)),
                Rest::Broken(error) => return Poll::Ready(Err(error.clone())),
            };
            let (part, parts) = ready!(waiting.as_mut().poll(context));
            let arrived = part.map_err(|status| self.failed(&status));
            self.rest = match arrived.and_then(|part| self.arrived(part)) {
                Ok(true) => Rest::Open(awaited(parts, self.until)),
                Ok(false) => Rest::Ended,
                Err(error) => Rest::Broken(error),
            };
        }
    }

    /// Takes what has arrived. Returns whether more follows.
    fn arrived(&mut self, part: Option<proto::ScanPart>) -> Result<bool, Error> {
        match part.map(|part| part.kind) {
            Some(Some(Kind::Items(proto::ScanItems { items }))) => {
                self.check(&items)?;
                self.received = self.received.saturating_add(items.len() as u64);
                self.last = items.last().map(|item| item.key.clone());
                self.items = items.into_iter();
                Ok(true)
            }
            Some(Some(Kind::End(end))) if end.keys == self.received => Ok(false),
            Some(Some(Kind::End(end))) => {
                Err(self.breach(format!("the node counted {} keys", end.keys)))
            }
            Some(_) => Err(self.breach("the node sent what is no part of a scan")),
            None => Err(self.broken("the node stopped")),
        }
    }

    /// Checks that there are keys, and that they are the next ones of the range.
    fn check(&self, items: &[proto::KeyValue]) -> Result<(), Error> {
        if items.is_empty() {
            return Err(self.breach("the node sent a part without a key"));
        }
        let proto::Range { start, end } = &self.range;
        let mut last = self.last.as_ref();
        for item in items {
            let within = item.key >= *start && (end.is_empty() || item.key < *end);
            if !within || last.is_some_and(|last| item.key <= *last) {
                return Err(self.breach("the node sent keys out of order, or of another range"));
            }
            last = Some(&item.key);
        }
        Ok(())
    }

    /// The error of a scan that a node, or the way to it, ended with this status.
    fn failed(&self, status: &Status) -> Error {
        match Failure::of(status) {
            Failure::Unreadable(message) => Error::ValueUnreadable { key: Bytes::new(), message },
            Failure::Refused(error) if error.is_denied() => error,
            _ => self.broken(convert::why(status)),
        }
    }

    fn broken(&self, why: impl Into<Why>) -> Error {
        let Why { text: last_error, source } = why.into();
        Error::ScanBroken { received: self.received, breach: false, last_error, source }
    }

    /// The error of a scan of which the node sent what it must not.
    fn breach(&self, why: impl Into<Why>) -> Error {
        let Why { text: last_error, source } = why.into();
        Error::ScanBroken { received: self.received, breach: true, last_error, source }
    }
}

impl Stream for Scan {
    type Item = Result<KeyValue, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let scan = self.get_mut();
        if scan.told {
            return Poll::Ready(None);
        }
        let item = ready!(scan.poll_item(context));
        scan.told = item.is_err();
        Poll::Ready(item.transpose())
    }
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan")
            .field("position", &self.position)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_ends_at_its_latest_also_where_a_node_goes_on_to_send() {
        let now = Instant::now();
        let left = |seconds: u64| {
            let limit = time_left(now, now + Duration::from_secs(seconds));
            limit.map_err(|late| late.message().to_owned())
        };
        assert_eq!(left(600), Ok(PART));
        assert_eq!(left(7), Ok(Duration::from_secs(7)));
        assert_eq!(left(0), Err("it was not at its end after 600 s".to_owned()));
        assert!(time_left(now + Duration::from_secs(1), now).is_err(), "behind it");
    }
}
