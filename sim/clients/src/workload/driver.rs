//! Sends requests with the real client library, and records request, answer and times.

use super::encoding::{decode_key, decode_value, encode_key, encode_value, group_prefix};
use super::plan::Generator;
use super::ranges::Ranges;
use super::rotation::Rotation;
use crate::Timeline;
use crate::check::acknowledged::FinalKeys;
use crate::history::{
    Action, Change, Condition, GROUP_KEYS, Item, Key, ListSpec, Outcome, RangeSpec, Record,
    WriteOperation,
};
use cairn_client::{Client, Error, KeyValue, ListOptions, Many, Range, Version};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a scan may take in all: its client waits much longer for a node that hangs. Who stops clients, and waits
/// for their deadline, waits for their scans as well: it is no longer than a scenario's deadline.
pub const SCAN_LIMIT: Duration = Duration::from_secs(4);

/// The history under construction, and answers that no client should get. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    timeline: Arc<dyn Timeline>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    records: Vec<Record>,
    /// Writes acknowledged, including those whose records were taken.
    acknowledged: usize,
    surprises: Vec<String>,
    unreadable: Vec<String>,
    ranges: Ranges,
    rotation: Option<Rotation>,
}

impl Recorder {
    /// An empty recorder on this clock.
    pub fn new(timeline: impl Timeline + 'static) -> Recorder {
        Recorder { timeline: Arc::new(timeline), kept: Arc::default() }
    }

    /// A recorder for a long run, whose groups take turns at this many positions.
    pub(crate) fn rotating(timeline: impl Timeline + 'static, positions: u32) -> Recorder {
        let recorder = Recorder::new(timeline);
        recorder.kept.lock().rotation = Some(Rotation::new(positions));
        recorder
    }

    /// The time.
    pub fn now(&self) -> u64 {
        self.timeline.now()
    }

    /// The records so far.
    pub fn records(&self) -> Vec<Record> {
        self.kept.lock().records.clone()
    }

    /// How many writes took effect so far, as far as clients know.
    pub fn acknowledged(&self) -> usize {
        self.kept.lock().acknowledged
    }

    /// The times of acknowledgements after `time`, of writes whose records were not taken.
    pub fn acknowledged_since(&self, time: u64) -> Vec<u64> {
        let kept = self.kept.lock();
        let later =
            kept.records.iter().filter(|record| record.is_applied() && record.returned > time);
        later.map(|record| record.returned).collect()
    }

    /// The greatest index of a write that was acknowledged up to this time, and whose record was not taken.
    pub fn acknowledged_through(&self, time: u64) -> Option<u64> {
        let kept = self.kept.lock();
        let earlier = kept.records.iter().filter(|record| record.returned <= time);
        earlier.filter_map(|record| Some(record.log_id()?.1)).max()
    }

    /// Answers that no client should get.
    pub fn surprises(&self) -> Vec<String> {
        self.kept.lock().surprises.clone()
    }

    /// Answers that a value exists but cannot be read.
    pub fn unreadable(&self) -> Vec<String> {
        self.kept.lock().unreadable.clone()
    }

    /// Takes the refusals of ranges by a cluster that has deleted one before. No client should get them, unless there
    /// was an unsafe recovery.
    pub fn take_refused_ranges(&self) -> Vec<String> {
        self.kept.lock().ranges.take()
    }

    /// An unsafe recovery may have discarded the version that has ranges.
    pub(crate) fn forget_ranges(&self) {
        self.kept.lock().ranges = Ranges::default();
    }

    /// Takes the records since the last call, and the answers that no client should get or that a
    /// value cannot be read.
    pub(crate) fn take(&self) -> (Vec<Record>, Vec<String>) {
        let mut kept = self.kept.lock();
        let kept = &mut *kept;
        let mut wrong = std::mem::take(&mut kept.surprises);
        wrong.append(&mut kept.unreadable);
        (std::mem::take(&mut kept.records), wrong)
    }

