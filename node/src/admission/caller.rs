//! Who makes a request, and the account that it is charged to: that of the client's name, or of its
//! connection if the client has no name.
//!
//! What holds here: when an answer goes to the transport, its charge goes with it. Without a
//! transport that takes charges, a charge ends with the read.

use super::memory::{Account, Charge, NotAdmitted, Outbox};
use super::requests::{Accounts, Arrived, Calls};
use super::shares::Owner;
use super::{deadline, refusal};
use crate::access::{Identity, Need};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Extensions, Response, Status};

/// The client that makes a request, and the connection that the request came over.
#[derive(Clone)]
pub(crate) struct Caller {
    identity: Identity,
    requests: Account,
    reads: Account,
    outbox: Option<Outbox>,
}

impl Caller {
    /// The caller of a request with these extensions. `unknown` is charged if the transport did not
    /// say which connection it came over.
    pub(crate) fn of(identity: Identity, extensions: &Extensions, unknown: &Accounts) -> Caller {
        let connection = extensions.get::<Accounts>().cloned();
        let (known, accounts) =
            (connection.is_some(), connection.unwrap_or_else(|| unknown.clone()));
        let owner = Owner::of(&identity, accounts.reads.owner());
        let (requests, reads) = (accounts.requests.owned_by(owner), accounts.reads.owned_by(owner));
        let outbox = known.then(|| Outbox::of(reads.clone()));
        Caller { identity, requests, reads, outbox }
    }

    /// The admission of a stream's calls.
    pub(crate) fn calls(&self, extensions: &Extensions) -> Calls {
        Calls::new(self.requests.clone(), extensions.get::<Arrived>().cloned())
    }

    /// The same connection, with another identity: the roles may have changed.
    pub(crate) fn with_identity(self, identity: Identity) -> Caller {
        Caller { identity, ..self }
    }

    /// Refuses the request if the caller may not do this.
    pub(crate) fn may(&self, need: Need<'_>) -> Result<(), Status> {
        self.identity.may(need).map_err(refusal::denied)
    }

    /// Who it is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whose account it is.
    pub(crate) fn owner(&self) -> Owner {
        self.reads.owner()
    }

    /// A charge of `bytes` for what its requests hold for long, if they fit at once and leave memory for its calls.
    pub(crate) fn try_hold(&self, bytes: usize) -> Option<Charge> {
        self.requests.try_hold(bytes)
    }

    /// A charge of `bytes`, if they fit at once.
    pub(crate) fn try_admit(&self, bytes: usize) -> Option<Charge> {
        self.reads.try_admit(bytes)
    }

    /// A charge of `bytes`. Waits until `end`, less the time in which a refusal can still reach the
    /// client.
    pub(crate) async fn admit(&self, bytes: usize, end: Instant) -> Result<Charge, Status> {
        let began = Instant::now();
        let left = deadline::within(Some(end.saturating_duration_since(began)), Duration::MAX);
        self.reads.admit(bytes, began + left).await.map_err(|why| match why {
            NotAdmitted::Crowded => refusal::reads_overloaded("too many reads wait for memory"),
            NotAdmitted::Late => refusal::reads_overloaded("no memory came free for the read"),
        })
    }

    /// The same, for whoever asks again; `None` if none came free within this time.
    pub(crate) async fn admit_within(
        &self,
        bytes: usize,
        wait: Duration,
    ) -> Result<Option<Charge>, Status> {
        match self.reads.admit(bytes, Instant::now() + wait).await {
            Ok(charge) => Ok(Some(charge)),
            Err(NotAdmitted::Late) => Ok(None),
            Err(NotAdmitted::Crowded) => {
                Err(refusal::reads_overloaded("too many reads wait for memory"))
            }
        }
    }

    /// Hands over the charge of an answer that goes out.
    pub(crate) fn answer(&self, charge: Charge) {
        if let Some(outbox) = &self.outbox {
            outbox.put(charge);
        }
    }

    /// The response, with its charges for the transport.
    pub(crate) fn answered<T>(self, mut response: Response<T>) -> Response<T> {
        if let Some(outbox) = self.outbox {
            response.extensions_mut().insert(outbox);
        }
        response
    }
}
