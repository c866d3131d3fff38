//! Machines that lose power: one, all, one after another, at every disk operation.

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, five, in_mode, one_workload, three, three_or_five};
use crate::disk::Moment;
use crate::harness::clock::virtual_time;
use crate::harness::plan::Plan;
use cairn_clients::Violation;
use cairn_engine::Mode;
use cairn_engine::io::FileKind;
use futures::future::{self, Either};
use rand::RngExt;
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

const RECOVERED: &str = "recovered member active again";
const CHANGES: &str = "a checkpoint of what changed";
const NONE_LEFT: &str = "no member left";
/// This long after the background sync an idle member has cleared its flag.
const CLEARED_WITHIN: Duration = Duration::from_millis(300);

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("nats-one-cut", five, nats_one_cut).seeds(12).reaches(&[
        UNSYNCED_LOST,
        "no leader without the members that lost nothing",
        RECOVERED,
    ]),
    scenario!(
        "total-cut-in-mode-sync",
        |seed| in_mode(three_or_five(seed), Mode::Sync),
        total_cut_that_loses_nothing
    )
    .seeds(3)
    .reaches(&["blocks were in flight", "all active again"]),
    scenario!(
        "total-cut-in-mode-device",
        |seed| in_mode(three_or_five(seed), Mode::Device),
        total_cut_that_loses_nothing
    )
    .seeds(3)
    .reaches(&["blocks were in flight", "all active again"]),
    scenario!("leader-cut-between-acknowledgement-and-sync", three_or_five, leader_cut)
        .seeds(6)
        .reaches(&[UNSYNCED_LOST, "another leads", RECOVERED]),
    scenario!("killed-leader-with-a-write-in-flight", three, leader_killed)
        .reaches(&["a write was in flight", "active at once"]),
    scenario!("last-replica-standing", three_or_five, last_replica_standing)
        .reaches(&[NONE_LEFT, "all active again"]),
    scenario!("last-replica-standing-is-the-first-back", three_or_five, last_replica_first_back)
        .reaches(&[NONE_LEFT, UNSYNCED_LOST, RECOVERED]),
    scenario!("idle-total-cut", three_or_five, idle_total_cut).seeds(128).reaches(&[
        "all cut while idle",
        "cut again while opening",
        "no member recovers",
    ]),
    scenario!(
        "cut-between-checkpoints-of-what-changed",
        |seed| Plan { log_retain_entries: 10, bulk_keys: 300, ..three(seed) },
        between_checkpoints
    )
    .seeds(24)
    .reaches(&[
        CHANGES,
        "cut while a checkpoint was written",
        "cut behind a checkpoint",
        "killed behind a checkpoint",
        "all started from what changed",
        "all active again",
    ]),
    scenario!("clean-stop-of-all-then-cut", three_or_five, clean_stop_then_cut)
        .seeds(3)
        .reaches(&["all stopped cleanly", "no member recovers"]),
    scenario!("power-cut-at-every-io-of-a-leader", one_workload, |stage| cut_at_an_operation(
        stage, true
    ))
    .seeds(30)
    .reaches(&[UNSYNCED_LOST, RECOVERED]),
    scenario!("power-cut-at-every-io-of-a-follower", one_workload, |stage| cut_at_an_operation(
        stage, false
    ))
    .seeds(30)
    .reaches(&[UNSYNCED_LOST, RECOVERED]),
];

/// Jepsen's NATS 2.12.1. While A and B are paused, C acknowledges, so its copy is one of the three
/// that commit a write; then it loses power before it synced. A and B continue; D and E, the leader
/// among them, are paused. A, B and C are a majority that does not hold the write. C must not help
/// A or B to lead.
async fn nats_one_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let others = stage.others(&[leader]);
    let [a, b, c, d] = others.as_slice() else { return Err("five members".into()) };
    let (paused, cut, rest) = ([*a, *b], *c, [*d, leader]);
    stage.pause(&paused);
    stage.pass(0, 250).await;
    stage.acknowledged(3).await?;
    let lost_acks = stage.has_unsynced_acks(cut) && stage.cut(cut) > 0;
    stage.pause(&rest);
    stage.resume(&paused);
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.pass(0, 100).await;
    stage.start(&[cut]).await;
    let without = [*a, *b, cut];
    let led = stage.within(Duration::from_secs(4), || stage.leads(&without).is_some()).await;
    if lost_acks && led {
        let detail = format!(
            "member {cut} lost acknowledged entries, and helped one of {without:?} to lead"
        );
        stage.cluster.violation(Violation::new("members that lost writes elect no leader", detail));
    }
    stage.reached_if(
        lost_acks && !led && stage.is_recovering(cut),
        "no leader without the members that lost nothing",
    );
    stage.resume(&rest);
    stage.active(&stage.all()).await?;
    stage.reached(RECOVERED);
    stage.acknowledged(5).await
}

