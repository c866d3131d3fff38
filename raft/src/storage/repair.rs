//! Repair of damaged values: when a read or the scrubber finds damage, the repairer fetches the
//! right bytes from the other members and writes them back.
//!
//! What holds here: a value is requested by the entry that wrote it and the hash of its bytes, so a
//! stale or another value can never replace it; both sender and receiver check the bytes; a value
//! that no member has is an error, and never counts as absent.

use crate::core::ids::{GROUP, NodeId};
use crate::core::runtime;
use bytes::Bytes;
use cairn_engine::{Engine, Error, Extent, KeyEntry, LogId, Owner, View};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A leader that cannot read an entry for this long hands leadership over.
const UNREADABLE_LIMIT: Duration = Duration::from_secs(3);

/// Where to fetch the right bytes of a damaged value. The transport implements it.
pub(crate) trait PeerValues: Send + Sync {
    /// The bytes of an extent, and the member that had them. `key` is the key whose value it is, or
    /// empty. `None` if no member that answers has them.
    fn fetch<'a>(
        &'a self,
        extent: &'a Extent,
        key: &'a [u8],
    ) -> BoxFuture<'a, Option<(Bytes, NodeId)>>;
}

/// Repairs this member's values.
pub(crate) struct Repairer {
    engine: Engine,
    peers: Arc<dyn PeerValues>,
    repaired: AtomicU64,
    unrepairable: AtomicU64,
    /// One above the last log entry that is damaged, that no member has, and that nothing needs.
    purgeable: AtomicU64,
    /// The entry that could not be read for replication, and since when.
    stuck: Mutex<Option<(u64, runtime::Instant)>>,
}

/// Whether the error means that the stored bytes cannot be read as they were written.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt(_) | Error::Io { .. })
}

impl Repairer {
    pub(crate) fn new(engine: Engine, peers: Arc<dyn PeerValues>) -> Repairer {
        Repairer {
            engine,
            peers,
            repaired: AtomicU64::new(0),
            unrepairable: AtomicU64::new(0),
            purgeable: AtomicU64::new(0),
            stuck: Mutex::new(None),
        }
    }

