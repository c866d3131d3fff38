//! A majority may have forgotten: the cluster waits, and a person decides what is given up.

use super::loss::{CONTRADICTED, GIVEN_UP};
use super::stage::{Played, Stage};
use super::{FORGOT, Scenario, three, three_or_five};
use crate::harness::finale::{MANDATED, STOPPED};
use crate::harness::plan::Plan;
use cairn_clients::Violation;
use cairn_clients::workload::Profile;
use std::time::Duration;

const REPLACED: &str = "an empty disk takes its place";
/// Shorter than a follower waits for its leader.
const PARTED: Duration = Duration::from_millis(300);
const OLD_START: &str = "the record of its start is in its log, and nobody committed it";

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "nats-total-cut-inside-the-window",
        parts: &[FORGOT, STOPPED, MANDATED, GIVEN_UP],
        seeds: 6,
        may_stop: true,
        plan: three_or_five,
        script: |stage| Box::pin(total_cut(stage)),
    },
    Scenario {
        name: "synced-write-then-total-cut",
        parts: &["a synced write was answered", FORGOT],
        seeds: 12,
        may_stop: true,
        plan: busy,
        script: |stage| Box::pin(synced_then_cut(stage)),
    },
    Scenario {
        name: "given-up-while-a-member-was-missing",
        parts: &[FORGOT, MANDATED, "a missing member holds what was given up", CONTRADICTED, REPLACED],
        seeds: 16,
        may_stop: true,
        plan: three_or_five,
        script: |stage| Box::pin(missing_member(stage)),
    },
    Scenario {
        name: "longest-log-out-of-the-operators-sight",
        parts: &[FORGOT, "another one reaches further", "the furthest leads"],
        seeds: 12,
        may_stop: true,
        plan: three,
        script: |stage| Box::pin(longest_out_of_sight(stage)),
    },
    Scenario {
        name: "mandate-for-one-with-its-start-in-the-log",
        parts: &[FORGOT, OLD_START, "active, and the loss is told"],
        seeds: 16,
        may_stop: true,
        plan: |seed| Plan { latency: Duration::from_millis(2)..Duration::from_millis(4), ..three(seed) },
        script: |stage| Box::pin(start_in_the_log(stage)),
    },
];

/// All machines lose power at once, under load, with acknowledged writes unsynced. The cluster stops and says so, or
/// everything is there. After a person's mandate it serves, and what is missing lies within one sync window.
async fn total_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    // Enough to be safe and enough not to be.
    stage.pass(1_000, 4_000).await;
    stage.acknowledged(1).await?;
    let forgot = stage.cut_all() > 0;
    stage.reached_if(forgot, FORGOT);
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    Ok(())
}

/// Three members and so many requests at a time that the leader's streams are full, and what waits goes out in one append. Few
/// of the writes are to be synced: each sync covers what came before it, too.
fn busy(seed: u64) -> Plan {
    let plan = three(seed);
    let profile = Profile {
        groups: 20,
        tasks_per_client: 20,
        think_max: Duration::from_millis(8),
        write_percent: 90,
        synced_one_in: 300,
        ..plan.profile
    };
    Plan { profile, ..plan }
}

/// The followers lose power the moment that a write is answered which was to be synced before, and the leader is out of reach.
/// It is there afterwards, whatever else is given up.
async fn synced_then_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(0, 1_500).await;
    let leader = stage.leader().await?;
    stage.synced_write().await?;
    stage.reached("a synced write was answered");
    give_up_without(stage, leader).await
}

/// The followers lose power at once, under load, and the leader that alone remembers is out of reach. A person lets one of
/// those that forgot lead all the same. When the old leader is back, what it applied contradicts what the others wrote since:
/// it takes nothing of that beside its own, and an empty disk takes its place.
async fn missing_member(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(1_000, 3_000).await;
    stage.acknowledged(1).await?;
    let missing = stage.leader().await?;
    give_up_without(stage, missing).await
}

