//! Plays the faults of a game day, one after another.
//!
//! What holds here: the next fault begins only once the cluster is well and says that the member may be
//! stopped. What a fault did is undone before anything else is waited for.

use super::checks;
use super::fault::Fault;
use super::gap::Measured;
use super::load::{self, Load};
use super::losses::Losses;
use super::processes::{Control, FaultTarget};
use super::report::{GameDay, Trial};
use crate::cli::exit::in_full;
use crate::cli::output::tell;
use anyhow::Context;
use bytes::Bytes;
use cairn_client::{Client, Error, NodeStatus, Role};
use cairn_node::config::format_size;
use cairn_node::health::{Answer, Report};
use futures::future::try_join_all;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often the members are asked.
const POLL: Duration = Duration::from_millis(250);
/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// Writes before and after a fault, so that the load is seen to work.
const SOME_WRITES: u64 = 50;
/// Writers that fill the cluster.
const FILLERS: usize = 8;
/// The longest value that they put, in bytes.
const FILL_VALUE: u32 = 256 << 10;
/// How long one of their requests may take.
const FILL_DEADLINE: Duration = Duration::from_secs(30);
/// How long it may take until the cluster refuses keys.
const FILLED_WITHIN: Duration = Duration::from_secs(30 * 60);

/// What is played, and with what.
pub(super) struct Runner {
    pub(super) client: Client,
    pub(super) control: Control,
    pub(super) load: Load,
    pub(super) faults: Vec<Fault>,
    /// How long each fault lasts.
    pub(super) lasts: Duration,
    /// How long the cluster may take to be well again.
    pub(super) wait: Duration,
    pub(super) lose_a_disk: bool,
    /// More free space than this is not filled.
    pub(super) fill_max: u64,
}

impl Runner {
    /// Plays all faults. After one from which the cluster did not come back none is done.
    pub(super) async fn play(&mut self, day: &mut GameDay) {
        let mut stopped_by = None;
        for fault in self.faults.clone() {
            let cannot = match stopped_by {
                Some(name) => Some(format!("`{name}` did not go as expected")),
                None => self.cannot(fault).await,
            };
            if let Some(why) = cannot {
                day.trials.push(Trial::skipped(fault, &why));
                continue;
            }
            tell(&format!("game day: {}", fault.name()));
            // It is there though a signal ends this.
            day.trials.push(Trial { runs: true, ..Trial::new(fault) });
            let Some(trial) = day.trials.last_mut() else { break };
            if let Err(error) = self.one(fault, trial).await {
                trial.add_trouble(&in_full(&error));
                stopped_by = Some(fault.name());
            }
            trial.runs = false;
        }
    }

    /// Lets the cluster be as it was: its members run, and the keys of the load are gone. Each step is done
    /// though others failed. A fault that a signal ended gets what is known of it.
    pub(super) async fn undo(&mut self, day: &mut GameDay) {
        let undone = self.control.undo().await;
        let stopped = self.load.stop().await;
        if let Some(trial) = day.running() {
            trial.runs = false;
            trial.add_trouble("it was broken off");
            trial.lost.append(self.load.take_lost());
            trial.kept = trial.slot.and_then(|slot| self.control.lost_disk(slot));
            // One that ended before it was broken off is measured.
            if let Ok(measured) = &stopped
                && trial.measured == Measured::default()
            {
                trial.measured = *measured;
            }
        }
        let well = self.until_well().await;
        let prefix = self.load.prefix();
        let removed = load::remove(&self.client, prefix).await;
        let removed = removed
            .with_context(|| format!("the keys below {prefix} are left, and are to be deleted"));
        for failed in [undone, stopped.map(drop), well, removed] {
            if let Err(error) = failed {
                day.add_trouble(&in_full(&error));
            }
        }
    }

    /// Why a fault is not done.
    async fn cannot(&self, fault: Fault) -> Option<String> {
        if fault == Fault::Disk && !self.lose_a_disk {
            return Some("--lose-a-disk was not given".to_owned());
        }
        if let Some(act) = fault.act() {
            return self.control.cannot(act).map(str::to_owned);
        }
        let began = Instant::now();
        loop {
            let why = match cannot_fill(&self.answers().await, self.fill_max) {
                Ok(cannot) => return cannot,
                Err(why) => why,
            };
            if began.elapsed() >= self.wait {
                return Some(why.to_owned());
            }
            sleep(POLL).await;
        }
    }

