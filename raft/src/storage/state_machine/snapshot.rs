//! Outgoing and incoming snapshots.
//!
//! Outgoing: an O(1) view, read in key order, a bounded piece at a time. Incoming: the engine's
//! installer, filled piece by piece, and the machine image; nothing is visible before the last
//! step.
//!
//! What holds here: replicas that applied the same entry hold the same keys. So the last key before
//! a piece names its position, and a broken transfer resumes there, even from another view of the
//! same entry.

use super::image::Image;
use crate::core::error::Malformed;
use crate::core::hooks;
use crate::core::ids::GROUP;
use crate::core::runtime;
use crate::core::types::{SnapshotMeta, engine_log_id, raft_log_id};
use crate::core::version;
use crate::storage::progress::Progress;
use crate::storage::repair::Repairer;
use bytes::Bytes;
use cairn_engine::{Engine, Installer, KeyEntry, LogId, SnapshotKey, View};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// One piece carries at most this many bytes of keys and values, unless a single value is larger.
const PIECE_BYTES: u64 = 1 << 20;
/// The same, counting also the values that the receiver should hold: it may lack all of them, and
/// then they are sent together.
const PIECE_HELD_BYTES: u64 = 16 << 20;
/// One piece carries at most this many keys.
const PIECE_KEYS: usize = 16_384;
/// At most this many bytes of keys and values are read together, unless a single value is larger.
/// The more are read together, the more of them lie next to each other on the device. A transfer
/// holds twice as much, since it reads ahead.
const READ_BYTES: u64 = 16 << 20;
/// At most this many keys are listed together.
const READ_KEYS: usize = 65_536;
/// A transfer without progress for this long is abandoned, and its view released.
const PIN_FOR: Duration = Duration::from_secs(30);
/// After a transfer, the time until replication should continue where the snapshot ended.
const PIN_AFTER: Duration = Duration::from_secs(3);

/// Reads the state of one log index in key order, whatever is applied meanwhile.
pub struct StateReader {
    view: View,
    repairer: Arc<Repairer>,
}

/// A snapshot of this replica.
pub(crate) struct Outgoing {
    state: StateReader,
    meta: SnapshotMeta,
}

/// A key of the state.
pub struct Item {
    /// The key.
    pub key: Bytes,
    /// Its version, and the length and hash of its value.
    pub entry: KeyEntry,
    /// `None` if the receiver should hold it.
    pub value: Option<Bytes>,
}

/// Consecutive keys, read together.
pub struct KeyRange {
    /// At least one, unless there is none.
    pub items: Vec<Item>,
    /// No key is behind them.
    pub last: bool,
}

impl KeyRange {
    /// The pieces in which they are sent.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[Item]> {
        let mut rest = self.items.as_slice();
        std::iter::from_fn(move || {
            let (piece, later) =
                rest.split_at_checked(piece_len(rest)).filter(|(piece, _)| !piece.is_empty())?;
            rest = later;
            Some(piece)
        })
    }
}

/// How many of these items make one piece.
fn piece_len(items: &[Item]) -> usize {
    let (mut carried, mut all) = (0u64, 0u64);
    let too_many = items.iter().position(|item| {
        all += u64::from(item.entry.value.len);
        carried += (item.key.len() + item.value.as_ref().map_or(0, Bytes::len)) as u64;
        carried > hooks::piece_bytes(PIECE_BYTES) || all > PIECE_HELD_BYTES
    });
    too_many.unwrap_or(items.len()).clamp(1, PIECE_KEYS)
}

impl Outgoing {
    /// The present state. `image` is the state machine's; the caller must not apply anything
    /// meanwhile.
    pub(super) fn of(engine: &Engine, image: &Image, repairer: &Arc<Repairer>) -> Outgoing {
        let state = StateReader::new(engine, repairer.clone());
        let meta = SnapshotMeta {
            last_log_id: state.applied().map(raft_log_id),
            last_membership: image.membership.as_ref().clone(),
        };
        Outgoing { state, meta }
    }

    pub(crate) fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// The last entry that it covers.
    pub(crate) fn applied(&self) -> Option<LogId> {
        self.meta.last_log_id.as_ref().map(engine_log_id)
    }

    /// The machine image.
    pub(crate) fn machine(&self) -> Vec<u8> {
        self.state.view.machine()
    }

