//! The side that accepts.
//!
//! What holds here: a handshake ends within [`HANDSHAKE_TIMEOUT`], and one that fails lets the other
//! side read why before the connection is closed.

use crate::files::Tls;
use crate::name::CertificateName;
use crate::refusal::{Cause, Refusal};
use crate::stream::{Socket, Stream};
use crate::verify::name_in;
use real_tokio as tokio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// The longest time for a handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// After a refusal, how long the other side may take to read why and to close, and how many bytes
/// it may still send.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: u64 = 64 << 10;
/// The first byte of every TLS handshake.
const HANDSHAKE_RECORD: u8 = 22;

/// To whom a port listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Members of this cluster.
    Peers,
    /// Members and clients of this cluster.
    Clients,
    /// The same, and those who show no certificate.
    Http,
}

impl Tls {
    /// Authenticates who connected, and proves the name of this process to it. May be cancelled: the
    /// connection is then closed.
    ///
    /// # Errors
    /// Why the connection is refused; it is closed.
    pub async fn accept(
        &self,
        socket: TcpStream,
        port: Port,
    ) -> Result<(Stream, Option<CertificateName>), Refusal> {
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(socket, port));
        handshake.await.unwrap_or_else(|_| {
            let reason =
                format!("the TLS handshake was not completed in {} s", HANDSHAKE_TIMEOUT.as_secs());
            Err(Refusal::new(Cause::Silence, reason))
        })
    }

    async fn handshake(
        &self,
        socket: TcpStream,
        port: Port,
    ) -> Result<(Stream, Option<CertificateName>), Refusal> {
        let own = self.name();
        let ended = |error| Refusal::of_io(&error, own);
        let mut first = [0];
        match socket.peek(&mut first).await.map_err(ended)? {
            0 => {
                return Err(Refusal::new(
                    Cause::Closed,
                    "the connection was closed before a TLS handshake",
                ));
            }
            _ if first != [HANDSHAKE_RECORD] => {
                answer_plainly(socket).await;
                return Err(Refusal::new(
                    Cause::PlainText,
                    "the other side speaks plain text, and this port speaks TLS",
                ));
            }
            _ => {}
        }
        let pair = self.pair();
        let config = match port {
            Port::Peers => pair.peers.clone(),
            Port::Clients => pair.clients.clone(),
            Port::Http => pair.http.clone(),
        };
        let accepting = TlsAcceptor::from(config).accept(Socket(Some(socket)));
        match accepting.into_fallible().await {
            Ok(stream) => {
                let shown = stream.get_ref().1.peer_certificates();
                let shown = shown.and_then(|chain| chain.first());
                let name = shown
                    .map(name_in)
                    .transpose()
                    .map_err(|error| Refusal::of_io(&std::io::Error::other(error), own))?;
                Ok((Stream::secured(stream, own), name))
            }
            Err((error, socket)) => {
                let refusal = Refusal::of_io(&error, own);
                if let Some(socket) = socket.0 {
                    linger(socket).await;
                }
                Err(refusal)
            }
        }
    }
}

/// Tells a client that speaks plain text, in its own protocol, what is wrong.
async fn answer_plainly(mut socket: TcpStream) {
    const SAID: &[u8] = b"this port speaks TLS";
    let mut first = [0; 3];
    let begins = tokio::time::timeout(LINGER, socket.read_exact(&mut first)).await;
    let answer = match (begins, &first) {
        (Ok(Ok(_)), b"PRI") => {
            let _ = tokio::time::timeout(LINGER, http2_request(&mut socket)).await;
            // HTTP/2: no settings, and the end of the connection, for lack of security.
            let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
            let length = u8::try_from(8 + SAID.len()).unwrap_or(8);
            frames.extend([0, 0, length, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc]);
            frames.extend(SAID);
            frames
        }
        _ => b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 36\r\n\r\n\
               this port speaks TLS: use https://\r\n"
            .to_vec(),
    };
    if socket.write_all(&answer).await.is_ok() {
        linger(socket).await;
    }
}

/// Reads up to the headers of the first request. A client whose connection ends before it has sent
/// a request is not told why: its request is only canceled.
async fn http2_request(socket: &mut TcpStream) -> std::io::Result<()> {
    const REST_OF_PREFACE: u64 = 21;
    const HEADERS: u8 = 1;
    let mut skipped = REST_OF_PREFACE;
    let mut budget = LINGER_BYTES;
    while skipped < budget {
        budget -= skipped;
        let mut rest = (&mut *socket).take(skipped);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
        let mut head = [0; 9];
        socket.read_exact(&mut head).await?;
        if head[3] == HEADERS {
            return Ok(());
        }
        skipped = u64::from(u32::from_be_bytes([0, head[0], head[1], head[2]]));
        budget = budget.saturating_sub(9);
    }
    Ok(())
}

/// Without this, bytes that the other side still sends would make the system drop the answer.
async fn linger(mut socket: TcpStream) {
    let rest = async {
        if socket.shutdown().await.is_ok() {
            let mut rest = socket.take(LINGER_BYTES);
            let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
        }
    };
    let _ = tokio::time::timeout(LINGER, rest).await;
}
