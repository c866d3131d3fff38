//! A connection that was made: it sends what callers ask, and gives each answer to whom it belongs.
//!
//! What holds here: all callers are told when the connection ends; answers to a call that nobody waits
//! for are dropped, and the other side is told that nobody does; no more requests are taken from append
//! streams than are sent soon.

use crate::core::proto;
use crate::transport::wire::frame::{Frame, Kind};
use crate::transport::wire::framed::Framed;
use crate::transport::wire::message::Packed;
use crate::transport::wire::methods;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

/// While so many bytes are not sent, no more requests are taken from append streams.
const UNSENT_BYTES: usize = 4 << 20;
pub(super) const SILENT: &str = "nothing is heard of the other side";

/// What a caller wants.
pub(super) enum Ask {
    Call { method: u8, request: Packed, reply: oneshot::Sender<Result<Packed, Status>> },
    Append { stream: Appending, opened: oneshot::Sender<Result<(), Status>> },
}

/// The connection's end of an append stream.
pub(super) struct Appending {
    /// The first request was sent.
    begun: bool,
    /// All were sent.
    ended: bool,
    requests: mpsc::Receiver<Packed>,
    answers: mpsc::UnboundedSender<Result<proto::AppendResponse, Status>>,
}

impl Appending {
    pub(super) fn new(
        requests: mpsc::Receiver<Packed>,
        answers: mpsc::UnboundedSender<Result<proto::AppendResponse, Status>>,
    ) -> Appending {
        Appending { begun: false, ended: false, requests, answers }
    }
}

impl Ask {
    pub(super) fn fail(self, reason: &Status) {
        match self {
            Ask::Call { reply, .. } => drop(reply.send(Err(reason.clone()))),
            Ask::Append { opened, .. } => drop(opened.send(Err(reason.clone()))),
        }
    }
}

pub(super) struct Connection<S> {
    framed: Framed<S>,
    next_call: u32,
    calls: BTreeMap<u32, oneshot::Sender<Result<Packed, Status>>>,
    appends: BTreeMap<u32, Appending>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(framed: Framed<S>) -> Connection<S> {
        Connection { framed, next_call: 1, calls: BTreeMap::new(), appends: BTreeMap::new() }
    }

    pub(super) fn fail(self, reason: &Status) {
        self.calls.into_values().for_each(|reply| drop(reply.send(Err(reason.clone()))));
        let appends = self.appends.into_values();
        appends.for_each(|stream| drop(stream.answers.send(Err(reason.clone()))));
    }

    /// Ready with the reason when the connection has ended.
    pub(super) fn poll(
        &mut self,
        asks: &mut mpsc::UnboundedReceiver<Ask>,
        context: &mut Context<'_>,
    ) -> Poll<io::Error> {
        loop {
            self.framed.say_alive(context);
            while let Poll::Ready(ask) = asks.poll_recv(context) {
                match ask {
                    Some(ask) => self.begin(ask),
                    None if self.calls.is_empty() && self.appends.is_empty() => {
                        return Poll::Ready(io::Error::other("nobody uses the connection"));
                    }
                    None => break,
                }
            }
            self.poll_abandoned(context);
            let full = self.poll_requests(context);
            let sent = self.framed.poll_send(context);
            if let Poll::Ready(Err(error)) = sent {
                return Poll::Ready(error);
            }
            match self.framed.poll_next(context) {
                Poll::Ready(Ok(Some(frame))) => {
                    if let Err(error) = self.answered(frame) {
                        return Poll::Ready(error);
                    }
                }
                Poll::Ready(Ok(None)) => {
                    let reason = "the other side closed the connection";
                    return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionReset, reason));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                // Nothing is there to be read: also after this process was stopped for a while.
                Poll::Pending if self.framed.is_silent() => {
                    return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, SILENT));
                }
                // What was full has been sent meanwhile, so there may be requests.
                Poll::Pending if full && sent.is_ready() => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Tells the other side of calls that nobody waits for any more.
    fn poll_abandoned(&mut self, context: &mut Context<'_>) {
        let framed = &mut self.framed;
        self.calls.retain(|call, reply| {
            let waits = reply.poll_closed(context).is_pending();
            if !waits {
                let (kind, code, message) = (Kind::End, 0, Bytes::new());
                framed.send(Frame { kind, code, call: *call, message, values: Vec::new() });
            }
            waits
        });
    }

    fn begin(&mut self, ask: Ask) {
        let call = self.next_call;
        self.next_call = self.next_call.wrapping_add(1);
        match ask {
            // A caller that has gone away.
            Ask::Call { reply, .. } if reply.is_closed() => {}
            Ask::Call { method, request, reply } => {
                self.calls.insert(call, reply);
                self.send(Kind::Call, method, call, request);
            }
            Ask::Append { stream, opened } => {
                if opened.send(Ok(())).is_ok() {
                    self.appends.insert(call, stream);
                }
            }
        }
    }

    fn send(&mut self, kind: Kind, code: u8, call: u32, packed: Packed) {
        let Packed { message, values } = packed;
        self.framed.send(Frame { kind, code, call, message, values });
    }

    /// Takes requests from the append streams. Returns whether enough is to be sent, so that there may be
    /// more.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> bool {
        let framed = &mut self.framed;
        let mut full = false;
        self.appends.retain(|call, stream| {
            // The caller has gone away, or has no more requests and waits for the last answers.
            let mut ends = stream.answers.is_closed();
            while !ends && !stream.ended {
                if framed.unsent_bytes() >= UNSENT_BYTES {
                    full = true;
                    return true;
                }
                match stream.requests.poll_recv(context) {
                    Poll::Pending => return true,
                    Poll::Ready(None) => ends = true,
                    Poll::Ready(Some(Packed { message, values })) => {
                        let (kind, code) = match stream.begun {
                            false => (Kind::Call, methods::APPEND.number()),
                            true => (Kind::More, 0),
                        };
                        stream.begun = true;
                        framed.send(Frame { kind, code, call: *call, message, values });
                    }
                }
            }
            if stream.begun && !stream.ended {
                let (kind, code, message) = (Kind::End, 0, Bytes::new());
                framed.send(Frame { kind, code, call: *call, message, values: Vec::new() });
            }
            stream.ended = true;
            stream.begun && !stream.answers.is_closed()
        });
        full
    }

    fn answered(&mut self, frame: Frame) -> Result<(), io::Error> {
        let Frame { kind, code, call, message, values } = frame;
        let answer = match kind {
            Kind::Answer => Ok(Packed { message, values }),
            Kind::Refusal => {
                let text = String::from_utf8_lossy(&message).into_owned();
                Err(Status::new(Code::from_i32(code.into()), text))
            }
            Kind::End => Err(Status::unavailable("the other side ended the stream")),
            Kind::Alive => return Ok(()),
            Kind::Call | Kind::More => {
                let reason = "the other side calls on a connection that it accepted";
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
        };
        if let Some(reply) = self.calls.remove(&call) {
            // The caller may have gone away.
            reply.send(answer).ok();
        } else if let Some(stream) = self.appends.get(&call) {
            let ends = answer.is_err();
            let answer = answer.and_then(|answer| Ok(answer.read::<proto::AppendResponse>()?));
            stream.answers.send(answer).ok();
            if ends {
                self.appends.remove(&call);
            }
        }
        Ok(())
    }
}
