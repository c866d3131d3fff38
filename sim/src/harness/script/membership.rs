//! Members that an operator removes and adds, modes that change, and leaders that are asked to go,
//! in the middle of something else.

use super::disks::{joint, replacement, votes};
use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, three, three_or_five};
use crate::disk::{Files, Moment};
use crate::harness::kinds::FaultKind;
use crate::harness::operator::{NotDone, until_done};
use cairn_clients::Violation;
use cairn_clients::history::Record;
use cairn_engine::Mode;
use cairn_raft::{MemberChange, Role};
use madsim::task::JoinHandle;
use rand::RngExt;
use std::future::Future;
use std::time::Duration;

/// Longest wait until a change is done.
const CHANGE: Duration = Duration::from_secs(40);
/// How long it takes until nothing is unsynced that was acknowledged before every acknowledgement
/// is synced.
const SYNCED_MS: (u64, u64) = (4_000, 6_000);
const REMOVED: &str = "removed";
const AGAIN: &str = "as many members as before";
const KNOWS: &str = "the removed identity knows it";
/// The way out that a refusal names.
const SET_SYNC: &str = "mode set sync";
/// Part of another one.
const TOO_FEW: &str = "needs 3 voters";

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "shrink-to-one-and-grow",
        parts: &[
            "two members serve",
            "nobody joins unasked",
            "one member serves",
            "the last member lost power",
            AGAIN,
            "acknowledged before synced again",
        ],
        seeds: 6,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(to_one_and_back(stage)),
    },
    Scenario {
        name: "power-cut-in-the-middle-of-a-removal",
        parts: &[
            "the leader is cut",
            "the one that leaves is cut",
            "one that stays is cut",
            "all are cut",
            "cut in the joint configuration",
            "the one that leaves leads and finishes its removal",
            REMOVED,
            AGAIN,
        ],
        seeds: 32,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(cut_in_a_removal(stage)),
    },
    Scenario {
        name: "total-cut-when-mode-sync-was-answered",
        parts: &[
            "cut as soon as it was answered",
            "cut after a write that followed",
            "cut when everything was synced",
            UNSYNCED_LOST,
        ],
        seeds: 12,
        may_stop: true,
        plan: three_or_five,
        script: |stage| Box::pin(cut_after_the_answer(stage)),
    },
    Scenario {
        name: "leader-removed",
        parts: &["another member leads", KNOWS, AGAIN],
        seeds: 6,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(leader_removed(stage)),
    },
    Scenario {
        name: "dead-member-removed",
        parts: &[REMOVED, KNOWS, AGAIN],
        seeds: 6,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(dead_removed(stage)),
    },
    Scenario {
        name: "removal-while-another-recovers",
        parts: &["refused while another recovers", "removed when it is active", AGAIN],
        seeds: 6,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(another_recovers(stage)),
    },
    Scenario {
        name: "too-few-for-mode-replicated",
        parts: &[
            "a removal is refused",
            "mode replicated is refused",
            "mode replicated is in force again",
        ],
        seeds: 4,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(too_few(stage)),
    },
    Scenario {
        name: "removed-disk-turns-up-again",
        parts: &["back while nobody has its slot", "back beside its successor", KNOWS, AGAIN],
        seeds: 6,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(disk_back(stage)),
    },
    Scenario {
        name: "leader-change-between-mode-and-removal",
        parts: &["another leader removes it", "all are cut", "nobody recovers", AGAIN],
        seeds: 8,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(leader_change_between(stage)),
    },
    Scenario {
        name: "added-learner-loses-power",
        parts: &["a learner is cut", AGAIN],
        seeds: 6,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(learner_cut(stage)),
    },
    Scenario {
        name: "mode-back-while-a-member-was-away",
        parts: &["it never saw the change", "all members agree on the mode"],
        seeds: 4,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(back_while_away(stage)),
    },
    Scenario {
        name: "stale-member-completes-a-majority-in-mode-sync",
        parts: &["it was needed for a majority", "all are cut"],
        seeds: 12,
        may_stop: true,
        plan: three,
        script: |stage| Box::pin(stale_in_the_majority(stage)),
    },
    Scenario {
        name: "leadership-moves-and-stays-away",
        parts: &["it moves to the named member", "a drained leader gives it away", "it stays away"],
        seeds: 6,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(leadership_moves(stage)),
    },
];

