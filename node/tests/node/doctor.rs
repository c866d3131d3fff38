//! `cairn doctor`, and the server that obeys its verdict, as processes, on the disk on which the
//! tests run.
use crate::support::{Cluster, SLOW_ELECTIONS, run};
use serde_json::Value;
use std::path::Path;

fn examined(folder: &Path, arguments: &[&str]) -> Value {
    let mut all = vec!["doctor", "-o", "json"];
    all.extend(arguments);
    let ran = run(folder, &all);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn finding<'a>(report: &'a Value, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("findings");
    findings
        .iter()
        .find(|finding| finding["name"] == name)
        .unwrap_or_else(|| panic!("{name} in {report:#}"))
}

#[test]
fn the_doctor_reports_its_findings_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let report = examined(folder.path(), &[path]);
    assert_eq!((&report["state"], &report["voters"]), (&"empty".into(), &3.into()));
    for finding in report["findings"].as_array().expect("findings") {
        assert!(
            ["good", "neutral", "bad"].contains(&finding["grade"].as_str().expect("text")),
            "{finding}"
        );
        for part in ["name", "value", "why"] {
            assert!(!finding[part].as_str().expect("text").is_empty(), "{finding}");
        }
    }
    for name in
        ["kernel", "clock source", "io_uring", "filesystem", "mount options", "fdatasync", "space"]
    {
        finding(&report, name);
    }
    assert_eq!(finding(&report, "fdatasync")["grade"], "good");
    assert_eq!(std::fs::read_dir(path).expect("a folder").count(), 0);

    let text = run(folder.path(), &["doctor", path]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    let mode = report["verdict"]["mode"].as_str().expect("a mode");
    assert!(text.stdout.contains(&format!("verdict: {mode} (for 3 voters")), "{}", text.stdout);
    assert!(
        text.stdout.contains(report["verdict"]["promise"].as_str().expect("text")),
        "{}",
        text.stdout
    );
    assert!(text.stdout.contains("WHY IT MATTERS"), "{}", text.stdout);
}

#[test]
fn a_volatile_cache_refuses_device_and_few_voters_refuse_replicated() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = examined(folder.path(), &["later/node", "--voters", "2", "--size", "1GiB"]);
    assert_eq!(report["state"], "missing");
    let codes = |report: &Value, mode: &str| {
        let refusals = report["verdict"]["refused"][mode].as_array().cloned().unwrap_or_default();
        refusals
            .iter()
            .map(|reason| reason["code"].as_str().expect("text").to_string())
            .collect::<Vec<_>>()
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
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let report = examined(cluster.folder.path(), &["--config", cluster.config(0)]);
    assert_eq!((&report["state"], &report["voters"]), (&"formatted".into(), &3.into()));
    let extents = finding(&report, "extents of its files");
    assert!(
        extents["grade"] == "good" || extents["value"].as_str().expect("text").contains("FIEMAP")
    );
    assert_eq!(cluster.cairn(&["put", "still", "served"]).code, 0);
}

/// Whoever runs `auto` learns which mode that is and what it may lose, without asking.
#[tokio::test(flavor = "multi_thread")]
async fn formatting_and_each_start_say_the_mode_and_its_promise() {
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let status = cluster.cairn(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    let durability = &status[0]["durability"];
    let said = format!("{}, auto", durability["mode"].as_str().expect("a mode"));
    let promise = durability["promise"].as_str().expect("a promise");
    let says = |log: &str| log.contains(&format!("mode {said}")) && log.contains(promise);
    cluster.logs_with("the mode and its promise", says).await;

    let arguments = ["format", "--config", cluster.config(0), "--dir", "another"];
    let ran = run(cluster.folder.path(), &arguments);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains(&format!("Mode here: {said}")), "{ran:?}");
    assert!(ran.stdout.contains(promise), "{ran:?}");
}

#[test]
fn a_path_that_cannot_hold_a_directory_is_refused() {
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
    // No file can be created there, so nothing can be promised.
    let nothing = run(folder.path(), &["doctor", "/proc"]);
    assert_eq!(nothing.code, 9, "{}{}", nothing.stdout, nothing.stderr);
    assert!(nothing.stdout.contains("verdict: none"), "{}", nothing.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_the_mode_who_chose_it_and_what_it_promises() {
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let report = examined(cluster.folder.path(), &["--config", cluster.config(0)]);
    let verdict = &report["verdict"];
    let status: Value =
        serde_json::from_str(&cluster.cairn(&["status", "-o", "json"]).stdout).expect("JSON");
    for node in status.as_array().expect("nodes") {
        assert_eq!(node["durability"]["chosen"], "auto");
        for key in ["mode", "promise"] {
            assert_eq!(node["durability"][key], verdict[key]);
        }
    }
    let mode = verdict["mode"].as_str().expect("a mode");
    let text = cluster.cairn(&["status"]).stdout;
    assert!(text.contains(&format!("{mode}, auto")), "{text}");
    assert!(
        text.contains(&format!("\n{mode}: {}", verdict["promise"].as_str().expect("text"))),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn device_is_refused_where_it_is_not_shown_and_served_where_it_is_asserted() {
    let mut cluster = Cluster::format(1, "64MiB", "mode = \"device\"");
    let folder = cluster.folder.path().to_path_buf();
    let report = examined(&folder, &["--config", cluster.config(0)]);
    if report["verdict"]["mode"] != "device" {
        let refused = run(&folder, &["serve", "--config", cluster.config(0)]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        for words in
            ["mode `device` is refused", "storage.assert_device_contract = true", "cairn doctor"]
        {
            assert!(refused.stderr.contains(words), "{}", refused.stderr);
        }
        let printed = run(&folder, &["config", "print", "--config", cluster.config(0)]);
        assert!(
            printed.stdout.contains("Mode here: none: mode `device` is refused"),
            "{}",
            printed.stdout
        );
        let checked = run(&folder, &["config", "check", "--config", cluster.config(0)]);
        assert_eq!(checked.code, 2, "{}", checked.stdout);
    }
    let text = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    let asserted = text
        .replace("mode = \"device\"", "mode = \"device\"\nstorage.assert_device_contract = true");
    std::fs::write(cluster.config(0), asserted).expect("a configuration");
    let printed = run(&folder, &["config", "print", "-o", "json", "--config", cluster.config(0)]);
    let printed: Value = serde_json::from_str(&printed.stdout).expect("JSON");
    let here = &printed["mode"]["here"];
    if report["verdict"]["refused"]["device"]
        .as_array()
        .is_some_and(|reasons| reasons.iter().all(|reason| reason["code"] != "memory"))
    {
        assert_eq!(here["device_contract"], "asserted by the operator", "{printed:#}");
        cluster.start_node(0);
        cluster.wait_ready().await;
        // Until the log says the mode, which the first leader writes, every write is synced.
        let asserted = async || {
            let said = cluster.cairn(&["status"]).stdout;
            said.contains("device, configured, asserted by the operator").then_some(())
        };
        cluster.until("the cluster has the mode of its founder", asserted).await;
    }
}

#[test]
fn config_print_shows_the_mode_that_follows_here() {
    let folder = tempfile::tempdir().expect("a folder");
    let print = |more: &[&str]| {
        let mut all = vec!["config", "print", "--cluster", "c", "--slot", "1"];
        all.extend(more);
        run(folder.path(), &all).stdout
    };
    assert!(print(&[]).contains("Mode here: none: `data_dir` is not set"));
    assert!(
        print(&["--dir", "d", "--set", "mode=sync"])
            .contains("Mode here: sync, configured: an acknowledged write")
    );
}
