//! `cairn dev`: a cluster that starts, is found, keeps its data, and leaves nothing where it should not.
use crate::support::{CAIRN, POLL, WAIT_LIMIT, command, finish, json_of, run, watch};
use cairn_launch::{HeldPort, Signal};
use rustix::process::{Pid, kill_process};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Instant;

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
    let port = first.port().to_string();
    let dev = ["dev", "--detach", "--size", "64MiB", "--port", &port];
    // A busy machine costs the leader no leadership.
    let elections = ["--set", "timing.election_min=3s", "--set", "timing.election_max=6s"];
    let started = cairn(&[&dev[..], &elections].concat());
    assert_eq!(started.code, 0, "{}", started.stderr);

    assert_eq!(cairn(&["put", "greeting", "hello", "--timeout", "120s"]).code, 0);
    let status = json_of(&cairn(&["status", "-o", "json"]));
    assert_eq!(status.as_array().expect("nodes").len(), 3);
    assert!(
        status.as_array().expect("nodes").iter().all(|node| node["durability"]["chosen"] == "auto")
    );
    assert_eq!(json_of(&cairn(&["members", "-o", "json"])).as_array().expect("members").len(), 3);

    let second = cairn(&["dev", "--exit"]);
    assert_eq!(second.code, 2);
    assert!(second.stderr.contains("already runs"), "{}", second.stderr);
    // One in the background leaves the log of the first as it is.
    let log = || std::fs::read_to_string(folder.path().join(".cairn/dev/dev.log")).expect("a log");
    let began = Instant::now();
    while !log().contains("Ctrl-C stops the cluster.") {
        assert!(began.elapsed() < WAIT_LIMIT, "{}", log());
        std::thread::sleep(POLL);
    }
    let before = log();
    let second = cairn(&["dev", "--detach"]);
    assert_eq!(second.code, 2);
    assert!(second.stderr.contains("already runs"), "{}", second.stderr);
    assert_eq!(log(), before);

    assert_eq!(cairn(&["dev", "stop"]).code, 0);
    assert!(!folder.path().join(".cairn/endpoints").exists());
    let lost = cairn(&["get", "greeting", "--timeout", "300ms", "--endpoints", &first.to_string()]);
    assert_eq!(lost.code, 6, "{}", lost.stderr);

    assert_eq!(cairn(&["dev", "--detach"]).code, 0);
    assert_eq!(cairn(&["get", "greeting", "--timeout", "120s"]).stdout, "hello");
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

/// The story: the terminal of an ephemeral cluster was closed, and gigabytes stayed in the folder for temporary
/// files.
#[test]
fn a_closed_terminal_ends_an_ephemeral_cluster_at_any_step_and_leaves_nothing() {
    // Of `env`: SIGHUP ends the process, however the tests were started; or it does not, as with `nohup`.
    let (ends, outlives) = ("--default-signal=HUP", "--ignore-signal=HUP");
    for (form, step, signals, told) in [
        (ends, "a folder", &[Signal::HUP][..], "SIGHUP received"),
        (ends, "ready", &[Signal::HUP], "SIGHUP received"),
        (outlives, "ready", &[Signal::HUP, Signal::TERM], "SIGTERM received, stopping"),
    ] {
        let [folder, temporary] = [(), ()].map(|()| tempfile::tempdir().expect("a folder"));
        let dev = [form, CAIRN, "dev", "--ephemeral", "--size", "64MiB", "--port", "0"];
        let mut dev = cairn_launch::command("env", dev);
        dev.current_dir(folder.path()).env("TMPDIR", temporary.path()).stdin(Stdio::null());
        let dev = dev.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("env starts");
        let left = || std::fs::read_dir(temporary.path()).expect("a folder").count();
        let endpoints = folder.path().join(".cairn/endpoints");
        let mut sent = false;
        let ran = watch(WAIT_LIMIT, dev, |pid| {
            if !sent && (endpoints.exists() || step == "a folder" && left() > 0) {
                sent = true;
                let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
                for signal in signals {
                    kill_process(pid, *signal).expect("it runs");
                }
            }
        });
        assert_eq!(ran.code, 0, "{form} {step}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{form} {step}: {}", ran.stderr);
        assert_eq!(ran.stderr.contains("SIGHUP"), form == ends, "{}", ran.stderr);
        assert!(left() == 0 && !endpoints.exists(), "{form} {step}: {}", ran.stderr);
    }
}
