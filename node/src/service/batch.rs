//! The server's end of the shared stream of small requests.

use cairn_client::proto::{
    Answer, BatchRequest, BatchResponse, Call, ERROR_DETAIL_KEY, ErrorDetail, Failed, answer, call,
};
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use prost::Message;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tonic::{Code, Status, Streaming};

/// Requests of one stream under way at once; beyond them the stream is not read.
const UNDER_WAY: usize = 1024;
/// Answers in one message, and their bytes: the last one may exceed them.
const ANSWERS: usize = 128;
const MESSAGE_BYTES: usize = 1 << 20;

/// Answers the calls of a stream as they are done, in any order. `serve` answers one; its time is `None` where the
/// client gave none. Ends with the stream of requests or when `stopping` does, once all that was taken is answered, and with the
/// refusal of a message that was not decoded; dropping it drops what is under way.
pub(super) fn answers<F>(
    requests: Streaming<BatchRequest>,
    stopping: impl Future<Output = ()> + Send + 'static,
    serve: impl Fn(call::Kind, Option<Duration>) -> F + Send + 'static,
) -> impl Stream<Item = Result<BatchResponse, Status>> + Send
where
    F: Future<Output = Result<answer::Kind, Status>> + Send + 'static,
{
    let refused = Arc::new(Mutex::new(None));
    let refusal = Arc::clone(&refused);
    let calls = until(requests, stopping)
        .take_while(move |message| {
            // Of a connection that broke nobody is told.
            *refused.lock() =
                message.as_ref().err().filter(|status| status.code() == Code::InvalidArgument).cloned();
            futures::future::ready(message.is_ok())
        })
        .flat_map(|message| futures::stream::iter(message.map(|message| message.calls).unwrap_or_default()));
    let answers = calls.map(move |Call { id, timeout_ms, kind }| {
        let work = kind.map(|kind| serve(kind, (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms))));
        async move {
            let result = match work {
                Some(work) => work.await,
                None => Err(Status::invalid_argument("a call without content; use one of its kinds")),
            };
            Answer { id, kind: Some(result.unwrap_or_else(|status| answer::Kind::Failed(failed(&status)))) }
        }
    });
    let answers = gathered(answers.buffer_unordered(UNDER_WAY)).map(|answers| Ok(BatchResponse { answers }));
    answers.chain(futures::stream::poll_fn(move |_| Poll::Ready(refusal.lock().take().map(Err))))
}

/// Ends with `stopping` too. That is looked at when it wakes the stream, and not whenever there may be a message.
fn until<S: Stream>(
    stream: S,
    stopping: impl Future<Output = ()> + Send + 'static,
) -> impl Stream<Item = S::Item> {
    let stopping: FuturesUnordered<_> = std::iter::once(stopping).collect();
    stream.take_until(stopping.into_future())
}

/// What is ready goes into one message, within its bounds: the receiver refuses a message that is too long, and all that is on
/// the stream with it.
fn gathered(answers: impl Stream<Item = Answer> + Send) -> impl Stream<Item = Vec<Answer>> + Send {
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
    let detail = status.metadata().get_bin(ERROR_DETAIL_KEY).and_then(|value| value.to_bytes().ok());
    Failed {
        code: status.code() as i32,
        message: status.message().to_owned(),
        detail: detail.and_then(|bytes| ErrorDetail::decode(bytes).ok()),
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
        futures::executor::block_on(gathered(futures::stream::iter(answers)).collect())
    }

    #[test]
    fn what_was_taken_before_the_server_stops_is_kept_and_the_stream_ends() {
        let (stop, stopping) = futures::channel::oneshot::channel::<()>();
        let endless = futures::stream::iter([1, 2]).chain(futures::stream::pending());
        let mut taken = Box::pin(until(endless, async { stopping.await.unwrap_or_default() }));
        let next = |taken: &mut _| futures::executor::block_on(StreamExt::next(taken));
        assert_eq!((next(&mut taken), next(&mut taken)), (Some(1), Some(2)));
        stop.send(()).ok();
        assert_eq!(next(&mut taken), None);
    }

    /// The story: many large values were read at once and were all ready in the same moment. The message that carried them was
    /// longer than the client takes, and ended the stream with everything on it.
    #[test]
    fn what_is_ready_goes_into_messages_that_are_not_too_long() {
        let told = messages((0..100).map(|id| answer(id, 300_000)).collect());
        assert!(
            told.iter()
                .all(|message| message.iter().map(Message::encoded_len).sum::<usize>()
                    < MESSAGE_BYTES + 310_000)
        );
        assert!(told.iter().rev().skip(1).all(|message| message.len() == 4));
        let ids: Vec<u64> = told.iter().flatten().map(|answer| answer.id).collect();
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
        assert_eq!(messages((0..300).map(|id| answer(id, 1)).collect()).len(), 3);
        assert!(messages(vec![]).is_empty());
    }
}
