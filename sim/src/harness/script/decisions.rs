//! A majority may lack acknowledged writes: the cluster waits, and an operator decides what is
//! discarded.

use super::loss::{CONTRADICTED, DISCARDED};
use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, five, three, three_or_five};
use crate::harness::crash_image;
use crate::harness::finale::{STOPPED, UNSAFE_RECOVERY};
use crate::harness::plan::Plan;
use cairn_clients::Violation;
use cairn_clients::workload::Profile;
use cairn_engine::{LogId, MemberState};
use cairn_raft::{GROUP, Replica};
use std::time::Duration;

const REPLACED: &str = "an empty disk replaces its disk";
/// Shorter than an election timeout.
const PARTED: Duration = Duration::from_millis(300);
const UNCOMMITTED_EPOCH: &str = "the record of its boot epoch is in its log, not committed";

const HOLDS_DISCARDED: &str = "a missing member holds what was discarded";
const SERVES_NO_READ: &str = "it serves no read";
const CUT_OFF: &str = "the missing member ran on, cut off, and answered old reads";
/// Longer than a run lasts.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// Longest wait for a leader of before to step down.
const STEPS_DOWN: Duration = Duration::from_secs(25);
/// How often a member that should serve no read is asked, and how far apart at least.
const ASKED: u32 = 60;
const ASKED_EVERY_MS: u64 = 500;
const COUNTED_TWICE: &str = "two unsafe recoveries are counted";

const MISSING_MEMBER: &[&str] = &[
    UNSYNCED_LOST,
    UNSAFE_RECOVERY,
    HOLDS_DISCARDED,
    CONTRADICTED,
    CUT_OFF,
    SERVES_NO_READ,
    REPLACED,
];

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("nats-total-cut-inside-the-window", three_or_five, total_cut)
        .seeds(6)
        .may_stop()
        .reaches(&[UNSYNCED_LOST, STOPPED, UNSAFE_RECOVERY, DISCARDED]),
    scenario!("synced-write-then-total-cut", busy, synced_then_cut)
        .seeds(12)
        .may_stop()
        .reaches(&["a synced write was answered", UNSYNCED_LOST]),
    scenario!("discarded-while-a-member-was-missing", three_or_five, missing_member)
        .seeds(16)
        .may_stop()
        .reaches(MISSING_MEMBER),
    scenario!(
        "discarded-and-purged-while-a-member-was-missing",
        |seed| Plan { log_retain_entries: 10, ..three_or_five(seed) },
        missing_and_behind
    )
    .seeds(16)
    .may_stop()
    .reaches(MISSING_MEMBER),
    scenario!(
        "discarded-twice-while-a-member-was-missing",
        |seed| Plan { log_retain_entries: 10, ..five(seed) },
        missing_for_two
    )
    .seeds(16)
    .may_stop()
    .reaches(&[
        UNSYNCED_LOST,
        UNSAFE_RECOVERY,
        COUNTED_TWICE,
        HOLDS_DISCARDED,
        CONTRADICTED,
        SERVES_NO_READ,
        REPLACED,
    ]),
    scenario!("longest-log-out-of-the-operators-sight", three, longest_out_of_sight)
        .seeds(12)
        .may_stop()
        .reaches(&[
            UNSYNCED_LOST,
            "another log is more up to date",
            "the most up-to-date one leads",
        ]),
    scenario!(
        "unsafe-recovery-of-one-with-its-epoch-in-the-log",
        |seed| Plan { latency: Duration::from_millis(2)..Duration::from_millis(4), ..three(seed) },
        epoch_in_the_log
    )
    .seeds(48)
    .may_stop()
    .reaches(&[
        UNSYNCED_LOST,
        UNCOMMITTED_EPOCH,
        "active, and the unsafe recovery is reported",
    ]),
];