    /// The keys after `after`, without the values that entries up to `held` wrote. Repairs damaged
    /// values.
    pub(crate) async fn next_keys(
        &self,
        after: Option<Bytes>,
        held: Option<LogId>,
    ) -> cairn_engine::Result<KeyRange> {
        let is_held = |_: &Bytes, version| Some(version) <= held;
        self.state.next_keys(after, READ_BYTES, is_held).await
    }

    /// The values of the wanted items. Repairs damaged ones.
    pub(crate) async fn values(
        &self,
        items: &[Item],
        wanted: impl Fn(&Item) -> bool,
    ) -> cairn_engine::Result<Vec<Option<Bytes>>> {
        self.state.values(items, wanted).await
    }
}

impl StateReader {
    pub(crate) fn new(engine: &Engine, repairer: Arc<Repairer>) -> StateReader {
        StateReader { view: engine.view(GROUP), repairer }
    }

    /// The last entry whose changes are in the state.
    pub fn applied(&self) -> Option<LogId> {
        self.view.applied()
    }

    /// Keys in the state.
    pub fn keys(&self) -> usize {
        self.view.len()
    }

    /// The keys after `after`, of at most `most_bytes` bytes with their values, or one. Leaves out
    /// values of which `is_held` says, by their key and version, that the receiver has them. Repairs
    /// damaged values.
    ///
    /// # Errors
    /// Those of [`View::read`]; `Corrupt` only if no member that answers has the value.
    pub async fn next_keys(
        &self,
        after: Option<Bytes>,
        most_bytes: u64,
        is_held: impl Fn(&Bytes, LogId) -> bool,
    ) -> cairn_engine::Result<KeyRange> {
        let is_held =
            |key: &Bytes, entry: &KeyEntry| entry.value.len > 0 && is_held(key, entry.version);
        let (mut items, mut carried, mut last) = (Vec::new(), 0u64, true);
        for (key, entry) in self.view.entries_after(after.as_deref()) {
            let key = Bytes::copy_from_slice(key);
            let length = if is_held(&key, &entry) { 0 } else { u64::from(entry.value.len) };
            carried += key.len() as u64 + length;
            let enough = items.len() >= READ_KEYS || carried > hooks::range_bytes(most_bytes);
            if enough && !items.is_empty() {
                last = false;
                break;
            }
            items.push(Item { key, entry, value: None });
        }
        let values = self.values(&items, |item| !is_held(&item.key, &item.entry)).await?;
        for (item, value) in items.iter_mut().zip(values) {
            item.value = value;
        }
        Ok(KeyRange { items, last })
    }

    async fn values(
        &self,
        items: &[Item],
        wanted: impl Fn(&Item) -> bool,
    ) -> cairn_engine::Result<Vec<Option<Bytes>>> {
        let wanted: Vec<bool> = items.iter().map(wanted).collect();
        let read = items.iter().zip(&wanted).filter(|(_, wanted)| **wanted);
        let read: Vec<(&Bytes, &KeyEntry)> =
            read.map(|(item, _)| (&item.key, &item.entry)).collect();
        let mut read = self.repairer.read_all(&self.view, &read).await?.into_iter();
        Ok(wanted.into_iter().map(|wanted| if wanted { read.next() } else { None }).collect())
    }

    /// The first keys from `start` on and before `end`, which is behind every key if it is empty: at most
    /// `most_keys`, and of at most `most_bytes` bytes, or one. These bytes include the values if they are to be read,
    /// `with_values`. None is read yet.
    pub fn listed_between(
        &self,
        (start, end): (&[u8], &[u8]),
        (most_keys, most_bytes): (usize, u64),
        with_values: bool,
    ) -> KeyRange {
        let (mut items, mut carried) = (Vec::new(), 0u64);
        for (key, entry) in self.view.entries_between(start, end) {
            let length = if with_values { u64::from(entry.value.len) } else { 0 };
            carried += key.len() as u64 + length;
            let enough = items.len() >= most_keys || carried > hooks::range_bytes(most_bytes);
            if enough && !items.is_empty() {
                return KeyRange { items, last: false };
            }
            items.push(Item { key: Bytes::copy_from_slice(key), entry, value: None });
        }
        KeyRange { items, last: true }
    }

