//! A game day on a cluster of `cairn dev`, by the command line.

use crate::support::{CAIRN, POLL, Ran, WAIT_LIMIT, command, finish_within, json_of, run};
use cairn_launch::Signal;
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// A cluster in the background, which ends with this.
struct Dev {
    folder: TempDir,
}

impl Dev {
    fn start(more: &[&str]) -> Dev {
        let folder = tempfile::tempdir().expect("a folder");
        let always = ["dev", "--detach", "--size", "64MiB", "--port", "0"];
        // A busy machine costs no leader its leadership; one that a fault ends is replaced after a few seconds.
        let elections = ["--set", "timing.election_min=3s", "--set", "timing.election_max=6s"];
        let started = run(folder.path(), &[&always[..], &elections, more].concat());
        assert_eq!(started.code, 0, "{}", started.stderr);
        Dev { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn cairn(&self, arguments: &[&str]) -> Ran {
        run(self.path(), arguments)
    }

    /// A game day takes longer than other commands.
    fn game_day(&self, more: &[&str]) -> Ran {
        finish_within(WAIT_LIMIT * 10, self.begin_game_day(&[&["--lasts", "1s"], more].concat()))
    }

    fn begin_game_day(&self, more: &[&str]) -> Child {
        // Of `env`: SIGHUP ends the process, however the tests were started.
        let always = [
            "--default-signal=HUP",
            CAIRN,
            "game-day",
            "--yes",
            "--wait",
            "10m",
            "--timeout",
            "120s",
        ];
        let mut command = cairn_launch::command("env", [&always[..], more].concat());
        command.current_dir(self.path()).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        child.expect("cairn starts")
    }

    /// The process of each member that runs, and its state as the kernel calls it, by slot.
    fn processes(&self) -> Vec<(u16, i32, char)> {
        let home = self.path().canonicalize().expect("a folder").join(".cairn/dev");
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("Linux").filter_map(Result::ok) {
            let name = entry.file_name().into_string().unwrap_or_default();
            let Ok(id) = name.parse::<i32>() else { continue };
            let read = |file: &str| std::fs::read_to_string(entry.path().join(file));
            // A process may end meanwhile.
            let (Ok(line), Ok(stat)) = (read("cmdline"), read("stat")) else { continue };
            let config = |slot: u16| home.join(format!("node-{slot}.toml"));
            let is_of = |slot: &u16| line.split('\0').any(|word| Path::new(word) == config(*slot));
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if let (Some(slot), Some(state)) = ((1..=3).find(is_of), state) {
                found.push((slot, id, state));
            }
        }
        found.sort_unstable();
        found
    }

    /// Waits until something is so.
    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            let log = self.path().join(".cairn/dev/dev.log");
            let log = std::fs::read_to_string(log).unwrap_or_default();
            assert!(began.elapsed() < WAIT_LIMIT, "never: {what}\n{log}");
            std::thread::sleep(POLL);
        }
    }
}

/// Clients of the cluster, which end with this.
struct Clients(Child);

impl Drop for Clients {
    fn drop(&mut self) {
        self.0.kill().expect("our own child");
        self.0.wait().expect("our own child");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        run(self.folder.path(), &["dev", "stop"]);
    }
}

fn fault<'a>(day: &'a Value, name: &str) -> &'a Value {
    let faults = day["faults"].as_array().expect("faults");
    faults.iter().find(|fault| fault["fault"] == name).expect("the fault")
}

fn identities(dev: &Dev) -> Vec<Value> {
    let nodes = json_of(&dev.cairn(&["status", "-o", "json"]));
    nodes.as_array().expect("nodes").iter().map(|node| node["node_id"].clone()).collect()
}

