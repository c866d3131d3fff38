//! The members that form a cluster, the founders, have blank disks: beside members of the cluster that
//! they formed before, and alone.
//!
//! What holds here: no founder is asked whether it formed a cluster. A client that knows founders alone
//! must never be told that an acknowledged key is absent, no client gets a write acknowledged while a
//! majority is gone, and a founder's disk stays as blank as it was formatted.

use super::stage::{Played, Stage};
use super::{Scenario, five, three};
use crate::harness::clock::virtual_time;
use crate::harness::crash_image;
use crate::harness::faults::EXIT_GRACE;
use crate::harness::plan::Plan;
use bytes::Bytes;
use cairn_client::{Client, Options};
use cairn_disk::Files;
use cairn_engine::Engine;
use cairn_raft::GROUP;
use futures::future::{join, join_all};
use madsim::runtime::Handle;
use rand::RngExt;
use std::future::Future;
use std::time::Duration;

const LEADS: &str = "a grown member leads";
const LOOK: &str = "grown members look for a leader";
const START: &str = "grown members start while the founders listen";

const NO_SECOND: &str = "no second cluster is formed beside the first";
const ALONE_FORMS: &str = "blank founders form a cluster if there is no other";
const BACK: &str = "all founders have their disks again";

const ONE_HEARS: &str = "only the founder that would form it hears them";
const OTHERS_HEAR: &str = "only the other founders hear them";
/// Part of the reason for which a founder waits.
const OF_FORMED: &str = "of a formed cluster";
const NAMES_ONE: &str = "it waits, and names a member of the first cluster";

const ALL_NEW: &str = "all disks are new";
const ONE_NEW: &str = "only that of the founder that forms it is new";
const FORMED: &str = "the cluster is formed";

/// Keys that a client wrote before, and nobody deletes.
const KEYS: u8 = 2;
/// How long a client waits for an answer while nobody can serve it, and otherwise.
const NO_ANSWER: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(10);
/// Answers to writes that were acknowledged before the founders came back have arrived by then.
const ON_THE_WAY: Duration = Duration::from_millis(300);
/// How long clients ask the founders: several times as long as these listen.
const ASKED: Duration = Duration::from_secs(10);
/// The same beside a leader, from the loss on less than 5 s in all: then it adds nodes to its log that ask in
/// place of silent voters, and would keep one of them when the disks are back.
const ASKED_BESIDE_A_LEADER: Duration = Duration::from_millis(2_500);
const POLL: Duration = Duration::from_millis(100);
/// How long blank founders may take. They listen for 1.5 s, answer no second node of the slot that forms
/// the cluster for 5 s, and may need several elections.
const FORMS_WITHIN: Duration = Duration::from_secs(12);

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("founders-blank-beside-grown-members", three_and_two, beside_grown_members)
        .seeds(9)
        .reaches(&[LEADS, LOOK, START, ONE_HEARS, OTHERS_HEAR, NAMES_ONE, BACK]),
    scenario!("blank-founders-alone", three_at_once, alone).reaches(&[ALL_NEW, ONE_NEW, FORMED]),
];

/// What the members do that the founders' configuration lacks, when the founders come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grown {
    /// One of them leads.
    Leads,
    /// They follow a founder, which is gone.
    HaveNoLeader,
    /// They start after the founders, while these listen.
    StartLater,
}

impl Grown {
    fn of(seed: u64) -> Grown {
        match seed % 3 {
            0 => Grown::Leads,
            1 => Grown::HaveNoLeader,
            _ => Grown::StartLater,
        }
    }

    /// The part of the scenario, and how long clients ask.
    fn part(self) -> (&'static str, Duration) {
        match self {
            Grown::Leads => (LEADS, ASKED_BESIDE_A_LEADER),
            Grown::HaveNoLeader => (LOOK, ASKED),
            Grown::StartLater => (START, ASKED),
        }
    }
}

/// Three founders, and two nodes that are added later. Where these start after the founders, their election
/// timeouts are short: a restart on a slow disk and an election timeout fit into the time for which a founder
/// listens.
fn three_and_two(seed: u64) -> Plan {
    let short = (Duration::from_millis(200), Duration::from_millis(400));
    let election = (Grown::of(seed) == Grown::StartLater).then_some(short);
    Plan { joiners: 2, election, ..five(seed) }
}

/// Three members, and the script begins before they form a cluster.
fn three_at_once(seed: u64) -> Plan {
    Plan { forms_in_peace: false, ..three(seed) }
}

