//! Modes that an operator changes, by themselves and on the way to fewer members and back.

use super::changes::{AGAIN, SYNCED_MS};
use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, three, three_or_five};
use crate::harness::operator::NotDone;
use cairn_clients::Violation;
use cairn_engine::Mode;
use cairn_raft::MemberChange;
use rand::RngExt;
use std::time::Duration;

/// The way out that a refusal names.
const SET_SYNC: &str = "mode set sync";
/// Part of another one.
const TOO_FEW: &str = "needs 3 voters";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("shrink-to-one-and-grow", three, to_one_and_back).seeds(6).reaches(&[
        "two members serve",
        "nobody joins unasked",
        "one member serves",
        "the last member lost power",
        AGAIN,
        "acknowledged before synced again",
    ]),
    scenario!("total-cut-when-mode-sync-was-answered", three_or_five, cut_after_the_answer)
        .seeds(12)
        .may_stop()
        .reaches(&[
            "cut as soon as it was answered",
            "cut after a write that followed",
            "cut when everything was synced",
            UNSYNCED_LOST,
        ]),
    scenario!("too-few-for-mode-replicated", three_or_five, too_few).reaches(&[
        "a removal is refused",
        "mode replicated is refused",
        "mode replicated is in force again",
    ]),
    scenario!("leader-change-between-mode-and-removal", three, leader_change_between)
        .seeds(8)
        .reaches(&["another leader removes it", "all are cut", "nobody recovers", AGAIN]),
    scenario!("mode-back-while-a-member-was-away", three_or_five, back_while_away)
        .reaches(&["it never saw the change", "all members agree on the mode"]),
    scenario!("stale-member-completes-a-majority-in-mode-sync", three, stale_in_the_majority)
        .seeds(12)
        .may_stop()
        .reaches(&["it was needed for a majority", "all are cut"]),
];

/// From three members to one, in any order, and back. An empty node in a slot that nobody has
/// waits until it is asked for.
async fn to_one_and_back(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(10).await?;
    stage.set_mode(Mode::Sync).await?;
    let order = stage.others(&[]);
    let [first, second, last] = *order.as_slice() else { return Err("three members".into()) };
    stage.remove(first).await?;
    stage.still_serves("with two members").await?;
    stage.reached("two members serve");
    drop(stage.renew(first).await?);
    stage.until("a node that serves", || stage.node(first).is_some()).await?;
    stage.pass(3_000, 8_000).await;
    let joined = stage.machine(first)?.identity();
    let known = |member: usize| stage.status(member).map(|status| status.members);
    let members = known(last).unwrap_or_default();
    match members.iter().find(|member| Some(member.id) == joined) {
        None => stage.reached("nobody joins unasked"),
        Some(member) => {
            let detail = format!("{} is a member", member.id);
            stage.cluster.violation(Violation::new("nobody joins a slot unasked", detail));
        }
    }
    stage.remove(second).await?;
    stage.still_serves("with one member").await?;
    stage.reached("one member serves");
    if stage.seed.is_multiple_of(2) {
        stage.cut(last);
        stage.pass(0, 1_000).await;
        stage.start(&[last]).await;
        stage.reached("the last member lost power");
        stage.still_serves("with one member that lost power").await?;
    }
    drop(stage.renew(second).await?);
    for member in [second, first] {
        stage.add(member).await?;
        stage.still_serves("while it grows").await?;
    }
    stage.reached(AGAIN);
    stage.set_mode(Mode::Replicated).await?;
    stage.ahead(&stage.all()).await?;
    stage.reached("acknowledged before synced again");
    Ok(())
}

/// All machines lose power when the cluster has answered that each acknowledgement is synced from
/// now on: at once, after a write that followed, or when everything is synced. What was acknowledged
/// since is there. In the first two cases members may still have to recover what they acknowledged
/// before.
async fn cut_after_the_answer(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(500, 3_000).await;
    stage.acknowledged(5).await?;
    stage.set_mode(Mode::Sync).await?;
    let part = match stage.seed % 3 {
        0 => "cut as soon as it was answered",
        1 => {
            let count = stage.rng.random_range(1..6);
            stage.covered_writes(count).await?;
            "cut after a write that followed"
        }
        _ => {
            stage.pass(SYNCED_MS.0, SYNCED_MS.1).await;
            stage.covered_writes(1).await?;
            "cut when everything was synced"
        }
    };
    let lost = stage.cut_all();
    stage.reached_if(lost > 0, UNSYNCED_LOST);
    stage.reached(part);
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    if stage.seed % 3 == 2 {
        stage.nobody_recovers(&stage.all()).await?;
        stage.still_serves("after a total power cut in mode sync").await?;
    }
    Ok(())
}

