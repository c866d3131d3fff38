//! A node whose data directory is lost, or whose addresses change, with real processes: it takes its place by itself, and
//! the cluster can spare another node from then on.
use crate::support::Cluster;
use std::time::Instant;

const KEYS: usize = 500;

fn value(number: usize) -> Vec<u8> {
    format!("value {number} ").repeat(1 + number % 300).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_empty_directory_takes_its_place_by_itself_and_its_old_one_is_refused() {
    let mut cluster = Cluster::start(3, "64MiB", "storage.format_empty = \"true\"").await;
    let client = cluster.client();
    for number in 0..KEYS {
        client.put(format!("key{number}"), value(number)).await.expect("written");
    }
    let before = cluster.statuses().await.into_iter().find(|status| status.slot == 2).expect("it runs");
    cluster.kill_node(1);
    let aside = cluster.folder.path().join("aside");
    std::fs::rename(cluster.data(1), &aside).expect("the directory");
    let began = Instant::now();
    cluster.start_node(1);
    let after = cluster.wait_replaced(&before).await;
    println!("replaced after {:?}", began.elapsed());
    assert_eq!(after.members.iter().filter(|member| member.voter).count(), 3);
    assert!(after.members.iter().all(|member| member.node_id != before.node_id));

    // What was acknowledged before needs nobody else but the newcomer and one more.
    let leader = cluster.leader().await;
    cluster.kill_node(if leader == 1 { 0 } else { leader });
    client.put("after", "1").await.expect("two of three serve");
    for number in 0..KEYS {
        let found = client.get(format!("key{number}")).await.expect("readable").expect("there");
        assert_eq!(found.value, value(number), "{number}");
    }

    // The directory that was lost turns up again: nobody listens to it, and it says so.
    cluster.start_node(if leader == 1 { 0 } else { leader });
    cluster.wait_ready().await;
    cluster.kill_node(1);
    let new = cluster.folder.path().join("new");
    std::fs::rename(cluster.data(1), &new).expect("the directory");
    std::fs::rename(&aside, cluster.data(1)).expect("the directory");
    cluster.start_node(1);
    let retired = async || {
        let mut all = cluster.statuses().await.into_iter();
        all.find(|status| status.node_id == before.node_id && status.standing == "retired")
    };
    let old = cluster.until("the old one is told", retired).await;
    let reason = old.stopped_reason.expect("a reason");
    assert!(reason.contains("make its data directory anew"), "{reason}");
    client.put("undisturbed", "1").await.expect("two of three serve");
}

/// The story: two members got other addresses. The others went on looking for them where the log of the cluster's first day
/// had them, and so did the two for each other: without the third there was no majority.
#[tokio::test(flavor = "multi_thread")]
async fn members_are_found_where_the_configuration_has_them_and_not_where_the_log_does() {
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
        let told: Vec<_> = status.members.iter().map(|member| member.client_address.clone()).collect();
        assert_eq!(told, endpoints);
    }
    assert!(cluster.logs().contains("the configuration goes before"), "{}", cluster.logs());
}
