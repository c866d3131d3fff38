//! Sends the keys of a range at one log index, or counts them.
//!
//! What holds here: all pieces are read in one view, made behind the barrier that the request asks for, so they show
//! one moment. The position is sent first, and the number of keys last: without it something is missing. No piece is
//! without a key, and its memory is charged before its values are read. Before each piece the caller's roles are looked
//! at again. What else ends a scan is in [`super::state_stream`], and how many are open at once in
//! [`crate::admission::scans`].

use super::Inner;
use super::read::{Age, barrier, in_time, readable};
use super::state_stream::{
    self, Bounds, COPIES, Memory, Next, PIECE_BYTES, Reading, TAKES_WITHIN, bytes_of,
};
use crate::access::{Need, Session};
use crate::admission::caller::Caller;
use crate::admission::scans::OpenScan;
use crate::admission::{refusal, validate};
use bytes::Bytes;
use cairn_client::proto::scan_request::Wanted;
use cairn_client::proto::{self, scan_part};
use cairn_raft::{Item, StateReader};
use std::time::Duration;
use tonic::Status;

/// Keys in a piece: a client takes no more.
const PIECE_KEYS: usize = 8192;
/// Keys that are counted before others come first: some milliseconds.
const WALK_KEYS: usize = 16_384;
/// How long a scan may last.
const LONGEST: Duration = Duration::from_secs(300);
/// Scans end before backups do, since they are begun again with less loss.
const YIELDS: u64 = 2;
/// What whoever scans can do where space is scarce.
const WAY_OUT: &str =
    "scan when less is written, take what is sent faster, scan less at once, or list page by page";

/// The parts of a scan, as they are sent.
pub(super) type Parts = state_stream::Parts<proto::ScanPart>;

/// What is left of a scan.
struct Scanning {
    reader: StateReader,
    caller: Caller,
    session: Session,
    range: proto::Range,
    /// The first key that was not read.
    from: Bytes,
    wanted: Wanted,
    keys: u64,
    memory: Memory,
    at: At,
    _open: OpenScan,
}

/// What is sent next.
enum At {
    Position(proto::Position),
    Keys,
    End,
    Nothing,
}

pub(super) async fn scan(
    inner: &Inner,
    (caller, session): (Caller, Session),
    request: proto::ScanRequest,
    budget: Duration,
) -> Result<Parts, Status> {
    let wanted = Wanted::try_from(request.wanted).map_err(|_| {
        Status::invalid_argument(format!(
            "`wanted` is {}, which this release does not know: 0 for values, 1 for keys, 2 for their number",
            request.wanted
        ))
    })?;
    let range = validate::range(request.range.unwrap_or_default())?;
    caller.may(need(&range))?;
    let age = Age::of(false, request.max_stale_ms)?;
    in_time(budget, barrier(inner, age)).await?;
    let engine = readable(inner)?;
    // Not before: while there is no quorum, those that wait for one keep no others from being told.
    let open = inner.metrics.scans().begin(caller.owner())?;
    let reader = inner.replica.state();
    let at = reader.applied().map(|id| proto::Position { term: id.term, index: id.index });
    // Not parts of the message, which they would keep.
    let range = proto::Range {
        start: Bytes::copy_from_slice(&range.start),
        end: Bytes::copy_from_slice(&range.end),
    };
    let scanning = Scanning {
        reader,
        caller,
        session,
        from: range.start.clone(),
        range,
        wanted,
        keys: 0,
        memory: Memory::new(),
        at: At::Position(at.unwrap_or_default()),
        _open: open,
    };
    let bounds = Bounds {
        longest: Some(LONGEST),
        takes_within: TAKES_WITHIN,
        yields: YIELDS,
        way_out: WAY_OUT,
    };
    Ok(state_stream::send(scanning, bounds, engine.clone(), inner.stopping.clone()))
}

/// What the caller must be allowed to.
fn need(range: &proto::Range) -> Need<'_> {
    let end = Some(&range.end[..]).filter(|end| !end.is_empty());
    Need::ReadRange { start: &range.start, end }
}

impl Reading for Scanning {
    type Part = proto::ScanPart;

