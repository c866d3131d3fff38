//! The routes to a member: its addresses, and which one is used.
//!
//! What holds here: a route is used until it fails, then the next one; the caller checks the
//! identity of the member that answers.

use super::connection::{Client, connect};
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::types::TypeConfig;
use cairn_tls::Tls;
use openraft::RaftMetrics;
use openraft::errors::{RPCError, Unreachable};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// One member: the routes to it, of which one is used until it fails.
#[derive(Clone)]
pub(super) struct Peer {
    routes: Arc<[Route]>,
    current: Arc<AtomicUsize>,
    /// Whether the last append stream could be opened, so that a change is logged once.
    pub(super) reachable: Arc<AtomicBool>,
    pub(super) snapshots: Snapshots,
}

/// Counts the snapshot transfers to one member that began, and those that ended, successful or not.
/// Clones share it.
#[derive(Clone, Default)]
pub(super) struct Snapshots(Arc<[AtomicU64; 2]>);

/// A snapshot transfer under route.
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

    /// Whether a transfer is under route, or has ended since `ended` returned `before`.
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
pub(super) struct Route {
    pub(super) bulk: Result<Client, String>,
    pub(super) control: Result<Client, String>,
}

impl Peer {
    /// The member of `slot`, at one of these addresses.
    pub(super) fn at(tls: Option<&Tls>, slot: u16, addresses: &[&str]) -> Peer {
        let connect = |address: &str| connect(tls, slot, address);
        let route = |address: &&str| Route { bulk: connect(address), control: connect(address) };
        Peer {
            routes: addresses.iter().map(route).collect(),
            current: Arc::default(),
            reachable: Arc::new(AtomicBool::new(true)),
            snapshots: Snapshots::default(),
        }
    }

    /// A connection of the present route, and that route's number.
    pub(super) fn client(
        &self,
        of: impl Fn(&Route) -> &Result<Client, String>,
    ) -> Result<(usize, Client), RPCError<TypeConfig>> {
        let current = self.current.load(Ordering::Relaxed);
        let client = self
            .routes
            .get(current)
            .map_or_else(|| Err("no address".into()), |route| of(route).clone());
        client.map(|client| (current, client)).map_err(|reason| {
            self.failed(current);
            Unreachable::from_string(reason).into()
        })
    }

    /// Makes the next attempt use another route, if there is one, and if no other caller has
    /// switched already.
    pub(super) fn failed(&self, route: usize) {
        let next = (route + 1).checked_rem(self.routes.len()).unwrap_or(0);
        self.current.compare_exchange(route, next, Ordering::Relaxed, Ordering::Relaxed).ok();
    }
}

/// A member's addresses: the configured one, since an operator who moves the member changes it
/// there; and the one in the log, which may name a member that took the slot elsewhere. The caller
/// checks the identity of the member that answers.
pub(super) fn addresses<'a>(
    configured: &'a BTreeMap<u16, MemberAddress>,
    target: NodeId,
    logged: &'a MemberAddress,
) -> Vec<&'a str> {
    let configured = configured.get(&target.slot()).filter(|address| address.peer != logged.peer);
    configured.into_iter().chain([logged]).map(|address| address.peer.as_str()).collect()
}

/// The other members of the present membership, with the addresses of each.
pub(crate) fn others(
    metrics: &RaftMetrics<TypeConfig>,
    configured: &BTreeMap<u16, MemberAddress>,
) -> Vec<(NodeId, String)> {
    let nodes = metrics.membership_config.nodes().filter(|(id, _)| **id != metrics.id);
    let with_addresses = |(id, logged): (&NodeId, _)| {
        let addresses = addresses(configured, *id, logged).into_iter().map(str::to_owned);
        addresses.map(|address| (*id, address)).collect::<Vec<_>>()
    };
    nodes.flat_map(with_addresses).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str) -> MemberAddress {
        MemberAddress { peer: format!("{host}:2"), client: format!("{host}:1") }
    }

    #[test]
    fn the_configured_address_is_used_before_the_one_in_the_log() {
        let configured = BTreeMap::from([(1, at("a")), (2, at("new"))]);
        let of = |slot, logged| addresses(&configured, NodeId::new(slot, 7), &at(logged)).join(" ");
        assert_eq!(of(1, "a"), "a:2");
        assert_eq!(of(2, "old"), "new:2 old:2");
        assert_eq!(of(3, "c"), "c:2");
    }

    #[tokio::test]
    async fn concurrent_failures_switch_the_route_once() {
        let peer = Peer::at(None, 2, &["new:2", "old:2"]);
        let current = || peer.client(|route| &route.bulk).map(|(route, _)| route).unwrap();
        assert_eq!(current(), 0);
        peer.failed(0);
        peer.failed(0);
        assert_eq!(current(), 1);
        peer.failed(1);
        assert_eq!(current(), 0);
        let only = Peer::at(None, 2, &["a:2"]);
        only.failed(0);
        assert!(only.client(|route| &route.control).is_ok());
        assert!(Peer::at(None, 2, &["no address"]).client(|route| &route.control).is_err());
    }
}
