//! Clients that open streams, send calls without content, or ask and read nothing: how much memory
//! they cost the leader, whether it keeps its leadership, and what they cost others.

use crate::support::raw::{Raw, framed};
use crate::support::{Cluster, POLL, WAIT_LIMIT, http_get, value_of};
use cairn_client::proto::{self, call};
use cairn_client::{Client, Role};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// What requests on their way in, their streams and their calls may take:
/// `limits.max_in_flight_bytes`.
const REQUESTS: u64 = 32 * MIB;
/// What answers on their way out may take: `limits.max_read_bytes`.
const ANSWERS: u64 = 32 * MIB;
/// Requests that the honest client makes at least during each attack.
const HONEST: usize = 40;

const MULTIPLEX: &str = "/cairn.kv.v1.Kv/Multiplex";

/// What an attack holds at least of the first.
const HELD: u64 = REQUESTS / 4;

/// Streams as one connection may have them.
const STREAMS: usize = 128;

/// What a node keeps of memory that was used, at most: free parts of the allocator's pages.
const KEPT: u64 = REQUESTS;

/// Calls in one message.
const CALLS: u64 = 1024;

/// Opens streams with headers alone.
fn open(address: &str, connections: usize, path: &str) -> Vec<Raw> {
    let mut attackers: Vec<Raw> = (0..connections).map(|_| Raw::connect(address)).collect();
    for attacker in &mut attackers {
        for _ in 0..STREAMS {
            attacker.open(path);
        }
    }
    attackers
}

/// Sends messages full of calls on 8 streams of each of 16 connections, and takes one byte of the
/// answers to each stream.
fn call(address: &str, messages: usize, kind: Option<&call::Kind>) -> Vec<Raw> {
    let calls = (1..=CALLS).map(|id| proto::Call { id, timeout_ms: 0, kind: kind.cloned() });
    let message = framed(&proto::MultiplexRequest { calls: calls.collect(), generation: None });
    let mut attackers: Vec<Raw> = (0..16).map(|_| Raw::connect_with(address, 1)).collect();
    for attacker in &mut attackers {
        for _ in 0..8 {
            let stream = attacker.open(MULTIPLEX);
            attacker.add(stream, &message.repeat(messages));
        }
    }
    attackers
}