    /// The group at this position.
    fn group(&self, position: u32) -> u32 {
        self.kept.lock().rotation.as_mut().map_or(position, |rotation| rotation.group(position))
    }

    /// The group was checked, and `open` of its writes may still take effect.
    pub(crate) fn checked(&self, group: u32, open: usize) {
        if let Some(rotation) = &mut self.kept.lock().rotation {
            rotation.checked(group, open);
        }
    }

    /// Adds a record to the history.
    pub(crate) fn push(&self, record: Record) {
        let mut kept = self.kept.lock();
        kept.acknowledged += usize::from(record.is_applied());
        if let (true, Some(rotation)) = (record.is_open(), &mut kept.rotation) {
            rotation.opened(record.group);
        }
        kept.records.push(record);
    }

    fn surprise(&self, text: String) {
        self.timeline.event(format_args!("surprise: {text}"));
        self.kept.lock().surprises.push(text);
    }

    /// Performs `action` and records it.
    async fn perform(
        &self,
        number: u32,
        client: &Client,
        (group, action): (u32, Action),
        synced: bool,
    ) -> Record {
        let invoked = self.timeline.now();
        let outcome = match &action {
            Action::Write(operations) if synced => {
                self.write(&client.synced(), group, operations).await
            }
            Action::Write(operations) => self.write(client, group, operations).await,
            Action::DeleteRange(spec) if synced => {
                self.delete_range(&client.synced(), group, *spec, invoked).await
            }
            Action::DeleteRange(spec) => self.delete_range(client, group, *spec, invoked).await,
            Action::Get(key) => self.get(client.get(encode_key(group, *key)).await),
            Action::StaleGet(key) => self.get(client.get_stale(encode_key(group, *key)).await),
            Action::BoundedGet(key, most) => {
                let old = client.with_max_staleness(Duration::from_millis(*most));
                self.get(old.get(encode_key(group, *key)).await)
            }
            Action::GetMany(keys) => {
                let keys = keys.iter().map(|key| encode_key(group, *key));
                self.get_many(client.get_many(keys).await)
            }
            Action::BoundedGetMany(keys, most) => {
                let old = client.with_max_staleness(Duration::from_millis(*most));
                let keys = keys.iter().map(|key| encode_key(group, *key));
                self.get_many(old.get_many(keys).await)
            }
            Action::Version(key) => match client.version(encode_key(group, *key)).await {
                Ok(found) => Outcome::FoundVersion(found.map(u64::from)),
                Err(error) => self.no_effect(&error),
            },
            Action::List(spec) => self.list(client, group, spec).await,
            Action::Scan => self.scan(client, group).await,
        };
        let returned = self.timeline.now();
        let record = Record { client: number, group, action, synced, invoked, returned, outcome };
        self.timeline.event(format_args!("{record}"));
        self.push(record.clone());
        record
    }

    /// Reads one key, as part of the history. No other client may have this `number`.
    pub async fn read(&self, number: u32, client: &Client, group: u32, key: Key) {
        self.perform(number, client, (group, Action::Get(key)), false).await;
    }

    /// Puts one key, as part of the history. No other client may have this `number`, and it may put
    /// only once.
    pub async fn put(&self, number: u32, client: &Client, group: u32, key: Key) {
        let change = Change::Put((u64::from(number) + 1) << 32);
        let write = vec![WriteOperation { key, change, condition: Condition::None }];
        self.perform(number, client, (group, Action::Write(write)), false).await;
    }

