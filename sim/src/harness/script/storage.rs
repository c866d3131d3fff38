//! Snapshots, space and the unsynced-ack flag, with a power cut at the moment of their change.

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, in_mode, members, three};
use crate::disk::Moment;
use crate::harness::plan::Plan;
use cairn_clients::workload::Profile;
use cairn_engine::io::FileKind;
use cairn_engine::{Geometry, Mode};
use cairn_raft::Role;
use rand::RngExt;
use std::time::Duration;

/// Longer than members need until they acknowledge before they sync.
const SLOW: Duration = Duration::from_secs(6);
const REUSED: &str = "space reused";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("flag-being-set", three, flag_being_set)
        .seeds(6)
        .reaches(&["cut as the flag was being set", "all active again"]),
    scenario!("flag-being-set-for-long", three, flag_being_set_for_long).seeds(6).reaches(&[
        "acknowledged while the flag was being set",
        "the flag was not set",
        "all active again",
    ]),
    scenario!("flag-being-cleared", three, flag_being_cleared).seeds(8).reaches(&[
        "cut with the flag still set",
        "cut with the flag just cleared",
        "all active again",
    ]),
    scenario!(
        "snapshot-installed-and-cut",
        |seed| Plan { log_retain_entries: 10, ..three(seed) },
        snapshot_and_cut
    )
    .seeds(6)
    .reaches(&[
        "the leader's log begins later",
        "the old state is back",
        "cut after the snapshot",
        "caught up",
    ]),
    scenario!(
        "repeat-behind-a-snapshot",
        |seed| Plan { log_retain_entries: 10, ..three(seed) },
        repeat_behind_a_snapshot
    )
    .reaches(&["a snapshot with unanswered writes", "retried"]),
    scenario!(
        "snapshot-left-for-a-newer-one",
        |seed| Plan { log_retain_entries: 10, ..three(seed) },
        snapshot_left
    )
    .seeds(8)
    .reaches(&["part of a snapshot", "another leads", "caught up"]),
    scenario!("space-reuse-after-a-cut", little_space, space_reuse).reaches(&[
        REUSED,
        UNSYNCED_LOST,
        "all active again",
    ]),
    scenario!(
        "space-reuse-after-a-total-cut",
        |seed| {
            in_mode(
                little_space(seed),
                if seed.is_multiple_of(2) { Mode::Sync } else { Mode::Device },
            )
        },
        space_reuse_all
    )
    .reaches(&[REUSED, "all active again"]),
];

