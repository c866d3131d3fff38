//! Disks that fail while the machine continues: one loses power alone, one never completes an
//! operation, one fails a sync of an open.

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, three};
use crate::disk::Moment;
use crate::harness::devices::check_next_start;
use crate::harness::machine::{Condition, Death};
use cairn_disk::Failing;
use cairn_engine::io::FileKind;
use rand::RngExt;

const RECOVERED: &str = "the member is active again";
const STOPPED: &str = "the node stopped on its own";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("disk-loses-power-alone", three, disk_loses_power).seeds(6).reaches(&[
        UNSYNCED_LOST,
        STOPPED,
        "it comes back under another history",
        "it is back at once",
        RECOVERED,
    ]),
    scenario!("io-that-never-returns", three, never_returns).seeds(6).reaches(&[
        "a leader's disk",
        "a follower's disk",
        "another leads",
        STOPPED,
        RECOVERED,
    ]),
    scenario!("sync-fails-during-an-open", three, fails_during_an_open).seeds(6).reaches(&[
        "the open fails",
        UNSYNCED_LOST,
        RECOVERED,
    ]),
];

/// How often the script waits for a write in flight.
const ATTEMPTS: usize = 20;

/// A drive is pulled and pushed back, or its backplane fails for a moment, while the kernel keeps
/// running. What its cache held is gone, the write in flight fails, and the process is restarted
/// under the same kernel boot id. In every other seed the drive stays away until then, and reports
/// another history. Otherwise it is back at once with the same history, and the failed write can be
/// recorded on it.
async fn disk_loses_power(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let member = match stage.seed % 4 < 2 {
        true => leader,
        false => stage.others(&[leader]).first().copied().ok_or("a follower")?,
    };
    let away = stage.seed.is_multiple_of(2);
    stage.acknowledged(5).await?;
    let life = stage.machine(member)?.life();
    let mut lost = None;
    for _ in 0..ATTEMPTS {
        let count = stage.rng.random_range(1..8);
        stage.disk(member, Moment::WriteTo(FileKind::Journal), count).await?;
        let machine = stage.machine(member)?;
        lost = machine.disk.lose_power(away);
        if lost.is_some() {
            machine.damage();
            break;
        }
    }
    let lost = lost.ok_or("a write in flight")?;
    stage.cluster.trace.event(format!("disk of member {member} lost power alone: {lost:?}"));
    stage.reached_if(lost.dropped > 0, UNSYNCED_LOST);
    stage
        .until("a node that stops", || stage.machine(member).is_ok_and(|one| one.stopped(life)))
        .await?;
    stage.reached(STOPPED);
    stage.end(member, Death::Killed);
    if away {
        stage.machine(member)?.other_history();
        stage.reached("it comes back under another history");
    } else {
        stage.reached("it is back at once");
    }
    stage.start(&[member]).await;
    stage.recovering(member).await?;
    stage.active(&[member]).await?;
    stage.reached(RECOVERED);
    stage.acknowledged(5).await
}

/// A write or a sync of a member's disk never returns. The node stops on its own within the limit,
/// another member leads before that, and the process restarts on a disk that works again.
async fn never_returns(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let others = stage.others(&[leader]);
    let leads = stage.seed.is_multiple_of(2);
    let member = if leads { leader } else { others.first().copied().ok_or("a follower")? };
    let file = if stage.seed.is_multiple_of(3) { FileKind::Data } else { FileKind::Journal };
    let spared = stage.rng.random_range(0..6);
    let machine = stage.machine(member)?;
    let (life, errors) = (machine.life(), machine.disk.errors());
    machine.disk.arrange(Failing::Hang, Some(file), spared);
    stage.until("an operation that hangs", || machine.disk.errors() > errors).await?;
    machine.io_failed();
    stage.reached(if leads { "a leader's disk" } else { "a follower's disk" });
    if leads {
        stage.until("another leader", || stage.leads(&others).is_some()).await?;
        stage.reached_if(!machine.stopped(life), "another leads");
    }
    stage.until("a node that stops", || machine.stopped(life)).await?;
    stage.reached(STOPPED);
    stage.end(member, Death::Killed);
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    stage.reached(RECOVERED);
    stage.acknowledged(5).await
}

/// A process is killed amid writes and starts again under the same kernel, and a sync of its open
/// fails: what the process before it had acknowledged may be gone, and nothing of the open remains to
/// tell.
async fn fails_during_an_open(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let follower = stage.others(&[leader]).first().copied().ok_or("a follower")?;
    let member = if stage.seed.is_multiple_of(2) { leader } else { follower };
    let file = if stage.seed.is_multiple_of(3) { FileKind::Data } else { FileKind::Journal };
    stage.acknowledged(5).await?;
    let count = stage.rng.random_range(1..8);
    stage.disk(member, Moment::WriteTo(FileKind::Journal), count).await?;
    stage.kill(member);
    let machine = stage.machine(member)?;
    let counted = machine.counted().ok_or("an entry that it counted as stored")?;
    let (errors, before) = (machine.disk.errors(), machine.disk.stats().damage.dropped);
    machine.io_failed();
    machine.disk.arrange(Failing::Sync, Some(file), 0);
    stage.start(&[member]).await;
    let fails = || machine.disk.errors() > errors && machine.condition() == Condition::Down;
    stage.until("an open that fails", fails).await?;
    stage.reached("the open fails");
    stage.reached_if(machine.disk.stats().damage.dropped > before, UNSYNCED_LOST);
    check_next_start(&stage.cluster, machine, counted).await;
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    stage.reached(RECOVERED);
    stage.acknowledged(5).await
}
