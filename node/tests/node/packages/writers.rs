//! Writers while a package is exchanged, in the network of the machines.
//!
//! What holds here: each writer overwrites registers of its own with rising numbers, so a register must hold a number
//! between the last one acknowledged and the last one tried. Every failed request is kept with its error: each has far
//! more time than a change of the leader takes, so none may fail.

use crate::support::WAIT_LIMIT;
use cairn_client::{Client, Error, Options};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WRITERS: usize = 4;
const REGISTERS: usize = 64;
/// So that an upgrade that takes an hour writes no more than a disk holds.
const PAUSE: Duration = Duration::from_millis(5);
/// The rest of a value, so that a write has about a block.
const FILLING: usize = 2000;

/// What the writers were told, and found at the end.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) acknowledged: u64,
    pub(super) failed: Vec<Error>,
    /// Registers that hold what they may not.
    pub(super) wrong: Vec<String>,
}

pub(super) struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    thread: JoinHandle<Outcome>,
}

/// What one writer did with one of its registers.
#[derive(Clone, Copy, Default)]
struct Register {
    acknowledged: u64,
    tried: u64,
}

impl Writers {
    /// `certificates`: a folder with those of the client `app`.
    pub(super) fn start(namespace: PathBuf, certificates: &Path) -> Writers {
        let file = |name: &str| certificates.join(name);
        let endpoints = (1..=3).map(|slot| format!("10.0.0.{slot}:7400"));
        let options = Options::new(endpoints)
            .tls(file("ca.pem"), file("client-app.pem"), file("client-app-key.pem"))
            .deadline(WAIT_LIMIT);
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&acknowledged));
        let thread = std::thread::spawn(move || {
            let network = File::open(&namespace).expect("a namespace");
            let moved =
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network));
            moved.expect("root may");
            // All of its sockets are made by this thread, and so in that network.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(work(options, until, count))
        });
        Writers { stop, acknowledged, thread }
    }

    /// Waits for so many acknowledgements from now on.
    pub(super) fn wait_for(&self, more: u64) {
        let until = self.acknowledged.load(Ordering::SeqCst) + more;
        let began = Instant::now();
        while self.acknowledged.load(Ordering::SeqCst) < until {
            assert!(!self.thread.is_finished(), "the writers ended");
            assert!(began.elapsed() < WAIT_LIMIT.saturating_mul(4), "nothing is acknowledged");
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends the writers, and compares what they were told with what is there.
    pub(super) fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the writers")
    }
}

fn key(writer: usize, register: usize) -> String {
    format!("writer-{writer}/{register:03}")
}

async fn work(options: Options, stop: Arc<AtomicBool>, count: Arc<AtomicU64>) -> Outcome {
    let client = options.build().expect("good options");
    let writers = (0..WRITERS).map(|writer| {
        tokio::spawn(write(client.clone(), writer, Arc::clone(&stop), Arc::clone(&count)))
    });
    let writers: Vec<_> = writers.collect();
    let mut outcome = Outcome::default();
    for (writer, task) in writers.into_iter().enumerate() {
        let (registers, failed) = task.await.expect("a writer");
        outcome.failed.extend(failed);
        for (number, register) in registers.iter().enumerate() {
            let key = key(writer, number);
            let found = client.get(key.clone()).await.expect("a read after the upgrade");
            let found = found.map_or(0, |item| {
                let value = String::from_utf8(item.value.to_vec()).expect("text");
                value.split(' ').next().expect("a part").parse::<u64>().expect("a number")
            });
            let allowed = register.acknowledged..=register.tried;
            if !allowed.contains(&found) {
                outcome.wrong.push(format!("{key}: {found} is not in {allowed:?}"));
            }
        }
    }
    outcome.acknowledged = count.load(Ordering::SeqCst);
    outcome
}

async fn write(
    client: Client,
    writer: usize,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
) -> ([Register; REGISTERS], Vec<Error>) {
    let (mut registers, mut failed) = ([Register::default(); REGISTERS], Vec::new());
    let mut turn = 0;
    while !stop.load(Ordering::SeqCst) {
        let register = &mut registers[turn];
        register.tried += 1;
        let value = format!("{} {}", register.tried, "v".repeat(FILLING));
        match client.put(key(writer, turn), value).await {
            Ok(_) => {
                register.acknowledged = register.tried;
                count.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => failed.push(error),
        }
        turn = (turn + 1) % REGISTERS;
        tokio::time::sleep(PAUSE).await;
    }
    (registers, failed)
}