/// What the leader says that requests and their answers hold of its budgets.
fn held_by_requests(cluster: &Cluster, leader: usize) -> u64 {
    let text = http_get(&value_of(cluster.config(leader), "listen.http"), "/metrics");
    let held = ["requests", "reads"].map(|owner| {
        let sample = format!("cairn_memory_bytes{{owner=\"{owner}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&sample)).expect("a metric");
        line.trim().parse::<u64>().expect("a number")
    });
    held.iter().sum()
}

/// One put and one get. Returns how long both took.
async fn serve(client: &Client, number: usize) -> Duration {
    let began = Instant::now();
    client.put(format!("honest/{number}"), "v").await.expect("others are served");
    let found = client.get("read").await.expect("others are served");
    assert_eq!(found.expect("there").value, "v");
    began.elapsed()
}

/// Serves an honest client while the attackers send what the leader takes. The leader's memory
/// stays within `budget` beside what it takes idle, it keeps its leadership, and when the attackers
/// are gone its memory goes back to the most that it took idle before: one moment may be 25 MiB below
/// another, since the allocator gives free pages back when it likes.
async fn withstand(
    cluster: &Cluster,
    (leader, most_idle): (usize, &mut u64),
    what: &str,
    (budget, least): (u64, u64),
    attack: impl FnOnce(&str) -> Vec<Raw>,
) -> Vec<String> {
    let client = cluster.client();
    // What a node keeps for further requests, such as buffers, is there before it is measured.
    for number in 0..HONEST {
        serve(&client, number).await;
    }
    let term = cluster.statuses().await[leader].term;
    let idle = cluster.memory(leader);
    let most = (idle + budget) * 11 / 10;
    *most_idle = idle.max(*most_idle);
    let rests = *most_idle + KEPT;
    cluster.forget_peak(leader);
    let mut attackers = attack(&cluster.endpoints()[leader]);
    let mut waits = Vec::new();
    let (mut pending, mut held) = (attackers.len(), 0);
    while waits.len() < HONEST || pending > 0 {
        pending =
            attackers.iter_mut().filter_map(|attacker| (!attacker.push()).then_some(())).count();
        waits.push(serve(&client, waits.len()).await);
        held = held.max(held_by_requests(cluster, leader));
        if waits.len() > 2 * HONEST {
            // The leader does not take the rest.
            break;
        }
    }
    waits.sort();
    let peak = cluster.peak_memory(leader);
    println!(
        "{what}: idle {} MiB, peak {} MiB, at most {}; they held {} MiB; {} of {} attackers are kept waiting; an honest put and get: p50 {:?}, p99 {:?}",
        idle / MIB,
        peak / MIB,
        most / MIB,
        held / MIB,
        pending,
        attackers.len(),
        waits[waits.len() / 2],
        waits[waits.len() * 99 / 100],
    );
    let status = cluster.statuses().await.swap_remove(leader);
    drop(attackers);
    let began = Instant::now();
    let mut after = cluster.memory(leader);
    while after > rests && began.elapsed() < WAIT_LIMIT {
        tokio::time::sleep(POLL).await;
        after = cluster.memory(leader);
    }
    println!("{what}: {} MiB when they are gone", after / MIB);
    let broken = [
        (held < least, format!("{what}: {held} bytes held, so it was no attack")),
        (peak > most, format!("{what}: {} MiB, at most {} MiB", peak / MIB, most / MIB)),
        ((status.term, status.role) != (term, Role::Leader), format!("{what}: it lost leadership")),
        (after > rests, format!("{what}: {} MiB stay, at most {} MiB", after / MIB, rests / MIB)),
    ];
    broken.into_iter().filter_map(|(is, what)| is.then_some(what)).collect()
}

/// The story: 25,600 streams of headers alone, 4.3 MB of calls without content, or 0.8 MB of gets
/// whose answers nobody read took a leader from 60 MiB to 920 MiB and more, and cost it its
/// leadership.
#[tokio::test(flavor = "multi_thread")]
async fn streams_and_calls_cost_no_more_than_the_budget_and_the_leader_stays() {
    // A busy machine alone costs no leader its leadership.
    let limits = format!(
        "timing.election_min = \"10s\"\ntiming.election_max = \"20s\"\nlimits.max_in_flight_bytes = \"{}MiB\"\nlimits.max_read_bytes = \"{}MiB\"\n",
        REQUESTS / MIB,
        ANSWERS / MIB
    );
    let cluster = Cluster::start(3, "64MiB", &limits).await;
    cluster.client().put("read", "v").await.expect("written");
    let leader = cluster.leader().await;
    assert!(!cluster.may_have_huge_pages(leader), "2 MiB for the first byte of each");
    let (mut broken, mut idle, both) = (Vec::new(), 0, REQUESTS + ANSWERS);
    let streams = |address: &str| open(address, 200, MULTIPLEX);
    broken.extend(
        withstand(&cluster, (leader, &mut idle), "headers alone", (REQUESTS, HELD), streams).await,
    );
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let streams = |address: &str| open(address, 200, reflection);
    broken.extend(
        withstand(&cluster, (leader, &mut idle), "reflection", (REQUESTS, HELD), streams).await,
    );
    let junk = |address: &str| call(address, 8, None);
    broken.extend(
        withstand(&cluster, (leader, &mut idle), "calls without content", (both, 0), junk).await,
    );
    let get = proto::GetRequest { key: "read".into(), ..Default::default() };
    let get = call::Kind::Get(get);
    let gets = |address: &str| call(address, 1, Some(&get));
    broken.extend(
        withstand(&cluster, (leader, &mut idle), "gets that nobody reads", (both, 0), gets).await,
    );
    assert!(broken.is_empty(), "{broken:#?}");
}