/// A member loses power while it sets its flag: what it acknowledged before is synced, or it has
/// acknowledged nothing yet.
async fn flag_being_set(mut stage: Stage) -> Played {
    for _ in 0..3 {
        let member = stage.others(&[]).first().copied().ok_or("a member")?;
        stage.until("a cleared flag", || !stage.has_unsynced_acks(member)).await?;
        stage.until("a flag being set", || stage.has_unsynced_acks(member)).await?;
        stage.pass(0, 6).await;
        stage.cut(member);
        stage.reached("cut as the flag was being set");
        // The others, now a degraded quorum, clear their flags, and set them again when all members
        // are healthy.
        let others = stage.others(&[member]);
        stage
            .until("cleared flags", || others.iter().all(|other| !stage.has_unsynced_acks(*other)))
            .await?;
        stage.start(&[member]).await;
        stage.active(&[member]).await?;
    }
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// A write of a member's superblock takes seconds, and so does setting its flag. Meanwhile the
/// third member is paused, so that the leader and this member commit. The member loses power, the
/// leader is paused, the third continues. If the member acknowledged a write unsynced before its
/// flag was set, these two elect a leader that does not have the write.
async fn flag_being_set_for_long(mut stage: Stage) -> Played {
    let (leader, member, third) = stage.cast().await?;
    let follows = || stage.status(member).is_some_and(|status| status.role == Role::Follower);
    stage.until("a follower", follows).await?;
    // By then its vote, and what else the beginning of a term writes there, is written.
    stage.acknowledged(20).await?;
    stage.until("a cleared flag", || !stage.has_unsynced_acks(member)).await?;
    let disk = stage.machine(member)?.disk.clone();
    disk.stall(SLOW, Some(FileKind::Superblock));
    stage.until("a flag being set", || stage.has_unsynced_acks(member)).await?;
    stage.pass(0, 100).await;
    stage.pause(&[third]);
    stage.acknowledged(4).await?;
    stage.reached_if(stage.leads(&[leader]).is_some(), "acknowledged while the flag was being set");
    stage.cut(member);
    stage.pause(&[leader]);
    stage.resume(&[third]);
    disk.stall(Duration::ZERO, None);
    stage.start(&[member]).await;
    stage.pass(2_000, 3_000).await;
    stage.reached_if(stage.is_active(member), "the flag was not set");
    stage.resume(&[leader]);
    stage.active(&stage.all()).await?;
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// One member is cut off, so the other two switch to safe mode and clear their flags. One of them
/// loses power in that moment. If it had cleared its flag too early, it would start as active and
/// help the member that was cut off to lead.
async fn flag_being_cleared(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, follower, cut_off) = stage.cast().await?;
    let (member, other) =
        if stage.rng.random_bool(0.3) { (leader, follower) } else { (follower, leader) };
    stage.isolate(&[cut_off]);
    stage.superblock(member).await?;
    stage.pass(0, 30).await;
    let unsynced_acks = stage.has_unsynced_acks(member);
    stage.cut(member);
    stage.reached(if unsynced_acks {
        "cut with the flag still set"
    } else {
        "cut with the flag just cleared"
    });
    stage.pause(&[other]);
    stage.heal();
    stage.start(&[member]).await;
    stage.pass(1_000, 4_000).await;
    stage.resume(&[other]);
    stage.active(&stage.all()).await?;
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// A member was cut off for so long that it needs a snapshot. It loses power while it receives and
/// installs the snapshot, and again soon after the installation.
async fn snapshot_and_cut(mut stage: Stage) -> Played {
    let (leader, member, _) = stage.cast().await?;
    stage.acknowledged(10).await?;
    stage.isolate(&[member]);
    let end = stage.status(member).and_then(|status| status.last_log);
    let behind = || stage.leads(&stage.all()).is_some_and(|(_, leader)| stage.purged(leader) > end);
    stage.until("a log that was purged", behind).await?;
    stage.reached_if(
        stage.leads(&stage.all()).is_some_and(|(_, now)| now == leader),
        "the leader's log begins later",
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
    stage.reached("cut after the snapshot");
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    let applied = |member: usize| stage.status(member).and_then(|status| status.applied);
    let goal = stage.leads(&stage.all()).and_then(|(_, leader)| applied(leader));
    stage.until("a member that caught up", || applied(member) >= goal).await?;
    stage.reached("caught up");
    Ok(())
}

/// A leader's answers do not reach the clients. A member that was cut off gets these writes in a
/// snapshot. Then it gets the same writes again in the log, since the clients retry them. It has to
/// know from the snapshot that they were applied.
async fn repeat_behind_a_snapshot(mut stage: Stage) -> Played {
    let (leader, member, _) = stage.cast().await?;
    stage.acknowledged(10).await?;
    stage.isolate(&[member]);
    let end = stage.status(member).and_then(|status| status.last_log);
    stage.until("a log that was purged", || stage.purged(leader) > end).await?;
    stage.drop_answers_to_clients(leader);
    let written = |stage: &Stage| stage.status(leader).and_then(|status| status.applied);
    let before = written(&stage);
    stage.until("an unanswered write", || written(&stage) > before).await?;
    // Well before clients retry.
    stage.pass(100, 300).await;
    stage.heal();
    stage.drop_answers_to_clients(leader);
    stage.until("a snapshot", || stage.purged(member) > end).await?;
    let taken = stage.purged(member);
    stage.reached_if(taken > before, "a snapshot with unanswered writes");
    // The clients stop waiting for the answers, which would arrive late.
    stage.pass(1_100, 1_400).await;
    let now = stage.cluster.trace.now();
    stage.heal();
    stage.acknowledged(10).await?;
    stage.pass(1_500, 2_500).await;
    let within = |index: u64| {
        before.map(|id| id.index) < Some(index) && Some(index) <= taken.map(|id| id.index)
    };
    stage.reached_if(stage.answered(now, within), "retried");
    Ok(())
}

/// A member that was cut off gets a part of a snapshot, and the leader that sends it is killed. The
/// next leader sends its own snapshot, of a later state, which must contain nothing of the earlier
/// one.
async fn snapshot_left(mut stage: Stage) -> Played {
    let (leader, member, third) = stage.cast().await?;
    let term = stage.term(leader);
    stage.isolate(&[member]);
    let end = stage.status(member).and_then(|status| status.last_log);
    stage.bulk().await?;
    let purged_on =
        |stage: &Stage, members: &[usize]| members.iter().all(|at| stage.purged(*at) > end);
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
    stage.until("a member that caught up", || applied(member) >= goal).await?;
    stage.reached("caught up");
    stage.acknowledged(5).await
}

/// Little space, so that it is reused within a few seconds, and clients that overwrite.
fn little_space(seed: u64) -> Plan {
    let plan = members(seed, 3);
    Plan {
        geometry: Geometry {
            data_bytes: Geometry::MIN_DATA_BYTES,
            journal_bytes: 1 << 20,
            ..plan.geometry
        },
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

/// A member that has reused its space many times loses power with unsynced acknowledgements: no
/// value that it still refers to may lie in space that was reused.
async fn space_reuse(mut stage: Stage) -> Played {
    for _ in 0..2 {
        let member = stage.others(&[]).first().copied().ok_or("a member")?;
        filled(&stage, member).await?;
        let lost_acks = stage.cut_ahead(member, 3).await?;
        stage.reached_if(lost_acks, UNSYNCED_LOST);
        stage.pass(0, 500).await;
        stage.start(&[member]).await;
        stage.active(&[member]).await?;
    }
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// The same, but all lose power at once, in modes that lose nothing then.
async fn space_reuse_all(mut stage: Stage) -> Played {
    for _ in 0..2 {
        let member = stage.others(&[]).first().copied().ok_or("a member")?;
        filled(&stage, member).await?;
        let writes = stage.rng.random_range(1..10);
        stage.disk(member, Moment::Write, writes).await?;
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
    stage.until("space reused", || disk.stats().bytes_written > before + area * 3 / 2).await?;
    stage.reached(REUSED);
    Ok(())
}
