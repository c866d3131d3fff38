//! The nodes that the client knows, and which of them leads.
//!
//! The nodes are those of the options, which are kept, and the members, which the cluster's log
//! names. A `Hello` tells them: on each new connection, every few seconds from a node that is in use,
//! and soon after a failure, since members move and are replaced. The leader is the node that last
//! served a request as the leader. A hint from another node affects only the request that received
//! it.
//!
//! What holds here: beside those of the options, the nodes are bounded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cairn_tls::Tls;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::Error;
use crate::caller::Caller;
use crate::convert;
use crate::node::{Connection, Node, normalize};
use crate::options::{Options, ReadFrom};
use crate::proto;
use crate::random::Random;
use crate::session::Sessions;
use crate::types::Member;
use crate::view::{ClusterView, Learnt};

/// How often a node that is in use is asked for the members.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// How soon after a failure.
const REFRESH_AFTER_FAILURE: Duration = Duration::from_millis(200);
/// The most nodes beside those of the options.
const NODES_MAX: usize = 256;

pub(crate) struct Pool {
    pub(crate) options: Options,
    tls: Option<Tls>,
    pub(crate) view: ClusterView,
    pub(crate) random: Random,
    pub(crate) sessions: Sessions,
    nodes: RwLock<Vec<Arc<Node>>>,
    /// How many of `nodes` come from the options.
    seeds: usize,
    /// Where a request without a known leader starts, so that clients with the same options spread
    /// over the nodes.
    pub(crate) start: usize,
    /// The node that last served a request as the leader.
    leader: RwLock<Option<Arc<Node>>>,
    /// The node that last answered any request.
    preferred: RwLock<Option<Arc<Node>>>,
    /// Counts choices among nodes that have equally much to do.
    turn: AtomicUsize,
    /// When to ask for the members again; `None`: no node told them yet.
    next_refresh: Mutex<Option<Instant>>,
    /// Itself, for the task that asks.
    own: OnceLock<Weak<Pool>>,
}

/// Which nodes can serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Only the leader.
    Leader,
    /// Every member: one that does not lead asks the leader.
    Reader,
    /// Every node.
    Any,
}

impl Pool {
    pub(crate) fn new(options: Options) -> Result<Self, Error> {
        let random = Random::new(options.seed)?;
        let tls = load(&options)?;
        let cluster = options.cluster.clone();
        let cluster = cluster.or_else(|| Some(tls.as_ref()?.name().cluster.to_string()));
        let caller = Caller::new(options.token.clone());
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        for endpoint in &options.endpoints {
            let address = normalize(endpoint, tls.is_some())?;
            if nodes.iter().all(|node| node.address() != address) {
                nodes.push(Arc::new(Node::new(address, &options, tls.as_ref(), &caller)?));
            }
        }
        if nodes.is_empty() {
            return Err(Error::InvalidOptions("no endpoint given".to_owned()));
        }
        Ok(Pool {
            start: random.index(nodes.len()),
            random,
            sessions: Sessions::new(options.max_in_flight),
            seeds: nodes.len(),
            nodes: RwLock::new(nodes),
            leader: RwLock::new(None),
            preferred: RwLock::new(None),
            turn: AtomicUsize::new(0),
            next_refresh: Mutex::default(),
            own: OnceLock::new(),
            view: ClusterView::new(cluster, caller),
            options,
            tls,
        })
    }

    /// A pool that asks for the members in the background.
    pub(crate) fn shared(options: Options) -> Result<Arc<Pool>, Error> {
        let pool = Arc::new(Pool::new(options)?);
        pool.own.set(Arc::downgrade(&pool)).ok();
        Ok(pool)
    }

    /// `host:port` of an endpoint.
    pub(crate) fn normalize(&self, endpoint: &str) -> Result<String, Error> {
        normalize(endpoint, self.tls.is_some())
    }

