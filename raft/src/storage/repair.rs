//! Getting the right bytes of a damaged value, and putting them back: they are fetched from the other members when a
//! read meets the damage, or when the scrubber does.
//!
//! What holds here: a value is asked for by the entry that wrote it and the hash of its bytes, so a stale or another value
//! can never take its place; whoever sends it and whoever takes it checks the bytes; a value that no member has is an
//! error, never absence.

use crate::core::ids::{GROUP, NodeId};
use crate::core::runtime;
use bytes::Bytes;
use cairn_engine::{Engine, Error, Extent, KeyEntry, Owner, View};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A leader that cannot read an entry for this long hands leadership over.
const BURDENED_AFTER: Duration = Duration::from_secs(3);

/// Where the right bytes of a damaged value may be had: the network answers.
pub(crate) trait PeerValues: Send + Sync {
    /// The bytes of an extent, whose value `key` names if it is a key's, and the member that had them. `None` where none
    /// that answers has.
    fn fetch<'a>(&'a self, extent: &'a Extent, key: &'a [u8]) -> BoxFuture<'a, Option<(Bytes, NodeId)>>;
}

/// Mends this member's values.
pub(crate) struct Mender {
    engine: Engine,
    peers: Arc<dyn PeerValues>,
    mended: AtomicU64,
    unmendable: AtomicU64,
    /// One above the last log entry that is damaged, that no member has, and that nobody needs.
    needless: AtomicU64,
    /// The entry that could not be read for replication, and since when.
    stuck: Mutex<Option<(u64, runtime::Instant)>>,
}

/// Whether bytes could not be had as they were written.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt(_) | Error::Io { .. })
}

impl Mender {
    pub(crate) fn new(engine: Engine, peers: Arc<dyn PeerValues>) -> Mender {
        Mender {
            engine,
            peers,
            mended: AtomicU64::new(0),
            unmendable: AtomicU64::new(0),
            needless: AtomicU64::new(0),
            stuck: Mutex::new(None),
        }
    }

