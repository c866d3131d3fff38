//! Writes what a pass copies to the target, in batches, and deletes what is gone.
//!
//! What holds here: every write has a condition, which the servers check: that the key does not exist, or
//! that it has the version that was seen. So nothing that another client writes meanwhile is replaced unseen.
//! In memory are what `bulk_write` allows, and one piece of the source.

use super::pass::{Entry, Gone, Known, Step};
use crate::cli::bulk_write::{Batch, Cluster, Existing, Most, ROUNDS, There};
use crate::cli::bytes_text::escape;
use crate::cli::state::Reading;
use bytes::Bytes;
use cairn_client::{Condition, Error, Version};
use futures::future::try_join_all;
use std::collections::BTreeMap;
use tokio::task::JoinSet;

/// What became of the keys of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The source has so many.
    pub(super) keys: u64,
    /// They did not exist at the target.
    pub(super) written: u64,
    /// They got another value: they had one of an earlier pass, or one that was to be replaced.
    pub(super) replaced: u64,
    /// They were there with the same value.
    pub(super) same: u64,
    /// They exist with another value, and stay: so many once the pass has ended, also of earlier passes.
    pub(super) kept: u64,
    /// They are gone at the source, and were deleted.
    pub(super) deleted: u64,
    /// They are gone at the source, and stay: this copy did not write them, or not as the last one.
    pub(super) left: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Counts) {
        self.keys += other.keys;
        self.written += other.written;
        self.replaced += other.replaced;
        self.same += other.same;
        self.kept += other.kept;
        self.deleted += other.deleted;
        self.left += other.left;
    }

    /// Changes of the target.
    pub(super) fn changes(&self) -> u64 {
        self.written + self.replaced + self.deleted
    }
}

/// A key that is put.
#[derive(Clone, Debug)]
struct Put {
    key: Bytes,
    value: Bytes,
    source: Entry,
    condition: Condition,
}

impl Put {
    /// The story: keys and values were parts of the message that brought them. One changed key kept all of its
    /// message, of some MiB, and a batch has many.
    fn of(key: &[u8], value: &[u8], source: Entry, condition: Condition) -> Put {
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        Put { key, value, source, condition }
    }

    fn bytes(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64
    }
}

/// Takes keys for one batch away from the end.
fn last_of(keys: &mut Vec<(Vec<u8>, Version)>, most: Most) -> Vec<(Vec<u8>, Version)> {
    let mut batch = Batch::default();
    while let Some(last) = keys.pop_if(|(key, _)| batch.takes(key.len() as u64, most)) {
        let bytes = last.0.len() as u64;
        batch.push(last, bytes);
    }
    batch.entries
}

/// What became of a batch.
#[derive(Debug, Default)]
struct Ended {
    bytes: u64,
    counts: Counts,
    /// Keys that are at the target as at the source: with the version there, and whether this wrote it.
    copied: Vec<(Bytes, Entry, Version, bool)>,
    /// Keys that have another value there, which stays.
    kept: Vec<(Bytes, Entry)>,
}

/// The target, and how it is written.
#[derive(Clone)]
pub(super) struct Target(pub(super) Cluster);

/// Batches that are sent, and what is known of those that ended.
struct Sending<'a> {
    target: &'a Target,
    known: &'a mut Known,
    counts: &'a mut Counts,
    running: JoinSet<anyhow::Result<Ended>>,
    bytes: u64,
}

impl Target {
    /// Copies what `known` says of a state, and then deletes what is gone. After an error the counts say
    /// what was done. `each` is told how many keys of the source were looked at.
    pub(super) async fn pass(
        &self,
        reading: &mut Reading,
        known: &mut Known,
        counts: &mut Counts,
        each: &dyn Fn(u64),
    ) -> anyhow::Result<()> {
        let (running, mut batch) = (JoinSet::new(), Batch::default());
        let mut sending = Sending { target: self, known, counts, running, bytes: 0 };
        while let Some(items) = reading.next().await? {
            each(items.len() as u64);
            for item in items {
                sending.counts.keys += 1;
                let source = (item.term, item.index);
                let Step::Put(condition) = sending.known.step(&item.key, source) else { continue };
                let key = item.key.clone();
                if item.value.is_none() && sending.known.is_left_out(source) {
                    anyhow::bail!(
                        "the source has `{}` of an entry that the last pass did not find there: it went back to an earlier state, \
                         as by an unsafe recovery",
                        escape(&key)
                    );
                }
                let put = Put::of(&key, &reading.value(item)?, source, condition);
                let bytes = put.bytes();
                if !batch.takes(bytes, self.0.most) {
                    sending.send(std::mem::take(&mut batch)).await?;
                }
                batch.push(put, bytes);
            }
        }
        sending.send(batch).await?;
        while sending.ended().await? {}
        let Gone { written, left } = sending.known.gone();
        sending.counts.left += left;
        sending.counts.kept = sending.known.kept();
        self.delete(written, sending.counts).await
    }

