//! Reads, lists and node statuses.
use std::time::Duration;

use crate::fake::{
    Cluster, Node, Step, WAIT_LIMIT, at_its_deadline, dead, not_leader, options, refuse,
};
use cairn_client::proto::error_detail::Reason;
use cairn_client::{
    Bytes, Client, Error, ErrorKind, ListOptions, Options, PROTOCOL, ReadFrom, ReadOptions, Role,
};
use futures::TryStreamExt;

#[tokio::test]
async fn a_read_goes_to_the_leader_and_a_stale_one_to_any_node() {
    let cluster = Cluster::new("test");
    let (follower, leader) = (Node::start(&cluster).await, Node::start(&cluster).await);
    follower.plays([not_leader(&leader.address)]);
    let client = options(&[&follower]).connect().await.unwrap();
    client.put("a", "1").await.unwrap();
    let item = client.get("a").await.unwrap().unwrap();
    assert_eq!((item.value, item.version.0), (Bytes::from("1"), 11));
    assert_eq!(leader.reads.lock().unwrap().len(), 1);
    assert_eq!(client.get_stale("b").await.unwrap(), None);
    let version =
        client.get_with("a", ReadOptions::stale().version_only()).await.unwrap().unwrap().version;
    assert_eq!(version.0, 11);
    assert!(follower.reads.lock().unwrap().iter().all(|read| read.stale));
}

#[tokio::test]
async fn a_read_is_retried_until_it_is_answered() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).connect().await.unwrap();
    node.plays([
        Step::Break,
        refuse(Reason::NoLeader),
        refuse(Reason::Stopped),
        refuse(Reason::Overloaded),
    ]);
    assert_eq!(client.get("a").await.unwrap(), None);
    assert_eq!(client.version("a").await.unwrap(), None);
    assert_eq!(node.reads.lock().unwrap().len(), 6);
}

#[tokio::test]
async fn a_read_that_is_never_answered_ends_at_its_deadline() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).connect().await.unwrap();
    node.always(Step::Hang);
    let read = tokio::spawn(async move { client.get("a").await });
    while reads(&node) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(at_its_deadline(read).await, Err(Error::DeadlineExceeded { .. })));
}

#[tokio::test]
async fn a_damaged_value_is_read_where_it_is_intact_and_is_an_error_where_none_is() {
    let cluster = Cluster::new("test");
    let (a, b) = (Node::start(&cluster).await, Node::start(&cluster).await);
    let client = options(&[&a, &b]).connect().await.unwrap();
    client.put("a", "1").await.unwrap();
    let leader = if client.leader().as_ref() == Some(&a.address) { &a } else { &b };
    leader.plays([refuse(Reason::ValueUnreadable)]);
    assert!(client.get("a").await.unwrap().is_some());
    a.always(refuse(Reason::ValueUnreadable));
    assert!(client.get_stale("a").await.unwrap().is_some());
    b.always(refuse(Reason::ValueUnreadable));
    for read in [ReadOptions::default(), ReadOptions::stale()] {
        match client.get_with("a", read).await {
            Err(Error::ValueUnreadable { key, .. }) => assert_eq!(key, "a"),
            other => panic!("{other:?}"),
        }
    }
}

/// Three nodes, and a client that reads from any of them and knows the leader.
async fn read_from_members(cluster: &Cluster) -> ([Node; 3], Client) {
    let start = || Node::start(cluster);
    let nodes = [start().await, start().await, start().await];
    let options = options(&nodes.each_ref()).read_from(ReadFrom::Members);
    let client = options.connect().await.unwrap();
    client.put("a", "1").await.unwrap();
    // The other two are connected meanwhile.
    while nodes.iter().any(|node| reads(node) == 0) {
        client.get("a").await.unwrap();
    }
    nodes.iter().for_each(|node| node.reads.lock().unwrap().clear());
    (nodes, client)
}

fn reads(node: &Node) -> usize {
    node.reads.lock().unwrap().len()
}

