//! A running node reads its configuration again at SIGHUP.
use crate::support::{Cluster, WAIT_LIMIT, run};
use cairn_launch::Signal;
use cairn_node::access::TokenHash;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

async fn until_logged(cluster: &Cluster, words: &str, times: usize) {
    let logged = async || (cluster.log(0).matches(words).count() >= times).then_some(());
    cluster.until(words, logged).await;
}

/// The story: a limit was too low for one import, and raising it cost a restart of every member.
#[tokio::test(flavor = "multi_thread")]
async fn limits_and_the_log_level_change_without_a_restart_and_other_keys_are_named() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    let value = "x".repeat(1000);
    assert_eq!(cluster.cairn(&["put", "a", &value]).code, 0);

    let text = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    cluster.configure(
        0,
        "limits.max_value_bytes = 100\nlog.level = \"debug\"\ntiming.heartbeat = \"150ms\"\nscrub.rate_bytes = \"1MiB\"",
    );
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "need a restart", 1).await;
    let log = cluster.log(0);
    let line = log.lines().find(|line| line.contains("need a restart")).expect("logged");
    assert!(line.contains("WARN") && line.contains("timing.heartbeat"), "{line}");
    assert!(!line.contains("limits.") && !line.contains("log.level"), "{line}");
    for applied in ["limits.max_value_bytes = 100", "log.level = debug", "scrub.rate_bytes = 1MiB"]
    {
        assert!(log.contains(applied), "{applied} is not in\n{log}");
    }
    let refused = cluster.cairn(&["put", "a", &value]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("the limit is 100 bytes"), "{}", refused.stderr);

    // What is refused changes nothing, not even its good part.
    for bad in ["limits.max_value_bytes = 0\nlog.level = \"warn\"", "log.level = \"loud\""] {
        std::fs::write(cluster.config(0), format!("{bad}\n{text}")).expect("a file");
        let before = cluster.log(0).matches("nothing was changed").count();
        cluster.signal_node(0, Signal::HUP);
        until_logged(&cluster, "nothing was changed", before + 1).await;
        assert_eq!(cluster.cairn(&["put", "a", &value]).code, 2, "{bad}");
    }
    let log = cluster.log(0);
    let refusal = log.lines().find(|line| line.contains("nothing was changed")).expect("logged");
    assert!(refusal.contains("limits.max_value_bytes") && refusal.contains("WARN"), "{refusal}");

    std::fs::write(cluster.config(0), &text).expect("a file");
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "limits.max_value_bytes = 1MiB", 1).await;
    assert_eq!(cluster.cairn(&["put", "a", &value]).code, 0);
}

/// The story: the service was reloaded a moment after it was started. SIGHUP ended the process, the service
/// manager took that for a clean end, and nothing started it again.
#[tokio::test(flavor = "multi_thread")]
async fn sighup_in_the_middle_of_a_start_ends_no_node_and_counts_once_it_runs() {
    // It reads certificates between its first signal handler and its start.
    let mut cluster = Cluster::secured(1, "64MiB", "");
    for start in 1..=5 {
        cluster.start_node(0);
        // The first that shows from outside: it hears SIGTERM. SIGHUP it must have heard before.
        let began = Instant::now();
        while !cluster.hears(0, Signal::TERM) {
            assert!(began.elapsed() < WAIT_LIMIT, "{}", cluster.logs());
        }
        cluster.signal_node(0, Signal::HUP);
        cluster.wait_ready().await;
        until_logged(&cluster, "SIGHUP: the configuration was read", start).await;
        cluster.kill_node(0);
    }
}

