//! `cairn top`: one frame of a real cluster, and a terminal that is as it was before.
use crate::support::{CAIRN, Cluster, SLOW_ELECTIONS, WAIT_LIMIT, code, run, terminal, value_of};
use cairn_launch::Signal;
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// What a terminal is told to show a screen of its own, and the one before.
const OWN_SCREEN: &str = "\u{1b}[?1049h";
const SCREEN_BEFORE: &str = "\u{1b}[?1049l";

fn http(cluster: &Cluster) -> String {
    let ports = (0..cluster.len()).map(|node| value_of(cluster.config(node), "listen.http"));
    ports.collect::<Vec<_>>().join(",")
}

/// What it tells now.
fn told(cluster: &Cluster) -> Value {
    let http = http(cluster);
    let ran = cluster.cairn(&["top", "--interval", "100ms", "-o", "json", "--http", &http]);
    assert!([0, 6].contains(&ran.code), "{ran:?}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// What it tells once each member and each HTTP port has answered in time.
async fn document(cluster: &Cluster) -> Value {
    let told = async || {
        let view = told(cluster);
        let members = view["members"].as_array().expect("members");
        let answer = members.iter().filter(|member| member["slot"].is_u64()).count();
        let told_by = view["traffic"]["told_by"].as_u64();
        let all = answer == cluster.len() && told_by == Some(cluster.len() as u64);
        all.then_some(view)
    };
    cluster.until("each member answers", told).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_frame_tells_the_members_their_requests_and_memory() {
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    cluster.client().put("key", "value").await.expect("written");
    let view = document(&cluster).await;
    assert_eq!(view["cluster"], "tested", "{view}");
    assert_eq!(view["unread"], serde_json::json!([]), "{view}");
    let members = view["members"].as_array().expect("members");
    assert_eq!(members.len(), 3, "{view}");
    for member in members {
        assert!(member["applied_index"].is_u64() && member["lag_entries"].is_u64(), "{view}");
        assert!(member["resident_bytes"].as_u64() > Some(0), "{view}");
        let states = member["space"].as_array().expect("space");
        assert!(states.iter().any(|part| part["name"] == "free"), "{view}");
    }
    let client = cluster.client();
    let puts = tokio::spawn(async move {
        for _ in 0..u64::MAX {
            client.put("key", "value").await.ok();
        }
    });
    let rate = |view: &Value| view["traffic"]["puts_per_second"].as_u64();
    let busy = async || Some(told(&cluster)).filter(|view| rate(view) > Some(0));
    let view = cluster.until("puts in a second", busy).await;
    puts.abort();
    let history = view["history"]["puts_per_second"].as_array().expect("rates");
    assert_eq!(history.last().and_then(Value::as_u64), rate(&view), "{view}");
    // They all run on one machine, as the leader learns.
    let warned = async || {
        let ran = cluster.cairn(&["top", "--once", "--interval", "100ms"]);
        (ran.code == 0 && ran.stdout.contains("WARNING")).then_some(ran.stdout)
    };
    let frame = cluster.until("a frame with a warning", warned).await;
    for endpoint in cluster.endpoints() {
        assert!(frame.contains(&endpoint) && frame.contains("--http"), "{frame}");
    }
    let asked = ["top", "--once", "--interval", "100ms", "-e", "127.0.0.1:1"];
    let nobody = run(cluster.folder.path(), &asked);
    assert!(nobody.code == 6 && nobody.stdout.contains("CRITICAL"), "{nobody:?}");
}

/// The story: the client's connections say that they speak HTTP/2, and the HTTP port refuses whoever does.
#[tokio::test(flavor = "multi_thread")]
async fn the_http_port_is_read_with_the_certificates_of_the_client_port() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    let view = document(&cluster).await;
    assert_eq!(view["unread"], serde_json::json!([]), "{view}");
    let http = http(&cluster);
    // Without a certificate the port is asked in plain HTTP, and the way out is named.
    let asked = ["top", "--once", "--interval", "100ms", "-e", "127.0.0.1:1", "--http", &http];
    let ran = run(cluster.folder.path(), &asked);
    assert!(ran.stdout.contains(&http) && ran.code == 6, "{ran:?}");
}

#[test]
fn of_a_development_cluster_the_http_ports_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let started = run(folder.path(), &["dev", "--detach", "--size", "64MiB", "--port", "0"]);
    assert_eq!(started.code, 0, "{started:?}");
    let asked = ["top", "--interval", "100ms", "-o", "json"];
    let told = |more: &[&str]| -> Value {
        let ran = run(folder.path(), &[&asked[..], more].concat());
        serde_json::from_str(&ran.stdout).expect("JSON")
    };
    let began = Instant::now();
    loop {
        let view = told(&[]);
        if view["traffic"]["told_by"] == 3 {
            break;
        }
        assert!(began.elapsed() < WAIT_LIMIT, "{view}");
    }
    // Endpoints that are given may be of another cluster.
    let elsewhere = told(&["-e", "127.0.0.1:1"]);
    assert_eq!(elsewhere["traffic"]["told_by"], 0, "{elsewhere}");
    assert_eq!(elsewhere["unread"], serde_json::json!([]), "{elsewhere}");
    assert_eq!(run(folder.path(), &["dev", "stop"]).code, 0);
    assert!(!folder.path().join(".cairn/http").exists());
}

#[test]
fn without_a_terminal_it_says_so_and_names_what_shows_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = run(folder.path(), &["top"]);
    assert!(ran.code == 2 && ran.stderr.contains("`cairn status`"), "{ran:?}");
    assert!(ran.stderr.contains("no terminal") && !ran.stdout.contains('\u{1b}'), "{ran:?}");
    let bad = run(folder.path(), &["top", "--once", "--http", "http://n1:7402/"]);
    assert!(bad.code == 2 && bad.stderr.contains("host:port"), "{bad:?}");
}

