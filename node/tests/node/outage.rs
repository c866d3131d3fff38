//! All machines lose power at once under load, with real processes. The simulated power cut changes
//! only the boot id, so everything that the machines wrote is still there, but the members cannot
//! know that.
use crate::support::{Cluster, WAIT_LIMIT, http_get, value_of};
use std::path::Path;
use std::time::{Duration, Instant};

fn boot(file: &Path, number: u128) {
    let text = format!("{number:032x}");
    let groups = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
    std::fs::write(file, groups.join("-")).expect("written");
}

const WAITS: &str = "too many members may have lost acknowledged writes; `cairn unsafe-recovery` decides; waiting does not help";

/// Writes until every member acknowledges before it syncs, which begins once all of them are known
/// to be healthy. Returns the number of the last write.
async fn write_ahead(cluster: &Cluster) -> u64 {
    let client = cluster.client();
    let began = Instant::now();
    for number in 0_u64.. {
        client.put(format!("key{}", number % 100), format!("{number}")).await.expect("written");
        let ahead = |status: &cairn_client::NodeStatus| {
            status.storage.as_ref().is_some_and(|storage| storage.unsynced_acks)
        };
        if number % 10 == 0 {
            let all = cluster.statuses().await;
            if all.len() == cluster.len() && all.iter().all(ahead) {
                return number;
            }
        }
        assert!(
            began.elapsed() < WAIT_LIMIT,
            "no member acknowledges ahead of its syncs:\n{}",
            cluster.logs()
        );
    }
    unreachable!("there are more numbers than time")
}

/// The story: all machines had lost power and the members waited for an operator, but they reported
/// that they waited for a leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_election_is_reported_everywhere_and_once_in_each_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let boot_id = folder.path().join("boot_id");
    boot(&boot_id, 1);
    let more = format!(
        "mode = \"replicated\"\nstorage.boot_id_file = {boot_id:?}\nstorage.sync_interval = \"10s\""
    );
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    write_ahead(&cluster).await;
    cluster.kill_all();
    boot(&boot_id, 2);
    for node in [0, 1] {
        cluster.start_node(node);
    }
    let said =
        |status: &cairn_client::NodeStatus| status.election_blocked.clone().unwrap_or_default();
    let began = Instant::now();
    while !cluster
        .statuses()
        .await
        .iter()
        .any(|status| said(status).contains("may still bring the cluster back"))
    {
        assert!(
            began.elapsed() < WAIT_LIMIT,
            "no member reports that one is missing:\n{}",
            cluster.logs()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        !cluster.logs().contains("ERROR"),
        "a missing member may still come:\n{}",
        cluster.logs()
    );

    cluster.start_node(2);
    let began = Instant::now();
    while cluster.statuses().await.iter().filter(|status| said(status) == WAITS).count() < 3 {
        assert!(began.elapsed() < WAIT_LIMIT, "not all members report it:\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let http = value_of(cluster.config(0), "listen.http");
    assert!(http_get(&http, "/ready").contains(WAITS), "{}", http_get(&http, "/ready"));
    assert!(
        http_get(&http, "/metrics").contains("cairn_election_blocked 1"),
        "{}",
        http_get(&http, "/metrics")
    );
    // The last attempt of a command may be cut short by its own deadline, and then reports only
    // that.
    for arguments in [["put", "key", "value"].as_slice(), &["get", "key"]] {
        let arguments = [arguments, &["--timeout", "2s"]].concat();
        let said = async || {
            let ran = cluster.cairn(&arguments);
            let cut_short = ran.stderr.contains("no answer within");
            assert!(ran.stderr.contains(WAITS) || cut_short, "{ran:?}");
            Some(ran).filter(|_| !cut_short)
        };
        let ran = cluster.until("a command reports it", said).await;
        assert_eq!(ran.code, 6, "{ran:?}");
    }
    assert!(cluster.cairn(&["status"]).stdout.contains(WAITS));
    let errors = |logs: &str| {
        logs.lines().filter(|line| line.contains("ERROR")).map(str::to_owned).collect::<Vec<_>>()
    };
    let all = cluster.logs_with("three errors", |logs| errors(logs).len() >= 3).await;
    let logged = errors(&all);
    assert!(logged.len() == 3 && logged.iter().all(|line| line.contains(WAITS)), "{logged:?}");

    let decided = cluster.cairn(&["unsafe-recovery", "--accept-data-loss", "--yes"]);
    assert_eq!(decided.code, 0, "{decided:?}\n{}", cluster.logs());
    cluster.client().put("after", "1").await.expect("served");
    let began = Instant::now();
    while cluster.statuses().await.iter().any(|status| status.election_blocked.is_some()) {
        assert!(began.elapsed() < WAIT_LIMIT, "they still report it:\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for node in 0..3 {
        assert_eq!(cluster.stop_node(node), 0, "{}", cluster.logs());
    }
    assert_eq!(errors(&cluster.logs()), logged, "a clean stop is not an error");
}

#[tokio::test(flavor = "multi_thread")]
async fn automatic_unsafe_recovery_waits_for_every_voter_and_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let boot_id = folder.path().join("boot_id");
    boot(&boot_id, 1);
    let more = format!(
        "mode = \"replicated\"\nstorage.boot_id_file = {boot_id:?}\nstorage.sync_interval = \"10s\"\n\
         unsafe_recovery.automatic = \"true\""
    );
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let client = cluster.client();
    let last = write_ahead(&cluster).await;
    cluster.kill_all();
    boot(&boot_id, 2);
    for node in [0, 1] {
        cluster.start_node(node);
    }
    cluster.until_all("both recover", |status| status.member_state == "recovering").await;
    // The simulation shows that they keep waiting: `unsafe-recovery-by-configuration`.
    let reported = || cluster.logs().matches("2 of 3 voters answered").count() >= 2;
    cluster.until("both know that one is missing", async || reported().then_some(())).await;
    for status in cluster.statuses().await {
        assert_eq!(
            (status.member_state.as_str(), status.leader),
            ("recovering", None),
            "{}",
            cluster.logs()
        );
    }

    cluster.start_node(2);
    let began = Instant::now();
    cluster
        .until_all("all are back", |status| {
            status.member_state == "active" && status.unsafe_recoveries > 0
        })
        .await;
    println!("back {:?} after the last one started", began.elapsed());
    let found = client.get(format!("key{}", last % 100)).await.expect("readable").expect("there");
    assert_eq!(found.value, format!("{last}"), "no machine had dropped anything");
    client.put("after", "1").await.expect("served");
}
