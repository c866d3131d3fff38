//! Power cuts and flipped bits under real processes, a few of each kind; `cargo lossy` does many.
//! The canaries show that a loss would be seen.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use cairn_lossy::disk::missing;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// After this many seconds the program ends itself and everything that it started.
const LIMIT: &str = "110";

/// One test at a time: waits have limits, and a busy machine is slow enough.
static ALONE: Mutex<()> = Mutex::new(());

/// The figures of one scenario; `None`, with a message, if this machine cannot run it. In CI that
/// is a failure.
fn figures(arguments: &[&str]) -> Option<Value> {
    if let Some(missing) = missing() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
        eprintln!("SKIPPED: {missing}");
        return None;
    }
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let output = Command::new(env!("CARGO_BIN_EXE_cairn-lossy"))
        .args(["--json", "--limit", LIMIT])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    assert!(output.status.success(), "{}: {text}", output.status);
    Some(serde_json::from_str(&text).unwrap())
}

fn count(figures: &Value, field: &str) -> u64 {
    figures[field].as_u64().unwrap()
}

/// The cluster served after every round, each was compared, and nothing was wrong.
fn assert_nothing_lost(figures: &Value, rounds: u64) {
    assert_eq!(figures["wrong"], Value::Array(vec![]));
    for field in ["rounds", "served", "comparisons"] {
        assert_eq!(count(figures, field), rounds, "{field}");
    }
    assert!(count(figures, "acknowledged") > 0 && count(figures, "keys") > 0);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn in_sync_mode_a_machine_that_loses_power_under_load_loses_nothing_and_comes_back() {
    let Some(figures) = figures(&["--mode", "sync", "--cuts", "3"]) else { return };
    assert_nothing_lost(&figures, 3);
    assert_eq!(figures["recovery_ms"].as_array().unwrap().len(), 3);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn in_sync_mode_a_power_cut_of_all_machines_under_load_loses_nothing() {
    let Some(figures) = figures(&["--mode", "sync", "--all-cuts", "3"]) else { return };
    assert_nothing_lost(&figures, 3);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn in_sync_mode_a_power_cut_of_all_machines_while_idle_loses_nothing() {
    let Some(figures) = figures(&["--mode", "sync", "--idle-cuts", "1"]) else { return };
    assert_nothing_lost(&figures, 1);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn in_replicated_mode_a_machine_that_loses_power_under_load_recovers_without_an_operator_and_nothing_is_lost()
 {
    let Some(figures) = figures(&["--mode", "replicated", "--cuts", "4"]) else { return };
    assert_nothing_lost(&figures, 4);
    assert_eq!(figures["recovery_ms"].as_array().unwrap().len(), 4);
    let damage = &figures["damage"];
    assert!(count(damage, "dropped") + count(damage, "torn") > 0, "something was lost");
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn in_replicated_mode_power_cuts_of_all_machines_one_after_another_lose_nothing() {
    let Some(figures) = figures(&["--mode", "replicated", "--rolling-cuts", "1"]) else { return };
    assert_nothing_lost(&figures, 1);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn in_replicated_mode_a_power_cut_of_all_machines_while_idle_loses_nothing() {
    let Some(figures) = figures(&["--mode", "replicated", "--idle-cuts", "1"]) else { return };
    assert_nothing_lost(&figures, 1);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn in_replicated_mode_a_cluster_that_lost_power_under_load_serves_everything_or_nothing() {
    let Some(figures) = figures(&["--mode", "replicated", "--all-cuts", "1"]) else { return };
    assert_eq!(figures["wrong"], Value::Array(vec![]));
    assert_eq!(count(&figures, "served") + count(&figures, "reported"), 1);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn bits_flipped_in_every_file_of_one_machine_after_another_are_repaired_by_a_scrub_and_no_read_is_wrong()
 {
    let Some(figures) = figures(&["--mode", "replicated", "--flips", "3"]) else { return };
    assert_eq!(figures["wrong"], Value::Array(vec![]));
    assert_eq!((count(&figures, "rounds"), count(&figures, "served")), (3, 3));
    assert_eq!(
        count(&figures, "scrubs"),
        12,
        "two after the flips in a running process, two after a restart"
    );
    assert!(
        count(&figures, "flips") > 3 * 30
            && count(&figures, "damaged") > 0
            && count(&figures, "repaired") > 0
    );
    assert_eq!(count(&figures, "unrepaired"), 0);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn on_disks_that_lie_about_syncs_every_loss_is_found_or_reported() {
    let Some(figures) = figures(&["--mode", "sync", "--lies", "2"]) else { return };
    assert!(count(&figures, "caught") > 0);
    assert_eq!(count(&figures, "caught") + count(&figures, "reported"), 2);
    assert!(count(&figures["damage"], "dropped") > 0);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn if_the_boot_id_hides_a_power_cut_every_loss_is_found_or_reported() {
    let Some(figures) = figures(&["--hidden-cuts", "1"]) else { return };
    assert_eq!(count(&figures, "caught"), 1);
    assert!(count(&figures["damage"], "dropped") > 0);
}
