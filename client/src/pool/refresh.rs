//! What the nodes report of the members: stored, and asked for again.
//!
//! A `Hello` tells the members: on each new connection, every few seconds from a node that is in use,
//! and soon after a failure, since members move and are replaced.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Pool;
use crate::Error;
use crate::node::{Connection, Node};
use crate::proto;
use crate::types::Member;
use crate::view::Learnt;

/// How often a node that is in use is asked for the members.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// How soon after a failure.
const REFRESH_AFTER_FAILURE: Duration = Duration::from_millis(200);

impl Pool {
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
}
