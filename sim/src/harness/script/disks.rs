//! Disks that are lost while something else goes on.

use super::stage::{Played, Stage};
use super::{Scenario, five, three, three_or_five};
use cairn_clients::Violation;
use cairn_raft::Role;
use rand::RngExt;

pub(super) const REBORN: &str = "newcomer votes";
const RECOVERED: &str = "forgetful member active again";

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "disk-lost-while-another-lags",
        parts: &["one lags, one disk lost", REBORN],
        seeds: 3,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(lost_while_another_lags(stage)),
    },
    Scenario {
        name: "new-leader-in-the-middle-of-the-replacing-change",
        parts: &["the leader dies in the joint configuration", REBORN],
        seeds: 4,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(leader_dies_in_the_change(stage)),
    },
    Scenario {
        name: "newcomer-cut-while-it-learns",
        parts: &["a learner is cut", REBORN],
        seeds: 4,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(newcomer_cut(stage)),
    },
    Scenario {
        name: "lost-disk-turns-up-again",
        parts: &[REBORN, "the retired identity is told", "the newcomer is back"],
        seeds: 3,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(lost_disk_back(stage)),
    },
    Scenario {
        name: "older-copy-of-the-running-start",
        parts: &["an older copy in its place", "told by the leader", "told, and started again", RECOVERED],
        seeds: 6,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(copy_of_this_start(stage)),
    },
    Scenario {
        name: "recovery-while-membership-changes",
        parts: &[
            "one recovers while another is reborn",
            "one is cut in the joint configuration",
            RECOVERED,
            REBORN,
        ],
        seeds: 20,
        may_stop: false,
        plan: five,
        script: |stage| Box::pin(recovery_and_rebirth(stage)),
    },
];

pub(super) fn votes(stage: &Stage, member: usize) -> bool {
    stage.node(member).is_some_and(|node| node.replica().votes())
}

/// Whether the leader goes by two configurations.
fn joint(stage: &Stage) -> bool {
    let leader = stage.leads(&stage.all()).and_then(|(_, leader)| stage.status(leader));
    leader.is_some_and(|status| status.configurations.len() == 2)
}

/// Waits until a newcomer votes in a settled configuration.
pub(super) async fn reborn(stage: &Stage, member: usize) -> Played {
    let settled = || {
        votes(stage, member) && stage.status(member).is_some_and(|status| status.configurations.len() == 1)
    };
    stage.until("a newcomer that votes", settled).await?;
    stage.reached(REBORN);
    Ok(())
}

/// One member is behind when the disk of another is lost: the leader alone has the newest writes. Both come back.
async fn lost_while_another_lags(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, lost, lags) = stage.cast().await?;
    stage.isolate(&[lags]);
    stage.acknowledged(20).await?;
    let end = |stage: &Stage, member: usize| stage.status(member).and_then(|status| status.last_log);
    let behind = end(&stage, lags) < end(&stage, leader);
    stage.lose_disk(lost).await?;
    stage.reached_if(behind && stage.leads(&[leader]).is_some(), "one lags, one disk lost");
    stage.pass(0, 500).await;
    stage.heal();
    stage.pass(0, 1_500).await;
    stage.start(&[lost]).await;
    reborn(&stage, lost).await?;
    stage.acknowledged(5).await
}

