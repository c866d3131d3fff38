//! The server's end of the multiplexed stream of small requests.

use crate::admission::memory::Charge;
use crate::admission::refusal;
use crate::admission::requests::Calls;
use cairn_client::proto::{
    Answer, CALLS_OF_A_STREAM, Call, ErrorDetail, Failed, MultiplexRequest, MultiplexResponse,
    answer, call,
};
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use prost::Message;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

/// Answers in one message, and their bytes. The last answer may exceed the bytes.
const ANSWERS: usize = 128;
const MESSAGE_BYTES: usize = 1 << 20;

/// Memory of a call under way beside what serves it: its answer, and its entry among the others.
const CALL_BYTES: usize = 1 << 10;

/// Answers the calls of a stream as they complete, in any order. `serve` answers one call, once
/// `admission` lets it begin, which is before the given time or that of the call; the generation that it means and its
/// deadline are `None` if the client gave none. The stream of answers ends when the stream of
/// requests or `stopping` does, once everything that was received is answered. It ends with a
/// refusal after a message that cannot be decoded or received. Dropping it drops the calls under way.
pub(super) fn answers<F>(
    requests: Streaming<MultiplexRequest>,
    stopping: impl Future<Output = ()> + Send + 'static,
    (admission, most): (Calls, Duration),
    serve: impl Fn(call::Kind, Option<u32>, Option<Duration>) -> F + Send + 'static,
) -> impl Stream<Item = Result<MultiplexResponse, Status>> + Send
where
    F: Future<Output = Result<answer::Kind, Status>> + Send + 'static,
{
    let refused = Arc::new(Mutex::new(None));
    let ends_with = Arc::clone(&refused);
    let decoded = admission.clone();
    let calls = until(requests, stopping)
        .take_while(move |message| {
            // A broken connection is not reported: nobody reads the answer.
            *refused.lock() = message.as_ref().err().filter(|status| is_refusal(status)).cloned();
            futures::future::ready(message.is_ok())
        })
        .flat_map(move |message| futures::stream::iter(received(&decoded, message)));
    let admitted = calls.then(move |Received { generation, call, charge }| {
        let given = (call.timeout_ms > 0).then(|| Duration::from_millis(call.timeout_ms));
        let end = Instant::now() + given.unwrap_or(most).min(most);
        let served = if call.kind.is_some() { size_of::<F>() } else { 0 };
        let admission = admission.clone();
        async move {
            (admission.enter(served + CALL_BYTES, end).await, generation, call, charge, given, end)
        }
    });
    let answers = admitted.map(move |(permit, generation, call, charge, given, end)| {
        let Call { id, kind, .. } = call;
        let left = end.saturating_duration_since(Instant::now());
        // Boxed, since a call that is refused takes no more than its answer.
        let work = charge.and_then(|charge| match kind {
            _ if left.is_zero() => Err(refusal::requests_overloaded("the call waited for memory")),
            Some(kind) => Ok((Box::pin(serve(kind, generation, given.map(|_| left))), charge)),
            None => Err(Status::invalid_argument("a call without content; use one of its kinds")),
        });
        async move {
            let _permit = permit;
            let result = match work {
                Ok((work, _charge)) => work.await,
                Err(refused) => Err(refused),
            };
            Answer {
                id,
                kind: Some(result.unwrap_or_else(|status| answer::Kind::Failed(failed(&status)))),
            }
        }
    });
    // At this number the server stops reading the stream.
    let answers = batched(answers.buffer_unordered(CALLS_OF_A_STREAM))
        .map(|answers| Ok(MultiplexResponse { answers }));
    answers.chain(futures::stream::poll_fn(move |_| Poll::Ready(ends_with.lock().take().map(Err))))
}

/// Whether a stream ends with this because of what the client sent, and not because it is gone.
fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument | Code::DeadlineExceeded | Code::ResourceExhausted
    )
}

