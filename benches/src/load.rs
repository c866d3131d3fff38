//! Closed-loop load: one worker for each client. A worker sends its next request when its last one
//! was answered.
//!
//! A request counts if it was answered inside the measured window. The first error ends the run,
//! since a rate that hides failures means nothing.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One client's loop body.
pub trait Worker: Send + 'static {
    /// Sends one request and waits for its answer.
    fn step(&mut self) -> impl Future<Output = Result<()>> + Send;
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
    pub fn new() -> Result<Samples> {
        Ok(Samples { answered: 0, latencies: histogram()?, elapsed: Duration::ZERO })
    }

    /// Adds another round of the same load.
    pub fn add(&mut self, other: &Samples) -> Result<()> {
        self.latencies.add(&other.latencies).context("histogram")?;
        self.elapsed += other.elapsed;
        self.answered += other.answered;
        Ok(())
    }

    /// Answers per second.
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// A histogram from a nanosecond to a minute, with three digits.
fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("histogram")
}

/// Runs all workers until the limit and merges their samples.
pub async fn drive<W: Worker>(workers: Vec<W>, limit: Limit) -> Result<Samples> {
    let begin = Instant::now();
    let (from, until, budget) = match limit {
        Limit::Time { warm_up, measured } => {
            (begin + warm_up, Some(begin + warm_up + measured), u64::MAX)
        }
        Limit::Operations(count) => (begin, None, count),
    };
    let started = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = workers
        .into_iter()
        .map(|worker| tokio::spawn(client(worker, Arc::clone(&started), budget, from, until)))
        .collect();
    let mut samples = Samples::new()?;
    let mut failure = None;
    for task in tasks {
        match task.await.context("a client's task ended early")? {
            Ok((latencies, answered)) => {
                samples.latencies.add(&latencies).context("histogram")?;
                samples.answered += answered;
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    samples.elapsed = until.unwrap_or_else(Instant::now) - from;
    Ok(samples)
}

async fn client<W: Worker>(
    mut worker: W,
    started: Arc<AtomicU64>,
    budget: u64,
    from: Instant,
    until: Option<Instant>,
) -> Result<(Histogram<u64>, u64)> {
    let mut latencies = histogram()?;
    let mut count = 0;
    while started.fetch_add(1, Ordering::Relaxed) < budget {
        let sent = Instant::now();
        if let Err(error) = worker.step().await {
            started.store(u64::MAX / 2, Ordering::Relaxed);
            return Err(error);
        }
        let answered = Instant::now();
        count += 1;
        if until.is_some_and(|until| answered >= until) {
            break;
        }
        if answered >= from {
            let latency_ns = u64::try_from((answered - sent).as_nanos()).unwrap_or(u64::MAX);
            latencies.saturating_record(latency_ns.max(1));
        }
    }
    Ok((latencies, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(Arc<AtomicU64>);

    impl Worker for Counting {
        async fn step(&mut self) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_counted_run_sends_exactly_as_many_requests_as_asked() {
        let sent = Arc::new(AtomicU64::new(0));
        let workers = (0..7).map(|_| Counting(Arc::clone(&sent))).collect();
        let samples = drive(workers, Limit::Operations(1000)).await.unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 1000);
        assert_eq!(samples.latencies.len(), 1000);
        assert!(samples.latencies.mean() >= 1.0);
    }

    struct Failing;

    impl Worker for Failing {
        async fn step(&mut self) -> Result<()> {
            anyhow::bail!("refused")
        }
    }

    #[tokio::test]
    async fn the_first_error_ends_the_run() {
        let error =
            drive(vec![Failing, Failing], Limit::Operations(10)).await.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "refused");
    }
}
