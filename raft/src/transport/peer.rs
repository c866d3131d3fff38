//! The routes to a member: its addresses, and which one is used.
//!
//! What holds here: a route is used until it fails, then the next one; when the member's addresses
//! change, the first of the new ones; the caller checks the identity of the member that answers.

use super::addresses::Addresses;
use super::wire::client::Client;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::types::TypeConfig;
use cairn_tls::Tls;
use openraft::errors::{RPCError, Unreachable};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// One member: the routes to it, of which one is used until it fails.
#[derive(Clone)]
pub(super) struct Peer {
    member: NodeId,
    addresses: Addresses,
    routes: Arc<Mutex<Routes>>,
    /// Whether the last append stream could be opened, so that a change is logged once.
    pub(super) reachable: Arc<AtomicBool>,
    /// Answers in a row that came too late for a heartbeat.
    late: Arc<AtomicU64>,
    pub(super) snapshots: Snapshots,
}

struct Routes {
    /// Who must answer.
    slot: u16,
    tls: Option<Tls>,
    /// The member's address when openraft last asked for a connection.
    given: MemberAddress,
    list: Vec<Route>,
    /// The position of the route in use.
    current: usize,
    /// The number of the next route.
    next: u64,
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

/// Connections to one address: heartbeats and votes must not wait behind entries, nor a snapshot's
/// pieces behind entries that the member does not take.
#[derive(Clone)]
pub(super) struct Route {
    /// Tells it from the member's other routes, also from those that it had before.
    number: u64,
    address: String,
    pub(super) control: Result<Client, String>,
    pub(super) entries: Result<Client, String>,
    pub(super) snapshots: Result<Client, String>,
}

impl Routes {
    /// Follows the member's addresses. The routes to addresses that stay are kept.
    fn follow(&mut self, addresses: &[String]) {
        if self.list.iter().map(|route| &route.address).eq(addresses) {
            return;
        }
        let mut list = Vec::new();
        for address in addresses {
            let kept = self.list.iter().find(|route| route.address == *address).cloned();
            list.push(kept.unwrap_or_else(|| {
                self.next += 1;
                let client = || Client::new(self.tls.as_ref(), Some(self.slot), address);
                Route {
                    number: self.next,
                    address: address.clone(),
                    control: client(),
                    entries: client(),
                    snapshots: client(),
                }
            }));
        }
        (self.list, self.current) = (list, 0);
    }
}

impl Peer {
    /// A member that openraft knows at `given`.
    pub(super) fn new(
        member: NodeId,
        tls: Option<Tls>,
        given: MemberAddress,
        addresses: Addresses,
    ) -> Peer {
        let slot = member.slot();
        let routes = Routes { slot, tls, given, list: Vec::new(), current: 0, next: 0 };
        Peer {
            member,
            addresses,
            routes: Arc::new(Mutex::new(routes)),
            reachable: Arc::new(AtomicBool::new(true)),
            late: Arc::default(),
            snapshots: Snapshots::default(),
        }
    }

    /// An answer that needs no disk took so long. A leader counts no answer to a heartbeat that takes
    /// longer than the next one is due: between distant sites, without writes, it would lose its lease
    /// for ever, and nothing else would say why.
    pub(super) fn answered_after(&self, took: Duration, heartbeat: Duration) {
        if !self.begins_to_be_late(took, heartbeat) {
            return;
        }
        let (took_ms, heartbeat_ms) = (took.as_millis(), heartbeat.as_millis());
        let member = self.member;
        tracing::warn!(%member, took_ms, heartbeat_ms, "a member answers later than the next heartbeat is due, so its answers to \
            heartbeats do not count and a leader cannot stay: unless that passes, give all members a timing.heartbeat \
            above their round trip, and timing.election_min and timing.election_max of at least five and ten times as much");
    }

    /// Whether this answer is the second one in a row that is late: the first one may have waited for a
    /// connection.
    fn begins_to_be_late(&self, took: Duration, heartbeat: Duration) -> bool {
        if took < heartbeat {
            self.late.store(0, Ordering::Relaxed);
            return false;
        }
        self.late.fetch_add(1, Ordering::Relaxed) == 1
    }

    /// openraft knows the member at this address now.
    pub(super) fn given(&self, address: &MemberAddress) {
        self.routes.lock().given.clone_from(address);
    }

