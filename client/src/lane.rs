//! Many requests over one stream of a connection.
//!
//! A call of its own costs a small request more processor time, on both sides, than its work does. Requests that are
//! made at the same time are therefore gathered and sent as one message; each is still answered, timed out and retried
//! for itself. One task drives the stream. It never waits to send without also taking answers, so that both sides
//! cannot wait for each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::proto::{self, answer, call};

/// Requests in one message.
const MAX_CALLS: usize = 128;
/// Bytes after which a message is sent as it is.
const MAX_BYTES: usize = 1 << 20;
/// What an operation takes in memory beside its bytes; a server refuses a message of too many.
const OPERATION_BYTES: usize = 64;
/// Messages on their way to the transport.
const WINDOW: usize = 4;

/// The generated stub: one call for one request.
pub(crate) type UnaryStub = proto::kv_client::KvClient<Channel>;

type Reply = oneshot::Sender<Result<answer::Kind, Status>>;

/// A request on its way to the stream.
struct Pending {
    kind: call::Kind,
    timeout: Duration,
    reply: Reply,
}

/// The callers' end. The stream is opened with the first request and ends with the last handle.
#[derive(Clone)]
pub(crate) struct Lane {
    calls: Arc<mpsc::UnboundedSender<Pending>>,
}

impl Lane {
    /// A lane over the connection of `stub`.
    pub(crate) fn new(stub: UnaryStub) -> Lane {
        let (calls, queue) = mpsc::unbounded_channel();
        tokio::spawn(drive(stub, queue));
        Lane { calls: Arc::new(calls) }
    }

    /// Has a request answered. May be cancelled; it may then still take effect.
    pub(crate) async fn call(&self, kind: call::Kind, timeout: Duration) -> Result<answer::Kind, Status> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(Pending { kind, timeout, reply }).map_err(|_| lost())?;
        answer.await.unwrap_or_else(|_| Err(lost()))
    }
}

fn lost() -> Status {
    Status::unavailable("the connection was lost before the answer came")
}

/// Runs the stream until every handle is gone or it breaks.
async fn drive(mut stub: UnaryStub, mut queue: mpsc::UnboundedReceiver<Pending>) {
    let mut gathered = Vec::with_capacity(MAX_CALLS);
    if queue.recv_many(&mut gathered, MAX_CALLS).await == 0 {
        return;
    }
    let (outlet, mut messages) = mpsc::channel(WINDOW);
    let stream = futures::stream::poll_fn(move |context| messages.poll_recv(context));
    let mut answers = match stub.batch(stream).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => {
            for pending in gathered {
                // A caller that went away does not want it.
                let _ = pending.reply.send(Err(status.clone()));
            }
            return;
        }
    };
    let mut waiting = Waiting::default();
    loop {
        tokio::select! {
            biased;
            answer = answers.next() => match answer {
                Some(Ok(message)) => waiting.answered(message),
                Some(Err(status)) => return waiting.fail(&status),
                None => return waiting.fail(&lost()),
            },
            room = outlet.reserve(), if !gathered.is_empty() => match room {
                Ok(room) => room.send(waiting.message(&mut gathered)),
                Err(_) => return waiting.fail(&lost()),
            },
            count = queue.recv_many(&mut gathered, MAX_CALLS), if gathered.is_empty() => if count == 0 {
                return;
            },
        }
    }
}

/// Requests that were sent and are not answered.
#[derive(Default)]
struct Waiting {
    replies: BTreeMap<u64, Reply>,
    next_id: u64,
}

impl Waiting {
    /// Takes as many of the gathered requests as one message carries.
    fn message(&mut self, gathered: &mut Vec<Pending>) -> proto::BatchRequest {
        let mut bytes = 0;
        let fits = gathered.iter().take_while(|pending| {
            let fits = bytes < MAX_BYTES;
            bytes += size(&pending.kind);
            fits
        });
        let count = fits.count().max(1).min(gathered.len());
        let calls = gathered.drain(..count).filter(|pending| !pending.reply.is_closed()).map(|pending| {
            self.next_id += 1;
            self.replies.insert(self.next_id, pending.reply);
            let timeout_ms = u64::try_from(pending.timeout.as_millis()).unwrap_or(u64::MAX).max(1);
            proto::Call { id: self.next_id, timeout_ms, kind: Some(pending.kind) }
        });
        proto::BatchRequest { calls: calls.collect() }
    }

    fn answered(&mut self, message: proto::BatchResponse) {
        for answer in message.answers {
            let Some(reply) = self.replies.remove(&answer.id) else { continue };
            let result = match answer.kind {
                Some(answer::Kind::Failed(failed)) => Err(status(failed)),
                Some(kind) => Ok(kind),
                None => Err(Status::internal("an answer without content")),
            };
            let _ = reply.send(result);
        }
    }

    fn fail(self, status: &Status) {
        for reply in self.replies.into_values() {
            let _ = reply.send(Err(status.clone()));
        }
    }
}

fn size(kind: &call::Kind) -> usize {
    match kind {
        call::Kind::Write(write) => write.encoded_len() + write.operations.len() * OPERATION_BYTES,
        call::Kind::Get(get) => get.encoded_len(),
    }
}

/// The status that a call of its own would have ended with.
fn status(failed: proto::Failed) -> Status {
    let code = Code::from(failed.code);
    match failed.detail {
        None => Status::new(code, failed.message),
        Some(detail) => {
            let mut metadata = MetadataMap::new();
            let detail = MetadataValue::from_bytes(&detail.encode_to_vec());
            metadata.insert_bin(proto::ERROR_DETAIL_KEY, detail);
            Status::with_details_and_metadata(code, failed.message, Bytes::new(), metadata)
        }
    }
}
