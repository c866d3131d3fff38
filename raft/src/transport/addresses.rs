//! Where the members are reached.
//!
//! A member's addresses are in the replicated membership. A member that starts elsewhere announces
//! its new addresses in each Hello; the others use them before the leader has logged them, since
//! without them there may be no leader.
//!
//! The story: a member's addresses came from each node's own configuration. One that came back
//! elsewhere could reach the others, became their leader, and they sent every client to the address
//! where nothing listened any more.
//!
//! What holds here: an address says where to connect, never who answers. An announced address is
//! used for a member, and logged, only after that member answered there, under its identity, from
//! the latest boot epoch that is known of it. For each current member at most one announcement and
//! one answer are kept, and none for anybody else. A member whose log names nobody keeps a few
//! addresses at which it asks who is there.

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::LateMetrics;
use crate::core::runtime;
use crate::storage::state_machine::identities::Identities;
use cairn_engine::BootEpoch;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The most addresses that a member keeps while its log names nobody.
const UNKNOWN_MAX: usize = 16;
/// The longest address that a membership may hold.
const ADDRESS_BYTES: usize = 512;

/// Whether both addresses may be stored and dialled.
pub(crate) fn is_storable(address: &MemberAddress) -> bool {
    [&address.peer, &address.client]
        .into_iter()
        .all(|text| !text.is_empty() && text.len() <= ADDRESS_BYTES)
}

/// What this member knows of the members' addresses. Clones share it.
#[derive(Clone)]
pub(crate) struct Addresses(Arc<Shared>);

struct Shared {
    own: NodeId,
    advertised: MemberAddress,
    identities: Identities,
    metrics: LateMetrics,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Announced, and not answered there yet.
    announced: BTreeMap<NodeId, Announced>,
    /// Announced, and the member answered there.
    answered: BTreeMap<NodeId, Announced>,
    /// While the log names nobody: the peer addresses that were announced last, and when.
    unknown: VecDeque<(String, runtime::Instant)>,
}

/// A member's own addresses, from one of its boots.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Announced {
    epoch: BootEpoch,
    address: MemberAddress,
}

impl Addresses {
    /// `advertised`: where this member, `own`, is reached.
    pub(crate) fn new(
        own: NodeId,
        advertised: MemberAddress,
        identities: Identities,
        metrics: LateMetrics,
    ) -> Addresses {
        let known = Mutex::default();
        Addresses(Arc::new(Shared { own, advertised, identities, metrics, known }))
    }

    /// Where this member is reached.
    pub(crate) fn advertised(&self) -> &MemberAddress {
        &self.0.advertised
    }

    /// A message that passed the fence says where its sender is reached. Ignored unless the sender
    /// is a current member, and known elsewhere; or nobody is known.
    pub(crate) fn announced(&self, member: NodeId, epoch: BootEpoch, address: MemberAddress) {
        if is_storable(&address) && self.logged().is_empty() {
            return self.keep_unknown(address.peer);
        }
        if !is_storable(&address) || self.known_at(member, epoch).as_ref() == Some(&address) {
            return;
        }
        self.keep(|known| &mut known.announced, member, Announced { epoch, address });
    }

    /// The story: a new disk knew the others from one seed alone. The seed moved and announced that
    /// to it, and so did the other member; the log was still empty, so both went unheard.
    fn keep_unknown(&self, address: String) {
        let unknown = &mut self.0.known.lock().unknown;
        unknown.retain(|(kept, _)| *kept != address);
        unknown.push_back((address, runtime::now()));
        while unknown.len() > UNKNOWN_MAX {
            unknown.pop_front();
        }
    }

    /// Where to ask who is there, while the log names nobody.
    pub(crate) fn unknown(&self) -> Vec<String> {
        self.unknown_since().into_iter().map(|(address, _)| address).collect()
    }

    /// The same, and when each was announced last.
    pub(crate) fn unknown_since(&self) -> Vec<(String, runtime::Instant)> {
        let somebody = !self.logged().is_empty();
        let unknown = &mut self.0.known.lock().unknown;
        if somebody {
            unknown.clear();
        }
        unknown.iter().cloned().collect()
    }

    /// The announced addresses at which nobody was asked yet. Forgets them: whoever is not found
    /// there announces them again.
    pub(crate) fn to_ask(&self) -> Vec<(NodeId, MemberAddress)> {
        let announced = std::mem::take(&mut self.0.known.lock().announced);
        announced.into_iter().map(|(member, announced)| (member, announced.address)).collect()
    }

    /// The member answered at `address.peer`, from this boot epoch.
    pub(crate) fn answered(&self, member: NodeId, epoch: BootEpoch, address: MemberAddress) {
        if is_storable(&address) {
            self.keep(|known| &mut known.answered, member, Announced { epoch, address });
        }
    }

