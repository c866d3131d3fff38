//! All machines lose power at once under load, with real processes. The simulated power cut changes
//! only the boot id, so everything that the machines wrote is still there, but the members cannot
//! know that.
use crate::support::{Cluster, Ran, UNHURRIED_ELECTIONS, WAIT_LIMIT, finish, http_get, value_of};
use cairn_client::{MemberState, NodeStatus};
use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

pub fn boot(file: &Path, number: u128) {
    let text = format!("{number:032x}");
    let groups = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
    std::fs::write(file, groups.join("-")).expect("written");
}

const WAITS: &str = "too many members may have lost acknowledged writes; `cairn unsafe-recovery` decides; waiting does not help";

/// Writes until every member acknowledges before it syncs, which begins once all of them are known
/// to be healthy. Returns the number of the last write.
pub async fn write_ahead(cluster: &Cluster) -> u64 {
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
        "{UNHURRIED_ELECTIONS}mode = \"replicated\"\nstorage.boot_id_file = {boot_id:?}\nstorage.sync_interval = \"10s\""
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
            let cut_short = ran.was_cut_short();
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
        "{UNHURRIED_ELECTIONS}mode = \"replicated\"\nstorage.boot_id_file = {boot_id:?}\nstorage.sync_interval = \"10s\"\n\
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
    cluster
        .until_all("both recover", |status| status.member_state == MemberState::Recovering)
        .await;
    // The simulation shows that they keep waiting: `unsafe-recovery-by-configuration`.
    let reported = || cluster.logs().matches("2 of 3 voters answered").count() >= 2;
    cluster.until("both know that one is missing", async || reported().then_some(())).await;
    for status in cluster.statuses().await {
        assert_eq!(
            (status.member_state, status.leader),
            (MemberState::Recovering, None),
            "{}",
            cluster.logs()
        );
    }

    cluster.start_node(2);
    let began = Instant::now();
    cluster
        .until_all("all are back", |status| {
            status.member_state == MemberState::Active && status.unsafe_recoveries > 0
        })
        .await;
    println!("back {:?} after the last one started", began.elapsed());
    let found = client.get(format!("key{}", last % 100)).await.expect("readable").expect("there");
    assert_eq!(found.value, format!("{last}"), "no machine had dropped anything");
    client.put("after", "1").await.expect("served");
}

/// All members lose power with unsynced acknowledgements, and one of them both its checkpoints: a
/// journal alone is never used, so it starts with an empty log. `more`: further configuration.
async fn cut_beside_an_empty_member(folder: &Path, more: &str) -> Cluster {
    let boot_id = folder.join("boot_id");
    boot(&boot_id, 1);
    let more = format!(
        "{UNHURRIED_ELECTIONS}mode = \"replicated\"\nstorage.boot_id_file = {boot_id:?}\nstorage.sync_interval = \"10s\"\n{more}"
    );
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    write_ahead(&cluster).await;
    cluster.kill_all();
    boot(&boot_id, 2);
    for checkpoint in ["checkpoint.0", "checkpoint.1"] {
        let file = std::fs::OpenOptions::new().write(true).open(cluster.data(2).join(checkpoint));
        file.expect("a checkpoint").write_all_at(&[0xff; 8192], 0).expect("written");
    }
    for node in 0..3 {
        cluster.start_node(node);
    }
    cluster
}

