//! The nodes that the client knows, and which of them leads.
//!
//! The nodes are those of the options, which are kept, and the members, which the cluster's log
//! names. How they are connected is in [`connect`], and how the members are learnt in [`refresh`]. The
//! leader is the node that last served a request as the leader. A hint from another node affects only
//! the request that received it.
//!
//! What holds here: beside those of the options, the nodes are bounded.

mod connect;
mod refresh;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use cairn_tls::Tls;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::Error;
use crate::caller::Caller;
use crate::node::{Node, normalize};
use crate::options::{Options, ReadFrom};
use crate::random::Random;
use crate::session::Sessions;
use crate::view::ClusterView;

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
    let Some(origin) = options.tls.clone() else { return Ok(None) };
    let invalid = Error::InvalidOptions;
    let tls = Tls::load(origin).map_err(|error| invalid(error.to_string()))?;
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
mod tests;
