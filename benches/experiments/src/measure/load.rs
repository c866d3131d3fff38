//! Closed-loop load: one worker for each request under way. A worker sends its next request when
//! its last one was answered.
//!
//! A request counts if it was answered inside the measured window. The first error ends the run,
//! since a rate that hides failures means nothing.

use super::stop::Stop;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The loop body of one client that waits as a task.
pub trait Worker: Send + 'static {
    /// Sends one request and waits for its answer.
    fn step(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// The loop body of one client that waits inside system calls, on a thread of its own.
pub trait BlockingWorker: Send + 'static {
    /// Does one operation.
    ///
    /// # Errors
    /// What ends the run.
    fn step(&mut self) -> Result<()>;
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Measure for `measured` after `warm_up`.
    Time {
        /// Answers in this time are not counted.
        warm_up: Duration,
        /// Answers in this time are counted.
        measured: Duration,
    },
    /// Measure this many requests, from the start to the last answer.
    Operations(u64),
    /// Measure this many requests, or those that are answered in this time if that ends first.
    Bounded {
        /// The most requests.
        operations: u64,
        /// The most time.
        time: Duration,
    },
}

impl Limit {
    /// The most time, with the warm-up. None if only requests end it.
    pub(crate) fn time(self) -> Option<Duration> {
        match self {
            Limit::Time { warm_up, measured } => Some(warm_up + measured),
            Limit::Bounded { time, .. } => Some(time),
            Limit::Operations(_) => None,
        }
    }
}

/// What a run measured.
#[derive(Clone)]
pub struct Samples {
    /// All answered requests, also those of the warm-up.
    pub answered: u64,
    /// Latencies in nanoseconds.
    pub latencies: Histogram<u64>,
    /// The measured time.
    pub elapsed: Duration,
}

impl Samples {
    /// Empty samples.
    ///
    /// # Errors
    /// None in practice: the histogram's bounds are fixed.
    pub fn new() -> Result<Samples> {
        Ok(Samples { answered: 0, latencies: histogram()?, elapsed: Duration::ZERO })
    }

    /// Adds another round of the same load.
    ///
    /// # Errors
    /// None in practice: all histograms have the same bounds.
    pub fn add(&mut self, other: &Samples) -> Result<()> {
        self.latencies.add(&other.latencies).context("histogram")?;
        self.elapsed += other.elapsed;
        self.answered += other.answered;
        Ok(())
    }

    /// Counts an answer.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.answered += 1;
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies.saturating_record(latency_ns.max(1));
    }

    /// Answers per second.
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// The mean latency in microseconds.
    pub fn mean_us(&self) -> f64 {
        if self.latencies.is_empty() { f64::NAN } else { self.latencies.mean() / 1e3 }
    }

    /// A quantile of the latency in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        if self.latencies.is_empty() {
            return f64::NAN;
        }
        self.latencies.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Rate × mean latency. In a closed loop it is the number of requests under way (Little's law).
    pub fn under_way(&self) -> f64 {
        self.rate() * self.mean_us() / 1e6
    }
}

/// A histogram from a nanosecond to ten minutes, with three digits.
fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).context("histogram")
}

/// Which answers count, and when the clients end.
struct Window {
    from: Instant,
    until: Option<Instant>,
    budget: u64,
    started: AtomicU64,
    stop: Stop,
}

impl Window {
    fn open(limit: Limit, stop: &Stop) -> Arc<Window> {
        let begin = Instant::now();
        let (from, until, budget) = match limit {
            Limit::Time { warm_up, measured } => {
                (begin + warm_up, Some(begin + warm_up + measured), u64::MAX)
            }
            Limit::Operations(count) => (begin, None, count),
            Limit::Bounded { operations, time } => (begin, Some(begin + time), operations),
        };
        Arc::new(Window { from, until, budget, started: AtomicU64::new(0), stop: stop.clone() })
    }

    /// Whether a client sends one more request.
    fn next(&self) -> bool {
        !self.stop.is_set() && self.started.fetch_add(1, Ordering::Relaxed) < self.budget
    }

