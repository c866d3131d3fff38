//! Ranges are deleted page by page, or in one entry or not at all.

use crate::fake::{Cluster, Node, Step, options, refuse};
use cairn_client::proto::error_detail::Reason;
use cairn_client::{Client, Error, ListOptions, Range, Version};
use futures::TryStreamExt;

/// Keys `p/0` to `p/9`, and one on each side of them. The fake deletes four keys at once.
async fn ten() -> (Cluster, Node, Client) {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).connect().await.unwrap();
    for key in (0..10).map(|number| format!("p/{number}")).chain(["o".into(), "q".into()]) {
        client.put(key, "v").await.unwrap();
    }
    (cluster, node, client)
}

async fn keys(client: &Client) -> Vec<String> {
    let all = client.list_all(ListOptions::default());
    let all: Vec<_> = all.try_collect().await.unwrap();
    all.iter().map(|item| String::from_utf8_lossy(&item.key).into_owned()).collect()
}

#[tokio::test]
async fn a_range_is_deleted_page_by_page_each_with_a_number_of_its_own() {
    let (cluster, node, client) = ten().await;
    assert_eq!(client.delete_range(Range::prefix("p/")).await, Ok(10));
    let sequences: Vec<u64> = node.sessions().iter().map(|session| session.sequence).collect();
    assert_eq!(sequences[12..], [13, 14, 15], "of four, four and two keys");
    assert_eq!(keys(&client).await, ["o", "q"]);
    assert_eq!(client.delete_range(Range::prefix("p/")).await, Ok(0));
    assert_eq!(client.delete_range(..).await, Ok(2));
    assert_eq!(cluster.applied(), 12 + 3 + 2);
}

#[tokio::test]
async fn a_page_whose_answer_is_lost_is_not_followed_by_another_one_for_it() {
    let (cluster, node, client) = ten().await;
    node.plays([Step::ApplyAndBreak, Step::Break, Step::Serve, Step::ApplyAndBreak]);
    assert_eq!(client.delete_range("p/".."p0").await, Ok(10));
    assert_eq!(cluster.applied(), 12 + 3);
    assert_eq!(node.writes.lock().unwrap().len(), 12 + 3 + 3, "sent again");
}

#[tokio::test]
async fn a_page_says_how_many_keys_it_deleted_and_whether_more_are_left() {
    let (_, _, client) = ten().await;
    let page = client.delete_range_page("p/".., 3).await.unwrap();
    assert_eq!((page.deleted, page.more, page.version, page.term), (3, true, Version(23), 3));
    let page = client.delete_range_page(Range::prefix("p/"), 7).await.unwrap();
    assert_eq!((page.deleted, page.more), (7, false));
    assert_eq!(keys(&client).await, ["o", "q"]);
}

#[tokio::test]
async fn a_whole_range_is_deleted_in_one_entry_or_not_at_all() {
    let (cluster, _, client) = ten().await;
    let too_large = Err(Error::RangeTooLarge { at: Version(23) });
    assert_eq!(client.delete_range_whole(Range::prefix("p/")).await, too_large);
    let too_large = Err(Error::RangeTooLarge { at: Version(24) });
    assert_eq!(client.delete_range_within("p/".."p/3", 2).await, too_large);
    assert_eq!(keys(&client).await.len(), 12);
    let done = client.delete_range_within("p/"..="p/2", 3).await.unwrap();
    assert_eq!((done.deleted, done.more), (3, false));
    let done = client.delete_range_whole("p/".."p/6").await.unwrap();
    assert_eq!((done.deleted, done.version), (3, Version(26)));
    assert_eq!(cluster.applied(), 12 + 4);
}

#[tokio::test]
async fn a_cluster_of_an_earlier_version_says_what_it_needs() {
    let (_, node, client) = ten().await;
    let words = "the cluster's version is 2, and the deletion of a range needs 3";
    node.plays([Step::RefuseSaying(Reason::Refused, words.to_owned())]);
    let refused = client.delete_range(..).await.unwrap_err();
    assert_eq!(refused, Error::Refused { message: words.to_owned() });
    assert!(!refused.is_outcome_unknown());
    // One that refuses for a moment is asked again.
    node.plays([refuse(Reason::NoLeader)]);
    assert_eq!(client.delete_range(..).await, Ok(12));
}

#[tokio::test]
async fn a_range_without_keys_or_a_page_of_none_is_refused_before_anything_is_sent() {
    let (_, node, client) = ten().await;
    for range in [Range::from("p/".."p/"), Range::from("q".."p"), Range::from("p".."")] {
        let refused = client.delete_range(range).await;
        assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
    }
    let refused = client.delete_range_page(.., 0).await;
    assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
    assert_eq!(node.writes.lock().unwrap().len(), 12);
}