    /// Values put right or let go of, and attempts that found nobody who had the value.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.mended.load(Ordering::Relaxed), self.unmendable.load(Ordering::Relaxed))
    }

    /// The right bytes of a damaged extent, which are then in place again. `None` where no member has them. That it could
    /// not be written back does not make the bytes wrong: they are returned all the same.
    pub(crate) async fn mend(&self, extent: &Extent) -> Option<Bytes> {
        let own = self.engine.identity();
        let node = NodeId::new(own.slot, own.incarnation);
        let (log_id, offset) = (extent.log_id, extent.at.offset);
        let Some((bytes, from)) = self.find(extent).await else {
            if self.let_go(extent).await {
                self.mended.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%node, %log_id, offset, length = extent.at.len, "an applied entry's value is damaged that no member and no key has: the log is purged through it");
                return None;
            }
            self.unmendable.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%node, %log_id, offset, length = extent.at.len, "no member that answers has a value that is damaged here");
            return None;
        };
        match self.engine.mend(GROUP, extent, &bytes).await {
            Ok(true) => {
                self.mended.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%node, %log_id, offset, length = extent.at.len, %from, "a damaged value was mended");
            }
            // Overwritten, deleted or mended by somebody else meanwhile.
            Ok(false) => {}
            Err(error) => {
                self.unmendable.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%node, %log_id, offset, %error, "the right bytes of a damaged value could not be written back");
            }
        }
        Some(bytes)
    }

    /// The same for a read: kept out of the future of every read, since it is large and each one would be copied with it.
    async fn mend_boxed(&self, extent: Extent) -> Option<Bytes> {
        Box::pin(async move { self.mend(&extent).await }).await
    }

    /// Whether nobody needs the value: its entry is applied, no key has what it wrote, and so it would only be of use to a
    /// follower, for whom a snapshot does as well. The log may then go through that entry.
    async fn let_go(&self, extent: &Extent) -> bool {
        let needed = self.engine.applied_before_restart(GROUP).map_or(0, |before| before.index);
        let needed = needed.max(extent.log_id.index);
        let applied = self.engine.applied(GROUP).is_some_and(|applied| applied.index >= needed);
        if !applied || matches!(extent.owner, Owner::Key(_)) {
            return false;
        }
        // As it is now: it may have been applied since somebody looked.
        let (offset, log_id) = (extent.at.offset, extent.log_id);
        let owners = self.engine.extents(GROUP, offset..offset + 1).await;
        if owners.iter().any(|now| matches!(now.owner, Owner::Key(_))) {
            return false;
        }
        self.needless.fetch_max(log_id.index + 1, Ordering::Relaxed);
        true
    }

    /// The index through which the log is to go, whoever may still want it from here.
    pub(crate) fn needless_through(&self) -> Option<u64> {
        self.needless.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The bytes, and who had them.
    async fn find(&self, extent: &Extent) -> Option<(Bytes, String)> {
        let own = match &extent.owner {
            Owner::Body => self.engine.body_of(GROUP, extent.log_id),
            Owner::Entry | Owner::Key(_) => {
                self.engine.find_value(GROUP, extent.log_id, key(extent), extent.at.len, extent.at.hash).await
            }
        };
        if let Some(bytes) = own {
            return Some((bytes, "this member's memory".into()));
        }
        if extent.owner == Owner::Body {
            return None;
        }
        let (bytes, peer) = self.peers.fetch(extent, key(extent)).await?;
        Some((bytes, peer.to_string()))
    }

    /// A key's state and value, mended where it is damaged.
    ///
    /// # Errors
    /// Those of [`Engine::get`]; `Corrupt` only where no member has the value.
    pub(crate) async fn get(&self, key: &[u8]) -> cairn_engine::Result<Option<(KeyEntry, Bytes)>> {
        let error = match self.engine.get(GROUP, key).await {
            Err(error) if is_damage(&error) => error,
            found => return found,
        };
        let Some(entry) = self.engine.lookup(GROUP, key) else {
            return Ok(None);
        };
        match self.mend_boxed(Extent::of_key(Bytes::copy_from_slice(key), &entry)).await {
            Some(bytes) => Ok(Some((entry, bytes))),
            // It may have been overwritten while the others were asked.
            None if self.engine.lookup(GROUP, key) != Some(entry) => self.engine.get(GROUP, key).await,
            None => Err(error),
        }
    }

    /// A value of a view, mended where it is damaged.
    ///
    /// # Errors
    /// Those of [`View::read`]; `Corrupt` only where no member has the value.
    pub(crate) async fn read(
        &self,
        view: &View,
        key: &[u8],
        entry: &KeyEntry,
    ) -> cairn_engine::Result<Bytes> {
        match view.read(entry).await {
            Err(error) if is_damage(&error) => {
                self.mend_boxed(Extent::of_key(Bytes::copy_from_slice(key), entry)).await.ok_or(error)
            }
            read => read,
        }
    }

    /// Values of a view, mended where they are damaged; in the order of the keys.
    ///
    /// # Errors
    /// As [`Mender::read`], for the first that cannot be had.
    pub(crate) async fn read_all(
        &self,
        view: &View,
        keys: &[(&Bytes, &KeyEntry)],
    ) -> cairn_engine::Result<Vec<Bytes>> {
        let mut values = Vec::with_capacity(keys.len());
        let read = view.read_all(keys.iter().map(|(_, entry)| **entry)).await;
        for ((key, entry), read) in keys.iter().zip(read) {
            values.push(match read {
                Err(error) if is_damage(&error) => {
                    self.mend_boxed(Extent::of_key((*key).clone(), entry)).await.ok_or(error)?
                }
                read => read?,
            });
        }
        Ok(values)
    }

    /// Mends the values of the entries from `range.start` on, as far as `max_bytes` of values reach. Returns the first entry
    /// that stays damaged.
    pub(crate) async fn mend_log(&self, range: Range<u64>, max_bytes: u64) -> Option<u64> {
        let mut bytes = 0u64;
        for index in range {
            let log_id = self.engine.log_id_at(GROUP, index)?;
            for at in self.engine.values_of(GROUP, index).unwrap_or_default() {
                bytes = bytes.saturating_add(u64::from(at.len));
                let extent = Extent { at, log_id, owner: Owner::Entry };
                if self.engine.read_extent(GROUP, &extent).await.is_err()
                    && self.mend(&extent).await.is_none()
                {
                    return Some(index);
                }
            }
            if bytes > max_bytes {
                break;
            }
        }
        None
    }

    /// Entry `index` could be read for replication, or not.
    pub(crate) fn replicable(&self, index: u64, readable: bool) {
        let mut stuck = self.stuck.lock();
        match (&*stuck, readable) {
            (Some((at, _)), true) if *at == index => *stuck = None,
            (Some((at, _)), false) if *at == index => {}
            (_, false) => *stuck = Some((index, runtime::now())),
            _ => {}
        }
    }

    /// Whether this member, if it leads, has been unable for some time to read what it should send. Says so once for each
    /// such time.
    pub(crate) fn take_burdened(&self) -> bool {
        let mut stuck = self.stuck.lock();
        let burdened = stuck.is_some_and(|(_, since)| runtime::now() - since > BURDENED_AFTER);
        if burdened {
            *stuck = None;
        }
        burdened
    }
}

fn key(extent: &Extent) -> &[u8] {
    match &extent.owner {
        Owner::Key(key) => key,
        Owner::Entry | Owner::Body => &[],
    }
}

/// A member that nobody can be asked beside.
#[cfg(test)]
pub(crate) struct NoPeers;

#[cfg(test)]
impl PeerValues for NoPeers {
    fn fetch<'a>(&'a self, _: &'a Extent, _: &'a [u8]) -> BoxFuture<'a, Option<(Bytes, NodeId)>> {
        Box::pin(std::future::ready(None))
    }
}
