//! Writes an input to the cluster, in batches; or only compares it.
//!
//! What holds here: a key that exists is never replaced unless that was asked for, whoever writes it
//! meanwhile: the servers check. A key that has the same value already is not written again, so an import
//! that was broken off may be run again. In memory are [`BATCHES`] batches and [`IN_FLIGHT_BYTES`], and
//! [`READS`] values of the cluster.

use super::check::Sizes;
use super::input::{Entry, Input, Read};
use crate::cli::bytes_text::escape;
use cairn_client::{Client, Condition, Error};
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use std::collections::BTreeSet;
use tokio::sync::Semaphore;

/// Batches that are sent at a time.
const BATCHES: usize = 8;
/// Bytes of keys and values in a batch, unless one value is larger.
const BATCH_BYTES: u64 = 1 << 20;
/// The most operations of a batch, if the servers take as many.
const BATCH_OPERATIONS: usize = 128;
/// Bytes of all batches that are sent at a time, unless one is larger.
const IN_FLIGHT_BYTES: u64 = 32 << 20;
/// Values of the cluster that are read at a time, to compare them.
const READS: usize = 16;
/// How often a batch is sent while other clients delete what they wrote before.
const ROUNDS: usize = 16;
/// So many keys are named; all are counted.
const NAMED: usize = 5;

/// What happens to a key that exists with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// The import ends.
    Refuse,
    /// It stays as it is.
    Keep,
    /// It gets the value of the input.
    Overwrite,
}

/// What became of the keys, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// They did not exist.
    pub(super) written: u64,
    /// They existed with another value.
    pub(super) overwritten: u64,
    /// They have this value already.
    pub(super) same: u64,
    /// They exist with another value, and stay.
    pub(super) kept: u64,
    /// They exist with another value, which is refused.
    pub(super) refused: u64,
    /// The first ones of these.
    pub(super) named: Vec<String>,
}

impl Counts {
    /// All keys that something became of.
    pub(super) fn keys(&self) -> u64 {
        self.written + self.overwritten + self.same + self.kept + self.refused
    }

    fn add(&mut self, other: Counts) {
        self.written += other.written;
        self.overwritten += other.overwritten;
        self.same += other.same;
        self.kept += other.kept;
        self.refused += other.refused;
        let left = NAMED.saturating_sub(self.named.len());
        self.named.extend(other.named.into_iter().take(left));
    }

    /// Counts a key that exists.
    fn found(&mut self, entry: &Entry, is_same: bool, existing: Existing) {
        match existing {
            _ if is_same => self.same += 1,
            Existing::Keep => self.kept += 1,
            Existing::Overwrite => self.overwritten += 1,
            Existing::Refuse => {
                self.refused += 1;
                if self.named.len() < NAMED {
                    self.named.push(escape(&entry.key));
                }
            }
        }
    }
}

/// How an input is written.
pub(super) struct Job {
    pub(super) client: Client,
    pub(super) sizes: Sizes,
    pub(super) existing: Existing,
    reads: Semaphore,
}

/// Whether anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The counts say what would be done.
    Compare,
    Write,
}

/// What the cluster has of a key.
enum State {
    Absent,
    Same,
    Other,
}

impl Job {
    pub(super) fn new(client: Client, sizes: Sizes, existing: Existing) -> Job {
        Job { client, sizes, existing, reads: Semaphore::new(READS) }
    }

    /// Goes through the input as it is now, which may be shorter or longer than it was when it was checked:
    /// [`Counts::keys`] tells. `done` is told of each batch how many keys it had. After an error no
    /// batch is begun, and the counts say what was done.
    pub(super) async fn run(
        &self,
        step: Step,
        input: &mut Input,
        done: &dyn Fn(u64),
    ) -> (Counts, anyhow::Result<()>) {
        let (mut counts, mut result) = (Counts::default(), input.rewind());
        let mut batches = Batches { input, sizes: self.sizes, ahead: None };
        let (mut running, mut bytes, mut waiting) = (FuturesUnordered::new(), 0_u64, None);
        loop {
            if waiting.is_none() && result.is_ok() {
                match batches.next() {
                    Ok(batch) => waiting = batch,
                    Err(error) => result = Err(error),
                }
            }
            let fits = |batch: &mut Batch| {
                let room = bytes.saturating_add(batch.bytes) <= IN_FLIGHT_BYTES;
                running.is_empty() || (running.len() < BATCHES && room)
            };
            if result.is_ok()
                && let Some(batch) = waiting.take_if(fits)
            {
                bytes += batch.bytes;
                running.push(self.batch(step, batch));
                continue;
            }
            let Some(ended) = running.next().await else { break };
            bytes = bytes.saturating_sub(ended.bytes);
            counts.add(ended.counts);
            done(ended.keys);
            if result.is_ok() {
                result = ended.result;
            }
        }
        (counts, result)
    }