/// All machines lose power at once, under load, with acknowledged writes unsynced. The cluster
/// stops and says so, or everything is there. After an unsafe recovery it serves, and only writes
/// of one sync window are missing.
async fn total_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    // So that some writes are older than the window, and some are not.
    stage.pass(1_000, 4_000).await;
    stage.acknowledged(1).await?;
    let lost_acks = stage.cut_all() > 0;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    Ok(())
}

/// Three members and so many concurrent requests that the leader's streams are full, and the
/// waiting entries go out in one append. Few of the writes ask for a sync, since each sync covers
/// the writes before it, too.
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

/// The followers lose power the moment that a write is answered which asked for a sync, and the
/// leader is out of reach. The write is there afterwards, whatever else is discarded.
async fn synced_then_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(0, 1_500).await;
    let leader = stage.leader().await?;
    stage.synced_write().await?;
    stage.reached("a synced write was answered");
    recover_without(stage, leader, Meanwhile::Nothing).await
}

/// The followers lose power at once, under load, and the leader, the only member that lost nothing,
/// is out of reach. An operator lets one of the followers lead nevertheless. When the old leader is
/// back, its applied entries contradict what the others wrote since. It must not mix the two, and
/// an empty disk replaces its own.
async fn missing_member(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(1_000, 3_000).await;
    stage.acknowledged(1).await?;
    let missing = stage.leader().await?;
    recover_without(stage, missing, Meanwhile::Nothing).await
}

/// The same, and the others write on until their logs begin behind what the old leader holds: what it
/// gets is a snapshot.
async fn missing_and_behind(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(1_000, 3_000).await;
    stage.acknowledged(1).await?;
    let missing = stage.leader().await?;
    recover_without(stage, missing, Meanwhile::Purged).await
}

/// The same, and the others lose power at once a second time before their logs begin behind that. The record
/// of the second unsafe recovery comes far behind what the old leader holds.
async fn missing_for_two(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(1_000, 3_000).await;
    stage.acknowledged(1).await?;
    let missing = stage.leader().await?;
    recover_without(stage, missing, Meanwhile::RecoveredAgainAndPurged).await
}

/// What the others do before the missing member is back.
enum Meanwhile {
    Nothing,
    Purged,
    RecoveredAgainAndPurged,
}

/// All machines lose power at once, under load. The operator reaches all members but the one with
/// the most up-to-date log, which the other members reach. The candidate refuses and nobody leads.
/// Once the operator sees all members, the most up-to-date one leads.
async fn longest_out_of_sight(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(1_000, 3_000).await;
    stage.acknowledged(1).await?;
    let lost_acks = stage.cut_all_and_restart().await? > 0;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    let end = |member: &usize| stage.status(*member).and_then(|status| status.last_log);
    let most_up_to_date = stage.all().into_iter().max_by_key(end).ok_or("members")?;
    let seen = stage.others(&[most_up_to_date]);
    let end = |member: usize| stage.status(member).and_then(|status| status.last_log);
    if seen.iter().any(|member| end(*member) >= end(most_up_to_date)) {
        return Err("one log that is longer than the others".into());
    }
    stage.reached("another log is more up to date");
    if stage.try_to_decide(&seen).await?.is_none() {
        let detail = format!(
            "member {most_up_to_date} has a longer log, and one of {seen:?} was let to lead"
        );
        stage.cluster.violation(Violation::new(
            "an unsafe recovery chooses the most up-to-date log present",
            detail,
        ));
    }
    let held = end(most_up_to_date);
    if stage.decide(&stage.all()).await? != held {
        return Err("the same log as the most up-to-date one".into());
    }
    stage.active(&stage.all()).await?;
    stage.reached("the most up-to-date one leads");
    Ok(())
}

