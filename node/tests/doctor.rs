//! `cairn doctor` as a process, on whatever disk the tests run on.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::path::Path;
use support::{Cluster, run};

fn examined(folder: &Path, arguments: &[&str]) -> Value {
    let mut all = vec!["doctor", "-o", "json"];
    all.extend(arguments);
    let ran = run(folder, &all);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn finding<'a>(report: &'a Value, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("findings");
    findings.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("{name} in {report:#}"))
}

#[test]
fn the_doctor_names_what_it_found_and_leaves_the_place_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let report = examined(folder.path(), &[path]);
    assert_eq!((&report["state"], &report["voters"]), (&"empty".into(), &3.into()));
    for finding in report["findings"].as_array().expect("findings") {
        assert!(["good", "neutral", "bad"].contains(&finding["grade"].as_str().expect("text")), "{finding}");
        for part in ["name", "value", "why"] {
            assert!(!finding[part].as_str().expect("text").is_empty(), "{finding}");
        }
    }
    for name in ["kernel", "clock source", "io_uring", "filesystem", "mount options", "fdatasync", "space"] {
        finding(&report, name);
    }
    assert_eq!(finding(&report, "fdatasync")["grade"], "good");
    assert_eq!(std::fs::read_dir(path).expect("a folder").count(), 0);

    let text = run(folder.path(), &["doctor", path]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    let mode = report["verdict"]["mode"].as_str().expect("a mode");
    assert!(text.stdout.contains(&format!("verdict: {mode} (for 3 voters")), "{}", text.stdout);
    assert!(text.stdout.contains(report["verdict"]["promise"].as_str().expect("text")), "{}", text.stdout);
    assert!(text.stdout.contains("WHY IT MATTERS"), "{}", text.stdout);
}

#[test]
fn a_volatile_cache_refuses_device_and_few_voters_refuse_replicated() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = examined(folder.path(), &["later/node", "--voters", "2", "--size", "1GiB"]);
    assert_eq!(report["state"], "missing");
    let codes = |report: &Value, mode: &str| {
        let refusals = report["verdict"]["refused"][mode].as_array().cloned().unwrap_or_default();
        refusals.iter().map(|reason| reason["code"].as_str().expect("text").to_string()).collect::<Vec<_>>()
    };
    assert!(codes(&report, "replicated").contains(&"few_voters".to_string()), "{report:#}");
    let volatile = report["findings"].as_array().expect("findings").iter().any(|finding| {
        finding["name"].as_str().is_some_and(|name| name.ends_with("write cache"))
            && finding["value"] == "write back"
    });
    if volatile {
        assert!(codes(&report, "device").contains(&"volatile_cache".to_string()), "{report:#}");
        assert_eq!(report["verdict"]["mode"], "sync");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_formatted_directory_is_examined_while_it_is_served() {
    let cluster = Cluster::start(3, "64MiB", "").await;
    let report = examined(cluster.folder.path(), &["--config", cluster.config(0)]);
    assert_eq!((&report["state"], &report["voters"]), (&"formatted".into(), &3.into()));
    let extents = finding(&report, "extents of its files");
    assert!(extents["grade"] == "good" || extents["value"].as_str().expect("text").contains("FIEMAP"));
    assert_eq!(cluster.cairn(&["put", "still", "served"]).code, 0);
}

#[test]
fn a_place_that_cannot_hold_a_directory_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("file"), "").expect("a file");
    for (arguments, word) in [
        (&["doctor", "file"][..], "is not a directory"),
        (&["doctor"], "which directory?"),
        (&["doctor", ".", "--size", "much"], "--size"),
    ] {
        let ran = run(folder.path(), arguments);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
    // No file can be made there by anybody, so nothing can be promised.
    let nothing = run(folder.path(), &["doctor", "/proc"]);
    assert_eq!(nothing.code, 9, "{}{}", nothing.stdout, nothing.stderr);
    assert!(nothing.stdout.contains("verdict: none"), "{}", nothing.stdout);
}
