//! Who is refused, and what both sides are told.

use crate::support::certificates::Ca;
use crate::support::stranger::Stranger;
use crate::support::{Cluster, value_of};
use cairn_client::proto::HelloRequest;
use cairn_client::proto::kv_client::KvClient;
use cairn_raft::peer_proto::{self, forge};
use cairn_tls::issue::Validity;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};
use tonic::transport::{Channel, Endpoint};

/// What a caller is told, with all its causes.
fn told(status: &tonic::Status) -> String {
    let mut text = format!("{status:?}");
    let mut cause = std::error::Error::source(status);
    while let Some(next) = cause {
        text.push_str(&format!(": {next:?}"));
        cause = next.source();
    }
    text
}

/// A first call, which changes nothing.
pub async fn greet_as_client(channel: Channel) -> Result<(), String> {
    let greeted = KvClient::new(channel).hello(HelloRequest { protocol: 1 }).await;
    greeted.map(drop).map_err(|status| told(&status))
}

async fn greet_as_member(stranger: &Stranger, address: &str) -> Result<(), String> {
    let hello = peer_proto::HelloRequest { receiver_slot: 1, ..Default::default() };
    let stream = stranger.clone().connect(address.to_owned()).await;
    forge(stream.map_err(|error| format!("{error:?}"))?, "HELLO", &hello).await
}

#[tokio::test]
async fn everyone_else_is_refused_with_a_reason_on_both_sides() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    let certificates = cluster.certificates.as_ref().expect("secured");
    let (ca, other, red) = (certificates.ca(), Ca::of("unknown"), Ca::of("red"));
    // The CA of another cluster is known here, so that only the name tells.
    certificates.install("member-1", &format!("{}{}", ca.pem, red.pem), &ca.issue("member/1"));
    cluster.start_all().await;
    let day = Duration::from_secs(24 * 3600);
    let past = Validity { from: SystemTime::now() - 2 * day, until: SystemTime::now() - day };
    let client = value_of(cluster.config(0), "listen.client");
    let peer = value_of(cluster.config(0), "listen.peer");

    let strangers = [
        (None, "CertificateRequired", "the other side shows no certificate"),
        (Some(other.issue("member/2")), "UnknownCA", "signed by no CA in `tls.ca`"),
        (
            Some(red.issue("member/2")),
            "CertificateUnknown",
            "is cairn://red/member/2, and this is the cluster tested",
        ),
        (Some(ca.issue_for("member/2", past)), "CertificateExpired", "certificate has expired"),
    ];
    for (own, there, here) in &strangers {
        let stranger = Stranger::new(own.as_ref());
        for (port, told) in [
            ("listen.client", greet_as_client(stranger.channel(&client)).await),
            ("listen.peer", greet_as_member(&stranger, &peer).await),
        ] {
            let told = told.expect_err("it is refused");
            assert!(told.contains(there), "{port} {there}: {told}");
            let logged = async || {
                let logs = cluster.logs();
                let mut lines = logs.lines();
                lines
                    .any(|line| line.contains(port) && line.contains(here) && line.contains("WARN"))
                    .then_some(())
            };
            cluster.until(&format!("{port}: {here}"), logged).await;
        }
    }
    // In their place, those who may.
    let tester = Stranger::new(Some(&ca.issue("client/tester")));
    assert_eq!(greet_as_client(tester.channel(&client)).await, Ok(()));
    let member = Stranger::new(Some(&ca.issue("member/2")));
    assert_eq!(greet_as_client(member.channel(&client)).await, Ok(()));
    let told = greet_as_member(&member, &peer).await.expect_err("no envelope");
    assert!(told.contains("names no sender"), "{told}");
}

#[tokio::test]
async fn a_clients_certificate_is_refused_on_the_peer_port() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    let ca = cluster.certificates.as_ref().expect("secured").ca();
    let peer = value_of(cluster.config(0), "listen.peer");
    let reader = Stranger::new(Some(&ca.issue("client/reader")));
    let told = greet_as_member(&reader, &peer).await.expect_err("it is refused");
    assert!(told.contains("CertificateUnknown"), "{told}");
    let line = "the other side's certificate is cairn://tested/client/reader, and only members may connect here";
    cluster.until(line, async || cluster.logs().contains(line).then_some(())).await;
}