/// All machines lose power at once, under load, in a mode that promises to lose nothing then.
async fn total_cut_that_loses_nothing(mut stage: Stage) -> Played {
    for _ in 0..3 {
        stage.leader().await?;
        let count = stage.rng.random_range(5..40);
        stage.acknowledged(count).await?;
        let first = stage.others(&[]).first().copied().unwrap_or_default();
        let writes = stage.rng.random_range(1..6);
        stage.disk(first, Moment::Write, writes).await?;
        let before = in_flight_blocks(&stage);
        stage.cut_all();
        stage.reached_if(in_flight_blocks(&stage) > before, "blocks were in flight");
        stage.start(&stage.all()).await;
        stage.active(&stage.all()).await?;
    }
    stage.reached("all active again");
    Ok(())
}

/// Blocks in flight at a cut or a kill so far, on all disks.
fn in_flight_blocks(stage: &Stage) -> u64 {
    let damages = stage.cluster.machines.iter().map(|machine| machine.disk.stats().damage);
    damages.map(|damage| damage.landed + damage.lost + damage.torn).sum()
}

/// The leader loses power just after it acknowledged and before it synced. The others have what it
/// acknowledged.
async fn leader_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let term = stage.term(leader);
    let count = stage.rng.random_range(1..10);
    let lost_acks = stage.cut_ahead(leader, count).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    // Sometimes it is back before another member leads.
    stage.pass(0, 1_500).await;
    stage.start(&[leader]).await;
    stage.leader_among(&stage.all(), term).await?;
    stage.reached("another leads");
    stage.active(&[leader]).await?;
    stage.reached_if(lost_acks, RECOVERED);
    stage.acknowledged(5).await
}

/// The leader's process is killed in the middle of a journal write. Completed writes are on the
/// device; the interrupted one is there or not. Its client retries at another member and is
/// answered once.
async fn leader_killed(mut stage: Stage) -> Played {
    for _ in 0..3 {
        let leader = stage.leader().await?;
        let count = stage.rng.random_range(1..20);
        stage.acknowledged(count).await?;
        stage.disk(leader, Moment::WriteTo(FileKind::Journal), 1).await?;
        let before = in_flight_blocks(&stage);
        stage.kill(leader);
        stage.reached_if(in_flight_blocks(&stage) > before, "a write was in flight");
        stage.pass(0, 800).await;
        stage.start(&[leader]).await;
        stage.until("a node that serves", || stage.node(leader).is_some()).await?;
        stage.reached_if(stage.is_active(leader), "active at once");
        stage.leader().await?;
    }
    stage.acknowledged(5).await
}

/// Machines lose power one after another, each when the others have noticed that the quorum is
/// degraded, until one is left, and then that one too. All return, in any order: nothing is lost,
/// and no operator is needed.
async fn last_replica_standing(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let order = stage.others(&[]);
    one_by_one(&mut stage, &order).await?;
    return_in_any_order(&mut stage).await
}

/// The same, but the first machine that is cut loses acknowledged entries, and the last one that is
/// cut returns first.
async fn last_replica_first_back(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let mut order = stage.others(&[]);
    let Some(first) = order.first().copied() else { return Err("members".into()) };
    let lost_acks = stage.cut_ahead(first, 3).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    one_by_one(&mut stage, order.get(1..).unwrap_or_default()).await?;
    order.reverse();
    for member in order {
        stage.start(&[member]).await;
        stage.pass(0, 400).await;
    }
    stage.active(&[first]).await?;
    stage.reached_if(lost_acks, RECOVERED);
    Ok(())
}

/// Cuts one machine after another. A minority may lose acknowledged entries; each further member is
/// cut after it cleared its flag.
async fn one_by_one(stage: &mut Stage, order: &[usize]) -> Played {
    let members = stage.all().len();
    let down = members - order.len();
    for (nth, member) in order.iter().enumerate() {
        if down + nth >= (members - 1) / 2 {
            stage
                .until("a survivor that syncs first", || !stage.has_unsynced_acks(*member))
                .await?;
        } else {
            // So that the others notice.
            stage.pass(600, 1_500).await;
        }
        stage.cut(*member);
        stage.pass(0, 600).await;
    }
    stage.reached(NONE_LEFT);
    Ok(())
}

