//! Many requests over one stream of a connection.
//!
//! A call of its own costs a small request more processor time, on both sides, than its work does.
//! So requests of the same time are batched and sent as one message. Each is still answered, timed
//! out and retried separately. One task drives the stream. While it waits to send it also receives
//! answers, so that the two sides cannot wait for each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::caller::Caller;
use crate::proto::{self, answer, call};

/// Requests in one message.
const MAX_CALLS: usize = 128;
/// A message with this many bytes is sent.
const MAX_BYTES: usize = 1 << 20;
/// Memory of an operation, or of a key of several, beside its bytes. A server refuses a message with too
/// many of them.
const OPERATION_BYTES: usize = 64;
/// Messages on their way to the transport.
const WINDOW: usize = 4;

/// The generated stub: one call for one request.
pub(crate) type UnaryStub = proto::kv_client::KvClient<Channel>;

/// The way back to a caller, and the place of its request until it is answered, or was not sent.
struct Reply {
    caller: oneshot::Sender<Result<answer::Kind, Status>>,
    _place: OwnedSemaphorePermit,
}

impl Reply {
    fn send(self, result: Result<answer::Kind, Status>) {
        // The caller may be gone.
        let _ = self.caller.send(result);
    }
}

/// A request that waits to be sent.
struct QueuedCall {
    kind: call::Kind,
    /// The generation that it names.
    named: Option<u32>,
    timeout: Duration,
    reply: Reply,
}

/// The callers' handle. The first request opens the stream, and dropping the last handle ends it.
#[derive(Clone)]
pub(crate) struct MultiplexedStream(Arc<Driven>);

struct Driven {
    calls: mpsc::UnboundedSender<QueuedCall>,
    places: Arc<Semaphore>,
    driver: JoinHandle<()>,
}

impl Drop for Driven {
    /// Also while the server does not answer or read: the task has the connection and what is
    /// queued.
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl MultiplexedStream {
    /// A multiplexed stream over the connection of `stub`. `caller` says who opens it.
    pub(crate) fn new(stub: UnaryStub, caller: Caller) -> MultiplexedStream {
        let (calls, queue) = mpsc::unbounded_channel();
        let driver = tokio::spawn(drive(stub, caller, queue));
        // A caller that stops waiting leaves its request in its place.
        let places = Arc::new(Semaphore::new(proto::CALLS_OF_A_STREAM));
        MultiplexedStream(Arc::new(Driven { calls, places, driver }))
    }

    /// Sends a request and waits for its answer. May be cancelled; the request may then still take
    /// effect.
    pub(crate) async fn call(
        &self,
        kind: call::Kind,
        named: Option<u32>,
        timeout: Duration,
    ) -> Result<answer::Kind, Status> {
        let asked = Instant::now();
        // Nobody closes it.
        let place = self.0.places.clone().acquire_owned().await.map_err(|_| not_sent())?;
        let timeout = timeout.saturating_sub(asked.elapsed());
        let (caller, answer) = oneshot::channel();
        let reply = Reply { caller, _place: place };
        let queued = QueuedCall { kind, named, timeout, reply };
        self.0.calls.send(queued).map_err(|_| not_sent())?;
        answer.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Whether the stream has broken: what is asked now is not sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.calls.is_closed()
    }
}

fn lost() -> Status {
    Status::unavailable("the connection was lost before the answer came")
}

/// The status of a request that waited to be sent when its connection broke: the I/O error says that
/// it had no effect.
fn not_sent() -> Status {
    let why = "the connection was lost before the request was sent";
    let mut status = Status::unavailable(why);
    status.set_source(Arc::new(std::io::Error::from(std::io::ErrorKind::NotConnected)));
    status
}

/// Runs the stream until it breaks. What waits to be sent then is answered so.
async fn drive(stub: UnaryStub, caller: Caller, mut queue: mpsc::UnboundedReceiver<QueuedCall>) {
    let mut queued = Vec::with_capacity(MAX_CALLS);
    exchange(stub, caller, &mut queue, &mut queued).await;
    queue.close();
    for call in queued.into_iter().chain(std::iter::from_fn(|| queue.try_recv().ok())) {
        call.reply.send(Err(not_sent()));
    }
}

/// Sends and receives until the stream breaks. `queued`: what is not sent yet.
async fn exchange(
    mut stub: UnaryStub,
    caller: Caller,
    queue: &mut mpsc::UnboundedReceiver<QueuedCall>,
    queued: &mut Vec<QueuedCall>,
) {
    if queue.recv_many(queued, MAX_CALLS).await == 0 {
        return;
    }
    let (outlet, mut messages) = mpsc::channel(WINDOW);
    let stream = futures::stream::poll_fn(move |context| messages.poll_recv(context));
    let mut request = Request::new(stream);
    caller.add_to(&mut request, named(queued));
    let mut answers = match stub.multiplex(request).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => {
            for call in queued.drain(..) {
                call.reply.send(Err(status.clone()));
            }
            return;
        }
    };
    let mut pending = PendingCalls::default();
    loop {
        tokio::select! {
            biased;
            answer = answers.next() => match answer {
                Some(Ok(message)) => pending.answered(message),
                Some(Err(status)) => return pending.fail(&status),
                None => return pending.fail(&lost()),
            },
            permit = outlet.reserve(), if !queued.is_empty() => match permit {
                Ok(permit) => permit.send(pending.message(queued)),
                Err(_) => return pending.fail(&lost()),
            },
            count = queue.recv_many(queued, MAX_CALLS), if queued.is_empty() => if count == 0 {
                return;
            },
        }
    }
}