#[tokio::test]
async fn plain_text_and_half_a_handshake_are_refused_and_take_no_slot() {
    let mut cluster = Cluster::secured(1, "64MiB", "limits.max_connections = 16");
    cluster.start_all().await;
    let client = value_of(cluster.config(0), "listen.client");
    let plain =
        Endpoint::from_shared(format!("http://{client}")).expect("an address").connect_lazy();
    let told = greet_as_client(plain).await.expect_err("it is refused");
    assert!(told.contains("INADEQUATE_SECURITY"), "{told}");
    let line = "the other side speaks plain text, and this port speaks TLS";
    cluster.until(line, async || cluster.logs().contains(line).then_some(())).await;

    // More than the port has connections.
    let silent: Vec<TcpStream> = (0..64)
        .map(|number| {
            let mut socket = TcpStream::connect(&client).expect("it listens");
            if number % 2 == 0 {
                // The first bytes of a handshake.
                socket.write_all(&[22, 3, 1, 2, 0, 1]).expect("sent");
            }
            socket
        })
        .collect();
    assert_eq!(cluster.cairn(&["put", "key", "value"]).code, 0, "{}", cluster.logs());
    for mut socket in silent {
        // Either it was replaced, or its time ends.
        let mut rest = Vec::new();
        assert!(socket.read_to_end(&mut rest).is_err() || rest.len() < 32);
    }
    let mut last = TcpStream::connect(&client).expect("it listens");
    // Nobody replaces this one. Either way it ends.
    let _ = last.read_to_end(&mut Vec::new());
    for line in ["too many TLS handshakes at once", "was not completed in 5 s"] {
        cluster.until(line, async || cluster.logs().contains(line).then_some(())).await;
    }
}

/// Begins a handshake from another address, and leaves it at that.
async fn begin_handshake(address: &str) -> std::io::Result<tokio::net::TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.2:0".parse().expect("an address")).expect("loopback");
    let mut socket = socket.connect(address.parse().expect("an address")).await?;
    // The first bytes of a handshake. It may have been replaced already.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut socket, &[22, 3, 1, 2, 0, 1]).await;
    Ok(socket)
}

/// Begins handshakes as fast as it can, and keeps the latest 200 of them open.
async fn begin_handshakes(address: String) {
    let mut open = std::collections::VecDeque::new();
    loop {
        open.extend(begin_handshake(&address).await);
        if open.len() > 200 {
            open.pop_front();
        }
    }
}

/// The story: a stranger that began 1,900 handshakes a second and ended none turned away a third of
/// the clients and half of the members that connected: each new one replaced the oldest.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_handshakes_of_strangers_turn_away_no_address_that_finished_one() {
    let mut cluster = Cluster::secured(1, "64MiB", "limits.max_connections = 128");
    cluster.start_all().await;
    let ca = cluster.certificates.as_ref().expect("secured").ca();
    let client = value_of(cluster.config(0), "listen.client");
    let honest = Stranger::new(Some(&ca.issue("client/honest")));
    assert_eq!(greet_as_client(honest.channel(&client)).await, Ok(()));
    let flood = tokio::spawn(begin_handshakes(client.clone()));
    let line = "too many TLS handshakes at once";
    cluster.until(line, async || cluster.logs().contains(line).then_some(())).await;
    let mut turned_away = Vec::new();
    for _ in 0..60 {
        turned_away.extend(greet_as_client(honest.channel(&client)).await.err());
    }
    flood.abort();
    assert!(turned_away.is_empty(), "{} of 60: {turned_away:?}", turned_away.len());
}

/// The story: eight handshakes ran at once on the HTTP port, and one more replaced the oldest. A probe
/// has no certificate, so its address was never known, and whoever began handshakes and ended none kept
/// it out.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_handshakes_of_another_address_turn_away_no_probe() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    let http = value_of(cluster.config(0), "listen.http");
    let probe = Stranger::new(None);
    let line = "too many TLS handshakes at once";
    let mut begun = Vec::new();

    for _ in 0..60 {
        begun.push(begin_handshake(&http).await.expect("it listens"));
    }
    let told = probe.get(&http, "/live").await.expect("answered");
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert!(!cluster.logs().contains(line), "{}", cluster.logs());

    // This one began before those that fill the port. A handshake has 5 s.
    let asked = Instant::now();
    let socket = tokio::net::TcpStream::connect(&http).await.expect("it listens");
    for _ in 0..150 {
        begun.push(begin_handshake(&http).await.expect("it listens"));
    }
    cluster.until(line, async || cluster.logs().contains(line).then_some(())).await;
    let told = probe.get_over(socket, "/live").await;
    let served = told.as_ref().is_ok_and(|told| told.starts_with("HTTP/1.1 200"));
    assert!(served || asked.elapsed() >= Duration::from_secs(5), "{told:?}");
}
