//! Reads at a leader that does not know yet that it leads no more.
//!
//! A leader has asked its followers something, and their answers take long on the way. Meanwhile they elect another, which
//! acknowledges writes. Readers that come only then wait at the old one. The answers arrive at last: they were given before
//! those readers came, and must not serve them. The history shows whether they did.
//!
//! ```text
//!   followers    answers given ──────── another leads ── writes acknowledged ─────────────
//!                     └──────────────────────────────────────────────────────┐
//!   old leader   a round, or an append ─────────────────────── readers come ─┴─ answered?
//! ```
//!
//! In one half of the seeds the answers are of a round of the read barrier that is under way, in the other of appends.

use super::stage::{Played, Stage};
use super::{Scenario, three};
use crate::harness::plan::Plan;
use crate::history::{GROUP_KEYS, Key};
use crate::workload::{Profile, Recorder};
use cairn_client::{Client, Options};
use futures::future::join_all;
use madsim::runtime::{Handle, NodeHandle};
use madsim::task::JoinHandle;
use std::net::Ipv4Addr;
use std::time::Duration;

const HELD_BACK: &str = "answers held back";
const RIVAL_WROTE: &str = "another leader has acknowledged";
const ARRIVED: &str = "they arrive while readers wait";

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "answers-held-back-until-a-rival-has-written",
    parts: &[HELD_BACK, RIVAL_WROTE, ARRIVED],
    seeds: 20,
    may_stop: false,
    plan: |seed| {
        let plan = three(seed);
        let millis = Duration::from_millis;
        let load = match amid_a_round(seed) {
            // What confirms a round late is an append that was sent after it began: a heartbeat is not waited for so long.
            true => Profile { tasks_per_client: 4, think_max: millis(20), ..plan.profile.clone() },
            // The last append ends where the next one, without an entry, does.
            false => Profile { clients: 2, tasks_per_client: 1, ..plan.profile.clone() },
        };
        Plan {
            // A message takes a while, so that something is always on its way.
            latency: millis(5)..millis(10),
            // Another leads before the old leader gives up waiting for answers.
            election: Some((millis(200), millis(300))),
            // Nobody else reads: a round that finds nobody would keep later readers waiting.
            profile: Profile { write_percent: 100, ..load },
            ..plan
        }
    },
    script: |stage| Box::pin(held_back(stage)),
}];

/// Whether the answers are of a round under way.
fn amid_a_round(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// How long the answers are on their way: less than a leader waits for one.
const ON_THE_WAY: Duration = Duration::from_millis(900);
/// For so long what is sent takes so long: until the answers to an append are, and in the one half no other append is.
const SLOW_FOR_A_ROUND: Duration = Duration::from_millis(30);
const SLOW_FOR_AN_APPEND: Duration = Duration::from_millis(15);
const ROUNDS: u8 = 3;
/// No other client has these numbers.
const FIRST_CLIENT: u32 = 300;
const CLIENTS: u32 = 40;
const EARLY: u32 = 6;
/// Longer than a round may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// Readers of the round under way come so often.
const PAUSE: Duration = Duration::from_millis(2);

async fn held_back(mut stage: Stage) -> Played {
    stage.acknowledged(10).await?;
    let amid_a_round = amid_a_round(stage.seed);
    for round in 0..ROUNDS {
        // Who syncs first answers too late.
        stage.ahead(&stage.all()).await?;
        let leader = stage.leader().await?;
        let (term, others) = (stage.term(leader), stage.others(&[leader]));
        let runtime = Handle::current();
        let host = runtime
            .create_node()
            .name(format!("readers-{round}"))
            .ip(Ipv4Addr::new(10, 0, 3, round + 1).into())
            .build();
        let asker = Asker {
            host,
            first: FIRST_CLIENT + u32::from(round) * CLIENTS,
            recorder: stage.recorder().clone(),
        };
        let early = if amid_a_round { asker.read_on(&stage, leader)? } else { Vec::new() };
        stage.pass(150, 400).await;
        let begun = tokio::time::Instant::now();
        stage.slow(ON_THE_WAY);
        tokio::time::sleep(if amid_a_round { SLOW_FOR_A_ROUND } else { SLOW_FOR_AN_APPEND }).await;
        stage.isolate(&[leader]);
        stage.deafen_to_clients(leader);
        stage.usual_speed();
        early.iter().for_each(JoinHandle::abort);
        stage.reached(HELD_BACK);
        let rival = stage.leader_among(&others, term).await?;
        asker.writes(&stage, rival).await?;
        let arrive = begun + ON_THE_WAY;
        if tokio::time::Instant::now() < arrive {
            stage.reached(RIVAL_WROTE);
            asker.reads(&stage, leader).await?;
            stage.reached(ARRIVED);
        }
        stage.heal();
        stage.active(&stage.all()).await?;
        stage.acknowledged(5).await?;
    }
    Ok(())
}

/// Clients that each know one member only, and keep to one key.
struct Asker {
    host: NodeHandle,
    first: u32,
    recorder: Recorder,
}

impl Asker {
    fn client(&self, stage: &Stage, member: usize, number: u32) -> Result<Client, String> {
        Options::new(vec![stage.cluster.endpoint(stage.machine(member)?.slot).ok_or("an address")?])
            .deadline(DEADLINE)
            .attempt_timeout(DEADLINE)
            .seed(stage.cluster.plan.seed.wrapping_mul(97).wrapping_add(u64::from(number)))
            .build()
            .map_err(|error| error.to_string())
    }

    /// Readers that come again at once, so that a round is under way nearly always.
    fn read_on(&self, stage: &Stage, member: usize) -> Result<Vec<JoinHandle<()>>, String> {
        let numbers = self.first..self.first + EARLY;
        let readers = numbers.map(|number| {
            let (client, recorder) = (self.client(stage, member, number)?, self.recorder.clone());
            Ok(self.host.spawn(async move {
                loop {
                    recorder.read(number, &client, 0, 0).await;
                    tokio::time::sleep(PAUSE).await;
                }
            }))
        });
        readers.collect()
    }

    /// Each key is written once.
    async fn writes(&self, stage: &Stage, member: usize) -> Played {
        self.each(stage, member, EARLY, |recorder, number, client, (group, key)| {
            Box::pin(async move { recorder.put(number, &client, group, key).await })
        })
        .await
    }

    /// Each key is read once.
    async fn reads(&self, stage: &Stage, member: usize) -> Played {
        self.each(stage, member, EARLY + (CLIENTS - EARLY) / 2, |recorder, number, client, (group, key)| {
            Box::pin(async move { recorder.read(number, &client, group, key).await })
        })
        .await
    }

    async fn each(
        &self,
        stage: &Stage,
        member: usize,
        from: u32,
        ask: fn(Recorder, u32, Client, (u32, Key)) -> futures::future::BoxFuture<'static, ()>,
    ) -> Played {
        let groups = stage.cluster.plan.profile.groups;
        let keys = (0..groups).flat_map(|group| (0..GROUP_KEYS).map(move |key| (group, key)));
        let mut asked = Vec::new();
        for (number, key) in (self.first + from..).zip(keys) {
            let client = self.client(stage, member, number)?;
            asked.push(self.host.spawn(ask(self.recorder.clone(), number, client, key)));
        }
        let ended = join_all(asked).await;
        ended.into_iter().all(|one| one.is_ok()).then_some(()).ok_or_else(|| "clients that end".into())
    }
}