/// The leader dies between the two steps of the change that replaces a lost identity; the next one finishes it.
async fn leader_dies_in_the_change(mut stage: Stage) -> Played {
    let (leader, lost, _) = stage.cast().await?;
    stage.acknowledged(10).await?;
    stage.lose_disk(lost).await?;
    stage.start(&[lost]).await;
    stage.until("a joint configuration", || joint(&stage)).await?;
    stage.pass(0, 3).await;
    let leader = stage.leads(&stage.all()).map_or(leader, |(_, leader)| leader);
    let between = joint(&stage);
    if stage.rng.random_bool(0.5) {
        stage.cut(leader);
    } else {
        stage.kill(leader);
    }
    stage.reached_if(between, "the leader dies in the joint configuration");
    stage.pass(200, 3_000).await;
    stage.start(&[leader]).await;
    reborn(&stage, lost).await?;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// A newcomer loses power while it receives what the others have: it promised nothing, or recovers like anybody.
async fn newcomer_cut(mut stage: Stage) -> Played {
    let (_, lost, _) = stage.cast().await?;
    stage.acknowledged(30).await?;
    stage.lose_disk(lost).await?;
    for _ in 0..2 {
        stage.start(&[lost]).await;
        let learns = || {
            let status = stage.status(lost);
            status.is_some_and(|status| status.role == Role::Learner && status.last_log.is_some())
        };
        stage.until("a learner", || learns() || votes(&stage, lost)).await?;
        stage.pass(0, 20).await;
        stage.reached_if(!votes(&stage, lost), "a learner is cut");
        stage.cut(lost);
        stage.pass(0, 300).await;
    }
    stage.start(&[lost]).await;
    reborn(&stage, lost).await?;
    stage.acknowledged(5).await
}

/// A lost disk is put in again when another identity has its slot: the old one is told, and harms nobody.
async fn lost_disk_back(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, follower, _) = stage.cast().await?;
    let lost = if stage.rng.random_bool(0.3) { leader } else { follower };
    let files = stage.lose_disk(lost).await?;
    stage.pass(0, 1_000).await;
    stage.start(&[lost]).await;
    reborn(&stage, lost).await?;
    let new = stage.exchange_disk(lost, files).await?;
    // It lost power when it was lost, and may say so before it is told.
    stage.machine(lost)?.lose();
    stage.start(&[lost]).await;
    let told = || stage.node(lost).is_some_and(|node| node.replica().outcast().is_some());
    stage.until("an identity that is told", told).await?;
    stage.reached("the retired identity is told");
    stage.acknowledged(5).await?;
    stage.exchange_disk(lost, new).await?;
    stage.start(&[lost]).await;
    stage.until("the newcomer", || votes(&stage, lost) && stage.is_active(lost)).await?;
    stage.reached("the newcomer is back");
    Ok(())
}

/// A copy of a disk, made since its last start, is put in its place while the machine runs on: it was never told of another
/// start, and has forgotten what was acknowledged since. The leader that heard the acknowledgements tells it.
async fn copy_of_this_start(mut stage: Stage) -> Played {
    stage.active(&stage.all()).await?;
    let (leader, follower, _) = stage.cast().await?;
    stage.acknowledged(10).await?;
    let end = |stage: &Stage| stage.status(follower).and_then(|status| status.last_log);
    let copy = stage.machine(follower)?.disk.snapshot();
    let copied = end(&stage);
    stage.pass(0, 1_000).await;
    stage.acknowledged(20).await?;
    stage.until("newer entries", || end(&stage) > copied).await?;
    stage.exchange_disk(follower, copy).await?;
    stage.reached("an older copy in its place");
    stage.machine(follower)?.restored(true);
    stage.start(&[follower]).await;
    stage.recovering(follower).await?;
    if stage.seed.is_multiple_of(2) && stage.is_recovering(follower) {
        // Nobody tells it again in its next life.
        stage.isolate(&[follower]);
        stage.pass(500, 1_000).await;
        stage.kill(follower);
        stage.start(&[follower]).await;
        stage.until("a node that serves", || stage.node(follower).is_some()).await?;
        if stage.is_active(follower) {
            let detail = format!("member {follower} was told that it forgot, and does not know it any more");
            stage.cluster.violation(Violation::new("a restart makes no forgetful member whole", detail));
        }
        stage.reached_if(stage.is_recovering(follower), "told, and started again");
        stage.heal();
    }
    stage.machine(follower)?.restored(false);
    stage.reached_if(stage.leads(&[leader]).is_some(), "told by the leader");
    stage.active(&[follower]).await?;
    stage.reached(RECOVERED);
    stage.acknowledged(5).await
}

/// One disk of five is lost, and while its machine is reborn another member loses power: early in it, when it forgets and
/// recovers, or just when the leader goes by two configurations, when acknowledgements do not run ahead and it forgets nothing.
async fn recovery_and_rebirth(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (_, lost, forgets) = stage.cast().await?;
    stage.lose_disk(lost).await?;
    stage.start(&[lost]).await;
    let early = stage.seed.is_multiple_of(2);
    if early {
        stage.pass(0, 5_000).await;
        stage.cut_ahead(forgets, 3).await?;
    } else {
        stage.until("a joint configuration", || joint(&stage)).await?;
        stage.reached("one is cut in the joint configuration");
        stage.cut(forgets);
    }
    stage.pass(0, 300).await;
    stage.start(&[forgets]).await;
    if early {
        stage.recovering(forgets).await?;
        stage.reached_if(!votes(&stage, lost) || joint(&stage), "one recovers while another is reborn");
    }
    stage.active(&[forgets]).await?;
    stage.reached_if(early, RECOVERED);
    reborn(&stage, lost).await?;
    stage.acknowledged(5).await
}
