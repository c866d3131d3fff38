//! How a [`Node`] sends scans: pieces of two keys, and streams that end early, hang, or hold what no node sends.
use super::Node;
use super::store::Store;
use bytes::Bytes;
use cairn_client::proto::{self, scan_part::Kind, scan_request::Wanted};
use futures::{Stream, StreamExt, stream};
use std::pin::Pin;
use tonic::Status;

/// Keys in a piece.
const PIECE_KEYS: usize = 2;

pub type Parts = Pin<Box<dyn Stream<Item = Result<proto::ScanPart, Status>> + Send>>;

/// What a node sends of a scan. The position counts as a part.
#[derive(Clone, Debug)]
pub enum Sends {
    /// So many parts, and then its stream ends.
    Parts(usize),
    /// So many parts, and then this status.
    Until(usize, Status),
    /// So many parts, and then nothing more.
    Hangs(usize),
    /// These.
    These(Vec<Kind>),
}

impl Node {
    /// What is sent of the next scans.
    pub fn sends(&self, sends: impl IntoIterator<Item = Sends>) {
        self.scan_script.lock().unwrap().extend(sends);
    }

    /// What this node sends of the parts of a whole scan.
    pub(super) fn sent(&self, whole: Vec<Kind>) -> Parts {
        let script = self.scan_script.lock().unwrap().pop_front();
        let first = |count: usize| stream::iter(whole.clone().into_iter().take(count).map(part));
        match script {
            None => Box::pin(stream::iter(whole.into_iter().map(part))),
            Some(Sends::Parts(count)) => Box::pin(first(count)),
            Some(Sends::Until(count, status)) => {
                Box::pin(first(count).chain(stream::iter([Err(status)])))
            }
            Some(Sends::Hangs(count)) => Box::pin(first(count).chain(stream::pending())),
            Some(Sends::These(kinds)) => Box::pin(stream::iter(kinds.into_iter().map(part))),
        }
    }
}

fn part(kind: Kind) -> Result<proto::ScanPart, Status> {
    Ok(proto::ScanPart { kind: Some(kind) })
}

impl Store {
    /// All parts of a scan.
    pub(super) fn scan(&mut self, request: proto::ScanRequest) -> Vec<Kind> {
        let wanted = request.wanted();
        let proto::Range { start, end } = request.range.unwrap_or_default();
        let found = self.items.range(start..).take_while(|(key, _)| end.is_empty() || **key < end);
        let items = found.map(|(key, (value, version))| proto::KeyValue {
            key: key.clone(),
            value: if wanted == Wanted::Values { value.clone() } else { Bytes::new() },
            version: *version,
        });
        let items: Vec<proto::KeyValue> = items.collect();
        let mut kinds = vec![Kind::At(proto::Position { term: 3, index: self.index })];
        if wanted != Wanted::Count {
            let pieces = items.chunks(PIECE_KEYS);
            kinds.extend(
                pieces.map(|piece| Kind::Items(proto::ScanItems { items: piece.to_vec() })),
            );
        }
        kinds.push(Kind::End(proto::ScanEnd { keys: items.len() as u64 }));
        kinds
    }
}
