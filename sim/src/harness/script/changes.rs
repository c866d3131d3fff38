//! What an operator's changes of members, mode and leader look like to a script.

use super::stage::{Played, Stage};
use crate::harness::kinds::FaultKind;
use crate::harness::operator::{NotDone, until_done};
use cairn_clients::Violation;
use cairn_clients::history::Record;
use cairn_disk::Files;
use cairn_engine::Mode;
use madsim::task::JoinHandle;
use rand::RngExt;
use std::future::Future;
use std::time::Duration;

/// Longest wait until a change is done.
pub(super) const CHANGE: Duration = Duration::from_secs(40);
/// How long it takes until nothing is unsynced that was acknowledged before every acknowledgement
/// is synced.
pub(super) const SYNCED_MS: (u64, u64) = (4_000, 6_000);
pub(super) const AGAIN: &str = "as many members as before";
pub(super) const KNOWS: &str = "the removed identity knows it";

impl Stage {
    /// Asks until it is done, or ends the script.
    pub(super) async fn done<F>(&self, what: &str, attempt: impl FnMut() -> F) -> Played
    where
        F: Future<Output = Result<(), NotDone>>,
    {
        tokio::time::timeout(CHANGE, until_done(attempt)).await.map_err(|_| what.to_owned())
    }

    pub(super) async fn set_mode(&self, mode: Mode) -> Played {
        self.done("another mode", || self.cluster.set_mode(mode)).await?;
        self.cluster.count(FaultKind::ChangeMode.name());
        Ok(())
    }

    /// An operator has a member leave; its node goes on.
    pub(super) async fn remove(&self, member: usize) -> Played {
        let machine = self.machine(member)?;
        self.done("a removal", || self.cluster.try_to_remove(machine)).await?;
        self.cluster.count(FaultKind::ChangeMembers.name());
        Ok(())
    }

    /// The member's machine gets an empty disk and starts. Returns the disk that it had.
    pub(super) async fn renew(&mut self, member: usize) -> Result<Files, String> {
        let incarnation = self.rng.random_range(1..1_u64 << 48);
        Ok(self.cluster.renew(self.machine(member)?, incarnation).await)
    }

    /// An operator has the new identity on a member's machine added.
    pub(super) async fn add(&self, member: usize) -> Played {
        let machine = self.machine(member)?;
        self.done("a new member that votes", || self.cluster.try_to_add(machine)).await
    }

    /// The same for a removed member whose machine has its old disk; then mode `replicated` again.
    pub(super) async fn grow_again(&mut self, members: &[usize]) -> Played {
        for member in members {
            drop(self.renew(*member).await?);
            self.add(*member).await?;
        }
        self.set_mode(Mode::Replicated).await?;
        self.active(&self.all()).await?;
        self.reached(AGAIN);
        self.still_serves("after it grew again").await
    }

    /// No fault is active, so the cluster has a leader and serves.
    pub(super) async fn still_serves(&self, when: &str) -> Played {
        let done = self.acknowledged(5).await;
        if done.is_err() {
            let violation = Violation::new("a change leaves a cluster that serves", when);
            self.cluster.violation(violation);
        }
        done
    }

    /// Asks in the background until the member has left.
    pub(super) fn removing(&self, member: usize) -> JoinHandle<()> {
        let cluster = self.cluster.clone();
        madsim::task::spawn(async move {
            let Some(machine) = cluster.machines.get(member) else { return };
            until_done(|| cluster.try_to_remove(machine)).await;
        })
    }

    /// Asks in the background until the member's new identity votes.
    pub(super) fn adding(&self, member: usize) -> JoinHandle<()> {
        let cluster = self.cluster.clone();
        madsim::task::spawn(async move {
            let Some(machine) = cluster.machines.get(member) else { return };
            until_done(|| cluster.try_to_add(machine)).await;
        })
    }

    /// Waits until a write is acknowledged that was sent since each acknowledgement is synced.
    pub(super) async fn covered_writes(&self, count: usize) -> Played {
        let covered = || {
            let records = self.recorder().records();
            let covers = |record: &Record| self.cluster.promises.covers(record);
            records.iter().filter(|record| record.is_applied() && covers(record)).count()
        };
        let before = covered();
        self.until("a write in mode sync", || covered() >= before + count).await
    }

    /// All machines are back after a power cut in a mode that promises to lose nothing then.
    pub(super) async fn nobody_recovers(&self, members: &[usize]) -> Played {
        let up = || members.iter().all(|member| self.node(*member).is_some());
        self.until("nodes that serve", up).await?;
        match members.iter().find(|member| self.is_recovering(**member)) {
            None => self.reached("nobody recovers"),
            Some(member) => {
                let detail = format!("member {member} recovers");
                self.cluster.violation(Violation::new("mode sync needs no recovery", detail));
            }
        }
        Ok(())
    }

    /// A member may lead again.
    pub(super) async fn end_drain(&self, member: usize) -> Played {
        let machine = self.machine(member)?;
        self.done("the end of a drain", || self.cluster.drain(machine, Duration::ZERO)).await
    }

    pub(super) async fn learns_of_its_removal(&self, member: usize) -> Played {
        let knows =
            || self.node(member).is_some_and(|node| node.replica().removed_reason().is_some());
        self.until("an identity that knows its removal", knows).await?;
        self.reached(KNOWS);
        Ok(())
    }
}
