//! Members that an operator removes and adds, in the middle of something else.

use super::changes::{AGAIN, CHANGE, KNOWS, SYNCED_MS};
use super::disks::{joint, replacement, votes};
use super::stage::{Played, Stage};
use super::{Scenario, five, three, three_or_five};
use crate::disk::Moment;
use crate::harness::operator::NotDone;
use cairn_clients::Violation;
use cairn_engine::Mode;
use cairn_engine::io::FileKind;
use cairn_raft::Role;
use rand::RngExt;
use std::time::Duration;

const REMOVED: &str = "removed";
/// For how long a disk hangs, unless it is restarted before.
const HANGS: Duration = Duration::from_secs(10);

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("power-cut-in-the-middle-of-a-removal", three, cut_in_a_removal).seeds(32).reaches(
        &[
            "the leader is cut",
            "the one that leaves is cut",
            "one that stays is cut",
            "all are cut",
            "cut in the joint configuration",
            REMOVED,
            AGAIN,
        ],
    ),
    scenario!("removal-before-one-that-stays-has-synced", three, removed_before_synced)
        .seeds(6)
        .reaches(&["the flag of one that stays is set", "it loses power", REMOVED, AGAIN]),
    scenario!("leader-removed", three_or_five, leader_removed).seeds(6).reaches(&[
        "another member leads",
        KNOWS,
        AGAIN,
    ]),
    scenario!("dead-member-removed", three, dead_removed)
        .seeds(6)
        .reaches(&[REMOVED, KNOWS, AGAIN]),
    scenario!("removal-while-others-recover", five, others_recover).seeds(6).reaches(&[
        "refused while others recover",
        "removed when they are active",
        AGAIN,
    ]),
    scenario!("removed-disk-turns-up-again", three, disk_back).seeds(6).reaches(&[
        "back while nobody has its slot",
        "back beside its successor",
        KNOWS,
        AGAIN,
    ]),
    scenario!("added-learner-loses-power", three, learner_cut)
        .seeds(6)
        .reaches(&["a learner is cut", AGAIN]),
];

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
    tokio::time::timeout(CHANGE, removing).await.map_err(|_| "a removal")?.ok();
    stage.reached(REMOVED);
    stage.still_serves("after a power cut in the middle").await?;
    stage.grow_again(&[leaves]).await
}

/// The mode ends, and a member that is to stay syncs the record and cannot clear its unsynced-ack flag:
/// one file of its disk hangs. Then it loses power, and the leader's process ends. If it was one of two
/// voters by then, nobody could be elected: it recovers, and cannot tell what it lost.
async fn removed_before_synced(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(10).await?;
    let (leader, leaves, stays) = stage.cast().await?;
    let disk = stage.machine(stays)?.disk.clone();
    disk.stall(HANGS, Some(FileKind::Superblock));
    stage.set_mode(Mode::Sync).await?;
    stage.reached_if(stage.has_unsynced_acks(stays), "the flag of one that stays is set");
    let removing = stage.removing(leaves);
    stage.pass(0, 1_500).await;
    stage.reached_if(stage.has_unsynced_acks(stays), "it loses power");
    stage.cut(stays);
    stage.kill(leader);
    stage.pass(0, 1_000).await;
    disk.stall(Duration::ZERO, None);
    stage.start(&[leader, stays]).await;
    tokio::time::timeout(CHANGE, removing).await.map_err(|_| "a removal")?.ok();
    stage.reached(REMOVED);
    stage.still_serves("after one that had not synced lost power").await?;
    stage.grow_again(&[leaves]).await
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

/// Two of five members recover, and the removal of another one is asked for. Without that one no
/// majority of active members would be left, so it is refused.
async fn others_recover(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, leaves, stays) = stage.cast().await?;
    let recover = stage.others(&[leader, leaves, stays]);
    for member in &recover {
        stage.cut_ahead(*member, 3).await?;
    }
    stage.leader_among(&[leader, leaves, stays], 0).await?;
    stage.start(&recover).await;
    for member in &recover {
        stage.recovering(*member).await?;
        stage.machine(*member)?.disk.stall(Duration::from_secs(4), None);
    }
    let recovering = |stage: &Stage| recover.iter().all(|member| stage.is_recovering(*member));
    while recovering(&stage) {
        let asked = stage.cluster.try_to_remove(stage.machine(leaves)?);
        let asked = tokio::time::timeout(Duration::from_secs(1), asked).await;
        let still = recovering(&stage);
        if still && matches!(asked, Ok(Err(NotDone::Refused(_)))) {
            stage.reached("refused while others recover");
        }
        // A change that should not have begun is not answered while it waits for them.
        if still && (matches!(asked, Ok(Ok(()))) || joint(&stage)) {
            let detail = format!("member {leaves} leaves while members {recover:?} recover");
            let violation = Violation::new("a removal leaves an active majority", detail);
            stage.cluster.violation(violation);
            break;
        }
        stage.pass(50, 200).await;
    }
    stage.active(&recover).await?;
    stage.remove(leaves).await?;
    stage.reached("removed when they are active");
    stage.still_serves("with two that recovered").await?;
    stage.grow_again(&[leaves]).await
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
