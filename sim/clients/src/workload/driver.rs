//! Asks the real client library, and records question, answer and times.

use super::encoding::{decode_key, decode_value, encode_key, encode_value, group_prefix};
use super::plan::Generator;
use crate::Timeline;
use crate::check::acknowledged::FinalKeys;
use crate::history::{
    Action, Change, Condition, GROUP_KEYS, Item, Key, ListSpec, Outcome, Record, WriteOperation,
};
use cairn_client::{Client, Error, KeyValue, ListOptions, Version};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The history under construction, and answers that no client should get. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    timeline: Arc<dyn Timeline>,
    records: Arc<Mutex<Vec<Record>>>,
    surprises: Arc<Mutex<Vec<String>>>,
    unreadable: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    /// An empty recorder on this clock.
    pub fn new(timeline: impl Timeline + 'static) -> Recorder {
        Recorder {
            timeline: Arc::new(timeline),
            records: Arc::default(),
            surprises: Arc::default(),
            unreadable: Arc::default(),
        }
    }

    /// The records so far.
    pub fn records(&self) -> Vec<Record> {
        self.records.lock().clone()
    }

    /// Writes that took effect so far, as far as clients know.
    pub fn acknowledged(&self) -> usize {
        let records = self.records.lock();
        records.iter().filter(|record| matches!(record.outcome, Outcome::Applied { .. })).count()
    }

    /// Answers that no client should get.
    pub fn surprises(&self) -> Vec<String> {
        self.surprises.lock().clone()
    }

    /// Answers that a value exists and cannot be read.
    pub fn unreadable(&self) -> Vec<String> {
        self.unreadable.lock().clone()
    }

    fn surprise(&self, text: String) {
        self.timeline.event(format_args!("surprise: {text}"));
        self.surprises.lock().push(text);
    }

    /// Does `action` and records it.
    async fn perform(
        &self,
        number: u32,
        client: &Client,
        (group, action): (u32, Action),
        synced: bool,
    ) -> Record {
        let invoked = self.timeline.now();
        let outcome = match &action {
            Action::Write(operations) if synced => self.write(&client.synced(), group, operations).await,
            Action::Write(operations) => self.write(client, group, operations).await,
            Action::Get(key) => self.get(client.get(encode_key(group, *key)).await),
            Action::StaleGet(key) => self.get(client.get_stale(encode_key(group, *key)).await),
            Action::Version(key) => match client.version(encode_key(group, *key)).await {
                Ok(found) => Outcome::FoundVersion(found.map(u64::from)),
                Err(error) => self.no_effect(&error),
            },
            Action::List(spec) => self.list(client, group, spec).await,
        };
        let returned = self.timeline.now();
        let record = Record { client: number, group, action, synced, invoked, returned, outcome };
        self.timeline.event(format_args!("{record}"));
        self.records.lock().push(record.clone());
        record
    }

    /// Reads one key, as part of the history. `number` must be no other client's.
    pub async fn read(&self, number: u32, client: &Client, group: u32, key: Key) {
        self.perform(number, client, (group, Action::Get(key)), false).await;
    }

    /// Puts one key, as part of the history. `number` must be no other client's, and puts once.
    pub async fn put(&self, number: u32, client: &Client, group: u32, key: Key) {
        let change = Change::Put((u64::from(number) + 1) << 32);
        let write = vec![WriteOperation { key, change, condition: Condition::None }];
        self.perform(number, client, (group, Action::Write(write)), false).await;
    }

    async fn write(&self, client: &Client, group: u32, operations: &[WriteOperation]) -> Outcome {
        match operations {
            [WriteOperation { key, change: Change::Put(value), condition }] => {
                let answer =
                    client.put_if(encode_key(group, *key), encode_value(*value), wire(*condition)).await;
                self.answer(answer.map(|info| (info.version, info.term, vec![info.previous])))
            }
            [WriteOperation { key, change: Change::Delete, condition }] => {
                let answer = client.delete_if(encode_key(group, *key), wire(*condition)).await;
                self.answer(answer.map(|info| (info.version, info.term, vec![info.previous])))
            }
            _ => {
                let batch = operations.iter().fold(client.batch(), |batch, operation| {
                    let (key, condition) = (encode_key(group, operation.key), wire(operation.condition));
                    match operation.change {
                        Change::Put(value) => batch.put_if(key, encode_value(value), condition),
                        Change::Delete => batch.delete_if(key, condition),
                        Change::Check => batch.check(key, condition),
                    }
                });
                self.answer(batch.commit().await.map(|info| (info.version, info.term, info.previous)))
            }
        }
    }

    fn answer(&self, answer: Result<(Version, u64, Vec<Option<Version>>), Error>) -> Outcome {
        match answer {
            Ok((version, term, previous)) => {
                let previous = previous.into_iter().map(|version| version.map(u64::from)).collect();
                Outcome::Applied { index: version.0, term, previous }
            }
            Err(Error::OutcomeUnknown { .. }) => Outcome::Unknown,
            Err(Error::ConditionFailed { failed, at, .. }) => Outcome::ConditionFailed {
                index: at.0,
                failed: failed.into_iter().map(|f| (f.operation, f.version.map(u64::from))).collect(),
            },
            Err(error) => self.no_effect(&error),
        }
    }

    fn no_effect(&self, error: &Error) -> Outcome {
        if matches!(error, Error::ValueUnreadable { .. }) {
            self.timeline.event(format_args!("unreadable: {error}"));
            self.unreadable.lock().push(error.to_string());
        } else if !error.is_transient() {
            self.surprise(format!("{error} ({error:?})"));
        }
        Outcome::NoEffect
    }

    fn get(&self, answer: Result<Option<KeyValue>, Error>) -> Outcome {
        match answer {
            Ok(None) => Outcome::Found(None),
            Ok(Some(item)) => match decode_value(&item.value) {
                Some(value) => Outcome::Found(Some((value, item.version.0))),
                None => {
                    self.surprise(format!(
                        "key {:?} has {} bytes that nobody wrote",
                        item.key,
                        item.value.len()
                    ));
                    Outcome::NoEffect
                }
            },
            Err(error) => self.no_effect(&error),
        }
    }

    async fn list(&self, client: &Client, group: u32, spec: &ListSpec) -> Outcome {
        let mut options =
            ListOptions::prefix(group_prefix(group)).limit(u32::try_from(spec.limit).unwrap_or(1));
        if let Some(key) = spec.start_after {
            options = options.start_after(encode_key(group, key));
        }
        if spec.reverse {
            options = options.reverse();
        }
        if spec.keys_only {
            options = options.keys_only();
        }
        match client.list(options.max_bytes(spec.max_bytes)).await {
            Ok(page) => {
                let items: Option<Vec<Item>> =
                    page.items.iter().map(|item| listed(group, item, spec.keys_only)).collect();
                items.map_or_else(
                    || {
                        self.surprise(format!("a list of group {group} has foreign bytes: {page:?}"));
                        Outcome::NoEffect
                    },
                    |items| Outcome::Listed(items, page.more),
                )
            }
            Err(error) => self.no_effect(&error),
        }
    }
}