/// The story: the largest request was lowered. It needs a restart, and the log said so; but batches of the old
/// size were refused at once, and of a raised one each client was told a size that no server decodes.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_request_stays_until_a_restart_and_what_does_not_fit_it_is_refused() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    let text = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    let file = cluster.folder.path().join("value");
    std::fs::write(&file, vec![7; 1 << 20]).expect("a file");
    let value = format!("@{}", file.display());
    assert_eq!(cluster.cairn(&["put", "a", &value]).code, 0);

    let lower = "limits.max_request_bytes = \"1MiB\"\nlimits.max_connections = 100\n\
                 limits.max_sessions = 100\nlimits.max_value_bytes = \"512KiB\"\n";
    std::fs::write(cluster.config(0), format!("{lower}{text}")).expect("a file");
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "need a restart", 1).await;
    let log = cluster.log(0);
    let line = log.lines().find(|line| line.contains("need a restart")).expect("logged");
    for kept in ["max_request_bytes", "max_connections", "max_sessions"] {
        assert!(line.contains(&format!("limits.{kept}")), "{kept}: {line}");
    }
    assert!(!line.contains("limits.max_value_bytes"), "{line}");
    let told = cluster.client().limits().await.expect("told");
    assert_eq!((told.max_value_bytes, told.max_request_bytes), (512 << 10, 4 << 20));

    // A value that no request of the running node can carry.
    let higher = "limits.max_request_bytes = \"16MiB\"\nlimits.max_value_bytes = \"8MiB\"\n";
    std::fs::write(cluster.config(0), format!("{higher}{text}")).expect("a file");
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "stays 4194304 bytes until a restart", 1).await;
    let told = cluster.client().limits().await.expect("told");
    assert_eq!(told.max_value_bytes, 512 << 10, "nothing was changed");

    std::fs::write(cluster.config(0), &text).expect("a file");
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "limits.max_value_bytes = 1MiB", 1).await;
    assert_eq!(cluster.cairn(&["put", "a", &value]).code, 0);
}

/// The story: a FIFO stood where the configuration was, and the leader that was told to read it hung.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_is_no_configuration_and_nobody_waits_for_it() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    let text = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    std::fs::remove_file(cluster.config(0)).expect("its file");
    let fifo = Command::new("mkfifo").arg(cluster.config(0)).status().expect("mkfifo runs");
    assert!(fifo.success());
    for config in [cluster.config(0), "/dev/zero", "/"] {
        let checked = run(cluster.folder.path(), &["config", "check", "--config", config]);
        assert_eq!(checked.code, 2, "{config}: {checked:?}");
        assert!(checked.stderr.contains(config), "{checked:?}");
    }
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "not a regular file", 1).await;
    assert_eq!(cluster.cairn(&["put", "a", "1"]).code, 0);
    std::fs::remove_file(cluster.config(0)).expect("the FIFO");
    std::fs::write(cluster.config(0), text).expect("a file");
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "no value changed", 1).await;
}

/// The story: a token leaked, and to revoke it took a restart of every member.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_do_what_changes_without_a_restart() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    assert_eq!(cluster.cairn(&["put", "a", "1"]).code, 0, "everybody may");

    let hash = TokenHash::of(b"ada's");
    let text = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    cluster.configure(0, &format!("access.ada = \"read token:{hash}\""));
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "access = of ada", 1).await;
    assert!(!cluster.log(0).contains(&hash.to_string()), "a token's hash is in the log");
    assert_eq!(cluster.cairn(&["get", "a"]).code, 10, "nobody may without a token");
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "ada's").expect("a file");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).expect("ours");
    let token = token.to_str().expect("text");
    let got = cluster.cairn(&["get", "a", "--token-file", token]);
    assert_eq!(got.stdout.trim(), "1", "{}", got.stderr);
    assert!(got.stderr.contains(&format!("`chmod 600 {token}`")), "{}", got.stderr);
    let denied = cluster.cairn(&["put", "a", "2", "--token-file", token]);
    assert_eq!(denied.code, 10, "{}", denied.stderr);

    // A table that is gone is a slip, as far as a running node can tell.
    std::fs::write(cluster.config(0), &text).expect("a file");
    cluster.signal_node(0, Signal::HUP);
    until_logged(&cluster, "need a restart", 1).await;
    let log = cluster.log(0);
    let line = log.lines().find(|line| line.contains("need a restart")).expect("logged");
    assert!(line.contains("access"), "{line}");
    assert_eq!(cluster.cairn(&["get", "a"]).code, 10, "nobody may without a token");
}
