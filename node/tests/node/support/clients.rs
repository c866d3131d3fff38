//! Clients that share keys, as in the simulation: what they are told is checked for linearizability,
//! together with a listing of everything, each time they pause.
//!
//! The check is that of the simulation, `cairn-clients`:
//! - all answers to puts, deletes, conditional writes, writes of several keys, gets and lists have one
//!   order that respects real time and the versions that clients saw. A search finds that order or
//!   shows that there is none (Wing & Gong, with Lowe's memory); one that gives up counts as a fault.
//!   Several clients write and read each key at once;
//! - every value that was read was written, and each acknowledged write is there at the pause, or a
//!   later one replaced it;
//! - a write without an answer may take effect at any time later, also behind the pause, or never.
//!
//! It is weaker than "linearizable" in three ways. Each group of keys is searched alone, which is
//! enough only because no request touches two groups. Stale reads are not asked for. The listing that
//! ends a period counts as one read of each group, taken after all answers.

use super::Cluster;
use bytes::Bytes;
use cairn_client::{Client, ListOptions};
use cairn_clients::Timeline;
use cairn_clients::ledger::{Ledger, Listing};
use cairn_clients::workload::{Generator, Profile, Worker};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const CLIENTS: u32 = 4;
/// Groups of keys that clients share at a time.
const GROUPS: u32 = 8;
const SEED: u64 = 7;
const POLL: Duration = Duration::from_millis(5);
/// A key of the test's own. The clients do not know it, and their check leaves it out.
pub const OWN_KEY: &str = "story";
/// A page, of many groups of keys.
const PAGE_BYTES: u64 = 2 << 20;

fn profile() -> Profile {
    Profile {
        clients: CLIENTS,
        tasks_per_client: 1,
        groups: GROUPS,
        think_max: Duration::from_millis(20),
        deadline: Duration::from_secs(5),
        write_percent: 80,
        synced_one_in: 64,
        // They may show values of an earlier period, of which no record is kept.
        stale_reads: false,
    }
}

/// Real time since the test began.
struct Clock(Instant);

impl Timeline for Clock {
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn event(&self, _: fmt::Arguments<'_>) {}
}

/// The clients, at work or paused, and what they were told.
pub struct SharedKeys {
    ledger: Ledger,
    stop: Arc<AtomicBool>,
    working: Vec<JoinHandle<Worker>>,
    paused: Vec<Worker>,
    acknowledged: u64,
}

impl SharedKeys {
    /// Clients that have not begun, each with a connection of its own.
    pub fn new(cluster: &Cluster) -> SharedKeys {
        let ledger = Ledger::new(Clock(Instant::now()), GROUPS);
        let worker = |number: u32| {
            let options = cluster.options().deadline(profile().deadline);
            Worker {
                number,
                client: options.build().expect("good options"),
                generator: Generator::new(SEED, number, profile()),
                recorder: ledger.recorder().clone(),
            }
        };
        let paused = (0..CLIENTS).map(worker).collect();
        SharedKeys { ledger, stop: Arc::default(), working: Vec::new(), paused, acknowledged: 0 }
    }

    /// Gives the paused clients connections that know of no cluster yet, and this node's address alone.
    /// Returns the former ones.
    pub fn reconnect(&mut self, cluster: &Cluster, node: usize) -> Vec<Client> {
        let anew = |worker: &mut Worker| {
            let options = cluster.options_of(&[node]).deadline(profile().deadline);
            std::mem::replace(&mut worker.client, options.build().expect("good options"))
        };
        self.paused.iter_mut().map(anew).collect()
    }

    pub fn work(&mut self) {
        self.stop = Arc::default();
        let start = |worker: Worker| tokio::spawn(worker.run(Arc::clone(&self.stop)));
        self.working.extend(self.paused.drain(..).map(start));
    }

    /// Waits for `more` writes that are acknowledged from now on.
    pub async fn wait_for(&self, cluster: &Cluster, more: usize) {
        let recorder = self.ledger.recorder();
        let until = recorder.acknowledged() + more;
        let began = Instant::now();
        while recorder.acknowledged() < until {
            assert!(
                began.elapsed() < super::WAIT_LIMIT,
                "nothing is acknowledged:\n{}",
                cluster.logs()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Lets the clients pause, and checks all that they were told and everything that is stored.
    /// Returns the number of acknowledged writes so far.
    pub async fn pause_and_check(&mut self, client: &Client) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.working.drain(..) {
            self.paused.push(worker.await.expect("a client"));
        }
        let counts = self.ledger.collect();
        self.acknowledged += counts.acknowledged;
        let mut wrong = counts.wrong;
        wrong.extend(self.ledger.compare(&listing(client).await));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        self.acknowledged
    }
}

/// Everything that the cluster holds.
async fn listing(client: &Client) -> Listing {
    let mut listing = Listing::default();
    let mut after = Some(Bytes::new());
    while let Some(key) = after {
        let page = ListOptions::default().max_bytes(PAGE_BYTES).start_after(key);
        let page = client.list(page).await.expect("the cluster serves");
        let items = page.items.into_iter().filter(|item| item.key != OWN_KEY);
        let items = items.map(|item| (item.key, item.value, item.version.0));
        after = listing.page(items.collect(), page.more);
    }
    listing
}
