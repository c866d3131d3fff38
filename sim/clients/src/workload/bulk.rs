//! A client that owns hundreds of keys, so that checkpoints, snapshots and lists have many pieces.
//! Only this client writes them, one request after the other, so it knows what a list of them must
//! show.

use crate::Timeline;
use bytes::Bytes;
use cairn_client::{Client, Error, ListOptions};
use rand::{RngExt, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PREFIX: &str = "bulk/";
/// Keys of one write.
const BATCH: usize = 12;
const VALUE_BYTES: std::ops::Range<usize> = 100..3_000;
/// One request in this many is a list of all keys.
const LISTS: u32 = 12;
const PAUSE_MS: std::ops::Range<u64> = 1..60;
/// How long the last list may take.
const LIMIT: Duration = Duration::from_secs(30);

/// What a key may hold.
#[derive(Default)]
struct Held {
    /// The value after the last write whose outcome is known.
    now: Option<Bytes>,
    /// The values of writes of unknown outcome: any of them may still take effect.
    perhaps: BTreeSet<Option<Bytes>>,
}

/// The client.
pub struct Bulk {
    client: Client,
    rng: StdRng,
    keys: Vec<Bytes>,
    held: BTreeMap<Bytes, Held>,
    timeline: Arc<dyn Timeline>,
}

impl Bulk {
    /// A client with this many keys.
    pub fn new(client: Client, rng: StdRng, keys: u32, timeline: impl Timeline + 'static) -> Bulk {
        let keys = (0..keys).map(|key| Bytes::from(format!("{PREFIX}{key:05}"))).collect();
        Bulk { client, rng, keys, held: BTreeMap::new(), timeline: Arc::new(timeline) }
    }

    /// Writes and lists until told to stop, then lists once more. Returns what was listed wrong,
    /// and the number of pages read.
    pub async fn run(mut self, stop: Arc<AtomicBool>) -> (Vec<String>, u64) {
        let (mut wrong, mut pages) = (Vec::new(), 0);
        for first in (0..self.keys.len()).step_by(BATCH) {
            let keys = self.keys.iter().skip(first).take(BATCH).cloned().collect();
            self.write(keys, 0.0).await;
        }
        while !stop.load(Ordering::Relaxed) {
            if self.rng.random_ratio(1, LISTS) {
                pages += self.list(self.client.clone(), &mut wrong).await;
            } else {
                let (from, some) =
                    (self.rng.random_range(0..self.keys.len()), self.rng.random_range(1..=BATCH));
                let keys = self
                    .keys
                    .iter()
                    .cycle()
                    .skip(from)
                    .take(some.min(self.keys.len()))
                    .cloned()
                    .collect();
                self.write(keys, 0.2).await;
            }
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(PAUSE_MS))).await;
        }
        let patient = self.client.with_deadline(LIMIT);
        pages += self.list(patient, &mut wrong).await;
        (wrong, pages)
    }

    async fn write(&mut self, keys: Vec<Bytes>, deleted: f64) {
        let mut batch = self.client.batch();
        let mut changes = Vec::new();
        for key in keys {
            let value = (!self.rng.random_bool(deleted)).then(|| {
                let mut value = vec![0; self.rng.random_range(VALUE_BYTES)];
                self.rng.fill(value.as_mut_slice());
                Bytes::from(value)
            });
            batch = match &value {
                Some(value) => batch.put(key.clone(), value.clone()),
                None => batch.delete(key.clone()),
            };
            changes.push((key, value));
        }
        let outcome = batch.commit().await;
        self.timeline.event(format_args!(
            "bulk: {} keys from {:?}: {:?}",
            changes.len(),
            changes.first().map(|c| &c.0),
            outcome.as_ref().err()
        ));
        for (key, value) in changes {
            let held = self.held.entry(key).or_default();
            match &outcome {
                Ok(_) => held.now = value,
                Err(Error::OutcomeUnknown { .. }) => drop(held.perhaps.insert(value)),
                Err(_) => {}
            }
        }
    }

    /// Lists all keys, page by page. The pages are not of one moment, but no other client writes
    /// these keys.
    async fn list(&mut self, client: Client, wrong: &mut Vec<String>) -> u64 {
        let options = ListOptions::prefix(Bytes::from_static(PREFIX.as_bytes()));
        let options = options
            .limit(self.rng.random_range(5..200))
            .max_bytes(self.rng.random_range(2_000..200_000));
        let (mut found, mut after, mut pages) = (BTreeMap::new(), None::<Bytes>, 0);
        loop {
            let page = match &after {
                Some(after) => client.list(options.clone().start_after(after.clone())).await,
                None => client.list(options.clone()).await,
            };
            let Ok(page) = page else { return pages };
            pages += 1;
            after = page.items.last().map(|item| item.key.clone());
            found.extend(page.items.into_iter().map(|item| (item.key, item.value)));
            if !page.more {
                break;
            }
        }
        for key in &self.keys {
            let read = found.remove(key);
            let held = self.held.entry(key.clone()).or_default();
            if read != held.now && !held.perhaps.contains(&read) {
                let lengths = (read.map(|value| value.len()), held.now.as_ref().map(Bytes::len));
                wrong.push(format!(
                    "key `{}`: bytes read, bytes written: {lengths:?}",
                    key.escape_ascii()
                ));
            }
        }
        wrong.extend(
            found.keys().map(|key| format!("key `{}`, which no client wrote", key.escape_ascii())),
        );
        pages
    }
}
