//! The connections of the members: which call goes to which method of the service.

use super::PeerService;
use crate::transport::Throttle;
use crate::transport::wire::server::{self, Answers, Requests, Served, served};
use crate::transport::wire::{PREFACE, Packed, methods};
use cairn_tls::Remote;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use std::pin::pin;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;

/// The service on one connection.
struct Connected {
    service: PeerService,
    remote: Remote,
}

impl PeerService {
    /// Whoever connects sends so many bytes at once, before it waits for anything.
    pub const FIRST_BYTES: usize = PREFACE.len();

    /// Answers the members that connect. Dropping it ends their connections, and what is being served.
    pub async fn serve<S>(self, connections: impl Stream<Item = (S, Remote)>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut connections = pin!(connections);
        let (mut serving, protocol) = (FuturesUnordered::new(), Throttle::default());
        let room = server::Room::default();
        loop {
            let next = match serving.is_empty() {
                true => Either::Left(connections.next().await),
                false => match select(connections.next(), serving.next()).await {
                    Either::Left((connection, _)) => Either::Left(connection),
                    Either::Right((ended, _)) => Either::Right(ended),
                },
            };
            match next {
                Either::Left(Some((stream, remote))) => {
                    let connected = Connected { service: self.clone(), remote: remote.clone() };
                    let served = server::serve(stream, connected, room.clone());
                    let serve = async move { (served.await, remote) };
                    serving.push(Box::pin(serve));
                }
                Either::Left(None) => return,
                Either::Right(Some((Err(error), remote))) => {
                    let from = remote.address.map(|address| address.to_string());
                    if error.kind() == std::io::ErrorKind::InvalidData && protocol.is_due() {
                        tracing::warn!(from, %error, "a connection to the peer address is closed");
                    } else {
                        tracing::debug!(from, %error, "a connection to the peer address ended");
                    }
                }
                Either::Right(_) => {}
            }
        }
    }

    /// How many requests of each method this member was asked.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counted = methods::NAMES.iter().zip(&*self.requests);
        counted.map(|((_, name), count)| (*name, count.load(Ordering::Relaxed)))
    }

    fn count(&self, method: u8) {
        let place = methods::NAMES.iter().position(|(number, _)| *number == method);
        if let Some(count) = place.and_then(|place| self.requests.get(place)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

macro_rules! calls {
    ($connected:ident, $method:ident, $request:ident: $($name:ident => $serve:ident,)+) => {
        $(if $method == methods::$name.number() {
            let (service, remote) = ($connected.service.clone(), $connected.remote.clone());
            let serve = |request| async move { service.$serve(remote, request).await };
            return Ok(served(methods::$name, $request, serve));
        })+
    };
}

impl server::Service for Connected {
    fn call(&self, method: u8, request: Packed) -> Result<Served, Status> {
        self.service.count(method);
        calls! {
            self, method, request:
            HELLO => hello,
            APPEND_ONE => append_one,
            VOTE => vote,
            PRE_VOTE => pre_vote,
            SNAPSHOT_OFFSET => snapshot_offset,
            SNAPSHOT_CHUNK => snapshot_chunk,
            SNAPSHOT_FINISH => snapshot_finish,
            TRANSFER_LEADER => transfer_leader,
            RECOVER => recover,
            JOIN => join,
            FETCH_VALUE => fetch_value,
            SAFE_TO_STOP => safe_to_stop,
            READ_INDEX => read_index,
        }
        Err(Status::unimplemented(format!("this member knows no method {method}")))
    }

    fn append(&self, requests: Requests) -> Answers {
        self.service.count(methods::APPEND.number());
        self.service.append_stream(self.remote.clone(), requests)
    }
}
