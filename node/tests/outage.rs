//! All machines lose power at once under load, and the configuration accepts what that costs, with real processes. What the
//! machines had written is still there here: it is the members who cannot know that.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Instant;
use support::Cluster;

fn boot(file: &Path, number: u128) {
    let text = format!("{number:032x}");
    let groups = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
    std::fs::write(file, groups.join("-")).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_may_accept_a_loss_wait_for_every_voter_and_count_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let boot_id = folder.path().join("boot_id");
    boot(&boot_id, 1);
    let more = format!(
        "mode = \"replicated\"\nstorage.boot_id_file = {boot_id:?}\nstorage.sync_interval = \"10s\"\n\
         recover.automatic = \"true\""
    );
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let client = cluster.client();
    // Once the members have noticed that all of them are well, acknowledgements run ahead of syncs.
    let mut number = 0;
    let ahead =
        |status: &cairn_client::NodeStatus| status.storage.as_ref().is_some_and(|storage| storage.lazy);
    let running_ahead = async || {
        for _ in 0..50 {
            client.put(format!("key{}", number % 100), format!("{number}")).await.expect("written");
            number += 1;
        }
        let all = cluster.statuses().await;
        (all.len() == 3 && all.iter().all(ahead)).then_some(())
    };
    cluster.until("acknowledgements ahead of syncs", running_ahead).await;
    cluster.kill_all();
    boot(&boot_id, 2);
    for node in [0, 1] {
        cluster.start_node(node);
    }
    cluster.until_all("both recover", |status| status.standing == "recovering").await;
    // That they go on waiting is shown by the simulation, `loss-accepted-by-configuration`.
    let told = || cluster.logs().matches("2 of 3 voters are here").count() >= 2;
    cluster.until("both know that one is missing", async || told().then_some(())).await;
    for status in cluster.statuses().await {
        assert_eq!((status.standing.as_str(), status.leader), ("recovering", None), "{}", cluster.logs());
    }

    cluster.start_node(2);
    let began = Instant::now();
    cluster.until_all("all are back", |status| status.standing == "active" && status.losses > 0).await;
    println!("back {:?} after the last one started", began.elapsed());
    let last = client.get(format!("key{}", (number - 1) % 100)).await.expect("readable").expect("there");
    assert_eq!(last.value, format!("{}", number - 1), "no machine had dropped anything");
    client.put("after", "1").await.expect("served");
}
