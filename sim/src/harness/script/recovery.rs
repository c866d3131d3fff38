//! The way back of a member that forgot, interrupted.

use super::stage::{Played, Stage};
use super::{FORGOT, Scenario, five, one_workload, three, three_or_five};
use crate::disk::Moment;
use crate::harness::cluster::virtual_time;
use crate::harness::machine::Death;
use crate::harness::plan::Plan;
use cairn_clients::Violation;
use cairn_engine::Mode;
use std::time::Duration;

/// How much longer an operation takes on the disk of a member that shall be long in coming back.
const SLOWER: Duration = Duration::from_millis(60);
/// By then the others have seen it answer for long enough.
const NOTICED_MS: std::ops::Range<u64> = 3_000..4_000;
const RECOVERED: &str = "forgetful member active again";

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "restart-during-recovery-at-each-step",
        parts: &[FORGOT, "ended while it opened", "ended while it recovered", RECOVERED],
        seeds: 90,
        may_stop: false,
        plan: one_workload,
        script: |stage| Box::pin(restart_at_a_step(stage)),
    },
    Scenario {
        name: "mode-changed-after-a-cut",
        parts: &[FORGOT, "recovers in its new mode", RECOVERED],
        seeds: 4,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(mode_changed(stage)),
    },
    Scenario {
        name: "recovering-member-cut-again",
        parts: &[FORGOT, "cut while it recovered", RECOVERED],
        seeds: 4,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(cut_again(stage)),
    },
    Scenario {
        name: "leader-change-before-the-mark",
        parts: &[FORGOT, "the leader dies before it admits", RECOVERED],
        seeds: 4,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(before_the_mark(stage)),
    },
    Scenario {
        name: "leader-change-before-the-mark-is-committed",
        parts: &[FORGOT, "the mark is on two of five", RECOVERED],
        seeds: 4,
        may_stop: false,
        plan: five,
        script: |stage| Box::pin(mark_not_committed(stage)),
    },
    Scenario {
        name: "leader-change-after-the-mark",
        parts: &[FORGOT, "the leader dies behind the mark", RECOVERED],
        seeds: 4,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(after_the_mark(stage)),
    },
    Scenario {
        name: "time-to-heal",
        parts: &[
            FORGOT,
            "a follower was cut",
            "the leader was cut",
            "a loss was accepted",
            "healed within 0.5 s",
            "healed within 1 s",
        ],
        seeds: 30,
        may_stop: true,
        plan: three_or_five,
        script: |stage| Box::pin(time_to_heal(stage)),
    },
    Scenario {
        name: "total-cut-of-the-others-while-one-comes-back",
        parts: &[FORGOT, "cut while another was on its way back", "all active again"],
        seeds: 6,
        may_stop: false,
        plan: |seed| Plan { log_retain_entries: 10, snapshot_piece_bytes: Some(4_096), ..three(seed) },
        script: |stage| Box::pin(others_cut_meanwhile(stage)),
    },
];

/// Longest that members may take to be active again once they are up and somebody leads, with nothing else going on.
const HEAL_LIMIT: Duration = Duration::from_secs(2);

/// A member that forgot is ended as the k-th disk operation of its next life begins, with k the seed: while it opens, while
/// it recovers, or thereafter; killed and cut in turns.
async fn restart_at_a_step(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let forgot = stage.cut_ahead(member, 5).await?;
    stage.reached_if(forgot, FORGOT);
    stage.start(&[member]).await;
    stage.disk(member, Moment::Operation, stage.step()).await?;
    stage.reached_if(stage.node(member).is_none(), "ended while it opened");
    stage.reached_if(stage.is_recovering(member), "ended while it recovered");
    let death = if stage.seed.is_multiple_of(2) { Death::Killed } else { Death::PowerCut };
    stage.end(member, death);
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    stage.reached_if(forgot, RECOVERED);
    stage.acknowledged(5).await
}

/// A member that forgot is started in a mode that promises to forget nothing: what it did before is judged by the mode of then.
async fn mode_changed(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let forgot = stage.cut_ahead(member, 5).await?;
    stage.reached_if(forgot, FORGOT);
    let mode = if stage.seed.is_multiple_of(3) { Mode::Device } else { Mode::Sync };
    stage.machine(member)?.configure(mode);
    stage.start(&[member]).await;
    stage.until("a node that serves", || stage.node(member).is_some()).await?;
    if forgot && stage.is_active(member) {
        let detail =
            format!("member {member} is active in mode {mode}, and has forgotten in mode replicated");
        stage.cluster.violation(Violation::new("who forgot recovers, whatever its mode now", detail));
    }
    stage.reached_if(stage.is_recovering(member), "recovers in its new mode");
    stage.active(&[member]).await?;
    stage.reached_if(forgot, RECOVERED);
    stage.acknowledged(5).await
}