async fn recover_without(mut stage: Stage, missing: usize, meanwhile: Meanwhile) -> Played {
    let others = stage.others(&[missing]);
    let applied = |stage: &Stage| stage.status(missing).and_then(|status| status.applied);
    let lost_acks = stage.cut_together(&others) > 0;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    let last = stage.status(missing).and_then(|status| status.last_log);
    let runs_on = stage.seed.is_multiple_of(2);
    if runs_on {
        stage.isolate(&[missing]);
        stage.drop_requests_of_clients(missing);
    } else {
        stage.kill(missing);
    }
    // From here on clients send no requests and wait for no answers.
    stage.quiet().await;
    stage.start(&others).await;
    for member in &others {
        stage.recovering(*member).await?;
    }
    let end = stage.decide(&others).await?;
    let back =
        || stage.leads(&others).is_some() && others.iter().all(|member| stage.is_active(*member));
    stage.until("members that an operator brought back", back).await?;
    if matches!(meanwhile, Meanwhile::RecoveredAgainAndPurged) {
        recover_again(&mut stage, &others).await?;
    }
    if !matches!(meanwhile, Meanwhile::Nothing) {
        // By index: a log that was not purged that far has later terms, too.
        let held = last.map(|id| id.index);
        let is_purged = |stage: &Stage| {
            others.iter().all(|member| stage.purged(*member).map(|id| id.index) > held)
        };
        for _ in 0..20 {
            if is_purged(&stage) {
                break;
            }
            stage.bulk().await?;
        }
        stage.until("a log that was purged", || is_purged(&stage)).await?;
    }
    if runs_on {
        // It does not know yet what was discarded.
        let node = stage.node(missing).ok_or("a node that runs on")?;
        stage.reached_if(node.replica().read_barrier_within(LONG).await.is_ok(), CUT_OFF);
        stage.heal();
        // The first answer to one of its own messages tells it that another leads.
        stage.within(STEPS_DOWN, || stage.leads(&[missing]).is_none()).await;
    } else {
        stage.start(&[missing]).await;
    }
    stage.until("a node that serves", || stage.node(missing).is_some()).await?;
    // It may replace entries that it has not applied by those of the others.
    let held = applied(&stage);
    stage.pass(2_000, 4_000).await;
    if held > end {
        stage.reached(HOLDS_DISCARDED);
        let now = applied(&stage);
        if now.map(|id| id.term) != held.map(|id| id.term) || stage.leads(&[missing]).is_some() {
            let detail = format!("member {missing} had applied {held:?}, and now {now:?}");
            stage
                .cluster
                .violation(Violation::new("discarded entries and later entries never mix", detail));
        }
        let replica = stage.node(missing).map(|node| node.replica().clone());
        let replica = replica.ok_or("a node that stays apart")?;
        let unread = serves_no_read(&mut stage, &replica).await;
        // Its disk is taken from it next.
        drop(replica);
        if unread {
            stage.reached(SERVES_NO_READ);
        } else {
            let detail = format!("member {missing} had applied {held:?} behind {end:?}");
            stage.fails("what was discarded is not read", detail);
        }
        stage.lose_disk(missing).await?;
        stage.start(&[missing]).await;
        let votes = || stage.node(missing).is_some_and(|node| node.replica().votes());
        stage.until("a new identity that votes", votes).await?;
        stage.reached(REPLACED);
    }
    Ok(())
}

/// Whether a member refuses linearizable reads, and those of any age once it has heard of the others' history.
async fn serves_no_read(stage: &mut Stage, replica: &Replica) -> bool {
    for _ in 0..ASKED {
        if replica.read_barrier().await.is_ok() {
            return false;
        }
        if replica.read_barrier_within(LONG).await.is_err() {
            return true;
        }
        stage.pass(ASKED_EVERY_MS, 2 * ASKED_EVERY_MS).await;
    }
    false
}

/// These members lose power at once, when all of them acknowledge before they sync, and an operator decides.
async fn recover_again(stage: &mut Stage, members: &[usize]) -> Played {
    for _ in 0..20 {
        stage.bulk().await?;
        if members.iter().all(|member| stage.has_unsynced_acks(*member)) {
            break;
        }
    }
    stage.cut_together(members);
    stage.start(members).await;
    for member in members {
        stage.recovering(*member).await?;
    }
    stage.decide(members).await?;
    let counted = |member: &usize| {
        let node = stage.node(*member).filter(|node| node.replica().holds_all());
        node.is_some_and(|node| node.replica().unsafe_recoveries().count > 1)
    };
    let back = || stage.leads(members).is_some() && members.iter().all(counted);
    stage.until("members that an operator brought back again", back).await?;
    stage.reached(COUNTED_TWICE);
    Ok(())
}

