//! Reads of several keys, of a range, and of an age.
use std::time::Duration;

use crate::fake::{Cluster, Node, Step, not_leader, options, refuse};
use cairn_client::proto::error_detail::Reason;
use cairn_client::{Bytes, Client, Error, ListOptions, ReadFrom, proto};
use futures::TryStreamExt;

/// A node, and a client that has put `a/1` to `a/5`.
async fn filled() -> (Node, Client) {
    let node = Node::start(&Cluster::new("test")).await;
    let client = options(&[&node]).connect().await.unwrap();
    for key in ["a/1", "a/2", "a/3", "a/4", "a/5"] {
        client.put(key, key).await.unwrap();
    }
    (node, client)
}

async fn listed(client: &Client, options: ListOptions) -> Vec<String> {
    let items: Vec<_> = client.list_all(options).try_collect().await.unwrap();
    items.iter().map(|item| String::from_utf8(item.key.to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn several_keys_are_read_at_one_index_in_the_order_asked() {
    let (node, client) = filled().await;
    let many = client.get_many(["a/4", "none", "a/1", "a/4"]).await.unwrap();
    let values = |many: &cairn_client::Many| {
        let items = many.items.iter();
        items.map(|item| item.as_ref().map(|item| item.value.clone())).collect::<Vec<_>>()
    };
    let some = |value: &'static str| Some(Bytes::from(value));
    assert_eq!(values(&many), [some("a/4"), None, some("a/1"), some("a/4")]);
    assert_eq!((many.position.term, many.position.index), (3, 15));
    // A read is repeated until it is answered.
    node.plays([Step::Break, refuse(Reason::NoLeader)]);
    client.versions(["a/1"]).await.unwrap();
    let asked = node.many.lock().unwrap().clone();
    assert_eq!(
        asked.iter().map(|get| get.version_only).collect::<Vec<_>>(),
        [false, true, true, true]
    );
}

#[tokio::test]
async fn more_keys_than_a_node_answers_are_refused_before_they_are_sent() {
    let node = Node::start(&Cluster::new("test")).await;
    let client = options(&[&node]).build().unwrap();
    let keys: Vec<String> = (0..9).map(|key| key.to_string()).collect();
    let too_many =
        Error::RequestTooLarge { unit: "keys", limit: 8, actual: 9, message: String::new() };
    assert_eq!(client.get_many(keys).await, Err(too_many));
    let none: [&str; 0] = [];
    assert!(matches!(client.get_many(none).await, Err(Error::InvalidRequest(_))));
    assert!(matches!(client.get_many(["a", ""]).await, Err(Error::InvalidKey { .. })));
    assert!(node.many.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_get_of_many_goes_to_a_node_that_knows_it_and_fails_by_name_where_none_does() {
    let cluster = Cluster::new("test");
    let (earlier, later) = (Node::start(&cluster).await, Node::start(&cluster).await);
    earlier.is_of_an_earlier_release();
    let client = options(&[&earlier, &later]).connect().await.unwrap();
    client.put("a", "1").await.unwrap();
    for _ in 0..4 {
        let many = client.get_many(["a"]).await.unwrap();
        assert!(many.items[0].is_some());
    }
    later.is_of_an_earlier_release();
    let error = client.get_many(["a"]).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("earlier release") && !error.is_transient(), "{error}");
    assert!(client.get("a").await.unwrap().is_some(), "other reads go on");
}

/// The story: a server's refusal has numbers without a unit. The client took each limit below 64 Ki for one of
/// operations, also that of the values of one answer, and dropped the server's advice.
#[tokio::test]
async fn a_refusal_of_too_much_counts_what_was_asked_for_and_tells_the_servers_words() {
    let (node, client) = filled().await;
    let reason = Reason::RequestTooLarge as i32;
    for (actual, unit) in [(2500, "bytes"), (2, "keys")] {
        let detail = proto::ErrorDetail { reason, limit: 1, actual, ..Default::default() };
        node.plays([Step::Refuse(detail)]);
        let error = client.get_many(["a/1", "a/2"]).await.unwrap_err();
        let message = "refused".to_owned();
        assert_eq!(error, Error::RequestTooLarge { unit, limit: 1, actual, message });
        assert_eq!(error.to_string(), "request too large: refused");
    }
    for (actual, unit) in [(2500, "bytes"), (1, "operations")] {
        let detail = proto::ErrorDetail { reason, limit: 0, actual, ..Default::default() };
        node.plays([Step::Refuse(detail)]);
        let error = client.put("a/1", "1").await.unwrap_err();
        let message = "refused".to_owned();
        assert_eq!(error, Error::RequestTooLarge { unit, limit: 0, actual, message });
    }
}

/// The story: of three members one was upgraded. A client asked the leader, then the other old member, then the
/// leader again, and gave up: it counted the leader twice, and never asked the member that knew the call.
#[tokio::test]
async fn the_only_node_that_can_answer_a_read_is_found_and_no_other_is_asked_twice() {
    for (count, read_from) in [
        (3, ReadFrom::Leader),
        (5, ReadFrom::Leader),
        (3, ReadFrom::Members),
        (5, ReadFrom::Members),
    ] {
        // Behind the leader and before the other old node, and the other way round.
        for able in 1..count {
            let cluster = Cluster::new("test");
            let mut nodes = Vec::new();
            for _ in 0..count {
                nodes.push(Node::start(&cluster).await);
            }
            let endpoints: Vec<&Node> = nodes.iter().collect();
            let client = options(&endpoints).read_from(read_from).connect().await.unwrap();
            for node in &nodes[1..] {
                node.always(not_leader(&nodes[0].address));
            }
            client.put("a", "1").await.unwrap();
            assert_eq!(client.leader().as_ref(), Some(&nodes[0].address));
            for (position, node) in nodes.iter().enumerate() {
                node.always(Step::Serve);
                if position != able {
                    node.is_of_an_earlier_release();
                }
            }
            let many = client.get_many(["a"]).await.unwrap();
            assert!(many.items[0].is_some(), "node {able} of {count}");
            for (position, node) in nodes.iter().enumerate() {
                if position != able {
                    node.always(refuse(Reason::ValueUnreadable));
                }
            }
            // For a moment it cannot either.
            nodes[able].plays([refuse(Reason::NoLeader)]);
            assert!(client.get("a").await.unwrap().is_some(), "node {able} of {count}");
            for (position, node) in nodes.iter().enumerate() {
                let asked = node.reads.lock().unwrap().len() + node.many.lock().unwrap().len();
                assert!(asked <= 2 || position == able, "a node was asked {asked} times");
            }
            nodes[able].is_of_an_earlier_release();
            let error = client.get_many(["a"]).await.unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_list_ends_before_its_end_in_both_directions_also_where_a_node_does_not_know_it() {
    let (node, client) = filled().await;
    for earlier in [false, true] {
        if earlier {
            node.is_of_an_earlier_release();
        }
        for limit in 1..6 {
            let range = || ListOptions::prefix("a/").end("a/4").limit(limit);
            assert_eq!(listed(&client, range()).await, ["a/1", "a/2", "a/3"]);
            assert_eq!(listed(&client, range().reverse()).await, ["a/3", "a/2", "a/1"]);
            let inner = range().start_after("a/2");
            assert_eq!(listed(&client, inner.clone()).await, ["a/3"]);
            assert_eq!(listed(&client, inner.reverse()).await, ["a/1"]);
        }
        let page = client.list(ListOptions::prefix("a/").end("a/4").limit(4)).await.unwrap();
        assert_eq!((page.items.len(), page.more), (3, false));
        assert_eq!(listed(&client, ListOptions::prefix("a/").end("a/0")).await, [""; 0]);
    }
}

#[tokio::test]
async fn a_bound_of_age_is_asked_for_with_every_read_but_a_stale_one() {
    let (node, client) = filled().await;
    let old = client.with_max_staleness(Duration::from_millis(1500));
    old.get("a/1").await.unwrap();
    old.get_stale("a/1").await.unwrap();
    old.version("a/1").await.unwrap();
    client.get("a/1").await.unwrap();
    old.with_max_staleness(Duration::from_micros(999)).get("a/1").await.unwrap();
    old.with_deadline(Duration::MAX).synced().get_many(["a/1"]).await.unwrap();
    old.list(ListOptions::prefix("a/")).await.unwrap();
    old.list(ListOptions::prefix("a/").stale()).await.unwrap();
    let gets = node.reads.lock().unwrap().clone();
    let gets: Vec<_> = gets.iter().map(|get| (get.stale, get.max_stale_ms)).collect();
    // Less than a millisecond is none.
    let expected = [(false, 1500), (true, 0), (false, 1500), (false, 0), (false, 0)];
    assert_eq!(gets, expected);
    let many = node.many.lock().unwrap().clone();
    assert_eq!(many.iter().map(|get| get.max_stale_ms).collect::<Vec<_>>(), [1500]);
    let lists = node.lists.lock().unwrap().clone();
    let lists: Vec<_> = lists.iter().map(|list| (list.stale, list.max_stale_ms)).collect();
    assert_eq!(lists, [(false, 1500), (true, 0)]);
}

/// Any member answers it, so the leader is not asked for all of them.
#[tokio::test]
async fn a_read_that_may_be_old_does_not_look_for_the_leader() {
    let cluster = Cluster::new("test");
    let (leader, other) = (Node::start(&cluster).await, Node::start(&cluster).await);
    let client = options(&[&other]).connect().await.unwrap();
    other.plays([not_leader(&leader.address)]);
    client.put("a", "1").await.unwrap();
    let old = client.with_max_staleness(Duration::from_secs(1));
    old.get("a").await.unwrap();
    old.get_many(["a"]).await.unwrap();
    assert_eq!(leader.reads.lock().unwrap().len() + leader.many.lock().unwrap().len(), 0);
    // Where members share the reads, the one with the least to do answers.
    let spread = options(&[&leader, &other]).read_from(ReadFrom::Members).connect().await.unwrap();
    let old = spread.with_max_staleness(Duration::from_secs(1));
    while [&leader, &other].iter().any(|node| node.reads.lock().unwrap().len() < 3) {
        old.get("a").await.unwrap();
    }
}