/// Three founders grow their cluster to five members, and lose their disks at once. All that their
/// configurations name is blank again when they come back, and two members hold everything. In some seeds
/// the network lets these reach the founder that would form a cluster, or the other two, but not all three.
async fn beside_grown_members(mut stage: Stage) -> Played {
    let (founders, grown): ([usize; 3], [usize; 2]) = ([0, 1, 2], [3, 4]);
    let [former, others @ ..] = founders;
    let does = Grown::of(stage.seed);
    for member in grown {
        stage.add(member).await?;
    }
    stage.active(&stage.all()).await?;
    write_keys(&stage, &grown).await?;
    stage.acknowledged(10).await?;
    let leads = if does == Grown::Leads { stage.others(&founders) } else { stage.others(&grown) };
    let_lead(&stage, *leads.first().ok_or("a member")?).await?;
    if does == Grown::StartLater {
        grown.into_iter().for_each(|member| stage.kill(member));
    }
    let lost = lose_disks(&mut stage, &founders).await?;
    match stage.seed / 3 % 3 {
        0 => {}
        1 => {
            stage.partition(&grown, &others);
            stage.reached(ONE_HEARS);
        }
        _ => {
            stage.partition(&grown, &[former]);
            stage.reached(OTHERS_HEAR);
        }
    }
    match does {
        Grown::Leads => stage.pass(0, 300).await,
        // Before, they wait for the leader that has just gone, and nobody hears of them.
        Grown::HaveNoLeader => stage.pass(5_000, 8_000).await,
        Grown::StartLater => {}
    }
    stage.start(&founders).await;
    if does == Grown::StartLater {
        stage.until("a founder that serves", || stage.node(former).is_some()).await?;
        stage.pass(0, 500).await;
        stage.start(&grown).await;
    }
    let (part, asked) = does.part();
    stage.reached(part);
    ask_founders(&stage, former, &founders, asked).await?;
    stage.until("members that still hold the keys", || hold_keys(&stage, &grown)).await?;
    look_at_disks(&stage, &founders).await?;
    stage.heal();
    for (member, files) in founders.into_iter().zip(lost) {
        drop(stage.exchange_disk(member, files).await?);
    }
    stage.start(&founders).await;
    stage.active(&stage.all()).await?;
    stage.still_serves("with the founders' disks again").await?;
    stage.until("all members hold the keys", || hold_keys(&stage, &stage.all())).await?;
    stage.reached(BACK);
    Ok(())
}

/// Three blank founders, and nobody else. Before they have formed a cluster all get new disks, or only the
/// one that forms it: to the others it is a second node of its slot. They form it soon.
async fn alone(mut stage: Stage) -> Played {
    let all = stage.all();
    stage.until("nodes that serve", || all.iter().all(|one| stage.node(*one).is_some())).await?;
    stage.pass(0, 500).await;
    let (new, part) = match stage.seed.is_multiple_of(2) {
        true => (all.clone(), ALL_NEW),
        false => (vec![0], ONE_NEW),
    };
    let has_log = |one: &usize| stage.status(*one).is_some_and(|status| status.last_log.is_some());
    if all.iter().any(has_log) {
        return Err("a cluster that is not formed yet".into());
    }
    drop(lose_disks(&mut stage, &new).await?);
    stage.start(&new).await;
    stage.reached(part);
    if !stage.within(FORMS_WITHIN, || stage.leads(&all).is_some()).await {
        let detail = format!("{part}, and nobody leads after {FORMS_WITHIN:?}");
        stage.fails(ALONE_FORMS, detail);
    }
    stage.leader().await?;
    stage.reached(FORMED);
    stage.active(&all).await?;
    stage.still_serves("when blank founders have formed a cluster").await
}

/// The member leads.
async fn let_lead(stage: &Stage, member: usize) -> Played {
    let slot = stage.machine(member)?.slot;
    let moved = || async {
        if stage.leads(&[member]).is_some() {
            return Ok(());
        }
        stage.cluster.move_leader(Some(slot)).await.map(drop)
    };
    stage.done("a leader that was named", moved).await?;
    stage.until("the leader that was named", || stage.leads(&[member]).is_some()).await
}

/// The disks of these members are lost at once. Their machines get empty ones under new identities, and stay
/// down. Returns the lost disks, on which nothing is missing: only the processes end.
async fn lose_disks(stage: &mut Stage, members: &[usize]) -> Result<Vec<Files>, String> {
    let mut lost = Vec::new();
    for member in members {
        stage.kill(*member);
        let machine = stage.machine(*member)?;
        machine.lose();
        machine.open(true);
        lost.push(machine.disk.take_out());
        stage.cluster.trace.event(format!("disk {} is lost", machine.slot));
    }
    tokio::time::sleep(EXIT_GRACE).await;
    for member in members {
        let incarnation = stage.rng.random_range(1..1_u64 << 48);
        let machine = stage.machine(*member)?;
        let formatted = stage.cluster.format(machine, incarnation).await;
        formatted.map_err(|error| error.to_string())?;
        machine.open(false);
    }
    Ok(lost)
}