    /// Keeps what a current member said of itself, unless a later boot of it said something.
    fn keep(
        &self,
        of: impl Fn(&mut Known) -> &mut BTreeMap<NodeId, Announced>,
        member: NodeId,
        said: Announced,
    ) {
        let members = self.logged();
        if member == self.0.own || !members.contains_key(&member) {
            return;
        }
        let mut known = self.0.known.lock();
        let kept = of(&mut known);
        kept.retain(|id, _| members.contains_key(id));
        if kept.get(&member).is_none_or(|before| before.epoch.number <= said.epoch.number) {
            kept.insert(member, said);
        }
        assert!(kept.len() <= members.len(), "more announcements than members");
    }

    /// The addresses of the present membership.
    fn logged(&self) -> BTreeMap<NodeId, MemberAddress> {
        let nodes = self.0.metrics.read_metrics(|seen| {
            let nodes = seen.membership_config.nodes();
            nodes.map(|(id, address)| (*id, address.clone())).collect()
        });
        nodes.unwrap_or_default()
    }

    fn logged_of(&self, member: NodeId) -> Option<MemberAddress> {
        self.0
            .metrics
            .read_metrics(|seen| seen.membership_config.get_node(&member).cloned())
            .flatten()
    }

    /// Where the member answered in its latest boot that is known: what it said before a restart is
    /// void.
    fn answered_at(&self, member: NodeId) -> Option<MemberAddress> {
        if member == self.0.own {
            return Some(self.0.advertised.clone()).filter(is_storable);
        }
        let answered = self.0.known.lock().answered.get(&member).cloned()?;
        self.0.identities.is_newest(member, answered.epoch).then_some(answered.address)
    }

    /// Where the member of this boot is already known to be.
    fn known_at(&self, member: NodeId, epoch: BootEpoch) -> Option<MemberAddress> {
        let known = self.0.known.lock().answered.get(&member).cloned();
        match known.filter(|known| known.epoch == epoch) {
            Some(known) => Some(known.address),
            None => self.logged_of(member),
        }
    }

    /// Where clients find the member: where it answered, else what the log says.
    pub(crate) fn present(&self, member: NodeId, logged: &MemberAddress) -> MemberAddress {
        self.answered_at(member).unwrap_or_else(|| logged.clone())
    }

    /// The peer addresses of a member, in the order in which to try them. `given`: for a member
    /// that the present membership lacks.
    pub(crate) fn of(&self, member: NodeId, given: Option<&MemberAddress>) -> Vec<String> {
        let logged = self.logged_of(member).or_else(|| given.cloned());
        let mut all: Vec<String> =
            self.answered_at(member).into_iter().chain(logged).map(|at| at.peer).collect();
        all.dedup();
        all
    }

    /// The other members of the present membership, with the addresses of each.
    pub(crate) fn others(&self) -> Vec<(NodeId, String)> {
        let members = self.logged().into_keys().filter(|id| *id != self.0.own);
        members.flat_map(|id| self.of(id, None).into_iter().map(move |at| (id, at))).collect()
    }

    /// The members, this one included, that are reached at other addresses than the log says.
    pub(crate) fn moved(&self) -> BTreeMap<NodeId, MemberAddress> {
        let moved = |(id, logged): (NodeId, MemberAddress)| {
            Some((id, self.answered_at(id).filter(|present| *present != logged)?))
        };
        self.logged().into_iter().filter_map(moved).collect()
    }