    /// The same keys with their values. Repairs damaged values.
    ///
    /// # Errors
    /// As [`StateReader::next_keys`].
    pub async fn with_values(&self, mut range: KeyRange) -> cairn_engine::Result<KeyRange> {
        let values = self.values(&range.items, |_| true).await?;
        for (item, value) in range.items.iter_mut().zip(values) {
            item.value = value;
        }
        Ok(range)
    }

    /// Counts the first `most` keys from `start` on and before `end`, which is behind every key if it is empty.
    /// Returns how many there are of these, and the first one behind them.
    pub fn count_between(&self, start: &[u8], end: &[u8], most: usize) -> (usize, Option<Bytes>) {
        let mut entries = self.view.entries_between(start, end);
        let counted = entries.by_ref().take(most).count();
        (counted, entries.next().map(|(key, _)| Bytes::copy_from_slice(key)))
    }
}

/// A snapshot that has arrived and is not installed yet.
pub(crate) struct Incoming {
    installer: Installer,
    image: Image,
}

impl Incoming {
    /// `installer` holds all the keys; `machine` is the machine image, whose membership must be
    /// that of `meta`.
    pub(crate) fn new(
        installer: Installer,
        machine: &[u8],
        meta: &SnapshotMeta,
    ) -> Result<Incoming, Malformed> {
        let image = Image::decode(machine)?;
        match *image.membership == meta.last_membership {
            true => Ok(Incoming { installer, image }),
            false => Err(Malformed("a snapshot whose membership is not that of its machine image")),
        }
    }

    /// Some entries of the history that led to its state.
    pub(crate) fn known_entries(&self) -> impl Iterator<Item = LogId> {
        self.image.known_entries()
    }
}

/// The snapshot type that openraft uses.
pub(crate) enum SnapshotData {
    /// From this member.
    Outgoing(Arc<Outgoing>),
    /// From a peer.
    Incoming(Box<Incoming>),
}

impl SnapshotData {
    /// Replaces the engine's state. Returns the new machine image.
    pub(super) async fn install(
        self,
        engine: &Engine,
        applied: LogId,
        progress: &Progress,
    ) -> io::Result<Image> {
        let incoming = match self {
            SnapshotData::Incoming(incoming) => *incoming,
            SnapshotData::Outgoing(outgoing) => copy(&outgoing, engine).await?,
        };
        version::check(incoming.image.version).map_err(io::Error::other)?;
        let bounds = engine.log_bounds(GROUP);
        if bounds.last > Some(applied) && engine.log_id_at(GROUP, applied.index) == Some(applied) {
            // The receiver refuses a snapshot that is applied already, but since that check the log
            // grew. Installing would drop acknowledged entries, so stop instead: a restart finds
            // the log as it is.
            return Err(io::Error::other(format!(
                "the log grew past the snapshot of {applied} while it arrived"
            )));
        }
        // Appends behind it go on before it is published.
        progress.installs(&incoming.image, applied.index);
        incoming
            .installer
            .finish(applied, Arc::new(incoming.image.clone()))
            .await
            .map_err(io::Error::other)?;
        Ok(incoming.image)
    }
}

async fn copy(outgoing: &Outgoing, engine: &Engine) -> io::Result<Incoming> {
    let mut installer = engine.begin_install(GROUP).await.map_err(io::Error::other)?;
    let mut after = None;
    loop {
        let range = outgoing.next_keys(after.take(), None).await.map_err(io::Error::other)?;
        after = range.items.last().map(|item| item.key.clone());
        let keys = range.items.into_iter().filter_map(|item| {
            item.value.map(|value| SnapshotKey::with_value(item.key, item.entry.version, value))
        });
        installer.put(keys.collect()).await.map_err(io::Error::other)?;
        if range.last {
            return Incoming::new(installer, &outgoing.machine(), outgoing.meta())
                .map_err(io::Error::other);
        }
    }
}

/// The snapshot of a transfer, pinned so that a retry sends the same one, and so that the log after
/// it is kept.
#[derive(Clone, Default)]
pub(crate) struct PinnedSnapshot(Arc<Mutex<Option<Pin>>>);

struct Pin {
    outgoing: Arc<Outgoing>,
    until: runtime::Instant,
}

impl PinnedSnapshot {
    /// A receiver of this snapshot has answered.
    pub(crate) fn pin(&self, outgoing: &Arc<Outgoing>) {
        *self.0.lock() = Some(Pin { outgoing: outgoing.clone(), until: runtime::now() + PIN_FOR });
    }