/// A member that forgot loses power again, and again, before it is active: what it took since is as unsynced as ever.
async fn cut_again(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let forgot = stage.cut_ahead(member, 5).await?;
    stage.reached_if(forgot, FORGOT);
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
    stage.reached_if(forgot, RECOVERED);
    stage.acknowledged(5).await
}

/// A member that forgot knocks, and the leader hears nothing of it and dies: another one has to admit it.
async fn before_the_mark(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let forgot = stage.cut_ahead(member, 5).await?;
    stage.reached_if(forgot, FORGOT);
    stage.mute(member, leader);
    stage.start(&[member]).await;
    stage.recovering(member).await?;
    stage.pass(100, 700).await;
    stage.reached_if(stage.is_recovering(member), "the leader dies before it admits");
    stage.kill(leader);
    stage.heal();
    return_of_both(stage, leader, member, forgot).await
}

/// The leader and the member that comes back are parted from the other three: the leader proposes the mark, and it gets no
/// further than these two. The leader dies, the others elect one that never saw the mark.
async fn mark_not_committed(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let forgot = stage.cut_ahead(member, 5).await?;
    stage.reached_if(forgot, FORGOT);
    stage.isolate(&[leader, member]);
    let committed = stage.status(leader).and_then(|status| status.committed);
    stage.start(&[member]).await;
    let end = |member: usize| stage.status(member).and_then(|status| status.last_log);
    let level = || stage.is_recovering(member) && end(member) == end(leader) && end(leader) > committed;
    stage.until("a member that is level with its leader", level).await?;
    stage.pass(0, 200).await;
    stage.reached_if(stage.is_recovering(member), "the mark is on two of five");
    stage.kill(leader);
    stage.heal();
    return_of_both(stage, leader, member, forgot).await
}

/// The mark is committed, and the member whose it is has not applied it yet, since its disk stalls: now the leader dies.
async fn after_the_mark(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let forgot = stage.cut_ahead(member, 5).await?;
    stage.reached_if(forgot, FORGOT);
    stage.start(&[member]).await;
    stage.recovering(member).await?;
    let end = || stage.status(member).and_then(|status| status.last_log);
    let found = end();
    stage.until("appends that are taken", || end() != found).await?;
    let disk = stage.machine(member)?.disk.clone();
    let slow = Duration::from_millis(if stage.seed.is_multiple_of(2) { 1_500 } else { 4_000 });
    disk.stall(slow, None);
    // These are behind the mark, and so it is committed.
    stage.acknowledged(8).await?;
    stage.reached_if(stage.is_recovering(member), "the leader dies behind the mark");
    stage.kill(leader);
    return_of_both(stage, leader, member, forgot).await
}

/// One member loses power, a follower or the leader, or all do and a person decides: how long those that forgot take, from when
/// somebody leads, until they are active. None waits for its mark in vain and asks again.
async fn time_to_heal(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(5).await?;
    let leader = stage.leader().await?;
    let term = stage.term(leader);
    let (cut, story) = match stage.seed / 2 % 3 {
        0 => (stage.others(&[leader]).into_iter().take(1).collect(), "a follower was cut"),
        1 => (vec![leader], "the leader was cut"),
        _ => (stage.all(), "a loss was accepted"),
    };
    let all = cut.len() > 1;
    let forgot = if all { stage.cut_all() } else { cut.iter().map(|member| stage.cut(*member)).sum() };
    stage.reached_if(forgot > 0, FORGOT);
    if all {
        // Nobody asks from here on, and nobody waits for an answer any more.
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
            let detail = format!("{} ms from a leader to active members; {story}", took.as_millis());
            stage.cluster.violation(Violation::new("who forgot is back soon after somebody leads", detail));
        }
    }
    Ok(())
}

async fn return_of_both(mut stage: Stage, leader: usize, member: usize, forgot: bool) -> Played {
    stage.pass(200, 2_000).await;
    stage.start(&[leader]).await;
    stage.active(&[member]).await?;
    stage.reached_if(forgot, RECOVERED);
    stage.acknowledged(5).await
}

/// A member that forgot needs a snapshot, and its disk is slow. It answers, and yet nobody can be spared while it has not got
/// everything: the others lose power at once and must come back by themselves.
async fn others_cut_meanwhile(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (_, member, _) = stage.cast().await?;
    let others = stage.others(&[member]);
    let forgot = stage.cut_ahead(member, 3).await?;
    stage.reached_if(forgot, FORGOT);
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
        return Err("a member that is long in coming back".into());
    }
    stage.acknowledged(3).await?;
    stage.cut_together(&others);
    stage.reached("cut while another was on its way back");
    disk.slow_down(Duration::ZERO);
    stage.start(&others).await;
    stage.active(&stage.all()).await?;
    stage.reached("all active again");
    stage.acknowledged(5).await
}