impl Stage {
    /// Asks until it is done, or ends the script.
    async fn done<F>(&self, what: &str, attempt: impl FnMut() -> F) -> Played
    where
        F: Future<Output = Result<(), NotDone>>,
    {
        tokio::time::timeout(CHANGE, until_done(attempt)).await.map_err(|_| what.to_owned())
    }

    async fn set_mode(&self, mode: Mode) -> Played {
        self.done("another mode", || self.cluster.set_mode(mode)).await?;
        self.cluster.count(FaultKind::ChangeMode.name());
        Ok(())
    }

    /// An operator has a member leave; its node goes on.
    async fn remove(&self, member: usize) -> Played {
        let machine = self.machine(member)?;
        self.done("a removal", || self.cluster.try_to_remove(machine)).await?;
        self.cluster.count(FaultKind::ChangeMembers.name());
        Ok(())
    }

    /// The member's machine gets an empty disk and starts. Returns the disk that it had.
    async fn renew(&mut self, member: usize) -> Result<Files, String> {
        let incarnation = self.rng.random_range(1..1_u64 << 48);
        Ok(self.cluster.renew(self.machine(member)?, incarnation).await)
    }

    /// An operator has the new identity on a member's machine added.
    async fn add(&self, member: usize) -> Played {
        let machine = self.machine(member)?;
        self.done("a new member that votes", || self.cluster.try_to_add(machine)).await
    }