    /// A node that is not connected yet.
    pub(crate) fn unconnected(&self, address: String) -> Result<Node, Error> {
        Node::new(address, &self.options, self.tls.as_ref(), self.view.caller())
    }

    /// Connects to the first node that answers, trying each once.
    pub(crate) async fn connect_any(&self) -> Result<(), Error> {
        let (mut tried, mut last) = (Vec::new(), String::new());
        let (mut denied, mut mismatch) = (None, None);
        for i in 0..self.seeds {
            let Some(node) = self.nth(self.start + i) else {
                continue;
            };
            match self.connect(&node).await {
                Ok(_) => return Ok(()),
                Err(error @ Error::ProtocolMismatch { .. }) => return Err(error),
                Err(error @ Error::ClusterMismatch { .. }) => mismatch = Some(error),
                Err(error) if error.is_denied() => denied = Some(error),
                Err(Error::Unavailable { last_error, .. }) => last = last_error,
                Err(error) => last = error.to_string(),
            }
            tried.push(node.address().to_owned());
        }
        Err(denied.or(mismatch).unwrap_or(Error::Unavailable { tried, last_error: last }))
    }

    /// The node's connection, opened if there is none. While no formed node has answered, one that is
    /// connected is asked again: it may have been blank, and be part of a cluster by now.
    pub(crate) async fn connect(&self, node: &Node) -> Result<Arc<Connection>, Error> {
        match node.connection().filter(|_| !self.knows_generation()) {
            Some(connection) => self.ask_again(node, connection).await,
            None => {
                let learn = |address: &str, hello| self.learn(address, hello);
                node.connect(&self.options, &self.random, learn).await
            }
        }
    }

    /// The same. It goes on if the caller stops waiting, so that requests with short deadlines find
    /// out that a node is down, too.
    pub(crate) async fn connect_to_its_end(
        &self,
        node: &Arc<Node>,
    ) -> Result<Arc<Connection>, Error> {
        let Some(pool) = self.own.get().and_then(Weak::upgrade) else {
            return self.connect(node).await;
        };
        let connecting = node.clone();
        let connected = tokio::spawn(async move { pool.connect(&connecting).await }).await;
        connected.unwrap_or_else(|error| Err(Error::unavailable(node.address(), error.to_string())))
    }

    async fn ask_again(
        &self,
        node: &Node,
        connection: Arc<Connection>,
    ) -> Result<Arc<Connection>, Error> {
        let limit = self.options.connect_timeout;
        let mut stub = connection.stub();
        let unavailable = |why| Error::unavailable(node.address(), why);
        let learnt = match tokio::time::timeout(limit, stub.hello(limit)).await {
            Ok(Ok(hello)) => self.learn(node.address(), hello),
            Ok(Err(status)) => Err(unavailable(convert::describe(&status))),
            Err(_) => Err(unavailable(format!("no answer within {} ms", limit.as_millis()))),
        };
        if learnt.is_err() {
            node.discard(&connection);
        }
        learnt.map(|()| connection)
    }

    /// Whether a formed node has told of which generation it is.
    pub(crate) fn knows_generation(&self) -> bool {
        self.view.caller().generation().is_some()
    }

    /// Stores what a newly connected node reports.
    pub(crate) fn learn(
        &self,
        address: &str,
        mut hello: proto::HelloResponse,
    ) -> Result<(), Error> {
        let (leader, applied) = (hello.leader.take(), hello.applied_index);
        let Learnt { members, newest, other_generation } = self.view.learn(address, hello)?;
        if other_generation {
            *self.leader.write() = None;
        }
        if !members.is_empty() {
            *self.next_refresh.lock() = Some(Instant::now() + REFRESH_INTERVAL);
        }
        self.sessions.observe(applied);
        self.learn_members(&members, newest);
        // A node that was taken for the leader knows best who leads since: it may go on serving reads.
        let asked_leader =
            self.leader.read().as_ref().is_none_or(|leader| leader.address() == address);
        if let Some(leader) = leader.filter(|_| asked_leader)
            && let Some(node) = self.at(&leader.client_address)
        {
            *self.leader.write() = Some(node);
        }
        Ok(())
    }

