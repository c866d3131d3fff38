//! One connection to a member, calls over it, and how to report their failures to openraft.
//!
//! A connection delivers a request once. But a sender that gets no answer sends it again on another
//! connection, while the first request may still be on its way: a received request may have been
//! received before, and long ago. So each request contains all that the receiver needs to refuse it
//! or to treat it correctly, whatever happened since. A simulation that asks for it delivers
//! requests a second time, late.

use crate::core::error::Malformed;
use crate::core::hooks;
use crate::core::proto::MAX_MESSAGE_BYTES;
use crate::core::proto::peer_client::PeerClient;
use crate::core::runtime;
use crate::core::types::TypeConfig;
use cairn_tls::{Connector, Expected, Tls};
use openraft::errors::{NetworkError, RPCError, Unreachable};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time limit for an answer outside of openraft.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// A slower link between members is as good as none: a message has the time that this rate needs,
/// beside what an answer may take.
const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;
const KEEPALIVE: Duration = Duration::from_secs(2);
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

pub(super) type Client = PeerClient<Channel>;

/// A client of the member of `slot`, expected at `address`. With certificates nobody else can
/// answer there; without a slot, any member of the cluster can.
pub(super) fn connect(
    tls: Option<&Tls>,
    slot: Option<u16>,
    address: &str,
) -> Result<Client, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| format!("`{address}` is not an address: {error}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let expected = slot.map_or(Expected::AnyMember, Expected::Slot);
    let connector = Connector::new(tls.cloned(), expected);
    Ok(PeerClient::new(endpoint.connect_with_connector_lazy(connector))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES))
}

/// Sends a request, and perhaps a second time, later.
pub(super) async fn call<Q, A, F>(
    client: Client,
    request: Q,
    send: impl Fn(Client, Q) -> F + Copy + Send + 'static,
) -> Result<Response<A>, Status>
where
    Q: Clone + Send + 'static,
    F: Future<Output = Result<Response<A>, Status>> + Send,
{
    deliver_duplicate(&client, || request.clone(), send);
    send(client, request).await
}

/// Sends the message a second time, later, through `client`, if the simulation asks for it. The
/// answer is dropped.
pub(super) fn deliver_duplicate<M, F>(
    client: &Client,
    message: impl FnOnce() -> M,
    send: impl FnOnce(Client, M) -> F + Send + 'static,
) where
    M: Send + 'static,
    F: Future + Send,
{
    let Some(later) = hooks::duplicate_after() else { return };
    let (client, message) = (client.clone(), message());
    runtime::spawn(async move {
        runtime::sleep(later).await;
        drop(send(client, message).await);
    });
}

/// How long so many bytes may be on their way. The story: a value that took longer than an answer may
/// take was sent from its beginning again and again, and nothing was committed behind it.
pub(super) fn transfer_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES_PER_SECOND)
}

/// Connects to the member of `slot`, or to any, at `address` for one call with a time limit.
pub(super) async fn call_at<A, F>(
    tls: Option<&Tls>,
    slot: Option<u16>,
    address: &str,
    call: impl FnOnce(Client) -> F,
) -> Result<A, Status>
where
    F: Future<Output = Result<Response<A>, Status>> + Send,
{
    call_for_bytes(tls, slot, address, 0, call).await
}

/// The same, for an answer of so many bytes.
pub(super) async fn call_for_bytes<A, F>(
    tls: Option<&Tls>,
    slot: Option<u16>,
    address: &str,
    bytes: u64,
    call: impl FnOnce(Client) -> F,
) -> Result<A, Status>
where
    F: Future<Output = Result<Response<A>, Status>> + Send,
{
    let client = connect(tls, slot, address).map_err(Status::invalid_argument)?;
    let answer = runtime::timeout(ANSWER_TIMEOUT + transfer_time(bytes), call(client)).await;
    Ok(answer.ok_or_else(|| Status::deadline_exceeded("no answer"))??.into_inner())
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
    use std::net::TcpListener;

    /// Only a system that says that nobody listens refuses: one that answers nothing, or hangs up,
    /// does not.
    #[tokio::test]
    async fn a_closed_port_refuses_and_one_that_hangs_up_or_says_nothing_does_not() {
        let call = |address: String| async move {
            let hello =
                |mut client: Client| async move { client.hello(HelloRequest::default()).await };
            let error = call_at(None, None, &address, hello).await.unwrap_err();
            (hooks::is_refused(1, &error), format!("{error:?}"))
        };
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();

        let closed = address(&listen());
        let (refused, error) = call(closed).await;
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
