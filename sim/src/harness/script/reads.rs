//! Reads at a leader that does not know yet that it leads no more.
//!
//! A leader is stopped with rounds of its read barrier half done: some followers have said that they follow, and what they say
//! lies unread. Meanwhile they elect another, which acknowledges writes. Readers that came only then wait at the old one too. As
//! it goes on, it finds all of it at once, in any order. Answers that were given before a reader came must not
//! serve it: the history shows whether they did.

use super::stage::{Played, Stage};
use super::{Scenario, three};
use crate::harness::plan::Plan;
use crate::history::GROUP_KEYS;
use crate::workload::Recorder;
use cairn_client::Options;
use madsim::runtime::Handle;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "reads-at-a-leader-that-was-stopped",
    parts: &["a leader stopped amid reads", "another acknowledges", "it reads again"],
    seeds: 12,
    may_stop: false,
    // Messages take a while, so that a round does too.
    plan: |seed| Plan { latency: Duration::from_millis(1)..Duration::from_millis(20), ..three(seed) },
    script: |stage| Box::pin(stopped(stage)),
}];

/// Readers at the old leader, and the pause between two reads of each.
const READERS: u32 = 12;
const PAUSE: Duration = Duration::from_millis(3);
/// Longer than the leader is stopped.
const DEADLINE: Duration = Duration::from_secs(20);
/// No other client has these numbers.
const FIRST_READER: u32 = 300;
const ROUNDS: u32 = 4;

async fn stopped(mut stage: Stage) -> Played {
    stage.acknowledged(10).await?;
    for round in 0..ROUNDS {
        let leader = stage.leader().await?;
        let (term, others) = (stage.term(leader), stage.others(&[leader]));
        let stop = Arc::new(AtomicBool::new(false));
        read_at(&stage, leader, round, &stop)?;
        stage.pass(100, 400).await;
        stage.pause(&[leader]);
        stage.reached("a leader stopped amid reads");
        stage.leader_among(&others, term).await?;
        stage.acknowledged(8).await?;
        stage.reached("another acknowledges");
        stage.pass(0, 300).await;
        stage.resume(&[leader]);
        stage.pass(300, 900).await;
        stop.store(true, Ordering::Relaxed);
        stage.active(&stage.all()).await?;
        stage.reached("it reads again");
        stage.acknowledged(5).await?;
    }
    Ok(())
}

/// Lets readers that know one member only ask it all the time.
fn read_at(stage: &Stage, member: usize, round: u32, stop: &Arc<AtomicBool>) -> Played {
    let endpoint = stage.cluster.endpoint(stage.machine(member)?.slot).ok_or("an address")?;
    let address = Ipv4Addr::new(10, 0, 3, u8::try_from(round + 1).unwrap_or(u8::MAX));
    let host = Handle::current().create_node().name(format!("readers-{round}")).ip(address.into()).build();
    for reader in 0..READERS {
        let client = Options::new(vec![endpoint.clone()])
            .deadline(DEADLINE)
            .attempt_timeout(DEADLINE)
            .seed(stage.cluster.plan.seed.wrapping_mul(97).wrapping_add(u64::from(reader)))
            .build()
            .map_err(|error| error.to_string())?;
        let (recorder, stop): (Recorder, _) = (stage.recorder().clone(), stop.clone());
        let (groups, number) = (stage.cluster.plan.profile.groups, FIRST_READER + round * READERS + reader);
        drop(host.spawn(async move {
            let mut next = reader as usize;
            while !stop.load(Ordering::Relaxed) {
                next += 1;
                let group = u32::try_from(next / GROUP_KEYS).unwrap_or_default() % groups;
                recorder.read(number, &client, group, next % GROUP_KEYS).await;
                tokio::time::sleep(PAUSE).await;
            }
        }));
    }
    Ok(())
}
