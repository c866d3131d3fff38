//! The command line against a real cluster, from requests to exit codes.
use crate::support::{Cluster, SLOW_ELECTIONS, command, finish, json_of, run, terminal};
use cairn_launch::HeldPort;
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works_and_ends_with_its_exit_code() {
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
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
    assert_eq!(cairn(&["list", "--end", "b", "-k"]).stdout, "a\n");
    assert_eq!(cairn(&["list", "--end", "b", "--reverse", "--max-stale", "5s"]).stdout, "a\t2\n");

    assert_eq!(cairn(&["list", "--count"]).stdout, "2\n");
    assert_eq!(cairn(&["list", "--count", "--start-after", "a"]).stdout, "1\n");
    assert_eq!(cairn(&["list", "b", "--count", "--end", "b"]).stdout, "0\n");
    let counted = cairn(&["list", "a", "--count", "-o", "json"]);
    assert_eq!(counted.stdout, "{\"count\":1}\n", "{counted:?}");
    assert_eq!(cairn(&["list", "--count", "--reverse"]).code, 2);

    assert_eq!(cairn(&["get", "b", "a"]).stdout, "b\t2\na\t2\n");
    assert_eq!(cairn(&["get", "a", "--max-stale", "1h"]).stdout, "2");
    let both = cairn(&["get", "none", "a", "-o", "json"]);
    assert_eq!(both.code, 3, "{both:?}");
    let told: Value = serde_json::from_str(&both.stdout).expect("a document");
    assert_eq!(told["items"][0], json!({ "key": "none", "version": null }));
    assert_eq!(told["items"][1]["value"], "2");
    assert!(told["index"].as_u64() >= told["items"][1]["version"].as_u64(), "{told}");
    let both = cairn(&["get", "none", "a", "nor this", "--version-only"]);
    assert!(both.stderr.contains("keys `none`, `nor this` do not exist"), "{both:?}");
    assert!(both.stdout.starts_with("a\t"), "{both:?}");
    let both = cairn(&["get", "a", "b", "--stale"]);
    assert!(both.code == 2 && both.stderr.contains("--max-stale"), "{both:?}");
    assert_eq!(cairn(&["get", "a", "--stale", "--max-stale", "1s"]).code, 2);

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
async fn a_prefix_is_deleted_by_whoever_has_read_how_many_keys_it_has() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    cluster.until_ranges().await;
    let cairn = |arguments: &[&str]| cluster.cairn(arguments);
    for key in ["a", "a/1", "a/2", "a/3", "a0"] {
        assert_eq!(cairn(&["put", key, "v"]).code, 0);
    }
    let refused = cairn(&["delete", "--prefix", "a/"]);
    assert!(refused.code == 2 && refused.stderr.contains("add --yes"), "{refused:?}");
    let endpoint = cluster.endpoints().remove(0);
    let answered = |answer: &[u8]| {
        let (mut master, line) = terminal();
        let arguments = ["delete", "--prefix", "a/", "-e", &endpoint, "--timeout", "60s"];
        let mut command = command(cluster.folder.path(), &arguments);
        let command = command.stdin(line).stdout(Stdio::piped()).stderr(Stdio::piped());
        // It waits in the terminal until it is read.
        master.write_all(answer).expect("typed");
        finish(command.spawn().expect("cairn starts"))
    };
    let kept = answered(b"no\n");
    assert!(kept.code != 0 && kept.stderr.contains("nothing was deleted"), "{kept:?}");
    assert_eq!(cairn(&["list", "-k"]).stdout, "a\na/1\na/2\na/3\na0\n");
    let deleted = answered(b"yes\n");
    assert!(deleted.stderr.contains("begin with `a/`, 3 keys now?"), "{deleted:?}");
    assert_eq!((deleted.code, deleted.stdout.as_str()), (0, "3 keys deleted\n"));
    assert_eq!(cairn(&["list", "-k"]).stdout, "a\na0\n");

    assert_eq!(cairn(&["delete", "--prefix", "a/"]).stdout, "0 keys deleted\n", "nothing to ask");
    let unset = cairn(&["delete", "--prefix", "", "--yes"]);
    assert!(unset.code == 2 && unset.stderr.contains("every key of the cluster"), "{unset:?}");
    let all = ["delete", "--escaped", "--prefix", r"\x61", "--yes", "-o", "json"];
    assert_eq!(json_of(&cairn(&all)), json!({ "deleted": 2 }));
    for wrong in [&["delete"][..], &["delete", "a", "--prefix", "b"], &["delete", "a", "--yes"]] {
        assert_eq!(cairn(wrong).code, 2, "{wrong:?}");
    }
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
    let cluster = Cluster::start(3, "128MiB", SLOW_ELECTIONS).await;
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

    assert_eq!(cluster.cairn(&["put", "kept", &"1".repeat(8192)]).code, 0);
    let applied = async || {
        let found = cluster.statuses().await.into_iter().next()?;
        found.storage.filter(|storage| storage.keys == 1).map(drop)
    };
    cluster.until("the bench's keys are gone everywhere", applied).await;
    let http = crate::support::value_of(cluster.config(0), "listen.http");
    let metrics = crate::support::http_get(&http, "/metrics");
    for name in [
        "cairn_requests_total{",
        "cairn_peer_requests_total{method=\"append\"}",
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

/// The story: `cairn bench` wrote 100,000 keys all over a live key space, left them, and wrote the same
/// ones again.
#[tokio::test(flavor = "multi_thread")]
async fn a_bench_asks_beside_other_keys_and_leaves_none_of_its_own() {
    let cluster = Cluster::start(1, "128MiB", "").await;
    let cairn = |arguments: &[&str]| cluster.cairn(arguments);
    fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["bench", "--clients", "8", "--size", "100", "-o", "json"][..], more].concat()
    }
    let alone = json_of(&cairn(&with(&["--count", "500", "--keys", "400"])));
    assert_eq!((&alone["keys"], &alone["keys_put"]), (&json!(400), &json!(400)));
    assert_eq!(cairn(&["list"]).stdout, "");
    let read = json_of(&cairn(&with(&["--count", "100", "--keys", "20", "--mix", "0"])));
    assert_eq!((&read["gets"]["requests"], &read["gets_found"]), (&json!(100), &json!(100)));

    for other in ["a", "z"] {
        assert_eq!(cairn(&["put", other, "1"]).code, 0);
        let refused = cairn(&with(&["--count", "10"]));
        assert!(refused.code == 2 && refused.stderr.contains("add --yes"), "{refused:?}");
        json_of(&cairn(&with(&["--count", "10", "--yes"])));
        assert_eq!(cairn(&["list", "-k"]).stdout, format!("{other}\n"));
        assert_eq!(cairn(&["delete", other]).code, 0);
    }
    // A number alone means seconds.
    let timed = json_of(&cairn(&with(&["--seconds", "0.2"])));
    assert_eq!(timed["bound"]["seconds"], json!(0.2));

    let client = cluster.client();
    let keys = async || {
        let options = cairn_client::ListOptions::prefix("cairn-bench/").limit(1).keys_only();
        client.list(options).await.expect("served").items.len()
    };
    for (signal, code) in [("TERM", 1), ("KILL", -9)] {
        let ended = cluster.spawn(&with(&["--seconds", "300"]));
        let puts = async || (keys().await > 0).then_some(());
        cluster.until("it puts", puts).await;
        let id = ended.id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", signal, &id]).status();
        assert!(sent.expect("kill runs").success());
        let ran = finish(ended);
        assert_eq!(ran.code, code, "{ran:?}");
        if signal == "TERM" {
            assert!(ran.stderr.contains("its keys are removed"), "{ran:?}");
            assert_eq!(keys().await, 0);
        }
    }
    let cleaned = json_of(&cairn(&["bench", "clean", "-o", "json"]));
    assert!(cleaned["removed"].as_u64() > Some(0), "{cleaned}");
    assert_eq!(cairn(&["list"]).stdout, "");
}

