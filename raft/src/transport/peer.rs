//! The ways to a member: where it can be, and which connection is taken.
//!
//! What holds here: a way is taken until it fails, then the next one; who answers is checked by whoever asks.

use super::connection::{Client, connect};
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::types::TypeConfig;
use openraft::errors::{RPCError, Unreachable};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// One member: the ways to it, of which one is taken until it fails.
#[derive(Clone)]
pub(super) struct Peer {
    ways: Arc<[Way]>,
    taken: Arc<AtomicUsize>,
    /// Whether the last append stream could be opened; for the log, which says so once.
    pub(super) reachable: Arc<AtomicBool>,
    pub(super) snapshots: Snapshots,
}

/// Counts the snapshots on their way to one member, and those that ended, well or not. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Snapshots(Arc<[AtomicU64; 2]>);

/// A snapshot on its way.
pub(super) struct Sending(Snapshots);

impl Snapshots {
    pub(super) fn begin(&self) -> Sending {
        let [begun, _] = &*self.0;
        begun.fetch_add(1, Ordering::SeqCst);
        Sending(self.clone())
    }

    pub(super) fn ended(&self) -> u64 {
        let [_, ended] = &*self.0;
        ended.load(Ordering::SeqCst)
    }

    /// Whether one is on its way, or has ended since `ended` had.
    pub(super) fn overtook(&self, before: u64) -> bool {
        let [begun, ended] = &*self.0;
        let ended = ended.load(Ordering::SeqCst);
        ended != before || begun.load(Ordering::SeqCst) != ended
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let [_, ended] = &*self.0.0;
        ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Two connections to one address: heartbeats and votes must not queue behind entries.
pub(super) struct Way {
    pub(super) bulk: Result<Client, String>,
    pub(super) control: Result<Client, String>,
}

impl Peer {
    pub(super) fn at(addresses: &[&str]) -> Peer {
        let way = |address: &&str| Way { bulk: connect(address), control: connect(address) };
        Peer {
            ways: addresses.iter().map(way).collect(),
            taken: Arc::default(),
            reachable: Arc::new(AtomicBool::new(true)),
            snapshots: Snapshots::default(),
        }
    }

    /// A connection of the way that is taken, and which way that is.
    pub(super) fn client(
        &self,
        of: impl Fn(&Way) -> &Result<Client, String>,
    ) -> Result<(usize, Client), RPCError<TypeConfig>> {
        let taken = self.taken.load(Ordering::Relaxed);
        let client = self.ways.get(taken).map_or_else(|| Err("no address".into()), |way| of(way).clone());
        client.map(|client| (taken, client)).map_err(|reason| {
            self.failed(taken);
            Unreachable::from_string(reason).into()
        })
    }

    /// The next attempt takes another way, if there is one and nobody else has turned to it already.
    pub(super) fn failed(&self, way: usize) {
        let next = (way + 1).checked_rem(self.ways.len()).unwrap_or(0);
        self.taken.compare_exchange(way, next, Ordering::Relaxed, Ordering::Relaxed).ok();
    }
}

/// Where a member can be: as configured, since an operator who moves it says so there, and as the log has it, since that may
/// know of a member that took its slot elsewhere. Whoever answers is checked for who it is.
pub(crate) fn addresses<'a>(
    configured: &'a BTreeMap<u16, MemberAddress>,
    target: NodeId,
    logged: &'a MemberAddress,
) -> Vec<&'a str> {
    let configured = configured.get(&target.slot()).filter(|address| address.peer != logged.peer);
    configured.into_iter().chain([logged]).map(|address| address.peer.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str) -> MemberAddress {
        MemberAddress { peer: format!("{host}:2"), client: format!("{host}:1") }
    }

    #[test]
    fn the_configured_address_goes_before_the_one_in_the_log() {
        let configured = BTreeMap::from([(1, at("a")), (2, at("new"))]);
        let of = |slot, logged| addresses(&configured, NodeId::new(slot, 7), &at(logged)).join(" ");
        assert_eq!(of(1, "a"), "a:2");
        assert_eq!(of(2, "old"), "new:2 old:2");
        assert_eq!(of(3, "c"), "c:2");
    }

    #[tokio::test]
    async fn after_a_failure_the_other_way_is_taken_once_however_many_fail() {
        let peer = Peer::at(&["new:2", "old:2"]);
        let taken = || peer.client(|way| &way.bulk).map(|(way, _)| way).unwrap();
        assert_eq!(taken(), 0);
        peer.failed(0);
        peer.failed(0);
        assert_eq!(taken(), 1);
        peer.failed(1);
        assert_eq!(taken(), 0);
        let only = Peer::at(&["a:2"]);
        only.failed(0);
        assert!(only.client(|way| &way.control).is_ok());
        assert!(Peer::at(&["no address"]).client(|way| &way.control).is_err());
    }
}
