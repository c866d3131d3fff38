//! Who pays for a read: the account of its connection, where the transport says which that is.
//!
//! What holds here: a charge goes to the transport with the answer, in the moment in which the answer goes there; without a
//! transport that takes charges it ends with the read.

use super::memory::{Charge, NotAdmitted, Outbox, Reader};
use super::{deadline, refusal};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

/// The connection that a request came over.
#[derive(Clone)]
pub(crate) struct Caller {
    reader: Reader,
    outbox: Option<Outbox>,
}

impl Caller {
    /// The caller of a request; `unknown` pays where the transport did not say whose it is.
    pub(crate) fn of<T>(request: &Request<T>, unknown: &Reader) -> Caller {
        match request.extensions().get::<Option<Reader>>() {
            Some(Some(reader)) => Caller { reader: reader.clone(), outbox: Some(Outbox::default()) },
            _ => Caller { reader: unknown.clone(), outbox: None },
        }
    }

    /// A charge of `bytes`, if they fit at once.
    pub(crate) fn try_admit(&self, bytes: usize) -> Option<Charge> {
        self.reader.try_admit(bytes)
    }

    /// A charge of `bytes`, waited for as long as the request has time and can still be told that it was in vain.
    pub(crate) async fn admit(&self, bytes: usize, end: Instant) -> Result<Charge, Status> {
        let began = Instant::now();
        let left = deadline::within(Some(end.saturating_duration_since(began)), Duration::MAX);
        self.reader.admit(bytes, began + left).await.map_err(|why| match why {
            NotAdmitted::Crowded => refusal::reads_overloaded("too many reads wait for memory"),
            NotAdmitted::Late => refusal::reads_overloaded("no memory came free for the read"),
        })
    }

    /// The answer that `charge` pays for goes out.
    pub(crate) fn answer(&self, charge: Charge) {
        if let Some(outbox) = &self.outbox {
            outbox.put(charge);
        }
    }

    /// The response, with the charges that go to the transport with it.
    pub(crate) fn answered<T>(self, mut response: Response<T>) -> Response<T> {
        if let Some(outbox) = self.outbox {
            response.extensions_mut().insert(outbox);
        }
        response
    }
}