/// The story: nobody could read the note that more keys follow, and the command ended with 101.
#[tokio::test(flavor = "multi_thread")]
async fn a_standard_error_that_fails_ends_no_command() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    for key in ["a", "b"] {
        assert_eq!(cluster.cairn(&["put", key, "1"]).code, 0);
    }
    let full = || {
        let full = std::fs::File::options().write(true).open("/dev/full");
        Stdio::from(full.expect("a full device"))
    };
    let endpoints = cluster.endpoints().join(",");
    for (arguments, code, printed) in [
        (&["list", "--limit", "1", "-e", &endpoints][..], 0, "a\t1\n"),
        (&["get", "missing", "-e", &endpoints], 3, ""),
        (&["get", "missing", "-o", "json", "-e", &endpoints], 3, ""),
        (&["no-such-command"], 2, ""),
        (&["config", "check"], 2, ""),
        (&["bench", "--count", "10", "-e", &endpoints], 2, ""),
    ] {
        let mut command = command(cluster.folder.path(), arguments);
        let child = command.stdout(Stdio::piped()).stderr(full()).spawn().expect("cairn starts");
        let ran = finish(child);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, printed), "{arguments:?}");
        let mut child = command.stderr(Stdio::piped()).spawn().expect("cairn starts");
        drop(child.stderr.take());
        let ran = finish(child);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, printed), "{arguments:?}, closed");
    }
}