/// All machines lose power at once, under load. Whoever decides sees all members but the one whose log reaches furthest, which the
/// others reach: the one that is named refuses, nobody leads, and once all are seen the furthest does.
async fn longest_out_of_sight(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(1_000, 3_000).await;
    stage.acknowledged(1).await?;
    let forgot = stage.forget_everything().await? > 0;
    stage.reached_if(forgot, FORGOT);
    let end = |member: &usize| stage.status(*member).and_then(|status| status.last_log);
    let furthest = stage.all().into_iter().max_by_key(end).ok_or("members")?;
    let seen = stage.others(&[furthest]);
    let end = |member: usize| stage.status(member).and_then(|status| status.last_log);
    if seen.iter().any(|member| end(*member) >= end(furthest)) {
        return Err("one log that is longer than the others".into());
    }
    stage.reached("another one reaches further");
    if stage.try_to_decide(&seen).await?.is_none() {
        let detail = format!("member {furthest} reaches further, and one of {seen:?} was let to lead");
        stage
            .cluster
            .violation(Violation::new("whoever is let to lead reaches furthest of those present", detail));
    }
    let held = end(furthest);
    if stage.decide(&stage.all()).await? != held {
        return Err("the same one still reaches furthest".into());
    }
    stage.active(&stage.all()).await?;
    stage.reached("the furthest leads");
    Ok(())
}

async fn give_up_without(mut stage: Stage, missing: usize) -> Played {
    let others = stage.others(&[missing]);
    let applied = |stage: &Stage| stage.status(missing).and_then(|status| status.applied);
    let forgot = stage.cut_together(&others) > 0;
    stage.reached_if(forgot, FORGOT);
    stage.kill(missing);
    // Nobody asks from here on, and nobody waits for an answer any more.
    stage.quiet().await;
    stage.start(&others).await;
    for member in &others {
        stage.recovering(*member).await?;
    }
    let end = stage.decide(&others).await?;
    let back = || stage.leads(&others).is_some() && others.iter().all(|member| stage.is_active(*member));
    stage.until("members that a person brought back", back).await?;
    stage.start(&[missing]).await;
    stage.until("a node that serves", || stage.node(missing).is_some()).await?;
    // What it has not applied it may exchange for what the others hold.
    let held = applied(&stage);
    stage.pass(2_000, 4_000).await;
    if held > end {
        stage.reached("a missing member holds what was given up");
        let now = applied(&stage);
        if now.map(|id| id.term) != held.map(|id| id.term) || stage.leads(&[missing]).is_some() {
            let detail = format!("member {missing} had applied {held:?}, and now {now:?}");
            stage
                .cluster
                .violation(Violation::new("what was given up is not mixed with what came after", detail));
        }
        stage.lose_disk(missing).await?;
        stage.start(&[missing]).await;
        let votes = || stage.node(missing).is_some_and(|node| node.replica().votes());
        stage.until("a newcomer that votes", votes).await?;
        stage.reached(REPLACED);
    }
    Ok(())
}

/// A member that forgot is brought back by the leader, which dies when the record of its start is in that member's log and
/// not committed. A person lets the member lead: its leadership commits that record first of all. It is whole no earlier than the
/// log says that something was given up, or a crash in between would leave a loss of which nobody is told.
async fn start_in_the_log(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, member, third) = stage.cast().await?;
    stage.acknowledged(3).await?;
    let forgot = stage.is_lazy(member) && stage.cut(member) > 0;
    stage.reached_if(forgot, FORGOT);
    stage.quiet().await;
    stage.kill(third);
    let end = |member: usize| stage.status(member).and_then(|status| status.last_log);
    let before = end(leader);
    stage.start(&[member]).await;
    let has_start = || end(leader) > before && end(member) == end(leader);
    stage.until("the record of its start in its log", has_start).await?;
    stage.kill(leader);
    stage.reached_if(stage.is_recovering(member), OLD_START);
    stage.start(&[third]).await;
    stage.until("a node that serves", || stage.node(third).is_some()).await?;
    // For so long the leader may be alive.
    stage.pass(5_500, 6_500).await;
    stage.decide(&[member, third]).await?;
    stage.leader_among(&[member], 0).await?;
    // What the leader proposes by then is committed, and the rest is not, for a while.
    stage.pass(10, 90).await;
    stage.part(&[member], &[third]);
    let whole = || stage.is_active(member);
    let mut told = !stage.within(PARTED, whole).await || stage.tells_a_loss(member);
    stage.heal();
    stage.until("a member that a person brought back", whole).await?;
    told &= stage.tells_a_loss(member);
    match told {
        true => stage.reached("active, and the loss is told"),
        false => stage.cluster.violation(Violation::new(
            "who is brought back by a person is whole behind the loss only",
            format!("member {member} is whole, and no loss is told"),
        )),
    }
    stage.start(&[leader]).await;
    stage.active(&stage.all()).await
}