    async fn batch(&self, step: Step, batch: Batch) -> Ended {
        let (bytes, keys) = (batch.bytes, batch.entries.len() as u64);
        let mut counts = Counts::default();
        let result = match (step, self.existing) {
            (Step::Compare, _) => self.compare(&batch.entries, &mut counts).await,
            (Step::Write, Existing::Overwrite) => self.overwrite(batch.entries, &mut counts).await,
            (Step::Write, _) => self.put_absent(batch.entries, &mut counts).await,
        };
        Ended { bytes, keys, counts, result }
    }

    async fn compare(&self, entries: &[Entry], counts: &mut Counts) -> anyhow::Result<()> {
        for (entry, state) in entries.iter().zip(self.states(entries).await?) {
            match state {
                State::Absent => counts.written += 1,
                State::Same => counts.found(entry, true, self.existing),
                State::Other => counts.found(entry, false, self.existing),
            }
        }
        Ok(())
    }

    /// Puts what is absent. The servers say what is not, and nothing of a batch with such a key is written.
    async fn put_absent(&self, mut entries: Vec<Entry>, counts: &mut Counts) -> anyhow::Result<()> {
        for _ in 0..ROUNDS {
            let failed = match self.put(&entries, Condition::Absent).await {
                Ok(()) => {
                    counts.written += entries.len() as u64;
                    return Ok(());
                }
                Err(Error::ConditionFailed { failed, .. }) => failed,
                Err(error) => return Err(error.into()),
            };
            let there: BTreeSet<usize> = failed.iter().map(|failed| failed.operation).collect();
            let (mut existing, mut absent) = (Vec::new(), Vec::new());
            for (number, entry) in entries.into_iter().enumerate() {
                if there.contains(&number) { existing.push(entry) } else { absent.push(entry) }
            }
            let states = self.states(&existing).await?;
            for (entry, state) in existing.into_iter().zip(states) {
                match state {
                    // It was deleted meanwhile.
                    State::Absent => absent.push(entry),
                    State::Same => counts.found(&entry, true, self.existing),
                    State::Other => counts.found(&entry, false, self.existing),
                }
            }
            if counts.refused > 0 {
                let keys = counts.named.join("`, `");
                anyhow::bail!("`{keys}` got another value meanwhile, from another client");
            }
            entries = absent;
        }
        anyhow::bail!("other clients write and delete the same keys over and over")
    }

    /// Puts what has another value, or is absent.
    async fn overwrite(&self, entries: Vec<Entry>, counts: &mut Counts) -> anyhow::Result<()> {
        let states = self.states(&entries).await?;
        let (mut changed, mut absent) = (Vec::new(), 0);
        for (entry, state) in entries.into_iter().zip(states) {
            match state {
                State::Same => counts.same += 1,
                State::Other => changed.push(entry),
                State::Absent => {
                    absent += 1;
                    changed.push(entry);
                }
            }
        }
        self.put(&changed, Condition::None).await?;
        counts.written += absent;
        counts.overwritten += changed.len() as u64 - absent;
        Ok(())
    }

    async fn put(&self, entries: &[Entry], condition: Condition) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut batch = self.client.batch();
        for entry in entries {
            batch = batch.put_if(entry.key.clone(), entry.value.clone(), condition);
        }
        batch.commit().await.map(drop)
    }

    async fn states(&self, entries: &[Entry]) -> Result<Vec<State>, Error> {
        try_join_all(entries.iter().map(|entry| self.state(entry))).await
    }

    async fn state(&self, entry: &Entry) -> Result<State, Error> {
        // It is never closed.
        let _permit = self.reads.acquire().await.ok();
        Ok(match self.client.get(entry.key.clone()).await? {
            None => State::Absent,
            Some(item) if item.value == entry.value => State::Same,
            Some(_) => State::Other,
        })
    }
}

