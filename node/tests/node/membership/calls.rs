//! The calls themselves: whoever does not lead names the leader; each is audited, and shown.

use crate::support::{
    Cluster, SLOW_ELECTIONS, UNHURRIED_ELECTIONS, WAIT_LIMIT, http_get, json_of, value_of,
};
use cairn_client::proto::change_members_request::Kind;
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::operator_client::OperatorClient;
use cairn_client::proto::{self, ErrorDetail};
use cairn_client::{Mode, NodeStatus, Options, Role};
use tonic::{Code, Status};

/// The leader that a refusal names.
fn named(status: &Status) -> String {
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    let detail = ErrorDetail::of(status).expect("a detail");
    assert_eq!(detail.reason(), Reason::NotLeader);
    detail.leader.expect("the leader").client_address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_names_the_leader_and_the_client_library_goes_there() {
    let more = format!("{SLOW_ELECTIONS}mode = \"sync\"");
    let cluster = Cluster::start(3, "64MiB", &more).await;
    let leader = cluster.leader().await;
    let follower = cluster.endpoints().remove(if leader == 0 { 1 } else { 0 });
    let expected = cluster.endpoints().remove(leader);
    let mut calls =
        OperatorClient::connect(format!("http://{follower}")).await.expect("it listens");
    let change =
        proto::ChangeMembersRequest { kind: Kind::Add.into(), slot: 9, ..Default::default() };
    assert_eq!(named(&calls.change_members(change).await.expect_err("no leader")), expected);
    let mode = proto::SetModeRequest { mode: Mode::Sync.into() };
    assert_eq!(named(&calls.set_mode(mode).await.expect_err("no leader")), expected);
    let to = proto::MoveLeaderRequest { slot: 0 };
    assert_eq!(named(&calls.move_leader(to).await.expect_err("no leader")), expected);

    // A hand-over may take longer than an attempt usually may.
    let options = Options::new([follower]).deadline(WAIT_LIMIT).attempt_timeout(WAIT_LIMIT);
    let operator = options.build().expect("good options").operator();
    operator.set_mode(Mode::Sync).await.expect("the leader sets it");
    let moved = operator.move_leader(None).await.expect("the leader moves it");
    assert_ne!(moved.client_address, expected);
    let moves = async || operator.move_leader(Some(leader as u16 + 1)).await.ok();
    let back = cluster.until("it is moved back", moves).await;
    assert_eq!(back.client_address, expected);

    // The follower's audit does not call that a refusal.
    let audited = |log: &str, words: &str| {
        let lines = log.lines().filter(|line| line.contains("audit: an operator's call"));
        lines.filter(|line| line.contains(words)).count()
    };
    let redirected = "result=\"redirected: node ";
    let log = cluster.logs_with(redirected, |log| audited(log, redirected) >= 3).await;
    assert_eq!(audited(&log, "refused"), 0, "{log}");
}

/// The story: a change of the mode met its deadline and counted as refused, which anybody can cause: the log
/// left its line out among those of strangers.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_meets_its_deadline_is_under_way_in_the_audit() {
    // Whoever leads goes on without a majority.
    let more = "timing.election_min = \"300s\"\ntiming.election_max = \"600s\"\n\
                timing.request = \"500ms\"";
    let mut cluster = Cluster::start(2, "64MiB", more).await;
    let leader = cluster.leader().await;
    cluster.kill_node(1 - leader);
    let endpoint = cluster.endpoints().remove(leader);
    let mut calls =
        OperatorClient::connect(format!("http://{endpoint}")).await.expect("it listens");
    let mode = proto::SetModeRequest { mode: Mode::Sync.into() };
    let late = calls.set_mode(mode).await.expect_err("no majority");
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late:?}");
    let call = "call=\"set-mode\"";
    let log = cluster.logs_with(call, |log| log.contains(call)).await;
    let line = log.lines().find(|line| line.contains(call)).expect("audited");
    assert!(line.contains("result=\"under way: not done within 500 ms"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_is_shown_moved_and_drained_and_a_drained_member_does_not_lead() {
    let more = format!("{UNHURRIED_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let leader = cluster.leader().await;
    let shown = json_of(&cluster.cairn(&["leader", "show", "-o", "json"]));
    assert_eq!(shown["leader"]["slot"], leader + 1, "{shown}");
    assert_eq!(shown["leader"]["client_address"], cluster.endpoints()[leader]);

    let slot = (leader + 1).to_string();
    let drains = async || {
        let ran = cluster.cairn(&["leader", "drain", &slot, "-o", "json"]);
        (ran.code == 0).then(|| json_of(&ran))
    };
    let drained = cluster.until("it is drained", drains).await;
    assert_eq!(drained["drained_ms"], 600_000, "{drained}");
    assert_ne!(drained["leader"]["slot"], leader + 1, "{drained}");
    let text = cluster.cairn(&["leader", "show"]).stdout;
    assert!(text.contains(&format!("slot {slot} does not campaign for 9m")), "{text}");
    let text = cluster.cairn(&["status"]).stdout;
    assert!(text.contains(&format!("cairn leader drain {slot} --end")), "{text}");
    let metrics = http_get(&value_of(cluster.config(leader), "listen.http"), "/metrics");
    for line in ["cairn_drained 1", "cairn_voters 3", "cairn_mode{mode=\"sync\"} 1"] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }

    // The leader dies: only the other one that is not drained takes over.
    // It can win if it has everything that the drained one has.
    let last = cluster.statuses().await.iter().map(|node| node.last_log_index).max();
    cluster.until_all("all have everything", |node| Some(node.last_log_index) >= last).await;
    let second = cluster.leader().await;
    cluster.kill_node(second);
    let third = 3 - leader - second;
    let takes_over = async || {
        let statuses = cluster.statuses().await;
        let leads = |status: &NodeStatus| status.role == Role::Leader;
        statuses.iter().find(|status| leads(status)).map(|status| status.slot)
    };
    let now = cluster.until("another leader", takes_over).await;
    assert_eq!(usize::from(now), third + 1);
    cluster.start_node(second);
    cluster.wait_ready().await;

    let ended = cluster.cairn(&["leader", "drain", &slot, "--end"]);
    assert!(ended.stdout.contains("may lead again"), "{ended:?}");
    let moves = async || {
        let ran = cluster.cairn(&["leader", "move", &slot, "-o", "json"]);
        (ran.code == 0).then(|| json_of(&ran))
    };
    let back = cluster.until("it leads again", moves).await;
    assert_eq!(back["leader"]["slot"], leader + 1, "{back}");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_and_modes_are_listed_with_what_each_member_says_of_itself() {
    let more = format!("{SLOW_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let leader = cluster.leader().await;
    cluster.kill_node(if leader == 2 { 1 } else { 2 });
    for arguments in [&["members", "-o", "json"][..], &["members", "list", "-o", "json"]] {
        let members = json_of(&cluster.cairn(arguments));
        let members = members.as_array().expect("members");
        assert_eq!(members.len(), 3);
        for member in members {
            let slot = member["slot"].as_u64().expect("a slot");
            assert_eq!(member["leader"], slot == leader as u64 + 1, "{member}");
            assert_eq!(member["voter"], true);
        }
        let states = members.iter().filter(|member| member["member_state"] == "active");
        assert_eq!(states.count(), 2, "{members:?}");
    }
    let text = cluster.cairn(&["members"]).stdout;
    assert!(text.starts_with("SLOT  NODE"), "{text}");
    for word in ["leader", "follower", "active", "unreachable"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let logged = |node: &NodeStatus| node.modes.as_ref().is_some_and(|m| m.cluster.is_some());
    cluster.until_all("the mode is in the log", logged).await;
    let modes = json_of(&cluster.cairn(&["mode", "show", "-o", "json"]));
    assert_eq!(modes["cluster"], "sync", "{modes}");
    assert_eq!(modes["nodes"].as_array().map(Vec::len), Some(2));
    let text = cluster.cairn(&["mode", "show"]).stdout;
    assert!(text.starts_with("the cluster's mode is sync\n"), "{text}");
}

/// The story: a machine was added with a configuration that lacked `join`, and served as a second
/// cluster of the same name.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_forms_a_cluster_of_its_own_says_so_in_its_log_once() {
    let mut cluster = Cluster::growing_insecure(2, "64MiB", "");
    for _ in 0..2 {
        cluster.start_node(0);
        cluster.wait_ready().await;
        assert_eq!(cluster.stop_node(0), 0);
    }
    cluster.start_node(1);
    let third = async || {
        let log = cluster.logs();
        (log.matches(" serving node=").count() == 3).then_some(log)
    };
    let log = cluster.until("the other one starts", third).await;
    let words = "an empty directory becomes a cluster of its own: neither [members] nor `join`";
    let said: Vec<&str> = log.lines().filter(|line| line.contains(words)).collect();
    assert!(said.len() == 1 && said[0].contains("WARN"), "{log}");
    let check = ["config", "check", "--config", cluster.config(0)];
    let checked = crate::support::run(cluster.folder.path(), &check);
    assert!(checked.stdout.contains(words), "{checked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_not_waited_for_says_what_it_waits_for() {
    let mut cluster = Cluster::growing_insecure(2, "64MiB", SLOW_ELECTIONS);
    cluster.start_node(0);
    cluster.wait_ready().await;
    let check = ["config", "check", "--config", cluster.config(1)];
    let checked = crate::support::run(cluster.folder.path(), &check);
    assert!(checked.stdout.contains("`cairn members add 2`"), "{checked:?}");
    cluster.start_node(1);
    let says_how = async || {
        let statuses = cluster.statuses().await;
        let own = statuses.into_iter().find(|status| status.slot == 2)?;
        own.not_ready?.contains("`cairn members add 2`").then_some(())
    };
    cluster.until("it says how it becomes a member", says_how).await;
    let own = ["health", "--safe-to-stop", "--slot", "own", "-o", "json"];
    let outside = cluster.cairn_at(1, &own);
    assert_eq!(
        (outside.code, &json_of(&outside)["safe_to_stop"]),
        (0, &true.into()),
        "{outside:?}"
    );
    let only = cluster.cairn_at(0, &own);
    let said: serde_json::Value = serde_json::from_str(only.stdout.trim()).expect("JSON");
    assert_eq!((only.code, &said["members"][0]["slot"]), (4, &1.into()), "{only:?}");
    // The first answers may come before its first request to join.
    let taken = async || {
        let ran = cluster.cairn(&["members", "add", "2", "--no-wait", "-o", "json"]);
        (ran.code == 0).then(|| json_of(&ran))
    };
    let answer = cluster.until("the change is taken", taken).await;
    assert_eq!((&answer["change"], &answer["slot"]), (&"add".into(), &2.into()), "{answer}");
    assert_eq!(answer["done"], answer["waits_for"].is_null(), "{answer}");
    let done = cluster.cairn(&["members", "add", "2"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.stdout.contains("slot 2 votes; 2 voters: slots 1 and 2; none may fail"),
        "{done:?}"
    );
    let again = json_of(&cluster.cairn(&["members", "add", "2", "-o", "json"]));
    assert_eq!(again["done"], true, "done is done: {again}");

    let client = cluster.client();
    let status = client.status(&cluster.endpoints()[0]).await.expect("it runs");
    let calls = status.operator_calls.iter().filter(|call| call.call == "change-members");
    let calls: Vec<_> = calls.map(|call| (call.arguments.as_str(), call.result.as_str())).collect();
    assert!(calls.contains(&("add slot 2", "ok")), "{calls:?}");
}
