//! Snapshots, space and the `lazy` mark, cut at the moment of their change.

use super::stage::{Played, Stage};
use super::{FORGOT, Scenario, in_mode, members, three};
use crate::disk::Moment;
use crate::harness::plan::Plan;
use cairn_clients::workload::Profile;
use cairn_engine::io::FileKind;
use cairn_engine::{Geometry, Mode};
use cairn_raft::Role;
use rand::RngExt;
use std::time::Duration;

/// Longer than it takes until acknowledgements would run ahead.
const SLOW: Duration = Duration::from_secs(6);
const REUSED: &str = "space used again";

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "mark-being-set",
        parts: &["cut as the mark was being set", "all active again"],
        seeds: 6,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(mark_being_set(stage)),
    },
    Scenario {
        name: "mark-being-set-for-long",
        parts: &["acknowledged while the mark was on its way", "the mark never arrived", "all active again"],
        seeds: 6,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(mark_being_set_for_long(stage)),
    },
    Scenario {
        name: "mark-being-cleared",
        parts: &["cut with the mark still set", "cut with the mark just cleared", "all active again"],
        seeds: 8,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(mark_being_cleared(stage)),
    },
    Scenario {
        name: "snapshot-installed-and-cut",
        parts: &["behind the leader's log", "the old state is back", "cut behind the snapshot", "level"],
        seeds: 6,
        may_stop: false,
        plan: |seed| Plan { log_retain_entries: 10, ..three(seed) },
        script: |stage| Box::pin(snapshot_and_cut(stage)),
    },
    Scenario {
        name: "repeat-behind-a-snapshot",
        parts: &["a snapshot with unanswered writes", "asked again"],
        seeds: 4,
        may_stop: false,
        plan: |seed| Plan { log_retain_entries: 10, ..three(seed) },
        script: |stage| Box::pin(repeat_behind_a_snapshot(stage)),
    },
    Scenario {
        name: "snapshot-left-for-a-newer-one",
        parts: &["part of a snapshot", "another leads", "level"],
        seeds: 8,
        may_stop: false,
        plan: |seed| Plan { log_retain_entries: 10, ..three(seed) },
        script: |stage| Box::pin(snapshot_left(stage)),
    },
    Scenario {
        name: "space-reuse-after-a-cut",
        parts: &[REUSED, FORGOT, "all active again"],
        seeds: 4,
        may_stop: false,
        plan: little_space,
        script: |stage| Box::pin(space_reuse(stage)),
    },
    Scenario {
        name: "space-reuse-after-a-total-cut",
        parts: &[REUSED, "all active again"],
        seeds: 4,
        may_stop: false,
        plan: |seed| {
            in_mode(little_space(seed), if seed.is_multiple_of(2) { Mode::Sync } else { Mode::Device })
        },
        script: |stage| Box::pin(space_reuse_all(stage)),
    },
];