#[test]
fn a_cluster_lives_through_a_game_day_loses_nothing_and_is_as_it_was() {
    let dev = Dev::start(&["--restart"]);
    assert_eq!(dev.cairn(&["put", "mine", "stays"]).code, 0);
    let before = identities(&dev);
    let only = "stop,kill,pause,cut,disk";
    let arguments = ["--only", only, "--lose-a-disk", "--report", "day.md", "-o", "json"];
    let day = json_of(&dev.game_day(&arguments));
    assert_eq!((&day["passed"], &day["lost"]), (&Value::from(true), &Value::from(0)), "{day}");
    for name in ["stop", "kill", "pause", "disk"] {
        let told = fault(&day, name);
        assert_eq!(
            (&told["verdict"], &told["skipped"]),
            (&Value::from("as expected"), &Value::Null)
        );
        assert!(told["acknowledged"].as_u64() >= Some(50), "{told}");
        assert!(told["checked"].as_u64() >= Some(256), "{told}");
        assert!(told["gap_ms"].is_u64() && told["well_after_ms"].is_u64(), "{told}");
    }
    assert!(fault(&day, "cut")["skipped"].as_str().is_some_and(|why| why.contains("loopback")));

    let page = std::fs::read_to_string(dev.path().join("day.md")).expect("a report");
    assert!(page.starts_with("# Game day of cluster dev") && page.contains("nothing is lost"));
    // Its keys are gone, others are there, and one member is another one.
    assert_eq!(dev.cairn(&["list", "cairn-game-day/"]).stdout.trim(), "");
    assert_eq!(dev.cairn(&["get", "mine"]).stdout, "stays");
    let after = identities(&dev);
    let changed = after.iter().filter(|identity| !before.contains(identity)).count();
    assert_eq!((after.len(), changed), (3, 1), "{before:?} {after:?}");
    let left = std::fs::read_dir(dev.path().join(".cairn/dev")).expect("a folder");
    let names = left.map(|entry| entry.expect("an entry").file_name());
    let names: Vec<String> = names.map(|name| name.into_string().expect("text")).collect();
    let is_ours = |name: &String| name.ends_with(".hold") || name.ends_with(".lost");
    assert!(!names.iter().any(is_ours), "{names:?}");
    // A report is not written over.
    let again = dev.game_day(&["--only", "stop", "--report", "day.md"]);
    assert_eq!(again.code, 2, "{}", again.stderr);
    assert!(again.stderr.contains("day.md"), "{}", again.stderr);
}

#[test]
fn a_game_day_that_is_ended_in_a_fault_undoes_it_and_removes_its_keys() {
    let dev = Dev::start(&["--restart"]);
    let day = dev.begin_game_day(&["--only", "kill", "--lasts", "10h", "-o", "json"]);
    let paused = || dev.processes().iter().any(|(_, _, state)| *state == 'T');
    dev.until("a member is killed, and down for ten hours", || dev.processes().len() == 2);
    kill_process(Pid::from_child(&day), Signal::INT).expect("our own child");
    let ran = finish_within(WAIT_LIMIT * 10, day);
    assert_eq!(ran.code, 1, "{ran:?}");
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let trouble = told["trouble"].as_str().unwrap_or_default();
    assert!(trouble.contains("SIGINT was received"), "{told}");
    // The fault that was broken off is in the report.
    let trouble = fault(&told, "kill")["trouble"].as_str().unwrap_or_default();
    assert!(trouble.contains("broken off"), "{told}");
    assert_eq!(dev.processes().len(), 3);

    let day = dev.begin_game_day(&["--only", "pause", "--lasts", "10h", "-o", "json"]);
    dev.until("a member is paused for ten hours", paused);
    kill_process(Pid::from_child(&day), Signal::TERM).expect("our own child");
    let ran = finish_within(WAIT_LIMIT * 10, day);
    assert!(ran.code == 1 && ran.stdout.contains("SIGTERM was received"), "{ran:?}");
    assert!(!paused(), "{:?}", dev.processes());
    assert_eq!(dev.cairn(&["list", "cairn-game-day/"]).stdout.trim(), "");
}

