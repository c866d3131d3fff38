//! Writes an input to the cluster, in batches; or only compares it.
//!
//! What holds here: a key that exists is never replaced unless that was asked for, whoever writes it
//! meanwhile: the servers check. A key that has the same value already is not written again, so an import
//! that was broken off may be run again. In memory is what `bulk_write` allows.

use super::input::{Entry, Input, Read};
use crate::cli::bulk_write::{Batch, Cluster, Existing, Most, ROUNDS, There};
use crate::cli::bytes_text::escape;
use cairn_client::{Condition, Error};
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use std::collections::BTreeSet;

/// So many keys are named; all are counted.
const NAMED: usize = 5;

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
            Existing::Replace => self.overwritten += 1,
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
pub(super) struct Job(pub(super) Cluster);

/// Whether anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The counts say what would be done.
    Compare,
    Write,
}

impl Job {
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
        let mut batches = Batches { input, most: self.0.most, ahead: None };
        let (mut running, mut bytes, mut waiting) = (FuturesUnordered::new(), 0_u64, None);
        loop {
            if waiting.is_none() && result.is_ok() {
                match batches.next() {
                    Ok(batch) => waiting = batch,
                    Err(error) => result = Err(error),
                }
            }
            let fits = |batch: &mut Batch<Entry>| batch.fits_beside(running.len(), bytes);
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

    async fn batch(&self, step: Step, batch: Batch<Entry>) -> Ended {
        let (bytes, keys) = (batch.bytes, batch.entries.len() as u64);
        let mut counts = Counts::default();
        let result = match (step, self.0.existing) {
            (Step::Compare, _) => self.compare(&batch.entries, &mut counts).await,
            (Step::Write, Existing::Replace) => self.overwrite(batch.entries, &mut counts).await,
            (Step::Write, _) => self.put_absent(batch.entries, &mut counts).await,
        };
        Ended { bytes, keys, counts, result }
    }

    async fn compare(&self, entries: &[Entry], counts: &mut Counts) -> anyhow::Result<()> {
        for (entry, there) in entries.iter().zip(self.find(entries).await?) {
            match there {
                None => counts.written += 1,
                Some(there) => counts.found(entry, there.is_same, self.0.existing),
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
            let found = self.find(&existing).await?;
            for (entry, there) in existing.into_iter().zip(found) {
                match there {
                    // It was deleted meanwhile.
                    None => absent.push(entry),
                    Some(there) => counts.found(&entry, there.is_same, self.0.existing),
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
        let found = self.find(&entries).await?;
        let (mut changed, mut absent) = (Vec::new(), 0);
        for (entry, there) in entries.into_iter().zip(found) {
            match there {
                Some(There { is_same: true, .. }) => counts.same += 1,
                Some(_) => changed.push(entry),
                None => {
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
        let mut batch = self.0.client.batch();
        for entry in entries {
            batch = batch.put_if(entry.key.clone(), entry.value.clone(), condition);
        }
        batch.commit().await.map(drop)
    }

    /// What the cluster has of each.
    async fn find(&self, entries: &[Entry]) -> Result<Vec<Option<There>>, Error> {
        try_join_all(entries.iter().map(|entry| self.0.find(&entry.key, &entry.value))).await
    }
}

/// What became of a batch.
struct Ended {
    bytes: u64,
    keys: u64,
    counts: Counts,
    result: anyhow::Result<()>,
}

/// An input in batches.
struct Batches<'a> {
    input: &'a mut Input,
    most: Most,
    /// It did not fit into the batch before.
    ahead: Option<Entry>,
}

impl Batches<'_> {
    fn next(&mut self) -> anyhow::Result<Option<Batch<Entry>>> {
        let mut batch = Batch::default();
        while let Some(entry) = self.entry()? {
            let bytes = (entry.key.len() + entry.value.len()) as u64;
            if !batch.takes(bytes, self.most) {
                self.ahead = Some(entry);
                break;
            }
            batch.push(entry, bytes);
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

    fn batches(most: Most, text: &str) -> Vec<(Vec<String>, u64)> {
        let mut input = Input::of_text(text);
        let mut batches = Batches { input: &mut input, most, ahead: None };
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
        let most = Most { operations: 3, bytes: 20 };
        let text = [("a", 1), ("b", 1), ("c", 1), ("d", 17), ("e", 1), ("f", 99), ("g", 0)]
            .map(|(key, bytes)| line(key, bytes))
            .concat();
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            batches(most, &text),
            [
                (keys(&["a", "b", "c"]), 6),
                (keys(&["d", "e"]), 20),
                (keys(&["f"]), 100),
                (keys(&["g"]), 1),
            ]
        );
        assert!(batches(most, "{\"end\":{\"keys\":0}}\n").is_empty());
    }

    #[test]
    fn keys_that_exist_are_counted_by_what_becomes_of_them() {
        let entry = Entry { key: "k\n".into(), value: "v".into(), line: None };
        for (existing, expected) in [
            (Existing::Keep, Counts { kept: 7, ..Counts::default() }),
            (Existing::Replace, Counts { overwritten: 7, ..Counts::default() }),
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
