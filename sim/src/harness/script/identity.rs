//! Unreadable superblocks: the identity of the disk, and what it promised, are lost.

use super::disks::{REPLACEMENT, replacement, votes};
use super::stage::{Played, Stage};
use super::{Scenario, five, three, three_or_five};
use crate::disk::Moment;
use crate::harness::machine::Death;
use cairn_clients::Violation;
use cairn_engine::io::FileKind;
use rand::RngExt;
use std::time::Duration;

/// For how long a disk hangs: longer than a leader waits for contact before it replaces an
/// identity, shorter than the limit of an operation.
const LAGS: Duration = Duration::from_millis(9_500);
/// The part of that time during which the disk of the lost identity must not be written.
const LAGS_CHECKED_MS: (u64, u64) = (8_500, 9_000);
/// How much longer every operation of a slow disk takes.
const SLOWER: Duration = Duration::from_millis(600);

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("identity-unreadable", three_or_five, unreadable).seeds(8).reaches(&[
        "no leader, nothing written",
        "begins empty",
        REPLACEMENT,
        "counts",
    ]),
    scenario!("identity-unreadable-and-ended-on-the-way", three, ended_on_the_way)
        .seeds(16)
        .reaches(&["ended while it is replaced", REPLACEMENT]),
    scenario!("identity-unreadable-while-another-lags", three, another_lags).seeds(48).reaches(&[
        "the leader is in contact with one that lags",
        "nothing overwritten before it caught up",
        REPLACEMENT,
    ]),
    scenario!("identity-unreadable-beside-slow-disks", five, beside_slow_disks).reaches(&[
        "every disk is slow",
        "begins empty while one is cut off",
        REPLACEMENT,
    ]),
    scenario!("superblock-torn-beside-a-damaged-copy", three, torn_beside_damage)
        .seeds(100)
        .reaches(&["two copies are left", "no two copies are left", "active again"]),
    scenario!("two-identities-unreadable", three, two_of_three)
        .reaches(&["two of three wait", "restored by an operator"]),
];

/// Longer than a leader waits for contact before it replaces an identity.
const NO_CONTACT_MS: (u64, u64) = (8_000, 12_000);

/// Starts these members and checks for a while, in milliseconds, that nothing is written to their
/// disks and no node serves there.
async fn waits(stage: &mut Stage, members: &[usize], (from, to): (u64, u64)) -> Played {
    let writes = |stage: &Stage, member: usize| {
        stage.machine(member).map(|machine| machine.disk.stats().writes)
    };
    let before: Vec<_> = members.iter().map(|member| writes(stage, *member)).collect();
    stage.start(members).await;
    stage.pass(from, to).await;
    for (member, before) in members.iter().zip(before) {
        if writes(stage, *member)? != before? || stage.node(*member).is_some() {
            let detail =
                format!("member {member}, whose identity is lost, did not wait for a leader");
            stage.cluster.violation(Violation::new(
                "a lost identity is overwritten only when its data is not needed",
                detail,
            ));
        }
    }
    Ok(())
}

/// A member's identity is lost. It waits while no majority is up without it, and then begins empty
/// under a new identity.
async fn unreadable(mut stage: Stage) -> Played {
    stage.acknowledged(40).await?;
    let (leader, follower, _) = stage.cast().await?;
    let lost = if stage.rng.random_bool(0.3) { leader } else { follower };
    let had =
        stage.status(lost).and_then(|status| status.applied).map_or(0, |applied| applied.index);
    let others = stage.others(&[lost]);
    let away = if stage.rng.random_bool(0.5) {
        others.split_at(others.len() / 2 + 1).0.to_vec()
    } else {
        vec![]
    };
    stage.lose_identity(lost, Death::PowerCut)?;
    if !away.is_empty() {
        away.iter().for_each(|member| stage.kill(*member));
        waits(&mut stage, &[lost], NO_CONTACT_MS).await?;
        stage.reached("no leader, nothing written");
        if stage.rng.random_bool(0.5) {
            stage.kill(lost);
        }
        stage.start(&away).await;
    }
    stage.start(&[lost]).await;
    stage.until("a node that serves", || stage.node(lost).is_some()).await?;
    let has = stage.status(lost).and_then(|status| status.last_log).map_or(0, |last| last.index);
    stage.reached_if(had > 0 && has < had, "begins empty");
    replacement(&stage, lost).await?;
    stage.active(&stage.all()).await?;
    let spared = stage.others(&[lost]);
    let spared = spared.split_at(spared.len() / 2).0;
    spared.iter().for_each(|member| stage.kill(*member));
    stage.acknowledged(5).await?;
    stage.reached_if(votes(&stage, lost), "counts");
    stage.start(spared).await;
    Ok(())
}

