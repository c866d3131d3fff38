//! Ranges that are deleted while a member writes a checkpoint, which then starts from it.
//!
//! The script alone writes these keys, one request after the other, with a session: so it knows what each
//! member has to hold at the end.

use super::stage::{Played, Stage};
use super::{Scenario, three};
use crate::harness::plan::Plan;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_raft::{
    Command, Condition, GROUP, Operation, RANGE_KEYS_MAX, Session, VERSION, WriteOutcome,
};
use futures::future;
use rand::RngExt;
use std::collections::BTreeSet;

const BEHIND: &str = "a range is deleted behind a checkpoint";
const BEFORE: &str = "a range is deleted before a checkpoint";
const MEANWHILE: &str = "a range is deleted while a checkpoint is written";
const FIRST_KEYS: &str = "only the first keys of a range are deleted";
const CHANGES: &str = "a checkpoint of what changed";

pub(super) const SCENARIOS: &[Scenario] = &[scenario!(
    "range-deleted-around-a-checkpoint",
    |seed| Plan { log_retain_entries: 10, bulk_keys: 300, ..three(seed) },
    around_a_checkpoint
)
.seeds(12)
.reaches(&[
    BEHIND,
    BEFORE,
    MEANWHILE,
    FIRST_KEYS,
    CHANGES,
    "power cut behind the deletion",
    "killed behind the deletion",
    "all started from a checkpoint",
])];

const ROUNDS: usize = 6;
const KEYS: usize = 40;

/// A key that a checkpoint keeps though the range was deleted before it is back on the member that starts from
/// it; so is one of a range that the member deletes again, if it counts other keys this time.
async fn around_a_checkpoint(mut stage: Stage) -> Played {
    let has_ranges = || {
        let version = |member| stage.node(member).map(|node| node.replica().versions().cluster);
        stage.all().into_iter().all(|member| version(member) == Some(VERSION))
    };
    stage.until("the version that has ranges", has_ranges).await?;
    let mut writer = Writer::new(&mut stage).await?;
    for round in 0..ROUNDS {
        stage.active(&stage.all()).await?;
        let victim = stage.others(&[]).first().copied().ok_or("a member")?;
        // An area holds all of the state before it holds what changed.
        for _ in 0..stage.rng.random_range(3..6) {
            stage.acknowledged(2).await?;
            checkpoint(&stage, victim).await?;
        }
        writer.put(&mut stage, round).await?;
        match stage.rng.random_range(0..3) {
            0 => {
                checkpoint(&stage, victim).await?;
                writer.delete(&mut stage, round).await?;
                stage.reached(BEHIND);
            }
            1 => {
                writer.delete(&mut stage, round).await?;
                checkpoint(&stage, victim).await?;
                stage.reached(BEFORE);
            }
            _ => {
                let node = stage.node(victim).ok_or("a node")?;
                let deleted = writer.delete(&mut stage, round);
                let (written, deleted) = future::join(node.engine().checkpoint(), deleted).await;
                deleted?;
                written.map_err(|error| error.to_string())?;
                stage.reached(MEANWHILE);
            }
        }
        let has_changes =
            stage.node(victim).is_some_and(|node| node.engine().status().checkpoint_parts > 1);
        stage.reached_if(has_changes, CHANGES);
        match stage.rng.random() {
            true => {
                stage.cut(victim);
                stage.reached("power cut behind the deletion");
            }
            false => {
                stage.kill(victim);
                stage.reached("killed behind the deletion");
            }
        }
        stage.pass(0, 500).await;
        stage.start(&[victim]).await;
    }
    stage.active(&stage.all()).await?;
    for member in stage.all() {
        checkpoint(&stage, member).await?;
    }
    for member in stage.all() {
        stage.kill(member);
    }
    stage.start(&stage.all()).await;
    stage.active(&stage.all()).await?;
    stage.reached("all started from a checkpoint");
    writer.compare(&stage).await?;
    stage.acknowledged(5).await
}