    async fn one(&mut self, fault: Fault, trial: &mut Trial) -> anyhow::Result<()> {
        let target = match fault.act() {
            Some(_) => Some(self.target(fault).await?),
            None => None,
        };
        trial.slot = target.as_ref().map(|target| target.slot);
        self.load.start();
        let disturbed = self.disturbed(fault, target.as_ref(), trial).await;
        let stopped = self.load.stop().await;
        let all_paused = note(trial, stopped, self.load.take_lost());
        // Also if the cluster is not well: it may tell what it lost all the same.
        let checked = self.load.check(self.wait).await;
        trial.checked = checked.read;
        trial.all_checked = all_paused && checked.unread.is_none();
        trial.lost.append(checked.lost);
        if let Some(target) = target.filter(|_| fault == Fault::Disk) {
            // What the member had shows what is lost.
            let is_needed = disturbed.is_err() || !trial.lost.is_empty() || !trial.all_checked;
            trial.kept = match is_needed {
                true => self.control.lost_disk(target.slot),
                false => self.control.remove_lost(target.slot),
            };
        }
        if let Some(why) = &checked.unread {
            trial.add_trouble(why);
        }
        disturbed?;
        anyhow::ensure!(trial.all_checked, "whether these are lost is not known");
        Ok(())
    }

    /// Does it, undoes it, and waits until the cluster is well and writes go on.
    async fn disturbed(
        &mut self,
        fault: Fault,
        target: Option<&FaultTarget>,
        trial: &mut Trial,
    ) -> anyhow::Result<()> {
        self.load.works(SOME_WRITES, self.wait).await.context("before the fault")?;
        self.load.measure();
        let done = match (fault.act(), target) {
            (Some(act), Some(target)) => {
                let done = self.control.act(act, target).await;
                if done.is_ok() {
                    sleep(self.lasts).await;
                }
                done
            }
            _ => self.fill().await,
        };
        let undone = match fault {
            Fault::Disk if done.is_ok() => self.control.start_empty(),
            _ => self.control.undo().await,
        };
        let ended = Instant::now();
        done?;
        undone?;
        self.until_well().await?;
        trial.well_after = Some(ended.elapsed());
        self.load.works(SOME_WRITES, self.wait).await.context("after the fault")
    }

    /// What every node answers.
    pub(super) async fn answers(&self) -> Vec<Answer> {
        // This learns members that were not known. Without an answer those that are known are asked.
        let client = self.client.with_deadline(NODE_TIMEOUT);
        let _ = client.members().await;
        client.statuses().await
    }

    /// Waits until the cluster is well.
    pub(super) async fn until_well(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let report = Report::ask(|| self.answers()).await;
            let faults = checks::faults_after(&report);
            if faults.is_empty() {
                return Ok(());
            }
            anyhow::ensure!(
                began.elapsed() < self.wait,
                "the cluster is not well after {} s: {}",
                self.wait.as_secs(),
                faults.join("; ")
            );
            sleep(POLL).await;
        }
    }

    /// The member that has the fault, once it may be stopped.
    async fn target(&self, fault: Fault) -> anyhow::Result<FaultTarget> {
        let began = Instant::now();
        let mut why = "no node says who leads".to_owned();
        while began.elapsed() < self.wait {
            if let Some(target) = leader(&self.answers().await).and_then(|of| chosen(fault, &of)) {
                why = match self.client.safe_to_stop().await {
                    Err(error) => error.to_string(),
                    Ok(verdicts) => {
                        let own = verdicts.into_iter().find(|one| one.slot == target.slot);
                        match own {
                            Some(verdict) if verdict.is_safe() => return Ok(target),
                            Some(verdict) => verdict.obstacles.join("; "),
                            None => format!("slot {} is no member", target.slot),
                        }
                    }
                };
            }
            sleep(POLL).await;
        }
        anyhow::bail!("no member may be stopped after {} s: {why}", self.wait.as_secs())
    }

    /// Puts keys until the cluster refuses them, and deletes them.
    async fn fill(&self) -> anyhow::Result<()> {
        let client = self.client.with_deadline(FILL_DEADLINE);
        let limits = client.limits().await?;
        let bytes = usize::try_from(FILL_VALUE.min(limits.max_value_bytes))?;
        let (prefix, next) = (format!("{}fill/", self.load.prefix()), AtomicU64::new(0));
        let value = Bytes::from(vec![b'f'; bytes]);
        let mut fillers = Vec::new();
        for _ in 0..FILLERS {
            fillers.push(until_full(&client, &prefix, &value, &next));
        }
        let filled = try_join_all(fillers).await;
        let read = match &filled {
            Ok(put) => self.reads_while_full(put.iter().flatten().next(), &value).await,
            Err(_) => Ok(()),
        };
        sleep(self.lasts).await;
        let removed = load::remove(&client, &prefix).await.context("the keys that filled it");
        filled?;
        read?;
        removed
    }

    /// Reads a key that was put before the cluster was full.
    async fn reads_while_full(&self, key: Option<&String>, value: &Bytes) -> anyhow::Result<()> {
        let Some(key) = key else { return Ok(()) };
        let client = self.client.with_deadline(self.wait);
        let found = client.get(key.clone()).await.context("a read while it is full")?;
        if found.is_none_or(|found| found.value != *value) {
            self.load
                .add_lost(format!("`{key}` was acknowledged, and is not there while it is full"));
        }
        Ok(())
    }
}

