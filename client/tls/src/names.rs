//! From the names of hosts to their addresses.
//!
//! What holds here: a name is asked at most once in [`ASK_INTERVAL`], however many connections fail, and
//! one question about it is under way at a time. A name that does not resolve is asked less and less
//! often, down to once in [`ASK_INTERVAL_MAX`]. An answer is used for one interval, so a name that gets
//! another address is followed. While a name does not resolve, or its resolver does not answer, its last
//! addresses are used: who answers there is checked anyway. A caller that goes away ends no question. Names are
//! bounded in number.
//!
//! The story: a member was gone for good, and so was its name. The leader asked the resolver 280 times a
//! second, for ever. Another one: a resolver went with the machine of a leader, and the others, though they
//! reached each other, could not elect a new one before it was back.

use parking_lot::Mutex;
use real_tokio::net::TcpStream;
use real_tokio::sync::watch;
use real_tokio::task::JoinSet;
use real_tokio::time::Instant;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The shortest time between two questions about a name.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest, after several that failed.
const ASK_INTERVAL_MAX: Duration = Duration::from_secs(8);
/// The most names that are kept.
const NAMES_MAX: usize = 1024;
/// The last addresses of a name are used if a question about it is not answered by then.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);
/// The next address of a name is tried as well if the one before has not answered by then.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Asks the system, or a test. Blocks.
type Ask = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The names that a process connects to. Clones share them.
#[derive(Clone)]
pub struct Names {
    ask: Arc<Ask>,
    known: Arc<Mutex<HashMap<String, Known>>>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

/// The addresses of a name, or why there are none.
type Found = Result<Vec<IpAddr>, String>;

/// One name.
struct Known {
    /// When it was asked last.
    asked: Instant,
    /// Questions in a row that failed, before the one of `answer`.
    failures: u32,
    /// `None` while the question is under way; closed without an answer if it was lost.
    answer: watch::Receiver<Option<Found>>,
    /// What an earlier question found, if any did.
    last: Option<Vec<IpAddr>>,
}

impl Known {
    /// Whether the answer, or the question under way, is still to be used.
    fn holds(&self, now: Instant) -> bool {
        match &*self.answer.borrow() {
            // A question that was lost with its runtime is asked again.
            None => self.answer.has_changed().is_ok(),
            Some(Ok(_)) => now < self.asked + ASK_INTERVAL,
            Some(Err(_)) => now < self.asked + wait(self.failures),
        }
    }
}

/// The time after the question that failed, when so many had failed before.
fn wait(failures: u32) -> Duration {
    ASK_INTERVAL.saturating_mul(1 << failures.min(8)).min(ASK_INTERVAL_MAX)
}

impl Names {
    /// Those of this process, asked of the system.
    pub fn of_process() -> Names {
        static NAMES: LazyLock<Names> = LazyLock::new(|| {
            Names::asking(|host| {
                // The port is of no meaning to the resolver.
                let addresses = (host, 0).to_socket_addrs()?;
                Ok(addresses.map(|address| address.ip()).collect())
            })
        });
        NAMES.clone()
    }

