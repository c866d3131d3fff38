//! TLS handshakes of accepted sockets.
//!
//! What holds here:
//! - They run on a thread of their own, so that strangers cost the thread that replicates no more
//!   than an accept.
//! - At most so many of a port run at once, each within a time limit. None of them takes a slot of
//!   the port's connections, so a stranger never does.
//! - One more replaces the oldest from an address that never finished a handshake. Only where there
//!   is none, those from addresses that did replace one another. So strangers that begin thousands
//!   keep out neither members nor clients that were there before.
//! - One line is logged for each cause of a refusal in [`LOG_INTERVAL`].

use cairn_tls::{Cause, Detached, Port, Refusal, Remote, Stream, Tls};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
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
const MOST: usize = 1024;
/// This part of a port's connections may be handshakes.
const PART: usize = 8;

/// The most addresses that are remembered because they finished a handshake.
const MOST_KNOWN: usize = 4096;

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
            crowd: Crowd { most: at_once, running: VecDeque::new() },
            known: Known::default(),
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
    crowd: Crowd<AbortHandle>,
    known: Known,
    done: (mpsc::Sender<Done>, mpsc::Receiver<Done>),
}

impl Handshakes {
    /// Begins one. `Some`: one had to make way, another one or this.
    pub(super) fn begin(&mut self, socket: TcpStream) -> io::Result<Option<Refusal>> {
        let address = socket.peer_addr().ok();
        self.crowd.running.retain(|(handshake, _)| !handshake.is_finished());
        let known = address.is_some_and(|address| self.known.has(address.ip()));
        let refusal = |reason: &str| Refusal { cause: Cause::Crowd, reason: reason.into() };
        let replaced = match self.crowd.make_way(known) {
            Ok(replaced) => replaced,
            Err(Full) => {
                return Ok(Some(refusal(
                    "too many TLS handshakes at once, all from addresses that finished one before",
                )));
            }
        };
        if let Some(replaced) = &replaced {
            replaced.abort();
        }
        let socket = socket.into_std()?;
        let (tls, port, done) = (self.tls.clone(), self.port, self.done.0.clone());
        let handshake = async move {
            let authenticated = async {
                let socket = TcpStream::from_std(socket)?;
                let (stream, certificate) = tls.accept(socket, port).await?;
                Ok::<_, Refusal>((stream.detach()?, Remote { certificate, address }))
            };
            let _ = done.send(authenticated.await.map_err(|refusal| (refusal, address))).await;
        };
        self.crowd.running.push_back((self.thread.spawn(handshake).abort_handle(), known));
        Ok(replaced.map(|_| refusal("too many TLS handshakes at once: an older one made way")))
    }

    /// The next that is done. May be cancelled.
    pub(super) async fn next(&mut self) -> Result<(Stream, Remote), (Refusal, Option<SocketAddr>)> {
        match self.done.1.recv().await {
            Some(Ok((detached, remote))) => {
                if let (Some(_), Some(address)) = (&remote.certificate, remote.address) {
                    self.known.add(address.ip());
                }
                match detached.attach() {
                    Ok(stream) => Ok((stream, remote)),
                    Err(error) => Err((error.into(), remote.address)),
                }
            }
            Some(Err(refused)) => Err(refused),
            // This has a sender of its own.
            None => std::future::pending().await,
        }
    }
}

/// The handshakes that run, the oldest first, each with whether its address is known.
struct Crowd<H> {
    most: usize,
    running: VecDeque<(H, bool)>,
}

/// All that run are before one more.
#[derive(Debug, PartialEq, Eq)]
struct Full;

impl<H> Crowd<H> {
    /// The one that has to end before one more begins, if one has to.
    fn make_way(&mut self, known: bool) -> Result<Option<H>, Full> {
        if self.running.len() < self.most {
            return Ok(None);
        }
        let oldest = self.running.iter().position(|(_, known)| !known);
        let oldest = oldest.or(known.then_some(0)).ok_or(Full)?;
        Ok(self.running.remove(oldest).map(|(handshake, _)| handshake))
    }
}

/// The addresses from which a handshake with a certificate was finished, the latest of them.
#[derive(Default)]
struct Known {
    /// With the number of its latest handshake.
    latest: BTreeMap<IpAddr, u64>,
    by_number: BTreeMap<u64, IpAddr>,
    next: u64,
}

impl Known {
    fn has(&self, address: IpAddr) -> bool {
        self.latest.contains_key(&address)
    }

    fn add(&mut self, address: IpAddr) {
        self.next += 1;
        if let Some(before) = self.latest.insert(address, self.next) {
            self.by_number.remove(&before);
        }
        self.by_number.insert(self.next, address);
        if self.latest.len() > MOST_KNOWN
            && let Some((_, oldest)) = self.by_number.pop_first()
        {
            self.latest.remove(&oldest);
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
    fn one_more_handshake_replaces_the_oldest_of_an_unknown_address_and_no_known_one() {
        let mut crowd = Crowd { most: 3, running: VecDeque::new() };
        for (name, known) in [("a", true), ("b", false), ("c", false)] {
            assert_eq!(crowd.make_way(known), Ok(None));
            crowd.running.push_back((name, known));
        }
        assert_eq!(crowd.make_way(false), Ok(Some("b")));
        crowd.running.push_back(("d", true));
        assert_eq!(crowd.make_way(true), Ok(Some("c")));
        crowd.running.push_back(("e", true));
        assert_eq!(crowd.make_way(false), Err(Full), "all are known");
        assert_eq!(crowd.make_way(true), Ok(Some("a")), "known ones replace one another");
    }

    #[test]
    fn the_addresses_that_finished_last_are_known() {
        let mut known = Known::default();
        let address =
            |number: usize| IpAddr::from(u32::try_from(number).expect("short").to_be_bytes());
        for number in 0..MOST_KNOWN {
            known.add(address(number));
        }
        known.add(address(0));
        known.add(address(MOST_KNOWN));
        let has = [0, 1, 2, MOST_KNOWN].map(|number| known.has(address(number)));
        assert_eq!(has, [true, false, true, true]);
        assert_eq!(known.by_number.len(), MOST_KNOWN);
    }

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
