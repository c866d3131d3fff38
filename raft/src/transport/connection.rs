//! One connection to a member, and how to report its failures to openraft.

use crate::core::error::Malformed;
use crate::core::proto::MAX_MESSAGE_BYTES;
use crate::core::proto::peer_client::PeerClient;
use crate::core::types::TypeConfig;
use openraft::errors::{NetworkError, RPCError, Unreachable};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const KEEPALIVE: Duration = Duration::from_secs(2);
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

pub(super) type Client = PeerClient<Channel>;

/// A client of the member that listens at `address`.
pub(super) fn connect(address: &str) -> Result<Client, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| format!("`{address}` is not an address: {error}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    Ok(PeerClient::new(endpoint.connect_lazy())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES))
}

/// The error for openraft of a failed call: `Unreachable`, which makes it back off, if an immediate
/// retry is of no use.
pub(super) fn rpc_error(status: &Status) -> RPCError<TypeConfig> {
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