    async fn write(&self, client: &Client, group: u32, operations: &[WriteOperation]) -> Outcome {
        match operations {
            [WriteOperation { key, change: Change::Put(value), condition }] => {
                let answer = client
                    .put_if(encode_key(group, *key), encode_value(*value), wire(*condition))
                    .await;
                self.answer(answer.map(|info| (info.version, info.term, vec![info.previous])))
            }
            [WriteOperation { key, change: Change::Delete, condition }] => {
                let answer = client.delete_if(encode_key(group, *key), wire(*condition)).await;
                self.answer(answer.map(|info| (info.version, info.term, vec![info.previous])))
            }
            _ => {
                let batch = operations.iter().fold(client.batch(), |batch, operation| {
                    let (key, condition) =
                        (encode_key(group, operation.key), wire(operation.condition));
                    match operation.change {
                        Change::Put(value) => batch.put_if(key, encode_value(value), condition),
                        Change::Delete => batch.delete_if(key, condition),
                        Change::Check => batch.check(key, condition),
                    }
                });
                self.answer(
                    batch.commit().await.map(|info| (info.version, info.term, info.previous)),
                )
            }
        }
    }

    async fn delete_range(
        &self,
        client: &Client,
        group: u32,
        spec: RangeSpec,
        invoked: u64,
    ) -> Outcome {
        let RangeSpec { from, until, most, whole } = spec;
        let range = match (from, until) {
            (0, GROUP_KEYS) => Range::prefix(group_prefix(group)),
            _ => Range::from(encode_key(group, from)..encode_key(group, until)),
        };
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let answer = match whole {
            true => client.delete_range_within(range, most).await,
            false => client.delete_range_page(range, most).await,
        };
        if matches!(answer, Ok(_) | Err(Error::RangeTooLarge { .. })) {
            let now = self.timeline.now();
            self.kept.lock().ranges.answered(now);
        }
        match answer {
            Ok(done) => Outcome::RangeDeleted {
                index: done.version.0,
                term: done.term,
                deleted: done.deleted as usize,
                more: done.more,
            },
            Err(Error::OutcomeUnknown { .. }) => Outcome::Unknown,
            Err(Error::RangeTooLarge { at }) => Outcome::RangeTooLarge { index: at.0 },
            Err(refused @ Error::Refused { .. }) => {
                self.kept.lock().ranges.refused(invoked, &refused);
                Outcome::NoEffect
            }
            Err(error) => self.no_effect(&error),
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
                failed: failed
                    .into_iter()
                    .map(|f| (f.operation, f.version.map(u64::from)))
                    .collect(),
            },
            Err(error) => self.no_effect(&error),
        }
    }

    fn no_effect(&self, error: &Error) -> Outcome {
        if matches!(error, Error::ValueUnreadable { .. }) {
            self.timeline.event(format_args!("unreadable: {error}"));
            self.kept.lock().unreadable.push(error.to_string());
        } else if !error.is_transient() || matches!(error, Error::ScanBroken { breach: true, .. }) {
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
                        "key {:?} has {} bytes that no client wrote",
                        item.key,
                        item.value.len()
                    ));
                    Outcome::NoEffect
                }
            },
            Err(error) => self.no_effect(&error),
        }
    }

    fn get_many(&self, answer: Result<Many, Error>) -> Outcome {
        let Many { items, position, .. } = match answer {
            Ok(many) => many,
            Err(error) => return self.no_effect(&error),
        };
        let found = items.into_iter().map(|item| match self.get(Ok(item)) {
            Outcome::Found(found) => Some(found),
            _ => None,
        });
        let found: Option<Vec<_>> = found.collect();
        found.map_or(Outcome::NoEffect, |found| Outcome::FoundMany(found, position.index))
    }

    async fn scan(&self, client: &Client, group: u32) -> Outcome {
        let (items, index) = match tokio::time::timeout(SCAN_LIMIT, scanned(client, group)).await {
            Ok(Ok(scanned)) => scanned,
            Ok(Err(error)) => return self.no_effect(&error),
            // A node that hangs in the middle of it.
            Err(_) => return Outcome::NoEffect,
        };
        let mut found = vec![None; GROUP_KEYS];
        for item in &items {
            let Some(Item { key, value: Some(value), version }) = listed(group, item, false) else {
                self.surprise(format!("a scan of group {group} has foreign bytes: {items:?}"));
                return Outcome::NoEffect;
            };
            if let Some(slot) = found.get_mut(key) {
                *slot = Some((value, version));
            }
        }
        Outcome::FoundMany(found, index)
    }

    async fn list(&self, client: &Client, group: u32, spec: &ListSpec) -> Outcome {
        let mut options =
            ListOptions::prefix(group_prefix(group)).limit(u32::try_from(spec.limit).unwrap_or(1));
        if let Some(key) = spec.start_after {
            options = options.start_after(encode_key(group, key));
        }
        if let Some(key) = spec.end {
            options = options.end(encode_key(group, key));
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
                        self.surprise(format!(
                            "a list of group {group} has foreign bytes: {page:?}"
                        ));
                        Outcome::NoEffect
                    },
                    |items| Outcome::Listed(items, page.more),
                )
            }
            Err(error) => self.no_effect(&error),
        }
    }
}