#[tokio::test]
async fn reads_from_members_go_to_the_one_with_the_least_to_do() {
    let cluster = Cluster::new("test");
    let (nodes, client) = read_from_members(&cluster).await;
    let leader = client.leader();
    for _ in 0..30 {
        client.get("a").await.unwrap();
    }
    assert_eq!(nodes.each_ref().map(reads), [10; 3]);
    assert_eq!(client.leader(), leader, "a read says nothing of who leads");
    let [busy, ..] = &nodes;
    busy.always(Step::Hang);
    let hanging: Vec<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get("a").await })
        })
        .collect();
    while reads(busy) == 10 {
        tokio::task::yield_now().await;
    }
    // The others have nothing to do any more.
    while hanging.iter().filter(|read| read.is_finished()).count() < 2 {
        tokio::task::yield_now().await;
    }
    for _ in 0..30 {
        client.get("a").await.unwrap();
    }
    assert_eq!(reads(busy), 11, "one is under way there");
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_member_that_refuses_a_read_is_not_asked_to_read_for_a_while() {
    let cluster = Cluster::new("test");
    let (nodes, client) = read_from_members(&cluster).await;
    let [recovering, ..] = &nodes;
    recovering.always(refuse(Reason::NoLeader));
    let began = std::time::Instant::now();
    for _ in 0..30 {
        client.get("a").await.unwrap();
    }
    // A busy machine may need more than the second in which it is not asked.
    let most = 1 + began.elapsed().as_secs() as usize;
    assert!((1..=most).contains(&reads(recovering)), "{}", reads(recovering));
}

#[tokio::test]
async fn lists_are_read_page_by_page_in_both_directions() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).connect().await.unwrap();
    for key in ["a/1", "a/2", "a/3", "a/4", "a/5", "b/1"] {
        client.put(key, "value").await.unwrap();
    }
    let keys = |items: &[cairn_client::KeyValue]| {
        items.iter().map(|item| String::from_utf8(item.key.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    let page = client
        .list(ListOptions::prefix("a/").limit(2).start_after("a/1").keys_only())
        .await
        .unwrap();
    assert_eq!((keys(&page.items), page.more), (vec!["a/2".to_owned(), "a/3".to_owned()], true));
    assert!(page.items.iter().all(|item| item.value.is_empty() && item.version.0 > 0));

    let mut pages = client.pages(ListOptions::prefix("a/").limit(2));
    let mut sizes = Vec::new();
    // The client, or else its caller, asks again for a page whose answer is lost.
    node.plays([Step::Serve, Step::Break]);
    while let Some(page) = pages.next().await.unwrap() {
        sizes.push(page.items.len());
    }
    assert_eq!(sizes, [2, 2, 1]);
    assert_eq!(pages.next().await.unwrap(), None);

    let all: Vec<_> =
        client.list_all(ListOptions::prefix("a/").limit(2).reverse()).try_collect().await.unwrap();
    assert_eq!(keys(&all), ["a/5", "a/4", "a/3", "a/2", "a/1"]);
    let none: Vec<_> =
        client.list_all(ListOptions::prefix("z").stale()).try_collect().await.unwrap();
    assert_eq!(none, []);
}

#[tokio::test]
async fn an_endpoint_that_speaks_another_version_of_the_protocol_is_refused_by_name() {
    let later = Cluster::new("ours").speaking(PROTOCOL + 1);
    let node = Node::start(&later).await;
    let client = options(&[&node]).build().unwrap();
    for error in
        [options(&[&node]).connect().await.unwrap_err(), client.put("a", "1").await.unwrap_err()]
    {
        assert!(matches!(error, Error::ProtocolMismatch { .. }), "{error:?}");
        let named = format!("the server speaks version {} of the client protocol", PROTOCOL + 1);
        assert!(error.to_string().contains(&named), "{error}");
    }
}

#[tokio::test]
async fn an_endpoint_of_another_cluster_is_refused() {
    let (ours, theirs) =
        (Node::start(&Cluster::new("ours")).await, Node::start(&Cluster::new("theirs")).await);
    let mismatch = Error::ClusterMismatch {
        endpoint: theirs.address.clone(),
        expected: "ours".to_owned(),
        found: "theirs".to_owned(),
    };
    assert_eq!(options(&[&theirs]).cluster("ours").connect().await.unwrap_err(), mismatch);
    let client = options(&[&ours]).connect().await.unwrap();
    ours.plays([not_leader(&theirs.address)]);
    client.put("a", "1").await.unwrap();
    assert_eq!(
        options(&[&theirs, &ours]).cluster("ours").connect().await.unwrap().endpoints().len(),
        2
    );

    // As long as the only member fails, its failure is the error, and nobody else is asked.
    let short = options(&[&ours, &theirs]).deadline(Duration::from_secs(4));
    let client = short.cluster("ours").connect().await.unwrap();
    ours.always(Step::Break);
    let error = client.get("a").await.unwrap_err();
    // The deadline may cut the last attempt short.
    if !matches!(error, Error::DeadlineExceeded { .. }) {
        let both =
            |error: &Error| matches!(error, Error::Unavailable { tried, .. } if tried.len() == 2);
        assert!(both(&error) && error.to_string().contains("the connection broke"), "{error:?}");
    }
    assert!(theirs.reads.lock().unwrap().is_empty());
}

/// The story: at the former address of a member there was a node of another cluster, which did not know
/// the caller's token. Whoever asked it first was refused, though the members served.
#[tokio::test]
async fn a_node_that_does_not_know_the_caller_is_passed_over_until_all_said_so() {
    let cluster = Cluster::new("test");
    let (stranger, ours) = (Node::start(&cluster).await, Node::start(&cluster).await);
    stranger.denies();
    for _ in 0..8 {
        // Connects to either of them first.
        let client = options(&[&stranger, &ours]).connect().await.unwrap();
        ours.plays([Step::Break, not_leader(&stranger.address)]);
        client.put("a", "1").await.unwrap();
    }
    let denied = options(&[&stranger]).connect().await.unwrap_err();
    assert!(matches!(denied, Error::Unauthenticated { .. }), "{denied:?}");
    // Who was let in before waits for a member that fails.
    ours.belongs_to(7);
    ours.knows(&[&ours, &stranger]);
    let client = options(&[&ours, &stranger]).connect().await.unwrap();
    ours.plays([Step::Break, Step::Break, Step::Break]);
    client.put("a", "1").await.unwrap();
    ours.denies();
    let denied = options(&[&stranger, &ours]).connect().await.unwrap_err();
    assert!(matches!(denied, Error::Unauthenticated { .. }), "{denied:?}");
}

#[tokio::test]
async fn the_longest_deadline_is_none_that_overflows() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let options = options(&[&node])
        .deadline(Duration::MAX)
        .attempt_timeout(Duration::MAX)
        .connect_timeout(Duration::MAX)
        .keepalive_interval(Duration::MAX)
        .keepalive_timeout(Duration::MAX);
    let client = options.connect().await.unwrap().with_deadline(Duration::MAX);
    client.put("a", "1").await.unwrap();
    assert!(client.get("a").await.unwrap().is_some());
}

/// The story: a second survivor was made anew by mistake, and started at its address. A client that
/// knew it before was connected again by its channel, and went on there.
#[tokio::test]
async fn a_node_of_another_generation_is_passed_over_and_named_once_nobody_else_is_left() {
    let cluster = Cluster::new("test");
    let (a, b) = (Node::start(&cluster).await, Node::start(&cluster).await);
    for node in [&a, &b] {
        node.knows(&[&a, &b]);
        node.belongs_to(7);
    }
    let client = options(&[&a]).connect().await.unwrap();
    assert_eq!(client.get("a").await.unwrap(), None);
    a.belongs_to(9);
    assert_eq!(client.get("a").await.unwrap(), None);
    assert_eq!(b.reads.lock().unwrap().len(), 1);
    b.belongs_to(9);
    let error = client.get("a").await.unwrap_err();
    assert!(matches!(error, Error::ClusterMismatch { .. }), "{error:?}");
    assert!(error.to_string().contains("generation 00000009"), "{error}");
}

#[tokio::test]
async fn a_list_names_the_generation_too() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    node.knows(&[&node]);
    node.belongs_to(7);
    let client = options(&[&node]).connect().await.unwrap();
    client.list(ListOptions::prefix("a")).await.unwrap();
    node.belongs_to(9);
    let error = client.list(ListOptions::prefix("a")).await.unwrap_err();
    assert!(matches!(error, Error::ClusterMismatch { .. }), "{error:?}");
}

