//! A cluster with certificates forms and serves; what is not configured right does not start.

use crate::alerts::WITH_CERTIFICATES;
use crate::support::certificates::Ca;
use crate::support::stranger::Stranger;
use crate::support::{Cluster, SLOW_ELECTIONS, WAIT_LIMIT, command, finish, run, value_of};
use cairn_client::Options;
use cairn_launch::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

/// The story: the help gave a certificate that the servers do not know exit code 10, and the command
/// ended with 6.
#[tokio::test]
async fn a_handshake_that_fails_ends_with_the_exit_code_of_the_help() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    let certificates = cluster.certificates.as_ref().expect("secured");
    let other = Ca::of("tested");
    certificates.install("client", &other.pem, &other.issue("client/tester"));
    let ends = async || {
        let ran = cluster.cairn(&["get", "key", "--timeout", "2s"]);
        (!ran.was_cut_short()).then_some(ran)
    };
    let ran = cluster.until("a handshake fails", ends).await;
    assert_eq!(ran.code, 6, "{ran:?}");
    let help = run(cluster.folder.path(), &["--help"]).stdout;
    let of_code = help.lines().find(|line| line.trim_start().starts_with("6  ")).expect("a line");
    assert!(of_code.contains("TLS failed"), "{help}");
}

#[tokio::test]
async fn a_cluster_with_certificates_forms_and_serves() {
    let mut cluster = Cluster::secured(3, "64MiB", SLOW_ELECTIONS);
    cluster.start_all().await;
    assert_eq!(cluster.cairn(&["put", "key", "value"]).code, 0);
    assert_eq!(cluster.cairn(&["get", "key"]).stdout, "value");
    let status: serde_json::Value =
        serde_json::from_str(&cluster.cairn(&["status", "-o", "json"]).stdout).expect("JSON");
    assert!(
        status.as_array().expect("nodes").iter().all(|node| node["insecure"] == false),
        "{status}"
    );
    // What was refused before is in the log before this.
    let formed = "the cluster is formed";
    let logs = cluster.logs_with(formed, |logs| logs.contains(formed)).await;
    // Whoever connected while a node was starting may have given up in the middle of a handshake.
    let gave_up = |line: &&str| line.contains("ended during the TLS handshake");
    let mut refused = logs.lines().filter(|line| line.contains("a connection was refused"));
    assert_eq!(refused.find(|line| !gave_up(line)), None, "{logs}");

    let certificates = cluster.certificates.as_ref().expect("secured");
    let reader = certificates.ca().issue("client/reader");
    let http = value_of(cluster.config(0), "listen.http");
    let (anyone, known) = (Stranger::new(None), Stranger::new(Some(&reader)));
    for path in ["/live", "/ready"] {
        let answer = anyone.get(&http, path).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let refused = anyone.get(&http, "/metrics").await.expect("an answer");
    assert!(
        refused.starts_with("HTTP/1.1 403") && refused.contains("needs a certificate"),
        "{refused}"
    );
    let metrics = known.get(&http, "/metrics").await.expect("an answer");
    assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("cairn_"), "{metrics}");
    // With the first look at the files after the start.
    let ends = async || {
        let metrics = known.get(&http, "/metrics").await.ok()?;
        let served = |name: &str| metrics.contains(&format!("\n{name} "));
        WITH_CERTIFICATES.into_iter().all(served).then_some(())
    };
    cluster.until("the ends of the certificate and its CA are known", ends).await;
}

/// The story: an application had its certificate from a store of secrets, and had to write it to a disk to connect.
#[tokio::test]
async fn a_client_connects_with_certificates_that_are_in_no_file() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    let ca = cluster.certificates.as_ref().expect("secured").ca();
    let own = ca.issue("client/reader");
    let options = || {
        let pem = [&ca.pem, &own.certificate, &own.key].map(|text| text.as_bytes());
        let [ca, certificate, key] = pem;
        Options::new(cluster.endpoints()).tls_pem(ca, certificate, key)
    };
    let client = options().connect_timeout(WAIT_LIMIT).attempt_timeout(WAIT_LIMIT);
    let client = client.deadline(WAIT_LIMIT).connect_within(WAIT_LIMIT).await.expect("a node");
    let written = client.put("key", "value").await.expect("it is written");
    let read = client.get("key").await.expect("it is read").expect("it exists");
    assert_eq!((&read.value[..], read.version), (&b"value"[..], written.version));
    let other = options().cluster("another").build().expect_err("of another cluster");
    assert!(other.to_string().contains("cairn://tested/client/reader"), "{other}");
}