    fn asking(ask: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Names {
        Names { ask: Arc::new(ask), known: Arc::default() }
    }

    /// The addresses of a host, at least one. May be cancelled.
    ///
    /// # Errors
    /// Why there is none, also by an earlier question, if none ever found any.
    pub async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = literal.parse() {
            return Ok(vec![address]);
        }
        let (mut answer, last) = self.question(host);
        let answered = async {
            let found = answer.wait_for(Option::is_some).await;
            let found = found.map(|found| found.clone()).map_err(|_| io::ErrorKind::Interrupted)?;
            found.unwrap_or_else(|| Err("not asked".into())).map_err(|reason| {
                io::Error::other(format!("the name `{host}` does not resolve: {reason}"))
            })
        };
        let Some(last) = last else { return answered.await };
        match real_tokio::time::timeout(ANSWER_WITHIN, answered).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(_)) | Err(_) => Ok(last),
        }
    }

    /// The question about a name that is under way or was answered, or a new one; and what an earlier one
    /// found.
    fn question(&self, host: &str) -> (watch::Receiver<Option<Found>>, Option<Vec<IpAddr>>) {
        let now = Instant::now();
        let mut known = self.known.lock();
        let before = known.get(host);
        if let Some(before) = before.filter(|before| before.holds(now)) {
            return (before.answer.clone(), before.last.clone());
        }
        let found = before.and_then(|before| before.answer.borrow().clone());
        let failures = match (before, &found) {
            (Some(before), Some(Err(_))) => before.failures.saturating_add(1),
            _ => 0,
        };
        let last = match found {
            Some(Ok(found)) => Some(found),
            _ => before.and_then(|before| before.last.clone()),
        };
        if known.len() >= NAMES_MAX {
            known.retain(|_, known| known.holds(now));
        }
        if known.len() >= NAMES_MAX {
            // Then nothing is remembered of them; only their number is bounded.
            known.clear();
        }
        let (sender, answer) = watch::channel(None);
        let asked = Known { asked: now, failures, answer: answer.clone(), last: last.clone() };
        known.insert(host.to_owned(), asked);
        drop(known);
        let (ask, host) = (Arc::clone(&self.ask), host.to_owned());
        real_tokio::task::spawn_blocking(move || {
            let found = ask(&host).map_err(|error| error.to_string());
            let found = found.and_then(|addresses| match addresses.is_empty() {
                true => Err("it has no address".to_owned()),
                false => Ok(addresses),
            });
            sender.send_replace(Some(found));
        });
        (answer, last)
    }

    /// Connects to `host:port`. Several addresses are tried one beside the other, the later ones a
    /// little later. May be cancelled.
    ///
    /// # Errors
    /// The name does not resolve, or the last address that failed.
    pub async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        let expected = || io::Error::new(io::ErrorKind::InvalidInput, "expected host:port");
        let (host, port) = address.rsplit_once(':').ok_or_else(expected)?;
        let port: u16 = port.parse().map_err(|_| expected())?;
        let mut attempts = JoinSet::new();
        let mut after = Duration::ZERO;
        for ip in self.resolve(host).await? {
            attempts.spawn(async move {
                if !after.is_zero() {
                    real_tokio::time::sleep(after).await;
                }
                TcpStream::connect(SocketAddr::new(ip, port)).await
            });
            after += NEXT_ADDRESS;
        }
        let mut last = expected();
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(error)) => last = error,
                Err(error) => last = io::Error::other(error),
            }
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A resolver that counts questions and answers with what is in the mutex.
    struct Counted {
        names: Names,
        asked: Arc<AtomicU64>,
        answer: Arc<Mutex<Option<IpAddr>>>,
    }

    fn counted(answer: Option<u8>) -> Counted {
        let (asked, answer) = (Arc::<AtomicU64>::default(), Arc::new(Mutex::new(answer.map(ip))));
        let (count, known) = (Arc::clone(&asked), Arc::clone(&answer));
        let names = Names::asking(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            known.lock().map(|ip| vec![ip]).ok_or_else(|| io::Error::other("no such host"))
        });
        Counted { names, asked, answer }
    }

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// A member is gone for good, and so is its name: heartbeats, appends and greetings go on.
    #[tokio::test(start_paused = true)]
    async fn a_name_that_does_not_resolve_is_asked_less_and_less_often_whoever_needs_it() {
        let Counted { names, asked, .. } = counted(None);
        let began = Instant::now();
        let mut times = Vec::new();
        while began.elapsed() < Duration::from_secs(60) {
            let before = asked.load(Ordering::SeqCst);
            for failed in [names.resolve("gone").await, names.resolve("gone").await] {
                let reason = failed.expect_err("gone").to_string();
                assert!(reason.contains("`gone` does not resolve: no such host"), "{reason}");
            }
            match asked.load(Ordering::SeqCst) - before {
                0 => {}
                1 => times.push(began.elapsed().as_secs()),
                more => panic!("{more} questions at once"),
            }
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
        assert_eq!(times, [0, 1, 3, 7, 15, 23, 31, 39, 47, 55]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_gets_another_address_or_one_again_is_followed() {
        let Counted { names, asked, answer } = counted(Some(1));
        for _ in 0..1000 {
            assert_eq!(names.resolve("node").await.expect("known"), [ip(1)]);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        *answer.lock() = Some(ip(2));
        tokio::time::sleep(ASK_INTERVAL).await;
        assert_eq!(names.resolve("node").await.expect("known"), [ip(2)]);
        *answer.lock() = None;
        tokio::time::sleep(ASK_INTERVAL).await;
        assert_eq!(names.resolve("node").await.expect("it was there"), [ip(2)]);
        *answer.lock() = Some(ip(3));
        tokio::time::sleep(ASK_INTERVAL_MAX).await;
        assert_eq!(names.resolve("node").await.expect("back"), [ip(3)]);
    }

    /// The resolver went with the machine of a leader. The others must reach each other.
    #[tokio::test]
    async fn a_name_keeps_its_last_addresses_while_the_resolver_does_not_answer() {
        let (hangs, waits) = std::sync::mpsc::channel::<()>();
        let waits = Mutex::new(Some(waits));
        let first = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let names = Names::asking(move |_| {
            if !first.swap(false, Ordering::SeqCst)
                && let Some(waits) = waits.lock().take()
            {
                waits.recv().ok();
            }
            Ok(vec![ip(1)])
        });
        assert_eq!(names.resolve("node").await.expect("known"), [ip(1)]);
        tokio::time::sleep(ASK_INTERVAL).await;
        for _ in 0..3 {
            // The limit only turns a hang into a failure.
            let resolved = tokio::time::timeout(Duration::from_secs(60), names.resolve("node"));
            assert_eq!(resolved.await.expect("it does not wait").expect("known"), [ip(1)]);
        }
        drop(hangs);
    }

    /// The resolver may take longer than anybody waits.
    #[tokio::test]
    async fn callers_that_give_up_leave_one_question_under_way() {
        let (asked, (answers, waits)) = (Arc::<AtomicU64>::default(), std::sync::mpsc::channel());
        let (count, waits) = (Arc::clone(&asked), Mutex::new(waits));
        let names = Names::asking(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            waits.lock().recv().map_err(io::Error::other)?;
            Ok(vec![ip(1)])
        });
        for _ in 0..100 {
            let waiting = names.resolve("slow");
            tokio::select! {
                biased;
                _ = waiting => panic!("the resolver has not answered"),
                () = tokio::task::yield_now() => {}
            }
        }
        answers.send(()).expect("it waits");
        assert_eq!(names.resolve("slow").await.expect("answered"), [ip(1)]);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn addresses_are_not_asked_for_and_names_are_bounded() {
        let Counted { names, asked, .. } = counted(Some(1));
        for literal in ["127.0.0.1", "[::1]", "::1"] {
            assert_eq!(names.resolve(literal).await.expect("an address").len(), 1, "{literal}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 0);
        for number in 0..3 * NAMES_MAX {
            assert!(names.resolve(&format!("name-{number}")).await.is_ok());
            assert!(names.known.lock().len() <= NAMES_MAX);
        }
    }

    #[tokio::test]
    async fn the_first_address_that_answers_is_used() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        // Nobody listens at the first one.
        let names = Names::asking(|_| {
            Ok(vec![Ipv4Addr::new(127, 0, 0, 2).into(), Ipv4Addr::LOCALHOST.into()])
        });
        let socket = names.connect(&format!("node:{port}")).await.expect("connected");
        assert_eq!(socket.peer_addr().expect("connected"), listener.local_addr().expect("bound"));
        assert!(names.connect("node").await.is_err() && names.connect("node:x").await.is_err());
    }
}
