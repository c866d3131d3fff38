//! The side that connects and calls.
//!
//! What holds here: a connection is made when it is first needed, and again after it ended; a call
//! whose connection ends fails, since its request may have been received.

mod connection;

use super::frame::{Frame, Kind};
use super::framed::Framed;
use super::message::{Message, Method, Packed};
use super::{PREFACE, methods};
use crate::core::proto::{self, MAX_MESSAGE_BYTES};
use crate::core::{hooks, runtime};
use cairn_tls::Tls;
use connection::{Appending, Ask, Connection};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to one member. Clones share it.
#[derive(Clone)]
pub(crate) struct Client(Arc<Target>);

struct Target {
    tls: Option<Tls>,
    /// Whose slot must answer; any member's if none.
    slot: Option<u16>,
    address: String,
    /// The way to the connection, if there is one.
    connection: Mutex<Option<mpsc::UnboundedSender<Ask>>>,
}

/// The caller's end.
pub(crate) struct AppendStream {
    /// `None`: there are no more.
    pub(crate) requests: Option<mpsc::Sender<Packed>>,
    pub(crate) answers: mpsc::UnboundedReceiver<Result<proto::AppendResponse, Status>>,
}

impl Client {
    /// # Errors
    /// If this is not an address.
    pub(crate) fn new(
        tls: Option<&Tls>,
        slot: Option<u16>,
        address: &str,
    ) -> Result<Client, String> {
        let port = address.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        match port {
            Some((host, Ok(_))) if !host.is_empty() => {}
            _ => return Err(format!("`{address}` is not an address: it must be HOST:PORT")),
        }
        let (tls, address) = (tls.cloned(), address.to_owned());
        Ok(Client(Arc::new(Target { tls, slot, address, connection: Mutex::default() })))
    }

    /// Calls a method. May be cancelled; the request may be served nevertheless.
    ///
    /// # Errors
    /// The member's refusal; `Unavailable` if the connection cannot be made, or ends.
    pub(crate) async fn call<Q: Message, A: Message>(
        &self,
        method: Method<Q, A>,
        request: Q,
    ) -> Result<A, Status> {
        let (reply, answer) = oneshot::channel();
        self.ask(Ask::Call { method: method.number(), request: Packed::of(request), reply });
        let answer = answer.await.map_err(|_| connection_ended())??;
        answer.read().map_err(Status::from)
    }

    /// Opens an append stream of so many requests under way. It ends when its requests do, or when
    /// its answers are dropped.
    ///
    /// # Errors
    /// `Unavailable` if the connection cannot be made.
    pub(crate) async fn append(&self, window: usize) -> Result<AppendStream, Status> {
        let (sender, requests) = mpsc::channel(window);
        let (answers, receiver) = mpsc::unbounded_channel();
        let stream = Appending::new(requests, answers);
        let (opened, connected) = oneshot::channel();
        self.ask(Ask::Append { stream, opened });
        connected.await.map_err(|_| connection_ended())??;
        Ok(AppendStream { requests: Some(sender), answers: receiver })
    }

    fn ask(&self, mut ask: Ask) {
        let mut connection = self.0.connection.lock();
        if let Some(open) = &*connection {
            match open.send(ask) {
                Ok(()) => return,
                Err(closed) => ask = closed.0,
            }
        }
        let (sender, asks) = mpsc::unbounded_channel();
        // It cannot be closed: its receiver is here.
        sender.send(ask).ok();
        *connection = Some(sender);
        runtime::spawn(run(Arc::clone(&self.0), asks));
    }
}

/// Connects, and serves the callers until they or the connection end.
async fn run(target: Arc<Target>, mut asks: mpsc::UnboundedReceiver<Ask>) {
    let Target { tls, slot, address, .. } = &*target;
    let connecting = hooks::connect(tls.as_ref(), *slot, address);
    let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "no connection within a second"));
    let connected = runtime::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(late);
    let reason = match connected {
        Ok(stream) => {
            // The callers keep the connection, not the connection itself.
            drop(target);
            let mut framed = Framed::new(stream, MAX_MESSAGE_BYTES, None);
            framed.send_bytes(&PREFACE);
            let mut connection = Connection::new(framed);
            let end = poll_fn(|context| connection.poll(&mut asks, context)).await;
            let reason = status_of(&end);
            connection.fail(&reason);
            reason
        }
        Err(error) => status_of(&error),
    };
    asks.close();
    while let Ok(ask) = asks.try_recv() {
        ask.fail(&reason);
    }
}

fn connection_ended() -> Status {
    Status::unavailable("the connection ended")
}

/// `Unavailable`, with the error as its source.
fn status_of(error: &io::Error) -> Status {
    let copy = io::Error::new(error.kind(), error.to_string());
    let mut status = Status::new(Code::Unavailable, error.to_string());
    status.set_source(Arc::new(copy));
    status
}

