//! Superblocks that nobody can read: who wrote what is on the disk, and what was promised, is not known any more.

use super::disks::{REBORN, reborn, votes};
use super::stage::{Played, Stage};
use super::{Scenario, three, three_or_five};
use crate::check::Violation;
use crate::disk::Moment;
use crate::harness::machine::Death;
use cairn_engine::io::FileKind;
use rand::RngExt;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "identity-unreadable",
        parts: &["no leader, nothing written", "begins with what it had", REBORN, "counts"],
        seeds: 8,
        may_stop: false,
        plan: three_or_five,
        script: |stage| Box::pin(unreadable(stage)),
    },
    Scenario {
        name: "identity-unreadable-and-ended-on-the-way",
        parts: &["ended while it is reborn", REBORN],
        seeds: 16,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(ended_on_the_way(stage)),
    },
    Scenario {
        name: "two-identities-unreadable",
        parts: &["two of three wait", "put right by a person"],
        seeds: 4,
        may_stop: false,
        plan: three,
        script: |stage| Box::pin(two_of_three(stage)),
    },
];

/// Looks for a while whether anything is written to these members' disks, or a node serves there.
async fn waits(stage: &mut Stage, members: &[usize]) -> Played {
    let writes =
        |stage: &Stage, member: usize| stage.machine(member).map(|machine| machine.disk.stats().writes);
    let before: Vec<_> = members.iter().map(|member| writes(stage, *member)).collect();
    stage.start(members).await;
    // Longer than a leader listens before it replaces anybody.
    stage.pass(8_000, 12_000).await;
    for (member, before) in members.iter().zip(before) {
        if writes(stage, *member)? != before? || stage.node(*member).is_some() {
            let detail = format!("member {member}, whose identity is gone, did not wait for a leader");
            stage
                .cluster
                .violation(Violation::new("nothing of a lost identity is overwritten in vain", detail));
        }
    }
    Ok(())
}

/// A member's identity is gone: it waits while no majority is there without it, and then comes back as another one, with what it
/// had of the log.
async fn unreadable(mut stage: Stage) -> Played {
    stage.acknowledged(40).await?;
    let (leader, follower, _) = stage.cast().await?;
    let lost = if stage.rng.random_bool(0.3) { leader } else { follower };
    let had = stage.status(lost).and_then(|status| status.applied).map_or(0, |applied| applied.index);
    let others = stage.others(&[lost]);
    let away =
        if stage.rng.random_bool(0.5) { others.split_at(others.len() / 2 + 1).0.to_vec() } else { vec![] };
    stage.lose_identity(lost, Death::PowerCut)?;
    if !away.is_empty() {
        away.iter().for_each(|member| stage.kill(*member));
        waits(&mut stage, &[lost]).await?;
        stage.reached("no leader, nothing written");
        if stage.rng.random_bool(0.5) {
            stage.kill(lost);
        }
        stage.start(&away).await;
    }
    stage.start(&[lost]).await;
    stage.until("a node that serves", || stage.node(lost).is_some()).await?;
    let has = stage.status(lost).and_then(|status| status.last_log).map_or(0, |last| last.index);
    stage.reached_if(had > 0 && has + 1 >= had, "begins with what it had");
    reborn(&stage, lost).await?;
    stage.active(&stage.all()).await?;
    let spared = stage.others(&[lost]);
    let spared = spared.split_at(spared.len() / 2).0;
    spared.iter().for_each(|member| stage.kill(*member));
    stage.acknowledged(5).await?;
    stage.reached_if(votes(&stage, lost), "counts");
    stage.start(spared).await;
    Ok(())
}

/// It ends while it gets another identity: it has the old one, which cannot be read, or the whole new one.
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
        stage.reached_if(stage.node(lost).is_none(), "ended while it is reborn");
        let death = if stage.rng.random_bool(0.5) { Death::Killed } else { Death::PowerCut };
        stage.end(lost, death);
        stage.pass(0, 500).await;
    }
    stage.start(&[lost]).await;
    reborn(&stage, lost).await?;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// Two of three identities are gone at once. Nobody is there who could take the two in, so they wait and leave what they hold
/// as it is, until a person puts their superblocks right.
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
    waits(&mut stage, &lost).await?;
    stage.reached("two of three wait");
    for (member, files) in lost.into_iter().zip(saved) {
        drop(stage.exchange_disk(member, files).await?);
    }
    stage.start(&lost).await;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await?;
    stage.reached("put right by a person");
    Ok(())
}
