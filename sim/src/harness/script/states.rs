//! The state that somebody takes from a member, as a backup does, while a leader dies, while a snapshot
//! replaces the state, and while the member recovers. Every state that arrives is judged as in any other
//! run ([`taker`](crate::harness::taker)).

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, three};
use crate::harness::plan::Plan;
use crate::harness::taker::{self, Taken, Taker};
use cairn_clients::Violation;
use madsim::runtime::{Handle, NodeHandle};
use madsim::task::JoinHandle;
use std::net::Ipv4Addr;
use std::time::Duration;

const BROKE_OFF: &str = "the leader dies while it sends its state";
const GOES_ON: &str = "another member sends what is missing";
const WITHOUT_LEADER: &str = "a follower sends all of it, though the leader dies meanwhile";
const MEANWHILE: &str = "a snapshot is installed while the state before it is sent";
const SENT: &str = "the state before it arrives to its end";
const SINCE: &str = "what changed since is sent";
const REFUSED: &str = "a recovering member sends none";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("a-state-is-streamed-while-the-leader-dies", many_parts, leader_dies)
        .seeds(8)
        .reaches(&[BROKE_OFF, GOES_ON, WITHOUT_LEADER, SINCE]),
    scenario!(
        "a-state-is-streamed-while-a-snapshot-replaces-it",
        |seed| Plan { log_retain_entries: 10, ..many_parts(seed) },
        snapshot_replaces_it
    )
    .seeds(8)
    .reaches(&[MEANWHILE, SENT, SINCE]),
    scenario!("a-state-is-streamed-while-its-member-recovers", many_parts, member_recovers)
        .seeds(6)
        .reaches(&[UNSYNCED_LOST, REFUSED, SINCE]),
];

/// How often a member is asked that refuses, and how far apart.
const ATTEMPTS: u32 = 60;
const BETWEEN: Duration = Duration::from_millis(100);
/// How often a member is asked while it recovers, at most, and how far apart.
const WHILE_RECOVERING: u32 = 500;
const SOON: Duration = Duration::from_millis(5);
/// How much longer an operation takes on the disk of a member that shall take long to send its state, or to
/// recover: a leader keeps the log for a member that is away for ten seconds.
const SLOW_READS: Duration = Duration::from_millis(250);
const SLOW_RECOVERY: Duration = Duration::from_millis(60);

/// Three members that send their state in many small parts.
fn many_parts(seed: u64) -> Plan {
    Plan { snapshot_piece_bytes: Some(4_096), takes_states: true, ..three(seed) }
}

/// Somebody who takes states, on a host apart.
struct Saver {
    host: NodeHandle,
    taker: Taker,
}

impl Saver {
    fn new(stage: &Stage) -> Result<Saver, String> {
        let host = Handle::current()
            .create_node()
            .name("saver")
            .ip(Ipv4Addr::new(10, 0, 2, 3).into())
            .build();
        Ok(Saver { host, taker: Taker::new(&stage.cluster, stage.cluster.plan.rng(22))? })
    }

    /// Begins to take the state of a member, and asks again while that refuses, at most so often.
    fn begin(self, stage: &Stage, member: usize, since: bool, attempts: u32) -> Taking {
        let slot = stage.machine(member).map_or(0, |machine| machine.slot);
        let Saver { host, mut taker } = self;
        let task = host.spawn(async move {
            let mut taken = taker.take(slot, since).await;
            for _ in 1..attempts {
                if taken != Taken::Refused {
                    break;
                }
                tokio::time::sleep(BETWEEN).await;
                taken = taker.take(slot, since).await;
            }
            (taker, taken)
        });
        Taking { host, task }
    }

    /// Takes the state of a member to its end, and says how many values were not sent again.
    async fn take_all(
        self,
        stage: &Stage,
        member: usize,
        since: bool,
    ) -> Result<(Saver, u64), String> {
        let mut saver = self;
        for _ in 0..ATTEMPTS {
            let taken;
            (saver, taken) = saver.begin(stage, member, since, ATTEMPTS).end().await?;
            if let Taken::Complete { left_out } = taken {
                return Ok((saver, left_out));
            }
        }
        let detail = format!("member {member}");
        stage.cluster.violation(Violation::new(taker::LIVENESS, detail));
        Err("a complete state".into())
    }
}

/// A state that is being taken.
struct Taking {
    host: NodeHandle,
    task: JoinHandle<(Taker, Taken)>,
}

impl Taking {
    async fn end(self) -> Result<(Saver, Taken), String> {
        let (taker, taken) = self.task.await.map_err(|error| error.to_string())?;
        Ok((Saver { host: self.host, taker }, taken))
    }
}

