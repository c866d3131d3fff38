//! The client: a cheap handle; clones share its state.

use std::sync::Arc;
use std::time::Duration;

use crate::attempts::Attempts;
use crate::options::{LONGEST, Options, ReadFrom};
use crate::pool::{Pool, Target};
use crate::types::Limits;
use crate::{Error, Member};

/// A client of one Cairn cluster. Clones share connections, sessions and the known nodes.
///
/// Every request has one deadline, across all its retries. Reads are linearizable unless they ask
/// to be stale. The client may send a write several times, but it is applied at most once. If its
/// outcome is not known at the deadline, the error is always [`Error::OutcomeUnknown`].
///
/// Dropping the future of a request cancels it. The outcome of a cancelled write is unknown.
#[derive(Clone)]
pub struct Client {
    pub(crate) pool: Arc<Pool>,
    pub(crate) deadline: Duration,
    /// Writes wait until they are synced on a majority.
    pub(crate) synced: bool,
    /// How old reads may be; 0: linearizable.
    pub(crate) max_stale_ms: u64,
}

impl Client {
    /// Connects with default options to the first endpoint (`host:port`) that answers. Each is
    /// tried once. The client learns the other nodes from it. [`Options::connect_within`] waits for one.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if none answers, [`Error::InvalidOptions`] if there is none or one is
    /// not `host:port`.
    pub async fn connect(
        endpoints: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Client, Error> {
        Options::new(endpoints).connect().await
    }

    /// Options to fill in and connect.
    pub fn builder() -> Options {
        Options::default()
    }

    /// The same client with another deadline for its requests, at most a year.
    pub fn with_deadline(&self, deadline: Duration) -> Client {
        let deadline = deadline.min(LONGEST);
        Client { deadline, ..self.clone() }
    }

    /// The same client, but its writes are acknowledged only when they are synced on a majority, in
    /// any mode of the cluster: for writes that must survive a power cut of all machines at once.
    /// Costs a sync on each of them.
    pub fn synced(&self) -> Client {
        Client { synced: true, ..self.clone() }
    }

    /// The same client, but its reads may be old: they lack nothing that was acknowledged longer than `most`
    /// before they were sent. Any member answers, and seldom asks the leader. Whole milliseconds count; none:
    /// linearizable, as without this. Members refuse more than an hour ([`Error::InvalidRequest`]).
    ///
    /// The member's clock measures the time. It does not count the time in which that machine was suspended.
    /// A member of an earlier release answers linearizably.
    pub fn with_max_staleness(&self, most: Duration) -> Client {
        let max_stale_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Client { max_stale_ms, ..self.clone() }
    }

    /// Which nodes a read asks, and how many milliseconds old it may be; 0: linearizable, or `stale`, however
    /// old.
    pub(crate) fn freshness(&self, stale: bool) -> (Target, u64) {
        let members = self.pool.options.read_from == ReadFrom::Members;
        match (stale, self.max_stale_ms) {
            (true, _) => (Target::Any, 0),
            (false, 0) => (Target::Reader, 0),
            (false, most) => (if members { Target::Reader } else { Target::Any }, most),
        }
    }

    /// Returns when everything that was acknowledged to any client before the call is synced on a
    /// majority.
    ///
    /// # Errors
    /// As [`Client::put`]. Then nothing is known about the syncs.
    pub async fn wait_synced(&self) -> Result<(), Error> {
        // Logs are synced in order, so when this entry is synced, all entries before it are.
        self.synced().batch().check("synced", crate::Condition::None).commit().await.map(drop)
    }

    /// The size limits that a server published at the last connect. Asks a server if the client has
    /// not connected yet.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no node answers.
    pub async fn limits(&self) -> Result<Limits, Error> {
        if let Some(limits) = self.pool.view.limits() {
            return Ok(limits);
        }
        self.hello().await?;
        let missing = || Error::InvalidRequest("the server publishes no limits".to_owned());
        self.pool.view.limits().ok_or_else(missing)
    }

    /// The members of the cluster, as one node sees them now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no node answers.
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        self.hello().await?;
        Ok(self.pool.view.members())
    }

    /// The name of the cluster, once it is known.
    pub fn cluster(&self) -> Option<String> {
        self.pool.view.cluster()
    }

    /// `host:port` of the node that last served a request as the leader, if one did.
    pub fn leader(&self) -> Option<String> {
        self.pool.leader_address()
    }

    /// `host:port` of every known node: those of the options first, then the cluster's other
    /// members.
    pub fn endpoints(&self) -> Vec<String> {
        self.pool.all().iter().map(|node| node.address().to_owned()).collect()
    }
}

impl Options {
    /// Creates a client and connects it to the first endpoint that answers. Each is tried once.
    /// [`Options::connect_within`] waits for one, [`Options::build`] asks none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if none answers, [`Error::ClusterMismatch`],
    /// [`Error::ProtocolMismatch`], [`Error::InvalidOptions`].
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.build()?;
        client.pool.connect_any().await?;
        Ok(client)
    }

    /// Creates a client and waits until a node answers, for at most this long (and a year): for an application
    /// that may start before its cluster. A node that does not answer is asked again after a pause, which grows to a
    /// second. The requests of the client keep their own deadline.
    ///
    /// May be cancelled.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the last failure, if none answers in time; [`Error::DeadlineExceeded`] if the time
    /// is too short to ask one. What time does not change is returned at once: [`Error::InvalidOptions`],
    /// [`Error::ProtocolMismatch`], and, once no other node is left to ask, [`Error::ClusterMismatch`],
    /// [`Error::Unauthenticated`] and [`Error::PermissionDenied`].
    pub async fn connect_within(self, wait: Duration) -> Result<Client, Error> {
        let client = self.build()?;
        let mut attempts = Attempts::new(Target::Any, wait.min(LONGEST));
        attempts.connection(&client.pool).await?;
        Ok(client)
    }

    /// Creates a client that connects with its first request. Asks nobody.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`].
    pub fn build(self) -> Result<Client, Error> {
        let deadline = self.deadline;
        Ok(Client { pool: Pool::shared(self)?, deadline, synced: false, max_stale_ms: 0 })
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("cluster", &self.cluster())
            .field("endpoints", &self.endpoints())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