    /// The same for a removed member whose machine has its old disk; then mode `replicated` again.
    async fn grow_again(&mut self, members: &[usize]) -> Played {
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
    async fn still_serves(&self, when: &str) -> Played {
        let done = self.acknowledged(5).await;
        if done.is_err() {
            let violation = Violation::new("a change leaves a cluster that serves", when);
            self.cluster.violation(violation);
        }
        done
    }

    /// Asks in the background until the member has left.
    fn removing(&self, member: usize) -> JoinHandle<()> {
        let cluster = self.cluster.clone();
        madsim::task::spawn(async move {
            let Some(machine) = cluster.machines.get(member) else { return };
            until_done(|| cluster.try_to_remove(machine)).await;
        })
    }

    /// Asks in the background until the member's new identity votes.
    fn adding(&self, member: usize) -> JoinHandle<()> {
        let cluster = self.cluster.clone();
        madsim::task::spawn(async move {
            let Some(machine) = cluster.machines.get(member) else { return };
            until_done(|| cluster.try_to_add(machine)).await;
        })
    }

    /// Waits until a write is acknowledged that was sent since each acknowledgement is synced.
    async fn covered_writes(&self, count: usize) -> Played {
        let covered = || {
            let records = self.recorder().records();
            let covers = |record: &Record| self.cluster.promises.covers(record);
            records.iter().filter(|record| record.is_applied() && covers(record)).count()
        };
        let before = covered();
        self.until("a write in mode sync", || covered() >= before + count).await
    }

    /// All machines are back after a power cut in a mode that promises to lose nothing then.
    async fn nobody_recovers(&self, members: &[usize]) -> Played {
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
    async fn end_drain(&self, member: usize) -> Played {
        let machine = self.machine(member)?;
        self.done("the end of a drain", || self.cluster.drain(machine, Duration::ZERO)).await
    }

    async fn learns_of_its_removal(&self, member: usize) -> Played {
        let knows =
            || self.node(member).is_some_and(|node| node.replica().removed_reason().is_some());
        self.until("an identity that knows its removal", knows).await?;
        self.reached(KNOWS);
        Ok(())
    }
}

/// From three members to one, in any order, and back. An empty node in a slot that nobody has
/// waits until it is asked for.
async fn to_one_and_back(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(10).await?;
    stage.set_mode(Mode::Sync).await?;
    let order = stage.others(&[]);
    let [first, second, last] = *order.as_slice() else { return Err("three members".into()) };
    stage.remove(first).await?;
    stage.still_serves("with two members").await?;
    stage.reached("two members serve");
    drop(stage.renew(first).await?);
    stage.until("a node that serves", || stage.node(first).is_some()).await?;
    stage.pass(3_000, 8_000).await;
    let joined = stage.machine(first)?.identity();
    let known = |member: usize| stage.status(member).map(|status| status.members);
    let members = known(last).unwrap_or_default();
    match members.iter().find(|member| Some(member.id) == joined) {
        None => stage.reached("nobody joins unasked"),
        Some(member) => {
            let detail = format!("{} is a member", member.id);
            stage.cluster.violation(Violation::new("nobody joins a slot unasked", detail));
        }
    }
    stage.remove(second).await?;
    stage.still_serves("with one member").await?;
    stage.reached("one member serves");
    if stage.seed.is_multiple_of(2) {
        stage.cut(last);
        stage.pass(0, 1_000).await;
        stage.start(&[last]).await;
        stage.reached("the last member lost power");
        stage.still_serves("with one member that lost power").await?;
    }
    drop(stage.renew(second).await?);
    for member in [second, first] {
        stage.add(member).await?;
        stage.still_serves("while it grows").await?;
    }
    stage.reached(AGAIN);
    stage.set_mode(Mode::Replicated).await?;
    stage.ahead(&stage.all()).await?;
    stage.reached("acknowledged before synced again");
    Ok(())
}

/// One machine, or all, lose power at some moment of a removal.
async fn cut_in_a_removal(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(10).await?;
    stage.set_mode(Mode::Sync).await?;
    let (leader, follower, other) = stage.cast().await?;
    let leaves = if stage.rng.random_bool(0.3) { leader } else { follower };
    let stays = if leaves == leader { follower } else { other };
    let (cut, part) = match stage.seed % 4 {
        0 => (vec![leader], "the leader is cut"),
        1 => (vec![leaves], "the one that leaves is cut"),
        2 => (vec![stays], "one that stays is cut"),
        _ => (stage.all(), "all are cut"),
    };
    // Before it begins, a member may not have synced what it acknowledged earlier.
    if cut.len() > 1 && stage.rng.random_bool(0.5) {
        stage.pass(SYNCED_MS.0, SYNCED_MS.1).await;
    }
    let removing = stage.removing(leaves);
    if cut.len() > 1 || stage.rng.random_bool(0.6) {
        let begun = || joint(&stage) || removing.is_finished();
        stage.until("a joint configuration", begun).await?;
        if stage.rng.random_bool(0.5) {
            let operations = stage.rng.random_range(1..12);
            let disk = stage.machine(stays)?.disk.clone();
            let moment = disk.after(Moment::Operation, operations);
            let _ = tokio::time::timeout(Duration::from_millis(60), moment).await;
        }
    } else {
        stage.pass(0, 2_500).await;
    }
    stage.reached_if(joint(&stage), "cut in the joint configuration");
    stage.reached_if(!removing.is_finished(), part);
    for member in &cut {
        stage.cut(*member);
    }
    stage.pass(0, 2_500).await;
    stage.start(&cut).await;
    let mut led = false;
    stage
        .within(CHANGE, || {
            led |= joint(&stage) && stage.leads(&stage.all()).is_some_and(|(_, now)| now == leaves);
            removing.is_finished()
        })
        .await;
    tokio::time::timeout(CHANGE, removing).await.map_err(|_| "a removal")?.ok();
    stage.reached(REMOVED);
    stage.reached_if(led && leaves != leader, "the one that leaves leads and finishes its removal");
    stage.still_serves("after a power cut in the middle").await?;
    stage.grow_again(&[leaves]).await
}

/// All machines lose power when the cluster has answered that each acknowledgement is synced from
/// now on: at once, after a write that followed, or when everything is synced. What was acknowledged
/// since is there. In the first two cases members may still have to recover what they acknowledged
/// before.
async fn cut_after_the_answer(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(500, 3_000).await;
    stage.acknowledged(5).await?;
    stage.set_mode(Mode::Sync).await?;
    let part = match stage.seed % 3 {
        0 => "cut as soon as it was answered",
        1 => {
            let count = stage.rng.random_range(1..6);
            stage.covered_writes(count).await?;
            "cut after a write that followed"
        }
        _ => {
            stage.pass(SYNCED_MS.0, SYNCED_MS.1).await;
            stage.covered_writes(1).await?;
            "cut when everything was synced"
        }
    };
    let lost = stage.cut_all();
    stage.reached_if(lost > 0, UNSYNCED_LOST);
    stage.reached(part);
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    if stage.seed % 3 == 2 {
        stage.nobody_recovers(&stage.all()).await?;
        stage.still_serves("after a total power cut in mode sync").await?;
    }
    Ok(())
}

/// The leader is removed: another member leads without it.
async fn leader_removed(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(10).await?;
    if stage.all().len() == 3 {
        stage.set_mode(Mode::Sync).await?;
    }
    let leader = stage.leader().await?;
    stage.remove(leader).await?;
    let others = stage.others(&[leader]);
    stage.leader_among(&others, 0).await?;
    stage.reached("another member leads");
    stage.still_serves("without the leader").await?;
    stage.learns_of_its_removal(leader).await?;
    stage.pass(0, 3_000).await;
    stage.grow_again(&[leader]).await
}

/// A member of three is down, and is removed. When its machine is back with its disk, it learns that
/// it is no member any more.
async fn dead_removed(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, follower, _) = stage.cast().await?;
    let dead = if stage.rng.random_bool(0.3) { leader } else { follower };
    match stage.seed.is_multiple_of(2) {
        true => drop(stage.cut(dead)),
        false => stage.kill(dead),
    }
    stage.pass(0, 4_000).await;
    let others = stage.others(&[dead]);
    stage.leader_among(&others, 0).await?;
    stage.set_mode(Mode::Sync).await?;
    stage.remove(dead).await?;
    stage.reached(REMOVED);
    stage.still_serves("without the dead member").await?;
    stage.start(&[dead]).await;
    stage.learns_of_its_removal(dead).await?;
    stage.still_serves("beside the one that was dead").await?;
    stage.grow_again(&[dead]).await
}

/// A member recovers, and the removal of another one is asked for. Without that one no majority of
/// active members would be left, so it is refused.
async fn another_recovers(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, recovers, leaves) = stage.cast().await?;
    stage.cut_ahead(recovers, 3).await?;
    stage.leader_among(&[leader, leaves], 0).await?;
    stage.set_mode(Mode::Sync).await?;
    stage.start(&[recovers]).await;
    stage.recovering(recovers).await?;
    stage.machine(recovers)?.disk.stall(Duration::from_secs(4), None);
    while stage.is_recovering(recovers) {
        let asked = stage.cluster.try_to_remove(stage.machine(leaves)?).await;
        let still = stage.is_recovering(recovers);
        if still && matches!(asked, Err(NotDone::Refused(_))) {
            stage.reached("refused while another recovers");
        }
        if asked.is_ok() {
            if still {
                let detail = format!("member {leaves} left while member {recovers} recovered");
                let violation = Violation::new("a removal leaves an active majority", detail);
                stage.cluster.violation(violation);
            }
            break;
        }
        stage.pass(50, 200).await;
    }
    stage.active(&[recovers]).await?;
    stage.remove(leaves).await?;
    stage.reached("removed when it is active");
    stage.still_serves("with one that recovered").await?;
    stage.grow_again(&[leaves]).await
}