/// The story: a key was copied with the mode of any other file. Whoever had an account on that machine could
/// become the member, and nobody was told.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_everybody_can_read_is_named_at_the_start_at_each_reload_and_to_clients() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    let certificates = cluster.certificates.as_ref().expect("secured");
    let [key, own] = ["member-1", "client"].map(|who| certificates.files(who)[2].clone());
    let set = |file: &Path, mode| {
        std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).expect("ours");
    };
    let way_out = |file: &Path| format!("`chmod 600 {}`", file.display());
    let warned = |log: &str| {
        let lines = log.lines().filter(|line| line.contains("WARN") && line.contains("`tls.key`"));
        lines.filter(|line| line.contains(&way_out(&key))).count()
    };
    set(&key, 0o644);
    cluster.start_all().await;
    // The warning of a reload comes before the line that says it was read.
    let read = "SIGHUP: the configuration was read";
    for (reloads, mode, warnings) in [(1, 0o600, 1), (2, 0o640, 1), (3, 0o644, 2)] {
        set(&key, mode);
        cluster.signal_node(0, Signal::HUP);
        let log = cluster.logs_with(read, |log| log.matches(read).count() == reloads).await;
        assert_eq!(warned(&log), warnings, "mode {mode:o}\n{log}");
    }
    let checked = cluster.cairn_alone(&["config", "check", "--config", cluster.config(0)]);
    assert!(checked.code == 0 && checked.stdout.contains(&way_out(&key)), "{checked:?}");

    for (mode, is_named) in [(0o600, false), (0o644, true)] {
        set(&own, mode);
        for form in ["text", "json"] {
            let ran = cluster.cairn(&["put", "key", "value", "-o", form]);
            assert_eq!(ran.code, 0, "{ran:?}");
            let named = ran.stderr.contains(&way_out(&own));
            assert_eq!(named, is_named && form == "text", "mode {mode:o}: {ran:?}");
            assert!(form == "text" || ran.stderr.is_empty(), "for people: {ran:?}");
        }
    }
}

/// The story: a new machine got the certificates and not the `access` lines of the other members. Every client might
/// do everything there, and nobody was told.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_access_lines_says_what_every_certificate_allows_until_it_has_them() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    let words = "`access` is not configured: every client with a certificate";
    let warned = |log: &str| {
        let lines = log.lines().filter(|line| line.contains("WARN") && line.contains(words));
        lines.filter(|line| line.contains("`access.NAME")).count()
    };
    assert_eq!(warned(&cluster.log(0)), 1, "{}", cluster.logs());
    let check = ["config", "check", "--config", cluster.config(0)];
    let checked = cluster.cairn_alone(&check);
    assert!(checked.code == 0 && checked.stdout.contains(words), "{checked:?}");
    let chosen = cluster.cairn_alone(&[&check[..], &["--set", "access=none"]].concat());
    assert!(chosen.code == 0 && !chosen.stdout.contains(words), "{chosen:?}");

    // The warning of a reload comes before the line that says it was read.
    let read = "SIGHUP: the configuration was read";
    cluster.signal_node(0, Signal::HUP);
    let log = cluster.logs_with(read, |log| log.matches(read).count() == 1).await;
    assert_eq!(warned(&log), 2, "{log}");
    let text = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    cluster.configure(0, "access.client = \"read write operator\"");
    cluster.signal_node(0, Signal::HUP);
    let log = cluster.logs_with(read, |log| log.matches(read).count() == 2).await;
    assert!(warned(&log) == 2 && log.contains("access = of client"), "{log}");
    // It still goes by the lines that it had.
    std::fs::write(cluster.config(0), &text).expect("a file");
    cluster.signal_node(0, Signal::HUP);
    let log = cluster.logs_with(read, |log| log.matches(read).count() == 3).await;
    assert_eq!(warned(&log), 2, "{log}");
}

#[tokio::test]
async fn an_insecure_node_says_so() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let words = "`insecure = true`: connections have no certificates";
    cluster.logs_with(words, |logs| logs.contains(words)).await;
    let status = cluster.cairn(&["status"]);
    assert!(
        status.stdout.contains("insecure: connections have no certificates"),
        "{}",
        status.stdout
    );
    let status = cluster.cairn(&["status", "-o", "json"]).stdout;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status[0]["insecure"], true);
}

