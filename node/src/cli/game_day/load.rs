//! The load of a game day, and the checker of what it was told.
//!
//! What holds here: every key is under a prefix that no other run has. A key whose write has an unknown
//! outcome is not written again, since that write may be applied at any time later. So what may be read of each
//! key is known: its last acknowledged write, or the one of which the outcome is unknown.

use super::gap::{Measured, Outcome, Window};
use bytes::Bytes;
use cairn_client::{Client, Error, ListOptions};
use futures::future::{join_all, try_join_all};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// All runs have their keys under this.
const PREFIX: &str = "cairn-game-day/";
/// Writers, each with one write under way.
const WRITERS: u32 = 4;
/// Keys of each, over and over.
const KEYS: usize = 64;
/// Bytes of a value.
const VALUE_BYTES: usize = 256;
/// Digits of the number at its begin.
const DIGITS: usize = 16;
/// Between two writes of a writer: enough to see a gap of this length, and little work for the cluster.
const THINK: Duration = Duration::from_millis(10);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Keys that are read back, and removed, at a time.
const AT_ONCE: usize = 64;
/// Keys of a page to remove.
const PAGE: u32 = 1000;
const POLL: Duration = Duration::from_millis(20);

/// What one key was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    key: String,
    /// The number of the last write that was acknowledged.
    acknowledged: Option<u64>,
    /// The number of a later write whose outcome is unknown.
    unknown: Option<u64>,
}

/// One writer, and what it was told.
#[derive(Debug)]
struct Writer {
    number: u32,
    /// Of the last write.
    sequence: u64,
    keys: Vec<Told>,
    /// Those that are not written again.
    retired: Vec<Told>,
}

/// What the writers share.
struct Shared {
    client: Client,
    prefix: String,
    stop: AtomicBool,
    window: Mutex<Window>,
}

/// The writers, at work or paused.
pub(super) struct Load {
    shared: Arc<Shared>,
    paused: Vec<Writer>,
    working: JoinSet<Writer>,
}

/// A write that was acknowledged and is not there, or a value that nobody wrote.
pub(super) type Lost = String;

impl Load {
    /// Writers that have not begun.
    pub(super) fn new(client: &Client) -> Load {
        let prefix = format!("{PREFIX}{:016x}/", rand::random::<u64>());
        let shared = Shared {
            client: client.with_deadline(DEADLINE),
            prefix,
            stop: AtomicBool::new(false),
            window: Mutex::new(Window::begin(Instant::now())),
        };
        let paused = (0..WRITERS).map(|number| Writer::new(&shared.prefix, number)).collect();
        Load { shared: Arc::new(shared), paused, working: JoinSet::new() }
    }

    /// All keys of this run begin with it.
    pub(super) fn prefix(&self) -> &str {
        &self.shared.prefix
    }

    /// Lets the writers work.
    pub(super) fn start(&mut self) {
        self.shared.stop.store(false, Ordering::Relaxed);
        self.measure();
        for writer in self.paused.drain(..) {
            self.working.spawn(writer.run(Arc::clone(&self.shared)));
        }
    }

    /// Measures from now on.
    pub(super) fn measure(&self) {
        *self.shared.window.lock() = Window::begin(Instant::now());
    }

    /// Returns once so many more writes are acknowledged.
    pub(super) async fn works(&self, more: u64, within: Duration) -> anyhow::Result<()> {
        let acknowledged = || self.shared.window.lock().acknowledged();
        let (until, began) = (acknowledged() + more, Instant::now());
        while acknowledged() < until {
            anyhow::ensure!(
                began.elapsed() < within,
                "fewer than {more} writes were acknowledged in {} s",
                within.as_secs()
            );
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Lets the writers end the write that each has under way, and returns what was measured.
    pub(super) async fn stop(&mut self) -> anyhow::Result<Measured> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let measured = self.shared.window.lock().end(Instant::now());
        while let Some(writer) = self.working.join_next().await {
            self.paused.push(writer?);
        }
        Ok(measured)
    }

    /// Reads every key back, and returns how many there are, and what is lost.
    pub(super) async fn check(&self) -> (u64, Vec<Lost>) {
        let writers = self.paused.iter();
        let keys = writers.flat_map(|writer| writer.keys.iter().chain(&writer.retired));
        let all: Vec<&Told> = keys.collect();
        let mut lost = Vec::new();
        for some in all.chunks(AT_ONCE) {
            let mut asked = Vec::new();
            for told in some {
                asked.push(self.shared.client.get(told.key.clone()));
            }
            for (told, answer) in some.iter().zip(join_all(asked).await) {
                lost.extend(match answer {
                    Ok(found) => told.lacks(found.map(|found| found.value)),
                    Err(error) => Some(format!("`{}` cannot be read back: {error}", told.key)),
                });
            }
        }
        (all.len() as u64, lost)
    }
}

/// Removes all keys of a run.
pub(super) async fn remove(client: &Client, prefix: &str) -> Result<(), Error> {
    loop {
        let options = ListOptions::prefix(prefix.to_owned()).limit(PAGE).keys_only();
        let page = client.list(options).await?;
        if page.items.is_empty() {
            return Ok(());
        }
        for some in page.items.chunks(AT_ONCE) {
            let mut asked = Vec::new();
            for item in some {
                asked.push(client.delete(item.key.clone()));
            }
            try_join_all(asked).await?;
        }
    }
}

impl Told {
    fn new(prefix: &str, number: u32, sequence: u64, at: usize) -> Told {
        Told { key: format!("{prefix}{number}/{sequence:08}/{at:03}"), ..Told::default() }
    }