/// A call of a message that has arrived.
struct Received {
    generation: Option<u32>,
    call: Call,
    /// The charge of its message, or why the message is refused.
    charge: Result<Arc<Option<Charge>>, Status>,
}

fn received(
    admission: &Calls,
    message: Result<MultiplexRequest, Status>,
) -> impl Iterator<Item = Received> + use<> {
    let mut message = message.unwrap_or_default();
    let charge = admission.decoded(message.decoded_bytes()).map(Arc::new);
    if charge.is_err() {
        message.calls.iter_mut().for_each(|call| call.kind = None);
    }
    let MultiplexRequest { calls, generation } = message;
    calls.into_iter().map(move |call| Received { generation, call, charge: charge.clone() })
}

/// Ends when `stopping` does, too. `stopping` is polled only when it wakes the stream, not before
/// each message.
fn until<S: Stream>(
    stream: S,
    stopping: impl Future<Output = ()> + Send + 'static,
) -> impl Stream<Item = S::Item> {
    let stopping: FuturesUnordered<_> = std::iter::once(stopping).collect();
    stream.take_until(stopping.into_future())
}

/// Puts the answers that are ready into one message, within its bounds. The receiver refuses a
/// message that is too long, and with it everything on the stream.
fn batched(answers: impl Stream<Item = Answer> + Send) -> impl Stream<Item = Vec<Answer>> + Send {
    let mut answers = Box::pin(answers.fuse());
    futures::stream::poll_fn(move |context| {
        let (mut message, mut bytes) = (Vec::new(), 0);
        while message.len() < ANSWERS && bytes < MESSAGE_BYTES {
            match answers.as_mut().poll_next(context) {
                Poll::Ready(Some(answer)) => {
                    bytes += answer.encoded_len();
                    message.push(answer);
                }
                Poll::Ready(None) if message.is_empty() => return Poll::Ready(None),
                Poll::Pending if message.is_empty() => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Some(message))
    })
}

fn failed(status: &Status) -> Failed {
    Failed {
        code: status.code() as i32,
        message: status.message().to_owned(),
        detail: ErrorDetail::of(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: u64, bytes: usize) -> Answer {
        let failed = Failed { code: 2, message: "x".repeat(bytes), detail: None };
        Answer { id, kind: Some(answer::Kind::Failed(failed)) }
    }

    fn messages(answers: Vec<Answer>) -> Vec<Vec<Answer>> {
        futures::executor::block_on(batched(futures::stream::iter(answers)).collect())
    }

    #[test]
    fn calls_received_before_the_server_stops_are_kept_and_the_stream_ends() {
        let (stop, stopping) = futures::channel::oneshot::channel::<()>();
        let endless = futures::stream::iter([1, 2]).chain(futures::stream::pending());
        let mut taken = Box::pin(until(endless, async { stopping.await.unwrap_or_default() }));
        let next = |taken: &mut _| futures::executor::block_on(StreamExt::next(taken));
        assert_eq!((next(&mut taken), next(&mut taken)), (Some(1), Some(2)));
        stop.send(()).ok();
        assert_eq!(next(&mut taken), None);
    }

    /// The story: many large values were read at once, and all became ready in the same moment. The
    /// message with all of them was longer than the client accepts, and ended the stream with
    /// everything on it.
    #[test]
    fn ready_answers_go_into_messages_that_are_not_too_long() {
        let told = messages((0..100).map(|id| answer(id, 300_000)).collect());
        assert!(told.iter().all(|message| message.iter().map(Message::encoded_len).sum::<usize>()
            < MESSAGE_BYTES + 310_000));
        assert!(told.iter().rev().skip(1).all(|message| message.len() == 4));
        let ids: Vec<u64> = told.iter().flatten().map(|answer| answer.id).collect();
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
        assert_eq!(messages((0..300).map(|id| answer(id, 1)).collect()).len(), 3);
        assert!(messages(vec![]).is_empty());
    }
}