/// The story: an operator's call with escape sequences and a forged line in its arguments was shown as it
/// was to whoever asked for the status.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_wrote_is_shown_and_never_obeyed() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let hostile =
        "sync\u{1b}[2J\u{9b}2J\u{202e}\n127.0.0.1:1: 1s ago nobody called scrub (start): ok";
    let change = cairn_client::MemberChange::Move(1, hostile.into());
    let refused = cluster.client().operator().change_members(&change).await;
    let message = refused.expect_err("no address").to_string();
    let key = "k\u{1b}[2J\u{202e}\u{85}";
    cluster.client().put(key, key).await.expect("served");
    let shows = |text: &str| {
        let obeyed = |c: char| c != '\n' && c != '\t' && cairn_client::shown::is_unprintable(c);
        assert!(!text.contains(obeyed), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("127.0.0.1:1: ")), "{text}");
    };
    shows(&message);
    let log = cluster.logs_with("the call", |logs| logs.contains("change-members")).await;
    shows(&log);
    for arguments in [&["status"][..], &["list"], &["mode", "show"], &["members"]] {
        for form in ["text", "json"] {
            let ran = cluster.cairn(&[arguments, &["-o", form]].concat());
            assert_eq!(ran.code, 0, "{ran:?}");
            shows(&ran.stdout);
        }
    }
    // What is shown can be typed, and a value is printed as it is.
    let listed = cluster.cairn(&["list", "-k"]).stdout;
    assert_eq!(cluster.cairn(&["get", "--escaped", listed.trim_end()]).stdout, key);
    let json = json_of(&cluster.cairn(&["get", "-o", "json", key]));
    assert_eq!((&json["key"], &json["value"]), (&json!(key), &json!(key)));
}

#[test]
fn an_error_does_not_echo_an_input_of_any_length() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = "x\u{1b}[2J".repeat(25_000);
    let escaped = format!("\\q{}", "y".repeat(100_000));
    let set = format!("slot={long}");
    let roles = format!("--roles={long}");
    for arguments in [
        &["mode", "set", &long][..],
        &[long.as_str()],
        &["get", "--escaped", &escaped],
        &["put", "k", &format!("@{}", "z".repeat(100_000))],
        &["get", "k", "-e", &long],
        &["get", "k", "--timeout", &long],
        &["config", "check", "--set", &set],
        &["config", "check", "--config", &escaped],
        &["access", "token", &long],
        &["access", "token", "a", &roles],
        &["certs", "issue", "pki", "--client", &long],
    ] {
        for form in [&[][..], &["-o", "json"]] {
            let ran = run(folder.path(), &[arguments, form].concat());
            let name = arguments.first().map(|name| name.chars().take(20).collect::<String>());
            assert!(ran.code != 0 && ran.stderr.len() < 10_000, "{name:?}: {}", ran.stderr.len());
            assert!(!ran.stderr.contains('\u{1b}'), "{name:?}: {:?}", ran.stderr);
        }
    }
}

/// The story: a file of variables set all of them, some to nothing, and no command found its cluster.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_variable_counts_as_unset() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(".cairn")).expect("a folder");
    std::fs::write(folder.path().join(".cairn/endpoints"), cluster.endpoints().join("\n"))
        .expect("a file");
    let mut command = command(folder.path(), &["put", "a", "1"]);
    for variable in [
        "CAIRN_ENDPOINTS",
        "CAIRN_TIMEOUT",
        "CAIRN_TOKEN",
        "CAIRN_TOKEN_FILE",
        "CAIRN_CLIENT_TLS_CA",
        "CAIRN_CLIENT_TLS_CERTIFICATE",
        "CAIRN_CLIENT_TLS_KEY",
        "CAIRN_CONFIG",
    ] {
        command.env(variable, "");
    }
    let ran = finish(command.stderr(Stdio::piped()).spawn().expect("cairn starts"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
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
