//! Leaders that an operator asks to go, that nobody takes entries of, and members that may not lead.

use super::stage::{Played, Stage};
use super::{Scenario, in_mode, three, three_or_five};
use crate::harness::machine::Machine;
use crate::harness::operator::NotDone;
use crate::harness::plan::Plan;
use cairn_clients::workload::Profile;
use cairn_engine::Mode;
use cairn_node::Node;
use rand::RngExt;
use std::time::Duration;

const GOES_ON: &str = "the leader goes on";
const SAYS_SO: &str = "the leader says that nothing is committed";
const LEAVES: &str = "the others elect a leader";
const WITHOUT_ENTRY: &str = "a leader that never committed an entry leaves";
/// For how long a disk stalls: as long as any does in the simulation. After half of that it counts as stalled.
const STALLS: Duration = Duration::from_secs(8);

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("leadership-moves-and-stays-away", three_or_five, leadership_moves).seeds(6).reaches(
        &["it moves to the named member", "a drained leader gives it away", "it stays away"],
    ),
    scenario!("slow-member-is-not-named", patient, slow_member_named)
        .reaches(&["it is refused", GOES_ON]),
    scenario!("stalled-member-is-not-named", three, stalled_member_named)
        .reaches(&["it is refused while its disk stalls", GOES_ON]),
    scenario!("entries-do-not-pass", three_or_five, entries_do_not_pass).seeds(6).reaches(&[
        SAYS_SO,
        LEAVES,
        WITHOUT_ENTRY,
    ]),
    scenario!("drained-with-the-newest-entries", three, drained_with_the_newest_entries).reaches(
        &[
            "nobody leads at first",
            "it leads, since nobody else is elected",
            "it gives leadership away",
        ],
    ),
];

/// An operator lets a named member lead, and asks the leader to stay away.
async fn leadership_moves(mut stage: Stage) -> Played {
    stage.active(&stage.all()).await?;
    stage.acknowledged(10).await?;
    let (_, named, _) = stage.cast().await?;
    let slot = stage.machine(named)?.slot;
    stage
        .done("a leader that was named", || async {
            stage.cluster.move_leader(Some(slot)).await.map(drop)
        })
        .await?;
    stage.until("the leader that was named", || stage.leads(&[named]).is_some()).await?;
    stage.reached("it moves to the named member");
    stage.still_serves("when leadership moved").await?;
    let leader = stage.leader().await?;
    let away = Duration::from_secs(20);
    let machine = stage.machine(leader)?;
    stage.done("a drained member", || stage.cluster.drain(machine, away)).await?;
    let others = stage.others(&[leader]);
    stage.leader_among(&others, 0).await?;
    stage.reached("a drained leader gives it away");
    // Each of the others ends once, and comes back when another one leads.
    for _ in 0..3 {
        let now = stage.leader_among(&others, 0).await?;
        stage.kill(now);
        stage.pass(0, 3_000).await;
        stage.start(&[now]).await;
        stage.leader_among(&others, 0).await?;
    }
    stage.reached_if(stage.leads(&[leader]).is_none(), "it stays away");
    stage.active(&stage.all()).await?;
    stage.still_serves("while one is drained").await?;
    stage.end_drain(leader).await
}

/// An answer of a member may take as long as a few operations of a slow disk, and none waits for a sync.
fn patient(seed: u64) -> Plan {
    let plan = in_mode(three(seed), Mode::Device);
    let election = Some((Duration::from_millis(1_900), Duration::from_millis(2_400)));
    let profile = Profile { synced_one_in: u32::MAX, ..plan.profile };
    Plan { election, profile, ..plan }
}

/// An operator names a member whose disk is so slow that no writes would be taken for as long as it
/// lacks entries. When its disk is as fast as the others, it leads.
///
/// A successor has all that its leader had 200 ms before. Here each entry is stored more than twice as late,
/// and clients never pause for as long as that. So the member lacks some at every moment, and is
/// refused for nothing else: its answers wait for two operations at most, less than the shortest election timeout.
async fn slow_member_named(mut stage: Stage) -> Played {
    stage.active(&stage.all()).await?;
    stage.acknowledged(10).await?;
    let (leader, named, _) = stage.cast().await?;
    let slower = Duration::from_millis(stage.rng.random_range(550..600));
    let (machine, term) = (stage.machine(named)?, stage.term(leader));
    let end = || stage.status(leader).and_then(|status| status.last_log).map(|id| id.index);
    let before = end();
    machine.disk.slow_down(slower);
    stage.until("an entry for the slow disk", || end() > before).await?;
    stage.acknowledged(20).await?;
    named_in_vain(&stage, machine, "stores entries more than", "it is refused").await;
    stage.still_serves("when the slow one was named").await?;
    stage.reached_if(stage.leads(&stage.all()) == Some((term, leader)), GOES_ON);
    machine.disk.slow_down(Duration::ZERO);
    leads_when_named(&stage, named).await
}