/// All keys of a group, and the index of their state.
async fn scanned(client: &Client, group: u32) -> Result<(Vec<KeyValue>, u64), Error> {
    let mut scan = client.scan(Range::prefix(group_prefix(group))).await?;
    let (mut items, index) = (Vec::new(), scan.position().index);
    while let Some(item) = scan.next().await? {
        items.push(item);
    }
    Ok((items, index))
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

/// One task: sends requests, with pauses.
pub struct Worker {
    /// The number of its client in the history.
    pub number: u32,
    /// The client library.
    pub client: Client,
    /// The source of requests.
    pub generator: Generator,
    /// Where it records requests and answers.
    pub recorder: Recorder,
}

impl Worker {
    /// Works until told to stop. Returns itself, to continue later.
    pub async fn run(mut self, stop: Arc<AtomicBool>) -> Worker {
        while !stop.load(Ordering::Relaxed) {
            let (group, action) =
                self.generator.next_action(|position| self.recorder.group(position));
            let synced = self.generator.wants_synced(&action);
            let record =
                self.recorder.perform(self.number, &self.client, (group, action), synced).await;
            self.generator.learn(&record);
            let pause = self.generator.pause(&record);
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        self
    }
}

/// How often a write is retried that the cluster refuses after the faults, and how far apart.
const REFUSALS: u64 = 30;
/// So many writes may end unknown before the last one must be applied.
const UNKNOWN: u64 = 2;
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// What the cluster answered after the faults.
#[derive(Debug)]
pub struct End {
    /// Whether a write took effect.
    pub written: bool,
    /// Each key that could be read.
    pub keys: FinalKeys,
}

/// Writes once and reads every key, as part of the history. No other client may have this `number`.
pub async fn read_everything(number: u32, client: Client, groups: u32, recorder: Recorder) -> End {
    let mut attempt = 0;
    let record = loop {
        let put = Change::Put(((u64::from(number) + 1) << 32) + attempt);
        let write = vec![WriteOperation { key: 0, change: put, condition: Condition::None }];
        let record = recorder.perform(number, &client, (0, Action::Write(write)), false).await;
        // A full disk refuses writes until the next syncs and checkpoints free space. And where
        // there is room for few sessions, one may end before its write is known to be applied.
        let most = match record.outcome {
            Outcome::NoEffect => REFUSALS,
            Outcome::Unknown => UNKNOWN,
            _ => 0,
        };
        if attempt >= most {
            break record;
        }
        attempt += 1;
        tokio::time::sleep(REFUSED_PAUSE).await;
    };
    let mut end = End { written: record.is_applied(), keys: FinalKeys::new() };
    let keys: Vec<(u32, Key)> =
        (0..groups).flat_map(|group| (0..GROUP_KEYS).map(move |key| (group, key))).collect();
    for (group, key) in keys {
        let record = recorder.perform(number, &client, (group, Action::Get(key)), false).await;
        if let Outcome::Found(found) = record.outcome {
            end.keys.insert((group, key), found.map(|(_, version)| version));
        } else {
            // One key that cannot be read within its deadline is enough to know.
            break;
        }
    }
    end
}
