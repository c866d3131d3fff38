//! Connecting waits for a node, tries each once, or is left to the first request.
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fake::{Cluster, Node, WAIT_LIMIT, at_its_deadline, dead, options};
use cairn_client::{Error, ErrorKind, Options};

fn hellos(node: &Node) -> usize {
    node.hellos.load(Ordering::SeqCst)
}

/// The story: an application and its cluster were started together. It ended at once, since no node answered yet.
#[tokio::test]
async fn a_client_that_waits_asks_a_starting_node_until_it_answers() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    node.is_starting_for(1);
    let early = options(&[&node]).connect().await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Unavailable, "{early}");
    assert_eq!(hellos(&node), 1, "each is tried once");
    node.is_starting_for(3);
    let client = options(&[&node]).connect_within(WAIT_LIMIT).await.unwrap();
    assert_eq!(hellos(&node), 1 + 4);
    client.put("a", "1").await.unwrap();
    assert_eq!(cluster.applied(), 1);
}

#[tokio::test]
async fn a_client_that_waits_gives_up_in_time_and_names_whom_it_asked() {
    let (_held, dead) = dead();
    let waits = Options::new([dead.clone()]).connect_within(Duration::from_secs(20));
    match at_its_deadline(tokio::spawn(waits)).await {
        Err(Error::Unavailable { tried, .. }) => assert_eq!(tried, vec![dead.clone()]),
        other => panic!("{other:?}"),
    }
    let never = Options::new([dead]).connect_within(Duration::ZERO).await.unwrap_err();
    assert_eq!(never.kind(), ErrorKind::DeadlineExceeded, "{never}");
}

#[tokio::test]
async fn a_client_does_not_wait_for_what_time_does_not_change() {
    let stranger = Node::start(&Cluster::new("test")).await;
    stranger.denies();
    let other = Node::start(&Cluster::new("test").speaking(cairn_client::PROTOCOL + 1)).await;
    let red = Node::start(&Cluster::new("red")).await;
    let cases = [
        (&stranger, ErrorKind::Unauthenticated),
        (&other, ErrorKind::ProtocolMismatch),
        (&red, ErrorKind::ClusterMismatch),
    ];
    for (node, kind) in cases {
        let refused =
            options(&[node]).cluster("test").connect_within(WAIT_LIMIT).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        assert_eq!(hellos(node), 1, "{refused}");
    }
    let none = Options::default().connect_within(WAIT_LIMIT).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Invalid, "{none}");
}

#[test]
fn certificates_in_memory_that_cannot_be_used_are_named_and_the_key_is_never_shown() {
    let options = Options::new(["127.0.0.1:1"]).tls_pem("no PEM", "no PEM", "a secret");
    let shown = format!("{options:?}");
    assert!(!shown.contains("secret") && !shown.contains("115, 101"), "{shown}");
    let error = options.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("the CA in memory: no certificate in PEM"), "{error}");
}

#[tokio::test]
async fn a_client_that_is_built_asks_nobody_before_its_first_request() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    let client = options(&[&node]).build().unwrap();
    assert_eq!((hellos(&node), client.cluster()), (0, None));
    client.put("a", "1").await.unwrap();
    assert!(hellos(&node) > 0);
    assert_eq!(client.cluster().as_deref(), Some("test"));
}
