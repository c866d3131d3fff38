//! Interrupted recoveries of a member that lost acknowledged entries.

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, five, one_workload, three, three_or_five};
use crate::disk::Moment;
use crate::harness::clock::virtual_time;
use crate::harness::machine::Death;
use crate::harness::plan::Plan;
use cairn_clients::Violation;
use cairn_engine::Mode;
use std::time::Duration;

/// How much longer an operation takes on the disk of a member that shall take long to recover.
const SLOWER: Duration = Duration::from_millis(60);
/// By then the others have had contact with it for long enough.
const NOTICED_MS: std::ops::Range<u64> = 3_000..4_000;
const RECOVERED: &str = "recovered member active again";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("restart-during-recovery-at-each-step", one_workload, restart_at_a_step)
        .seeds(90)
        .reaches(&[UNSYNCED_LOST, "ended while it opened", "ended while it recovered", RECOVERED]),
    scenario!("mode-changed-after-a-cut", three_or_five, mode_changed).reaches(&[
        UNSYNCED_LOST,
        "recovers in its new mode",
        RECOVERED,
    ]),
    scenario!("recovering-member-cut-again", three_or_five, cut_again).reaches(&[
        UNSYNCED_LOST,
        "cut while it recovered",
        RECOVERED,
    ]),
    scenario!("leader-change-before-the-epoch-record", three_or_five, before_the_epoch_record)
        .reaches(&[UNSYNCED_LOST, "the leader ends before it helps", RECOVERED]),
    scenario!(
        "leader-change-before-the-epoch-record-is-committed",
        five,
        epoch_record_not_committed
    )
    .reaches(&[UNSYNCED_LOST, "the record is on two of five", RECOVERED]),
    scenario!("leader-change-after-the-epoch-record", three_or_five, after_the_epoch_record)
        .reaches(&[UNSYNCED_LOST, "the leader ends after the record", RECOVERED]),
    scenario!("time-to-heal", three_or_five, time_to_heal).seeds(30).may_stop().reaches(&[
        UNSYNCED_LOST,
        "a follower was cut",
        "the leader was cut",
        "data loss was accepted",
        "healed within 0.5 s",
        "healed within 1 s",
    ]),
    scenario!(
        "total-cut-of-the-others-while-one-comes-back",
        |seed| Plan { log_retain_entries: 10, snapshot_piece_bytes: Some(4_096), ..three(seed) },
        others_cut_meanwhile
    )
    .seeds(6)
    .reaches(&[UNSYNCED_LOST, "cut while another was recovering", "all active again"]),
];

/// The longest time that members may take to become active once they are up and there is a leader,
/// with nothing else going on.
const HEAL_LIMIT: Duration = Duration::from_secs(2);

/// A member that lost acknowledged entries is ended as the k-th disk operation of its next life
/// begins, with k the seed: while it opens, while it recovers, or later. Seeds kill it and cut its
/// power in turns.
async fn restart_at_a_step(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let lost_acks = stage.cut_ahead(member, 5).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.start(&[member]).await;
    stage.disk(member, Moment::Operation, stage.step()).await?;
    stage.reached_if(stage.node(member).is_none(), "ended while it opened");
    stage.reached_if(stage.is_recovering(member), "ended while it recovered");
    let death = if stage.seed.is_multiple_of(2) { Death::Killed } else { Death::PowerCut };
    stage.end(member, death);
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    stage.reached_if(lost_acks, RECOVERED);
    stage.acknowledged(5).await
}

/// A member that lost acknowledged entries is started in a mode that loses nothing: the mode before
/// the cut decides that it must recover.
async fn mode_changed(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let lost_acks = stage.cut_ahead(member, 5).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    let mode = if stage.seed.is_multiple_of(3) { Mode::Device } else { Mode::Sync };
    stage.machine(member)?.configure(mode);
    stage.start(&[member]).await;
    stage.until("a node that serves", || stage.node(member).is_some()).await?;
    if lost_acks && stage.is_active(member) {
        let detail = format!(
            "member {member} is active in mode {mode}, and lost acknowledged entries in mode replicated"
        );
        stage.cluster.violation(Violation::new(
            "a member that lost writes recovers, whatever its mode",
            detail,
        ));
    }
    stage.reached_if(stage.is_recovering(member), "recovers in its new mode");
    stage.active(&[member]).await?;
    stage.reached_if(lost_acks, RECOVERED);
    stage.acknowledged(5).await
}

/// A member that lost acknowledged entries loses power several times more before it is active: what
/// it received meanwhile is unsynced too.
async fn cut_again(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let lost_acks = stage.cut_ahead(member, 5).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    for _ in 0..3 {
        stage.pass(0, 1_000).await;
        stage.start(&[member]).await;
        stage.recovering(member).await?;
        stage.pass(0, 80).await;
        stage.reached_if(stage.is_recovering(member), "cut while it recovered");
        stage.cut(member);
    }
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    stage.reached_if(lost_acks, RECOVERED);
    stage.acknowledged(5).await
}

/// A member that lost acknowledged entries asks the leader to recover. The leader does not receive
/// the request and is killed: another leader has to help.
async fn before_the_epoch_record(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let lost_acks = stage.cut_ahead(member, 5).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.drop_messages(member, leader);
    stage.start(&[member]).await;
    stage.recovering(member).await?;
    stage.pass(100, 700).await;
    stage.reached_if(stage.is_recovering(member), "the leader ends before it helps");
    stage.kill(leader);
    stage.heal();
    return_of_both(stage, leader, member, lost_acks).await
}

