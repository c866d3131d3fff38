//! How the nodes are connected: the first one of a client, one for a request, others meanwhile.

use std::sync::{Arc, Weak};

use super::Pool;
use crate::Error;
use crate::convert::why;
use crate::error::Why;
use crate::node::{Connection, Node};

impl Pool {
    /// Connects to the first node that answers, trying each once.
    pub(crate) async fn connect_any(&self) -> Result<(), Error> {
        let (mut tried, mut last) = (Vec::new(), Why::from(""));
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
                Err(error) => last = Why::from(error),
            }
            tried.push(node.address().to_owned());
        }
        Err(denied.or(mismatch).unwrap_or_else(|| Error::unavailable_at(tried, last)))
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
        let unavailable = |why: Why| Error::unavailable(node.address(), why);
        let learnt = match tokio::time::timeout(limit, stub.hello(limit)).await {
            Ok(Ok(hello)) => self.learn(node.address(), hello),
            Ok(Err(status)) => Err(unavailable(why(&status))),
            Err(_) => Err(unavailable(format!("no answer within {} ms", limit.as_millis()).into())),
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

    pub(super) fn connect_meanwhile(&self, node: &Arc<Node>) {
        let Some(pool) = self.own.get().and_then(Weak::upgrade) else { return };
        let Some(opening) = node.begin_opening() else { return };
        tokio::spawn(async move {
            // A failure is noted at the node.
            pool.connect(opening.node()).await.ok();
        });
    }
}