/// In mode `replicated` no removal leaves fewer than three voters, and fewer do not go back to it.
async fn too_few(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let mut order = stage.others(&[]);
    let leaves = order.pop().ok_or("a member")?;
    let spare = order.split_off(order.len().min(2));
    for member in &spare {
        stage.remove(*member).await?;
    }
    let machine = stage.machine(leaves)?;
    let mut refused = None;
    for _ in 0..20 {
        match stage.cluster.change_members(MemberChange::Remove(machine.slot)).await {
            Ok(()) => break,
            Err(not_done) => refused = Some(not_done),
        }
        if matches!(&refused, Some(NotDone::Refused(reason)) if reason.contains(SET_SYNC)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    match refused {
        Some(NotDone::Refused(reason)) if reason.contains(SET_SYNC) => {
            stage.reached("a removal is refused")
        }
        other => {
            let detail = format!("the answer is {other:?}");
            let violation = Violation::new("mode replicated has three voters", detail);
            stage.cluster.violation(violation);
        }
    }
    stage.set_mode(Mode::Sync).await?;
    stage.remove(leaves).await?;
    stage.still_serves("with two members").await?;
    let mut asked = stage.cluster.set_mode(Mode::Replicated).await;
    let refuses = |asked: &_| matches!(asked, Err(NotDone::Refused(why)) if why.contains(TOO_FEW));
    for _ in 0..20 {
        if asked.is_ok() || refuses(&asked) {
            break;
        }
        stage.pass(50, 200).await;
        asked = stage.cluster.set_mode(Mode::Replicated).await;
    }
    match asked {
        Err(NotDone::Refused(_)) => stage.reached("mode replicated is refused"),
        Err(later) => return Err(format!("a refusal, not {later:?}")),
        Ok(()) => {
            let violation = Violation::new("mode replicated has three voters", "two are enough");
            stage.cluster.violation(violation);
        }
    }
    let mut gone = spare;
    gone.push(leaves);
    stage.grow_again(&gone).await?;
    stage.ahead(&stage.all()).await?;
    stage.reached("mode replicated is in force again");
    Ok(())
}

/// The leader ends when it has answered that each acknowledgement is synced; another one removes a
/// member. Then all machines lose power.
async fn leader_change_between(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(10).await?;
    let leader = stage.leader().await?;
    stage.set_mode(Mode::Sync).await?;
    let paused = stage.seed.is_multiple_of(2);
    match paused {
        true => stage.pause(&[leader]),
        false => stage.kill(leader),
    }
    let others = stage.others(&[leader]);
    let next = stage.leader_among(&others, 0).await?;
    let follower = others.iter().copied().find(|member| *member != next).ok_or("a follower")?;
    // The one that is away leaves, or comes back and another one leaves.
    let leaves = match stage.seed % 4 < 2 {
        true => leader,
        false => {
            stage.resume(&[leader]);
            stage.start(&[leader]).await;
            follower
        }
    };
    stage.remove(leaves).await?;
    stage.reached_if(stage.leads(&[leader]).is_none(), "another leader removes it");
    stage.covered_writes(2).await?;
    stage.resume(&[leader]);
    let stay = stage.others(&[leaves]);
    stage.cut_together(&stage.all());
    stage.reached("all are cut");
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    stage.nobody_recovers(&stay).await?;
    stage.still_serves("after a power cut of both").await?;
    stage.grow_again(&[leaves]).await
}

/// A member is cut off while the mode changes and changes back.
async fn back_while_away(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (_, away, _) = stage.cast().await?;
    let before = stage.status(away).and_then(|status| status.applied);
    stage.isolate(&[away]);
    stage.set_mode(Mode::Sync).await?;
    stage.covered_writes(3).await?;
    stage.set_mode(Mode::Replicated).await?;
    stage.acknowledged(3).await?;
    let seen = stage.status(away).and_then(|status| status.committed);
    stage.reached_if(seen <= before, "it never saw the change");
    stage.heal();
    let agree = || {
        let modes = |member| stage.node(member).map(|node| node.replica().modes().cluster);
        stage.all().iter().all(|member| modes(*member) == Some(Some(Mode::Replicated)))
    };
    stage.until("one mode", agree).await?;
    stage.reached("all members agree on the mode");
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// A member is cut off while the mode changes, with acknowledgements that it has not synced. Then it
/// is the one that completes a majority, and all machines lose power.
async fn stale_in_the_majority(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (leader, stale, other) = stage.cast().await?;
    stage.isolate(&[stale]);
    stage.set_mode(Mode::Sync).await?;
    stage.covered_writes(1).await?;
    if stage.rng.random_bool(0.5) {
        stage.pass(0, 6_000).await;
    }
    stage.heal();
    stage.partition(&[other], &[leader, stale]);
    let count = stage.rng.random_range(1..8);
    stage.covered_writes(count).await?;
    stage.reached_if(stage.leads(&[leader]).is_some(), "it was needed for a majority");
    stage.cut_all();
    stage.reached("all are cut");
    stage.heal();
    stage.pass(0, 500).await;
    stage.start(&stage.all()).await;
    Ok(())
}