    /// Deletes keys that have these versions.
    async fn delete(
        &self,
        mut keys: Vec<(Vec<u8>, Version)>,
        counts: &mut Counts,
    ) -> anyhow::Result<()> {
        while !keys.is_empty() {
            let mut some = last_of(&mut keys, self.0.most);
            while !some.is_empty() {
                let mut batch = self.0.client.batch();
                for (key, version) in &some {
                    batch = batch.delete_if(key.clone(), Condition::Version(*version));
                }
                let failed = match batch.commit().await {
                    Ok(_) => {
                        counts.deleted += some.len() as u64;
                        break;
                    }
                    Err(Error::ConditionFailed { failed, .. }) => failed,
                    Err(error) => return Err(error.into()),
                };
                // What another client wrote stays. What another client deleted is gone.
                counts.left += failed.iter().filter(|one| one.version.is_some()).count() as u64;
                let mut position = 0..;
                some.retain(|_| {
                    let at = position.next();
                    failed.iter().all(|one| Some(one.operation) != at)
                });
            }
        }
        Ok(())
    }

    /// Puts a batch, and looks at those keys whose condition does not hold.
    async fn put(self, batch: Batch<Put>) -> anyhow::Result<Ended> {
        let Batch { entries: mut puts, bytes } = batch;
        let mut ended = Ended { bytes, ..Ended::default() };
        for _ in 0..ROUNDS {
            let tried = self.try_put(&puts).await;
            let failed = match tried {
                Ok(version) => {
                    for put in puts {
                        match put.condition {
                            Condition::Version(_) => ended.counts.replaced += 1,
                            _ => ended.counts.written += 1,
                        }
                        ended.copied.push((put.key, put.source, version, true));
                    }
                    return Ok(ended);
                }
                Err(Error::ConditionFailed { failed, .. }) => failed,
                Err(error) => return Err(error.into()),
            };
            let failed: BTreeMap<usize, Option<Version>> =
                failed.into_iter().map(|one| (one.operation, one.version)).collect();
            let (mut again, mut there) = (Vec::new(), Vec::new());
            for (number, mut put) in puts.into_iter().enumerate() {
                match failed.get(&number) {
                    None => again.push(put),
                    Some(None) => {
                        put.condition = Condition::Absent;
                        again.push(put);
                    }
                    Some(Some(_)) => there.push(put),
                }
            }
            let mut asked = Vec::new();
            for put in &there {
                asked.push(self.0.find(&put.key, &put.value));
            }
            let found = try_join_all(asked).await?;
            for (put, found) in there.into_iter().zip(found) {
                again.extend(self.look(put, found, &mut ended)?);
            }
            if again.is_empty() {
                return Ok(ended);
            }
            puts = again;
        }
        anyhow::bail!("other clients of --to write the same keys over and over")
    }

    async fn try_put(&self, puts: &[Put]) -> Result<Version, Error> {
        let mut batch = self.0.client.batch();
        for put in puts {
            batch = batch.put_if(put.key.clone(), put.value.clone(), put.condition);
        }
        batch.commit().await.map(|done| done.version)
    }

    /// Counts a key that exists, and returns it if it is to be put again.
    fn look(
        &self,
        put: Put,
        found: Option<There>,
        ended: &mut Ended,
    ) -> anyhow::Result<Option<Put>> {
        Ok(match (found, self.0.existing) {
            // It was deleted meanwhile.
            (None, _) => Some(Put { condition: Condition::Absent, ..put }),
            (Some(There { is_same: true, version }), _) => {
                ended.counts.same += 1;
                ended.copied.push((put.key, put.source, version, false));
                None
            }
            (Some(There { version, .. }), Existing::Replace) => {
                Some(Put { condition: Condition::Version(version), ..put })
            }
            (Some(_), Existing::Keep) => {
                ended.kept.push((put.key, put.source));
                None
            }
            (Some(_), Existing::Refuse) => anyhow::bail!(
                "`{}` has another value at --to than at --from: one of the two was written since they were compared; --keep leaves such \
                 keys as they are, --replace replaces their values",
                escape(&put.key)
            ),
        })
    }
}