    /// Asks the node of this connection for the members in the background, if it is time to.
    pub(crate) fn refresh_by(&self, node: &Arc<Node>, connection: &Arc<Connection>) {
        let now = Instant::now();
        {
            let mut next = self.next_refresh.lock();
            if next.is_none_or(|next| now < next) {
                return;
            }
            *next = Some(now + REFRESH_INTERVAL);
        }
        let Some(pool) = self.own.get().and_then(Weak::upgrade) else { return };
        let (node, connection) = (node.clone(), connection.clone());
        tokio::spawn(async move {
            let mut stub = connection.stub();
            let asked = stub.hello(pool.options.connect_timeout);
            // A node that does not answer is found out by the requests to it.
            if let Ok(Ok(hello)) = tokio::time::timeout(pool.options.connect_timeout, asked).await
                && pool.learn(node.address(), hello).is_err()
            {
                // A node that was blank when this connection was made became part of another cluster.
                node.discard(&connection);
            }
        });
    }

    /// A request failed in a way that other members may explain: asks for them soon.
    pub(crate) fn refresh_soon(&self) {
        let soon = Instant::now() + REFRESH_AFTER_FAILURE;
        let mut next = self.next_refresh.lock();
        *next = next.map(|next| next.min(soon));
    }

    /// Keeps the options' nodes and the members, and the connections of the nodes that stay. What
    /// is not the newest list only adds nodes. Ignores an empty list: that node does not know the
    /// members yet.
    fn learn_members(&self, members: &[Member], newest: bool) {
        if members.is_empty() {
            return;
        }
        let mut nodes = self.nodes.write();
        let known =
            |nodes: &[Arc<Node>], address: &str| nodes.iter().any(|node| node.address() == address);
        let seeds = self.seeds;
        let mut position = 0;
        nodes.retain(|node| {
            position += 1;
            position <= seeds
                || !newest
                || members.iter().any(|member| member.client_address == node.address())
        });
        for member in members {
            if !known(&nodes, &member.client_address)
                && let Ok(node) = self.unconnected(member.client_address.clone())
            {
                self.add(&mut nodes, Arc::new(node));
            }
        }
    }

    /// Adds a node, in place of the one that was added first if there are too many.
    fn add(&self, nodes: &mut Vec<Arc<Node>>, node: Arc<Node>) {
        if nodes.len() >= self.seeds + NODES_MAX {
            nodes.remove(self.seeds);
        }
        nodes.push(node);
    }

    /// The node at `address`, added if it is new. `None` if `address` is not an address.
    pub(crate) fn at(&self, address: &str) -> Option<Arc<Node>> {
        let address = self.normalize(address).ok()?;
        let find =
            |nodes: &[Arc<Node>]| nodes.iter().find(|node| node.address() == address).cloned();
        if let Some(node) = find(&self.nodes.read()) {
            return Some(node);
        }
        let new = Arc::new(self.unconnected(address.clone()).ok()?);
        let mut nodes = self.nodes.write();
        if let Some(node) = find(&nodes) {
            return Some(node);
        }
        self.add(&mut nodes, new.clone());
        Some(new)
    }

    /// The node at `position`, modulo the number of nodes.
    pub(crate) fn nth(&self, position: usize) -> Option<Arc<Node>> {
        let nodes = self.nodes.read();
        nodes.get(position.checked_rem(nodes.len())?).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.read().len()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        self.nodes.read().clone()
    }

    /// The node to ask first: the one that last served such a request, unless the client skips it
    /// now; for a read that any member may serve, the one with the least to do.
    pub(crate) fn first_choice(&self, target: Target, now: Instant) -> Option<Arc<Node>> {
        if target == Target::Reader && self.options.read_from == ReadFrom::Members {
            return self.least_busy(now);
        }
        let node = self.remembered(target).read().clone()?;
        node.cooling(now).is_none().then_some(node)
    }

