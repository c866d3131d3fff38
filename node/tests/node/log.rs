//! The log of a real node, above a standard error that does not take it, and below strangers.
use crate::support::{Cluster, http_get, raw::Raw, value_of};
use cairn_client::{Error, ScrubAction};
use cairn_launch::Signal;
use cairn_node::access::TokenHash;
use std::io::{PipeReader, Read, pipe};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A metric of a node without certificates.
fn metric(cluster: &Cluster, name: &str) -> u64 {
    let metrics = http_get(&value_of(cluster.config(0), "listen.http"), "/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

async fn serves_and_stops(cluster: &mut Cluster) {
    let client = cluster.client();
    for number in 0..100 {
        client.put(format!("key-{number}"), "value").await.expect("it serves");
    }
    cluster.signal_node(0, Signal::TERM);
    assert_eq!(cluster.ended(0), 0, "a clean stop");
}

/// Starts the node with a pipe for its output. Returns the other end.
fn start_with_pipe(cluster: &mut Cluster) -> PipeReader {
    let (read, write) = pipe().expect("a pipe");
    let name = format!("/proc/self/fd/{}", write.as_raw_fd());
    cluster.start_node_writing_to(0, Path::new(&name));
    read
}

/// Everything that a node can say, so that it says much.
const LOUD: &str = "log.level = \"trace,h2=trace,hyper=trace,openraft=trace\"";

/// The story: the file system below the log was full, or its reader had ended, and the node died with
/// exit code 101 at its next line.
#[tokio::test(flavor = "multi_thread")]
async fn a_standard_error_that_fails_costs_lines_and_never_the_node() {
    let mut cluster = Cluster::format(1, "64MiB", LOUD);
    cluster.start_node_writing_to(0, Path::new("/dev/full"));
    cluster.wait_ready().await;
    let dropped = async || (metric(&cluster, "cairn_log_dropped_lines_total") > 0).then_some(());
    cluster.until("lines are counted", dropped).await;
    serves_and_stops(&mut cluster).await;

    drop(start_with_pipe(&mut cluster));
    cluster.wait_ready().await;
    let dropped = async || (metric(&cluster, "cairn_log_dropped_lines_total") > 0).then_some(());
    cluster.until("lines are counted", dropped).await;
    serves_and_stops(&mut cluster).await;
}

/// The story: a program started the node and did not read the pipe that it gave it. The node hung at
/// its next line, SIGTERM included.
#[tokio::test(flavor = "multi_thread")]
async fn a_standard_error_that_nobody_reads_costs_lines_which_are_counted_and_said_later() {
    let mut cluster = Cluster::format(1, "64MiB", LOUD);
    for read in [false, true] {
        let mut unread = start_with_pipe(&mut cluster);
        cluster.wait_ready().await;
        let client = cluster.client();
        let dropped = async || {
            client.put("key", "value").await.expect("it serves");
            (metric(&cluster, "cairn_log_dropped_lines_total") > 0).then_some(())
        };
        cluster.until("the queue is full", dropped).await;
        if read {
            let text = Arc::new(Mutex::new(Vec::new()));
            let kept = Arc::clone(&text);
            std::thread::spawn(move || {
                let mut piece = [0; 65_536];
                while let Ok(count @ 1..) = unread.read(&mut piece) {
                    kept.lock().unwrap().extend_from_slice(&piece[..count]);
                }
            });
            let said = async || {
                let text = String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
                let line = text.lines().find(|line| line.contains("log lines were lost"));
                line.map(str::to_owned)
            };
            let line = cluster.until("what was lost is said", said).await;
            assert!(line.contains("WARN") && line.contains("lines="), "{line}");
        }
        serves_and_stops(&mut cluster).await;
    }
}

/// The story: answers to pings that nobody had sent made the HTTP/2 library write 52 MB of WARN lines
/// in 0.8 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_fills_no_log() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    for sent in [20_000, 40_000, 60_000] {
        let mut stranger = Raw::connect(&cluster.endpoints()[0]);
        stranger.answer_pings(20_000);
        let left_out = async || {
            let suppressed = metric(&cluster, "cairn_log_suppressed_lines_total");
            (suppressed > sent - 1000).then_some(())
        };
        cluster.until("lines are left out", left_out).await;
    }
    let said = |logs: &str| logs.contains("log lines of one kind were left out");
    let logs = cluster.logs_with("what was left out is said", said).await;
    let lines = logs.lines().filter(|line| line.contains("PING")).count();
    assert!((1..1000).contains(&lines), "{lines} of 60,000 lines are in the log");
    let line = logs.lines().find(|line| said(line)).expect("said");
    assert!(line.contains("WARN") && line.contains(" lines=") && line.contains("h2::"), "{line}");
}