#[test]
fn a_node_without_a_decision_or_with_the_wrong_files_does_not_start() {
    let cluster = Cluster::secured(1, "64MiB", "");
    let certificates = cluster.certificates.as_ref().expect("secured");
    let (ca, config) = (certificates.ca(), cluster.config(0));
    let refused = |more: &[&str], words: &[&str]| {
        for command in [&["config", "check"][..], &["serve"]] {
            let arguments = [command, &["--config", config], more].concat();
            let ran = run(cluster.folder.path(), &arguments);
            assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.stderr);
            assert!(
                words.iter().all(|word| ran.stderr.contains(word)),
                "{words:?}: {}",
                ran.stderr
            );
        }
    };
    let none = ["--set", "tls.ca=none", "--set", "tls.certificate=none", "--set", "tls.key=none"];
    refused(&none, &["cairn certs init", "insecure = true"]);
    refused(&["--set", "insecure=true"], &["exclude each other"]);
    refused(&["--set", "tls.key=none"], &["are given together"]);
    refused(&["--set", "tls.ca=/nowhere"], &["`tls.ca` (--set): /nowhere", "No such file"]);
    let with = |arguments: &[&str], variable: &str| {
        let mut command = command(cluster.folder.path(), arguments);
        command.env(variable, "/nowhere").stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().expect("cairn starts"))
    };
    let ran = with(&["serve", "--config", config], "CAIRN_TLS_KEY");
    let words = "`tls.key` (CAIRN_TLS_KEY): /nowhere";
    assert!(ran.code == 2 && ran.stderr.contains(words), "{}", ran.stderr);
    // The story: a server that started in a client's environment took the client's certificate, and
    // a client in a server's container the server's. Each has variables of its own.
    let checked = with(&["config", "check", "--config", config], "CAIRN_CLIENT_TLS_KEY");
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    let get = ["get", "key", "--timeout", "1s", "--endpoints", &cluster.endpoints()[0]];
    let ran = with(&get, "CAIRN_TLS_KEY");
    assert!(ran.code == 6 && !ran.stderr.contains("/nowhere"), "{}", ran.stderr);
    let ran = with(&get, "CAIRN_CLIENT_TLS_KEY");
    assert!(ran.code == 2 && ran.stderr.contains("--tls-ca"), "{}", ran.stderr);
    let printed =
        run(cluster.folder.path(), &[&["config", "print", "--config", config][..], &none].concat());
    assert_eq!(printed.code, 0);
    assert!(
        printed.stdout.contains("Connections here: none: neither certificates"),
        "{}",
        printed.stdout
    );
    let printed = run(cluster.folder.path(), &["config", "print", "--config", config]);
    assert!(
        printed.stdout.contains("Connections here: TLS as cairn://tested/member/1"),
        "{}",
        printed.stdout
    );

    certificates.install("member-1", &ca.pem, &ca.issue("member/2"));
    refused(
        &[],
        &["the certificate is cairn://tested/member/2, and this member is cairn://tested/member/1"],
    );
    certificates.install("member-1", &ca.pem, &ca.issue("client/reader"));
    refused(&[], &["the certificate is cairn://tested/client/reader"]);
}

/// Runs `cairn get key` against a cluster, with these flags.
fn get(cluster: &Cluster, flags: &[&str]) -> (i32, String) {
    let endpoints = cluster.endpoints().join(",");
    let arguments =
        [&["get", "key", "--timeout", "2s", "--endpoints", &endpoints][..], flags].concat();
    for _ in 0..60 {
        let mut command = command(cluster.folder.path(), &arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = finish(command.spawn().expect("cairn"));
        if !ran.was_cut_short() {
            return (ran.code, ran.stderr);
        }
    }
    panic!("two seconds are never enough:\n{}", cluster.logs());
}

#[tokio::test]
async fn a_client_that_does_not_fit_the_server_is_told_why() {
    let mut secured = Cluster::secured(1, "64MiB", "");
    secured.start_all().await;
    let insecure = Cluster::start(1, "64MiB", "").await;
    let certificates = secured.certificates.as_ref().expect("secured");
    let files = certificates.files("client").map(|file| file.to_str().expect("text").to_owned());
    let flags = ["--tls-ca", &files[0], "--tls-certificate", &files[1], "--tls-key", &files[2]];

    let (code, said) = get(&secured, &[]);
    assert!(
        code == 6 && said.contains("the server speaks TLS, and this client has no certificate"),
        "{code} {said}"
    );
    let (code, said) = get(&insecure, &flags);
    assert!(
        code == 6 && said.contains("the other side speaks plain text, not TLS"),
        "{code} {said}"
    );
    let words = "the other side speaks TLS, and this server is `insecure`";
    insecure.logs_with(words, |logs| logs.contains(words)).await;
    let words = "the other side speaks plain text, and this port speaks TLS";
    secured.logs_with(words, |logs| logs.contains(words)).await;

    let (code, said) = get(&secured, &flags[..4]);
    assert!(code == 2 && said.contains("--tls-key"), "{code} {said}");
    let wrong = [&flags[..4], &["--tls-key", &files[0]]].concat();
    let (code, said) = get(&secured, &wrong);
    assert!(code == 2 && said.contains("not a private key in PEM"), "{code} {said}");
    let http = format!("http://{}", secured.endpoints()[0]);
    let plain = [&flags[..], &["--endpoints", &http]].concat();
    let (code, said) = get(&secured, &plain);
    assert!(
        code == 2 && said.contains("it is without TLS, and the client has certificates"),
        "{code} {said}"
    );
    let https = format!("https://{}", secured.endpoints()[0]);
    let arguments = [&["put", "key", "value", "--endpoints", &https][..], &flags].concat();
    assert_eq!(run(secured.folder.path(), &arguments).code, 0);
}
