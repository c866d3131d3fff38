//! Clients that ask for much and read nothing: how much memory they cost, and what they cost
//! others.

use crate::support::raw::Raw;
use crate::support::{Cluster, WAIT_LIMIT, http_get, value_of};
use cairn_client::proto::{self, call, operation};
use prost::Message;
use std::time::{Duration, Instant};
use tonic::Code;

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
/// Memory beside the budget: answers that are being encoded, connections and their streams, the
/// allocator.
const SLACK: u64 = 40 * MIB;

fn limits() -> String {
    format!("limits.max_read_bytes = \"{}MiB\"\nlimits.max_connections = 200", BUDGET / MIB)
}

/// Puts 4 MiB of 4 KiB values under `page/`, and one of 1 MiB at `large`.
async fn fill(cluster: &Cluster) {
    let client = cluster.client();
    let puts = (0..1024).map(|number| {
        let client = client.clone();
        async move { client.put(format!("page/{number:04}"), vec![7; 4000]).await.expect("written") }
    });
    futures::future::join_all(puts).await;
    client.put("large", vec![7; MIB as usize]).await.expect("written");
}

/// Asks for a page of 4 MiB on each of many connections, and for many large values on each of some
/// other connections.
fn ask(address: &str) -> Vec<Raw> {
    let mut connections: Vec<Raw> = (0..128 + 6).map(|_| Raw::connect(address)).collect();
    let page = proto::ListRequest {
        prefix: "page/".into(),
        limit: 1024,
        max_bytes: 4 * MIB,
        ..Default::default()
    };
    for (number, connection) in connections.iter_mut().enumerate() {
        if number < 128 {
            connection.call("List", &page, true);
            continue;
        }
        let get = proto::GetRequest { key: "large".into(), ..Default::default() };
        let calls = (1..=64).map(|id| proto::Call {
            id,
            timeout_ms: 0,
            kind: Some(call::Kind::Get(get.clone())),
        });
        connection.call(
            "Multiplex",
            &proto::MultiplexRequest { calls: calls.collect(), generation: None },
            false,
        );
    }
    connections
}