/// Notes what the load measured and what it found to be lost. Returns whether all of its writers were paused.
///
/// The story: a writer panicked, and the losses that the others had found were not in the report.
fn note(trial: &mut Trial, stopped: anyhow::Result<Measured>, lost: Losses) -> bool {
    trial.lost.append(lost);
    match stopped {
        Ok(measured) => {
            trial.measured = measured;
            true
        }
        Err(error) => {
            trial.add_trouble(&in_full(&error));
            false
        }
    }
}

/// Why a cluster that answers so is not filled; `None`: it may be.
///
/// # Errors
/// A sentence, if the nodes do not say how much is free.
fn cannot_fill(answers: &[Answer], most: u64) -> Result<Option<String>, &'static str> {
    let leader = leader(answers).ok_or("no node says that it leads")?;
    let storage = leader.storage.ok_or("the leader does not say how much is free")?;
    Ok((storage.free_bytes > most).then(|| {
        let (free, most) = (format_size(storage.free_bytes), format_size(most));
        format!("{free} are free, and --fill-max is {most}")
    }))
}

/// Puts one key after another until one is refused because nothing is free. Returns the last one that was
/// put.
async fn until_full(
    client: &Client,
    prefix: &str,
    value: &Bytes,
    next: &AtomicU64,
) -> anyhow::Result<Option<String>> {
    let (began, mut last) = (Instant::now(), None);
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let key = format!("{prefix}{number:010}");
        match client.put(key.clone(), value.clone()).await {
            Err(Error::StorageFull { .. }) => return Ok(last),
            Ok(_) => last = Some(key),
            // A cluster that is nearly full may be slow.
            Err(error) if error.is_transient() => sleep(POLL).await,
            Err(error) => return Err(error.into()),
        }
        anyhow::ensure!(
            began.elapsed() < FILLED_WITHIN,
            "the cluster refuses no key after {} s of filling it",
            FILLED_WITHIN.as_secs()
        );
    }
}

/// The node that leads, by what the nodes answer.
pub(super) fn leader(answers: &[Answer]) -> Option<NodeStatus> {
    let nodes = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    nodes.filter(|node| node.role == Role::Leader).max_by_key(|node| node.term).cloned()
}

/// The members, as the one that leads knows them.
pub(super) fn targets(leader: &NodeStatus) -> Vec<FaultTarget> {
    let members = leader.members.iter();
    members
        .map(|member| FaultTarget { slot: member.slot, address: member.client_address.clone() })
        .collect()
}

/// The member that has a fault.
fn chosen(fault: Fault, leader: &NodeStatus) -> Option<FaultTarget> {
    let of_leader = |target: &FaultTarget| target.slot == leader.slot;
    targets(leader).into_iter().find(|target| of_leader(target) == fault.is_of_leader())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::StorageStatus;

    #[test]
    fn what_is_lost_is_reported_though_a_writer_failed() {
        let (mut trial, mut lost) = (Trial::new(Fault::Kill), Losses::default());
        lost.add("`k`".to_owned());
        assert!(!note(&mut trial, Err(anyhow::anyhow!("a writer panicked")), lost));
        assert_eq!(trial.lost.count(), 1);
        assert_eq!(trial.trouble.as_deref(), Some("a writer panicked"));
        let measured = Measured { acknowledged: 7, ..Measured::default() };
        assert!(note(&mut trial, Ok(measured), Losses::default()));
        assert_eq!((trial.measured, trial.lost.count()), (measured, 1));
    }

    /// The story: for a moment no leader answered, and a cluster of any size was filled.
    #[test]
    fn a_cluster_of_which_nobody_knows_how_much_is_free_is_not_filled() {
        assert_eq!(cannot_fill(&[], 10), Err("no node says that it leads"));
        let mut node = NodeStatus::default();
        (node.slot, node.role) = (1, Role::Leader);
        let answers = |node: &NodeStatus| [("a:1".to_owned(), Ok(node.clone()))];
        let unknown = Err("the leader does not say how much is free");
        assert_eq!(cannot_fill(&answers(&node), 10), unknown);
        let mut storage = StorageStatus::default();
        (storage.free_bytes, storage.keys) = (11, 1);
        node.storage = Some(storage);
        let cannot = cannot_fill(&answers(&node), 10).expect("it is known").expect("it is more");
        assert!(cannot.contains("--fill-max"), "{cannot}");
        assert_eq!(cannot_fill(&answers(&node), 11), Ok(None));
    }
}
