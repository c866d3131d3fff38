//! A connection that can be cut or flips bits: bytes pass until a budget is used up, then it breaks, once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Of what a value is made whose bits can be flipped.
pub const MARK: u8 = 0xa5;

/// Forwards connections to `target` from its own address.
#[derive(Clone)]
pub struct Proxy {
    pub address: SocketAddr,
    /// Bytes that have passed towards the target.
    pub passed: Arc<AtomicU64>,
    /// When `passed` reaches this, every present connection is cut. Then it is set so high that it
    /// is never reached again.
    cut_at: Arc<AtomicU64>,
    pub cuts: Arc<AtomicU64>,
    /// In how many pieces that hold a run of marks a bit is still to be flipped.
    pub flips: Arc<AtomicU64>,
}

impl Proxy {
    pub async fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy {
            address: listener.local_addr().unwrap(),
            passed: Arc::default(),
            cut_at: Arc::new(AtomicU64::new(u64::MAX)),
            cuts: Arc::default(),
            flips: Arc::default(),
        };
        let accepting = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let proxy = accepting.clone();
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(target).await {
                        proxy.pass(client, server).await;
                    }
                });
            }
        });
        proxy
    }

    /// Cuts once `bytes` more have passed.
    pub fn cut_after(&self, bytes: u64) {
        self.cut_at.store(self.passed.load(Ordering::SeqCst) + bytes, Ordering::SeqCst);
    }

    fn flip(&self, bytes: &mut [u8]) {
        let is_run = |run: &[u8]| run.iter().all(|byte| *byte == MARK);
        let Some(at) = bytes.windows(64).position(is_run) else { return };
        let one_less = |left: u64| left.checked_sub(1);
        if self.flips.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            bytes[at + 32] ^= 1;
        }
    }

    async fn pass(&self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let back =
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            let passed = self.passed.fetch_add(read as u64, Ordering::SeqCst) + read as u64;
            if passed >= self.cut_at.load(Ordering::SeqCst) {
                self.cut_at.store(u64::MAX, Ordering::SeqCst);
                self.cuts.fetch_add(1, Ordering::SeqCst);
                break;
            }
            self.flip(&mut buffer[..read]);
            if to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
        back.abort();
    }
}
