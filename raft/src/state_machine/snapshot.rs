//! Snapshots on their way out and in.
//!
//! Out: an O(1) view, read in key order, a bounded piece at a time. In: the engine's installer, filled piece by piece,
//! and the machine image; nothing is visible before the last step.
//!
//! What holds here: replicas that applied the same entry hold the same keys, so a piece names its place by the last key
//! before it, and a broken transfer goes on from there, even from another view of the same entry.

use super::image::Image;
use crate::GROUP;
use crate::codec::Malformed;
use crate::log_store::io_error;
use crate::repair::Mender;
use crate::runtime;
use crate::types::{SnapshotMeta, engine_log_id, raft_log_id};
use bytes::Bytes;
use cairn_engine::{Engine, Installer, KeyEntry, ListQuery, LogId, View};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Keys and values of one piece, at most; a single larger value makes a larger piece.
const PIECE_BYTES: u64 = 1 << 20;
/// Keys of one piece, at most.
const PIECE_KEYS: usize = 4096;
/// A transfer that makes no progress for this long is given up, and its view let go.
const PIN_FOR: Duration = Duration::from_secs(30);
/// After a transfer, until replication is seen to go on where it ended.
const PIN_AFTER: Duration = Duration::from_secs(3);

/// A snapshot of this replica.
pub(crate) struct Outgoing {
    view: View,
    mender: Arc<Mender>,
    meta: SnapshotMeta,
}

/// Keys that follow each other.
pub(crate) struct Piece {
    pub(crate) items: Vec<(Bytes, KeyEntry, Bytes)>,
    pub(crate) last: bool,
}

impl Outgoing {
    /// The present state. `image` is the state machine's, so nothing may be applied meanwhile.
    pub(super) fn of(engine: &Engine, image: &Image, mender: &Arc<Mender>) -> Outgoing {
        let view = engine.view(GROUP);
        let meta = SnapshotMeta {
            last_log_id: view.applied().map(raft_log_id),
            last_membership: image.membership.as_ref().clone(),
        };
        Outgoing { view, mender: mender.clone(), meta }
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
        self.view.machine()
    }

    /// The keys after `after`; damaged values are mended on the way.
    pub(crate) async fn piece(&self, after: Option<Bytes>) -> cairn_engine::Result<Piece> {
        let query = ListQuery {
            start_after: after,
            limit: PIECE_KEYS,
            max_bytes: PIECE_BYTES,
            ..ListQuery::default()
        };
        let page = self.view.list(&query);
        let reads = page.items.iter().map(|item| self.mender.read(&self.view, &item.key, &item.entry));
        let values = futures::future::try_join_all(reads).await?;
        let items =
            page.items.into_iter().zip(values).map(|(item, value)| (item.key, item.entry, value)).collect();
        Ok(Piece { items, last: !page.more })
    }
}

/// A snapshot that has arrived and is not yet installed.
pub(crate) struct Incoming {
    installer: Installer,
    image: Image,
}

impl Incoming {
    /// All the keys, and the bytes of the machine image, which must be that of `meta`.
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
}

/// What openraft passes around as a snapshot.
pub(crate) enum SnapshotData {
    /// From here.
    Outgoing(Arc<Outgoing>),
    /// From a peer.
    Incoming(Box<Incoming>),
}

impl SnapshotData {
    /// Replaces the engine's state. Returns the new machine image.
    pub(super) async fn install(self, engine: &Engine, applied: LogId) -> io::Result<Image> {
        let incoming = match self {
            SnapshotData::Incoming(incoming) => *incoming,
            SnapshotData::Outgoing(outgoing) => copy(&outgoing, engine).await?,
        };
        let bounds = engine.log_bounds(GROUP);
        if bounds.last > Some(applied) && engine.log_id_at(GROUP, applied.index) == Some(applied) {
            // The receiver refuses such a snapshot as needless; between its check and here the log grew. Installing
            // would drop entries that were acknowledged, so stop instead: a restart finds the log as it is.
            return Err(io::Error::other(format!(
                "the log grew past the snapshot of {applied} while it arrived"
            )));
        }
        incoming.installer.finish(applied, Arc::new(incoming.image.clone())).await.map_err(io_error)?;
        Ok(incoming.image)
    }
}

async fn copy(outgoing: &Outgoing, engine: &Engine) -> io::Result<Incoming> {
    let mut installer = engine.begin_install(GROUP).await.map_err(io_error)?;
    let mut after = None;
    loop {
        let piece = outgoing.piece(after.take()).await.map_err(io_error)?;
        for (key, entry, value) in piece.items {
            after = Some(key.clone());
            installer.put(key, entry.version, value).await.map_err(io_error)?;
        }
        if piece.last {
            return Incoming::new(installer, &outgoing.machine(), outgoing.meta()).map_err(io::Error::other);
        }
    }
}

/// The snapshot that a transfer uses, kept so that a retry sends the same one, and the log kept from its end on.
#[derive(Clone, Default)]
pub(crate) struct PinnedSnapshot(Arc<Mutex<Option<Pin>>>);

struct Pin {
    outgoing: Arc<Outgoing>,
    until: runtime::Instant,
}

impl PinnedSnapshot {
    /// The receiver of a transfer of it has answered.
    pub(crate) fn pin(&self, outgoing: &Arc<Outgoing>) {
        *self.0.lock() = Some(Pin { outgoing: outgoing.clone(), until: runtime::now() + PIN_FOR });
    }

    /// A transfer of it has ended well.
    pub(crate) fn release(&self, outgoing: &Arc<Outgoing>) {
        if let Some(pin) = self.0.lock().as_mut().filter(|pin| Arc::ptr_eq(&pin.outgoing, outgoing)) {
            pin.until = runtime::now() + PIN_AFTER;
        }
    }

    /// It could not be sent: a retry sends another one.
    pub(crate) fn forget(&self, outgoing: &Arc<Outgoing>) {
        self.0.lock().take_if(|pin| Arc::ptr_eq(&pin.outgoing, outgoing));
    }

    /// The pinned one, if the log still goes on where it ends.
    pub(super) fn get(&self, purged: Option<LogId>) -> Option<Arc<Outgoing>> {
        self.live(|outgoing| outgoing.clone()).filter(|outgoing| outgoing.applied() >= purged)
    }

    /// The log must be kept from after this entry on, for the transfer under way.
    pub(crate) fn holds_log_after(&self) -> Option<LogId> {
        self.live(|outgoing| outgoing.applied()).flatten()
    }

    fn live<T>(&self, get: impl FnOnce(&Arc<Outgoing>) -> T) -> Option<T> {
        let mut pin = self.0.lock();
        if pin.as_ref().is_some_and(|pin| pin.until < runtime::now()) {
            *pin = None;
        }
        pin.as_ref().map(|pin| get(&pin.outgoing))
    }
}
