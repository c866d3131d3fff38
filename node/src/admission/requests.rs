//! What a client's requests hold from their first bytes until they are answered: streams, messages
//! that arrive, and calls under way, in the budget `limits.max_in_flight_bytes`.
//!
//! What holds here:
//! - A connection has one stream without a charge, and a stream one call without a charge. So every
//!   connection is served, however much others hold; connections are bounded in number.
//! - A further stream that does not fit is refused with its headers. A further call waits.
//! - The charge of a message is that of its calls until the last of them is answered: their keys and
//!   values are parts of the message.

use super::memory::{Account, Budget, Charge, ConnectionFlow};
use super::refusal;
use crate::config::Limits;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;

/// Memory that is allowed for what a message becomes when it is decoded, until that is known: for
/// each of its bytes, and at most. An empty call has two bytes.
const DECODED_PER_BYTE: usize = 75;
const DECODED_MOST: usize = 64 << 10;

/// The budgets of a node. Clones share them.
#[derive(Clone)]
pub struct Budgets {
    /// What requests hold.
    pub requests: Budget,
    /// What reads and their answers hold.
    pub reads: Budget,
}

impl Budgets {
    /// The budgets of these limits.
    pub fn new(limits: &Limits) -> Budgets {
        Budgets {
            requests: Budget::new(limits.max_in_flight_bytes),
            reads: Budget::new(limits.max_read_bytes),
        }
    }

    /// Changes both. What is held already stays.
    pub fn resize(&self, limits: &Limits) {
        self.requests.resize(limits.max_in_flight_bytes);
        self.reads.resize(limits.max_read_bytes);
    }

    /// The accounts of one more connection.
    pub fn accounts(&self, flow: &Arc<ConnectionFlow>) -> Accounts {
        Accounts {
            requests: self.requests.account(Arc::clone(flow)),
            reads: self.reads.account(Arc::clone(flow)),
            flow: Arc::clone(flow),
        }
    }
}

/// What one connection holds of the budgets.
#[derive(Clone)]
pub struct Accounts {
    /// What its requests hold.
    pub requests: Account,
    /// What its reads and their answers hold.
    pub reads: Account,
    flow: Arc<ConnectionFlow>,
}

impl Accounts {
    /// The same connection, whose requests are charged to this account.
    pub fn with_requests(self, requests: Account) -> Accounts {
        Accounts { requests, ..self }
    }

    /// Opens a stream of so many bytes. `None`: it does not fit.
    pub fn open_stream(&self, bytes: usize) -> Option<OpenStream> {
        if self.flow.open_stream() {
            return Some(OpenStream::First(Arc::clone(&self.flow)));
        }
        self.requests.try_admit(bytes).map(|charge| OpenStream::Further { _charge: charge })
    }
}

/// A stream that is open. It ends when this is dropped.
pub enum OpenStream {
    /// The one that its connection may have without a charge.
    First(Arc<ConnectionFlow>),
    Further {
        _charge: Charge,
    },
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if let OpenStream::First(flow) = self {
            flow.close_stream();
        }
    }
}

/// What a message of this length is charged while it arrives.
pub fn arriving_bytes(length: usize) -> usize {
    length.saturating_add(length.saturating_mul(DECODED_PER_BYTE).min(DECODED_MOST))
}

/// Refuses a message by the length that its header declares.
///
/// # Errors
/// INVALID_ARGUMENT, with the limit.
pub fn check_length(declared: usize, most: usize) -> Result<(), Status> {
    if declared > most { Err(refusal::message_too_long(declared, most)) } else { Ok(()) }
}

/// The charge of a stream's message that has arrived and is not decoded yet, from the transport to
/// the service.
#[derive(Clone, Default)]
pub struct Arrived(Arc<Mutex<Option<(Charge, usize)>>>);

impl Arrived {
    /// A message of this length has arrived. A stream is read one message after the other. The story: a
    /// call that takes one message was sent empty ones for ever; all were read before the call was
    /// looked at, and what was noted of each took the memory of the node.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the one before is not decoded: the call takes no other.
    pub fn put(&self, charge: Charge, length: usize) -> Result<(), Status> {
        let mut waits = self.0.lock();
        if waits.is_some() {
            return Err(Status::invalid_argument("this call takes one message"));
        }
        *waits = Some((charge, length));
        Ok(())
    }

    /// Whether a message has arrived and is not decoded.
    pub fn waits(&self) -> bool {
        self.0.lock().is_some()
    }

