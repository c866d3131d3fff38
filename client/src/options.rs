//! How a client connects and how long it tries.

use cairn_tls::{Files, Origin, Pem};
use std::path::PathBuf;
use std::time::Duration;

use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

use crate::Error;

/// The most writes that one client keeps in flight. The servers keep the results of 1024 per
/// session.
pub(crate) const MAX_IN_FLIGHT: usize = 512;

/// The longest time that is accepted. The end of a longer one could overflow the clock.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Options of a [`Client`](crate::Client); also its builder.
///
/// ```no_run
/// # async fn example() -> Result<(), cairn_client::Error> {
/// use std::time::Duration;
/// let client = cairn_client::Options::new(["10.0.0.1:7400", "10.0.0.2:7400"])
///     .deadline(Duration::from_secs(3))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) endpoints: Vec<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) deadline: Duration,
    pub(crate) attempt_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) keepalive_interval: Duration,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) connections_per_node: usize,
    pub(crate) max_in_flight: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) token: Option<Token>,
    pub(crate) tls: Option<Origin>,
    pub(crate) read_from: ReadFrom,
}

/// Which members answer linearizable reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// The leader, as long as it is known and answers; else any member.
    #[default]
    Leader,
    /// The member with the fewest requests of this client under way. One that does not lead asks the
    /// leader how far it must have come, for many reads at once: a read takes longer by that, and the
    /// leader reads fewer values.
    Members,
}

/// What a client proves its name with: the value of `authorization`, which no `Debug` shows.
#[derive(Clone, Debug)]
pub(crate) struct Token(MetadataValue<Ascii>);

impl Token {
    pub(crate) fn add_to<M>(&self, request: &mut Request<M>) {
        request.metadata_mut().insert("authorization", self.0.clone());
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            endpoints: Vec::new(),
            cluster: None,
            deadline: Duration::from_secs(10),
            attempt_timeout: Duration::from_millis(2500),
            connect_timeout: Duration::from_secs(1),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            connections_per_node: 1,
            max_in_flight: MAX_IN_FLIGHT,
            seed: None,
            token: None,
            tls: None,
            read_from: ReadFrom::default(),
        }
    }
}

impl Options {
    /// Options with these endpoints, `host:port` each, and defaults for the rest.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Options::default().endpoints(endpoints)
    }

    /// Adds endpoints, `host:port` each. One that answers is enough: the client learns the others
    /// from it.
    pub fn endpoints(mut self, endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.endpoints.extend(endpoints.into_iter().map(Into::into));
        self
    }

    /// Adds one endpoint, `host:port`.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoints.push(endpoint.into());
        self
    }

    /// The name that the cluster must have. Default: that of the first endpoint that answers.
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.cluster = Some(name.into());
        self
    }

    /// Connects with TLS. Files in PEM: the CAs of the cluster, and a certificate with its key, which
    /// an operator makes with `cairn certs issue`. Every node must then be a member of the cluster
    /// that the certificate names; its address may be any. Changed files are used for new
    /// connections. Default: without TLS, which only a server with `insecure = true` accepts.
    pub fn tls(
        mut self,
        ca: impl Into<PathBuf>,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        let (ca, certificate, key) = (ca.into(), certificate.into(), key.into());
        self.tls = Some(Files { ca, certificate, key }.into());
        self
    }

    /// The same with the certificates and the key themselves, in PEM, for an application that has them from a store of
    /// secrets and in no file. They stay as they are: before the certificate ends, make another client with a new one.
    pub fn tls_pem(
        mut self,
        ca: impl Into<Vec<u8>>,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let (ca, certificate, key) = (ca.into(), certificate.into(), key.into());
        self.tls = Some(Pem { ca, certificate, key }.into());
        self
    }

    /// How long one request may take, all retries together. Default 10 s; at most a year.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(LONGEST);
        self
    }

    /// How long a node may be silent before the client asks again, so that a hung node does not use up
    /// the deadline. After half of it the client asks for a sign of life. A node that answers may take
    /// as long for a write as the deadline allows; a read is asked again after this time. Default 2.5 s.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout.min(LONGEST);
        self
    }

    /// How long to wait for a connection and a node's first answer. Default 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.min(LONGEST);
        self
    }

    /// How often an idle connection is probed. Default 10 s.
    pub fn keepalive_interval(mut self, interval: Duration) -> Self {
        self.keepalive_interval = interval.min(LONGEST);
        self
    }

    /// How long a probe may stay unanswered before the connection is closed. Default 5 s.
    pub fn keepalive_timeout(mut self, timeout: Duration) -> Self {
        self.keepalive_timeout = timeout.min(LONGEST);
        self
    }

    /// Connections to each node, at least 1. Default 1, since one connection carries many requests
    /// at once. More help only if the task of one connection is the bottleneck.
    pub fn connections_per_node(mut self, connections: usize) -> Self {
        self.connections_per_node = connections.max(1);
        self
    }

    /// Which members answer linearizable reads. Default: the leader.
    pub fn read_from(mut self, read_from: ReadFrom) -> Self {
        self.read_from = read_from;
        self
    }

    /// The most writes in flight, 1 to 512; further writes wait. Default 512.
    pub fn max_in_flight(mut self, writes: usize) -> Self {
        self.max_in_flight = writes.clamp(1, MAX_IN_FLIGHT);
        self
    }

    /// The token by which the servers know this client, as `cairn access token` printed it. Without
    /// one they know it by its certificate. Use it only over connections that are encrypted.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`] if it is empty or has characters that no token has.
    pub fn token(mut self, token: impl AsRef<str>) -> Result<Self, Error> {
        let token = token.as_ref().trim();
        let value = Some(format!("Bearer {token}")).filter(|_| !token.is_empty());
        let value: Option<MetadataValue<Ascii>> = value.and_then(|value| value.parse().ok());
        let invalid = || {
            Error::InvalidOptions(
                "the token is empty, or has characters that no token has".to_owned(),
            )
        };
        let mut value = value.ok_or_else(invalid)?;
        value.set_sensitive(true);
        self.token = Some(Token(value));
        Ok(self)
    }

    /// Seeds everything random in the client, for simulations. Default: a seed of the operating
    /// system.
    ///
    /// The seed determines the client's identity, by which the servers recognise retried writes.
    /// Two clients of one cluster must never have the same seed, even if one of them has ended.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
}
