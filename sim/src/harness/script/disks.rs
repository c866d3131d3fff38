//! Disks that are lost while something else happens.

use super::stage::{Played, Stage};
use super::{Scenario, five, three, three_or_five};
use cairn_clients::Violation;
use cairn_raft::Role;
use rand::RngExt;

pub(super) const REPLACEMENT: &str = "new identity votes";
const RECOVERED: &str = "recovered member active again";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("disk-lost-while-another-lags", three, lost_while_another_lags)
        .seeds(3)
        .reaches(&["one lags, one disk lost", REPLACEMENT]),
    scenario!(
        "new-leader-in-the-middle-of-the-replacing-change",
        three_or_five,
        leader_dies_in_the_change
    )
    .reaches(&["the leader ends in the joint configuration", REPLACEMENT]),
    scenario!("learner-cut-while-it-catches-up", three_or_five, joiner_cut)
        .reaches(&["a learner is cut", REPLACEMENT]),
    scenario!("lost-disk-turns-up-again", three, lost_disk_back).seeds(3).reaches(&[
        REPLACEMENT,
        "the removed identity knows it",
        "the new identity is back",
    ]),
    scenario!("older-copy-of-the-running-epoch", three_or_five, copy_of_this_epoch)
        .seeds(6)
        .reaches(&[
            "an older copy replaces its disk",
            "the leader tells it what it lacks",
            "told, and restarted",
            RECOVERED,
        ]),
    scenario!("recovery-while-membership-changes", five, recovery_and_replacement)
        .seeds(20)
        .reaches(&[
            "one recovers while another is replaced",
            "one is cut in the joint configuration",
            RECOVERED,
            REPLACEMENT,
        ]),
];

pub(super) fn votes(stage: &Stage, member: usize) -> bool {
    stage.node(member).is_some_and(|node| node.replica().votes())
}

/// Whether the leader uses a joint configuration.
pub(super) fn joint(stage: &Stage) -> bool {
    let leader = stage.leads(&stage.all()).and_then(|(_, leader)| stage.status(leader));
    leader.is_some_and(|status| status.configurations.len() == 2)
}

/// Waits until the new identity votes in a single configuration.
pub(super) async fn replacement(stage: &Stage, member: usize) -> Played {
    let votes_alone = || {
        votes(stage, member)
            && stage.status(member).is_some_and(|status| status.configurations.len() == 1)
    };
    stage.until("a new identity that votes", votes_alone).await?;
    stage.reached(REPLACEMENT);
    Ok(())
}

/// One member lags when the disk of another is lost: only the leader has the newest writes. Both
/// come back.
async fn lost_while_another_lags(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, lost, lags) = stage.cast().await?;
    stage.isolate(&[lags]);
    stage.acknowledged(20).await?;
    let end =
        |stage: &Stage, member: usize| stage.status(member).and_then(|status| status.last_log);
    let behind = end(&stage, lags) < end(&stage, leader);
    stage.lose_disk(lost).await?;
    stage.reached_if(behind && stage.leads(&[leader]).is_some(), "one lags, one disk lost");
    stage.pass(0, 500).await;
    stage.heal();
    stage.pass(0, 1_500).await;
    stage.start(&[lost]).await;
    replacement(&stage, lost).await?;
    stage.acknowledged(5).await
}

/// The leader ends between the two steps of the change that replaces a lost identity; the next
/// leader finishes the change.
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
    stage.reached_if(between, "the leader ends in the joint configuration");
    stage.pass(200, 3_000).await;
    stage.start(&[leader]).await;
    replacement(&stage, lost).await?;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// A joining node loses power while it catches up: it promised nothing, or recovers like any other
/// member.
async fn joiner_cut(mut stage: Stage) -> Played {
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
    replacement(&stage, lost).await?;
    stage.acknowledged(5).await
}

/// A lost disk is put in again when another identity has its slot: the old identity learns that it
/// was removed, and does no harm.
async fn lost_disk_back(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, follower, _) = stage.cast().await?;
    let lost = if stage.rng.random_bool(0.3) { leader } else { follower };
    let files = stage.lose_disk(lost).await?;
    stage.pass(0, 1_000).await;
    stage.start(&[lost]).await;
    replacement(&stage, lost).await?;
    let new = stage.exchange_disk(lost, files).await?;
    // Its machine lost power when the disk was lost, so it may start as recovering before it learns
    // of its removal.
    stage.machine(lost)?.lose();
    stage.start(&[lost]).await;
    let knows = || stage.node(lost).is_some_and(|node| node.replica().removed_reason().is_some());
    stage.until("an identity that knows its removal", knows).await?;
    stage.reached("the removed identity knows it");
    stage.acknowledged(5).await?;
    stage.exchange_disk(lost, new).await?;
    stage.start(&[lost]).await;
    stage.until("the new identity", || votes(&stage, lost) && stage.is_active(lost)).await?;
    stage.reached("the new identity is back");
    Ok(())
}

/// A copy of a disk, made since its last boot epoch, replaces the disk on the running machine. The
/// members know no later boot epoch, and the copy lacks what was acknowledged since. The leader
/// that received the acknowledgements tells it.
async fn copy_of_this_epoch(mut stage: Stage) -> Played {
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
    stage.reached("an older copy replaces its disk");
    stage.machine(follower)?.restored(true);
    stage.start(&[follower]).await;
    stage.recovering(follower).await?;
    if stage.seed.is_multiple_of(2) && stage.is_recovering(follower) {
        // No leader tells it again in its next life.
        stage.isolate(&[follower]);
        stage.pass(500, 1_000).await;
        stage.kill(follower);
        stage.start(&[follower]).await;
        stage.until("a node that serves", || stage.node(follower).is_some()).await?;
        if stage.is_active(follower) {
            let detail = format!(
                "member {follower} was told that it lacks acknowledged entries, and is active after a restart"
            );
            stage.cluster.violation(Violation::new("a restart does not end a recovery", detail));
        }
        stage.reached_if(stage.is_recovering(follower), "told, and restarted");
        stage.heal();
    }
    stage.machine(follower)?.restored(false);
    stage.reached_if(stage.leads(&[leader]).is_some(), "the leader tells it what it lacks");
    stage.active(&[follower]).await?;
    stage.reached(RECOVERED);
    stage.acknowledged(5).await
}

/// One disk of five is lost, and while its identity is replaced another member loses power. In some
/// seeds this is early, and the member loses acknowledged entries and recovers. In the others it is
/// just when the leader uses a joint configuration; then members sync before they acknowledge, and
/// it loses nothing.
async fn recovery_and_replacement(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (_, lost, forgetful) = stage.cast().await?;
    stage.lose_disk(lost).await?;
    stage.start(&[lost]).await;
    let early = stage.seed.is_multiple_of(2);
    if early {
        stage.pass(0, 5_000).await;
        stage.cut_ahead(forgetful, 3).await?;
    } else {
        stage.until("a joint configuration", || joint(&stage)).await?;
        stage.reached("one is cut in the joint configuration");
        stage.cut(forgetful);
    }
    stage.pass(0, 300).await;
    stage.start(&[forgetful]).await;
    if early {
        stage.recovering(forgetful).await?;
        stage.reached_if(
            !votes(&stage, lost) || joint(&stage),
            "one recovers while another is replaced",
        );
    }
    stage.active(&[forgetful]).await?;
    stage.reached_if(early, RECOVERED);
    replacement(&stage, lost).await?;
    stage.acknowledged(5).await
}
