//! What a new user meets: a cluster that is not formed yet, `cairn dev`, names of commands in other
//! tools, help, and results for programs.
use crate::support::{
    CAIRN, Cluster, SLOW_ELECTIONS, UNHURRIED_ELECTIONS, WAIT_LIMIT, command, finish, http_get,
    json_of, run, value_of,
};
use cairn_launch::{Server, serve};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

fn ready(cluster: &Cluster, node: usize) -> (bool, String) {
    let answer = http_get(&value_of(cluster.config(node), "listen.http"), "/ready");
    (answer.starts_with("HTTP/1.1 200"), answer)
}

/// The story: two of three members were started, and every command said "no leader", which sent the
/// user to look for a network problem.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_waits_for_a_member_says_for_which() {
    let mut cluster = Cluster::format(3, "64MiB", SLOW_ELECTIONS);
    cluster.start_node(0);
    cluster.start_node(1);
    let missing = value_of(cluster.config(2), "listen.peer");
    let sentence = format!("not formed: waiting for slot 3 at {missing}");
    let said = |node: &cairn_client::NodeStatus| {
        node.not_ready.as_ref().is_some_and(|why| why.contains(&sentence))
    };
    cluster.until_all("both say for whom they wait", said).await;
    for arguments in [&["put", "a", "1"][..], &["get", "a"], &["list"], &["members"], &["status"]] {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--timeout", "2s"]);
        // The deadline may cut the last attempt short: then the command reports only that.
        let said = async || {
            let ran = cluster.cairn(&arguments);
            let cut_short = ran.code == 5 || ran.was_cut_short();
            assert!(ran.code == 6 || cut_short, "{arguments:?}: {ran:?}");
            (ran.code == 6 && (ran.stdout + &ran.stderr).contains(&sentence)).then_some(())
        };
        cluster.until("the command says for whom the cluster waits", said).await;
    }
    for node in [0, 1] {
        let (is_ready, answer) = ready(&cluster, node);
        assert!(!is_ready && answer.contains(&sentence), "{answer}");
    }
    cluster.start_node(2);
    cluster.wait_ready().await;
    cluster.until_all("all are ready", |node| node.not_ready.is_none()).await;
    assert!(ready(&cluster, 2).0);
    assert_eq!(cluster.cairn(&["put", "a", "1"]).code, 0);
    // No value's debug form is in the log.
    let formed = "the cluster is formed";
    let log = cluster.logs_with(formed, |logs| logs.contains(formed)).await;
    assert!(!log.contains("Some(") && !log.contains("[\""), "{log}");
}