/// The story: requests over a connection that was made to a node when it was blank named no
/// generation. The node became part of another cluster, and served them.
#[tokio::test]
async fn a_connection_to_a_node_that_was_blank_names_the_generation_too() {
    let (ours, theirs) = (Cluster::new("test"), Cluster::new("test"));
    let (blank, member) = (Node::start(&theirs).await, Node::start(&ours).await);
    let client = options(&[&blank]).connect().await.unwrap();
    assert_eq!(client.get("a").await.unwrap(), None);
    member.knows(&[&member]);
    member.belongs_to(7);
    blank.plays([not_leader(&member.address)]);
    client.put("a", "1").await.unwrap();
    blank.knows(&[&blank]);
    blank.belongs_to(9);
    member.plays([not_leader(&blank.address)]);
    client.put("b", "2").await.unwrap();
    assert_eq!(client.get("b").await.unwrap().unwrap().value, "2");
    let anew = options(&[&blank]).connect().await.unwrap();
    assert_eq!(anew.get("b").await.unwrap(), None);
}

/// The story: a client was started together with its cluster and met only blank nodes. The cluster
/// served it, and it named no generation. It went on when the cluster had been made anew.
#[tokio::test]
async fn a_client_that_met_only_blank_nodes_learns_the_generation_before_it_is_served() {
    let node = Node::start(&Cluster::new("test")).await;
    let client = options(&[&node]).connect().await.unwrap();
    node.knows(&[&node]);
    node.belongs_to(7);
    assert_eq!(client.get("a").await.unwrap(), None);
    node.belongs_to(9);
    let error = client.get("a").await.unwrap_err();
    assert!(matches!(error, Error::ClusterMismatch { .. }), "{error:?}");
}