/// Requests that were sent and are not answered yet.
#[derive(Default)]
struct PendingCalls {
    replies: BTreeMap<u64, Reply>,
    next_id: u64,
}

impl PendingCalls {
    /// Moves as many of the queued requests into a message as it can carry. All of them name one
    /// generation.
    fn message(&mut self, queued: &mut Vec<QueuedCall>) -> proto::MultiplexRequest {
        let generation = named(queued);
        let mut bytes = 0;
        let fits = queued.iter().take_while(|call| {
            let fits = bytes < MAX_BYTES && call.named == generation;
            bytes += size(&call.kind);
            fits
        });
        let count = fits.count().max(1).min(queued.len());
        let calls =
            queued.drain(..count).filter(|call| !call.reply.caller.is_closed()).map(|call| {
                self.next_id += 1;
                self.replies.insert(self.next_id, call.reply);
                let timeout_ms = u64::try_from(call.timeout.as_millis()).unwrap_or(u64::MAX).max(1);
                proto::Call { id: self.next_id, timeout_ms, kind: Some(call.kind) }
            });
        proto::MultiplexRequest { calls: calls.collect(), generation }
    }

    fn answered(&mut self, message: proto::MultiplexResponse) {
        for answer in message.answers {
            let Some(reply) = self.replies.remove(&answer.id) else { continue };
            let result = match answer.kind {
                Some(answer::Kind::Failed(failed)) => Err(status(failed)),
                Some(kind) => Ok(kind),
                None => Err(Status::internal("an answer without content")),
            };
            reply.send(result);
        }
    }

    /// Fails what was sent: the I/O error below the status may be one of a connection that was not made.
    fn fail(self, status: &Status) {
        let (code, details) = (status.code(), Bytes::copy_from_slice(status.details()));
        let metadata = status.metadata().clone();
        let status = Status::with_details_and_metadata(code, status.message(), details, metadata);
        for reply in self.replies.into_values() {
            reply.send(Err(status.clone()));
        }
    }
}

/// The generation that the first of them names.
fn named(queued: &[QueuedCall]) -> Option<u32> {
    queued.first().and_then(|call| call.named)
}

fn size(kind: &call::Kind) -> usize {
    match kind {
        call::Kind::Write(write) => write.encoded_len() + write.operations.len() * OPERATION_BYTES,
        call::Kind::Get(get) => get.encoded_len(),
        call::Kind::GetMany(get) => get.encoded_len() + get.keys.len() * OPERATION_BYTES,
    }
}

