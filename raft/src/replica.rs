//! The handle of a running replica.

use crate::command::{Command, WriteOutcome};
use crate::config::ReplicaConfig;
use crate::error::{Error, ReadError, WriteError};
use crate::ids::{MemberAddress, NodeId};
use crate::runtime::PeerServer;
use crate::status::ReplicaStatus;
use cairn_engine::{Engine, LogId};

/// A running replica. Clones share it.
#[derive(Clone)]
pub struct Replica {
    engine: Engine,
}

impl Replica {
    /// Starts replication over an open engine. When this returns, everything that was applied before the last restart
    /// is applied again; the cluster may still have to be formed, which goes on in the background.
    ///
    /// # Errors
    /// `Config`, `Engine`, `State`.
    pub async fn start(config: ReplicaConfig, engine: Engine) -> Result<Replica, Error> {
        let _ = config;
        Ok(Replica { engine })
    }

    /// The service that answers the other members: to be added to the server on the peer address.
    pub fn peer_service(&self) -> PeerServer {
        unimplemented!()
    }

    /// Replicates and applies a command. Leader only. May be cancelled; the command may then be applied or not.
    ///
    /// # Errors
    /// See [`WriteError`], which tells of each case whether anything was proposed.
    pub async fn write(&self, command: Command) -> Result<WriteOutcome, WriteError> {
        let _ = command;
        unimplemented!()
    }

    /// Returns when this replica has applied everything that was acknowledged before the call: a read of the engine
    /// after it is linearizable. Leader only; concurrent callers share a round to the quorum.
    ///
    /// # Errors
    /// See [`ReadError`]. Nothing is changed by a barrier, so it can always be repeated.
    pub async fn read_barrier(&self) -> Result<(), ReadError> {
        unimplemented!()
    }

    /// The engine, for reads of [`GROUP`](crate::GROUP).
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Who this is.
    pub fn node_id(&self) -> NodeId {
        unimplemented!()
    }

    /// Who leads, if known.
    pub fn leader(&self) -> Option<(NodeId, MemberAddress)> {
        unimplemented!()
    }

    /// What it can say of itself. Cheap.
    pub fn status(&self) -> ReplicaStatus {
        unimplemented!()
    }

    /// The applied position, and a hash over all keys, versions, values' hashes and the machine image: replicas that
    /// have applied the same position have the same hash.
    pub fn state_hash(&self) -> (Option<LogId>, u128) {
        unimplemented!()
    }

    /// Resolves when replication stops by itself, with the reason. Never resolves while it runs.
    pub async fn wait_stopped(&self) -> String {
        std::future::pending().await
    }

    /// Stops replication. The engine stays open: the caller closes it next.
    ///
    /// # Errors
    /// `Stopped`, if a task ended abnormally.
    pub async fn shutdown(&self) -> Result<(), Error> {
        unimplemented!()
    }
}
