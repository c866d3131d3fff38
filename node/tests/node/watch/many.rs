//! Thousands of watches on one node.

use super::{Watches, prefix, until_open};
use crate::metrics::metrics;
use crate::support::Cluster;
use cairn_client::proto::{self, watch_part};
use std::collections::BTreeSet;

const WATCHES: u64 = 5000;
/// Those that come with the connection of one client.
const STREAMS: usize = 4;

fn key(watch: u64) -> String {
    format!("{watch:05}/")
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_watches_are_each_told_of_their_own_range_and_of_no_other() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    let mut streams = Vec::new();
    for stream in 0..STREAMS as u64 {
        let mut watches = Watches::open(&cluster.endpoints()[0]).await.expect("it listens");
        let own = (0..WATCHES).filter(|watch| watch % STREAMS as u64 == stream);
        own.clone().for_each(|watch| watches.begin(watch, prefix(&key(watch)), None));
        let mut begun = BTreeSet::new();
        while begun.len() < own.clone().count() {
            for part in watches.part().await {
                assert!(matches!(part.kind, Some(watch_part::Kind::Began(_))), "{part:?}");
                begun.insert(part.id);
            }
        }
        assert!(begun.into_iter().eq(own));
        streams.push(watches);
    }
    until_open(&cluster, 5000).await;

    // One of them, and in another entry many, of every stream.
    client.put(format!("{}one", key(4321)), "v").await.expect("written");
    let batch = (0..100)
        .fold(client.batch(), |batch, number| batch.put(format!("{}many", key(number * 7)), "v"));
    let last = batch.commit().await.expect("written").version.0;
    let mut told = BTreeSet::new();
    for watches in &mut streams {
        let mut through = proto::Position::default();
        while through.index < last {
            let message = watches.message().await.expect("it goes on").expect("it goes on");
            through = message.through.unwrap_or(through);
            for part in message.parts {
                let Some(watch_part::Kind::Changes(changes)) = part.kind else {
                    panic!("{part:?}")
                };
                for change in changes.changes {
                    let text = String::from_utf8(change.key.to_vec()).expect("text");
                    assert!(text.starts_with(&key(part.id)), "{text} to {}", part.id);
                    assert!(told.insert((text.clone(), part.id)), "{text} twice");
                }
            }
        }
    }
    let many = (0..100).map(|number| (format!("{}many", key(number * 7)), number * 7));
    let expected: BTreeSet<(String, u64)> =
        many.chain([(format!("{}one", key(4321)), 4321)]).collect();
    assert_eq!(told, expected);
    let text = metrics(&cluster, 0);
    assert!(text.contains("\ncairn_watch_changes_total 101\n"), "{text}");
    assert!(text.contains("\ncairn_watches_behind 0\n"), "{text}");
    drop(streams);
    until_open(&cluster, 0).await;
}