    /// Of the nodes that are connected, one with the fewest requests under way: of those that serve
    /// reads now, if there are any. The others are connected meanwhile: no read waits for that.
    fn least_busy(&self, now: Instant) -> Option<Arc<Node>> {
        let nodes = self.nodes.read();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (behind, first) = nodes.split_at(turn.checked_rem(nodes.len())?);
        let known = first.iter().chain(behind).filter(|node| node.cooling(now).is_none());
        let connected = known.filter(|node| {
            let connected = node.connection().is_some();
            if !connected {
                self.connect_meanwhile(node);
            }
            connected
        });
        let node = connected.min_by_key(|node| (!node.serves_reads(now), node.under_way()))?;
        node.tries_read(now);
        Some(node.clone())
    }

    fn connect_meanwhile(&self, node: &Arc<Node>) {
        let Some(pool) = self.own.get().and_then(Weak::upgrade) else { return };
        let Some(opening) = node.begin_opening() else { return };
        tokio::spawn(async move {
            // A failure is noted at the node.
            pool.connect(opening.node()).await.ok();
        });
    }

    /// A request that named this generation was served by the node at `address`, or may take effect:
    /// the client stays with it.
    ///
    /// # Errors
    /// [`Error::ClusterMismatch`] if the client stays with another one since it asked.
    pub(crate) fn stays(&self, named: Option<u32>, address: &str) -> Result<(), Error> {
        if self.view.stays(named, address)? {
            *self.leader.write() = None;
        }
        Ok(())
    }

    /// Remembers that `node` served such a request.
    pub(crate) fn succeeded(&self, target: Target, node: &Arc<Node>) {
        if target == Target::Reader {
            // It may lead or not.
            return node.served_read();
        }
        let slot = self.remembered(target);
        let same = slot.read().as_ref().is_some_and(|current| Arc::ptr_eq(current, node));
        if !same {
            *slot.write() = Some(node.clone());
        }
    }

    /// Whether `node` is the one that served the latest request to the leader.
    pub(crate) fn leads(&self, node: &Arc<Node>) -> bool {
        self.leader.read().as_ref().is_some_and(|leader| Arc::ptr_eq(leader, node))
    }

    /// Forgets that `node` served such a request, if it is the remembered one.
    pub(crate) fn forget_preferred(&self, target: Target, node: &Arc<Node>) {
        let slot = self.remembered(target);
        let mut slot = slot.write();
        if slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, node)) {
            *slot = None;
        }
    }

    fn remembered(&self, target: Target) -> &RwLock<Option<Arc<Node>>> {
        match target {
            Target::Leader | Target::Reader => &self.leader,
            Target::Any => &self.preferred,
        }
    }

    pub(crate) fn leader_address(&self) -> Option<String> {
        self.leader.read().as_ref().map(|node| node.address().to_owned())
    }
}