/// The story: a node that an earlier generation had left over was asked first. It served nobody, and
/// the client refused the cluster that was made anew, until it was restarted.
#[tokio::test]
async fn neither_a_read_that_failed_nor_a_look_at_the_members_binds_to_a_generation() {
    let (theirs, ours) = (Cluster::new("test"), Cluster::new("test"));
    let (left_over, anew) = (Node::start(&theirs).await, Node::start(&ours).await);
    left_over.knows(&[&left_over, &anew]);
    left_over.belongs_to(3);
    anew.knows(&[&anew]);
    anew.belongs_to(7);
    left_over.always(refuse(Reason::Stopped));
    let client = options(&[&left_over]).connect().await.unwrap();
    assert_eq!(client.get("a").await.unwrap(), None);
    client.put("a", "1").await.unwrap();
    left_over.always(not_leader(&anew.address));
    let client = options(&[&left_over]).connect().await.unwrap();
    client.members().await.unwrap();
    assert_eq!(client.get("a").await.unwrap().unwrap().value, "1");
}

#[tokio::test]
async fn other_members_are_learnt_and_asked_when_the_first_one_fails() {
    let cluster = Cluster::new("test");
    let (a, b) = (Node::start(&cluster).await, Node::start(&cluster).await);
    a.knows(&[&a, &b]);
    let client = options(&[&a]).connect().await.unwrap();
    assert_eq!(client.endpoints(), [a.address.clone(), b.address.clone()]);
    a.always(Step::Break);
    client.put("a", "1").await.unwrap();
    assert_eq!(client.members().await.unwrap().len(), 2);
    assert_eq!(client.cluster().as_deref(), Some("test"));
}

/// The story: a client was connected to the leader, and another member moved. When the leader went
/// down, the client asked at the old address until its deadline.
#[tokio::test]
async fn a_connected_client_hears_of_a_member_that_moved() {
    let cluster = Cluster::new("test");
    let (a, old) = (Node::start(&cluster).await, Node::start(&cluster).await);
    a.knows(&[&a, &old]);
    let client = options(&[&a]).connect().await.unwrap();
    let new = Node::start(&cluster).await;
    a.knows(&[&a, &new]);
    // The failure makes it ask soon, and not only after some seconds.
    old.always(Step::Break);
    a.plays([refuse(Reason::NoLeader)]);
    while client.endpoints() != [a.address.clone(), new.address.clone()] {
        client.put("a", "1").await.unwrap();
    }
    a.always(Step::Break);
    client.put("after", "1").await.unwrap();
}

#[tokio::test]
async fn each_node_reports_its_status_and_a_dead_one_is_an_error() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let (_held, dead) = dead();
    // The limits only end a hang.
    let options = Options::new([node.address.clone(), dead.clone()]);
    let options = options.connect_timeout(WAIT_LIMIT).attempt_timeout(WAIT_LIMIT);
    let client = options.connect().await.unwrap();
    let statuses = client.statuses().await;
    assert_eq!(
        statuses.iter().map(|(endpoint, _)| endpoint).collect::<Vec<_>>(),
        [&node.address, &dead]
    );
    assert_eq!(statuses[0].1.as_ref().unwrap().role, Role::Leader);
    assert!(matches!(statuses[1].1, Err(Error::Unavailable { .. })));
    assert_eq!(
        client.status(&format!("http://{}/", node.address)).await.unwrap().applied_index,
        10
    );
}

#[tokio::test]
async fn invalid_options_are_refused_without_a_connection() {
    let none: [&str; 0] = [];
    for endpoints in
        [&none[..], &["localhost"], &["https://localhost:1"], &["not an address:1"], &[""]]
    {
        let error = Options::new(endpoints.iter().copied()).build().unwrap_err();
        assert!(matches!(error, Error::InvalidOptions(_)), "{endpoints:?}: {error}");
    }
    let (_held, dead) = dead();
    match Options::new([dead.clone()]).connect().await {
        Err(error @ Error::Unavailable { .. }) => {
            let source = std::error::Error::source(&error).expect("the system's error");
            let refused = source.downcast_ref::<std::io::Error>().expect("an I/O error").kind();
            assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
            assert_eq!(
                (error.kind(), error.kind().may_be_repeated()),
                (ErrorKind::Unavailable, true)
            );
            let Error::Unavailable { tried, last_error, .. } = error else { unreachable!() };
            assert_eq!(tried, [dead]);
            assert!(last_error.contains("refused"), "{last_error}");
        }
        other => panic!("{other:?}"),
    }
}