async fn checkpoint(stage: &Stage, member: usize) -> Played {
    let node = stage.node(member).ok_or("a node")?;
    node.engine().checkpoint().await.map_err(|error| error.to_string())
}

/// A client that puts keys and deletes ranges of them, and what it has left.
struct Writer {
    session: Session,
    left: BTreeSet<Bytes>,
    /// The index of its last write.
    last: u64,
}

fn key(round: usize, number: usize) -> Bytes {
    Bytes::from(format!("range/{round}/{number:02}"))
}

impl Writer {
    async fn new(stage: &mut Stage) -> Result<Writer, String> {
        let (key, condition) = (Bytes::from_static(b"range"), Condition::None);
        let operations = vec![Operation::Check { key, condition }];
        let check = Command { synced: false, session: None, operations };
        let base_index = stage.command(check).await?.log_id.index;
        let client_id = stage.rng.random();
        let session = Session { client_id, sequence: 0, lowest_pending: 0, base_index };
        Ok(Writer { session, left: BTreeSet::new(), last: base_index })
    }

    async fn write(
        &mut self,
        stage: &mut Stage,
        operations: Vec<Operation>,
    ) -> Result<WriteOutcome, String> {
        self.session.sequence += 1;
        self.session.lowest_pending = self.session.sequence;
        let command = Command { synced: false, session: Some(self.session), operations };
        let outcome = stage.command(command).await?;
        self.last = outcome.log_id.index;
        Ok(outcome)
    }

    async fn put(&mut self, stage: &mut Stage, round: usize) -> Played {
        let keys = (0..KEYS).map(|number| key(round, number));
        let put = |key| {
            let value = vec![7_u8; 100].into();
            Operation::Put { key, value, condition: Condition::None }
        };
        self.write(stage, keys.clone().map(put).collect()).await?;
        self.left.extend(keys);
        Ok(())
    }

    /// Deletes a range of the keys that it has put in this round.
    async fn delete(&mut self, stage: &mut Stage, round: usize) -> Played {
        let from = stage.rng.random_range(0..KEYS / 2);
        let until = stage.rng.random_range(KEYS / 2..=KEYS);
        let most = match stage.rng.random() {
            true => RANGE_KEYS_MAX,
            false => stage.rng.random_range(1..=5),
        };
        let count = (until - from).min(usize::try_from(most).unwrap_or(usize::MAX));
        stage.reached_if(count < until - from, FIRST_KEYS);
        let (start, end) = (key(round, from), key(round, until));
        let range = Operation::DeleteRange { start, end, most, whole: false };
        let outcome = self.write(stage, vec![range]).await?;
        for number in from..from + count {
            self.left.remove(&key(round, number));
        }
        let deleted = outcome.results.first().map(|result| result.deleted as usize);
        if deleted != Some(count) {
            let detail = format!("{count} keys of round {round} should go: {outcome:?}");
            stage.cluster.violation(Violation::new("a range has the keys that were put", detail));
        }
        Ok(())
    }

    /// Compares what each member has.
    async fn compare(&self, stage: &Stage) -> Played {
        let applied = |member| stage.status(member)?.applied.map(|id| id.index);
        let has_all = || stage.all().into_iter().all(|member| applied(member) >= Some(self.last));
        stage.until("all that the script wrote", has_all).await?;
        for member in stage.all() {
            let node = stage.node(member).ok_or("a node")?;
            let view = node.engine().view(GROUP);
            let found = view.entries_between(b"range/", b"range0");
            let found: BTreeSet<Bytes> =
                found.map(|(key, _)| Bytes::copy_from_slice(key)).collect();
            if found != self.left {
                let wrong: Vec<&Bytes> = found.symmetric_difference(&self.left).collect();
                let detail =
                    format!("member {member} lacks some of, or has beyond them: {wrong:?}");
                let property = "a range is deleted alike on every member";
                stage.cluster.violation(Violation::new(property, detail));
            }
        }
        Ok(())
    }
}
