//! TLS handshakes of accepted sockets.
//!
//! What holds here:
//! - They run on a thread of their own, so that strangers cost the thread that replicates no more
//!   than an accept.
//! - At most so many of a port run at once, each within a time limit; one more replaces the oldest.
//!   None of them takes a slot of the port's connections, so a stranger never does.
//! - One line is logged for each cause of a refusal in [`LOG_INTERVAL`].

use cairn_tls::{Cause, Detached, Port, Refusal, Remote, Stream, Tls};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{debug, warn};

/// The time between two log lines about the same port.
pub(super) const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Most handshakes of one port at once.
const MOST: usize = 64;
/// This part of a port's connections may be handshakes.
const PART: usize = 8;

/// The certificates of this member, and the thread on which handshakes run; nothing without TLS.
pub(in crate::compose) struct Handshaker(Option<(Tls, Runtime)>);

impl Handshaker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::compose) fn start(tls: Option<Tls>) -> io::Result<Handshaker> {
        let Some(tls) = tls else { return Ok(Handshaker(None)) };
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).max_blocking_threads(1);
        let runtime = builder.thread_name("cairn-tls").enable_all().build()?;
        runtime.spawn(tls.clone().watch());
        Ok(Handshaker(Some((tls, runtime))))
    }

    /// The handshakes of a port with `most` connections, and how many connections remain for those
    /// that are done.
    pub(super) fn of(&self, port: Port, most: usize) -> (Option<Handshakes>, usize) {
        let Some((tls, runtime)) = &self.0 else { return (None, most) };
        let at_once = (most / PART).clamp(1, MOST);
        let handshakes = Handshakes {
            tls: tls.clone(),
            port,
            thread: runtime.handle().clone(),
            at_once,
            running: VecDeque::new(),
            done: mpsc::channel(at_once),
        };
        (Some(handshakes), most.saturating_sub(at_once).max(1))
    }
}

impl Drop for Handshaker {
    fn drop(&mut self) {
        if let Some((_, runtime)) = self.0.take() {
            // Waiting for the thread would block the main one.
            runtime.shutdown_background();
        }
    }
}

/// Who is served at a port, and the configuration key of its address.
pub(super) type Served = (&'static str, &'static str);

type Done = Result<(Detached, Remote), (Refusal, Option<SocketAddr>)>;

/// The handshakes of one port.
pub(super) struct Handshakes {
    tls: Tls,
    port: Port,
    thread: Handle,
    at_once: usize,
    /// The oldest first.
    running: VecDeque<AbortHandle>,
    done: (mpsc::Sender<Done>, mpsc::Receiver<Done>),
}

impl Handshakes {
    /// Begins one. `Some`: it had to replace another one.
    pub(super) fn begin(&mut self, socket: TcpStream) -> io::Result<Option<Refusal>> {
        let address = socket.peer_addr().ok();
        let socket = socket.into_std()?;
        self.running.retain(|handshake| !handshake.is_finished());
        let oldest = match self.running.len() >= self.at_once {
            true => self.running.pop_front(),
            false => None,
        };
        if let Some(oldest) = &oldest {
            oldest.abort();
        }
        let (tls, port, done) = (self.tls.clone(), self.port, self.done.0.clone());
        let handshake = async move {
            let authenticated = async {
                let socket = TcpStream::from_std(socket)?;
                let (stream, certificate) = tls.accept(socket, port).await?;
                Ok::<_, Refusal>((stream.detach()?, Remote { certificate, address }))
            };
            let _ = done.send(authenticated.await.map_err(|refusal| (refusal, address))).await;
        };
        self.running.push_back(self.thread.spawn(handshake).abort_handle());
        let reason = "too many TLS handshakes at once: the oldest made way for a newer one";
        Ok(oldest.map(|_| Refusal { cause: Cause::Crowd, reason: reason.into() }))
    }

    /// The next that is done. May be cancelled.
    pub(super) async fn next(&mut self) -> Result<(Stream, Remote), (Refusal, Option<SocketAddr>)> {
        match self.done.1.recv().await {
            Some(Ok((detached, remote))) => match detached.attach() {
                Ok(stream) => Ok((stream, remote)),
                Err(error) => Err((error.into(), remote.address)),
            },
            Some(Err(refused)) => Err(refused),
            // This has a sender of its own.
            None => std::future::pending().await,
        }
    }
}

/// What was refused at a port, and when that was last logged.
#[derive(Default)]
pub(super) struct Refusals(BTreeMap<Cause, (Instant, u64)>);

impl Refusals {
    /// Logs a refusal, unless one of the same cause was logged just now.
    pub(super) fn note(
        &mut self,
        (purpose, key): Served,
        refusal: &Refusal,
        address: Option<SocketAddr>,
    ) {
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        if refusal.cause == Cause::Closed {
            // As probes do that only connect.
            return debug!(purpose, key, address, "a connection ended: {refusal}");
        }
        let now = Instant::now();
        let since = self.0.get(&refusal.cause).filter(|(last, _)| now - *last < LOG_INTERVAL);
        if let Some((last, more)) = since.copied() {
            self.0.insert(refusal.cause, (last, more + 1));
            return;
        }
        let more = self.0.insert(refusal.cause, (now, 0)).map_or(0, |(_, more)| more);
        warn!(purpose, key, address, more, "a connection was refused: {refusal}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_once_in_a_while_and_the_others_are_counted() {
        let mut refusals = Refusals::default();
        let refusal = |cause| Refusal { cause, reason: "no".into() };
        for _ in 0..3 {
            refusals.note(("tests", "none"), &refusal(Cause::UnknownCa), None);
        }
        refusals.note(("tests", "none"), &refusal(Cause::Expired), None);
        refusals.note(("tests", "none"), &refusal(Cause::Closed), None);
        let counted = |cause| refusals.0.get(&cause).map(|(_, more)| *more);
        assert_eq!(counted(Cause::UnknownCa), Some(2));
        assert_eq!((counted(Cause::Expired), counted(Cause::Closed)), (Some(0), None));
    }
}