/// A member loses power as its mark is being set: what it acknowledges before that is synced, or it has acknowledged
/// nothing yet.
async fn mark_being_set(mut stage: Stage) -> Played {
    for _ in 0..3 {
        let member = stage.others(&[]).first().copied().ok_or("a member")?;
        stage.until("a clear mark", || !stage.is_lazy(member)).await?;
        stage.until("a mark being set", || stage.is_lazy(member)).await?;
        stage.pass(0, 6).await;
        stage.cut(member);
        stage.reached("cut as the mark was being set");
        // Those that are fewer now clear theirs, and set them again when all are healthy.
        let others = stage.others(&[member]);
        stage.until("clear marks", || others.iter().all(|other| !stage.is_lazy(*other))).await?;
        stage.start(&[member]).await;
        stage.active(&[member]).await?;
    }
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// A member's superblock takes seconds, and its mark with it. Meanwhile the third is paused, so that the leader and this
/// one commit. It loses power, the leader is paused, the third comes back: if something was acknowledged ahead of the
/// mark, these two elect one that does not have it.
async fn mark_being_set_for_long(mut stage: Stage) -> Played {
    let (leader, member, third) = stage.cast().await?;
    let follows = || stage.status(member).is_some_and(|status| status.role == Role::Follower);
    stage.until("a follower", follows).await?;
    // Its vote, and what else the beginning of a term writes there, is done.
    stage.acknowledged(20).await?;
    stage.until("a clear mark", || !stage.is_lazy(member)).await?;
    let disk = stage.machine(member)?.disk.clone();
    disk.stall(SLOW, Some(FileKind::Superblock));
    stage.until("a mark on its way", || stage.is_lazy(member)).await?;
    stage.pass(0, 100).await;
    stage.pause(&[third]);
    stage.acknowledged(4).await?;
    stage.reached_if(stage.leads(&[leader]).is_some(), "acknowledged while the mark was on its way");
    stage.cut(member);
    stage.pause(&[leader]);
    stage.resume(&[third]);
    disk.stall(Duration::ZERO, None);
    stage.start(&[member]).await;
    stage.pass(2_000, 3_000).await;
    stage.reached_if(stage.is_active(member), "the mark never arrived");
    stage.resume(&[leader]);
    stage.active(&stage.all()).await?;
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// One member cannot be heard, so the other two sync first and clear their marks; one of them loses power in that moment.
/// With the mark cleared too early it would count as whole, and help the one that could not be heard to lead.
async fn mark_being_cleared(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, follower, unheard) = stage.cast().await?;
    let (member, other) = if stage.rng.random_bool(0.3) { (leader, follower) } else { (follower, leader) };
    stage.isolate(&[unheard]);
    stage.superblock(member).await?;
    stage.pass(0, 30).await;
    let lazy = stage.is_lazy(member);
    stage.cut(member);
    stage.reached(if lazy { "cut with the mark still set" } else { "cut with the mark just cleared" });
    stage.pause(&[other]);
    stage.heal();
    stage.start(&[member]).await;
    stage.pass(1_000, 4_000).await;
    stage.resume(&[other]);
    stage.active(&stage.all()).await?;
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// A member was away for so long that only a snapshot brings it back. It loses power while it receives and installs
/// that, and again as soon as it is there.
async fn snapshot_and_cut(mut stage: Stage) -> Played {
    let (leader, member, _) = stage.cast().await?;
    stage.acknowledged(10).await?;
    stage.isolate(&[member]);
    let end = stage.status(member).and_then(|status| status.last_log);
    let behind = || stage.leads(&stage.all()).is_some_and(|(_, leader)| stage.purged(leader) > end);
    stage.until("a log that was purged", behind).await?;
    stage.reached_if(
        stage.leads(&stage.all()).is_some_and(|(_, now)| now == leader),
        "behind the leader's log",
    );
    stage.heal();
    let steps = stage.rng.random_range(1..12);
    stage.disk(member, Moment::Write, steps).await?;
    stage.cut(member);
    stage.start(&[member]).await;
    stage.until("a node that serves", || stage.node(member).is_some()).await?;
    stage.reached_if(stage.purged(member) <= end, "the old state is back");
    stage.until("a snapshot", || stage.purged(member) > end).await?;
    stage.pass(0, 60).await;
    stage.cut(member);
    stage.reached("cut behind the snapshot");
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    let applied = |member: usize| stage.status(member).and_then(|status| status.applied);
    let goal = stage.leads(&stage.all()).and_then(|(_, leader)| applied(leader));
    stage.until("a member that is level", || applied(member) >= goal).await?;
    stage.reached("level");
    Ok(())
}

/// A leader's answers do not reach the clients. A member that was away gets what was written in a snapshot, and then, in the
/// log, the same writes once more, as the clients ask again: it has to know from the snapshot that they were applied.
async fn repeat_behind_a_snapshot(mut stage: Stage) -> Played {
    let (leader, member, _) = stage.cast().await?;
    stage.acknowledged(10).await?;
    stage.isolate(&[member]);
    let end = stage.status(member).and_then(|status| status.last_log);
    stage.until("a log that was purged", || stage.purged(leader) > end).await?;
    stage.mute_to_clients(leader);
    let written = |stage: &Stage| stage.status(leader).and_then(|status| status.applied);
    let before = written(&stage);
    stage.until("an unanswered write", || written(&stage) > before).await?;
    // Well within the time after which clients ask again.
    stage.pass(100, 300).await;
    stage.heal();
    stage.mute_to_clients(leader);
    stage.until("a snapshot", || stage.purged(member) > end).await?;
    let taken = stage.purged(member);
    stage.reached_if(taken > before, "a snapshot with unanswered writes");
    // The clients give up waiting for the answers, which would arrive late.
    stage.pass(1_100, 1_400).await;
    let now = stage.cluster.trace.now();
    stage.heal();
    stage.acknowledged(10).await?;
    stage.pass(1_500, 2_500).await;
    let within =
        |index: u64| before.map(|id| id.index) < Some(index) && Some(index) <= taken.map(|id| id.index);
    stage.reached_if(stage.answered(now, within), "asked again");
    Ok(())
}

/// A member that was away gets a part of a snapshot, and the leader that sends it dies. The next one sends its own, of a later
/// state: nothing of the earlier one is in it.
async fn snapshot_left(mut stage: Stage) -> Played {
    let (leader, member, third) = stage.cast().await?;
    let term = stage.term(leader);
    stage.isolate(&[member]);
    let end = stage.status(member).and_then(|status| status.last_log);
    stage.bulk().await?;
    let purged_on = |stage: &Stage, members: &[usize]| members.iter().all(|at| stage.purged(*at) > end);
    stage.until("a log that was purged", || purged_on(&stage, &[leader, third])).await?;
    stage.heal();
    let writes = stage.rng.random_range(1..10);
    stage.disk(member, Moment::WriteTo(FileKind::Data), writes).await?;
    stage.pass(0, 20).await;
    stage.kill(leader);
    stage.reached_if(stage.purged(member) <= end, "part of a snapshot");
    stage.leader_among(&[third], term).await?;
    stage.reached("another leads");
    stage.until("a snapshot", || stage.purged(member) > end).await?;
    stage.start(&[leader]).await;
    let applied = |member: usize| stage.status(member).and_then(|status| status.applied);
    let goal = applied(third);
    stage.until("a member that is level", || applied(member) >= goal).await?;
    stage.reached("level");
    stage.acknowledged(5).await
}

/// So little space that it is used again within a few seconds, and clients that overwrite.
fn little_space(seed: u64) -> Plan {
    let plan = members(seed, 3);
    Plan {
        geometry: Geometry { data_bytes: Geometry::MIN_DATA_BYTES, journal_bytes: 1 << 20, ..plan.geometry },
        log_retain_entries: 20,
        profile: Profile {
            groups: 2,
            tasks_per_client: 3,
            think_max: Duration::from_millis(15),
            write_percent: 85,
            ..plan.profile
        },
        ..plan
    }
}

/// A member that has used its space again and again loses power ahead of its syncs: no value that it still names may lie
/// where another one was put.
async fn space_reuse(mut stage: Stage) -> Played {
    for _ in 0..2 {
        let member = stage.others(&[]).first().copied().ok_or("a member")?;
        filled(&stage, member).await?;
        let forgot = stage.cut_ahead(member, 3).await?;
        stage.reached_if(forgot, FORGOT);
        stage.pass(0, 500).await;
        stage.start(&[member]).await;
        stage.active(&[member]).await?;
    }
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// The same, and all lose power at once, in modes that lose nothing then.
async fn space_reuse_all(mut stage: Stage) -> Played {
    for _ in 0..2 {
        let member = stage.others(&[]).first().copied().ok_or("a member")?;
        filled(&stage, member).await?;
        let strikes = stage.rng.random_range(1..10);
        stage.disk(member, Moment::Write, strikes).await?;
        stage.cut_all();
        stage.start(&stage.all()).await;
        stage.active(&stage.all()).await?;
    }
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// Waits until more was written to a member's disk than its data area holds.
async fn filled(stage: &Stage, member: usize) -> Played {
    let disk = &stage.machine(member)?.disk;
    let before = disk.stats().bytes_written;
    let area = stage.cluster.plan.geometry.data_bytes;
    stage.until("space used again", || disk.stats().bytes_written > before + area * 3 / 2).await?;
    stage.reached(REUSED);
    Ok(())
}