/// The leader is killed in the middle of a state, which it sends itself in every second seed, and else a
/// follower. What has arrived is not asked for again, whoever sends the rest.
async fn leader_dies(mut stage: Stage) -> Played {
    stage.acknowledged(10).await?;
    stage.bulk().await?;
    let (leader, follower, _) = stage.cast().await?;
    let term = stage.term(leader);
    let asked = if stage.seed.is_multiple_of(2) { leader } else { follower };
    let (parts, complete) = (stage.cluster.states.parts(), stage.cluster.states.complete());
    let taking = Saver::new(&stage)?.begin(&stage, asked, false, ATTEMPTS);
    stage.until("a part of a state", || stage.cluster.states.parts() > parts).await?;
    stage.pass(0, 40).await;
    stage.kill(leader);
    let meanwhile = stage.cluster.states.complete() == complete;
    let (mut saver, taken) = taking.end().await?;
    let others = stage.others(&[leader]);
    let broke_off = asked == leader && taken == Taken::BrokenOff;
    stage.reached_if(broke_off, BROKE_OFF);
    let sent = asked == follower && matches!(taken, Taken::Complete { .. });
    stage.reached_if(meanwhile && sent, WITHOUT_LEADER);
    stage.leader_among(&others, term).await?;
    let mut left_out;
    (saver, left_out) = saver.take_all(&stage, follower, false).await?;
    stage.reached_if(broke_off && left_out > 0, GOES_ON);
    stage.acknowledged(20).await?;
    stage.start(&[leader]).await;
    stage.active(&stage.all()).await?;
    for member in stage.all() {
        (saver, left_out) = saver.take_all(&stage, member, true).await?;
        stage.reached_if(left_out > 0, SINCE);
        stage.acknowledged(5).await?;
    }
    Ok(())
}

/// A member sends its state slowly. It is cut off until it needs a snapshot, and installs that while it
/// still sends: what it sends is the state from before.
async fn snapshot_replaces_it(mut stage: Stage) -> Played {
    let (leader, member, _) = stage.cast().await?;
    stage.acknowledged(10).await?;
    stage.bulk().await?;
    let disk = stage.machine(member)?.disk.clone();
    disk.slow_down(SLOW_READS);
    let (parts, complete) = (stage.cluster.states.parts(), stage.cluster.states.complete());
    let taking = Saver::new(&stage)?.begin(&stage, member, false, ATTEMPTS);
    stage.until("a part of a state", || stage.cluster.states.parts() > parts).await?;
    stage.isolate(&[member]);
    let end = stage.status(member).and_then(|status| status.last_log);
    stage.until("a log that was purged", || stage.purged(leader) > end).await?;
    stage.heal();
    stage.until("a snapshot", || stage.purged(member) > end).await?;
    let meanwhile = stage.cluster.states.complete() == complete;
    let (saver, taken) = taking.end().await?;
    disk.slow_down(Duration::ZERO);
    stage.reached_if(meanwhile && taken != Taken::Refused, MEANWHILE);
    let sent = matches!(taken, Taken::Complete { .. });
    stage.reached_if(meanwhile && sent, SENT);
    stage.active(&stage.all()).await?;
    let (_, left_out) = saver.take_all(&stage, member, true).await?;
    stage.reached_if(left_out > 0, SINCE);
    stage.acknowledged(5).await
}

/// A member that lost acknowledged entries is asked for its state again and again while it recovers, and
/// has to refuse; then for what changed since the state that it sent before.
async fn member_recovers(mut stage: Stage) -> Played {
    stage.bulk().await?;
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let (mut saver, _) = Saver::new(&stage)?.take_all(&stage, member, false).await?;
    let lost_acks = stage.cut_ahead(member, 5).await?;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    let disk = stage.machine(member)?.disk.clone();
    disk.slow_down(SLOW_RECOVERY);
    stage.start(&[member]).await;
    stage.recovering(member).await?;
    let mut refused = false;
    for _ in 0..WHILE_RECOVERING {
        if !stage.is_recovering(member) {
            break;
        }
        let taken;
        (saver, taken) = saver.begin(&stage, member, true, 1).end().await?;
        refused |= taken == Taken::Refused && stage.is_recovering(member);
        tokio::time::sleep(SOON).await;
    }
    disk.slow_down(Duration::ZERO);
    stage.reached_if(refused, REFUSED);
    stage.active(&[member]).await?;
    let (_, left_out) = saver.take_all(&stage, member, true).await?;
    stage.reached_if(left_out > 0, SINCE);
    stage.acknowledged(5).await
}