    /// A transfer of this snapshot has succeeded.
    pub(crate) fn release(&self, outgoing: &Arc<Outgoing>) {
        if let Some(pin) = self.0.lock().as_mut().filter(|pin| Arc::ptr_eq(&pin.outgoing, outgoing))
        {
            pin.until = runtime::now() + PIN_AFTER;
        }
    }

    /// This snapshot could not be sent: a retry sends another one.
    pub(crate) fn forget(&self, outgoing: &Arc<Outgoing>) {
        self.0.lock().take_if(|pin| Arc::ptr_eq(&pin.outgoing, outgoing));
    }

    /// The pinned snapshot, if the log still continues where it ends.
    pub(super) fn get(&self, purged: Option<LogId>) -> Option<Arc<Outgoing>> {
        self.give_up_without_log(purged);
        self.live()
    }

    /// A snapshot without the log behind it is of no use to a retry. The story: the receiver had died, and
    /// the pin kept what was deleted from a full data area: no writes were taken for half a minute.
    pub(crate) fn give_up_without_log(&self, purged: Option<LogId>) {
        self.0.lock().take_if(|pin| pin.outgoing.applied() < purged);
    }

    /// The log after this entry must be kept for the transfer under way.
    pub(crate) fn holds_log_after(&self) -> Option<LogId> {
        self.live()?.applied()
    }

    fn live(&self) -> Option<Arc<Outgoing>> {
        let mut pin = self.0.lock();
        pin.take_if(|pin| pin.until < runtime::now());
        pin.as_ref().map(|pin| pin.outgoing.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::ValueRef;

    fn item(number: usize, len: u32, held: bool) -> Item {
        let value = ValueRef::contiguous(0, len, 0).unwrap();
        Item {
            key: Bytes::from(format!("key{number:06}")),
            entry: KeyEntry { version: LogId { term: 1, index: 1 }, value },
            value: (!held).then(|| Bytes::from(vec![0; len as usize])),
        }
    }

    #[tokio::test]
    async fn a_pinned_snapshot_is_given_up_when_the_log_behind_it_is_purged() {
        let folder = tempfile::tempdir().unwrap();
        let engine = crate::storage::tests::engine(&folder).await;
        let peers = Arc::new(crate::storage::repair::NoPeers);
        let repairer = Arc::new(Repairer::new(engine.clone(), peers));
        let pinned = PinnedSnapshot::default();
        pinned.pin(&Arc::new(Outgoing::of(&engine, &Image::default(), &repairer)));
        pinned.give_up_without_log(None);
        assert!(pinned.get(None).is_some());
        pinned.give_up_without_log(Some(LogId { term: 1, index: 1 }));
        assert!(pinned.get(None).is_none());
    }

    #[test]
    fn pieces_are_bounded_in_the_values_that_they_carry_and_in_those_that_they_may_have_to() {
        let large = |_| item(0, 3 << 20, false);
        let tables: [(Vec<Item>, usize); 5] = [
            (Vec::new(), 0),
            ((0..5).map(large).collect(), 5),
            ((0..100).map(|number| item(number, 100_000, false)).collect(), 10),
            ((0..400).map(|number| item(number, 100_000, true)).collect(), 3),
            ((0..40_000).map(|number| item(number, 10, true)).collect(), 3),
        ];
        for (items, expected) in tables {
            let range = KeyRange { items, last: true };
            let pieces: Vec<&[Item]> = range.pieces().collect();
            assert_eq!(pieces.len(), expected);
            let keys =
                |items: &[Item]| items.iter().map(|item| item.key.clone()).collect::<Vec<_>>();
            assert_eq!(
                pieces.iter().flat_map(|piece| keys(piece)).collect::<Vec<_>>(),
                keys(&range.items)
            );
            for piece in pieces.into_iter().filter(|piece| piece.len() > 1) {
                let all: u64 = piece.iter().map(|item| u64::from(item.entry.value.len)).sum();
                let carried: usize =
                    piece.iter().filter_map(|item| item.value.as_ref()).map(Bytes::len).sum();
                assert!(
                    carried as u64 <= PIECE_BYTES
                        && all <= PIECE_HELD_BYTES
                        && piece.len() <= PIECE_KEYS
                );
            }
        }
    }
}