    /// Counts an answer. False once the window is over.
    fn answered(&self, client: &mut Samples, sent: Instant) -> bool {
        let now = Instant::now();
        if self.until.is_some_and(|until| now >= until) || now < self.from {
            client.answered += 1;
            return now < self.from;
        }
        client.record(now - sent);
        true
    }

    /// Ends all clients.
    fn fail(&self) {
        self.started.store(u64::MAX / 2, Ordering::Relaxed);
    }
}

/// Adds up the clients. The first error counts before all others.
fn merge(window: &Window, clients: Vec<Result<Samples>>) -> Result<Samples> {
    let ended = Instant::now();
    let mut samples = Samples::new()?;
    for client in clients {
        samples.add(&client?)?;
    }
    window.stop.check()?;
    samples.elapsed = window.until.map_or(ended, |until| until.min(ended)) - window.from;
    Ok(samples)
}

/// Runs all workers until the limit and merges their samples. Dropping the future ends them.
///
/// # Errors
/// The first error of a worker.
pub async fn drive<W: Worker>(workers: Vec<W>, limit: Limit) -> Result<Samples> {
    drive_until(workers, limit, &Stop::default()).await
}

/// The same, ended early by `stop`.
///
/// # Errors
/// The first error of a worker; [`Stopped`](super::Stopped).
pub async fn drive_until<W: Worker>(workers: Vec<W>, limit: Limit, stop: &Stop) -> Result<Samples> {
    let window = Window::open(limit, stop);
    let mut tasks: JoinSet<Result<Samples>> = JoinSet::new();
    for mut worker in workers {
        let window = Arc::clone(&window);
        tasks.spawn(async move {
            let mut recorder = Samples::new()?;
            while window.next() {
                let sent = Instant::now();
                worker.step().await.inspect_err(|_| window.fail())?;
                if !window.answered(&mut recorder, sent) {
                    break;
                }
            }
            Ok(recorder)
        });
    }
    let mut clients = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        clients.push(ended.context("a client's task ended early")?);
    }
    merge(&window, clients)
}

/// Runs each worker on a thread of its own until the limit, or until `stop`. The window opens once
/// all threads run, so that no row pays for their start.
///
/// # Errors
/// The first error of a worker; the system's, if it starts no thread;
/// [`Stopped`](super::Stopped).
pub async fn drive_blocking<W: BlockingWorker>(
    workers: Vec<W>,
    limit: Limit,
    stop: &Stop,
) -> Result<Samples> {
    let stop = stop.clone();
    let run = move || {
        let clients = workers.into_iter().map(|worker| Ok((worker, Samples::new()?)));
        let clients: Vec<_> = clients.collect::<Result<_>>()?;
        let opened = OnceLock::new();
        thread::scope(|scope| {
            let (runs, running) = mpsc::channel();
            let start = |(mut worker, mut recorder): (W, Samples)| {
                let (runs, opened) = (runs.clone(), &opened);
                thread::Builder::new().spawn_scoped(scope, move || {
                    // Whoever waits for it is there until the window opens.
                    let _ = runs.send(());
                    let window: &Arc<Window> = opened.wait();
                    while window.next() {
                        let sent = Instant::now();
                        worker.step().inspect_err(|_| window.fail())?;
                        if !window.answered(&mut recorder, sent) {
                            break;
                        }
                    }
                    Ok(recorder)
                })
            };
            let threads: Vec<_> = clients.into_iter().map(start).collect();
            let started = threads.iter().filter(|thread| thread.is_ok()).count();
            running.iter().take(started).for_each(drop);
            let window = Window::open(limit, &stop);
            if started < threads.len() {
                // The threads that run wait for the window, and end at once.
                window.fail();
            }
            let window = opened.get_or_init(|| window);
            let ended = threads.into_iter().map(|thread| {
                let thread = thread.context("starting a client's thread")?;
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client's thread panicked")))
            });
            merge(window, ended.collect())
        })
    };
    tokio::task::spawn_blocking(run).await.context("the load ended early")?
}

#[cfg(test)]
mod tests {
    use super::super::Stopped;
    use super::*;

    struct Counting(Arc<AtomicU64>);