    async fn next(&mut self) -> Result<Next<proto::ScanPart>, Status> {
        let next = match std::mem::replace(&mut self.at, At::Keys) {
            At::Position(position) => Next::Part(scan_part::Kind::At(position)),
            At::Keys => self.keys().await?.map(scan_part::Kind::Items),
            At::End => {
                self.at = At::Nothing;
                Next::Part(scan_part::Kind::End(proto::ScanEnd { keys: self.keys }))
            }
            At::Nothing => {
                self.at = At::Nothing;
                Next::End
            }
        };
        Ok(next.map(|kind| proto::ScanPart { kind: Some(kind) }))
    }
}

impl Scanning {
    /// The next piece; none if there is nothing to send yet, or no key is left.
    async fn keys(&mut self) -> Result<Next<proto::ScanItems>, Status> {
        let now = self.session.identity().map_err(refusal::denied)?;
        now.may(need(&self.range)).map_err(refusal::denied)?;
        if self.wanted == Wanted::Count {
            self.count();
            return Ok(Next::Later);
        }
        let Some(mut charge) = self.memory.admit(&self.caller).await? else {
            return Ok(Next::Waiting);
        };
        let with_values = self.wanted == Wanted::Values;
        let (range, most) = ((&self.from[..], &self.range.end[..]), (PIECE_KEYS, PIECE_BYTES));
        let mut piece = self.reader.listed_between(range, most, with_values);
        let bytes: usize = piece.items.iter().map(|item| bytes_of(item, with_values)).sum();
        let bytes = bytes.saturating_mul(COPIES);
        if !self.memory.settle(&mut charge, bytes) {
            return Ok(Next::Waiting);
        }
        if with_values {
            let read = self.reader.with_values(piece).await;
            piece = read.map_err(|error| unreadable(&self.from, error))?;
        }
        if piece.last {
            self.at = At::End;
        }
        let Some(last) = piece.items.last() else { return Ok(Next::Later) };
        self.from = behind(&last.key);
        self.keys += piece.items.len() as u64;
        charge.resize(bytes);
        self.caller.answer(charge);
        let items = piece.items.into_iter().map(|item| sent(item, with_values));
        Ok(Next::Part(proto::ScanItems { items: items.collect::<Result<_, _>>()? }))
    }

    /// Counts on.
    fn count(&mut self) {
        let (counted, next) = self.reader.count_between(&self.from, &self.range.end, WALK_KEYS);
        self.keys += counted as u64;
        match next {
            Some(key) => self.from = key,
            None => self.at = At::End,
        }
    }
}

/// A key as it is sent. One without its value never passes for one with an empty value.
fn sent(item: Item, with_value: bool) -> Result<proto::KeyValue, Status> {
    let Item { key, entry, value } = item;
    let value = match value {
        Some(value) => value,
        None if !with_value => Bytes::new(),
        None => {
            let key = key.escape_ascii();
            return Err(Status::internal(format!("the value of key `{key}` was not read")));
        }
    };
    Ok(proto::KeyValue { key, value, version: entry.version.index })
}

/// The first key behind this one.
fn behind(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// The status for a piece of which a value cannot be read.
fn unreadable(from: &[u8], error: cairn_engine::Error) -> Status {
    match error {
        cairn_engine::Error::Corrupt(corruption) => refusal::unreadable(format!(
            "a value of key `{}` or behind it could not be read intact on this node, and no other member that answers has it: \
             {corruption}; scan again when all members are up, or write it again",
            from.escape_ascii()
        )),
        other => refusal::of_engine_read(from, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::{KeyEntry, LogId, ValueRef};

    #[test]
    fn a_key_whose_value_was_not_read_is_not_sent_as_one_with_an_empty_value() {
        let at = ValueRef::contiguous(0, 5, 0).expect("a place");
        let entry = KeyEntry { version: LogId { term: 3, index: 17 }, value: at };
        let item = |value| Item { key: "k".into(), entry: entry.clone(), value };
        let value = |sent: Result<proto::KeyValue, Status>| sent.map(|item| item.value).ok();
        assert_eq!(value(sent(item(Some("value".into())), true)), Some("value".into()));
        assert_eq!(value(sent(item(Some(Bytes::new())), true)), Some(Bytes::new()));
        assert_eq!(value(sent(item(None), false)), Some(Bytes::new()), "keys alone");
        assert_eq!(value(sent(item(None), true)), None);
    }
}
