//! The command line against a real cluster, from `cairn dev` to exit codes.
use crate::support::{Cluster, Ran, command, finish, run};
use cairn_ports::HeldPort;
use serde_json::{Value, json};
use std::net::TcpListener;

fn json_of(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Ports in the layout of `cairn dev --port`. This test holds all of them, even while no cluster
/// runs.
fn row_of_ports() -> Vec<HeldPort> {
    loop {
        let first = HeldPort::any().expect("a port");
        let port = |offset| {
            let mut address = first.address();
            address.set_port(address.port().checked_add(offset)?);
            HeldPort::alone_at(address).ok()
        };
        let others: Option<Vec<HeldPort>> =
            [1, 2, 10, 11, 12, 20, 21, 22].into_iter().map(port).collect();
        if let Some(others) = others {
            return std::iter::once(first).chain(others).collect();
        }
    }
}

#[test]
fn a_development_cluster_starts_is_found_without_flags_and_keeps_its_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let cairn = |arguments: &[&str]| run(folder.path(), arguments);
    let ports = row_of_ports();
    let first = ports[0].address();
    let started =
        cairn(&["dev", "--detach", "--size", "64MiB", "--port", &first.port().to_string()]);
    assert_eq!(started.code, 0, "{}", started.stderr);

    assert_eq!(cairn(&["put", "greeting", "hello"]).code, 0);
    let status = json_of(&cairn(&["status", "-o", "json"]));
    assert_eq!(status.as_array().expect("nodes").len(), 3);
    assert!(
        status.as_array().expect("nodes").iter().all(|node| node["durability"]["chosen"] == "auto")
    );
    assert_eq!(json_of(&cairn(&["members", "-o", "json"])).as_array().expect("members").len(), 3);

    let second = cairn(&["dev", "--exit"]);
    assert_eq!(second.code, 2);
    assert!(second.stderr.contains("already runs"), "{}", second.stderr);

    assert_eq!(cairn(&["dev", "stop"]).code, 0);
    assert!(!folder.path().join(".cairn/endpoints").exists());
    let lost = cairn(&["get", "greeting", "--timeout", "300ms", "--endpoints", &first.to_string()]);
    assert_eq!(lost.code, 6, "{}", lost.stderr);

    assert_eq!(cairn(&["dev", "--detach"]).code, 0);
    assert_eq!(cairn(&["get", "greeting"]).stdout, "hello");
    assert_eq!(cairn(&["dev", "stop"]).code, 0);
}