/// The story: each refused call of the operators' service was one line, and anybody can call it.
#[tokio::test(flavor = "multi_thread")]
async fn refused_calls_of_operators_are_limited_and_allowed_ones_are_all_in_the_log() {
    let more = ["ops", "reader"].map(|name| {
        let role = if name == "ops" { "operator" } else { "read" };
        format!("access.{name} = \"{role} token:{}\"", TokenHash::of(name.as_bytes()))
    });
    let cluster = Cluster::format(1, "64MiB", &more.join("\n")).with_token("ops");
    let mut cluster = cluster;
    cluster.start_all().await;
    let endpoint = cluster.endpoints().remove(0);
    let reader = cluster.options().token("reader").expect("a token").build().expect("options");
    for _ in 0..1000 {
        let refused = reader.operator().scrub(&endpoint, ScrubAction::Show).await;
        assert!(matches!(refused, Err(Error::PermissionDenied { .. })), "{refused:?}");
    }
    let operator = cluster.client().operator();
    for _ in 0..200 {
        operator.scrub(&endpoint, ScrubAction::Show).await.expect("allowed");
    }
    let audited = |logs: &str, words: &str| {
        let lines = logs.lines().filter(|line| line.contains("audit: an operator's call"));
        lines.filter(|line| line.contains(words)).count()
    };
    let allowed = |logs: &str| audited(logs, "token ops") == 200;
    let logs = cluster.logs_with("every allowed call", allowed).await;
    let refused = audited(&logs, "token reader");
    assert!((1..1000).contains(&refused), "{refused} of 1000 refused calls are in the log");
}

/// The story: the log was JSON, and the reason for which a server did not start was a line of text in
/// it.
#[test]
fn why_a_server_does_not_start_has_the_form_of_its_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("cairn.toml");
    let serve = |text: &str, more: &[&str]| {
        std::fs::write(&config, text).expect("a file");
        let arguments = [&["serve", "--config", "cairn.toml"][..], more].concat();
        let ran = crate::support::run(folder.path(), &arguments);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        ran.stderr
    };
    let json = "[log]\nformat = \"json\"\n";
    for (text, more, words) in [
        // Nothing is given; a key is none; the file is no TOML; a value is none; a level is none.
        (json.to_owned(), &[][..], "is not set"),
        (format!("slto = 1\n{json}"), &[], "did you mean `slot`"),
        (format!("{json}level = \n"), &[], "is not valid TOML"),
        (String::new(), &["--log-format", "json", "--set", "slot=x"], "expected a whole number"),
        (String::new(), &["--set", "log.format=json", "--set", "log.level=loud"], "`loud`"),
        (String::new(), &["-o", "json"], "is not set"),
    ] {
        let said = serve(&text, more);
        let document: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
        assert_eq!(document["level"], "ERROR", "{said}");
        assert_eq!(document["exit_code"], 2, "{said}");
        assert!(document["error"].as_str().is_some_and(|error| error.contains(words)), "{said}");
        assert!(document["timestamp"].is_string(), "{said}");
    }
    assert!(serve("", &[]).starts_with("cairn: `slot` is not set"));
}
