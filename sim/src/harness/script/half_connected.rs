//! Networks that connect only some of the members, and a leader that no majority answers.

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, five, three_or_five};
use crate::harness::clock::virtual_time;
use crate::harness::half_connected::Shape;
use crate::harness::plan::Plan;
use cairn_clients::workload::Profile;
use rand::RngExt;
use std::time::Duration;

/// Within this time a half-connected cluster serves, if it can: check-quorum takes two election
/// timeouts, the lease one, and three elections one each; and clients find the leader.
const OUTAGE_MAX: Duration = Duration::from_secs(8);
/// For how long the network then stays so, and nothing may change.
const STEADY: Duration = Duration::from_secs(6);
/// More writes than are in flight at the same time.
const WRITES: usize = 30;

const SERVES: &str = "writes go on";
const DEPOSED: &str = "the leader without a majority does not lead";
const KEPT: &str = "the leader stays";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("leader-keeps-one-neighbour", five, |stage| serves(stage, Shape::OneNeighbour))
        .seeds(2)
        .reaches(&[SERVES, DEPOSED]),
    scenario!("leader-keeps-the-neighbour-of-all", five, |stage| serves(stage, Shape::Hub))
        .reaches(&[SERVES, DEPOSED]),
    scenario!("two-halves-and-a-bridge", five, |stage| serves(stage, Shape::Bridge))
        .seeds(2)
        .reaches(&[SERVES, KEPT]),
    scenario!("leader-at-the-end-of-a-chain", three_or_five, |stage| serves(stage, Shape::Chain))
        .reaches(&[SERVES, DEPOSED, KEPT]),
    scenario!("members-in-a-ring", five, |stage| serves(stage, Shape::Ring))
        .seeds(2)
        .reaches(&[SERVES, KEPT]),
    scenario!("leader-hears-nobody", three_or_five, |stage| serves(
        stage,
        Shape::LeaderHearsNobody
    ))
    .reaches(&[SERVES, DEPOSED]),
    scenario!("nobody-hears-the-leader", three_or_five, |stage| serves(
        stage,
        Shape::NobodyHearsLeader
    ))
    .seeds(2)
    .reaches(&[SERVES, DEPOSED]),
    scenario!("majority-cut-and-away-for-long", three_or_five, heals_the_others).reaches(&[
        UNSYNCED_LOST,
        "a suspended leader",
        "it leads on",
        "all active again",
    ]),
    scenario!("majority-on-slow-disks", patient, slow_majority).reaches(&[SERVES, KEPT]),
];

/// How much longer an operation of a slow disk takes: less than the shortest election timeout.
const SLOWER_MS: std::ops::Range<u64> = 100..500;

/// Three or five members, and clients that wait longer than the slowest write takes.
fn patient(seed: u64) -> Plan {
    let plan = three_or_five(seed);
    Plan { profile: Profile { deadline: Duration::from_secs(10), ..plan.profile }, ..plan }
}

/// The network takes a shape in which some member reaches a majority, which reaches it, and stays
/// so. Writes go on soon, under one leader that nobody disturbs. A leader that lost its majority does
/// not say that it leads.
async fn serves(mut stage: Stage, shape: Shape) -> Played {
    stage.acknowledged(20).await?;
    let leader = stage.leader().await?;
    let (term, rest) = (stage.term(leader), stage.others(&[leader]));
    let order: Vec<usize> = [leader].into_iter().chain(rest.iter().copied()).collect();
    stage.shape(shape, &order);
    let loses = shape.leaves_the_leader_a_minority(order.len());
    let begun = virtual_time();
    if loses && stage.leader_among(&rest, term).await.is_err() {
        stage.fails(
            "a half-connected cluster serves",
            format!("no leader but member {leader}: {shape:?}"),
        );
    }
    let served = stage.acknowledged(WRITES).await;
    let outage = virtual_time() - begun;
    if served.is_err() || outage > OUTAGE_MAX {
        let detail = format!("{WRITES} writes took {outage:?}: {shape:?} {order:?}");
        stage.fails("a half-connected cluster serves", detail);
    }
    stage.cluster.trace.event(format!("served after {outage:?}"));
    stage.reached(SERVES);
    let leads = stage.leads(&order);
    if loses && stage.leads(&[leader]).is_some_and(|(led, _)| led == term) {
        stage.fails("a leader without a majority does not lead", format!("member {leader}"));
    }
    stage.reached_if(loses, DEPOSED);
    tokio::time::sleep(STEADY).await;
    if stage.leads(&order) != leads {
        let detail = format!("{leads:?} led, and then {:?}: {shape:?}", stage.leads(&order));
        stage.fails("half-connected members disturb nobody", detail);
    }
    stage.reached_if(leads == Some((term, leader)), KEPT);
    stage.acknowledged(5).await?;
    stage.heal();
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// All members but the leader lose power at once, and are away for so long that the leader stops
/// leading. They may have lost what they acknowledged, so they elect nobody: only that leader can
/// heal them. It leads on when they are back, and no operator is needed.
async fn heals_the_others(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    stage.acknowledged(5).await?;
    let leader = stage.leader().await?;
    let (term, others) = (stage.term(leader), stage.others(&[leader]));
    let lost_acks: u64 = others.iter().map(|other| stage.cut(*other)).sum();
    stage.reached_if(lost_acks > 0, UNSYNCED_LOST);
    stage.until("a suspended leader", || stage.leads(&[leader]).is_none()).await?;
    stage.reached("a suspended leader");
    stage.pass(0, 6_000).await;
    stage.start(&others).await;
    stage.until("a leader that leads on", || stage.leads(&[leader]).is_some()).await?;
    stage.reached_if(stage.term(leader) == term, "it leads on");
    stage.active(&stage.all()).await?;
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// The disks of all members but the leader are slow, and so are the answers to what the leader
/// appends. Slow is not gone: the leader stays, and writes go on.
async fn slow_majority(mut stage: Stage) -> Played {
    stage.acknowledged(20).await?;
    let leader = stage.leader().await?;
    let (term, others) = (stage.term(leader), stage.others(&[leader]));
    let slower = Duration::from_millis(stage.rng.random_range(SLOWER_MS));
    let disks = || others.iter().filter_map(|other| stage.cluster.machines.get(*other));
    disks().for_each(|machine| machine.disk.slow_down(slower));
    let begun = virtual_time();
    let unknown = || stage.recorder.records().iter().filter(|one| one.is_open()).count();
    let before = unknown();
    let served = stage.acknowledged(WRITES).await;
    if served.is_err() || unknown() > before {
        let detail = format!("{slower:?} slower, {} writes unknown", unknown() - before);
        stage.fails("a cluster with slow disks serves", detail);
    }
    stage.cluster.trace.event(format!("{WRITES} writes took {:?}", virtual_time() - begun));
    stage.reached(SERVES);
    tokio::time::sleep(STEADY).await;
    if stage.leads(&stage.all()) != Some((term, leader)) {
        let detail = format!("{slower:?} slower, and {:?} leads", stage.leads(&stage.all()));
        stage.fails("a slow majority deposes no leader", detail);
    }
    stage.reached(KEPT);
    disks().for_each(|machine| machine.disk.slow_down(Duration::ZERO));
    stage.acknowledged(5).await
}
