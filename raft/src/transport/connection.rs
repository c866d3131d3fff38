//! One connection to a member, calls over it, and how to report their failures to openraft.
//!
//! A connection delivers a request once. But a sender that gets no answer sends it again on another
//! connection, while the first request may still be on its way: a received request may have been
//! received before, and long ago. So each request contains all that the receiver needs to refuse it
//! or to treat it correctly, whatever happened since. A simulation that asks for it delivers
//! requests a second time, late.

use super::wire::client::Client;
use super::wire::{Message, Method, transfer_time};
use crate::core::error::Malformed;
use crate::core::types::TypeConfig;
use crate::core::{hooks, runtime};
use cairn_tls::Tls;
use openraft::errors::{NetworkError, RPCError, Unreachable};
use std::time::Duration;
use tonic::{Code, Status};

/// The time limit for an answer outside of openraft.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls a method, and perhaps a second time, later.
pub(super) async fn call<Q: Message + Clone, A: Message>(
    client: &Client,
    method: Method<Q, A>,
    request: Q,
) -> Result<A, Status> {
    deliver_duplicate(client, method, || request.clone());
    client.call(method, request).await
}

/// Sends the message a second time, later, through `client`, if the simulation asks for it. The
/// answer is dropped.
pub(super) fn deliver_duplicate<Q: Message, A: Message>(
    client: &Client,
    method: Method<Q, A>,
    message: impl FnOnce() -> Q,
) {
    let Some(later) = hooks::duplicate_after() else { return };
    let (client, message) = (client.clone(), message());
    runtime::spawn(async move {
        runtime::sleep(later).await;
        drop(client.call(method, message).await);
    });
}

/// Calls a method of the member of `slot`, or of any, at `address`, with a time limit.
pub(super) async fn call_at<Q: Message + Clone, A: Message>(
    tls: Option<&Tls>,
    (slot, address): (Option<u16>, &str),
    method: Method<Q, A>,
    request: Q,
) -> Result<A, Status> {
    let client = Client::new(tls, slot, address).map_err(Status::invalid_argument)?;
    within(0, call(&client, method, request)).await
}

/// Waits for the answer to a call outside of openraft, which has so many bytes.
pub(super) async fn within<A>(
    bytes: u64,
    call: impl Future<Output = Result<A, Status>> + Send,
) -> Result<A, Status> {
    let answer = runtime::timeout(ANSWER_TIMEOUT + transfer_time(bytes), call).await;
    answer.unwrap_or_else(|| Err(Status::deadline_exceeded("no answer")))
}

/// The error for openraft of a failed call: `Unreachable`, which makes it back off, if an immediate
/// retry is of no use.
pub(super) fn rpc_error(status: Status) -> RPCError<TypeConfig> {
    match status.code() {
        Code::Unavailable
        | Code::FailedPrecondition
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::Unimplemented => Unreachable::from_string(status.message()).into(),
        _ => NetworkError::from_string(format!("{}: {}", status.code(), status.message())).into(),
    }
}

impl From<Malformed> for RPCError<TypeConfig> {
    fn from(error: Malformed) -> RPCError<TypeConfig> {
        NetworkError::from_string(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proto::HelloRequest;
    use crate::transport::wire::methods::HELLO;
    use std::net::TcpListener;

    /// Only a system that says that nobody listens refuses: one that answers nothing, or hangs up,
    /// does not.
    #[tokio::test]
    async fn a_closed_port_refuses_and_one_that_hangs_up_or_says_nothing_does_not() {
        let call = |address: String| async move {
            let hello = HelloRequest::default();
            let error = call_at(None, (None, &address), HELLO, hello).await.unwrap_err();
            (hooks::is_refused(1, &error), format!("{error:?}"))
        };
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();

        // Nobody listens there while this one holds it.
        let closed = cairn_launch::HeldPort::any().unwrap();
        let (refused, error) = call(closed.address().to_string()).await;
        assert!(refused, "{error}");

        let hangs_up = listen();
        let at = address(&hangs_up);
        let accepting = std::thread::spawn(move || drop(hangs_up.accept().unwrap()));
        let (refused, error) = call(at).await;
        assert!(!refused, "{error}");
        accepting.join().unwrap();

        let silent = listen();
        let (refused, error) = call(address(&silent)).await;
        assert!(!refused, "{error}");
    }
}
