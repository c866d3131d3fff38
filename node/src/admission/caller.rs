//! The account that a read is charged to: that of its connection, if the transport says which
//! connection that is.
//!
//! What holds here: when an answer goes to the transport, its charge goes with it. Without a
//! transport that takes charges, a charge ends with the read.

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
    /// The caller of a request. `unknown` is charged if the transport did not say which connection
    /// it came over.
    pub(crate) fn of<T>(request: &Request<T>, unknown: &Reader) -> Caller {
        match request.extensions().get::<Reader>() {
            Some(reader) => Caller { reader: reader.clone(), outbox: Some(Outbox::default()) },
            _ => Caller { reader: unknown.clone(), outbox: None },
        }
    }

    /// A charge of `bytes`, if they fit at once.
    pub(crate) fn try_admit(&self, bytes: usize) -> Option<Charge> {
        self.reader.try_admit(bytes)
    }

    /// A charge of `bytes`. Waits until `end`, less the time in which a refusal can still reach the
    /// client.
    pub(crate) async fn admit(&self, bytes: usize, end: Instant) -> Result<Charge, Status> {
        let began = Instant::now();
        let left = deadline::within(Some(end.saturating_duration_since(began)), Duration::MAX);
        self.reader.admit(bytes, began + left).await.map_err(|why| match why {
            NotAdmitted::Crowded => refusal::reads_overloaded("too many reads wait for memory"),
            NotAdmitted::Late => refusal::reads_overloaded("no memory came free for the read"),
        })
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