    /// A connection of the present route, and that route's number.
    pub(super) fn client(
        &self,
        of: impl Fn(&Route) -> &Result<Client, String>,
    ) -> Result<(u64, Client), RPCError<TypeConfig>> {
        let given = self.routes.lock().given.clone();
        let addresses = self.addresses.of(self.member, Some(&given));
        let mut routes = self.routes.lock();
        routes.follow(&addresses);
        let Some(route) = routes.list.get(routes.current) else {
            return Err(Unreachable::from_string("no address").into());
        };
        let (number, client) = (route.number, of(route).clone());
        drop(routes);
        client.map(|client| (number, client)).map_err(|reason| {
            self.failed(number);
            Unreachable::from_string(reason).into()
        })
    }

    /// Makes the next attempt use another route, if there is one, and if no other caller has
    /// switched already.
    pub(super) fn failed(&self, route: u64) {
        let mut routes = self.routes.lock();
        if routes.list.get(routes.current).is_some_and(|current| current.number == route) {
            routes.current = (routes.current + 1).checked_rem(routes.list.len()).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Routes {
        let given = MemberAddress::default();
        Routes { slot: 2, tls: None, given, list: Vec::new(), current: 0, next: 0 }
    }

    fn addresses(of: &[&str]) -> Vec<String> {
        of.iter().map(|address| (*address).to_owned()).collect()
    }

    /// A peer whose routes do not change.
    fn peer(of: &[&str]) -> Peer {
        let (member, given) = (NodeId::new(2, 22), MemberAddress::default());
        let own = Addresses::new(
            NodeId::new(1, 11),
            given.clone(),
            Default::default(),
            Default::default(),
        );
        let peer = Peer::new(member, None, given, own);
        peer.routes.lock().follow(&addresses(of));
        peer
    }

    fn current(peer: &Peer) -> u64 {
        let routes = peer.routes.lock();
        routes.list.get(routes.current).unwrap().number
    }

    #[tokio::test]
    async fn concurrent_failures_switch_the_route_once() {
        let peer = peer(&["new:2", "old:2"]);
        let (new, old) = (1, 2);
        assert_eq!(current(&peer), new);
        peer.failed(new);
        peer.failed(new);
        assert_eq!(current(&peer), old);
        peer.failed(old);
        assert_eq!(current(&peer), new);
    }

    #[tokio::test]
    async fn a_member_that_answers_late_twice_in_a_row_is_named_once_until_it_answers_in_time() {
        let peer = peer(&["a:2"]);
        let heartbeat = Duration::from_millis(100);
        let named = |took: [u64; 8]| {
            took.map(|took| peer.begins_to_be_late(Duration::from_millis(took), heartbeat))
        };
        let (no, yes) = (false, true);
        assert_eq!(named([99, 100, 99, 100, 100, 300, 300, 20]), [no, no, no, no, yes, no, no, no]);
        assert_eq!(named([300, 300, 1, 1, 300, 1, 300, 300]), [no, yes, no, no, no, no, no, yes]);
    }

    /// The story: openraft keeps a stream to a member for as long as it leads, and does not hear of
    /// another address. The stream was opened again and again at the old one.
    #[tokio::test]
    async fn a_changed_address_is_used_at_once_and_the_route_to_one_that_stays_is_kept() {
        let mut routes = routes();
        routes.follow(&addresses(&["old:2"]));
        let old = routes.list[0].number;
        routes.follow(&addresses(&["new:2", "old:2"]));
        assert_eq!(routes.current, 0);
        assert_eq!(routes.list[0].address, "new:2");
        assert_eq!(routes.list[1].number, old);
        let new = routes.list[0].number;
        routes.current = 1;
        routes.follow(&addresses(&["new:2"]));
        assert_eq!((routes.current, routes.list.len()), (0, 1));
        assert_eq!(routes.list[0].number, new);
        routes.follow(&addresses(&["old:2"]));
        assert_ne!(routes.list[0].number, old, "a failure of the former route says nothing");
    }

    #[tokio::test]
    async fn what_is_no_address_is_reported() {
        let peer = Peer::new(
            NodeId::new(2, 22),
            None,
            MemberAddress { peer: "no address".into(), client: String::new() },
            Addresses::new(
                NodeId::new(1, 11),
                MemberAddress::default(),
                Default::default(),
                Default::default(),
            ),
        );
        assert!(peer.client(|route| &route.control).is_err());
    }
}