    /// What is wrong with this value of the key.
    fn lacks(&self, value: Option<Bytes>) -> Option<Lost> {
        let Told { key, acknowledged, unknown } = self;
        let Some(value) = value else {
            let number = (*acknowledged)?;
            return Some(format!(
                "`{key}`: write {number} was acknowledged, and the key does not exist"
            ));
        };
        match number_of(&value) {
            None => Some(format!("`{key}` has a value that nobody wrote")),
            Some(number) if Some(number) == *acknowledged || Some(number) == *unknown => None,
            Some(number) => Some(match acknowledged {
                Some(last) => {
                    format!("`{key}`: write {last} was acknowledged, and write {number} is there")
                }
                None => format!("`{key}`: write {number} is there, which was refused"),
            }),
        }
    }
}

impl Writer {
    fn new(prefix: &str, number: u32) -> Writer {
        let keys = (0..KEYS).map(|at| Told::new(prefix, number, 0, at)).collect();
        Writer { number, sequence: 0, keys, retired: Vec::new() }
    }

    async fn run(mut self, shared: Arc<Shared>) -> Writer {
        let mut at = 0;
        while !shared.stop.load(Ordering::Relaxed) {
            at = (at + 1) % KEYS;
            let Some(key) = self.keys.get(at).map(|told| told.key.clone()) else { break };
            self.sequence += 1;
            let began = Instant::now();
            let result = shared.client.put(key, value_of(self.sequence)).await;
            let outcome = Outcome::of(&result);
            shared.window.lock().saw(began, Instant::now(), outcome);
            self.told(&shared.prefix, at, outcome);
            sleep(THINK).await;
        }
        self
    }

    /// What became of the last write.
    fn told(&mut self, prefix: &str, at: usize, outcome: Outcome) {
        let Writer { number, sequence, keys, retired } = self;
        let Some(told) = keys.get_mut(at) else { return };
        match outcome {
            Outcome::Acknowledged => told.acknowledged = Some(*sequence),
            Outcome::Unknown => {
                told.unknown = Some(*sequence);
                let next = Told::new(prefix, *number, *sequence, at);
                retired.push(std::mem::replace(told, next));
            }
            Outcome::Refused => {}
        }
    }
}

/// A value with this number.
fn value_of(number: u64) -> Bytes {
    let mut text = format!("{number:0DIGITS$x}");
    while text.len() < VALUE_BYTES {
        text.push('.');
    }
    text.into()
}

/// The number of a value; `None` if none has these bytes.
fn number_of(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value.get(..DIGITS)?).ok()?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (value_of(number) == value).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(acknowledged: Option<u64>, unknown: Option<u64>) -> Told {
        Told { key: "k".into(), acknowledged, unknown }
    }

    #[test]
    fn what_was_acknowledged_is_there_or_the_write_whose_outcome_is_unknown() {
        let there = |number| Some(value_of(number));
        for (key, value) in [
            (told(None, None), None),
            (told(Some(7), None), there(7)),
            (told(None, Some(8)), None),
            (told(None, Some(8)), there(8)),
            (told(Some(7), Some(8)), there(7)),
            (told(Some(7), Some(8)), there(8)),
        ] {
            assert_eq!(key.lacks(value), None, "{key:?}");
        }
        for (key, value, says) in [
            (told(Some(7), None), None, "write 7 was acknowledged, and the key does not exist"),
            (told(Some(7), Some(8)), None, "does not exist"),
            (told(Some(7), None), there(6), "write 7 was acknowledged, and write 6 is there"),
            (told(None, None), there(6), "which was refused"),
            (told(Some(7), None), Some("7".into()), "a value that nobody wrote"),
        ] {
            let lost = key.lacks(value).expect("it is lost");
            assert!(lost.contains(says), "{lost}");
        }
    }

    #[test]
    fn a_value_is_known_by_all_of_its_bytes() {
        for number in [0, 1, 0xabc, u64::MAX] {
            let value = value_of(number);
            assert_eq!((value.len(), number_of(&value)), (VALUE_BYTES, Some(number)));
            assert_eq!(number_of(&value[..VALUE_BYTES - 1]), None);
        }
    }

    #[test]
    fn a_key_whose_write_has_an_unknown_outcome_is_not_written_again() {
        let mut writer = Writer::new("p/", 3);
        let first = writer.keys[5].key.clone();
        writer.sequence = 9;
        writer.told("p/", 5, Outcome::Acknowledged);
        writer.sequence = 11;
        writer.told("p/", 5, Outcome::Unknown);
        assert_ne!(writer.keys[5].key, first);
        assert_eq!(writer.retired, [Told { key: first, acknowledged: Some(9), unknown: Some(11) }]);
        // What is refused changes nothing.
        writer.told("p/", 6, Outcome::Refused);
        assert_eq!((writer.keys[6].acknowledged, writer.retired.len()), (None, 1));
    }
}
