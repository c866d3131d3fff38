//! A node whose data directory is lost, or whose addresses change, with real processes. It takes
//! its slot again automatically, and then the cluster can spare another node.
use crate::support::Cluster;
use std::time::Instant;

const KEYS: usize = 500;

fn value(number: usize) -> Vec<u8> {
    format!("value {number} ").repeat(1 + number % 300).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_empty_directory_takes_its_slot_again_and_its_old_directory_is_refused() {
    let mut cluster = Cluster::start(3, "64MiB", "storage.format_empty = \"true\"").await;
    let client = cluster.client();
    for number in 0..KEYS {
        client.put(format!("key{number}"), value(number)).await.expect("written");
    }
    let before =
        cluster.statuses().await.into_iter().find(|status| status.slot == 2).expect("it runs");
    cluster.kill_node(1);
    let aside = cluster.folder.path().join("aside");
    std::fs::rename(cluster.data(1), &aside).expect("the directory");
    let began = Instant::now();
    cluster.start_node(1);
    let after = cluster.wait_replaced(&before).await;
    println!("replaced after {:?}", began.elapsed());
    assert_eq!(after.members.iter().filter(|member| member.voter).count(), 3);
    assert!(after.members.iter().all(|member| member.node_id != before.node_id));

    // What was acknowledged before needs only the new member and one more.
    let leader = cluster.leader().await;
    cluster.kill_node(if leader == 1 { 0 } else { leader });
    client.put("after", "1").await.expect("two of three serve");
    for number in 0..KEYS {
        let found = client.get(format!("key{number}")).await.expect("readable").expect("there");
        assert_eq!(found.value, value(number), "{number}");
    }

    // The lost directory turns up again: the other members refuse it, and it reports that.
    cluster.start_node(if leader == 1 { 0 } else { leader });
    cluster.wait_ready().await;
    cluster.kill_node(1);
    let new = cluster.folder.path().join("new");
    std::fs::rename(cluster.data(1), &new).expect("the directory");
    std::fs::rename(&aside, cluster.data(1)).expect("the directory");
    cluster.start_node(1);
    let removed = async || {
        let mut all = cluster.statuses().await.into_iter();
        all.find(|status| status.node_id == before.node_id && status.member_state == "removed")
    };
    let old = cluster.until("the old one learns that it was removed", removed).await;
    let reason = old.stopped_reason.expect("a reason");
    assert!(reason.contains("give it an empty data directory"), "{reason}");
    client.put("undisturbed", "1").await.expect("two of three serve");
}

/// The story: two members got other addresses. The others kept using the addresses in the log,
/// which are from the cluster's first day, and so did the two members for each other. Without the
/// third member there was no majority.
#[tokio::test(flavor = "multi_thread")]
async fn members_are_reached_at_the_configured_addresses_and_not_at_those_in_the_log() {
    let mut cluster = Cluster::start(3, "64MiB", "").await;
    cluster.client().put("kept", "1").await.expect("written");
    for node in 0..3 {
        assert_eq!(cluster.stop_node(node), 0);
    }
    cluster.move_node(1);
    cluster.move_node(2);
    for node in 0..3 {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    cluster.kill_node(0);
    let client = cluster.client();
    assert_eq!(client.get("kept").await.expect("readable").expect("there").value, "1");
    client.put("after", "1").await.expect("two of three serve");

    let endpoints = cluster.endpoints();
    for status in cluster.statuses().await {
        let reported: Vec<_> =
            status.members.iter().map(|member| member.client_address.clone()).collect();
        assert_eq!(reported, endpoints);
    }
    assert!(cluster.logs().contains("the configuration takes precedence"), "{}", cluster.logs());
}