    /// Values repaired or marked purgeable, and attempts that failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.repaired.load(Ordering::Relaxed), self.unrepairable.load(Ordering::Relaxed))
    }

    /// Repairs a damaged extent and returns the right bytes; `None` if no member has them. If
    /// writing them back fails, the bytes are still right and are returned.
    pub(crate) async fn repair(&self, extent: &Extent) -> Option<Bytes> {
        let own = self.engine.identity();
        let node = NodeId::new(own.slot, own.incarnation);
        let (log_id, offset) = (extent.log_id, extent.at.offset());
        let Some((bytes, from)) = self.find(extent).await else {
            if self.mark_purgeable(extent).await {
                self.repaired.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%node, %log_id, offset, length = extent.at.len, "an applied entry's value is damaged; no member has it and no key needs it: purging the log through that entry");
                return None;
            }
            self.unrepairable.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%node, %log_id, offset, length = extent.at.len, "a value is damaged, and no member that answers has it");
            return None;
        };
        match self.engine.repair(GROUP, extent, &bytes).await {
            Ok(true) => {
                self.repaired.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%node, %log_id, offset, length = extent.at.len, %from, "a damaged value was repaired");
            }
            // Overwritten, deleted or repaired by another task meanwhile.
            Ok(false) => {}
            Err(error) => {
                self.unrepairable.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%node, %log_id, offset, %error, "cannot write the right bytes of a damaged value back");
            }
        }
        Some(bytes)
    }

    /// The same for a read. Boxed, since its large future would otherwise be part of, and copied
    /// with, that of every read.
    async fn repair_boxed(&self, extent: Extent) -> Option<Bytes> {
        Box::pin(async move { self.repair(&extent).await }).await
    }

    /// Marks the log as purgeable through the extent's entry if nothing needs the value: the entry
    /// is applied and no key refers to what it wrote. Only a follower could use it then, and a
    /// snapshot serves that follower as well. Returns whether it did.
    async fn mark_purgeable(&self, extent: &Extent) -> bool {
        let needed = self.engine.applied_before_restart(GROUP).map_or(0, |before| before.index);
        let needed = needed.max(extent.log_id.index);
        let applied = self.engine.applied(GROUP).is_some_and(|applied| applied.index >= needed);
        if !applied || matches!(extent.owner, Owner::Key(_)) {
            return false;
        }
        // Look up the present owners: the entry may have been applied since the caller read the
        // extent.
        let (offset, log_id) = (extent.at.offset(), extent.log_id);
        let owners = self.engine.extents(GROUP, offset..offset + 1).await;
        if owners.iter().any(|now| matches!(now.owner, Owner::Key(_))) {
            return false;
        }
        self.purgeable.fetch_max(log_id.index + 1, Ordering::Relaxed);
        true
    }

    /// The index through which the log should be purged, even if a follower still needs it.
    pub(crate) fn purgeable_through(&self) -> Option<u64> {
        self.purgeable.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The bytes, and their source.
    async fn find(&self, extent: &Extent) -> Option<(Bytes, String)> {
        let own = match &extent.owner {
            Owner::Body => self.engine.body_of(GROUP, extent.log_id),
            Owner::Entry | Owner::Key(_) => {
                self.engine
                    .find_value(GROUP, extent.log_id, key(extent), extent.at.len, extent.at.hash)
                    .await
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

    /// A key's state and value, repaired if it is damaged.
    ///
    /// # Errors
    /// Those of [`Engine::get`]; `Corrupt` only if no member has the value.
    pub(crate) async fn get(&self, key: &[u8]) -> cairn_engine::Result<Option<(KeyEntry, Bytes)>> {
        let error = match self.engine.get(GROUP, key).await {
            Err(error) if is_damage(&error) => error,
            found => return found,
        };
        let Some(entry) = self.engine.lookup(GROUP, key) else {
            return Ok(None);
        };
        match self.repair_boxed(Extent::of_key(Bytes::copy_from_slice(key), &entry)).await {
            Some(bytes) => Ok(Some((entry, bytes))),
            // It may have been overwritten while the other members were asked.
            None if self.engine.lookup(GROUP, key).as_ref() != Some(&entry) => {
                self.engine.get(GROUP, key).await
            }
            None => Err(error),
        }
    }

    /// A value of a view, repaired if it is damaged.
    ///
    /// # Errors
    /// Those of [`View::read`]; `Corrupt` only if no member has the value.
    pub(crate) async fn read(
        &self,
        view: &View,
        key: &[u8],
        entry: &KeyEntry,
    ) -> cairn_engine::Result<Bytes> {
        match view.read(entry).await {
            Err(error) if is_damage(&error) => self
                .repair_boxed(Extent::of_key(Bytes::copy_from_slice(key), entry))
                .await
                .ok_or(error),
            read => read,
        }
    }

    /// A value of an entry of the log, repaired if it is damaged; `None` if the log has no such entry.
    ///
    /// # Errors
    /// Those of [`Engine::read_logged`]; `Corrupt` only if no member has the value.
    pub(crate) async fn read_logged(
        &self,
        id: LogId,
        number: usize,
    ) -> cairn_engine::Result<Option<Bytes>> {
        let error = match self.engine.read_logged(GROUP, id, number).await {
            Err(error) if is_damage(&error) => error,
            read => return read,
        };
        let logged = self.engine.log_id_at(GROUP, id.index).filter(|logged| *logged == id);
        let values = logged.and_then(|logged| self.engine.values_of(GROUP, logged.index));
        let Some(at) = values.and_then(|values| values.get(number).cloned()) else {
            return Ok(None);
        };
        let repaired = self.repair_boxed(Extent { at, log_id: id, owner: Owner::Entry }).await;
        repaired.map(Some).ok_or(error)
    }

    /// Values of a view in the order of the keys, repaired if they are damaged.
    ///
    /// # Errors
    /// As [`Repairer::read`], for the first that can be neither read nor repaired.
    pub(crate) async fn read_all(
        &self,
        view: &View,
        keys: &[(&Bytes, &KeyEntry)],
    ) -> cairn_engine::Result<Vec<Bytes>> {
        let mut values = Vec::with_capacity(keys.len());
        let read = view.read_all(keys.iter().map(|(_, entry)| KeyEntry::clone(entry))).await;
        for ((key, entry), read) in keys.iter().zip(read) {
            values.push(match read {
                Err(error) if is_damage(&error) => {
                    self.repair_boxed(Extent::of_key((*key).clone(), entry)).await.ok_or(error)?
                }
                read => read?,
            });
        }
        Ok(values)
    }

    /// Repairs the values of the entries from `range.start` on, up to about `max_bytes` of values.
    /// Returns the first entry that stays damaged.
    pub(crate) async fn repair_log(&self, range: Range<u64>, max_bytes: u64) -> Option<u64> {
        let mut bytes = 0u64;
        for index in range {
            let log_id = self.engine.log_id_at(GROUP, index)?;
            for at in self.engine.values_of(GROUP, index).unwrap_or_default() {
                bytes = bytes.saturating_add(u64::from(at.len));
                let extent = Extent { at, log_id, owner: Owner::Entry };
                if self.engine.read_extent(GROUP, &extent).await.is_err()
                    && self.repair(&extent).await.is_none()
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

    /// Records whether entry `index` could be read for replication.
    pub(crate) fn replicable(&self, index: u64, readable: bool) {
        let mut stuck = self.stuck.lock();
        match (&*stuck, readable) {
            (Some((at, _)), true) if *at == index => *stuck = None,
            (Some((at, _)), false) if *at == index => {}
            (_, false) => *stuck = Some((index, runtime::now())),
            _ => {}
        }
    }

    /// Whether this member, if it leads, could not read for some time what it should send. Returns
    /// true once for each such period.
    pub(crate) fn take_unreadable_for_long(&self) -> bool {
        let mut stuck = self.stuck.lock();
        let unreadable = stuck.is_some_and(|(_, since)| runtime::now() - since > UNREADABLE_LIMIT);
        if unreadable {
            *stuck = None;
        }
        unreadable
    }
}

fn key(extent: &Extent) -> &[u8] {
    match &extent.owner {
        Owner::Key(key) => key,
        Owner::Entry | Owner::Body => &[],
    }
}

/// A member without peers.
#[cfg(test)]
pub(crate) struct NoPeers;

#[cfg(test)]
impl PeerValues for NoPeers {
    fn fetch<'a>(&'a self, _: &'a Extent, _: &'a [u8]) -> BoxFuture<'a, Option<(Bytes, NodeId)>> {
        Box::pin(std::future::ready(None))
    }
}
