//! A node whose data directory is lost, or whose addresses change, with real processes. It takes
//! its slot again automatically, and then the cluster can spare another node.
use crate::support::{Cluster, UNHURRIED_ELECTIONS, WAIT_LIMIT};
use cairn_client::{MemberState, Options};
use std::time::Instant;

const KEYS: usize = 500;

fn value(number: usize) -> Vec<u8> {
    format!("value {number} ").repeat(1 + number % 300).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_empty_directory_takes_its_slot_again_and_its_old_directory_is_refused() {
    let more = format!("{UNHURRIED_ELECTIONS}storage.format_empty = \"true\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
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
        all.find(|status| {
            status.node_id == before.node_id && status.member_state == MemberState::Removed
        })
    };
    let old = cluster.until("the old one learns that it was removed", removed).await;
    let reason = old.stopped_reason.expect("a reason");
    assert!(reason.contains("give it an empty data directory"), "{reason}");
    let shown = cluster.cairn_at(1, &["status", "--only"]).stdout;
    assert!(shown.contains(" is removed and serves nobody: "), "{shown}");
    // It holds what was there on the day it was lost. By its own log it votes, since the others tell
    // it nothing: so it answered stale reads with that for ever.
    let stale = client.get_stale_at(&cluster.endpoints()[1], "key1").await;
    let refused = stale.expect_err("a refusal").to_string();
    assert!(refused.contains("no member of the cluster any more"), "{refused}");
    client.put("undisturbed", "1").await.expect("two of three serve");
}

/// Lets other members stop cleanly, one after another, until this one leads.
async fn until_leads(cluster: &mut Cluster, node: usize) {
    let began = Instant::now();
    loop {
        let leader = cluster.leader().await;
        if leader == node {
            return;
        }
        assert!(began.elapsed() < WAIT_LIMIT, "it never leads:\n{}", cluster.logs());
        assert_eq!(cluster.stop_node(leader), 0);
        cluster.leader().await;
        cluster.start_node(leader);
        cluster.wait_ready().await;
    }
}

/// The story: the node of a lost disk came back at another port, and the configurations of the
/// others named the old one. It could reach them, joined, and in time led. Whoever asked the others
/// was sent to the old port: every client got "no leader", while all nodes said that they were
/// ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_disk_at_another_port_joins_and_once_it_leads_clients_that_know_only_the_others_work()
{
    let more = format!("{UNHURRIED_ELECTIONS}storage.format_empty = \"true\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let client = cluster.client();
    client.put("kept", "1").await.expect("written");
    let before =
        cluster.statuses().await.into_iter().find(|status| status.slot == 3).expect("it runs");
    let others = cluster.endpoints()[..2].to_vec();
    let early =
        Options::new(others.clone()).deadline(WAIT_LIMIT).connect().await.expect("connected");
    cluster.kill_node(2);
    std::fs::remove_dir_all(cluster.data(2)).expect("the directory");
    cluster.move_node(2);
    cluster.join_only(2, 0);
    cluster.start_node(2);
    cluster.wait_replaced(&before).await;
    until_leads(&mut cluster, 2).await;
    let late = Options::new(others).deadline(WAIT_LIMIT).connect().await.expect("connected");
    for client in [early, late] {
        assert_eq!(client.get("kept").await.expect("readable").expect("there").value, "1");
        client.put("after", "1").await.expect("the leader is found");
    }
    cluster.until_logged().await;
}

/// The story: two members got other addresses. The others kept using the addresses in the log,
/// which were from the cluster's first day, and so did the two members for each other. Without the
/// third member there was no majority.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_move_are_found_without_a_change_of_the_others_configurations() {
    let mut cluster = Cluster::start(3, "64MiB", UNHURRIED_ELECTIONS).await;
    let client = cluster.client();
    client.put("kept", "1").await.expect("written");
    for node in [1, 2] {
        assert_eq!(cluster.stop_node(node), 0);
        cluster.move_node(node);
        cluster.start_node(node);
        cluster.wait_ready().await;
        cluster.until_logged().await;
        // A client hears of it within seconds, while it is in use.
        let hears = async || {
            client.put("between", "1").await.expect("all serve");
            let (known, present) = (client.endpoints(), cluster.endpoints());
            present.iter().all(|endpoint| known.contains(endpoint)).then_some(())
        };
        cluster.until("a client that knows the present addresses", hears).await;
    }
    cluster.kill_node(0);
    client.put("after", "1").await.expect("two of three serve");
    assert_eq!(client.get("kept").await.expect("readable").expect("there").value, "1");
}

/// With certificates: nobody knows the slot of the member behind a seed, until it has said so and
/// shown the certificate of that slot.
#[tokio::test(flavor = "multi_thread")]
async fn three_members_that_were_stopped_and_start_elsewhere_serve_again_through_one_seed() {
    let mut cluster = Cluster::secured(3, "64MiB", UNHURRIED_ELECTIONS);
    cluster.start_all().await;
    cluster.client().put("kept", "1").await.expect("written");
    for node in 0..3 {
        assert_eq!(cluster.stop_node(node), 0);
        cluster.move_node(node);
    }
    // The seed itself names another member, which is no longer there.
    cluster.join_only(1, 0);
    cluster.join_only(2, 0);
    for node in 0..3 {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    let client = cluster.client();
    assert_eq!(client.get("kept").await.expect("readable").expect("there").value, "1");
    client.put("after", "1").await.expect("all serve");
    cluster.until_logged().await;
    for node in 0..3 {
        assert_eq!(cluster.stop_node(node), 0);
        cluster.start_node(node);
        cluster.wait_ready().await;
    }
    client.put("restarted", "1").await.expect("all serve");
}
