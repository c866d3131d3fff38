//! What a real network does to messages and calls, for the simulation. madsim passes values, not
//! bytes, and never drops a handler. This module adds both: it encodes messages and bounds their
//! size, and it drops a handler when its caller has gone away.

use crate::core::proto::peer_server::Peer;
use crate::core::proto::{self, MAX_MESSAGE_BYTES};
use futures::{Stream, StreamExt};
use madsim::rand::Rng;
use prost::Message;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tonic::{Request, Response, Status, Streaming};

thread_local! {
    /// How many of a thousand calls have their connection reset.
    static RESETS: Cell<u32> = const { Cell::new(0) };
    static RESET: Cell<u64> = const { Cell::new(0) };
}

/// A stream lives longer than a call, so a smaller share of streams is reset.
const STREAM_SHARE: u32 = 10;

type Answered<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// From now on, resets this many of a thousand calls in the middle, or of ten thousand streams.
pub fn reset_calls(per_mille: u32) {
    RESETS.set(per_mille);
}

/// How many handlers were dropped before they ended, since the last call of this function.
pub fn calls_reset() -> u64 {
    RESET.replace(0)
}

/// Encodes a message to bytes and decodes it again.
///
/// # Errors
/// `OutOfRange` if the message is larger than `max` bytes, and `Internal` if it cannot be decoded.
pub fn encoded<M: Message + Default>(message: &M, max: usize) -> Result<M, Status> {
    let bytes = message.encode_to_vec();
    if bytes.len() > max {
        return Err(Status::out_of_range(format!(
            "a message of {} bytes; {max} is the limit",
            bytes.len()
        )));
    }
    M::decode(bytes.as_slice()).map_err(|error| Status::internal(error.to_string()))
}

/// After how long to reset the present call; `None`: never.
fn reset_after(share: u32) -> Option<Duration> {
    let per_mille = RESETS.get();
    let mut rng = madsim::rand::thread_rng();
    if per_mille == 0 || rng.gen_range(0..1_000) >= per_mille.saturating_mul(share) {
        return None;
    }
    // Most handlers end within milliseconds, and some wait for a disk.
    let longest_us = [1, 3_000, 30_000, 1_000_000];
    let longest = longest_us.get(rng.gen_range(0..longest_us.len())).copied().unwrap_or(1);
    Some(Duration::from_micros(rng.gen_range(0..longest)))
}

fn reset() -> Status {
    RESET.set(RESET.get() + 1);
    Status::unavailable("the connection was reset")
}

/// Runs a handler to its end, or drops it when its connection is reset.
pub async fn until_reset<T>(handler: impl Future<Output = Answered<T>> + Send) -> Answered<T> {
    match reset_after(1) {
        None => handler.await,
        Some(after) => madsim::time::timeout(after, handler).await.unwrap_or_else(|_| Err(reset())),
    }
}

/// Passes on a handler's answers to their end, or drops them when the connection is reset.
pub fn stream_until_reset<T: Send + 'static>(
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Answers<T> {
    match reset_after(STREAM_SHARE) {
        None => Box::pin(answers),
        Some(after) => {
            let ending = futures::stream::once(async { Err(reset()) });
            Box::pin(answers.take_until(madsim::time::sleep(after)).chain(ending))
        }
    }
}

/// A peer service behind a simulated network.
pub struct OverWire<S>(pub(super) S);

macro_rules! peer {
    ($($name:ident: $request:ident => $response:ident,)+) => {
        #[tonic::async_trait]
        impl<S: Peer> Peer for OverWire<S> {
            $(
                async fn $name(&self, request: Request<proto::$request>) -> Answered<proto::$response> {
                    let message = encoded(request.get_ref(), MAX_MESSAGE_BYTES)?;
                    let answer = until_reset(self.0.$name(request.map(|_| message))).await?;
                    Ok(Response::new(encoded(answer.get_ref(), MAX_MESSAGE_BYTES)?))
                }
            )+

            type AppendStream = Answers<proto::AppendResponse>;

            async fn append(
                &self,
                request: Request<Streaming<proto::AppendRequest>>,
            ) -> Answered<Self::AppendStream> {
                let answers = self.0.append(request).await?.into_inner();
                let answers =
                    answers.map(|answer| answer.and_then(|message| encoded(&message, MAX_MESSAGE_BYTES)));
                Ok(Response::new(stream_until_reset(answers)))
            }
        }
    };
}

peer! {
    hello: HelloRequest => HelloResponse,
    append_one: AppendRequest => AppendResponse,
    vote: VoteRequest => VoteResponse,
    pre_vote: VoteRequest => VoteResponse,
    snapshot_offset: SnapshotOffsetRequest => SnapshotOffsetResponse,
    snapshot_chunk: SnapshotChunkRequest => SnapshotChunkResponse,
    snapshot_finish: SnapshotFinishRequest => SnapshotFinishResponse,
    transfer_leader: TransferLeaderRequest => TransferLeaderResponse,
    recover: RecoverRequest => RecoverResponse,
    join: JoinRequest => JoinResponse,
    fetch_value: FetchValueRequest => FetchValueResponse,
    safe_to_stop: SafeToStopRequest => SafeToStopResponse,
}