/// Sends one request of the method with this name, whoever the other side is, and returns its refusal.
/// For tests that forge messages.
///
/// # Errors
/// The refusal, or why there is no answer.
pub async fn forge<S>(stream: S, method: &str, message: &impl prost::Message) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let known = methods::NAMES.iter().find(|(_, name)| *name == method);
    let (code, _) = *known.ok_or("no such method")?;
    let mut framed = Framed::new(stream, MAX_MESSAGE_BYTES, None);
    framed.send_bytes(&PREFACE);
    let (message, values) = (message.encode_to_vec().into(), Vec::new());
    framed.send(Frame { kind: Kind::Call, code, call: 1, message, values });
    let answered = poll_fn(|context| match framed.poll_send(context) {
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        _ => framed.poll_next(context),
    });
    match answered.await {
        Ok(Some(Frame { kind: Kind::Answer, .. })) => Ok(()),
        Ok(Some(Frame { message, .. })) => Err(String::from_utf8_lossy(&message).into_owned()),
        Ok(None) => Err("the connection was closed".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::connection::SILENT;
    use super::*;
    use crate::core::proto::HelloRequest;
    use crate::transport::wire::framed;
    use crate::transport::wire::server::{self, Answers, Requests, Served};
    use futures::StreamExt;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    /// Answers every hundredth call, and the others never.
    #[derive(Clone, Default)]
    struct Hangs(Arc<AtomicUsize>);

    impl server::Service for Hangs {
        fn call(&self, _: u8, _: Packed) -> Result<Served, Status> {
            Ok(match (self.0.fetch_add(1, Ordering::SeqCst) + 1) % 100 {
                0 => Box::pin(async { Ok(Packed::of(proto::HelloResponse::default())) }),
                _ => Box::pin(std::future::pending()),
            })
        }

        fn append(&self, requests: Requests) -> Answers {
            requests.filter_map(|_| std::future::ready(None)).boxed()
        }
    }

    impl Hangs {
        /// Returns once it was called so often.
        async fn called(&self, times: usize) {
            while self.0.load(Ordering::SeqCst) < times {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The story: a follower's disk hung, and so did the heartbeats to it. They took all places of the
    /// connection, and the question whether the follower is there was not read any more.
    #[tokio::test]
    async fn calls_that_nobody_waits_for_take_no_place() {
        let (client, listener) = client().await;
        let service = Hangs::default();
        let serving = serve(listener, service.clone());
        let hello = || client.call(methods::HELLO, HelloRequest::default());
        for times in 1..100 {
            // Nobody waits for it once it is there.
            tokio::select! {
                biased;
                answer = hello() => panic!("it hangs: {answer:?}"),
                () = service.called(times) => {}
            }
        }
        // The limit only turns a hang into a failure.
        let answer = tokio::time::timeout(Duration::from_secs(60), hello()).await;
        answer.expect("the hundredth is served").unwrap();
        serving.abort();
    }

    /// Serves the first connection.
    fn serve(listener: TcpListener, service: Hangs) -> JoinHandle<io::Result<()>> {
        tokio::spawn(async move {
            let stream = listener.accept().await.unwrap().0;
            server::serve(stream, service, server::Room::default()).await
        })
    }

    /// A client of one that listens, and its listener.
    async fn client() -> (Client, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (Client::new(None, None, &address).unwrap(), listener)
    }

    /// The story: calls that hang took all places, and what would have ended them was not received.
    #[tokio::test]
    async fn a_call_beyond_the_places_is_refused_and_abandoned_ones_give_theirs_back() {
        let (client, listener) = client().await;
        let service = Hangs::default();
        let serving = serve(listener, service.clone());
        let hello = || client.call(methods::HELLO, HelloRequest::default());
        let mut hanging = futures::future::join_all((0..64).map(|_| hello()));
        tokio::select! {
            biased;
            answers = &mut hanging => panic!("they hang: {answers:?}"),
            () = service.called(64) => {}
        }
        assert_eq!(hello().await.unwrap_err().code(), Code::ResourceExhausted);
        drop(hanging);
        let place = async {
            loop {
                tokio::select! {
                    biased;
                    refused = hello() => {
                        assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
                    }
                    () = service.called(65) => return,
                }
            }
        };
        // The limit only turns a hang into a failure.
        tokio::time::timeout(Duration::from_secs(60), place).await.expect("there is a place");
        serving.abort();
    }

    /// The story: the network dropped everything for twelve seconds. TCP sent again more and more rarely, and
    /// what a follower needed came seconds after the network was whole again.
    #[tokio::test]
    async fn a_connection_on_which_nothing_is_heard_ends() {
        let (client, _listener) = client().await;
        let hello = client.call(methods::HELLO, HelloRequest::default());
        // The limit only turns a hang into a failure.
        let ended = tokio::time::timeout(Duration::from_secs(60), hello).await;
        let refusal = ended.expect("it ends").unwrap_err();
        assert_eq!(refusal.message(), SILENT);
    }

    /// Takes no request of an append stream.
    struct Stalls;

    impl server::Service for Stalls {
        fn call(&self, method: u8, _: Packed) -> Result<Served, Status> {
            Err(Status::unimplemented(method.to_string()))
        }

        fn append(&self, requests: Requests) -> Answers {
            futures::stream::pending().chain(requests.filter_map(|_| async { None })).boxed()
        }
    }

    /// The story: a server that waited for its disk received nothing, and so answered no ping.
    #[tokio::test]
    async fn a_connection_to_one_that_receives_nothing_for_now_stays() {
        let (client, listener) = client().await;
        let serving = tokio::spawn(async move {
            let stream = listener.accept().await.unwrap().0;
            server::serve(stream, Stalls, server::Room::default()).await
        });
        let mut stream = client.append(32).await.unwrap();
        for _ in 0..32 {
            let request = Packed::of(proto::AppendRequest::default());
            stream.requests.as_ref().unwrap().send(request).await.unwrap();
        }
        let silence = framed::ALIVE_INTERVAL * 5;
        let answer = tokio::time::timeout(silence, stream.answers.recv()).await;
        assert!(answer.is_err(), "it waits: {answer:?}");
        serving.abort();
    }
}