/// The leader and the recovering member are cut off from the other three. The leader proposes the
/// boot-epoch record, and only these two get it. The leader is killed, and the others elect a
/// leader that never saw the record.
async fn epoch_record_not_committed(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let lost_acks = stage.cut_ahead(member, 5).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.isolate(&[leader, member]);
    let committed = stage.status(leader).and_then(|status| status.committed);
    stage.start(&[member]).await;
    let end = |member: usize| stage.status(member).and_then(|status| status.last_log);
    let caught_up =
        || stage.is_recovering(member) && end(member) == end(leader) && end(leader) > committed;
    stage.until("a member that caught up with its leader", caught_up).await?;
    stage.pass(0, 200).await;
    stage.reached_if(stage.is_recovering(member), "the record is on two of five");
    stage.kill(leader);
    stage.heal();
    return_of_both(stage, leader, member, lost_acks).await
}

/// The boot-epoch record is committed, but its member has not applied it yet, since its disk
/// stalls. Now the leader is killed.
async fn after_the_epoch_record(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let lost_acks = stage.cut_ahead(member, 5).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.start(&[member]).await;
    stage.recovering(member).await?;
    let end = || stage.status(member).and_then(|status| status.last_log);
    let found = end();
    stage.until("accepted appends", || end() != found).await?;
    let disk = stage.machine(member)?.disk.clone();
    let slow = Duration::from_millis(if stage.seed.is_multiple_of(2) { 1_500 } else { 4_000 });
    disk.stall(slow, None);
    // These writes come after the record, so it is committed.
    stage.acknowledged(8).await?;
    stage.reached_if(stage.is_recovering(member), "the leader ends after the record");
    stage.kill(leader);
    return_of_both(stage, leader, member, lost_acks).await
}

/// A follower, the leader, or all members lose power; in the last case an operator decides.
/// Measures how long the members that lost acknowledged entries take until they are active, counted
/// from when there is a leader. None waits in vain for its boot-epoch record and asks again.
async fn time_to_heal(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(5).await?;
    let leader = stage.leader().await?;
    let term = stage.term(leader);
    let (cut, story) = match stage.seed / 2 % 3 {
        0 => (stage.others(&[leader]).into_iter().take(1).collect(), "a follower was cut"),
        1 => (vec![leader], "the leader was cut"),
        _ => (stage.all(), "data loss was accepted"),
    };
    let all = cut.len() > 1;
    let lost_acks =
        if all { stage.cut_all() } else { cut.iter().map(|member| stage.cut(*member)).sum() };
    stage.reached_if(lost_acks > 0, UNSYNCED_LOST);
    if all {
        // From here on clients send no requests and wait for no answers.
        stage.quiet().await;
    }
    stage.start(&cut).await;
    for member in &cut {
        stage.recovering(*member).await?;
    }
    if all {
        stage.decide(&cut).await?;
    }
    stage.leader_among(&stage.all(), if cut.contains(&leader) { term } else { 0 }).await?;
    let begun = virtual_time();
    stage.active(&cut).await?;
    let took = virtual_time() - begun;
    stage.reached(story);
    stage.cluster.trace.event(format!("time to heal: {} ms, {story}", took.as_millis()));
    match took.as_millis() {
        0..500 => stage.reached("healed within 0.5 s"),
        500..1000 => stage.reached("healed within 1 s"),
        _ if took < HEAL_LIMIT => stage.reached("healed within 2 s"),
        _ => {
            let detail =
                format!("{} ms from a leader to active members; {story}", took.as_millis());
            stage.cluster.violation(Violation::new(
                "a recovering member is active soon after a leader is elected",
                detail,
            ));
        }
    }
    Ok(())
}

async fn return_of_both(mut stage: Stage, leader: usize, member: usize, lost_acks: bool) -> Played {
    stage.pass(200, 2_000).await;
    stage.start(&[leader]).await;
    stage.active(&[member]).await?;
    stage.reached_if(lost_acks, RECOVERED);
    stage.acknowledged(5).await
}

/// A member that lost acknowledged entries needs a snapshot, and its disk is slow. It answers, but
/// it does not count as healthy until it has caught up: the others lose power at once and must come
/// back without an operator.
async fn others_cut_meanwhile(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (_, member, _) = stage.cast().await?;
    let others = stage.others(&[member]);
    let lost_acks = stage.cut_ahead(member, 3).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    let end = stage.machine(member)?.counted();
    stage.bulk().await?;
    let purged = |stage: &Stage| others.iter().all(|other| stage.purged(*other) > end);
    stage.until("a log that was purged", || purged(&stage)).await?;
    let disk = stage.machine(member)?.disk.clone();
    disk.slow_down(SLOWER);
    stage.start(&[member]).await;
    stage.recovering(member).await?;
    stage.pass(NOTICED_MS.start, NOTICED_MS.end).await;
    if !stage.is_recovering(member) {
        return Err("a member that takes long to recover".into());
    }
    stage.acknowledged(3).await?;
    stage.cut_together(&others);
    stage.reached("cut while another was recovering");
    disk.slow_down(Duration::ZERO);
    stage.start(&others).await;
    stage.active(&stage.all()).await?;
    stage.reached("all active again");
    stage.acknowledged(5).await
}
