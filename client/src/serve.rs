//! The server's end of the shared stream of small requests. For Cairn's own server, and for tests of the client.

use futures::{Stream, StreamExt};
use prost::Message;
use std::time::Duration;
use tonic::{Status, Streaming};

use crate::proto::{
    Answer, BatchRequest, BatchResponse, Call, ERROR_DETAIL_KEY, ErrorDetail, Failed, answer, call,
};

/// Requests of one stream under way at once; beyond them the stream is not read.
const UNDER_WAY: usize = 1024;
/// Answers in one message.
const ANSWERS: usize = 128;

/// Answers the calls of a stream as they are done, in any order. `serve` answers one; its time is `None` where the
/// client gave none. Ends with the stream of requests, once all are answered; dropping it drops what is under way.
pub fn batch<F>(
    requests: Streaming<BatchRequest>,
    serve: impl Fn(call::Kind, Option<Duration>) -> F + Send + 'static,
) -> impl Stream<Item = Result<BatchResponse, Status>> + Send
where
    F: Future<Output = Result<answer::Kind, Status>> + Send + 'static,
{
    let calls = requests
        .take_while(|message| futures::future::ready(message.is_ok()))
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
    answers.buffer_unordered(UNDER_WAY).ready_chunks(ANSWERS).map(|answers| Ok(BatchResponse { answers }))
}

fn failed(status: &Status) -> Failed {
    let detail = status.metadata().get_bin(ERROR_DETAIL_KEY).and_then(|value| value.to_bytes().ok());
    Failed {
        code: status.code() as i32,
        message: status.message().to_owned(),
        detail: detail.and_then(|bytes| ErrorDetail::decode(bytes).ok()),
    }
}