/// The story: a leader that had lost both followers answered 200 for as long as it ran, and the load
/// balancer sent it all clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_majority_is_not_ready_and_its_health_check_fails() {
    let mut cluster = Cluster::start(3, "64MiB", UNHURRIED_ELECTIONS).await;
    let compose = include_str!("../../../deploy/compose.yaml");
    let check = compose.lines().find_map(|line| line.trim().strip_prefix("test: [CMD, cairn, "));
    let check = check.expect("a health check").trim_end_matches(']');
    let check: Vec<&str> = check.split(", ").map(|word| word.trim_matches('"')).collect();
    // In each container the command runs beside its own server.
    let healthy = |cluster: &Cluster, node: usize| {
        let own = value_of(cluster.config(node), "listen.client");
        let arguments: Vec<&str> =
            check.iter().map(|word| if *word == "127.0.0.1:7400" { &own } else { *word }).collect();
        let mut command = command(cluster.folder.path(), &arguments);
        command.env("CAIRN_ENDPOINTS", cluster.endpoints().join(","));
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("cairn")).code
    };
    let leader = cluster.leader().await;
    let all = async || (0..3).all(|node| ready(&cluster, node).0).then_some(());
    cluster.until("all are ready", all).await;
    assert!((0..3).all(|node| healthy(&cluster, node) == 0));
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    cluster.kill_node(others[0]);
    assert_eq!(healthy(&cluster, others[0]), 6, "its own server is gone, the others work");
    assert_eq!(healthy(&cluster, leader), 0);
    cluster.kill_node(others[1]);
    let noticed = async || {
        let (is_ready, answer) = ready(&cluster, leader);
        (!is_ready).then_some(answer)
    };
    let answer = cluster.until("the last one is not ready", noticed).await;
    assert!(answer.contains("503") && answer.contains("not ready: no "), "{answer}");
    assert_eq!(healthy(&cluster, leader), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_no_configuration_has_is_told_before_and_after_it_starts() {
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let (_ports, own) = crate::support::hold(3);
    let text = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    let keys = ["listen.client", "listen.peer", "listen.http"];
    let mut text = text.replace("slot = 1\n", "slot = 4\n").replace("data-1", "data-4");
    for (key, address) in keys.iter().zip(&own) {
        let old = format!("{key} = \"{}\"", value_of(cluster.config(0), key));
        text = text.replace(&old, &format!("{key} = \"{address}\""));
    }
    text += &format!("[members.4]\nclient = \"{}\"\npeer = \"{}\"\n", own[0], own[1]);
    let config = cluster.folder.path().join("4.toml");
    std::fs::write(&config, text).expect("a file");
    let config = config.to_str().expect("text");
    let cairn = |arguments: &[&str]| run(cluster.folder.path(), arguments);
    let sentence = "slot 4 is in no configuration of the cluster, whose voters are slots 1, 2 and 3: this member serves nobody; \
                    add it with `cairn members add 4`";

    // Whoever does not answer it within a second is left out.
    let checked = async || {
        let checked = cairn(&["config", "check", "--config", config]);
        assert_eq!(checked.code, 0, "{}", checked.stderr);
        checked.stdout.contains(sentence).then_some(())
    };
    cluster.until("the check says so", checked).await;
    let good = cairn(&["config", "check", "--config", cluster.config(1), "-o", "json"]);
    assert_eq!(json_of(&good)["warnings"], json!([]));

    assert_eq!(cairn(&["format", "--config", config]).code, 0);
    let log = cluster.folder.path().join("4.log");
    let command = serve(CAIRN, Path::new(config));
    let mut server = Server::start("the fourth member", command, &log).expect("cairn starts");
    let told = async || {
        let status = cairn(&["status", "--only", "-e", &own[0]]);
        status.stdout.contains(sentence).then_some(status.code)
    };
    assert_eq!(cluster.until("its status says so", told).await, 6);
    server.stop(WAIT_LIMIT).expect("it stops");
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains(sentence), "{log}");
}

#[test]
fn a_development_cluster_is_stopped_by_the_command_that_it_prints() {
    let folder = tempfile::tempdir().expect("a folder");
    let cairn = |arguments: &[&str]| run(folder.path(), arguments);
    let nothing = cairn(&["dev", "stop", "--dir", "no such"]);
    assert_eq!(nothing.code, 1);
    assert!(nothing.stderr.contains("no cluster runs in no such"), "{}", nothing.stderr);

    let dir = ["--dir", "my cluster", "--size", "64MiB", "--port", "0"];
    let started = cairn(&[&["dev", "--detach"], &dir[..]].concat());
    assert_eq!(started.code, 0, "{}", started.stderr);
    let stop = started.stdout.lines().find_map(|line| line.strip_prefix("Stop it with: "));
    let stop = stop.expect("a command");
    // Anywhere: the folder is named in full.
    let stopped = Command::new("sh").args(["-c", stop]).current_dir("/").output().expect("a shell");
    assert!(stopped.status.success(), "{stop}: {stopped:?}");

    let again = cairn(&[&["dev", "--detach", "-o", "json"], &dir[..2]].concat());
    let stop = json_of(&again)["stop"].as_str().expect("a command").to_string();
    let stopped = Command::new("sh").args(["-c", &stop]).output().expect("a shell");
    assert!(stopped.status.success(), "{stop}: {stopped:?}");
}