/// The story: the membership had never changed since the cluster was formed, so its log id was 0-0,
/// which is also what a member with an empty log says. That member counted as the one that knows the
/// newest membership, and knew no voters: "no voter answered", though all three did.
#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_recovery_is_possible_beside_a_member_whose_log_is_empty() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = cut_beside_an_empty_member(folder.path(), "").await;
    let recovering = |status: &NodeStatus| status.member_state == MemberState::Recovering;
    let all = cluster.until_all("all recover", recovering).await;
    let empty = all.iter().filter(|status| status.members.is_empty()).map(|status| status.slot);
    assert_eq!(empty.collect::<Vec<_>>(), [3], "{}", cluster.logs());
    // Its checkpoints are damaged, and nothing is overwritten: it may be read again.
    let said = |status: &NodeStatus| {
        let said = status.election_blocked.as_deref().unwrap_or_default();
        said.starts_with("too many members may have lost acknowledged writes; a missing member may")
            && said.contains("node 3.")
            && said.contains("has a damaged data directory, and comes back by itself")
    };
    cluster.until_all("all report it, the empty one too, and name that one", said).await;
    let shown = cluster.cairn(&["status"]).stdout;
    assert_eq!(shown.matches(" is recovering").count(), 3, "in which state it waits: {shown}");

    let asked = cluster.cairn(&["unsafe-recovery", "-o", "json"]);
    assert_eq!(asked.code, 6, "{asked:?}");
    let chosen: Value = serde_json::from_str(&asked.stdout).expect("JSON");
    let chosen = chosen["chosen"].as_str().expect("a member to lead").to_owned();
    assert!(!chosen.starts_with("3."), "the empty one is to lead: {asked:?}");
    let decided = cluster.cairn(&["unsafe-recovery", "--accept-data-loss", "--yes"]);
    assert_eq!(decided.code, 0, "{decided:?}\n{}", cluster.logs());
    cluster.client().put("after", "1").await.expect("served");
    cluster.until_all("all are back", |status| status.member_state == MemberState::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn automatic_unsafe_recovery_acts_beside_a_member_whose_log_is_empty() {
    let folder = tempfile::tempdir().expect("a folder");
    let automatic = "unsafe_recovery.automatic = \"true\"";
    let cluster = cut_beside_an_empty_member(folder.path(), automatic).await;
    cluster
        .until_all("all are back, and count it", |status| {
            status.member_state == MemberState::Active && status.unsafe_recoveries > 0
        })
        .await;
    cluster.client().put("after", "1").await.expect("served");
}

/// Asserts that the command says what nobody may take for a healthy cluster.
fn assert_out_of_service(ran: &Ran, words: &[&str]) {
    assert_eq!(ran.code, 6, "nobody serves: {ran:?}");
    for words in words {
        assert!(ran.stdout.contains(words), "{words} is not in {ran:?}");
    }
    assert!(!ran.stdout.contains("recovers automatically"), "{ran:?}");
}

/// The story: two of three disks were gone. The third member still counted itself as the leader, and
/// the command said that the cluster recovers automatically, exit code 0.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_lost_two_of_three_disks_is_not_said_to_recover() {
    let more = format!("{UNHURRIED_ELECTIONS}storage.format_empty = \"true\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    cluster.client().put("before", "1").await.expect("served");
    let survivor = cluster.leader().await;
    let lost: Vec<usize> = (0..3).filter(|node| *node != survivor).collect();
    for node in &lost {
        cluster.kill_node(*node);
        cluster.lose_disk(*node);
    }
    let alone = |status: &NodeStatus| status.not_ready.is_some();
    cluster.until_all("the survivor serves nobody", alone).await;
    let asked = cluster.cairn(&["unsafe-recovery"]);
    assert_out_of_service(&asked, &["1 of 3 voters", "cairn recover --force-new-cluster"]);

    // New disks in place of the lost ones do not bring the old identities back.
    for node in &lost {
        cluster.start_node(*node);
    }
    cluster
        .until("the new ones answer", async || (cluster.statuses().await.len() == 3).then_some(()))
        .await;
    let asked = cluster.cairn(&["unsafe-recovery"]);
    let words = ["answers there, which is joining", "cairn recover --force-new-cluster"];
    assert_out_of_service(&asked, &words);
    let decided =
        cluster.cairn(&["unsafe-recovery", "--accept-data-loss", "--allow-missing", "--yes"]);
    assert_eq!(decided.code, 4, "nothing can be decided: {decided:?}");
}

/// The story: the member that was chosen lost power within the decision. The command went on waiting
/// for it for more than a minute, though its grant was void.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_ends_with_the_candidate_and_can_be_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let boot_id = folder.path().join("boot_id");
    boot(&boot_id, 1);
    // The candidate campaigns long after it has its grant: the test is faster.
    let more = format!(
        "mode = \"replicated\"\nstorage.boot_id_file = {boot_id:?}\nstorage.sync_interval = \"10s\"\n\
         timing.election_min = \"8s\"\ntiming.election_max = \"10s\""
    );
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    write_ahead(&cluster).await;
    cluster.kill_all();
    boot(&boot_id, 2);
    for node in 0..3 {
        cluster.start_node(node);
    }
    let recovering = |status: &NodeStatus| status.member_state == MemberState::Recovering;
    cluster.until_all("all recover", recovering).await;
    let asked = cluster.cairn(&["unsafe-recovery", "-o", "json"]);
    let chosen: Value = serde_json::from_str(&asked.stdout).expect("JSON");
    let chosen = chosen["chosen"].as_str().and_then(|id| id.split('.').next()).expect("a slot");
    let candidate = chosen.parse::<usize>().expect("a slot") - 1;

    let mut command = cluster.spawn(&["unsafe-recovery", "--accept-data-loss", "--yes"]);
    let granted = first_line(command.stderr.as_mut().expect("its standard error"));
    assert!(granted.contains("waiting until"), "{granted}");
    cluster.kill_node(candidate);
    cluster.start_node(candidate);
    let ended = finish(command);
    assert_eq!(ended.code, 6, "{ended:?}\n{}", cluster.logs());
    assert!(ended.stderr.contains("restarted"), "{ended:?}");

    let decided = cluster.cairn(&["unsafe-recovery", "--accept-data-loss", "--yes"]);
    assert_eq!(decided.code, 0, "{decided:?}\n{}", cluster.logs());
    cluster.client().put("after", "1").await.expect("served");
}

/// Leaves what follows the line unread.
fn first_line(from: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        from.read_exact(&mut byte).expect("a line");
        line.extend(byte);
    }
    String::from_utf8(line).expect("text")
}
