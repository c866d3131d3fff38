//! Alerts of members that are down, behind, or lead too seldom or too often, and of voters that are too few apart.

use super::walk::Walk;
use crate::outage::{boot, write_ahead};
use crate::support::{Cluster, SLOW_ELECTIONS, UNHURRIED_ELECTIONS, value_of};
use cairn_launch::Signal;

pub const OUTAGE: [&str; 3] = ["CairnNodeDown", "CairnNoLeader", "CairnNotReady"];
pub const BLOCKED: [&str; 1] = ["CairnElectionBlocked"];
pub const LEADERS: [&str; 3] = ["CairnDrained", "CairnLeaderChanges", "CairnRestarts"];
pub const BEHIND: [&str; 1] = ["CairnFollowerFarBehind"];
pub const VOTERS: [&str; 1] = ["CairnEvenVoters"];
pub const TOGETHER: [&str; 1] = ["CairnVotersFailTogether"];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn alerts_of_an_outage_fire_while_members_are_down_and_are_gone_when_they_are_back() {
    let mut cluster = Cluster::start(3, "64MiB", UNHURRIED_ELECTIONS).await;
    let walk = Walk::start(&cluster, &OUTAGE).await;
    let leader = cluster.leader().await;
    cluster.kill_node(leader);
    walk.fires("CairnNodeDown").await;
    cluster.kill_node((leader + 1) % 3);
    walk.fires("CairnNoLeader").await;
    walk.fires("CairnNotReady").await;
    // The story: once the last member was down too, nobody said that there is no leader, and the alert was gone.
    cluster.kill_node((leader + 2) % 3);
    let prometheus = walk.prometheus();
    let silent = async || prometheus.query("last_over_time(cairn_has_leader[5s])").is_empty();
    prometheus.until("nobody is scraped for five evaluations", silent).await;
    walk.fires("CairnNoLeader").await;
    for node in 0..3 {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    for alert in OUTAGE {
        walk.is_gone(alert).await;
    }
    walk.done();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn a_blocked_election_fires_until_somebody_decides() {
    let folder = tempfile::tempdir().expect("a folder");
    let boot_id = folder.path().join("boot_id");
    boot(&boot_id, 1);
    let more = format!(
        "{UNHURRIED_ELECTIONS}mode = \"replicated\"\nstorage.boot_id_file = {boot_id:?}\nstorage.sync_interval = \"10s\""
    );
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let walk = Walk::start(&cluster, &BLOCKED).await;
    write_ahead(&cluster).await;
    cluster.kill_all();
    boot(&boot_id, 2);
    for node in 0..3 {
        cluster.start_node(node);
    }
    walk.fires("CairnElectionBlocked").await;
    let decided = cluster.cairn(&["unsafe-recovery", "--accept-data-loss", "--yes"]);
    assert_eq!(decided.code, 0, "{decided:?}\n{}", cluster.logs());
    walk.is_gone("CairnElectionBlocked").await;
    walk.done();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn alerts_of_leaders_and_restarts_fire_while_an_operator_keeps_a_cluster_busy() {
    let mut cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let walk = Walk::start(&cluster, &LEADERS).await;
    let drained = cluster.cairn(&["leader", "drain", "1", "--for", "1h"]);
    assert_eq!(drained.code, 0, "{drained:?}");
    walk.fires("CairnDrained").await;
    let ended = cluster.cairn(&["leader", "drain", "1", "--end"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    walk.is_gone("CairnDrained").await;

    // Refused while nobody can take over: then it is asked again.
    let moves = async || drop(cluster.cairn(&["leader", "move"]));
    walk.fires_while("CairnLeaderChanges", moves).await;

    let instance = value_of(cluster.config(0), "listen.http");
    let started = format!("process_start_time_seconds{{instance={instance:?}}}");
    let prometheus = walk.prometheus();
    let restart = async || {
        let before = prometheus.value(&started);
        cluster.kill_node(0);
        cluster.start_node(0);
        let seen = async || {
            let now = prometheus.value(&started);
            now.is_some() && now != before
        };
        prometheus.until("the new process is scraped", seen).await;
    };
    walk.fires_while("CairnRestarts", restart).await;
    cluster.wait_ready().await;
    walk.is_gone("CairnRestarts").await;
    walk.is_gone("CairnLeaderChanges").await;
    walk.done();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn a_follower_that_stands_still_while_others_write_fires_until_it_has_caught_up() {
    // Whoever is left has a majority, so writes go on.
    let mut cluster = Cluster::start(3, "256MiB", SLOW_ELECTIONS).await;
    let walk = Walk::start(&cluster, &BEHIND).await;
    let follower = (cluster.leader().await + 1) % 3;
    cluster.signal_node(follower, Signal::STOP);
    let client = cluster.client();
    // One after another, so each is an entry of its own.
    for number in 0..1500_u32 {
        client.put(format!("key{}", number % 100), format!("{number}")).await.expect("written");
    }
    walk.fires("CairnFollowerFarBehind").await;
    cluster.signal_node(follower, Signal::CONT);
    walk.is_gone("CairnFollowerFarBehind").await;
    walk.done();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn an_even_number_of_voters_fires_until_there_is_one_more() {
    let mut cluster = Cluster::growing_insecure(3, "64MiB", SLOW_ELECTIONS);
    cluster.start_node(0);
    cluster.wait_ready().await;
    let walk = Walk::start(&cluster, &VOTERS).await;
    for (node, slot) in [(1, "2"), (2, "3")] {
        cluster.start_node(node);
        let added = cluster.cairn(&["members", "add", slot]);
        assert_eq!(added.code, 0, "{added:?}\n{}", cluster.logs());
        if node == 1 {
            walk.fires("CairnEvenVoters").await;
        }
    }
    walk.is_gone("CairnEvenVoters").await;
    walk.done();
}

/// Restarts a member with another failure domain than this one.
async fn set_domain(cluster: &mut Cluster, node: usize, old: &str, new: &str) {
    let text = std::fs::read_to_string(cluster.config(node)).expect("a configuration");
    let domain = |name: &str| format!("failure_domain = {name:?}");
    assert!(text.contains(&domain(old)), "{text}");
    assert_eq!(cluster.stop_node(node), 0);
    let text = text.replace(&domain(old), &domain(new));
    std::fs::write(cluster.config(node), text).expect("a file");
    cluster.start_node(node);
    cluster.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn voters_in_one_failure_domain_fire_until_they_are_in_two() {
    let more = format!("{SLOW_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::format(3, "64MiB", &more);
    for node in 0..3 {
        // Each on a kernel of its own.
        let kernel = cluster.folder.path().join(format!("kernel-{node}"));
        boot(&kernel, u128::MAX / 15 * u128::try_from(node + 1).expect("small"));
        let lines = format!("storage.boot_id_file = {kernel:?}\nfailure_domain = \"rack{node}\"");
        cluster.configure(node, &lines);
    }
    cluster.start_all().await;
    let walk = Walk::start(&cluster, &TOGETHER).await;
    set_domain(&mut cluster, 1, "rack1", "rack0").await;
    walk.fires("CairnVotersFailTogether").await;
    set_domain(&mut cluster, 1, "rack0", "rack1").await;
    walk.is_gone("CairnVotersFailTogether").await;
    walk.done();
}