/// The story: `cairn dev --size 5GiB` on a cluster of 1 GiB said nothing, and the cluster stayed as it
/// was.
#[test]
fn a_development_cluster_refuses_options_that_it_does_not_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let dev =
        |more: &[&str]| run(folder.path(), &[&["dev", "--exit", "--dir", "d"], more].concat());
    let small = dev(&["--size", "10MiB"]);
    assert_eq!(small.code, 2, "{}", small.stderr);
    assert!(small.stderr.contains("--size: `10MiB` is not a value"), "{}", small.stderr);
    assert_eq!(dev(&["--size", "64MiB", "--port", "0"]).code, 0);
    let file = folder.path().join("d/node-1.toml");
    let client = value_of(file.to_str().expect("text"), "listen.client");
    let port = client.rsplit(':').next().expect("a port");
    for (option, value, there) in
        [("--size", "80MiB", "storage.size = 64MiB"), ("--port", "1", client.as_str())]
    {
        let ran = dev(&[option, value]);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        for words in [&format!("{option} {value}"), there, "give another --dir"] {
            assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
        }
    }
    assert_eq!(dev(&["--size", "65536K", "--port", port]).code, 0, "they are equal");
}

/// The story: a first start that failed left its configurations, and the next one with a right
/// command line took them for a cluster and failed like the first.
#[test]
fn a_first_start_of_a_development_cluster_that_fails_leaves_nothing_but_logs() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().join("d");
    let dev = |more: &[&str]| {
        let always = ["dev", "--exit", "--port", "0", "--dir", "d"];
        run(folder.path(), &[&always[..], more].concat())
    };
    let left = || {
        let entries = std::fs::read_dir(&home).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
        let mut names: Vec<String> = names.map(|name| name.expect("text")).collect();
        names.retain(|name| !name.ends_with(".log") && name != "lock");
        names
    };
    // The nodes do not start.
    let tls = ["--set", "tls.ca=a", "--set", "tls.certificate=b", "--set", "tls.key=c"];
    let ran = dev(&[&["--size", "64MiB"], &tls[..]].concat());
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    // Whichever of them ended first is named.
    let named = (1..=3).any(|node| ran.stderr.contains(&format!("node-{node}.log")));
    assert!(named, "{}", ran.stderr);
    assert_eq!(left(), [""; 0]);
    // The second directory is not formatted. What was there before stays.
    std::fs::write(home.join("node-2.unfinished"), "no folder").expect("a file");
    assert_eq!(dev(&["--size", "64MiB"]).code, 1);
    assert_eq!(left(), ["node-2.unfinished"]);
    std::fs::remove_file(home.join("node-2.unfinished")).expect("a file");
    let ran = dev(&["--size", "80MiB"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn a_demonstration_suggests_nothing_that_is_gone_and_says_what_one_machine_means() {
    let folder = tempfile::tempdir().expect("a folder");
    let shown = run(
        folder.path(),
        &["dev", "--demo", "--exit", "--size", "64MiB", "--port", "0", "--dir", "d"],
    );
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.contains("get greeting → "), "{}", shown.stdout);
    for gone in ["put greeting hello", "Ctrl-C", " status"] {
        assert!(!shown.stdout.contains(gone), "{gone}: {}", shown.stdout);
    }
    assert!(shown.stdout.contains("but slots 1, 2 and 3 run on one machine: "), "{}", shown.stdout);
    let again = shown.stdout.rsplit('`').nth(1).expect("a command");
    let mut words: Vec<&str> = again.split(' ').skip(1).collect();
    words.extend(["--demo", "--exit", "-o", "json"]);
    let ran = json_of(&run(Path::new("/"), &words));
    assert_eq!(ran["demo"]["put"], "greeting");
    assert_eq!(ran["endpoints"].as_array().map(Vec::len), Some(3));
}

/// The story: `list -o json` printed a document for each key, and `jq` and `json.load` read the first
/// one or failed.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_prints_one_json_document() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let cairn = |arguments: &[&str]| cluster.cairn(&[arguments, &["-o", "json"]].concat());
    assert_eq!(json_of(&cairn(&["list"])), json!({ "items": [], "more": false }));
    for key in ["a", "b", "c"] {
        assert!(json_of(&cairn(&["put", key, "1"]))["version"].is_u64());
    }
    let listed = json_of(&cairn(&["list", "--limit", "2"]));
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    assert_eq!((&listed["items"][1]["key"], &listed["more"]), (&json!("b"), &json!(true)));
    let keys = json_of(&cairn(&["list", "--limit", "0", "-k"]));
    assert_eq!((&keys["items"][2]["value"], &keys["more"]), (&Value::Null, &json!(false)));
    for arguments in [
        &["get", "a"][..],
        &["delete", "a"],
        &["status"],
        &["status", "--only"],
        &["members"],
        &["members", "list"],
        &["mode", "show"],
        &["leader", "show"],
        &["scrub", "status"],
        &["bench", "--count", "10", "--clients", "1", "--yes"],
    ] {
        json_of(&cairn(arguments));
    }
    let config = cluster.config(0);
    for arguments in [
        &["config", "print", "--config", config][..],
        &["config", "check", "--config", config],
        &["doctor", "--config", config],
        &["format", "--config", config, "--dir", "another"],
        &["inspect", "another"],
        &["grow", "--config", config, "--dir", "another", "--size", "80MiB"],
    ] {
        let ran = run(cluster.folder.path(), &[arguments, &["-o", "json"]].concat());
        assert!(json_of(&ran).is_object(), "{arguments:?}");
    }
    let (_ports, mut unheard) = crate::support::hold(1);
    let nobody = unheard.remove(0);
    let unused =
        |arguments: &[&str]| run(cluster.folder.path(), &[&["-o", "json"], arguments].concat());
    for (arguments, ran) in [
        ("get", cairn(&["get", "missing"])),
        ("put", cairn(&["put", "a", "1", "--if-version", "9"])),
        ("ls", unused(&["ls"])),
        ("put without a key", unused(&["put"])),
        ("format", unused(&["format", "--config", config])),
        ("dev stop", unused(&["dev", "stop"])),
        (
            "bench",
            run(cluster.folder.path(), &["bench", "--json", "-e", &nobody, "--timeout", "300ms"]),
        ),
    ] {
        let error: Value = serde_json::from_str(&ran.stderr).expect("one document");
        assert!(error["error"].is_string() && ran.stdout.is_empty(), "{arguments}: {error}");
        assert_eq!(error["exit_code"], ran.code, "{arguments}");
    }
    // What each node said is the result. The error is told beside it.
    let ran = unused(&["status", "-e", &nobody, "--timeout", "300ms"]);
    let error: Value = serde_json::from_str(&ran.stderr).expect("one document");
    assert_eq!((ran.code, &error["exit_code"]), (6, &json!(6)), "{error}");
    let nodes: Value = serde_json::from_str(&ran.stdout).expect("one document");
    assert!(nodes[0]["error"].is_string(), "{nodes}");
}