/// The story: the terminal was closed, which ended the game day at once, and the member that it had paused stayed
/// so.
#[test]
fn a_closed_terminal_undoes_what_a_game_day_did_though_it_is_told_twice() {
    let dev = Dev::start(&["--restart"]);
    let paused = || dev.processes().iter().any(|(_, _, state)| *state == 'T');
    let day = dev.begin_game_day(&["--only", "pause", "--lasts", "10h", "-o", "json"]);
    dev.until("a member is paused for ten hours", paused);
    for _ in 0..2 {
        kill_process(Pid::from_child(&day), Signal::HUP).expect("our own child");
    }
    let ran = finish_within(WAIT_LIMIT * 10, day);
    assert!(ran.code == 1 && ran.stdout.contains("SIGTERM was received"), "{ran:?}");
    assert!(!ran.stdout.contains("received again"), "{ran:?}");
    assert!(!paused(), "{:?}", dev.processes());
    assert_eq!(dev.cairn(&["list", "cairn-game-day/"]).stdout.trim(), "");
}

#[test]
fn a_node_that_ends_is_started_again_also_without_its_directory() {
    let dev = Dev::start(&["--restart"]);
    assert_eq!(dev.cairn(&["put", "mine", "stays"]).code, 0);
    let before = dev.processes();
    let (slot, id, _) = before[0];
    let directory = dev.path().join(format!(".cairn/dev/node-{slot}"));
    std::fs::rename(&directory, dev.path().join("moved")).expect("ours");
    let process = Pid::from_raw(id).expect("a process");
    kill_process(process, Signal::KILL).expect("our own cluster");
    let again = || {
        let now = dev.processes();
        now.len() == 3 && now.iter().all(|(_, other, _)| *other != id)
    };
    dev.until("another process", again);
    assert!(directory.exists(), "it has an empty directory");
    // A cluster on one machine is never said to be well.
    let is_whole = || {
        let told = dev.cairn(&["health", "-o", "json"]).stdout;
        let missing = ["unreachable", "no_leader", "not_ready", "recovering"];
        !told.is_empty() && !missing.iter().any(|code| told.contains(code))
    };
    dev.until("all three members are there", is_whole);
    assert_eq!(dev.cairn(&["get", "mine"]).stdout, "stays");
}

#[test]
fn a_cluster_that_is_filled_takes_writes_again_and_loses_nothing() {
    let dev = Dev::start(&["--restart"]);
    let small = dev.game_day(&["--only", "fill", "--fill-max", "4096", "-o", "json"]);
    assert_eq!(small.code, 1, "a day without a fault: {small:?}");
    let small: Value = serde_json::from_str(&small.stdout).expect("JSON");
    let skipped = fault(&small, "fill")["skipped"].as_str().unwrap_or_default();
    assert!(skipped.contains("--fill-max"), "{small}");
    let day = json_of(&dev.game_day(&["--only", "fill", "-o", "json"]));
    let told = fault(&day, "fill");
    assert_eq!((&told["verdict"], &told["lost"]), (&Value::from("as expected"), &Value::from(0)));
    assert_eq!(dev.cairn(&["list", "cairn-game-day/"]).stdout.trim(), "");
}

#[test]
fn a_cluster_that_starts_no_member_again_and_one_that_others_use_are_refused() {
    let dev = Dev::start(&[]);
    let refused = dev.game_day(&[]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("`cairn dev --restart`"), "{}", refused.stderr);
    let asked = dev.cairn(&["game-day"]);
    assert_eq!(asked.code, 2, "{}", asked.stderr);
    assert!(asked.stderr.contains("--yes"), "{}", asked.stderr);

    let dev = Dev::start(&["--restart"]);
    let load = ["bench", "--clients", "1", "--keys", "10", "--seconds", "36000", "--yes"];
    let mut load = command(dev.path(), &load);
    let load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("cairn starts");
    let mut load = Clients(load);
    // A cluster on a slow machine may not be well for a while, or may do nothing between two looks. This fault
    // cannot be done here, so a game day that begins does nothing.
    let began = Instant::now();
    loop {
        let refused = dev.game_day(&["--only", "cut"]);
        if refused.code == 4 && refused.stderr.contains("other clients use this cluster (") {
            assert!(refused.stderr.contains("--with-traffic"), "{}", refused.stderr);
            break;
        }
        assert!(load.0.try_wait().expect("our own child").is_none(), "the load ended");
        assert!(began.elapsed() < WAIT_LIMIT * 10, "never noticed: {}", refused.stderr);
    }
}