impl Sending<'_> {
    /// Sends a batch once there is room for it.
    async fn send(&mut self, batch: Batch<Put>) -> anyhow::Result<()> {
        if batch.entries.is_empty() {
            return Ok(());
        }
        while !batch.fits_beside(self.running.len(), self.bytes) {
            self.ended().await?;
        }
        self.bytes = self.bytes.saturating_add(batch.bytes);
        self.running.spawn(self.target.clone().put(batch));
        Ok(())
    }

    /// Waits for the end of a batch. Returns whether there was one.
    async fn ended(&mut self) -> anyhow::Result<bool> {
        let Some(ended) = self.running.join_next().await else { return Ok(false) };
        let ended = ended??;
        self.bytes = self.bytes.saturating_sub(ended.bytes);
        self.counts.add(ended.counts);
        for (key, source, version, written) in &ended.copied {
            self.known.copied(key, *source, *version, *written)?;
        }
        for (key, source) in &ended.kept {
            self.known.keep(key, *source)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::Options;

    fn target(existing: Existing) -> Target {
        // Nothing listens there, and nothing asks it.
        let client = Options::new(["127.0.0.1:1"]).build().expect("an endpoint");
        Target(Cluster::new(client, Most { operations: 3, bytes: 8 }, existing))
    }

    fn put(key: &str) -> Put {
        let (key, value) = (key.to_owned().into(), "v".into());
        Put { key, value, source: (1, 2), condition: Condition::Absent }
    }

    #[test]
    fn what_is_put_does_not_keep_the_message_that_brought_it() {
        let message = Bytes::from(b"a key and its value, and others".to_vec());
        let (key, value) = (message.slice(2..5), message.slice(14..19));
        let put = Put::of(&key, &value, (1, 2), Condition::Absent);
        drop((key, value));
        assert!(message.is_unique(), "the put has parts of it");
        assert_eq!((&put.key[..], &put.value[..], put.bytes()), (&b"key"[..], &b"value"[..], 8));
    }

    /// The story: the number of deletes was bounded and not their bytes, so the target refused a batch of long
    /// keys.
    #[test]
    fn deletes_are_within_the_limits_too_and_a_long_key_is_alone() {
        let lengths = [20, 4, 4, 1, 1, 1, 1];
        let mut keys: Vec<_> = lengths.map(|length| (vec![b'k'; length], Version(1))).to_vec();
        let most = Most { operations: 3, bytes: 8 };
        let mut batches = Vec::new();
        while !keys.is_empty() {
            let some = last_of(&mut keys, most);
            batches.push(some.iter().map(|(key, _)| key.len()).collect::<Vec<_>>());
        }
        assert_eq!(batches, [vec![1, 1, 1], vec![1, 4], vec![4], vec![20]]);
    }

    #[tokio::test]
    async fn a_key_that_exists_is_counted_by_what_becomes_of_it() {
        let same = Some(There { is_same: true, version: Version(7) });
        let other = Some(There { is_same: false, version: Version(8) });
        for existing in [Existing::Refuse, Existing::Keep, Existing::Replace] {
            let (target, mut ended) = (target(existing), Ended::default());
            let again = target.look(put("a"), same, &mut ended).expect("it is the same");
            assert!(again.is_none());
            assert_eq!(ended.counts, Counts { same: 1, ..Counts::default() });
            assert_eq!(ended.copied, [(Bytes::from("a"), (1, 2), Version(7), false)]);
            let again = target.look(put("a"), None, &mut ended).expect("it is gone");
            assert_eq!(again.expect("it is put").condition, Condition::Absent);
        }
        let mut ended = Ended::default();
        let refused = target(Existing::Refuse).look(put("a\n"), other, &mut ended);
        let error = refused.expect_err("another value").to_string();
        assert!(error.starts_with("`a\\n` has another value at --to"), "{error}");
        assert!(error.contains("one of the two was written since"), "{error}");
        let kept = target(Existing::Keep).look(put("a"), other, &mut ended).expect("it stays");
        assert!(kept.is_none());
        assert_eq!(ended.kept, [(Bytes::from("a"), (1, 2))]);
        let replaced = target(Existing::Replace).look(put("a"), other, &mut ended);
        let replaced = replaced.expect("it may").expect("it is put again");
        assert_eq!(replaced.condition, Condition::Version(Version(8)));
    }
}