/// The status that a separate call would have ended with.
fn status(failed: proto::Failed) -> Status {
    let code = Code::from(failed.code);
    match failed.detail {
        None => Status::new(code, failed.message),
        Some(detail) => detail.into_status(code, failed.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use futures::FutureExt;

    fn encoded(kinds: Vec<answer::Kind>) -> Vec<u8> {
        let answers = (1..).zip(kinds).map(|(id, kind)| proto::Answer { id, kind: Some(kind) });
        proto::MultiplexResponse { answers: answers.collect() }.encode_to_vec()
    }

    /// The story: a node was started again while its client was idle. The next write waited for a
    /// stream that had broken, and was told that it may have been applied.
    #[tokio::test]
    async fn what_a_broken_stream_did_not_send_had_no_effect() {
        let call = || call::Kind::Get(proto::GetRequest::default());
        let limit = std::time::Duration::from_secs(60);
        let port = cairn_launch::HeldPort::any().unwrap();
        let endpoint = format!("http://{}", port.address());
        let channel = Channel::from_shared(endpoint).unwrap().connect_lazy();
        let stream = MultiplexedStream::new(UnaryStub::new(channel), Caller::new(None));
        let [first, second] = [(); 2].map(|()| stream.call(call(), None, limit));
        let (first, second) = tokio::join!(first, second);
        for status in [first.unwrap_err(), second.unwrap_err()] {
            assert!(matches!(Failure::of(&status), Failure::NotSent(_)), "{status}");
        }
        while !stream.has_ended() {
            tokio::task::yield_now().await;
        }
        let status = stream.call(call(), None, limit).await.unwrap_err();
        assert!(matches!(Failure::of(&status), Failure::NotSent(_)), "{status}");
    }

    /// The story: an application gave each put 200 ms. While nothing committed, what it had given up
    /// filled the server's places, and then this process's memory.
    #[tokio::test]
    async fn requests_that_nobody_waits_for_any_more_are_as_many_as_a_server_takes() {
        let call = || call::Kind::Get(proto::GetRequest::default());
        let limit = Duration::from_secs(60);
        // It takes the connection, and answers nothing.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", port.local_addr().unwrap());
        let channel = Channel::from_shared(endpoint).unwrap().connect_lazy();
        let stream = MultiplexedStream::new(UnaryStub::new(channel), Caller::new(None));
        for _ in 0..2 * proto::CALLS_OF_A_STREAM {
            assert!(stream.call(call(), None, limit).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        assert_eq!(stream.0.places.available_permits(), 0);
        assert!(!stream.has_ended());
    }

    /// Calls 1 to 3 are pending.
    #[test]
    fn any_bytes_answer_each_pending_call_once_or_not_at_all() {
        let result = proto::OperationResult {
            condition_held: true,
            existed: true,
            version: 3,
            ..Default::default()
        };
        let write =
            proto::WriteResponse { term: 2, index: 4, applied: true, results: vec![result] };
        let get = proto::GetResponse { found: true, value: "v".into(), version: 3 };
        let at = Some(proto::Position { term: 2, index: 4 });
        let many = proto::GetManyResponse { items: vec![get.clone()], at };
        let detail = proto::ErrorDetail { reason: 9, retry_after_ms: 30, ..Default::default() };
        let failed = proto::Failed { code: 8, message: "full".into(), detail: Some(detail) };
        cairn_fuzz::target!(
            "results" => encoded(vec![answer::Kind::Write(write), answer::Kind::Get(get)]),
            "failed" => encoded(vec![answer::Kind::Failed(failed)]),
            "many" => encoded(vec![answer::Kind::GetMany(many)]),
        )
        .for_each(|bytes| {
            let most = 256 * bytes.len() + (16 << 10);
            let decode = || proto::MultiplexResponse::decode(bytes);
            let Ok(message) = cairn_fuzz::within(most, decode) else { return };
            let mut pending = PendingCalls::default();
            let places = Arc::new(Semaphore::new(3));
            let calls = (1..=3).map(|id| {
                let (caller, answer) = oneshot::channel();
                let place = places.clone().try_acquire_owned().unwrap();
                pending.replies.insert(id, Reply { caller, _place: place });
                (id, answer)
            });
            let calls: Vec<_> = calls.collect();
            let first = |id| message.answers.iter().find(|answer| answer.id == id).cloned();
            let told = calls.iter().map(|(id, _)| first(*id)).collect::<Vec<_>>();
            cairn_fuzz::within(most, || pending.answered(message));
            for ((id, mut answer), told) in calls.into_iter().zip(told) {
                assert_eq!(pending.replies.contains_key(&id), told.is_none());
                match (answer.try_recv(), told.map(|told| told.kind)) {
                    (Err(_), None) | (Ok(Err(_)), Some(None)) => {}
                    (Ok(Err(status)), Some(Some(answer::Kind::Failed(failed)))) => {
                        assert_eq!(status.code(), Code::from(failed.code));
                        assert_eq!(status.message(), failed.message);
                        let kept = proto::ErrorDetail::of(&status);
                        assert_eq!(kept, failed.detail);
                        Failure::of(&status);
                    }
                    (Ok(Ok(kind)), told) => assert_eq!(Some(Some(kind)), told),
                    (answer, told) => panic!("{answer:?} for {told:?}"),
                }
            }
        });
    }
}