async fn return_in_any_order(stage: &mut Stage) -> Played {
    for member in stage.others(&[]) {
        stage.start(&[member]).await;
        stage.pass(0, 300).await;
    }
    stage.active(&stage.all()).await?;
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// Members take many checkpoints, which soon hold what changed alone, and one of them loses power while
/// it writes one or has just written one, or its process is killed. In the end all start from theirs: a
/// key whose deletion a checkpoint left out would be back on them, and a value that moved would be missed.
async fn between_checkpoints(mut stage: Stage) -> Played {
    for _ in 0..6 {
        stage.active(&stage.all()).await?;
        let victim = stage.others(&[]).first().copied().ok_or("a member")?;
        // An area holds all of the state before it holds what changed.
        for _ in 0..stage.rng.random_range(3..8) {
            let count = stage.rng.random_range(1..8);
            stage.acknowledged(count).await?;
            checkpoint(&stage, victim).await?;
        }
        stage.reached_if(has_changes(&stage, victim), CHANGES);
        match stage.rng.random_range(0..3) {
            0 => {
                let writes = stage.rng.random_range(1..8);
                let running = {
                    let written = pin!(checkpoint(&stage, victim));
                    let moment = pin!(stage.disk(victim, Moment::Write, writes));
                    matches!(future::select(written, moment).await, Either::Right(_))
                };
                stage.cut(victim);
                stage.reached_if(running, "cut while a checkpoint was written");
            }
            1 => {
                stage.cut(victim);
                stage.reached("cut behind a checkpoint");
            }
            _ => {
                stage.kill(victim);
                stage.reached("killed behind a checkpoint");
            }
        }
        stage.pass(0, 800).await;
        stage.start(&[victim]).await;
    }
    stage.active(&stage.all()).await?;
    for member in stage.all() {
        for _ in 0..8 {
            stage.acknowledged(2).await?;
            checkpoint(&stage, member).await?;
            if has_changes(&stage, member) {
                break;
            }
        }
    }
    let all_have = stage.all().iter().all(|member| has_changes(&stage, *member));
    for member in stage.all() {
        stage.kill(member);
    }
    stage.start(&stage.all()).await;
    stage.active(&stage.all()).await?;
    stage.reached_if(all_have, "all started from what changed");
    stage.acknowledged(5).await?;
    stage.reached("all active again");
    Ok(())
}

async fn checkpoint(stage: &Stage, member: usize) -> Played {
    let node = stage.node(member).ok_or("a node")?;
    node.engine().checkpoint().await.map_err(|error| error.to_string())
}

/// Whether the member's newest checkpoint holds what changed alone.
fn has_changes(stage: &Stage, member: usize) -> bool {
    stage.node(member).is_some_and(|node| node.engine().status().checkpoint_parts > 1)
}

/// The clients stop, the flags are cleared, and all machines lose power, then again while they
/// open: no member recovers.
async fn idle_total_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(10).await?;
    stage.stop_clients();
    idle_soon(&stage).await?;
    stage.cut_all();
    stage.reached("all cut while idle");
    for _ in 0..3 {
        stage.start(&stage.all()).await;
        let member = stage.others(&[]).first().copied().unwrap_or_default();
        let steps = stage.rng.random_range(1..20);
        stage.disk(member, Moment::Operation, steps).await?;
        stage.reached_if(stage.node(member).is_none(), "cut again while opening");
        stage.cut_all();
    }
    stage.start(&stage.all()).await;
    none_recovers(&stage).await
}

/// Waits until a power cut loses nothing any more. The story: the flag was cleared at the third
/// check after the last acknowledgement, up to 3.3 s later. A power cut of all machines in that
/// time stopped the cluster though everything was synced.
async fn idle_soon(stage: &Stage) -> Played {
    let mut appended = BTreeMap::new();
    let mut late = BTreeMap::new();
    let limit = stage.cluster.plan.sync_interval + CLEARED_WITHIN;
    let cleared = || {
        let now = virtual_time();
        let mut all = true;
        for member in stage.all() {
            let last = stage.status(member).and_then(|status| status.last_log);
            let known = appended.entry(member).or_insert((last, now));
            if known.0 != last {
                *known = (last, now);
            }
            let since = now - known.1;
            let unsynced_acks = stage.has_unsynced_acks(member);
            if unsynced_acks && since > limit {
                late.insert(member, since);
            }
            all &= !unsynced_acks;
        }
        all
    };
    stage.until("cleared flags", cleared).await?;
    if let Some((member, since)) = late.first_key_value() {
        let detail =
            format!("the flag of member {member} was still set {since:?} after its last append");
        stage.cluster.violation(Violation::new("an idle member soon clears its flag", detail));
    }
    Ok(())
}

/// All members stop cleanly under load, then lose power. No member recovers.
async fn clean_stop_then_cut(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let count = stage.rng.random_range(1..30);
    stage.acknowledged(count).await?;
    let clean = stage.stop(&stage.all()).await;
    stage.reached_if(clean, "all stopped cleanly");
    stage.cut_all();
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    none_recovers(&stage).await
}

async fn none_recovers(stage: &Stage) -> Played {
    let up = || stage.all().iter().all(|member| stage.node(*member).is_some());
    stage.until("nodes that serve", up).await?;
    match stage.all().into_iter().find(|member| !stage.is_active(*member)) {
        None => stage.reached("no member recovers"),
        Some(member) => {
            let detail = format!("member {member} recovers, though its flag was clear");
            stage.cluster.violation(Violation::new("a clear flag needs no recovery", detail));
        }
    }
    Ok(())
}

/// The same workload for each seed; a member loses power as its k-th disk operation begins, with k
/// the seed.
async fn cut_at_an_operation(stage: Stage, leads: bool) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let follower = stage.all().into_iter().find(|member| *member != leader);
    let member = if leads { leader } else { follower.ok_or("a follower")? };
    stage.disk(member, Moment::Operation, stage.step()).await?;
    let lost_acks = stage.cut(member) > 0;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    stage.reached_if(lost_acks, RECOVERED);
    stage.acknowledged(5).await
}