/// The story: the first node's log had the reason, but the command showed only the last lines of
/// it, whatever they were.
#[test]
fn a_development_cluster_reports_a_port_in_use_and_where_it_is_configured() {
    let folder = tempfile::tempdir().expect("a folder");
    let ports = row_of_ports();
    let dev =
        ["dev", "--exit", "--size", "64MiB", "--port", &ports[0].address().port().to_string()];
    let taken = TcpListener::bind(ports[4].address()).expect("a port");
    let refused = run(folder.path(), &dev);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    for words in [ports[4].address().to_string().as_str(), "give another --port", "in use"] {
        assert!(refused.stderr.contains(words), "{words} is not in {}", refused.stderr);
    }
    drop(taken);
    let made = run(folder.path(), &dev);
    assert_eq!(made.code, 0, "{}", made.stderr);

    let taken = TcpListener::bind(ports[4].address()).expect("a port");
    let refused = run(folder.path(), &["dev", "--exit"]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    for words in [ports[4].address().to_string().as_str(), "listen.peer", "node-2.toml", "in use"] {
        assert!(refused.stderr.contains(words), "{words} is not in {}", refused.stderr);
    }
    drop(taken);
    let started = run(folder.path(), &["dev", "--exit"]);
    assert_eq!(started.code, 0, "{}", started.stderr);
}

#[test]
fn the_demonstration_puts_and_gets_and_an_ephemeral_cluster_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let temporary = tempfile::tempdir().expect("a folder");
    let mut demo = command(
        folder.path(),
        &["dev", "--demo", "--exit", "--ephemeral", "--size", "64MiB", "--port", "0"],
    );
    demo.env("TMPDIR", temporary.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let ran = finish(demo.spawn().expect("cairn starts"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("get greeting → \"hello from a quorum of three\""),
        "{}",
        ran.stdout
    );
    assert_eq!(std::fs::read_dir(temporary.path()).expect("a folder").count(), 0);
    assert!(!folder.path().join(".cairn/endpoints").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works_and_ends_with_its_exit_code() {
    let cluster = Cluster::start(3, "64MiB", "").await;
    let cairn = |arguments: &[&str]| cluster.cairn(arguments);

    let put = json_of(&cairn(&["put", "a", "1", "-o", "json"]));
    let version = put["version"].as_u64().expect("a version");
    assert_eq!(put["previous_version"], Value::Null);
    assert_eq!(cairn(&["get", "a"]).stdout, "1");
    assert_eq!(
        json_of(&cairn(&["get", "a", "-o", "json"])),
        json!({ "key": "a", "value": "1", "version": version })
    );

    let missing = cairn(&["get", "nothing"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (3, ""));
    assert!(missing.stderr.contains("`nothing` does not exist"), "{}", missing.stderr);

    assert_eq!(cairn(&["put", "a", "2", "--if-absent"]).code, 4);
    assert_eq!(cairn(&["put", "a", "2", "--if-version", "999999"]).code, 4);
    assert_eq!(cairn(&["put", "a", "2", "--if-version", &version.to_string()]).code, 0);
    assert_eq!(cairn(&["put", "b", "2", "--if-exists"]).code, 4);
    assert_eq!(cairn(&["put", "b", "2", "--if-absent"]).code, 0);
    assert_eq!(cairn(&["get", "a", "--stale", "--version-only"]).code, 0);

    assert_eq!(cairn(&["list", "--keys-only"]).stdout, "a\nb\n");
    assert_eq!(cairn(&["list", "--reverse", "--limit", "1"]).stdout, "b\t2\n");
    assert_eq!(cairn(&["list", "--start-after", "a", "-k"]).stdout, "b\n");
    assert_eq!(cairn(&["list", "x"]).stdout, "");

    assert_eq!(cairn(&["delete", "a"]).code, 0);
    assert_eq!(cairn(&["get", "a"]).code, 3);
    assert_eq!(cairn(&["delete", "a"]).code, 0);
    assert_eq!(cairn(&["delete", "a", "--if-exists"]).code, 4);

    let unused = HeldPort::any().expect("a port");
    let address = unused.address().to_string();
    let unreachable =
        run(cluster.folder.path(), &["get", "b", "-e", &address, "--timeout", "300ms"]);
    assert_eq!(unreachable.code, 6, "{}", unreachable.stderr);
    assert_eq!(run(cluster.folder.path(), &["put"]).code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_values_of_any_bytes_go_in_and_come_out() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let cairn = |arguments: &[&str]| cluster.cairn(arguments);
    let file = cluster.folder.path().join("value");
    std::fs::write(&file, [0xff, 0x00, b'\n']).expect("a file");

    let from_file = format!("@{}", file.display());
    assert_eq!(cairn(&["put", "--escaped", r"\x01\xff", &from_file]).code, 0);
    assert_eq!(cairn(&["list"]).stdout, "\\x01\\xff\t\\xff\\x00\\n\n");
    let read = json_of(&cairn(&["get", "--escaped", r"\x01\xff", "-o", "json"]));
    assert_eq!((&read["key_base64"], &read["value_base64"]), (&json!("Af8="), &json!("/wAK")));
    assert_eq!(cairn(&["put", "--literal", "at", "@x"]).code, 0);
    assert_eq!(cairn(&["get", "at"]).stdout, "@x");
    let nameless = cairn(&["put", "at", "@"]);
    assert_eq!(nameless.code, 2);
    assert!(nameless.stderr.contains("the value `@` names no file"), "{}", nameless.stderr);
    assert_eq!(cairn(&["put", "minus", "-5"]).code, 0);
    assert_eq!(cairn(&["get", "minus"]).stdout, "-5");
    assert_eq!(cairn(&["put", "empty", ""]).code, 0);
    assert_eq!(cairn(&["get", "empty"]).stdout, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_reports_its_requests_and_the_metrics_show_them() {
    let cluster = Cluster::start(3, "128MiB", "").await;
    let report = json_of(&cluster.cairn(&[
        "bench",
        "--count",
        "200",
        "--clients",
        "8",
        "--size",
        "1KiB",
        "--mix",
        "50",
        "--keys",
        "10",
        "--json",
    ]));
    let requests = |kind: &str| report[kind]["requests"].as_u64().expect("a number");
    assert_eq!(requests("puts") + requests("gets"), 200);
    assert!(report["puts"]["p99_us"].as_u64() >= report["puts"]["p50_us"].as_u64());

    let http = crate::support::value_of(cluster.config(0), "listen.http");
    let metrics = crate::support::http_get(&http, "/metrics");
    for name in [
        "cairn_requests_total{",
        "cairn_request_duration_seconds_bucket",
        "cairn_unsynced_bytes",
        "cairn_syncs_total",
    ] {
        assert!(metrics.contains(name), "{name} is not in\n{metrics}");
    }
    let values = |name: &str| -> Vec<u64> {
        let lines = metrics.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
    };
    let parts = values("cairn_data_use_bytes{part=");
    assert_eq!(parts.len(), 9, "{metrics}");
    assert_eq!(values("cairn_data_capacity_bytes "), [parts.iter().sum::<u64>()]);
    assert!(values("cairn_data_use_bytes{part=\"live\"}") > vec![0]);
    assert_eq!(values("cairn_moved_bytes_total "), [0]);
    assert!(crate::support::http_get(&http, "/live").starts_with("HTTP/1.1 200"));
    assert!(crate::support::http_get(&http, "/ready").starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_inspected_once_its_node_has_stopped() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    assert_eq!(cluster.cairn(&["put", "a", "1"]).code, 0);
    let data = cluster.data(0).display().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let inspect = || run(folder.path(), &["inspect", &data, "--values", "-o", "json"]);
    let open = inspect();
    assert_eq!(open.code, 1);
    assert!(open.stderr.contains("in use"), "{}", open.stderr);

    assert_eq!(cluster.stop_node(0), 0);
    let found = json_of(&inspect());
    assert_eq!((&found["verifies"], &found["known"]["cluster"]), (&json!(true), &json!("tested")));
    let group = &found["contents"]["groups"][0];
    assert_eq!(group["values"]["damaged"], json!(0));
    assert!(group["values"]["checked"].as_u64() >= Some(1), "{group}");
    let text = run(folder.path(), &["inspect", &data]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    assert!(text.stdout.contains("Everything that was read verifies."), "{}", text.stdout);

    let path = cluster.data(0).join("superblock");
    let mut bytes = std::fs::read(&path).expect("the superblock");
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    let damaged = inspect();
    assert_eq!(damaged.code, 1);
    let found: Value = serde_json::from_str(&damaged.stdout).expect("JSON");
    assert_eq!(found["verifies"], json!(false));
    assert!(found["superblock_copies"][0]["error"].is_string(), "{found}");
    assert_eq!(std::fs::read(&path).expect("the superblock"), bytes, "nothing is written");
    let missing = run(folder.path(), &["inspect", "nowhere"]);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("nowhere"), "{}", missing.stderr);
}

#[test]
fn a_bad_value_of_the_environment_is_told_with_its_variable() {
    let folder = tempfile::tempdir().expect("a folder");
    let endpoint = "CAIRN_ENDPOINTS: invalid client options: endpoint `here`";
    for (args, variable, value, words) in [
        (&["get", "a"][..], "CAIRN_TIMEOUT", "soon", "CAIRN_TIMEOUT: invalid value 'soon'"),
        (&["get", "a"], "CAIRN_ENDPOINTS", "here", endpoint),
        (&["bench"], "CAIRN_ENDPOINTS", "here", endpoint),
    ] {
        let mut command = crate::support::command(folder.path(), args);
        let command = command.env(variable, value).stderr(std::process::Stdio::piped());
        let ran = finish(command.spawn().expect("cairn starts"));
        assert!(ran.code == 2 && ran.stderr.contains(words), "{}", ran.stderr);
    }
    let ran = run(folder.path(), &["get", "a", "-e", "here", "--timeout", "soon"]);
    assert!(ran.code == 2 && !ran.stderr.contains("CAIRN_"), "{}", ran.stderr);
}

#[test]
fn completions_and_exit_codes_are_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(folder.path(), &["completions", shell]).stdout.contains("cairn"), "{shell}");
    }
    let help = run(folder.path(), &["put", "--help"]);
    assert_eq!(help.code, 0);
    assert!(run(folder.path(), &["--help"]).stdout.contains("4  a condition did not hold"));
}