/// A terminal of 80 columns, on which `cairn top` runs.
struct Terminal {
    master: File,
    /// Kept open, so that its modes can be read when the program has ended.
    line: File,
    shown: Receiver<Vec<u8>>,
    text: String,
    program: Child,
}

impl Terminal {
    fn start(endpoint: &str) -> Terminal {
        let (master, line) = terminal();
        let end = || line.try_clone().expect("a descriptor");
        let arguments = ["top", "--interval", "100ms", "-e", endpoint];
        let mut command = cairn_launch::command(CAIRN, arguments);
        let command = command.stdin(end()).stdout(end()).stderr(end());
        let program = command.spawn().expect("cairn starts");
        let (sender, shown) = channel();
        let mut output = master.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { master, line, shown, text: String::new(), program }
    }

    fn until(&mut self, words: &str) {
        while !self.text.contains(words) {
            let more = self.shown.recv_timeout(WAIT_LIMIT);
            let more = more.unwrap_or_else(|_| panic!("never {words:?} in {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
    }

    /// Whether it echoes, and gives a program whole lines: as it did before.
    fn is_usual(&self) -> bool {
        let modes = tcgetattr(&self.line).expect("a terminal").local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    fn ended(&mut self) -> i32 {
        let began = Instant::now();
        loop {
            if let Some(status) = self.program.try_wait().expect("our own child") {
                return code(status);
            }
            assert!(began.elapsed() < WAIT_LIMIT, "it does not end: {:?}", self.text);
            std::thread::sleep(crate::support::POLL);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.program.kill().ok();
        self.program.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_as_it_was_before_after_every_way_out() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let endpoint = cluster.endpoints()[0].clone();
    for way in ["q", "\u{3}", "SIGTERM", "SIGINT"] {
        let mut terminal = Terminal::start(&endpoint);
        terminal.until(OWN_SCREEN);
        // The frame comes by pieces, and this one is written at once.
        terminal.until(&endpoint);
        assert!(!terminal.is_usual(), "{way}: {:?}", terminal.text);
        match way {
            "SIGTERM" | "SIGINT" => {
                let signal = if way == "SIGTERM" { Signal::TERM } else { Signal::INT };
                let pid = rustix::process::Pid::from_child(&terminal.program);
                rustix::process::kill_process(pid, signal).expect("our own child");
            }
            key => terminal.master.write_all(key.as_bytes()).expect("typed"),
        }
        terminal.until(SCREEN_BEFORE);
        assert_eq!(terminal.ended(), 0, "{way}: {:?}", terminal.text);
        assert!(terminal.is_usual(), "{way}: {:?}", terminal.text);
    }
}
