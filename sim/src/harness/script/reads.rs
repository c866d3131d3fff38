//! Reads at a leader that does not know yet that it was deposed.
//!
//! A leader's followers have answered its appends, but the answers travel for long. Meanwhile the
//! followers elect another leader, which acknowledges writes. Only then readers come to the old
//! leader and wait there. At last the answers arrive. The followers sent them before those readers
//! came, so they must not serve the readers. The history shows whether they did.
//!
//! ```text
//!   followers    answers given ──────── another leads ── writes acknowledged ─────────────
//!                     └──────────────────────────────────────────────────────┐
//!   old leader        an append ────────────────────────────── readers come ─┴─ answered?
//! ```

use super::stage::{Played, Stage};
use super::{Scenario, three};
use crate::harness::plan::Plan;
use cairn_client::{Client, Options};
use cairn_clients::history::{GROUP_KEYS, Key};
use cairn_clients::workload::{Profile, Recorder};
use futures::future::join_all;
use madsim::runtime::{Handle, NodeHandle};
use std::net::Ipv4Addr;
use std::ops::Range;
use std::time::Duration;

const HELD_BACK: &str = "answers held back";
const RIVAL_WROTE: &str = "another leader has acknowledged";
const ARRIVED: &str = "they arrive while readers wait";

pub(super) const SCENARIOS: &[Scenario] = &[scenario!(
    "answers-held-back-until-a-rival-has-written",
    |seed| {
        let plan = three(seed);
        let millis = Duration::from_millis;
        Plan {
            // A message takes a while, so that there is always one in flight.
            latency: LATENCY,
            // Another member leads before the old leader stops waiting for answers.
            election: Some((millis(200), millis(300))),
            profile: Profile {
                // An append is in flight at any moment.
                clients: 4,
                tasks_per_client: 2,
                // No other client reads: a round that gets no answer would keep later readers
                // waiting.
                write_percent: 100,
                ..plan.profile.clone()
            },
            ..plan
        }
    },
    held_back
)
.seeds(12)
.reaches(&[HELD_BACK, RIVAL_WROTE, ARRIVED])];

const LATENCY: Range<Duration> = Duration::from_millis(5)..Duration::from_millis(10);
/// How long the answers travel: less than a leader waits for one.
const ON_THE_WAY: Duration = Duration::from_millis(900);
/// For how long messages are slow: until the answers to an append are sent, but no further append
/// is.
const SLOW: Duration = Duration::from_millis(15);
/// The rate of the old leader's clock meanwhile, in millionths, and the true one.
const SLOW_CLOCK: u32 = 500_000;
const TRUE_CLOCK: u32 = 1_000_000;
const ROUNDS: u8 = 3;
/// The first number of these clients; no other client has their numbers.
const FIRST_CLIENT: u32 = 300;
/// Numbers in a round, for those that read and those that write.
const CLIENTS: u32 = 40;
/// Longer than a round may take.
const DEADLINE: Duration = Duration::from_secs(3);

async fn held_back(mut stage: Stage) -> Played {
    stage.acknowledged(10).await?;
    for round in 0..ROUNDS {
        // A member that syncs first answers too late.
        stage.ahead(&stage.all()).await?;
        let leader = stage.leader().await?;
        let (term, others) = (stage.term(leader), stage.others(&[leader]));
        let first = FIRST_CLIENT + u32::from(round) * CLIENTS;
        let host = Handle::current()
            .create_node()
            .name(format!("readers-{round}"))
            .ip(Ipv4Addr::new(10, 0, 3, round + 1).into())
            .build();
        let readers = Clients::new(&stage, &host, leader, first)?;
        // They are connected before messages are slow.
        readers.read().await?;
        stage.pass(150, 400).await;
        // The last append ends at the same index as the next one, which has no entry.
        stage.drop_requests_of_clients(leader);
        tokio::time::sleep(LATENCY.end).await;
        // Else it would stop leading before the answers arrive, and readers would not wait.
        let old = stage.machine(leader)?.host;
        cairn_raft::set_clock_rate(old, SLOW_CLOCK);
        let begun = tokio::time::Instant::now();
        stage.slow(ON_THE_WAY);
        tokio::time::sleep(SLOW).await;
        stage.isolate(&[leader]);
        stage.usual_speed();
        stage.reached(HELD_BACK);
        let rival = stage.leader_among(&others, term).await?;
        Clients::new(&stage, &host, rival, first + CLIENTS / 2)?.write().await?;
        let arrive = begun + ON_THE_WAY;
        if tokio::time::Instant::now() < arrive {
            stage.reached(RIVAL_WROTE);
            readers.read().await?;
            stage.reached(ARRIVED);
        }
        cairn_raft::set_clock_rate(old, TRUE_CLOCK);
        stage.heal();
        stage.active(&stage.all()).await?;
        stage.acknowledged(5).await?;
    }
    Ok(())
}

/// Clients that each know only one member and use only one key.
struct Clients<'a> {
    host: &'a NodeHandle,
    recorder: Recorder,
    /// Their numbers, and their keys with the group of each.
    clients: Vec<(u32, Client, (u32, Key))>,
}

impl<'a> Clients<'a> {
    fn new(stage: &Stage, host: &'a NodeHandle, member: usize, first: u32) -> Result<Self, String> {
        let endpoint = stage.cluster.endpoint(stage.machine(member)?.slot).ok_or("an address")?;
        let groups = stage.cluster.plan.profile.groups;
        let keys = (0..groups).flat_map(|group| (0..GROUP_KEYS).map(move |key| (group, key)));
        let mut clients = Vec::new();
        for (number, key) in (first..).zip(keys) {
            let client = Options::new(vec![endpoint.clone()])
                .deadline(DEADLINE)
                .attempt_timeout(DEADLINE)
                .seed(stage.cluster.plan.seed.wrapping_mul(97).wrapping_add(u64::from(number)))
                .build()
                .map_err(|error| error.to_string())?;
            clients.push((number, client, key));
        }
        Ok(Self { host, recorder: stage.recorder().clone(), clients })
    }

    /// Each key is written once.
    async fn write(&self) -> Played {
        self.each(|recorder, number, client, (group, key)| {
            Box::pin(async move { recorder.put(number, &client, group, key).await })
        })
        .await
    }

    /// Each key is read once.
    async fn read(&self) -> Played {
        self.each(|recorder, number, client, (group, key)| {
            Box::pin(async move { recorder.read(number, &client, group, key).await })
        })
        .await
    }

    async fn each(
        &self,
        request: fn(Recorder, u32, Client, (u32, Key)) -> futures::future::BoxFuture<'static, ()>,
    ) -> Played {
        let requests = self.clients.iter().cloned().map(|(number, client, key)| {
            self.host.spawn(request(self.recorder.clone(), number, client, key))
        });
        let ended = join_all(requests).await;
        ended
            .into_iter()
            .all(|one| one.is_ok())
            .then_some(())
            .ok_or_else(|| "clients that end".into())
    }
}