/// The same with a member whose disk has completed nothing for so long that it counts as stalled: it may never do so
/// again. When it does, the member leads.
async fn stalled_member_named(mut stage: Stage) -> Played {
    stage.active(&stage.all()).await?;
    stage.acknowledged(10).await?;
    let (leader, named, _) = stage.cast().await?;
    let (machine, term) = (stage.machine(named)?, stage.term(leader));
    machine.disk.stall(STALLS, None);
    let stalls = || stage.node(named).is_some_and(|node| node.engine().status().stalled);
    stage.until("a disk that counts as stalled", stalls).await?;
    let part = "it is refused while its disk stalls";
    named_in_vain(&stage, machine, "its disk stalls", part).await;
    stage.still_serves("while the disk of the named one stalls").await?;
    stage.reached_if(stage.leads(&stage.all()) == Some((term, leader)), GOES_ON);
    leads_when_named(&stage, named).await
}

/// The leader refuses to let this member lead, and says why.
async fn named_in_vain(stage: &Stage, machine: &Machine, why: &str, part: &'static str) {
    match stage.cluster.move_leader(Some(machine.slot)).await {
        Err(NotDone::Refused(reason))
            if reason.contains("may not lead") && reason.contains(why) =>
        {
            stage.reached(part);
        }
        other => stage.fails("a slow member is not named to lead", format!("{other:?}")),
    }
}

/// A member that may lead by now leads when it is named.
async fn leads_when_named(stage: &Stage, named: usize) -> Played {
    let slot = stage.machine(named)?.slot;
    let moved = || async { stage.cluster.move_leader(Some(slot)).await.map(drop) };
    stage.done("a leader that was named", moved).await?;
    stage.until("the leader that was named", || stage.leads(&[named]).is_some()).await?;
    stage.acknowledged(5).await
}

/// What a member sends on append streams is lost, as where large packets are; its heartbeats pass. It leads, or in
/// half of the seeds begins to lead then. It says that nothing is committed, and others lead, while its entries
/// still do not pass.
async fn entries_do_not_pass(mut stage: Stage) -> Played {
    stage.active(&stage.all()).await?;
    stage.acknowledged(10).await?;
    let (leader, follower, _) = stage.cast().await?;
    let is_elected = stage.seed.is_multiple_of(2);
    let mute = if is_elected { follower } else { leader };
    let slot = stage.machine(mute)?.slot;
    cairn_raft::lose_appends(slot, true);
    if is_elected {
        let moved = || async { stage.cluster.move_leader(Some(slot)).await.map(drop) };
        stage.done("a leader that was named", moved).await?;
    }
    stage.until("the leader that is mute", || stage.leads(&[mute]).is_some()).await?;
    let (term, before) = (stage.term(mute), stage.status(mute).and_then(|status| status.committed));
    let says = |node: &Node| {
        node.replica().leader_contact().is_err_and(|why| why.contains("nothing is committed"))
    };
    stage
        .until("a leader that says so", || stage.node(mute).is_some_and(|node| says(&node)))
        .await?;
    stage.reached(SAYS_SO);
    let others = stage.others(&[mute]);
    stage.leader_among(&others, term).await?;
    stage.reached(LEAVES);
    let committed = before.is_some_and(|id| id.term == term);
    stage.reached_if(is_elected && !committed, WITHOUT_ENTRY);
    stage.still_serves("while entries of one member do not pass").await?;
    cairn_raft::lose_appends(slot, false);
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// The only member with the newest entries is drained, and the two others vote for nobody else. It
/// leads when nobody else is elected, and gives leadership away when another one has caught up.
async fn drained_with_the_newest_entries(mut stage: Stage) -> Played {
    stage.acknowledged(5).await?;
    let (leader, drained, behind) = stage.cast().await?;
    stage.kill(behind);
    stage.acknowledged(20).await?;
    let machine = stage.machine(drained)?;
    let time = Duration::from_secs(600);
    stage.done("a drained member", || stage.cluster.drain(machine, time)).await?;
    stage.kill(leader);
    stage.start(&[behind]).await;
    stage.pass(1_000, 2_000).await;
    stage.reached_if(stage.leads(&[drained, behind]).is_none(), "nobody leads at first");
    if stage.until("the drained one leads", || stage.leads(&[drained]).is_some()).await.is_err() {
        let detail = format!("member {drained} alone has the newest entries, and is drained");
        stage.fails("a drained member leads when nobody else is elected", detail);
    }
    stage.reached("it leads, since nobody else is elected");
    if stage.until("another leader", || stage.leads(&[behind]).is_some()).await.is_err() {
        let detail = format!("member {behind} has caught up, and {drained} is drained");
        stage.fails("a drained member gives leadership away", detail);
    }
    stage.reached("it gives leadership away");
    stage.start(&[leader]).await;
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await?;
    stage.end_drain(drained).await
}