/// In mode `replicated` no removal leaves fewer than three voters, and fewer do not go back to it.
async fn too_few(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let mut order = stage.others(&[]);
    let leaves = order.pop().ok_or("a member")?;
    let spare = order.split_off(order.len().min(2));
    for member in &spare {
        stage.remove(*member).await?;
    }
    let machine = stage.machine(leaves)?;
    let mut refused = None;
    for _ in 0..20 {
        match stage.cluster.change_members(MemberChange::Remove(machine.slot)).await {
            Ok(()) => break,
            Err(not_done) => refused = Some(not_done),
        }
        if matches!(&refused, Some(NotDone::Refused(reason)) if reason.contains(SET_SYNC)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    match refused {
        Some(NotDone::Refused(reason)) if reason.contains(SET_SYNC) => {
            stage.reached("a removal is refused")
        }
        other => {
            let detail = format!("the answer is {other:?}");
            let violation = Violation::new("mode replicated has three voters", detail);
            stage.cluster.violation(violation);
        }
    }
    stage.set_mode(Mode::Sync).await?;
    stage.remove(leaves).await?;
    stage.still_serves("with two members").await?;
    let mut asked = stage.cluster.set_mode(Mode::Replicated).await;
    let refuses = |asked: &_| matches!(asked, Err(NotDone::Refused(why)) if why.contains(TOO_FEW));
    for _ in 0..20 {
        if asked.is_ok() || refuses(&asked) {
            break;
        }
        stage.pass(50, 200).await;
        asked = stage.cluster.set_mode(Mode::Replicated).await;
    }
    match asked {
        Err(NotDone::Refused(_)) => stage.reached("mode replicated is refused"),
        Err(later) => return Err(format!("a refusal, not {later:?}")),
        Ok(()) => {
            let violation = Violation::new("mode replicated has three voters", "two are enough");
            stage.cluster.violation(violation);
        }
    }
    let mut gone = spare;
    gone.push(leaves);
    stage.grow_again(&gone).await?;
    stage.ahead(&stage.all()).await?;
    stage.reached("mode replicated is in force again");
    Ok(())
}

/// The disk of a removed member is in its machine again: while nobody has its slot, or when another
/// identity has it. It learns that it was removed, and does no harm.
async fn disk_back(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.set_mode(Mode::Sync).await?;
    let (leader, follower, _) = stage.cast().await?;
    let leaves = if stage.rng.random_bool(0.3) { leader } else { follower };
    stage.remove(leaves).await?;
    stage.acknowledged(5).await?;
    if stage.seed.is_multiple_of(2) {
        stage.kill(leaves);
        stage.pass(0, 1_000).await;
        stage.start(&[leaves]).await;
        stage.reached("back while nobody has its slot");
        stage.learns_of_its_removal(leaves).await?;
        stage.still_serves("beside a removed identity").await?;
    }
    let files = stage.renew(leaves).await?;
    stage.add(leaves).await?;
    replacement(&stage, leaves).await?;
    let new = stage.exchange_disk(leaves, files).await?;
    stage.machine(leaves)?.lose();
    stage.start(&[leaves]).await;
    stage.learns_of_its_removal(leaves).await?;
    stage.reached("back beside its successor");
    stage.still_serves("beside a removed identity").await?;
    drop(stage.exchange_disk(leaves, new).await?);
    stage.start(&[leaves]).await;
    let back = || votes(&stage, leaves) && stage.is_active(leaves);
    stage.until("the new identity", back).await?;
    stage.set_mode(Mode::Replicated).await?;
    stage.reached(AGAIN);
    Ok(())
}

/// The leader ends when it has answered that each acknowledgement is synced; another one removes a
/// member. Then all machines lose power.
async fn leader_change_between(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(10).await?;
    let leader = stage.leader().await?;
    stage.set_mode(Mode::Sync).await?;
    let paused = stage.seed.is_multiple_of(2);
    match paused {
        true => stage.pause(&[leader]),
        false => stage.kill(leader),
    }
    let others = stage.others(&[leader]);
    let next = stage.leader_among(&others, 0).await?;
    let follower = others.iter().copied().find(|member| *member != next).ok_or("a follower")?;
    // The one that is away leaves, or comes back and another one leaves.
    let leaves = match stage.seed % 4 < 2 {
        true => leader,
        false => {
            stage.resume(&[leader]);
            stage.start(&[leader]).await;
            follower
        }
    };
    stage.remove(leaves).await?;
    stage.reached_if(stage.leads(&[leader]).is_none(), "another leader removes it");
    stage.covered_writes(2).await?;
    stage.resume(&[leader]);
    let stay = stage.others(&[leaves]);
    stage.cut_together(&stage.all());
    stage.reached("all are cut");
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    stage.nobody_recovers(&stay).await?;
    stage.still_serves("after a power cut of both").await?;
    stage.grow_again(&[leaves]).await
}

/// The node that is added loses power while it catches up.
async fn learner_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(20).await?;
    stage.set_mode(Mode::Sync).await?;
    let (_, leaves, _) = stage.cast().await?;
    stage.remove(leaves).await?;
    drop(stage.renew(leaves).await?);
    stage.acknowledged(20).await?;
    let adding = stage.adding(leaves);
    for _ in 0..2 {
        let learns = || {
            let status = stage.status(leaves);
            status.is_some_and(|status| status.role == Role::Learner && status.last_log.is_some())
        };
        stage.until("a learner", || learns() || votes(&stage, leaves)).await?;
        stage.pass(0, 20).await;
        stage.reached_if(!votes(&stage, leaves), "a learner is cut");
        stage.cut(leaves);
        stage.pass(0, 1_500).await;
        stage.still_serves("while the one that is added is down").await?;
        stage.start(&[leaves]).await;
    }
    tokio::time::timeout(CHANGE, adding).await.map_err(|_| "a new member that votes")?.ok();
    stage.set_mode(Mode::Replicated).await?;
    stage.active(&stage.all()).await?;
    stage.reached(AGAIN);
    stage.still_serves("after it grew again").await
}

/// A member is cut off while the mode changes and changes back.
async fn back_while_away(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (_, away, _) = stage.cast().await?;
    let before = stage.status(away).and_then(|status| status.applied);
    stage.isolate(&[away]);
    stage.set_mode(Mode::Sync).await?;
    stage.covered_writes(3).await?;
    stage.set_mode(Mode::Replicated).await?;
    stage.acknowledged(3).await?;
    let seen = stage.status(away).and_then(|status| status.committed);
    stage.reached_if(seen <= before, "it never saw the change");
    stage.heal();
    let agree = || {
        let modes = |member| stage.node(member).map(|node| node.replica().modes().cluster);
        stage.all().iter().all(|member| modes(*member) == Some(Some(Mode::Replicated)))
    };
    stage.until("one mode", agree).await?;
    stage.reached("all members agree on the mode");
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// A member is cut off while the mode changes, with acknowledgements that it has not synced. Then it
/// is the one that completes a majority, and all machines lose power.
async fn stale_in_the_majority(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, stale, other) = stage.cast().await?;
    stage.isolate(&[stale]);
    stage.set_mode(Mode::Sync).await?;
    stage.covered_writes(1).await?;
    if stage.rng.random_bool(0.5) {
        stage.pass(0, 6_000).await;
    }
    stage.heal();
    stage.partition(&[other], &[leader, stale]);
    let count = stage.rng.random_range(1..8);
    stage.covered_writes(count).await?;
    stage.reached_if(stage.leads(&[leader]).is_some(), "it was needed for a majority");
    stage.cut_all();
    stage.reached("all are cut");
    stage.heal();
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    Ok(())
}

/// An operator lets a named member lead, and asks the leader to stay away.
async fn leadership_moves(mut stage: Stage) -> Played {
    stage.active(&stage.all()).await?;
    stage.acknowledged(10).await?;
    let (_, named, _) = stage.cast().await?;
    let slot = stage.machine(named)?.slot;
    stage
        .done("a leader that was named", || async {
            stage.cluster.move_leader(Some(slot)).await.map(drop)
        })
        .await?;
    stage.until("the leader that was named", || stage.leads(&[named]).is_some()).await?;
    stage.reached("it moves to the named member");
    stage.still_serves("when leadership moved").await?;
    let leader = stage.leader().await?;
    let away = Duration::from_secs(20);
    let machine = stage.machine(leader)?;
    stage.done("a drained member", || stage.cluster.drain(machine, away)).await?;
    let others = stage.others(&[leader]);
    stage.leader_among(&others, 0).await?;
    stage.reached("a drained leader gives it away");
    // Each of the others ends once, and comes back when another one leads.
    for _ in 0..3 {
        let now = stage.leader_among(&others, 0).await?;
        stage.kill(now);
        stage.pass(0, 3_000).await;
        stage.start(&[now]).await;
        stage.leader_among(&others, 0).await?;
    }
    stage.reached_if(stage.leads(&[leader]).is_none(), "it stays away");
    stage.active(&stage.all()).await?;
    stage.still_serves("while one is drained").await?;
    stage.end_drain(leader).await
}
