//! A stream that is authenticated, or plain.

use crate::name::CertificateName;
use crate::refusal::Refusal;
use real_tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use real_tokio::net::TcpStream;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio_rustls::TlsStream;

/// The other end of a connection, as far as the socket knows it. A server puts it into the
/// extensions of each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The verified certificate; none without TLS, and none on the HTTP port if none was shown.
    pub certificate: Option<CertificateName>,
    /// From where it connected.
    pub address: Option<SocketAddr>,
}

/// A connection: after a TLS handshake, or without TLS.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plain(TcpStream),
    /// After a handshake.
    Tls(Box<Secured>),
}

/// A connection after a handshake.
#[derive(Debug)]
pub struct Secured {
    stream: TlsStream<Socket>,
    own: CertificateName,
}

/// A connection between two runtimes.
#[derive(Debug)]
pub struct Detached {
    socket: std::net::TcpStream,
    secured: Option<Box<Secured>>,
}

impl Stream {
    pub(crate) fn secured(stream: impl Into<TlsStream<Socket>>, own: &CertificateName) -> Stream {
        Stream::Tls(Box::new(Secured { stream: stream.into(), own: own.clone() }))
    }

    /// The socket; `None` only if it was lost between two runtimes.
    pub fn socket(&self) -> Option<&TcpStream> {
        match self {
            Stream::Plain(socket) => Some(socket),
            Stream::Tls(secured) => secured.stream.get_ref().0.0.as_ref(),
        }
    }

    /// Takes the connection out of this runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn detach(self) -> io::Result<Detached> {
        match self {
            Stream::Plain(socket) => Ok(Detached { socket: socket.into_std()?, secured: None }),
            Stream::Tls(mut secured) => {
                let socket = secured.stream.get_mut().0.0.take().ok_or_else(gone)?;
                Ok(Detached { socket: socket.into_std()?, secured: Some(secured) })
            }
        }
    }
}

impl Detached {
    /// Brings the connection into the runtime of the caller.
    ///
    /// # Errors
    /// The system's.
    pub fn attach(self) -> io::Result<Stream> {
        let socket = TcpStream::from_std(self.socket)?;
        Ok(match self.secured {
            None => Stream::Plain(socket),
            Some(mut secured) => {
                secured.stream.get_mut().0.0 = Some(socket);
                Stream::Tls(secured)
            }
        })
    }
}

/// A socket that can be moved to another runtime; empty meanwhile.
#[derive(Debug)]
pub(crate) struct Socket(pub(crate) Option<TcpStream>);

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket is in no runtime")
}

impl Socket {
    fn with<T>(
        &mut self,
        poll: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.0 {
            Some(socket) => poll(Pin::new(socket)),
            None => Poll::Ready(Err(gone())),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.with(|socket| socket.poll_read(context, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.with(|socket| socket.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|socket| socket.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|socket| socket.poll_shutdown(context))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|socket| socket.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

impl Secured {
    /// In TLS 1.3 the side that connected learns only from its first read that it was refused.
    fn explain<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => {
                io::Error::new(error.kind(), Refusal::of_io(&error, &self.own))
            }
            _ => error,
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Stream::Tls(secured) => {
                let read = Pin::new(&mut secured.stream).poll_read(context, buffer);
                secured.explain(read)
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Stream::Tls(secured) => Pin::new(&mut secured.stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_flush(context),
            Stream::Tls(secured) => Pin::new(&mut secured.stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Stream::Tls(secured) => Pin::new(&mut secured.stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            Stream::Tls(secured) => {
                Pin::new(&mut secured.stream).poll_write_vectored(context, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(socket) => socket.is_write_vectored(),
            Stream::Tls(secured) => secured.stream.is_write_vectored(),
        }
    }
}