/// The certificates, if the options name any.
fn load(options: &Options) -> Result<Option<Tls>, Error> {
    let Some(files) = options.tls.clone() else { return Ok(None) };
    let invalid = Error::InvalidOptions;
    let tls = Tls::load(files).map_err(|error| invalid(error.to_string()))?;
    let named = &*tls.name().cluster;
    match &options.cluster {
        Some(cluster) if cluster != named => Err(invalid(format!(
            "the certificate {} is of cluster {named:?}, not of {cluster:?}",
            tls.name()
        ))),
        _ => Ok(Some(tls)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use std::collections::BTreeSet;

    fn hello(members: &[&str]) -> proto::HelloResponse {
        let member = |(slot, address): (u32, &&str)| proto::Member {
            node_id: u64::from(slot),
            slot,
            client_address: address.to_string(),
            peer_address: "p:2".into(),
            voter: true,
        };
        let limits = proto::Limits { max_key_bytes: 9, ..Default::default() };
        let leader = members
            .first()
            .map(|address| proto::Leader { node_id: 1, client_address: address.to_string() });
        proto::HelloResponse {
            cluster: "blue".into(),
            limits: Some(limits),
            leader,
            applied_index: 4,
            members: (1..).zip(members).map(member).collect(),
            protocol: 1,
            ..Default::default()
        }
    }

    fn known(pool: &Pool) -> Vec<String> {
        pool.all().iter().map(|node| node.address().to_owned()).collect()
    }

    /// The story: a member moved. The client heard of it from the leader, and then a follower that
    /// lagged named the old address again.
    #[test]
    fn a_node_that_lags_takes_no_member_away() {
        let pool = Pool::new(Options::new(["seed:1"]).seed(1)).unwrap();
        let at = |index, members: &[&str]| proto::HelloResponse {
            membership_term: 2,
            membership_index: index,
            ..hello(members)
        };
        pool.learn("seed:1", at(5, &["a:1", "old:1"])).unwrap();
        pool.learn("seed:1", at(9, &["a:1", "new:1"])).unwrap();
        assert_eq!(known(&pool), ["seed:1", "a:1", "new:1"]);
        pool.learn("seed:1", at(5, &["a:1", "old:1"])).unwrap();
        assert!(known(&pool).contains(&"new:1".to_owned()));
        assert_eq!(pool.view.members().last().unwrap().client_address, "new:1");
        pool.learn("seed:1", at(9, &["a:1", "new:1"])).unwrap();
        assert_eq!(known(&pool), ["seed:1", "a:1", "new:1"]);
    }

    /// The stories: an operator made a cluster anew of two survivors, and a client that knew the one
    /// took what the other one answered for the same history. The first membership of a cluster is
    /// the first entry of its log, whose term and index are 0: that was taken for a node that knows
    /// none, so a client of a cluster whose members had never changed went on with another one.
    #[test]
    fn a_client_stays_with_the_generation_of_the_first_formed_cluster_that_answers() {
        for first in [0, 7] {
            let pool = Pool::new(Options::new(["seed:1"]).seed(1)).unwrap();
            let of = |generation, members: &[&str]| proto::HelloResponse {
                generation,
                ..hello(members)
            };
            // A node that was never part of a cluster has none yet, and knows no members.
            pool.learn("blank:1", of(0, &[])).unwrap();
            pool.learn("blank:1", of(9, &[])).unwrap();
            pool.learn("seed:1", of(first, &["seed:1", "a:1"])).unwrap();
            pool.learn("blank:1", of(0, &[])).unwrap();
            pool.learn("a:1", of(first, &["seed:1", "a:1"])).unwrap();
            pool.stays(Some(first), "a:1").unwrap();
            for other in [5, 9] {
                let Err(Error::ClusterMismatch { endpoint, expected, found }) =
                    pool.learn("b:2", of(other, &["b:2"]))
                else {
                    panic!("generation {other} is heard");
                };
                assert_eq!(endpoint, "b:2");
                assert_eq!(expected, format!("blue of generation {first:08x}"));
                assert_eq!(found, format!("blue of generation {other:08x}"));
            }
        }
    }

    /// The story: of the nodes that a client was given, one was left over when the cluster was made
    /// anew, and answered first. The client refused all others until it was started again.
    #[test]
    fn a_client_that_nobody_has_served_goes_to_the_generation_that_answers_now() {
        let pool = Pool::new(Options::new(["old:1", "a:1"]).seed(1)).unwrap();
        let old = proto::HelloResponse {
            membership_term: 9,
            membership_index: 90,
            ..hello(&["old:1", "lost:1"])
        };
        pool.learn("old:1", old.clone()).unwrap();
        let anew = proto::HelloResponse { generation: 7, ..hello(&["a:1", "b:2"]) };
        pool.learn("a:1", anew).unwrap();
        let addresses = pool.view.members().into_iter().map(|member| member.client_address);
        assert_eq!(addresses.collect::<Vec<_>>(), ["a:1", "b:2"]);
        assert_eq!(pool.leader_address().as_deref(), Some("a:1"));
        pool.stays(Some(7), "a:1").unwrap();
        assert!(matches!(pool.learn("old:1", old), Err(Error::ClusterMismatch { .. })));
    }

    /// The story: while the first write of a client was under way, it heard of a left-over node. The
    /// write was answered, and the client stayed with the left-over node.
    #[test]
    fn a_client_stays_with_the_generation_that_the_served_request_named() {
        let pool = Pool::new(Options::new(["old:1", "a:1"]).seed(1)).unwrap();
        let anew = proto::HelloResponse { generation: 7, ..hello(&["a:1", "b:2"]) };
        pool.learn("a:1", anew.clone()).unwrap();
        let named = pool.view.caller().generation();
        let old = hello(&["old:1", "lost:1"]);
        pool.learn("old:1", old.clone()).unwrap();
        let late = pool.view.caller().generation();
        assert_eq!((named, late), (Some(7), Some(0)));
        pool.stays(named, "a:1").unwrap();
        assert_eq!(pool.view.caller().generation(), Some(7));
        assert_eq!(pool.leader_address(), None, "the left-over node does not lead");
        assert!(matches!(pool.learn("old:1", old), Err(Error::ClusterMismatch { .. })));
        pool.learn("a:1", anew).unwrap();
        assert_eq!(pool.view.members().first().unwrap().client_address, "a:1");
        // A stale read that the left-over node answers at the same time.
        let Err(Error::ClusterMismatch { endpoint, expected, found }) = pool.stays(late, "old:1")
        else {
            panic!("what another generation answers is taken")
        };
        assert_eq!((&*endpoint, &*expected), ("old:1", "blue of generation 00000007"));
        assert_eq!(found, "blue of generation 00000000");
        assert_eq!(pool.view.caller().generation(), Some(7));
    }

    #[test]
    fn nodes_that_hints_name_are_bounded_and_those_of_the_options_stay() {
        let pool = Pool::new(Options::new(["seed:1"]).seed(1)).unwrap();
        for port in 1..2 * NODES_MAX {
            assert!(pool.at(&format!("hint:{port}")).is_some());
        }
        assert_eq!(pool.len(), 1 + NODES_MAX);
        assert_eq!(known(&pool).first().unwrap(), "seed:1");
    }

    #[test]
    fn any_bytes_add_the_members_that_they_name_or_none() {
        cairn_fuzz::target!(
            "alone" => hello(&[]).encode_to_vec(),
            "members" => hello(&["a:1", "b:2", "127.0.0.1:3"]).encode_to_vec(),
        )
        .for_each(|bytes| {
            let most = 256 * bytes.len() + 4096;
            let decode = || proto::HelloResponse::decode(bytes);
            let Ok(hello) = cairn_fuzz::within(most, decode) else { return };
            let options = Options::new(["a:1"]).seed(1).cluster("blue");
            let pool = Pool::new(options).unwrap();
            // A connection's settings take much more than its address.
            let most = 1024 * bytes.len() + (64 << 10);
            let learnt = cairn_fuzz::within(most, || pool.learn("a:1", hello.clone()));
            assert_eq!(learnt.is_ok(), hello.cluster == "blue");
            let addresses: BTreeSet<_> =
                pool.all().iter().map(|node| node.address().to_owned()).collect();
            assert_eq!(addresses.len(), pool.len(), "each address once");
            assert!(addresses.contains("a:1"), "the options' nodes stay");
            assert!(pool.len() <= 2 + hello.members.len());
            if learnt.is_ok() {
                assert_eq!(pool.view.members().len(), hello.members.len());
            }
        });
    }
}
