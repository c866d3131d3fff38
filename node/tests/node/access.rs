//! Who may do what, over real sockets: roles, tokens, the operators' service, the audit, and what
//! one client may hold.

use crate::support::{Cluster, Ran, WAIT_LIMIT, command, finish, run};
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::kv_client::KvClient;
use cairn_client::proto::operation::Kind;
use cairn_client::proto::operator_client::OperatorClient;
use cairn_client::proto::{self, ErrorDetail};
use cairn_client::{Client, Condition, Error, ListOptions, MemberChange, Mode, Range, ScrubAction};
use cairn_node::access::{Entries, TokenHash};
use cairn_node::{Environment, Node};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Each name's token is the name with this before it.
const SECRET: &str = "secret of ";

/// The lines of the configuration for these names and roles.
fn access(names: &[(&str, &str)]) -> String {
    let line = |(name, roles): &(&str, &str)| {
        let hash = TokenHash::of(format!("{SECRET}{name}").as_bytes());
        format!("access.{name} = \"{roles} token:{hash}\"\n")
    };
    names.iter().map(line).collect()
}

const NAMES: [(&str, &str); 4] = [
    ("reader", "read"),
    ("app", "write:app/"),
    ("ops", "operator"),
    ("all", "read write operator"),
];

/// A running cluster of one with these names, whose own clients may do everything.
async fn cluster(names: &[(&str, &str)], more: &str) -> Cluster {
    let more = format!("{}{more}", access(names));
    let mut cluster = Cluster::format(1, "128MiB", &more).with_token(&format!("{SECRET}all"));
    cluster.start_all().await;
    cluster
}

fn client(cluster: &Cluster, name: &str) -> Client {
    let options = cluster.options().deadline(WAIT_LIMIT).connect_timeout(WAIT_LIMIT);
    // A call that is made again is in the audit again.
    let options = options.attempt_timeout(WAIT_LIMIT);
    options.token(format!("{SECRET}{name}")).expect("a token").build().expect("good options")
}

async fn channel(cluster: &Cluster) -> Channel {
    let endpoint = format!("http://{}", cluster.endpoints()[0]);
    Channel::from_shared(endpoint).expect("a URI").connect().await.expect("it listens")
}

/// A request with this `authorization`.
fn with<M>(authorization: Option<&str>, message: M) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", value.parse().expect("a value"));
    }
    request
}

fn bearer(name: &str) -> String {
    format!("Bearer {SECRET}{name}")
}

fn put(key: &str, value: &[u8]) -> proto::WriteRequest {
    let put = proto::Put {
        key: key.to_string().into(),
        value: value.to_vec().into(),
        ..Default::default()
    };
    proto::WriteRequest {
        operations: vec![proto::Operation { kind: Some(Kind::Put(put)) }],
        ..Default::default()
    }
}

fn reason(status: &Status) -> Reason {
    ErrorDetail::of(status).unwrap_or_else(|| panic!("no detail in {status:?}")).reason()
}