fn metric(http: &str, name: &str) -> u64 {
    let text = http_get(http, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().expect("a number")
}

/// The story: two hundred connections that asked for one page each and did not read it took two
/// gigabytes of a leader's memory, and cost it its leadership.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_read_nothing_cost_no_more_than_the_budget_and_others_are_served() {
    let cluster = Cluster::start(1, "64MiB", &limits()).await;
    fill(&cluster).await;
    let (address, http) =
        (cluster.endpoints().remove(0), value_of(cluster.config(0), "listen.http"));
    let term = cluster.statuses().await[0].term;
    let client = cluster.client();
    client.get("page/0000").await.expect("read");
    let idle = cluster.memory(0);
    cluster.forget_peak(0);

    let mut readers = ask(&address);
    let began = Instant::now();
    let mut others = 0;
    // Until the first of them are closed, so that others of them are served.
    while others < 300 || !readers.iter_mut().any(Raw::is_closed) {
        let found = client.get("page/0000").await.expect("others are served");
        assert_eq!(found.expect("there").value.len(), 4000);
        others += 1;
        let (peak, most) = (cluster.peak_memory(0), idle + BUDGET + SLACK);
        assert!(peak <= most, "{} MiB, idle {}, at most {}", peak / MIB, idle / MIB, most / MIB);
        assert!(began.elapsed() < WAIT_LIMIT, "no connection is closed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(metric(&http, "cairn_slow_readers_closed_total") > 0);
    assert_eq!(cluster.statuses().await[0].term, term, "it led throughout");
    println!(
        "idle {} MiB, peak {} MiB, {others} gets of another client",
        idle / MIB,
        cluster.peak_memory(0) / MIB
    );

    drop(readers);
    let held = "cairn_memory_bytes{owner=\"reads\"}";
    while metric(&http, held) > 0 || metric(&http, "cairn_reads_waiting") > 0 {
        assert!(began.elapsed() < WAIT_LIMIT, "their memory is not released");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The error of a request with too many operations. A client that gets no processor time for
/// seconds answers no ping either, and loses its connection: then it asks again.
async fn refused(mut ask: impl AsyncFnMut() -> Result<(), tonic::Status>) -> tonic::Status {
    let began = Instant::now();
    loop {
        let status = ask().await.expect_err("too many");
        if status.code() == Code::InvalidArgument {
            return status;
        }
        let closed = format!("{status:?}").contains("GoAway(b\"\", NO_ERROR, Remote)");
        assert!(closed && began.elapsed() < WAIT_LIMIT, "{status:?}");
    }
}

/// The story: a request of 5 MB took 210 MB when it was decoded, before its operations were
/// counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_millions_of_empty_operations_costs_no_more_than_its_bytes() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let address = cluster.endpoints().remove(0);
    let endpoint =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("a URI");
    let channel = endpoint.connect().await.expect("it listens");
    let mut client = proto::kv_client::KvClient::new(channel).max_encoding_message_size(usize::MAX);
    client.hello(proto::HelloRequest { protocol: cairn_client::PROTOCOL }).await.expect("hello");
    let idle = cluster.memory(0);
    cluster.forget_peak(0);

    let empty = proto::WriteRequest {
        operations: vec![proto::Operation::default(); 2_600_000],
        ..Default::default()
    };
    let call = proto::Call { id: 1, timeout_ms: 0, kind: Some(call::Kind::Write(empty.clone())) };
    let status = refused(async || client.write(empty.clone()).await.map(drop)).await;
    let detail = status
        .metadata()
        .get_bin(proto::ERROR_DETAIL_KEY)
        .expect("a detail")
        .to_bytes()
        .expect("base64");
    let detail = proto::ErrorDetail::decode(detail).expect("a detail");
    assert_eq!(
        (detail.reason(), detail.actual),
        (proto::error_detail::Reason::RequestTooLarge, 2_600_000)
    );

    let request = proto::MultiplexRequest { calls: vec![call], generation: None };
    let multiplexed = async || {
        let answers = client.multiplex(futures::stream::iter([request.clone()])).await?;
        answers.into_inner().message().await.map(drop)
    };
    refused(multiplexed).await;

    let peak = cluster.peak_memory(0);
    assert!(peak < idle + 60 * MIB, "{} MiB, idle {}", peak / MIB, idle / MIB);

    let put = proto::Put { key: "k".into(), value: "v".into(), ..Default::default() };
    let operations = vec![proto::Operation { kind: Some(operation::Kind::Put(put)) }];
    client
        .write(proto::WriteRequest { operations, ..Default::default() })
        .await
        .expect("others are served");
}

/// The story: 64 connections that had sent half a request kept all others from `/metrics` and
/// `/ready`.
#[tokio::test(flavor = "multi_thread")]
async fn half_sent_http_requests_do_not_keep_others_from_being_served() {
    use std::io::Write;
    let cluster = Cluster::start(1, "64MiB", "").await;
    let http = value_of(cluster.config(0), "listen.http");
    let halves: Vec<std::net::TcpStream> = (0..200)
        .map(|_| {
            let mut half = std::net::TcpStream::connect(&http).expect("it listens");
            // This connection may already have been replaced by a newer one.
            let _ = half.write_all(b"GET /metrics HTTP/1.1\r\nHost: ");
            half
        })
        .collect();
    for path in ["/ready", "/live", "/metrics"] {
        let answer = http_get(&http, path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:?}");
    }
    drop(halves);
}

/// The stories: the port also spoke HTTP/2, in which a connection carries many requests. One whose
/// answers nobody read could wait for ever, and 64 of them kept all others out.
#[tokio::test(flavor = "multi_thread")]
async fn an_http_connection_carries_one_request_and_ends_in_time() {
    use std::io::{Read, Write};
    let cluster = Cluster::start(1, "64MiB", "").await;
    let http = value_of(cluster.config(0), "listen.http");
    let connect = |request: &[u8]| {
        let mut connection = std::net::TcpStream::connect(&http).expect("it listens");
        connection.set_read_timeout(Some(WAIT_LIMIT)).expect("a limit");
        connection.write_all(request).expect("sent");
        connection
    };
    let all = |mut connection: std::net::TcpStream| {
        let mut answer = Vec::new();
        let ended = connection.read_to_end(&mut answer);
        let closed = ended
            .as_ref()
            .map_or_else(|e| e.kind() == std::io::ErrorKind::ConnectionReset, |_| true);
        assert!(closed, "it did not end: {ended:?}");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let answer = all(connect(preface));
    assert!(!answer.contains("\0\x04"), "no settings of HTTP/2: {answer:?}");
    let two = b"GET /live HTTP/1.1\r\nHost: a\r\n\r\nGET /live HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(all(connect(two)).matches("HTTP/1.1 200").count(), 1);
    for unfinished in [&b""[..], b"GET /metrics HTTP/1.1\r\nHost: "] {
        assert!(!all(connect(unfinished)).contains("200"));
    }
    let long = [b"GET /live HTTP/1.1\r\nHost: ", &[b'a'; 64 << 10][..]].concat();
    assert!(!all(connect(&long)).contains("200"));
}
