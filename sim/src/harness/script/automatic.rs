//! Unsafe recovery by configuration: when every voter answers, and not before.

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, three_or_five};
use crate::harness::plan::Plan;
use cairn_clients::Violation;
use cairn_engine::io::FileKind;
use cairn_raft::Role;
use rand::RngExt;
use std::time::Duration;

/// Longer than the survey must be stable, and an election by unsafe-recovery grants takes.
const SURVEYS: Duration = Duration::from_secs(15);

const EMPTY: &str = "one member's log is empty";

pub(super) const SCENARIOS: &[Scenario] = &[scenario!(
    "unsafe-recovery-by-configuration",
    |seed| Plan { unsafe_recovery_automatic: true, ..three_or_five(seed) },
    by_configuration
)
.seeds(12)
.reaches(&[
    UNSYNCED_LOST,
    "one member lost nothing",
    EMPTY,
    "waits for every voter",
    "decided without an operator",
    "the unsafe recovery is counted",
])];

/// All machines lose power at once under load, or all but a follower, which lost nothing but cannot
/// lead without the others. One of the machines that lost power comes back late, with an empty log in
/// every second seed: both its checkpoints are gone. Until then there
/// is no leader, though a majority is up. Then the members start the unsafe recovery without an
/// operator, and count it.
async fn by_configuration(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.pass(0, 2_000).await;
    stage.acknowledged(5).await?;
    let leader = stage.leader().await?;
    let followers = stage.others(&[leader]);
    let spared = followers.first().copied().filter(|_| stage.rng.random_bool(0.5));
    let cut: Vec<usize> =
        stage.all().into_iter().filter(|member| Some(*member) != spared).collect();
    let lost_acks = stage.cut_together(&cut) > 0;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.reached_if(spared.is_some(), "one member lost nothing");
    // From here on clients send no requests and wait for no answers.
    stage.quiet().await;
    let absent = cut.get(stage.rng.random_range(0..cut.len())).copied().unwrap_or(leader);
    if stage.seed.is_multiple_of(2) {
        let machine = stage.machine(absent)?;
        machine.disk.erase(FileKind::Checkpoint0);
        machine.disk.erase(FileKind::Checkpoint1);
        machine.damage();
        stage.reached(EMPTY);
    }
    let others: Vec<usize> = cut.into_iter().filter(|member| *member != absent).collect();
    stage.cluster.decide();
    stage.start(&others).await;
    for member in &others {
        stage.recovering(*member).await?;
    }
    tokio::time::sleep(SURVEYS).await;
    let leads =
        |member: &usize| stage.status(*member).is_some_and(|status| status.role == Role::Leader);
    if others.iter().any(leads) || !others.iter().all(|member| stage.is_recovering(*member)) {
        let detail = format!("member {absent} was down, and the others continued without it");
        stage.cluster.violation(Violation::new(
            "an automatic unsafe recovery has every voter present",
            detail,
        ));
    }
    stage.reached("waits for every voter");
    stage.start(&[absent]).await;
    stage.active(&stage.all()).await?;
    stage.reached("decided without an operator");
    let counted = |member: &usize| {
        stage.node(*member).is_some_and(|node| node.replica().unsafe_recoveries().count > 0)
    };
    stage
        .until("the unsafe recovery in every member's count", || stage.all().iter().all(counted))
        .await?;
    stage.reached("the unsafe recovery is counted");
    Ok(())
}