fn listed(group: u32, item: &KeyValue, keys_only: bool) -> Option<Item> {
    let (of, key) = decode_key(&item.key)?;
    let value = if keys_only { None } else { Some(decode_value(&item.value)?) };
    (of == group).then_some(Item { key, value, version: item.version.0 })
}

fn wire(condition: Condition) -> cairn_client::Condition {
    match condition {
        Condition::None => cairn_client::Condition::None,
        Condition::Absent => cairn_client::Condition::Absent,
        Condition::Exists => cairn_client::Condition::Exists,
        Condition::Version(version) => cairn_client::Condition::Version(Version(version)),
    }
}

/// One task: asks, pauses, asks, until told to stop.
pub async fn run_client(
    number: u32,
    client: Client,
    mut generator: Generator,
    recorder: Recorder,
    stop: Arc<AtomicBool>,
) {
    while !stop.load(Ordering::Relaxed) {
        let (group, action) = generator.next_action();
        let synced = generator.wants_synced(&action);
        let record = recorder.perform(number, &client, (group, action), synced).await;
        generator.learn(&record);
        tokio::time::sleep(generator.think()).await;
    }
}

/// How often, and how far apart, a healed cluster is asked again that refuses a write.
const REFUSALS: u64 = 30;
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// What the healed cluster answered.
#[derive(Debug)]
pub struct End {
    /// Whether a write took effect.
    pub written: bool,
    /// Each key that could be read.
    pub keys: FinalKeys,
}

/// Writes once and reads every key, as part of the history. `number` must be no other client's.
pub async fn read_everything(number: u32, client: Client, groups: u32, recorder: Recorder) -> End {
    let mut attempt = 0;
    let record = loop {
        let put = Change::Put(((u64::from(number) + 1) << 32) + attempt);
        let write = vec![WriteOperation { key: 0, change: put, condition: Condition::None }];
        let record = recorder.perform(number, &client, (0, Action::Write(write)), false).await;
        // A full disk refuses, and clears by itself with the next syncs and checkpoints.
        if !matches!(record.outcome, Outcome::NoEffect) || attempt == REFUSALS {
            break record;
        }
        attempt += 1;
        tokio::time::sleep(REFUSED_PAUSE).await;
    };
    let mut end = End { written: matches!(record.outcome, Outcome::Applied { .. }), keys: FinalKeys::new() };
    let keys: Vec<(u32, Key)> =
        (0..groups).flat_map(|group| (0..GROUP_KEYS).map(move |key| (group, key))).collect();
    for (group, key) in keys {
        let record = recorder.perform(number, &client, (group, Action::Get(key)), false).await;
        if let Outcome::Found(found) = record.outcome {
            end.keys.insert((group, key), found.map(|(_, version)| version));
        } else {
            // One that cannot be read within its deadline is enough to know.
            break;
        }
    }
    end
}