/// The message of a request that is not allowed.
fn denied<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.expect_err("not allowed") {
        Error::PermissionDenied { message } => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_deleted_by_a_name_that_may_write_each_of_its_keys() {
    let cluster = cluster(&NAMES, "").await;
    cluster.until_ranges().await;
    let (all, app) = (client(&cluster, "all"), client(&cluster, "app"));
    for key in ["app/1", "app/2", "other"] {
        all.put(key, "v").await.expect("allowed");
    }
    let told = denied(app.delete_range(Range::all()).await);
    assert!(told.contains("token app may not write all keys:"), "{told}");
    for range in [Range::from("app/"..), Range::from("a".."b"), Range::from("app/".."app1")] {
        denied(app.delete_range(range).await);
    }
    denied(client(&cluster, "reader").delete_range(Range::prefix("app/")).await);
    denied(client(&cluster, "ops").delete_range(Range::prefix("app/")).await);
    assert_eq!(app.delete_range(Range::prefix("app/")).await, Ok(2));
    assert_eq!(all.delete_range(..).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_may_not_write_by_any_way() {
    let cluster = cluster(&NAMES, "").await;
    let all = client(&cluster, "all");
    all.put("app/1", "kept").await.expect("allowed");
    let reader = client(&cluster, "reader");
    assert_eq!(reader.get("app/1").await.expect("allowed").expect("there").value, "kept");
    assert_eq!(reader.list(ListOptions::prefix("")).await.expect("allowed").items.len(), 1);

    // On the multiplexed stream, alone and in a batch, even if the batch changes nothing.
    let told = denied(reader.put("app/1", "changed").await);
    assert!(told.starts_with("token reader may not write"), "{told}");
    assert!(told.contains("it has `read`") && told.contains("`access.reader`"), "{told}");
    denied(reader.delete("app/1").await);
    denied(reader.batch().put("a", "1").delete("app/1").commit().await);
    denied(reader.batch().check("app/1", Condition::Exists).commit().await);
    // In a call of its own.
    let mut calls = KvClient::new(channel(&cluster).await);
    let status = calls.write(with(Some(&bearer("reader")), put("app/1", b"x"))).await;
    let status = status.expect_err("not allowed");
    assert_eq!(
        (status.code(), reason(&status)),
        (Code::PermissionDenied, Reason::PermissionDenied)
    );
    // From the command line.
    let ran = cairn(&cluster, "reader", &["put", "app/1", "x"]);
    assert_eq!(ran.code, 10, "{ran:?}");
    assert!(ran.stderr.contains("token reader may not write"), "{ran:?}");
    let ran = cairn(&cluster, "reader", &["get", "app/1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "kept"));

    // The stream on which it was refused still serves.
    assert_eq!(reader.get("app/1").await.expect("allowed").expect("there").value, "kept");
    assert_eq!(all.list(ListOptions::prefix("")).await.expect("allowed").items.len(), 1);
}

/// The command line with the token of this name in a file.
fn cairn(cluster: &Cluster, name: &str, arguments: &[&str]) -> Ran {
    let file = cluster.folder.path().join(format!("{name}.token"));
    std::fs::write(&file, format!("{SECRET}{name}\n")).expect("a file");
    let endpoint = &cluster.endpoints()[0];
    let mut all = arguments.to_vec();
    all.extend(["--endpoints", endpoint, "--token-file", file.to_str().expect("text")]);
    run(cluster.folder.path(), &all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_a_prefix_stays_within_it_and_a_batch_with_one_key_outside_changes_nothing() {
    let cluster = cluster(&NAMES, "").await;
    let (all, app) = (client(&cluster, "all"), client(&cluster, "app"));
    all.put("other", "kept").await.expect("allowed");
    app.put("app/1", "mine").await.expect("allowed");
    app.batch()
        .put("app/2", "mine")
        .check("app/1", Condition::Exists)
        .commit()
        .await
        .expect("allowed");

    denied(app.put("other", "x").await);
    denied(app.put("app", "x").await);
    denied(app.delete("other").await);
    denied(app.get("other").await);
    denied(app.version("other").await);
    denied(app.batch().put("app/3", "good").put("other", "bad").commit().await);
    denied(app.batch().put("app/3", "good").delete("other").commit().await);
    denied(app.batch().delete("app/1").check("other", Condition::Exists).commit().await);
    let mut calls = KvClient::new(channel(&cluster).await);
    let status = calls.write(with(Some(&bearer("app")), put("other", b"x"))).await;
    assert_eq!(status.expect_err("not allowed").code(), Code::PermissionDenied);

    let page = app.list(ListOptions::prefix("app/")).await.expect("allowed");
    assert_eq!(page.items.len(), 2);
    app.list(ListOptions::prefix("app/2")).await.expect("allowed");
    let page = app.list(ListOptions::prefix("app/").end("app/2")).await.expect("allowed");
    assert_eq!(page.items.len(), 1);
    denied(app.list(ListOptions::prefix("").end("app/2")).await);
    app.get_many(["app/1", "app/2"]).await.expect("allowed");
    denied(app.get_many(["app/1", "other"]).await);
    app.scan(Range::prefix("app/")).await.expect("allowed");
    app.scan_keys("app/1".."app/2").await.expect("allowed");
    assert_eq!(app.count(Range::prefix("app/")).await, Ok(2));
    for wider in
        [Range::all(), Range::from("app/"..), Range::prefix("app"), Range::from("a".."app/2")]
    {
        denied(app.scan(wider.clone()).await);
        denied(app.scan_keys(wider.clone()).await);
        denied(app.count(wider).await);
    }
    for wider in ["", "ap", "app", "other"] {
        denied(app.list(ListOptions::prefix(wider)).await);
        // Nor from a key on that lies within.
        denied(app.list(ListOptions::prefix(wider).start_after("app/1")).await);
    }
    let kept = all.list(ListOptions::prefix("")).await.expect("allowed").items;
    let kept: Vec<_> = kept.iter().map(|item| (&item.key[..], &item.value[..])).collect();
    let expected: [(&[u8], &[u8]); 3] =
        [(b"app/1", b"mine"), (b"app/2", b"mine"), (b"other", b"kept")];
    assert_eq!(kept, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_operator_may_call_the_operators_service_and_every_call_is_audited() {
    // The audit is in the log at every level.
    let cluster = cluster(&NAMES, "log.level = \"error\"").await;
    let endpoint = cluster.endpoints().remove(0);
    for name in ["reader", "app"] {
        let operator = client(&cluster, name).operator();
        for action in [ScrubAction::Show, ScrubAction::Start, ScrubAction::Pause] {
            denied(operator.scrub(&endpoint, action).await);
        }
        denied(operator.unsafe_recovery(&endpoint, 1, (1, 1)).await);
        let ran = cairn(&cluster, name, &["scrub", "pause"]);
        assert_eq!(ran.code, 10, "{ran:?}");
        for change in [
            MemberChange::Add(2),
            MemberChange::Remove(1),
            MemberChange::Replace(1 << 48 | 5),
            MemberChange::Promote(2),
            MemberChange::Move(1, "127.0.0.1:1".into()),
        ] {
            denied(operator.change_members(&change).await);
        }
        denied(operator.set_mode(Mode::Sync).await);
        denied(operator.move_leader(None).await);
        denied(operator.drain(&endpoint, Duration::from_secs(1)).await);
        for arguments in [
            &["members", "add", "2"][..],
            &["members", "remove", "1", "--yes"],
            &["mode", "set", "sync"],
            &["leader", "move"],
            &["leader", "drain", "1"],
        ] {
            let ran = cairn(&cluster, name, arguments);
            assert_eq!(ran.code, 10, "{arguments:?}: {ran:?}");
            assert!(ran.stderr.contains("may not call the operator's service"), "{ran:?}");
        }
        assert_eq!(cairn(&cluster, name, &["members"]).code, 0);
        assert_eq!(cairn(&cluster, name, &["mode", "show"]).code, 0);
        assert_eq!(cairn(&cluster, name, &["leader", "show"]).code, 0);
    }
    let ops = client(&cluster, "ops");
    let paused = ops.operator().scrub(&endpoint, ScrubAction::Pause).await.expect("allowed");
    assert!(paused.paused);
    // Allowed, and refused by the member's state.
    let refused = ops.operator().unsafe_recovery(&endpoint, 1 << 48 | 5, (1, 1)).await;
    assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
    denied(ops.get("app/1").await);
    denied(ops.put("app/1", "x").await);
    let nobody = OperatorClient::new(channel(&cluster).await)
        .scrub(proto::ScrubRequest { action: 2 })
        .await
        .expect_err("without a token");
    assert_eq!((nobody.code(), reason(&nobody)), (Code::Unauthenticated, Reason::Unauthenticated));

    let of_nobody = "principal=\"nobody\"";
    let log = cluster.logs_with("the last call", |logs| logs.contains(of_nobody)).await;
    let audited = |words: &[&str]| {
        let lines = log.lines().filter(|line| line.contains("audit: an operator's call"));
        lines.filter(|line| words.iter().all(|word| line.contains(word))).count()
    };
    for name in ["token reader", "token app"] {
        assert_eq!(audited(&[name, "scrub", "refused"]), 4, "{log}");
        assert_eq!(audited(&[name, "unsafe-recovery", "refused"]), 1, "{log}");
    }
    assert_eq!(audited(&["token ops", "scrub", "pause", "\"ok\""]), 1, "{log}");
    assert_eq!(audited(&["token ops", "unsafe-recovery", "failed", "boot epoch 1"]), 1, "{log}");
    assert_eq!(audited(&["nobody", "refused"]), 1, "{log}");
    for name in ["token reader", "token app"] {
        assert_eq!(audited(&[name, "change-members", "refused"]), 7, "{log}");
        assert_eq!(audited(&[name, "change-members", "move slot 1 to 127.0.0.1:1"]), 1, "{log}");
        assert_eq!(audited(&[name, "set-mode", "sync", "refused"]), 2, "{log}");
        assert_eq!(audited(&[name, "move-leader", "to any voter", "refused"]), 2, "{log}");
        assert_eq!(audited(&[name, "drain", "for 1000 ms", "refused"]), 1, "{log}");
        assert_eq!(audited(&[name, "drain", "for 600000 ms", "refused"]), 1, "{log}");
    }
    assert_eq!(audited(&[]), 39, "{log}");
    assert!(!log.contains(SECRET), "{log}");

    let status = client(&cluster, "reader").status(&endpoint).await.expect("allowed");
    assert_eq!(status.operator_calls.len(), 34, "the last 32 that were refused, and the others");
    let found = status.operator_calls.iter().find(|call| call.result == "ok").expect("one");
    let (principal, call) = (found.principal.as_str(), found.call.as_str());
    assert_eq!((principal, call, found.arguments.as_str()), ("token ops", "scrub", "pause"));
    let shown = cairn(&cluster, "reader", &["status"]);
    assert!(shown.stdout.contains("ago nobody called scrub"), "{shown:?}");
}

/// The story: whoever asked for all keys and had no name was refused, and no line said so.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_refused_is_audited_and_one_that_an_operator_may_not_read_has_failed() {
    let cluster = cluster(&NAMES, "").await;
    let mut operator = OperatorClient::new(channel(&cluster).await);
    for name in [None, Some("reader"), Some("ops")] {
        let authorization = name.map(bearer);
        let asked = with(authorization.as_deref(), proto::BackupRequest::default());
        let status = operator.backup(asked).await.map(drop).expect_err("not allowed");
        let code = if name.is_some() { Code::PermissionDenied } else { Code::Unauthenticated };
        assert_eq!(status.code(), code, "{name:?}: {status:?}");
    }
    let last = "principal=\"token ops\"";
    let log = cluster.logs_with("the last call", |log| log.contains(last)).await;
    // Only an operator can cause the last line: it is not among those that the log limits.
    for (who, result) in
        [("nobody", "refused"), ("token reader", "refused"), ("token ops", "failed")]
    {
        let line = format!(
            "principal=\"{who}\" call=\"backup\" arguments=\"everything\" result=\"{result}: "
        );
        assert!(log.contains(&line), "{line} is not in\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_none_and_one_of_another_cluster_are_refused_and_the_right_one_is_not_shown()
{
    let cluster = cluster(&NAMES, "").await;
    let get = || proto::GetRequest { key: "k".into(), ..Default::default() };
    let hello = || proto::HelloRequest { protocol: cairn_client::PROTOCOL };
    let channel = channel(&cluster).await;
    let (mut calls, mut operator) = (KvClient::new(channel.clone()), OperatorClient::new(channel));
    let another_clusters = format!("Bearer {SECRET}another");
    for (authorization, word) in [
        (None, "neither a client certificate nor a token"),
        (Some("Bearer wrong"), "does not know the request's token"),
        (Some(another_clusters.as_str()), "use a token of this cluster"),
        (Some("Basic c2VjcmV0"), "is not `Bearer TOKEN`"),
    ] {
        let answers = [
            calls.hello(with(authorization, hello())).await.map(drop),
            calls.get(with(authorization, get())).await.map(drop),
            calls.write(with(authorization, put("k", b"v"))).await.map(drop),
            calls.list(with(authorization, proto::ListRequest::default())).await.map(drop),
            calls.status(with(authorization, proto::StatusRequest {})).await.map(drop),
            calls
                .multiplex(with(
                    authorization,
                    futures::stream::pending::<proto::MultiplexRequest>(),
                ))
                .await
                .map(drop),
            operator.scrub(with(authorization, proto::ScrubRequest { action: 0 })).await.map(drop),
            operator
                .change_members(with(authorization, proto::ChangeMembersRequest::default()))
                .await
                .map(drop),
            operator
                .set_mode(with(authorization, proto::SetModeRequest::default()))
                .await
                .map(drop),
            operator
                .move_leader(with(authorization, proto::MoveLeaderRequest::default()))
                .await
                .map(drop),
            operator.drain(with(authorization, proto::DrainRequest::default())).await.map(drop),
        ];
        for answer in answers {
            let status = answer.expect_err("nobody");
            assert_eq!(
                (status.code(), reason(&status)),
                (Code::Unauthenticated, Reason::Unauthenticated)
            );
            assert!(status.message().contains(word), "{}", status.message());
        }
    }
    let options = cluster.options().token("wrong").expect("a token");
    let connected = options.connect().await;
    assert!(matches!(connected, Err(Error::Unauthenticated { .. })), "{connected:?}");

    // From the environment. A value with a line break is no token.
    for (token, code) in [(format!("{SECRET}all"), 3), ("wrong".into(), 10), ("a\nb".into(), 2)] {
        let endpoint = &cluster.endpoints()[0];
        let mut command = command(cluster.folder.path(), &["get", "k", "--endpoints", endpoint]);
        let command = command.env("CAIRN_TOKEN", &token);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = finish(command.spawn().expect("cairn starts"));
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(!ran.stderr.contains(SECRET), "{ran:?}");
    }
    let shown = format!("{:?} {:?}", client(&cluster, "all"), cluster.options());
    assert!(!shown.contains(SECRET), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_made_and_known_from_the_line_that_comes_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let make =
        |arguments: &[&str]| run(folder.path(), &[&["access", "token"][..], arguments].concat());
    let ran = make(&["ci@build.1", "--roles", "write:ci/", "-o", "json"]);
    let made: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let line = made["configuration"].as_str().expect("a line");
    assert!(line.starts_with("access.\"ci@build.1\" = \"write:ci/ token:"), "{line}");
    let token = made["token"].as_str().expect("a token");
    assert!(!line.contains(token));

    let mut cluster = Cluster::format(1, "64MiB", line).with_token(token);
    cluster.start_all().await;
    let client = cluster.client();
    client.put("ci/1", "v").await.expect("allowed");
    let told = denied(client.put("other", "v").await);
    assert!(told.contains("token ci@build.1"), "{told}");

    for (bad, word) in [
        (&["a b"][..], "a name of 1 to 64"),
        (&["ada", "--roles", "rites"][..], "expected read, read:PREFIX"),
    ] {
        let ran = make(bad);
        assert!(ran.code == 2 && ran.stderr.contains(word), "{ran:?}");
    }
}

/// The story: one client filled the node's bound on writes, over several connections, and the puts
/// of all others were refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_put_is_admitted_however_much_another_client_has_under_way() {
    let limits = "limits.max_in_flight_writes = 8";
    let names =
        [("all", "read write operator"), ("greedy", "write:greedy/"), ("modest", "write:modest/")];
    let cluster = cluster(&names, limits).await;
    let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for connection in 0..8 {
        let channel = channel(&cluster).await;
        for number in 0..16 {
            let mut calls = KvClient::new(channel.clone());
            let (stop, refused) = (Arc::clone(&stop), Arc::clone(&refused));
            tasks.push(tokio::spawn(async move {
                let key = format!("greedy/{connection}/{number}");
                while !stop.load(Ordering::Relaxed) {
                    let request = with(Some(&bearer("greedy")), put(&key, &[7; 1 << 10]));
                    match calls.write(request).await {
                        Ok(_) => {}
                        Err(status) => {
                            assert_eq!(reason(&status), Reason::Overloaded, "{status:?}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }));
        }
    }
    let mut calls = KvClient::new(channel(&cluster).await);
    let mut admitted = 0;
    while admitted < 200 || refused.load(Ordering::Relaxed) < 200 {
        let request = with(Some(&bearer("modest")), put("modest/1", b"v"));
        calls.write(request).await.expect("admitted");
        admitted += 1;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no other error");
    }
}

/// The roles of a name, changed while its client is connected.
#[tokio::test(flavor = "multi_thread")]
async fn roles_that_change_bind_a_connected_client_from_its_next_request_on() {
    let cluster = Cluster::format(1, "64MiB", &access(&[("ada", "write")]));
    let mut layers = cairn_node::config::Layers::new();
    layers.add_file(Path::new(cluster.config(0))).expect("a file");
    let config = cairn_node::NodeConfig::from_layers(&layers).expect("a configuration");
    let environment = Environment::from_files(&config).expect("a directory");
    let node = Node::start(config, environment).await.expect("it starts");
    let ada = client(&cluster, "ada");
    ada.put("k", "1").await.expect("allowed");
    let hash = TokenHash::of(format!("{SECRET}ada").as_bytes());
    let set = |text: String| node.set_access(&Entries::parse(&text).expect("entries"));

    set(format!("ada=read token:{hash}"));
    denied(ada.put("k", "2").await);
    assert_eq!(ada.get("k").await.expect("allowed").expect("there").value, "1");
    set("ada=write".into());
    let revoked = ada.get("k").await;
    assert!(matches!(revoked, Err(Error::Unauthenticated { .. })), "{revoked:?}");
    set(format!("ada=write token:{hash}"));
    ada.put("k", "3").await.expect("allowed again");
    node.shutdown().await.expect("it stops");
}

/// The story: the roles of a backup were looked at when it began, and its stream lasts for hours.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_ends_when_its_caller_may_not_make_one_any_more() {
    const PARTS: usize = 16;
    let names = [("all", "read write operator"), ("ops", "read operator")];
    let cluster = Cluster::format(1, "128MiB", &access(&names));
    let mut layers = cairn_node::config::Layers::new();
    layers.add_file(Path::new(cluster.config(0))).expect("a file");
    let config = cairn_node::NodeConfig::from_layers(&layers).expect("a configuration");
    let environment = Environment::from_files(&config).expect("a directory");
    let node = Node::start(config, environment).await.expect("it starts");
    let all = client(&cluster, "all");
    for number in 0..PARTS {
        all.put(format!("k{number}"), vec![7; 1 << 20]).await.expect("allowed");
    }
    let mut calls =
        OperatorClient::new(channel(&cluster).await).max_decoding_message_size(64 << 20);
    let hash = TokenHash::of(format!("{SECRET}ops").as_bytes());
    for roles in ["read", "operator"] {
        let set = |roles: &str| {
            let ops = format!("ops={roles} token:{hash}");
            node.set_access(&Entries::parse(&ops).expect("entries"));
        };
        set("read operator");
        let asked = with(Some(&bearer("ops")), proto::BackupRequest::default());
        let mut parts = calls.backup(asked).await.expect("allowed").into_inner();
        parts.message().await.expect("the head").expect("a part");
        // What is sent until somebody takes it is far less than all.
        set(roles);
        let mut taken = 0;
        let ended = loop {
            match parts.message().await {
                Ok(Some(_)) => taken += 1,
                ended => break ended,
            }
        };
        let status = ended.expect_err("it ended as if it were whole");
        assert_eq!((status.code(), taken < PARTS), (Code::PermissionDenied, true), "{status}");
    }
    node.shutdown().await.expect("it stops");
}