#[test]
fn names_of_other_tools_are_answered_with_the_name_here() {
    let folder = tempfile::tempdir().expect("a folder");
    for (given, meant) in [
        ("ls", "cairn list"),
        ("del", "cairn delete"),
        ("rm", "cairn delete"),
        ("subscribe", "cairn watch"),
        ("ready", "cairn status"),
        ("version", "cairn --version"),
        ("drain", "cairn leader drain"),
        ("transfer-leader", "cairn leader move"),
    ] {
        let ran = run(folder.path(), &[given]);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains(&format!("use `{meant}`")), "{}", ran.stderr);
        let meant: Vec<&str> = meant.split(' ').skip(1).chain(["--help"]).collect();
        assert_eq!(run(folder.path(), &meant).code, 0, "{meant:?} exists");
    }
}

/// The story: ten lines about `--output` and nine about finding the cluster stood on every page.
#[test]
fn help_pages_do_not_repeat_one_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = |name: &str| -> BTreeSet<String> {
        let help = run(folder.path(), &[name, "--help"]).stdout;
        let lines = help.lines().map(|line| line.trim().to_string());
        lines.filter(|line| !line.is_empty() && !line.ends_with(':')).collect()
    };
    let names = ["put", "get", "list", "status", "scrub", "members"];
    let pages: Vec<BTreeSet<String>> = names.into_iter().map(page).collect();
    let first = &pages[0];
    let common: Vec<&String> =
        first.iter().filter(|line| pages.iter().all(|page| page.contains(*line))).collect();
    assert!(common.len() <= 8, "{common:#?}");
    let all = run(folder.path(), &["--help"]).stdout;
    assert!(all.contains("CAIRN_ENDPOINTS") && all.contains("one JSON document"), "{all}");
}