    impl Worker for Counting {
        async fn step(&mut self) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(())
        }
    }

    impl BlockingWorker for Counting {
        fn step(&mut self) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn seven(sent: &Arc<AtomicU64>) -> Vec<Counting> {
        (0..7).map(|_| Counting(Arc::clone(sent))).collect()
    }

    #[tokio::test]
    async fn a_counted_run_sends_exactly_as_many_requests_as_asked() {
        let (limit, stop) = (Limit::Operations(1000), Stop::default());
        let sent = Arc::new(AtomicU64::new(0));
        for samples in [
            drive(seven(&sent), limit).await.unwrap(),
            drive_blocking(seven(&sent), limit, &stop).await.unwrap(),
        ] {
            assert_eq!(samples.latencies.len(), 1000);
            assert!(samples.mean_us() > 0.0);
        }
        assert_eq!(sent.load(Ordering::Relaxed), 2000);
    }

    #[tokio::test]
    async fn a_bounded_run_ends_with_its_requests_or_with_its_time() {
        let hour = Duration::from_secs(3600);
        let stop = Stop::default();
        let sent = Arc::new(AtomicU64::new(0));
        let limit = Limit::Bounded { operations: 1000, time: hour };
        let samples = drive_blocking(seven(&sent), limit, &stop).await.unwrap();
        assert_eq!(samples.latencies.len(), 1000);
        assert!(samples.elapsed < hour, "a rate is by the time that it took");
        let limit = Limit::Bounded { operations: u64::MAX / 2, time: Duration::from_millis(5) };
        let samples = drive(seven(&sent), limit).await.unwrap();
        assert_eq!(samples.elapsed, Duration::from_millis(5));
    }

    /// Notes when each client's first request began.
    struct Starting(Arc<std::sync::Mutex<std::collections::HashSet<thread::ThreadId>>>);

    impl BlockingWorker for Starting {
        fn step(&mut self) -> Result<()> {
            self.0.lock().unwrap().insert(thread::current().id());
            // A client waits here for all others, which run already.
            while self.0.lock().unwrap().len() < 7 {
                thread::yield_now();
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn blocking_clients_run_side_by_side_on_threads_of_their_own() {
        let (limit, stop) = (Limit::Operations(7), Stop::default());
        let threads = Arc::default();
        let workers = (0..7).map(|_| Starting(Arc::clone(&threads))).collect();
        let samples = drive_blocking(workers, limit, &stop).await.unwrap();
        assert_eq!((samples.latencies.len(), threads.lock().unwrap().len()), (7, 7));
        let none = drive_blocking(Vec::<Failing>::new(), limit, &stop).await.unwrap();
        assert_eq!(none.answered, 0);
    }

    struct Failing;

    impl Worker for Failing {
        async fn step(&mut self) -> Result<()> {
            anyhow::bail!("refused")
        }
    }

    impl BlockingWorker for Failing {
        fn step(&mut self) -> Result<()> {
            anyhow::bail!("refused")
        }
    }

    #[tokio::test]
    async fn the_first_error_ends_the_run() {
        let (limit, stop) = (Limit::Operations(10), Stop::default());
        for ended in [
            drive(vec![Failing, Failing], limit).await,
            drive_blocking(vec![Failing, Failing], limit, &stop).await,
        ] {
            assert_eq!(ended.map(|_| ()).unwrap_err().to_string(), "refused");
        }
    }

    #[tokio::test]
    async fn a_stop_ends_a_run_that_would_last_for_an_hour() {
        let measured = Duration::from_secs(3600);
        let (limit, stop) = (Limit::Time { warm_up: measured, measured }, Stop::default());
        let sent = Arc::new(AtomicU64::new(0));
        stop.set();
        for ended in [
            drive_until(seven(&sent), limit, &stop).await,
            drive_blocking(seven(&sent), limit, &stop).await,
        ] {
            assert!(ended.map(|_| ()).unwrap_err().is::<Stopped>());
        }
    }

    #[test]
    fn a_window_without_an_answer_has_no_latency() {
        let samples = Samples::new().unwrap();
        assert!(samples.mean_us().is_nan() && samples.quantile_us(0.5).is_nan());
    }
}