/// A member that lost acknowledged entries recovers from the leader, which is killed when the
/// boot-epoch record of that member is in the member's log and not committed. An operator lets the
/// member lead: its leadership commits that record first. The member must not be active before its
/// log records the unsafe recovery, or a crash in between would leave a loss that is reported
/// nowhere.
async fn epoch_in_the_log(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, member, third) = stage.cast().await?;
    stage.acknowledged(3).await?;
    let lost_acks = stage.has_unsynced_acks(member) && stage.cut(member) > 0;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    let counted = stage.machine(member)?.counted();
    stage.quiet().await;
    stage.kill(third);
    let end = |member: usize| stage.status(member).and_then(|status| status.last_log);
    let before = end(leader);
    // The cut may have left the flag as it is cleared, behind a sync of all that was acknowledged.
    let starts = crash_image::starts_as(&stage.cluster, stage.machine(member)?, None).await;
    let recovers = starts.is_some_and(|(state, _)| state == MemberState::Recovering);
    stage.start(&[member]).await;
    let has_epoch = || end(leader) > before && end(member) == end(leader);
    stage.until("the record of its boot epoch in its log", has_epoch).await?;
    stage.kill(leader);
    let uncommitted = stage.is_recovering(member);
    stage.reached_if(uncommitted, UNCOMMITTED_EPOCH);
    stage.start(&[third]).await;
    stage.until("a node that serves", || stage.node(third).is_some()).await?;
    if !uncommitted {
        // The leader was faster, or there was nothing to recover.
        judge_active(&stage, member, counted, before.filter(|_| recovers));
        stage.start(&[leader]).await;
        return stage.active(&stage.all()).await;
    }
    // Until then the leader may count as alive.
    stage.pass(5_500, 6_500).await;
    stage.decide(&[member, third]).await?;
    stage.leader_among(&[member], 0).await?;
    // What the leader has proposed by then is committed; later entries are not, for a while.
    stage.pass(10, 90).await;
    stage.partition(&[member], &[third]);
    let active = || stage.is_active(member);
    let mut reported = !stage.within(PARTED, active).await || stage.reports_unsafe_recovery(member);
    stage.heal();
    stage.until("a member that an operator brought back", active).await?;
    reported &= stage.reports_unsafe_recovery(member);
    match reported {
        true => stage.reached("active, and the unsafe recovery is reported"),
        false => stage.cluster.violation(Violation::new(
            "a member is active only behind its unsafe-recovery record",
            format!("member {member} is active, and no unsafe recovery is reported"),
        )),
    }
    stage.start(&[leader]).await;
    stage.active(&stage.all()).await
}

/// A member that is active holds the last entry that it had counted as stored. If it recovered, it
/// has applied its boot-epoch record, which came after `before`.
fn judge_active(stage: &Stage, member: usize, counted: Option<LogId>, before: Option<LogId>) {
    let Some(node) = stage.node(member) else { return };
    let (engine, applied) = (node.engine(), node.replica().status().applied);
    let holds = |last: LogId| {
        let purged = engine.log_bounds(GROUP).purged.is_some_and(|id| id.index >= last.index);
        purged || engine.log_id_at(GROUP, last.index) == Some(last)
    };
    if !counted.is_none_or(holds) || before.is_some_and(|before| applied <= Some(before)) {
        let detail = format!(
            "member {member} is active; it had counted {counted:?}, its boot-epoch record comes after {before:?}, and \
             it has applied {applied:?}"
        );
        stage.cluster.violation(Violation::new("a member is active with all that it had", detail));
    }
}