/// A member ends while it gets a new identity: it then has the old one, which is unreadable, or the
/// complete new one.
async fn ended_on_the_way(mut stage: Stage) -> Played {
    stage.acknowledged(20).await?;
    let (_, lost, _) = stage.cast().await?;
    stage.lose_identity(lost, Death::PowerCut)?;
    for _ in 0..2 {
        let disk = stage.machine(lost)?.disk.clone();
        let before = disk.stats().writes;
        stage.start(&[lost]).await;
        stage.until("the first write", || disk.stats().writes > before).await?;
        let (moment, most) = match stage.rng.random_range(0..3) {
            0 => (Moment::WriteTo(FileKind::Superblock), 5),
            _ => (Moment::Operation, 80),
        };
        let steps = stage.rng.random_range(1..most);
        stage.disk(lost, moment, steps).await.ok();
        stage.reached_if(stage.node(lost).is_none(), "ended while it is replaced");
        let death = if stage.rng.random_bool(0.5) { Death::Killed } else { Death::PowerCut };
        stage.end(lost, death);
        stage.pass(0, 500).await;
    }
    stage.start(&[lost]).await;
    replacement(&stage, lost).await?;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// The leader acknowledged writes together with a member whose identity is then lost. The other
/// member lacks them: the leader is in contact with it, but its disk hangs.
async fn another_lags(mut stage: Stage) -> Played {
    // By then the leader has had no contact for long enough, so it replaces an identity as soon as
    // it may.
    stage.pass(NO_CONTACT_MS.0, NO_CONTACT_MS.1).await;
    let (leader, lost, lags) = stage.cast().await?;
    stage.partition(&[lags], &[leader, lost]);
    stage.acknowledged(20).await?;
    stage.lose_identity(lost, Death::PowerCut)?;
    let disk = stage.machine(lags)?.disk.clone();
    disk.stall(LAGS, None);
    stage.heal();
    waits(&mut stage, &[lost], LAGS_CHECKED_MS).await?;
    stage.reached_if(
        stage.leads(&[leader]).is_some(),
        "the leader is in contact with one that lags",
    );
    let leader_end = stage.status(leader).and_then(|status| status.last_log);
    let writes = stage.machine(lost)?.disk.stats().writes;
    let lost_disk = stage.machine(lost)?.disk.clone();
    stage.until("the first write", || lost_disk.stats().writes > writes).await?;
    let has = stage.status(lags).and_then(|status| status.last_log);
    stage.reached_if(has >= leader_end, "nothing overwritten before it caught up");
    replacement(&stage, lost).await?;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// One member is cut off, and a sync on the other disks takes longer than the leader's interval
/// between two checks of its members. The leader must confirm nevertheless that the lost identity
/// may be replaced.
async fn beside_slow_disks(mut stage: Stage) -> Played {
    stage.acknowledged(20).await?;
    let (_, lost, away) = stage.cast().await?;
    stage.lose_identity(lost, Death::PowerCut)?;
    stage.isolate(&[away]);
    let mut disks = Vec::new();
    for member in stage.others(&[lost, away]) {
        disks.push(stage.machine(member)?.disk.clone());
    }
    disks.iter().for_each(|disk| disk.slow_down(SLOWER));
    stage.reached("every disk is slow");
    let disk = stage.machine(lost)?.disk.clone();
    let writes = disk.stats().writes;
    stage.start(&[lost]).await;
    stage.until("the first write", || disk.stats().writes > writes).await?;
    stage.reached("begins empty while one is cut off");
    disks.iter().for_each(|disk| disk.slow_down(Duration::ZERO));
    stage.heal();
    replacement(&stage, lost).await?;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// One superblock copy is damaged, and a power cut interrupts an update of two others. Either two
/// copies are left that agree, or the disk counts as lost.
async fn torn_beside_damage(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (_, member, cut_off) = stage.cast().await?;
    // An update writes the first two copies at once. With the last one damaged, only what those two
    // have become is left.
    let rotten = match stage.seed.is_multiple_of(3) {
        true => stage.rot(member, FileKind::Superblock, 1) > 0,
        false => stage.rot_last_copy(member)?,
    };
    if !rotten {
        return Err("a damaged copy".into());
    }
    // In a degraded quorum a member clears its flag.
    stage.isolate(&[cut_off]);
    stage.disk(member, Moment::WriteTo(FileKind::Superblock), 2).await?;
    stage.cut(member);
    stage.heal();
    let left = stage.machine(member)?.disk.has_identity();
    stage.reached(if left { "two copies are left" } else { "no two copies are left" });
    stage.start(&[member]).await;
    if !left {
        replacement(&stage, member).await?;
    }
    stage.active(&stage.all()).await?;
    stage.reached("active again");
    stage.acknowledged(5).await
}

/// Two of three identities are lost at once. No majority is left to replace them, so the two wait
/// and keep what they hold until an operator restores their superblocks.
async fn two_of_three(mut stage: Stage) -> Played {
    stage.acknowledged(40).await?;
    let (leader, first, second) = stage.cast().await?;
    let lost = if stage.rng.random_bool(0.5) { [leader, first] } else { [first, second] };
    let mut saved = Vec::new();
    for member in lost {
        stage.kill(member);
        saved.push(stage.machine(member)?.disk.copy());
        stage.lose_identity(member, Death::Killed)?;
    }
    waits(&mut stage, &lost, NO_CONTACT_MS).await?;
    stage.reached("two of three wait");
    for (member, files) in lost.into_iter().zip(saved) {
        drop(stage.exchange_disk(member, files).await?);
    }
    stage.start(&lost).await;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await?;
    stage.reached("restored by an operator");
    Ok(())
}
