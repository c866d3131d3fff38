//! TLS handshakes of accepted sockets.
//!
//! What holds here:
//! - They run on a thread of their own, so that strangers cost the thread that replicates no more
//!   than an accept.
//! - At most so many of a port run at once, each within a time limit. None of them takes a slot of
//!   the port's connections, so a stranger never does.
//! - One more replaces one from an address that never finished a handshake with a certificate, the
//!   oldest of the address that has most. Only where there is none, those from addresses that did
//!   replace one another. So strangers that begin thousands keep out neither members nor clients that
//!   were there before, nor probes, which have no certificate, from other addresses.
//! - One line is logged for each cause of a refusal in [`LOG_INTERVAL`].

use super::crowd::Crowd;
use cairn_tls::{Cause, Detached, Port, Refusal, Remote, Stream, Tls};
use std::collections::BTreeMap;
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
        let at_once = at_once(port, most);
        let handshakes = Handshakes {
            tls: tls.clone(),
            port,
            thread: runtime.handle().clone(),
            running: Running::new(at_once),
            known: Known::default(),
            done: mpsc::channel(at_once),
        };
        (Some(handshakes), most.saturating_sub(at_once).max(1))
    }
}

/// How many of a port's `most` connections may be handshakes.
fn at_once(port: Port, most: usize) -> usize {
    let part = match port {
        // Everyone may begin one, and a connection is as short: it carries one request.
        Port::Http => most / 2,
        Port::Clients | Port::Peers => most / 8,
    };
    part.clamp(1, MOST)
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
    running: Running<AbortHandle>,
    known: Known,
    done: (mpsc::Sender<Done>, mpsc::Receiver<Done>),
}

impl Handshakes {
    /// Begins one. `Some`: one had to make way, another one or this.
    pub(super) fn begin(&mut self, socket: TcpStream) -> io::Result<Option<Refusal>> {
        let address = socket.peer_addr().ok();
        let ip = address.map(|address| address.ip());
        let known = ip.is_some_and(|ip| self.known.has(ip));
        let refusal = |reason: &str| Refusal { cause: Cause::Crowd, reason: reason.into() };
        let replaced = match self.running.make_way(known, AbortHandle::is_finished) {
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
        self.running.of(known).add(ip, self.thread.spawn(handshake).abort_handle());
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

/// The handshakes that run, by whether their addresses were known when they began.
struct Running<H> {
    most: usize,
    unknown: Crowd<H>,
    known: Crowd<H>,
}

/// All that run are before one more.
#[derive(Debug, PartialEq, Eq)]
struct Full;

impl<H> Running<H> {
    fn new(most: usize) -> Running<H> {
        Running { most, unknown: Crowd::new(), known: Crowd::new() }
    }

    fn of(&mut self, known: bool) -> &mut Crowd<H> {
        if known { &mut self.known } else { &mut self.unknown }
    }

    /// The one that has to end before one more begins, if one has to.
    fn make_way(&mut self, known: bool, has_ended: impl Fn(&H) -> bool) -> Result<Option<H>, Full> {
        self.unknown.retain(|handshake| !has_ended(handshake));
        self.known.retain(|handshake| !has_ended(handshake));
        if self.unknown.len() + self.known.len() < self.most {
            return Ok(None);
        }
        let replaced = match self.unknown.make_way() {
            None if known => self.known.make_way(),
            replaced => replaced,
        };
        replaced.map(Some).ok_or(Full)
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
    use super::super::WATCHERS;
    use super::*;

    #[test]
    fn one_more_handshake_replaces_the_oldest_of_an_unknown_address_and_no_known_one() {
        let mut running = Running::new(3);
        let runs = |_: &&str| false;
        for (name, known) in [("a", true), ("b", false), ("c", false)] {
            assert_eq!(running.make_way(known, runs), Ok(None));
            running.of(known).add(None, name);
        }
        assert_eq!(running.make_way(false, runs), Ok(Some("b")));
        running.of(true).add(None, "d");
        assert_eq!(running.make_way(true, runs), Ok(Some("c")));
        running.of(true).add(None, "e");
        assert_eq!(running.make_way(false, runs), Err(Full), "all are known");
        assert_eq!(running.make_way(true, runs), Ok(Some("a")), "known ones replace one another");
        running.of(true).add(None, "f");
        assert_eq!(running.make_way(false, |name| *name == "d"), Ok(None), "one has ended");
    }

    /// The story: 8 handshakes ran at once where all probes begin theirs.
    #[test]
    fn half_of_what_the_http_port_has_is_for_handshakes_and_less_of_the_others() {
        assert_eq!(at_once(Port::Http, WATCHERS.of(65_536)), 64);
        assert_eq!(at_once(Port::Http, WATCHERS.of(1024)), 30);
        assert_eq!(at_once(Port::Http, 1), 1);
        assert_eq!(at_once(Port::Clients, 10_000), 1024);
        assert_eq!(at_once(Port::Peers, 1024), 128);
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
