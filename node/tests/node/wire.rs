//! The public protocol over real sockets: error details in trailing metadata, deadlines, health,
//! reflection.

use crate::support::Cluster;
use cairn_client::proto;
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::kv_client::KvClient;
use cairn_client::proto::operation::Kind;
use cairn_client::proto::{answer, call};
use futures::StreamExt;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

async fn channel(endpoint: &str) -> Channel {
    Channel::from_shared(format!("http://{endpoint}"))
        .expect("a URI")
        .connect()
        .await
        .expect("it listens")
}

fn put(key: &str, value: Vec<u8>) -> proto::WriteRequest {
    let put = proto::Put { key: key.to_string().into(), value: value.into(), ..Default::default() };
    proto::WriteRequest {
        operations: vec![proto::Operation { kind: Some(Kind::Put(put)) }],
        ..Default::default()
    }
}

fn detail(status: &Status) -> proto::ErrorDetail {
    let value = status.metadata().get_bin(proto::ERROR_DETAIL_KEY);
    let bytes =
        value.unwrap_or_else(|| panic!("no detail in {status:?}")).to_bytes().expect("base64");
    proto::ErrorDetail::decode(bytes).expect("an ErrorDetail")
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_carry_their_reason_limit_and_leader_over_the_wire() {
    // Long enough that the leader stays the leader, even on a busy machine.
    let more = "timing.election_min = \"30s\"\ntiming.election_max = \"60s\"";
    let cluster = Cluster::start(3, "64MiB", more).await;
    let leader = cluster.leader().await;
    let endpoints = cluster.endpoints();
    let mut at_leader = KvClient::new(channel(&endpoints[leader]).await);
    let mut at_follower = KvClient::new(channel(&endpoints[(leader + 1) % 3]).await);

    let hello = at_follower
        .hello(proto::HelloRequest { protocol: cairn_client::PROTOCOL })
        .await
        .expect("hello")
        .into_inner();
    assert_eq!((hello.cluster.as_str(), hello.members.len()), ("tested", 3));
    assert_eq!(hello.protocol, cairn_client::PROTOCOL);
    for protocol in [0, cairn_client::PROTOCOL + 1] {
        let status =
            at_follower.hello(proto::HelloRequest { protocol }).await.expect_err("another version");
        assert_eq!(status.code(), Code::FailedPrecondition);
        let named = format!("the client speaks {protocol}");
        assert!(status.message().contains(&named), "{}", status.message());
    }
    let limits = hello.limits.expect("limits");
    assert_eq!((limits.max_key_bytes, limits.max_value_bytes), (1024, 1 << 20));

    let status = at_leader.write(put("big", vec![0; (1 << 20) + 1])).await.expect_err("too large");
    let limits_detail = detail(&status);
    assert_eq!(
        (status.code(), limits_detail.reason()),
        (Code::InvalidArgument, Reason::ValueTooLarge)
    );
    assert_eq!((limits_detail.limit, limits_detail.actual), (1 << 20, (1 << 20) + 1));

    let status = at_leader.write(put("", vec![1])).await.expect_err("empty key");
    assert_eq!(
        (status.code(), detail(&status).reason()),
        (Code::InvalidArgument, Reason::KeyInvalid)
    );

    let status = at_follower.write(put("k", vec![1])).await.expect_err("not the leader");
    let leader_detail = detail(&status);
    assert_eq!(
        (status.code(), leader_detail.reason()),
        (Code::FailedPrecondition, Reason::NotLeader)
    );
    assert_eq!(leader_detail.leader.expect("it knows").client_address, endpoints[leader]);

    let get = |stale| proto::GetRequest { key: "k".into(), stale, ..Default::default() };
    assert!(!at_follower.get(get(false)).await.expect("read").into_inner().found);
    assert!(at_follower.get(get(true)).await.is_ok());
    assert_eq!(
        at_leader.write(put("k", vec![1])).await.expect("written").into_inner().results.len(),
        1
    );
    for node in [&mut at_leader, &mut at_follower] {
        assert_eq!(node.get(get(false)).await.expect("read").into_inner().value, vec![1]);
    }
}

/// Flips a bit of every run of this byte that passes, as often as it is told to.
async fn flipping(listener: TcpListener, target: String, left: Arc<AtomicU64>) {
    const MARK: u8 = 0xa5;
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(&target).await.expect("the node listens");
        let ((mut requests, mut to_client), (mut answers, mut to_server)) =
            (client.into_split(), server.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut answers, &mut to_client).await });
        let left = Arc::clone(&left);
        tokio::spawn(async move {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(read @ 1..) = requests.read(&mut buffer).await {
                let run = buffer[..read].windows(64).position(|run| run == [MARK; 64]);
                let less = |left: u64| left.checked_sub(1);
                if let Some(at) = run
                    && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
                {
                    buffer[at + 32] ^= 1;
                }
                if to_server.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// The story: a bit of a value changed between the client and the log, and every member kept the wrong
/// value as good.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_damaged_on_its_way_is_refused_by_name_and_the_client_sends_it_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let relay = listener.local_addr().expect("an address").to_string();
    let cluster = Cluster::start(1, "64MiB", &format!("advertise.client = {relay:?}")).await;
    let left = Arc::new(AtomicU64::new(0));
    tokio::spawn(flipping(listener, cluster.endpoints()[0].clone(), Arc::clone(&left)));

    let mut stub = KvClient::new(channel(&relay).await);
    let marked = |key: &str| {
        let mut request = put(key, vec![0xa5; 3000]);
        let value_crc32 = Some(crc32fast::hash(&[0xa5; 3000]));
        for operation in &mut request.operations {
            if let Some(Kind::Put(put)) = &mut operation.kind {
                put.value_crc32 = value_crc32;
            }
        }
        request
    };
    left.store(1, Ordering::SeqCst);
    let refused = stub.write(marked("raw")).await.expect_err("damaged");
    assert_eq!((refused.code(), detail(&refused).reason()), (Code::DataLoss, Reason::ValueDamaged));
    assert!(refused.message().contains("key `raw`"), "{refused}");
    let get = proto::GetRequest { key: "raw".into(), ..Default::default() };
    assert!(!stub.get(get).await.expect("served").into_inner().found, "nothing was stored");
    stub.write(marked("raw")).await.expect("the same, undamaged");

    let client = cairn_client::Options::new([relay]).connect().await.expect("a client");
    left.store(2, Ordering::SeqCst);
    client.put("library", vec![0xa5; 3000]).await.expect("sent again");
    assert_eq!(left.load(Ordering::SeqCst), 0, "it was damaged twice");
    let found = client.get("library").await.expect("served").expect("found");
    assert!(found.value == vec![0xa5; 3000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_means_another_generation_of_the_cluster_is_refused() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let mut kv = KvClient::new(channel(&cluster.endpoints()[0]).await);
    fn meaning<M>(generation: &'static str, message: M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert(proto::GENERATION_KEY, generation.parse().expect("ASCII"));
        request
    }
    let get = || proto::GetRequest { key: "k".into(), ..Default::default() };
    for (generation, other) in [("00000000", false), ("00000007", true), ("0", true), ("", true)] {
        let written = kv.write(meaning(generation, put("k", vec![1]))).await.map(drop);
        let found = kv.get(meaning(generation, get())).await.map(drop);
        let listed = kv.list(meaning(generation, proto::ListRequest::default())).await.map(drop);
        let calls = futures::stream::empty();
        let opened = kv.multiplex(meaning(generation, calls)).await.map(drop);
        for answer in [written, found, listed, opened] {
            let refused = answer.as_ref().err().map(|status| detail(status).reason());
            assert_eq!(refused, other.then_some(Reason::OtherGeneration), "{answer:?}");
        }
    }
    // A stream outlives the Hello before it: each of its messages is judged.
    let message = |generation| {
        let kind = Some(proto::call::Kind::Get(get()));
        let calls = vec![proto::Call { id: 1, timeout_ms: 0, kind }];
        proto::MultiplexRequest { calls, generation }
    };
    for (generation, other) in [(None, false), (Some(0), false), (Some(7), true)] {
        let messages = futures::stream::iter([message(generation)]);
        let mut answers = kv.multiplex(messages).await.expect("a stream").into_inner();
        let answer = answers.message().await.expect("an answer").expect("an answer").answers;
        let refused = match answer[0].kind.clone().expect("a kind") {
            proto::answer::Kind::Failed(failed) => failed.detail.map(|detail| detail.reason()),
            _ => None,
        };
        assert_eq!(refused, other.then_some(Reason::OtherGeneration), "{answer:?}");
    }
}

/// The story: the client's deadline was 400 ms as well, and on a busy machine it passed before the
/// answer came. Here only the node's time is bounded: by its configuration, and by the timeout of a
/// call in a stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_quorum_answers_within_the_deadline_and_never_with_success() {
    let mut cluster = Cluster::start(3, "64MiB", "timing.request = \"400ms\"").await;
    let leader = cluster.leader().await;
    let mut client = KvClient::new(channel(&cluster.endpoints()[leader]).await);
    for node in (0..3).filter(|node| *node != leader) {
        cluster.kill_node(node);
    }
    let in_doubt = [Reason::OutcomeUnknown, Reason::NoLeader, Reason::NotLeader];
    let status = client.write(put("k", vec![1])).await.expect_err("no quorum");
    assert!(in_doubt.contains(&detail(&status).reason()), "{status:?}");
    let unread = [Code::DeadlineExceeded, Code::Unavailable, Code::FailedPrecondition];
    let get = || proto::GetRequest { key: "k".into(), ..Default::default() };
    let status = client.get(get()).await.expect_err("no quorum");
    assert!(unread.contains(&status.code()), "{status:?}");

    let kinds = [call::Kind::Write(put("k", vec![2])), call::Kind::Get(get())];
    let calls =
        (1..).zip(kinds).map(|(id, kind)| proto::Call { id, timeout_ms: 200, kind: Some(kind) });
    let requests = futures::stream::iter([proto::MultiplexRequest {
        calls: calls.collect(),
        generation: None,
    }]);
    // The stream of calls stays open until all are answered.
    let requests = requests.chain(futures::stream::pending());
    let mut stream = client.multiplex(requests).await.expect("a stream").into_inner();
    let mut answered = 0;
    while answered < 2 {
        for answer in stream.next().await.expect("answers").expect("answers").answers {
            let Some(answer::Kind::Failed(failed)) = answer.kind else { panic!("{answer:?}") };
            match answer.id {
                1 => assert!(
                    in_doubt.contains(&failed.detail.clone().unwrap_or_default().reason()),
                    "{failed:?}"
                ),
                _ => assert!(unread.contains(&Code::from(failed.code)), "{failed:?}"),
            }
            answered += 1;
        }
    }
}

/// The story: each clean stop waited for the stream of a client that stayed connected, until its
/// time was up.
#[tokio::test(flavor = "multi_thread")]
async fn a_connected_client_does_not_hold_up_a_clean_stop() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    client.put("kept", "1").await.expect("written");
    assert_eq!(cluster.stop_node(0), 0);
    assert!(!cluster.logs().contains("when `timing.shutdown` ended"), "{}", cluster.logs());
    cluster.start_node(0);
    cluster.wait_ready().await;
    assert_eq!(client.get("kept").await.expect("readable").expect("there").value, "1");
}

/// The story: the protocol's file had a bare name, which collided in Go with every other file of
/// that name.
#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_is_registered_under_a_unique_name() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let channel = channel(&cluster.endpoints()[0]).await;
    let file = "cairn/kv/v1/kv.proto".to_string();
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileByFilename(file)),
    };
    let requests = futures::stream::once(async { request });
    let answers = ServerReflectionClient::new(channel).server_reflection_info(requests).await;
    let answer = answers
        .expect("reflection")
        .into_inner()
        .next()
        .await
        .expect("one answer")
        .expect("reflection");
    let Some(MessageResponse::FileDescriptorResponse(found)) = answer.message_response else {
        panic!("no file of that name: {answer:?}")
    };
    let descriptor = found.file_descriptor_proto.concat();
    for option in ["cairn/kv/v1;kvv1", "KvProto", "Cairn.Kv.V1"] {
        assert!(
            descriptor.windows(option.len()).any(|bytes| bytes == option.as_bytes()),
            "{option}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection_are_served() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let channel = channel(&cluster.endpoints()[0]).await;

    // The reporter checks at intervals. A leader is known already.
    let serving = async || {
        let request = HealthCheckRequest { service: "cairn.kv.v1.Kv".into() };
        let answer = HealthClient::new(channel.clone()).check(request).await;
        answer.is_ok_and(|answer| answer.into_inner().status == 1).then_some(())
    };
    cluster.until("the health service reports that it serves", serving).await;

    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let requests = futures::stream::once(async { request });
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(requests)
        .await
        .expect("reflection")
        .into_inner();
    let answer = answers.next().await.expect("one answer").expect("reflection");
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
        panic!("a list of services")
    };
    assert!(
        services.service.iter().any(|service| service.name == "cairn.kv.v1.Kv"),
        "{services:?}"
    );
}

/// The story: each health watch got a message four times a second while nothing changed, and 25,600
/// of them took half a processor.
#[tokio::test(flavor = "multi_thread")]
async fn a_health_watch_is_told_of_changes_only() {
    let mut cluster = Cluster::start(3, "64MiB", "").await;
    let leader = cluster.leader().await;
    let mut health = HealthClient::new(channel(&cluster.endpoints()[leader]).await);
    let request = HealthCheckRequest { service: "cairn.kv.v1.Kv".into() };
    let mut told = health.watch(request).await.expect("a watch").into_inner();
    let mut next = async || told.message().await.expect("a message").expect("it goes on").status();
    let mut last = next().await;
    // A leader of this moment may not serve yet.
    let mut until = async |wanted: ServingStatus| {
        while last != wanted {
            let now = next().await;
            assert_ne!(now, last, "it is told though nothing has changed");
            last = now;
        }
    };
    until(ServingStatus::Serving).await;
    for node in (0..3).filter(|node| *node != leader) {
        cluster.kill_node(node);
    }
    until(ServingStatus::NotServing).await;
    for node in (0..3).filter(|node| *node != leader) {
        cluster.start_node(node);
    }
    until(ServingStatus::Serving).await;
}
