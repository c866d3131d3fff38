//! Ranges of keys are deleted by real processes: page by page, by many clients at once, and where the disk is
//! full.

use crate::metrics::metrics;
use crate::support::Cluster;
use cairn_client::{Client, Error, ListOptions, Range};
use futures::TryStreamExt;

async fn put_many(client: &Client, prefix: &str, keys: usize) {
    let numbers: Vec<usize> = (0..keys).collect();
    for numbers in numbers.chunks(100) {
        let batch = client.batch();
        let put = |batch: cairn_client::Batch, number: &usize| {
            batch.put(format!("{prefix}{number:05}"), "value")
        };
        numbers.iter().fold(batch, put).commit().await.expect("written");
    }
}

async fn keys(client: &Client) -> Vec<String> {
    let all = client.list_all(ListOptions::default().keys_only());
    let all: Vec<_> = all.try_collect().await.expect("listed");
    all.iter().map(|item| String::from_utf8_lossy(&item.key).into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_more_keys_than_go_at_once_goes_page_by_page_and_not_as_a_whole() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    cluster.until_ranges().await;
    let client = cluster.client();
    put_many(&client, "many/", 5_000).await;
    client.put("kept", "value").await.expect("written");
    let whole = client.delete_range_whole(Range::prefix("many/")).await;
    assert!(matches!(whole, Err(Error::RangeTooLarge { .. })), "{whole:?}");
    let page = client.delete_range_page(Range::prefix("many/"), 1).await.expect("deleted");
    assert_eq!((page.deleted, page.more), (1, true));
    assert_eq!(client.get("many/00000").await, Ok(None));
    assert_eq!(client.delete_range(Range::prefix("many/")).await, Ok(4_999));
    assert_eq!(keys(&client).await, ["kept"]);
    let counted = "\ncairn_range_deleted_keys_total 5000\n";
    assert!(metrics(&cluster, 0).contains(counted), "{}", metrics(&cluster, 0));
    let refused = client.delete_range_page(.., 4_097).await;
    assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_many_clients_are_deleted_one_after_another_and_are_gone_after_a_restart() {
    const KEYS: usize = 300;
    let mut cluster = Cluster::start(3, "64MiB", "").await;
    cluster.until_ranges().await;
    let client = cluster.client();
    client.put("kept", "value").await.expect("written");
    for owner in 0..8 {
        put_many(&client, &format!("of {owner}/"), KEYS).await;
    }
    let deleting = (0..8).map(|owner| {
        let client = cluster.client();
        async move { client.delete_range(Range::prefix(format!("of {owner}/"))).await }
    });
    for deleted in futures::future::join_all(deleting).await {
        assert_eq!(deleted, Ok(KEYS as u64));
    }
    cluster.kill_all();
    for node in 0..cluster.len() {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    assert_eq!(keys(&cluster.client()).await, ["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_deletes_a_range_and_takes_puts_again() {
    let cluster = Cluster::start(1, "32MiB", "").await;
    cluster.until_ranges().await;
    let (client, value) = (cluster.client(), vec![7_u8; 256 << 10]);
    let mut put = 0;
    let full = loop {
        match client.put(format!("full/{put:05}"), value.clone()).await {
            Ok(_) => put += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::StorageFull { .. }), "{full}");
    assert_eq!(client.delete_range(Range::prefix("full/")).await, Ok(put));
    let again = async || client.put("again", value.clone()).await.ok().map(drop);
    cluster.until("space comes back", again).await;
}
