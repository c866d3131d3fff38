//! Clients at work: several at a time, on keys that they share.

use anyhow::Result;
use cairn_clients::Timeline;
use cairn_clients::workload::{Generator, Profile, Recorder, Worker};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Groups of keys that clients share at a time.
pub const GROUPS_AT_A_TIME: u32 = 8;

/// Polled while waiting for acknowledgements.
const POLL: Duration = Duration::from_millis(5);

/// The requests of each client, sent as fast as they are answered. Few writes ask for a sync before
/// their answer, so that a power cut can lose something. There are no stale reads: they may show
/// values of an earlier period, of which no record is kept.
pub fn profile(clients: u32, deadline: Duration) -> Profile {
    Profile {
        clients,
        tasks_per_client: 1,
        groups: GROUPS_AT_A_TIME,
        think_max: Duration::ZERO,
        deadline,
        write_percent: 80,
        synced_one_in: 256,
        stale_reads: false,
    }
}

/// A client with this number and seed.
pub fn worker(
    number: u32,
    client: cairn_client::Client,
    seed: u64,
    of: &Profile,
    to: &Recorder,
) -> Worker {
    let generator = Generator::new(seed, number, of.clone());
    Worker { number, client, generator, recorder: to.clone() }
}

/// Real time since then. Events are not traced.
pub struct Clock(pub Instant);

impl Timeline for Clock {
    fn now(&self) -> u64 {
        nanos(self.0.elapsed())
    }

    fn event(&self, _: fmt::Arguments<'_>) {}
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A period of load.
pub struct Load {
    recorder: Recorder,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Worker>>,
}

impl Load {
    /// Starts all clients.
    pub fn start(workers: Vec<Worker>, recorder: &Recorder) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let workers =
            workers.into_iter().map(|worker| tokio::spawn(worker.run(Arc::clone(&stop)))).collect();
        Load { recorder: recorder.clone(), stop, workers }
    }

    /// Waits for `more` acknowledgements from now on. False if they did not come within `limit`.
    pub async fn wait_for(&self, more: usize, limit: Duration) -> bool {
        let until = self.recorder.acknowledged() + more;
        let began = Instant::now();
        while self.recorder.acknowledged() < until {
            if began.elapsed() > limit {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        true
    }

    /// The longest time without an acknowledgement since `start`.
    pub fn longest_gap_since(&self, start: Duration) -> Duration {
        let mut times = self.recorder.acknowledged_since(nanos(start));
        times.extend([nanos(start), self.recorder.now()]);
        times.sort_unstable();
        let gaps = times.iter().zip(times.iter().skip(1)).map(|(before, after)| after - before);
        Duration::from_nanos(gaps.max().unwrap_or_default())
    }

    /// Ends the load, after the requests in flight.
    ///
    /// # Errors
    /// If a client's task failed.
    pub async fn stop(self) -> Result<Vec<Worker>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut workers = Vec::new();
        for worker in self.workers {
            workers.push(worker.await?);
        }
        Ok(workers)
    }
}
