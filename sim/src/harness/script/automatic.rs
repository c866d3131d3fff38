//! A loss that is accepted by configuration: with every voter there, and not before.

use super::stage::{Played, Stage};
use super::{FORGOT, Scenario, three_or_five};
use crate::harness::plan::Plan;
use cairn_clients::Violation;
use cairn_raft::Role;
use rand::RngExt;
use std::time::Duration;

/// Longer than a member looks at the same picture before it decides, and a mandate takes to elect somebody.
const LOOKS: Duration = Duration::from_secs(15);

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "loss-accepted-by-configuration",
    parts: &[
        FORGOT,
        "one remembers",
        "waits for every voter",
        "decided without a person",
        "the loss is counted",
    ],
    seeds: 12,
    may_stop: false,
    plan: |seed| Plan { recover_automatically: true, ..three_or_five(seed) },
    script: |stage| Box::pin(by_configuration(stage)),
}];

/// All machines lose power at once under load, or all but a follower, who remembers and yet cannot lead without the others. One of
/// those that were cut is long in coming back. Until it is there nobody leads, though a majority could; then the members decide by
/// themselves, and count the loss.
async fn by_configuration(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(0, 2_000).await;
    stage.acknowledged(5).await?;
    let leader = stage.leader().await?;
    let followers = stage.others(&[leader]);
    let spared = followers.first().copied().filter(|_| stage.rng.random_bool(0.5));
    let cut: Vec<usize> = stage.all().into_iter().filter(|member| Some(*member) != spared).collect();
    let forgot = stage.cut_together(&cut) > 0;
    stage.reached_if(forgot, FORGOT);
    stage.reached_if(spared.is_some(), "one remembers");
    // Nobody asks from here on, and nobody waits for an answer any more.
    stage.quiet().await;
    let absent = cut.get(stage.rng.random_range(0..cut.len())).copied().unwrap_or(leader);
    let others: Vec<usize> = cut.into_iter().filter(|member| *member != absent).collect();
    stage.cluster.decide();
    stage.start(&others).await;
    for member in &others {
        stage.recovering(*member).await?;
    }
    tokio::time::sleep(LOOKS).await;
    let leads = |member: &usize| stage.status(*member).is_some_and(|status| status.role == Role::Leader);
    if others.iter().any(leads) || !others.iter().all(|member| stage.is_recovering(*member)) {
        let detail = format!("member {absent} was not there, and the others went on without it");
        stage.cluster.violation(Violation::new(
            "a loss is accepted by configuration with every voter there only",
            detail,
        ));
    }
    stage.reached("waits for every voter");
    stage.start(&[absent]).await;
    stage.active(&stage.all()).await?;
    stage.reached("decided without a person");
    let counted = |member: &usize| stage.node(*member).is_some_and(|node| node.replica().losses().count > 0);
    stage.until("the loss in every member's count", || stage.all().iter().all(counted)).await?;
    stage.reached("the loss is counted");
    Ok(())
}