    /// The next message was decoded, to so many bytes beside its own. Returns its charge.
    ///
    /// # Errors
    /// OVERLOADED if they do not fit: it is to be dropped.
    pub fn decoded(&self, bytes: usize) -> Result<Option<Charge>, Status> {
        let Some((mut charge, length)) = self.0.lock().take() else { return Ok(None) };
        match charge.settle(length + bytes) {
            true => Ok(Some(charge)),
            false => Err(refusal::requests_overloaded("their operations take too much memory")),
        }
    }
}

/// Admits the calls of one multiplexed stream.
#[derive(Clone)]
pub struct Calls {
    account: Account,
    arrived: Option<Arrived>,
    first: Arc<Semaphore>,
}

/// Lets a call be under way until it is dropped.
pub enum CallPermit {
    /// The one that its stream may have without a charge.
    First {
        _permit: Option<OwnedSemaphorePermit>,
    },
    Further {
        _charge: Charge,
    },
}

impl Calls {
    /// The calls of a stream whose messages the transport announces in `arrived`.
    pub fn new(account: Account, arrived: Option<Arrived>) -> Calls {
        Calls { account, arrived, first: Arc::new(Semaphore::new(1)) }
    }

    /// The next message was decoded. See [`Arrived::decoded`].
    pub fn decoded(&self, bytes: usize) -> Result<Option<Charge>, Status> {
        self.arrived.as_ref().map_or(Ok(None), |arrived| arrived.decoded(bytes))
    }

    /// Waits until a call of so many bytes may begin: until `end` for memory, and then for the one
    /// that its stream may have without a charge, so that its answer has its place too. May be
    /// cancelled.
    pub async fn enter(&self, bytes: usize, end: Instant) -> CallPermit {
        if let Ok(permit) = Arc::clone(&self.first).try_acquire_owned() {
            return CallPermit::First { _permit: Some(permit) };
        }
        if let Some(charge) = self.account.try_admit(bytes) {
            return CallPermit::Further { _charge: charge };
        }
        let mut first = std::pin::pin!(Arc::clone(&self.first).acquire_owned());
        let admitted = tokio::select! {
            biased;
            permit = &mut first => return CallPermit::First { _permit: permit.ok() },
            admitted = self.account.admit(bytes, end) => admitted,
        };
        match admitted {
            Ok(charge) => CallPermit::Further { _charge: charge },
            Err(_) => CallPermit::First { _permit: first.await.ok() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::time::Duration;

    fn accounts(most: usize) -> (Budget, Accounts) {
        let budgets = Budgets { requests: Budget::new(most), reads: Budget::new(most) };
        let accounts = budgets.accounts(&Arc::default());
        (budgets.requests, accounts)
    }

    #[test]
    fn a_connection_has_one_stream_without_a_charge_and_others_that_fit() {
        let (requests, accounts) = accounts(100);
        let first = accounts.open_stream(40).expect("the first");
        assert_eq!(requests.status().held_bytes, 0);
        let second = accounts.open_stream(40).expect("it fits");
        assert_eq!(requests.status().held_bytes, 40);
        assert!(accounts.open_stream(40).is_none());
        drop(first);
        let third = accounts.open_stream(40).expect("the first has ended");
        assert_eq!(requests.status().held_bytes, 40);
        drop((second, third));
        assert_eq!(requests.status().held_bytes, 0);
    }

    #[tokio::test]
    async fn a_stream_has_one_call_without_a_charge_and_a_further_one_waits_for_it() {
        let (requests, accounts) = accounts(100);
        let end = Instant::now() + Duration::from_secs(600);
        let calls = Calls::new(accounts.requests.clone(), None);
        let first = calls.enter(50, end).await;
        let second = calls.enter(50, end).await;
        assert_eq!(requests.status().held_bytes, 50);
        let mut third = Box::pin(calls.enter(50, end));
        assert!((&mut third).now_or_never().is_none(), "no memory");
        drop(first);
        let third = third.await;
        assert_eq!((requests.status().held_bytes, requests.status().waiting), (50, 0));
        drop((second, third));
    }

    #[test]
    fn a_message_is_charged_with_what_it_became_or_refused() {
        let (requests, accounts) = accounts(1 << 20);
        let arrived = Arrived::default();
        let arrives = |length| {
            let charge = accounts.requests.try_admit(arriving_bytes(length)).expect("it fits");
            arrived.put(charge, length).expect("none waits");
        };
        arrives(100);
        let charge = arrived.decoded(50).expect("it fits");
        assert_eq!(requests.status().held_bytes, 150);
        drop(charge);
        arrives(100);
        assert!(arrived.decoded(10 << 20).is_err(), "ten megabytes");
        assert_eq!(requests.status().held_bytes, 0);
        assert!(arrived.decoded(10).expect("no message").is_none());
    }
}