/// A client writes the keys, and has them acknowledged. Returns when these members hold them, too.
async fn write_keys(stage: &Stage, members: &[usize]) -> Played {
    let client = client_of(stage.cluster.endpoints(), ANSWER)?;
    let writing = async move {
        for key in keys() {
            let put = client.put(key, Bytes::from_static(b"1")).await;
            put.map_err(|error| error.to_string())?;
        }
        Ok::<(), String>(())
    };
    as_client(stage, writing).await??;
    stage.until("members that hold the keys", || hold_keys(stage, members)).await
}

/// Whether these members run, and have all keys.
fn hold_keys(stage: &Stage, members: &[usize]) -> bool {
    let holds = |member: &usize| {
        let node = stage.node(*member);
        node.is_some_and(|node| keys().all(|key| node.engine().lookup(GROUP, &key).is_some()))
    };
    members.iter().all(holds)
}

/// Clients ask the founders again and again for so long, while members of the first cluster hold every key.
/// What they are told is judged, and whether somebody acknowledges a write. What a founder says of itself is
/// not.
async fn ask_founders(stage: &Stage, former: usize, founders: &[usize], asked: Duration) -> Played {
    tokio::time::sleep(ON_THE_WAY).await;
    let acknowledged = stage.recorder().acknowledged();
    let machines = founders.iter().filter_map(|member| stage.machine(*member).ok());
    let endpoints: Vec<String> = machines.map(|machine| machine.address().client).collect();
    let (until, mut named) = (virtual_time() + asked, false);
    while virtual_time() < until {
        let client = client_of(endpoints.clone(), NO_ANSWER)?;
        if let Some(absent) = as_client(stage, absent_key(client, endpoints.clone())).await? {
            stage.fails(NO_SECOND, absent);
            break;
        }
        let waits = stage.node(former).and_then(|node| node.replica().not_formed());
        named |= waits.is_some_and(|reason| reason.contains(OF_FORMED));
        tokio::time::sleep(POLL).await;
    }
    stage.reached_if(named, NAMES_ONE);
    let more = stage.recorder().acknowledged() - acknowledged;
    if more > 0 {
        let detail = format!("{more} writes were acknowledged while a majority was gone");
        stage.fails(NO_SECOND, detail);
    }
    Ok(())
}

/// Ends the founders, and looks for what a formed cluster would have left on their disks.
async fn look_at_disks(stage: &Stage, founders: &[usize]) -> Played {
    for member in founders {
        stage.kill(*member);
    }
    tokio::time::sleep(EXIT_GRACE).await;
    for member in founders {
        let machine = stage.machine(*member)?;
        let left = crash_image::of_copy(&stage.cluster, machine, left_by_cluster).await;
        if let Some(left) = left.ok_or("a disk that can be opened")? {
            stage.fails(NO_SECOND, format!("on the disk of node {}: {left}", machine.slot));
        }
    }
    Ok(())
}

/// What a cluster left on a disk; `None` if nothing was ever voted, logged or applied there.
fn left_by_cluster(engine: &Engine) -> Option<String> {
    let (log, applied) = (engine.log_bounds(GROUP), engine.applied(GROUP));
    let (voted, generation) = (engine.vote(GROUP).is_some(), engine.generation());
    let is_blank = !voted && log.last.is_none() && applied.is_none() && generation == 0;
    (!is_blank).then(|| {
        format!(
            "a vote: {voted}, the log ends at {:?}, applied is {applied:?}, generation {generation}",
            log.last
        )
    })
}

/// The keys that were written before, and that nobody deletes.
fn keys() -> impl Iterator<Item = Bytes> {
    (0..KEYS).map(|number| Bytes::from(format!("before/{number}")))
}

/// Which key this client is told to be absent: in a read, or in a stale read at one of these endpoints.
async fn absent_key(client: Client, endpoints: Vec<String>) -> Option<String> {
    for key in keys() {
        let stale = endpoints.iter().map(|endpoint| client.get_stale_at(endpoint, key.clone()));
        let (read, stale) = join(client.get(key.clone()), join_all(stale)).await;
        let absent = stale.iter().chain([&read]).any(|answer| matches!(answer, Ok(None)));
        if absent {
            return Some(format!("a client was told that key `{}` is absent", key.escape_ascii()));
        }
    }
    None
}

/// A client that knows only these endpoints at first.
fn client_of(endpoints: Vec<String>, deadline: Duration) -> Result<Client, String> {
    let options = Options::new(endpoints).deadline(deadline).attempt_timeout(NO_ANSWER).seed(1);
    options.build().map_err(|error| error.to_string())
}

/// Runs this on a client's host.
async fn as_client<T: Send + 'static>(
    stage: &Stage,
    asking: impl Future<Output = T> + Send + 'static,
) -> Result<T, String> {
    let host = stage.clients.first().and_then(|host| Handle::current().get_node(*host));
    let asked = host.ok_or("a client's host")?.spawn(asking);
    asked.await.map_err(|error| error.to_string())
}
