//! Requests that arrive a second time, late: on another connection, at another leader, after a
//! restart.
//!
//! Clients of the simulation take the answer to their last attempt and ignore earlier ones. So
//! their answers cannot show whether an earlier request that arrives later got the same answer as
//! the first time. Here the script sends the request.

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, three};
use crate::harness::finale::UNSAFE_RECOVERY;
use crate::harness::plan::Plan;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_raft::{Command, Condition, Operation, Session, WriteOutcome};
use rand::RngExt;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!(
        "refused-and-asked-again",
        |seed| Plan { log_retain_entries: 20, ..three(seed) },
        refused_and_asked_again
    )
    .seeds(6)
    .reaches(&[REFUSED, "another leads", "from a checkpoint", AS_BEFORE]),
    scenario!("retried-after-an-unsafe-recovery", three, retried_after_an_unsafe_recovery)
        .seeds(6)
        .may_stop()
        .reaches(&[UNSYNCED_LOST, UNSAFE_RECOVERY, AS_BEFORE]),
];

const AS_BEFORE: &str = "answered as the first time";
/// Long enough that a write is synced and survives an unsafe recovery.
const SYNCED_MS: std::ops::Range<u64> = 2_500..3_500;
const REFUSED: &str = "refused, and the condition now holds";

/// A put is refused, since its condition does not hold. Then the condition holds, and the same
/// request arrives again. A client that was told that its put took no effect must never see the
/// put's value. In between the leader changes, or all members restart from a checkpoint.
async fn refused_and_asked_again(mut stage: Stage) -> Played {
    let mut client = Writer::new(&mut stage).await?;
    for round in 0..3 {
        let key = Bytes::from(format!("again/{round}"));
        client.put(&mut stage, &key, Condition::None).await?;
        let (refused, request) = client.put(&mut stage, &key, Condition::Absent).await?;
        if refused.applied {
            return Err("a condition that does not hold".into());
        }
        stage
            .command(alone(Operation::Delete { key: key.clone(), condition: Condition::None }))
            .await?;
        stage.reached(REFUSED);
        match (stage.seed + round) % 3 {
            0 => {}
            1 => {
                let leader = stage.leader().await?;
                let term = stage.term(leader);
                stage.kill(leader);
                stage.leader_among(&stage.all(), term).await?;
                stage.reached("another leads");
                stage.start(&[leader]).await;
            }
            _ => {
                start_from_a_checkpoint(&stage).await?;
                stage.reached("from a checkpoint");
            }
        }
        stage.pass(0, 500).await;
        repeat(&mut stage, request, refused).await?;
    }
    stage.acknowledged(5).await
}

/// A put was acknowledged so long ago that no loss may include it. Then all machines lose power at
/// once, and an operator decides. The same request arrives again.
async fn retried_after_an_unsafe_recovery(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let mut client = Writer::new(&mut stage).await?;
    let key = Bytes::from_static(b"again/loss");
    let (answer, request) = client.put(&mut stage, &key, Condition::None).await?;
    stage.pass(SYNCED_MS.start, SYNCED_MS.end).await;
    stage.acknowledged(1).await?;
    let lost_acks = stage.cut_all_and_restart().await? > 0;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    stage.decide(&stage.all()).await?;
    stage.active(&stage.all()).await?;
    repeat(&mut stage, request, answer).await
}

async fn repeat(stage: &mut Stage, request: Command, first: WriteOutcome) -> Played {
    let again = stage.command(request).await?;
    if again == first {
        stage.reached(AS_BEFORE);
    } else {
        let detail = format!("{first:?}, and then {again:?}");
        stage.cluster.violation(Violation::new("a repeat is answered as the first time", detail));
    }
    Ok(())
}

async fn start_from_a_checkpoint(stage: &Stage) -> Played {
    let up = || stage.all().iter().all(|member| stage.node(*member).is_some());
    stage.until("nodes that serve", up).await?;
    for member in stage.all() {
        let node = stage.node(member).ok_or("a node")?;
        node.engine().checkpoint().await.map_err(|error| error.to_string())?;
    }
    for member in stage.all() {
        stage.kill(member);
    }
    stage.start(&stage.all()).await;
    stage.until("nodes that serve", up).await
}

fn alone(operation: Operation) -> Command {
    Command { synced: false, session: None, operations: vec![operation] }
}

/// A client with a session that still waits for every answer.
struct Writer {
    session: Session,
}

impl Writer {
    async fn new(stage: &mut Stage) -> Result<Writer, String> {
        let check =
            Operation::Check { key: Bytes::from_static(b"again"), condition: Condition::None };
        let base_index = stage.command(alone(check)).await?.log_id.index;
        let client_id = stage.rng.random();
        Ok(Writer { session: Session { client_id, sequence: 0, lowest_pending: 1, base_index } })
    }

    /// Sends the next put; returns its outcome and the request.
    async fn put(
        &mut self,
        stage: &mut Stage,
        key: &Bytes,
        condition: Condition,
    ) -> Result<(WriteOutcome, Command), String> {
        self.session.sequence += 1;
        let value = self.session.sequence.to_le_bytes().to_vec().into();
        let operation = Operation::Put { key: key.clone(), value, condition };
        let command = Command { session: Some(self.session), ..alone(operation) };
        Ok((stage.command(command.clone()).await?, command))
    }
}
