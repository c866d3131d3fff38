//! For tests: a server that speaks S3 over TCP and keeps objects as files, and a line to it that breaks.
//!
//! What holds here: it knows nothing of backups, so that those who save them and the program that does can both be
//! tested with it. Each server listens on a port of its own, and ends when it is dropped.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use hyper::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use real_tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use real_tokio::net::{TcpListener, TcpStream};
use real_tokio::runtime::{Builder, Runtime};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const KEY: &str = "operator";
const SECRET: &str = "a secret of the operator";

/// What a process that uses the bucket has in its environment.
pub fn variables(endpoint: &str) -> Vec<(String, String)> {
    let variables = [
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        // A name of another tool is left alone.
        ("AWS_PROFILE", "none"),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// A thread that serves until this is dropped.
pub struct Thread(Option<Runtime>);

impl Thread {
    /// Calls it with each connection.
    fn accept<S: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(TcpStream) -> S + Send + 'static,
    ) -> (Thread, SocketAddr) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                real_tokio::spawn(serve(stream));
            }
        });
        (Thread(Some(runtime)), address)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

/// A server that keeps objects as files.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    service: S3Service,
    _thread: Thread,
}

impl Server {
    /// Serves the folders in this one as buckets.
    ///
    /// # Panics
    /// If the folder is not there.
    pub fn start(root: &Path) -> Server {
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = builder.build();
        let of_thread = service.clone();
        let (thread, address) = Thread::accept(move |stream| serve(stream, of_thread.clone()));
        Server { address, service, _thread: thread }
    }

    /// The same buckets behind TLS.
    pub fn with_tls(&self, config: rustls::ServerConfig) -> (Thread, SocketAddr) {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let service = self.service.clone();
        Thread::accept(move |stream| {
            let (acceptor, service) = (acceptor.clone(), service.clone());
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, service).await;
                }
            }
        })
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, service: S3Service) {
    // Whoever speaks no HTTP, or goes away, is no concern of the server's.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// A server that takes connections and answers nothing.
pub fn silent() -> (Thread, SocketAddr) {
    Thread::accept(|mut stream| async move {
        let mut bytes = [0; 4096];
        while stream.read(&mut bytes).await.is_ok_and(|bytes| bytes > 0) {}
    })
}

/// A server that answers all requests so, and counts them.
pub fn answering(status: u16, body: &'static str) -> (Thread, SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let (thread, address) = Thread::accept(move |stream| {
        let counted = counted.clone();
        async move {
            let answer = service_fn(|_| {
                counted.fetch_add(1, Ordering::Relaxed);
                let answer = Response::builder().status(status).body(body.to_owned());
                ready(Ok::<_, Infallible>(answer.unwrap()))
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        }
    });
    (thread, address, asked)
}

/// When a connection is reset.
#[derive(Clone, Copy)]
pub enum Reset {
    /// After so many bytes of both directions.
    After(usize),
    /// The same, if none was reset so before.
    Once(usize),
    /// When the server answers for the first time: it has done what it was asked.
    AtAnswer,
    /// Not at all.
    Never,
}

/// A line to a server, whose connections are reset.
pub struct Line {
    /// Where it begins.
    pub address: SocketAddr,
    /// What was reset so far.
    pub resets: Arc<Resets>,
    _thread: Thread,
}

/// Connections that were reset.
#[derive(Default)]
pub struct Resets {
    /// In a request, or behind an answer.
    pub asking: AtomicUsize,
    /// In an answer.
    pub answering: AtomicUsize,
    /// One by [`Reset::Once`].
    once: AtomicBool,
}

impl Line {
    /// Asks for each connection when it is reset.
    pub fn to(server: SocketAddr, reset: impl FnMut() -> Reset + Send + 'static) -> Line {
        let (resets, reset) = (Arc::new(Resets::default()), Mutex::new(reset));
        let counted = resets.clone();
        let (thread, address) = Thread::accept(move |client| {
            let (reset, counted) = (reset.lock().unwrap()(), counted.clone());
            async move {
                let server = TcpStream::connect(server).await.unwrap();
                server.set_nodelay(true).unwrap();
                carry(client, server, reset, &counted).await;
            }
        });
        Line { address, resets, _thread: thread }
    }

    /// Each connection is reset after some bytes: enough for any one request here, and less than for all.
    pub fn that_breaks(server: SocketAddr, seed: u64) -> Line {
        let mut random = StdRng::seed_from_u64(seed);
        Line::to(server, move || Reset::After(random.random_range(40_000..80_000)))
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, reset: Reset, resets: &Resets) {
    let (mut up, mut down) = ([0; 1000], [0; 100]);
    let mut left = match reset {
        Reset::After(bytes) | Reset::Once(bytes) => bytes,
        Reset::AtAnswer | Reset::Never => usize::MAX,
    };
    let count = loop {
        let (bytes, answering) = real_tokio::select! {
            read = client.read(&mut up) => (read.unwrap_or(0), false),
            read = server.read(&mut down) => (read.unwrap_or(0), true),
        };
        if bytes == 0 {
            return;
        }
        if bytes >= left
            && matches!(reset, Reset::Once(_))
            && resets.once.swap(true, Ordering::Relaxed)
        {
            left = usize::MAX;
        }
        if bytes >= left || answering && matches!(reset, Reset::AtAnswer) {
            break if answering { &resets.answering } else { &resets.asking };
        }
        left -= bytes;
        let (to, bytes) =
            if answering { (&mut client, &down[..bytes]) } else { (&mut server, &up[..bytes]) };
        if to.write_all(bytes).await.is_err() {
            return;
        }
    };
    count.fetch_add(1, Ordering::Relaxed);
    for stream in [client, server] {
        stream.set_zero_linger().unwrap();
    }
}