/// What became of a batch.
struct Ended {
    bytes: u64,
    keys: u64,
    counts: Counts,
    result: anyhow::Result<()>,
}

/// Entries that are sent together, and their bytes.
#[derive(Debug, Default)]
struct Batch {
    entries: Vec<Entry>,
    bytes: u64,
}

/// An input in batches.
struct Batches<'a> {
    input: &'a mut Input,
    sizes: Sizes,
    /// It did not fit into the batch before.
    ahead: Option<Entry>,
}

impl Batches<'_> {
    fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        let most = BATCH_BYTES.min(self.sizes.request);
        let operations = BATCH_OPERATIONS.min(self.sizes.operations).max(1);
        let mut batch = Batch::default();
        while batch.entries.len() < operations {
            let Some(entry) = self.entry()? else { break };
            let bytes = (entry.key.len() + entry.value.len()) as u64;
            if !batch.entries.is_empty() && batch.bytes + bytes > most {
                self.ahead = Some(entry);
                break;
            }
            batch.bytes += bytes;
            batch.entries.push(entry);
        }
        Ok(Some(batch).filter(|batch| !batch.entries.is_empty()))
    }

    /// The next entry of an input that was checked.
    fn entry(&mut self) -> anyhow::Result<Option<Entry>> {
        if let Some(entry) = self.ahead.take() {
            return Ok(Some(entry));
        }
        loop {
            match self.input.next()? {
                Read::Entry(entry) => return Ok(Some(entry)),
                Read::End(_) => {}
                // The end. Whether it is the one that was checked shows in how many keys there were.
                Read::Cut { .. } | Read::Nothing => return Ok(None),
                Read::Bad { line, what } => {
                    let line = line.map_or(String::new(), |line| format!("line {line}: "));
                    anyhow::bail!("{} changed meanwhile: {line}{what}", self.input.name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(sizes: Sizes, text: &str) -> Vec<(Vec<String>, u64)> {
        let mut input = Input::of_text(text);
        let mut batches = Batches { input: &mut input, sizes, ahead: None };
        let mut found = Vec::new();
        while let Some(batch) = batches.next().expect("it is read") {
            let keys = batch.entries.iter().map(|entry| escape(&entry.key)).collect();
            found.push((keys, batch.bytes));
        }
        found
    }

    #[test]
    fn batches_are_within_the_limits_and_a_large_value_is_alone() {
        let line = |key: &str, bytes| {
            format!("{{\"key\":\"{key}\",\"value\":\"{}\"}}\n", "v".repeat(bytes))
        };
        let sizes = Sizes { key: 8, value: 100, request: 20, operations: 3 };
        let text = [("a", 1), ("b", 1), ("c", 1), ("d", 17), ("e", 1), ("f", 99), ("g", 0)]
            .map(|(key, bytes)| line(key, bytes))
            .concat();
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            batches(sizes, &text),
            [
                (keys(&["a", "b", "c"]), 6),
                (keys(&["d", "e"]), 20),
                (keys(&["f"]), 100),
                (keys(&["g"]), 1),
            ]
        );
        assert!(batches(sizes, "{\"end\":{\"keys\":0}}\n").is_empty());
    }

    #[test]
    fn keys_that_exist_are_counted_by_what_becomes_of_them() {
        let entry = Entry { key: "k\n".into(), value: "v".into(), line: None };
        for (existing, expected) in [
            (Existing::Keep, Counts { kept: 7, ..Counts::default() }),
            (Existing::Overwrite, Counts { overwritten: 7, ..Counts::default() }),
            (
                Existing::Refuse,
                Counts { refused: 7, named: vec!["k\\n".into(); NAMED], ..Counts::default() },
            ),
        ] {
            let (mut one, mut sum) = (Counts::default(), Counts::default());
            for _ in 0..7 {
                one.found(&entry, false, existing);
            }
            assert_eq!(one, expected);
            for _ in 0..3 {
                sum.add(one.clone());
            }
            assert_eq!((sum.refused, sum.named), (3 * expected.refused, expected.named));
            one.found(&entry, true, existing);
            assert_eq!(one.same, 1);
        }
    }
}
