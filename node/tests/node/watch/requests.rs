//! Requests that make no sense, and too many of those that do.

use super::{Watches, prefix, until_open};
use crate::metrics::metrics;
use crate::support::Cluster;
use cairn_client::proto::watch_ended::Why;
use cairn_client::proto::{self, watch_part, watch_request};
use tonic::Code;

/// How many watches ended for this reason, as the node counts them.
fn counted(cluster: &Cluster, why: &str) -> u64 {
    let sample = format!("cairn_watch_ended_total{{why=\"{why}\"}} ");
    let text = metrics(cluster, 0);
    let line = text.lines().find_map(|line| line.strip_prefix(&sample));
    line.map_or(0, |count| count.trim().parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_makes_no_sense_is_refused_alone_and_says_why() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let mut watches = Watches::open(&cluster.endpoints()[0]).await.expect("it listens");
    watches.begin(1, prefix("a"), None);
    watches.part().await;
    let begin = |range| {
        let begin = proto::WatchBegin { id: 2, range, after: None, keys_only: false };
        Some(watch_request::Kind::Begin(begin))
    };
    let range = |start: &str, end: &str| {
        let owned = |text: &str| text.to_owned().into();
        Some(proto::Range { start: owned(start), end: owned(end) })
    };
    for (range, said) in [
        (None, "the watch names no range; one with neither start nor end has all keys"),
        (range("b", "b"), "begins at `b` and ends at `b`, which is not behind that"),
        (range("b", "a"), "begins at `b` and ends at `a`"),
        (range(&"k".repeat(5000), ""), "has 5000 bytes; at most 2049 are allowed"),
    ] {
        watches.ask(begin(range));
        let ended = watches.ended(2).await;
        assert!(ended.why() == Why::Invalid && ended.message.contains(said), "{ended:?}");
        assert!(ended.message.len() < 5000);
    }
    assert_eq!(counted(&cluster, "invalid"), 4);
    // The other one goes on.
    cluster.client().put("a", "1").await.expect("written");
    let parts = watches.part().await;
    assert!(matches!(parts[0].kind, Some(watch_part::Kind::Changes(_))), "{parts:?}");
    // One that is not there may have ended meanwhile.
    watches.end(7);
    assert_eq!(watches.ended(7).await.why(), Why::Cancelled);
    watches.end(1);
    assert_eq!(watches.ended(1).await.why(), Why::Cancelled);
    watches.begin(1, prefix("a"), None);
    let parts = watches.part().await;
    assert!(matches!(parts[0].kind, Some(watch_part::Kind::Began(_))), "{parts:?}");
}

/// What is told of an id would be of either.
#[tokio::test(flavor = "multi_thread")]
async fn two_watches_of_one_id_both_end_and_a_request_without_content_ends_the_stream() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let mut watches = Watches::open(&cluster.endpoints()[0]).await.expect("it listens");
    watches.begin(1, prefix("a"), None);
    watches.part().await;
    watches.begin(1, prefix("b"), None);
    let ended = watches.ended(1).await;
    assert!(ended.why() == Why::Invalid && ended.message.contains("the id 1"), "{ended:?}");
    until_open(&cluster, 0).await;
    watches.begin(1, prefix("a"), None);
    watches.part().await;
    watches.ask(None);
    let refused = loop {
        match watches.message().await {
            Ok(said) => assert!(said.expect("why it ends").parts.is_empty()),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("without content"), "{refused:?}");
    until_open(&cluster, 0).await;
}

/// The story that is not to be: one client begins watches without end, and the node keeps each.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_begins_watches_without_end_has_as_many_as_remain_free() {
    const MOST: usize = 100;
    const ASKED: u64 = 3000;
    let more = format!("limits.max_watches = {MOST}\n");
    let cluster = Cluster::start(1, "64MiB", &more).await;
    let mut watches = Watches::open(&cluster.endpoints()[0]).await.expect("it listens");
    for id in 0..ASKED {
        watches.begin(id, prefix(&format!("{id}/")), None);
    }
    let (mut begun, mut full) = (0, 0);
    while begun + full < ASKED {
        for part in watches.part().await {
            match part.kind {
                Some(watch_part::Kind::Began(_)) => begun += 1,
                Some(watch_part::Kind::Ended(ended)) => {
                    assert_eq!(ended.why(), Why::Full, "{ended:?}");
                    assert!(ended.message.contains("`limits.max_watches`"), "{ended:?}");
                    full += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(begun, MOST as u64 / 2, "half of them");
    assert_eq!(counted(&cluster, "full"), full);
    // Another one has some of the rest.
    let mut other = Watches::open(&cluster.endpoints()[0]).await.expect("it listens");
    other.begin(1, prefix(""), None);
    let parts = other.part().await;
    assert!(matches!(parts[0].kind, Some(watch_part::Kind::Began(_))), "{parts:?}");
    drop(watches);
    // Those of the first are gone with it.
    until_open(&cluster, 1).await;
}