    /// Whether the log has another address of this member than the one that it advertises.
    pub(crate) fn is_moved(&self) -> bool {
        self.moved().contains_key(&self.0.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::boot::Boot;
    use crate::core::runtime;
    use crate::core::types::{Membership, StoredMembership};
    use openraft::RaftMetrics;

    const OWN: NodeId = NodeId::new(1, 11);
    const OTHER: NodeId = NodeId::new(2, 22);

    fn at(host: &str) -> MemberAddress {
        MemberAddress { peer: format!("{host}:2"), client: format!("{host}:1") }
    }

    fn epoch(number: u64) -> BootEpoch {
        BootEpoch { number, nonce: 10 * number }
    }

    fn boot(number: u64) -> Boot {
        Boot { epoch: epoch(number), version: 1, release: Arc::default() }
    }

    /// Members 1 and 2, in the log at `a` and `b`; this is member 1, which advertises `a`.
    fn addresses(identities: &Identities) -> (Addresses, impl Sized + use<>) {
        let nodes = BTreeMap::from([(OWN, at("a")), (OTHER, at("b"))]);
        let membership = Membership::new(vec![nodes.keys().copied().collect()], nodes).unwrap();
        let mut metrics = RaftMetrics::new_initial(OWN);
        metrics.membership_config = Arc::new(StoredMembership::new(None, membership));
        let (sender, watch) = runtime::watch(metrics);
        let late = LateMetrics::default();
        late.set(watch);
        (Addresses::new(OWN, at("a"), identities.clone(), late), sender)
    }

    #[test]
    fn an_announced_address_is_used_once_the_member_answered_there_and_before_the_one_in_the_log() {
        let identities = Identities::default();
        let (addresses, _metrics) = addresses(&identities);
        identities.observe(OTHER, &boot(4), &[]).unwrap();
        assert_eq!(addresses.of(OTHER, None), ["b:2"]);
        addresses.announced(OTHER, epoch(4), at("new"));
        assert_eq!(addresses.of(OTHER, None), ["b:2"], "nobody answered there");
        assert_eq!(addresses.to_ask(), [(OTHER, at("new"))]);
        assert_eq!(addresses.to_ask(), []);
        assert!(addresses.moved().is_empty());
        addresses.answered(OTHER, epoch(4), at("new"));
        assert_eq!(addresses.of(OTHER, None), ["new:2", "b:2"]);
        assert_eq!(addresses.present(OTHER, &at("b")), at("new"));
        assert_eq!(addresses.moved(), BTreeMap::from([(OTHER, at("new"))]));
        addresses.announced(OTHER, epoch(4), at("new"));
        assert_eq!(addresses.to_ask(), [], "known already");
    }

    #[test]
    fn what_a_member_announced_is_void_after_its_next_start() {
        let identities = Identities::default();
        let (addresses, _metrics) = addresses(&identities);
        identities.observe(OTHER, &boot(4), &[]).unwrap();
        addresses.answered(OTHER, epoch(4), at("new"));
        identities.observe(OTHER, &boot(5), &[40]).unwrap();
        assert_eq!(addresses.of(OTHER, None), ["b:2"]);
        assert!(addresses.moved().is_empty());
        // An answer of the former boot arrives late.
        addresses.answered(OTHER, epoch(5), at("newer"));
        addresses.answered(OTHER, epoch(4), at("new"));
        assert_eq!(addresses.of(OTHER, None), ["newer:2", "b:2"]);
    }

    #[test]
    fn a_member_whose_log_names_nobody_asks_where_the_last_few_announced_themselves() {
        let late = LateMetrics::default();
        let nobody = Addresses::new(OWN, at("a"), Identities::default(), late);
        nobody.announced(OTHER, epoch(1), at("b"));
        nobody.announced(OTHER, epoch(1), at("b"));
        nobody.announced(OTHER, epoch(1), MemberAddress::default());
        assert_eq!(nobody.unknown(), ["b:2"]);
        for number in 0..100 {
            nobody.announced(OTHER, epoch(1), at(&format!("c{number}")));
        }
        assert_eq!(nobody.unknown().len(), UNKNOWN_MAX);
        assert!(nobody.unknown().contains(&"c99:2".to_owned()));
        assert!(nobody.to_ask().is_empty() && nobody.others().is_empty());
        let (somebody, _metrics) = addresses(&Identities::default());
        somebody.announced(NodeId::new(2, 1000), epoch(1), at("x"));
        assert!(somebody.unknown().is_empty());
    }

    #[test]
    fn nothing_is_kept_of_others_than_current_members_nor_of_this_one() {
        let (addresses, _metrics) = addresses(&Identities::default());
        for number in 0..100 {
            let invented = NodeId::new(2, 1000 + number);
            addresses.announced(invented, epoch(1), at("x"));
            addresses.answered(invented, epoch(1), at("x"));
        }
        addresses.announced(OWN, epoch(1), at("x"));
        addresses.answered(OWN, epoch(1), at("x"));
        let long = MemberAddress { peer: "x".repeat(ADDRESS_BYTES + 1), client: "x:1".into() };
        addresses.announced(OTHER, epoch(1), long.clone());
        addresses.answered(OTHER, epoch(1), long);
        addresses.announced(OTHER, epoch(1), MemberAddress::default());
        assert_eq!(addresses.to_ask(), []);
        assert!(addresses.0.known.lock().answered.is_empty());
        assert_eq!(addresses.others(), [(OTHER, "b:2".to_owned())]);
    }

    #[test]
    fn a_member_that_the_membership_lacks_is_reached_where_openraft_says() {
        let (addresses, _metrics) = addresses(&Identities::default());
        let new = NodeId::new(3, 33);
        assert!(addresses.of(new, None).is_empty());
        assert_eq!(addresses.of(new, Some(&at("c"))), ["c:2"]);
        assert_eq!(addresses.of(OTHER, Some(&at("older"))), ["b:2"]);
    }
}
