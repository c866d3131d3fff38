//! The side that connects.

use crate::accept::HANDSHAKE_TIMEOUT;
use crate::files::{H2, HTTP1, Tls};
use crate::names::Names;
use crate::refusal::{Cause, Refusal};
use crate::stream::{Socket, Stream};
use http::Uri;
use hyper_util::rt::TokioIo;
use real_tokio as tokio;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

/// Who must answer; in either case a member of the own cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The member of this slot.
    Slot(u16),
    /// Any member.
    AnyMember,
}

impl Tls {
    /// Authenticates who answers, and proves the name of this process to it. `host` is only told to
    /// the other side. May be cancelled: the connection is then closed.
    ///
    /// # Errors
    /// Why the connection is refused here. A refusal by the other side is an error of the first
    /// read.
    pub async fn connect(
        &self,
        socket: TcpStream,
        host: &str,
        expected: Expected,
    ) -> Result<Stream, Refusal> {
        self.connect_for(socket, (host, H2), expected).await
    }

    /// The same for a connection on which this protocol is spoken.
    async fn connect_for(
        &self,
        socket: TcpStream,
        (host, protocol): (&str, &[u8]),
        expected: Expected,
    ) -> Result<Stream, Refusal> {
        self.reload_if_due().await;
        let slot = match expected {
            Expected::Slot(slot) => Some(slot),
            Expected::AnyMember => None,
        };
        let own = self.name();
        let config = self.pair().client_config(own, slot, protocol);
        let config = config.map_err(|error| Refusal::new(Cause::Other, error.to_string()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let host = ServerName::try_from(host)
            .unwrap_or_else(|_| ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into()));
        let handshake = TlsConnector::from(config).connect(host, Socket(Some(socket)));
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => Ok(Stream::secured(stream, own)),
            Ok(Err(error)) => Err(Refusal::of_io(&error, own)),
            Err(_) => {
                Err(Refusal::new(Cause::Silence, "the TLS handshake was not answered in time"))
            }
        }
    }
}

/// Connects a member to whoever listens at `address`, authenticated if there are certificates. Names are
/// asked for as all of this process are.
///
/// # Errors
/// The system's, and the refusal.
pub async fn connect(tls: Option<&Tls>, expected: Expected, address: &str) -> io::Result<Stream> {
    let socket = Names::of_process().connect(address).await?;
    secured(socket, tls, expected, (address, H2)).await
}

/// Connects to the HTTP port of a member at `address`, where HTTP/1.1 alone is spoken; authenticated if there
/// are certificates. May be cancelled.
///
/// # Errors
/// The system's, and the refusal.
pub async fn connect_http(tls: Option<&Tls>, address: &str) -> io::Result<Stream> {
    let socket = Names::of_process().connect(address).await?;
    secured(socket, tls, Expected::AnyMember, (address, HTTP1)).await
}

async fn secured(
    socket: TcpStream,
    tls: Option<&Tls>,
    expected: Expected,
    (address, protocol): (&str, &[u8]),
) -> io::Result<Stream> {
    socket.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Stream::Plain(socket)) };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let connected = tls.connect_for(socket, (host, protocol), expected).await;
    connected.map_err(|refusal| io::Error::new(io::ErrorKind::ConnectionAborted, refusal))
}

/// Opens connections for an HTTP client, authenticated if there are certificates.
#[derive(Clone, Debug)]
pub struct Connector {
    tls: Option<Tls>,
    expected: Expected,
}

impl Connector {
    /// With these certificates, if any. `expected`: who must answer then. Names are asked for as all
    /// of this process are.
    pub fn new(tls: Option<Tls>, expected: Expected) -> Connector {
        Connector { tls, expected }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Connector { tls, expected } = self.clone();
        Box::pin(async move {
            let address = uri.authority().map(ToString::to_string).unwrap_or_default();
            let socket = Names::of_process().connect(&address).await?;
            secured(socket, tls.as_ref(), expected, (address.as_str(), H2)).await.map(TokioIo::new)
        })
    }
}
