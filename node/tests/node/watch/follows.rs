//! What is told of writes, over everything that may happen to the node that tells.

use super::{Follower, Watches, Write, prefix, write_all};
use crate::support::{Cluster, SLOW_ELECTIONS, UNHURRIED_ELECTIONS};
use cairn_client::proto::watch_ended::Why;
use cairn_client::proto::{self, watch_part, watch_request};
use cairn_client::{Range, Version};
use cairn_launch::Signal;

const WRITERS: usize = 4;
const WRITES: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn every_member_tells_each_change_once_and_in_order_from_where_the_watch_began() {
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let client = cluster.client();
    client.put("before", "1").await.expect("written");
    let endpoints = cluster.endpoints();
    let mut followers = Vec::new();
    for endpoint in &endpoints {
        let own = [endpoint.clone()];
        followers.push(Follower::new(&own, prefix("")).begun().await);
        followers.push(Follower::new(&own, prefix("1/")).begun().await);
    }
    let (written, last) = write_all(&client, WRITERS, WRITES).await;
    // A deletion of nothing, and a write whose condition does not hold, change nothing.
    client.delete("none").await.expect("written");
    client.put_if_absent("0/4", "x").await.expect_err("it is there");
    let of_one: Vec<Write> =
        written.iter().filter(|write| write.key.starts_with("1/")).cloned().collect();
    for (number, follower) in followers.iter_mut().enumerate() {
        follower.until(last).await;
        let expected = if number.is_multiple_of(2) { &written } else { &of_one };
        assert!(follower.told() == *expected, "{number}: {:?}", follower.told());
        assert!(follower.moved.is_empty(), "{:?}", follower.moved);
    }
    // In another process, from any position on, at any member.
    let middle = written[written.len() / 2].index;
    let after = followers[0].changes.iter().find(|change| super::index_of(change) == middle);
    let after = after.and_then(|change| change.at).expect("told");
    for (endpoint, term) in [(&endpoints[1], after.term), (&endpoints[2], 0)] {
        let at = proto::Position { term, index: middle };
        let mut later = Follower::new(std::slice::from_ref(endpoint), prefix("")).after(at);
        later.until(last).await;
        let expected = written.iter().filter(|write| write.index > middle);
        assert!(later.told().iter().eq(expected), "{:?}", later.told());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_go_on_without_a_hole_while_leaders_die_and_members_restart() {
    let mut cluster = Cluster::start(3, "64MiB", UNHURRIED_ELECTIONS).await;
    let client = cluster.client();
    let mut endpoints = cluster.endpoints();
    let mut followers = Vec::new();
    for _ in 0..3 {
        followers.push(Follower::new(&endpoints, prefix("")).begun().await);
        endpoints.rotate_left(1);
    }
    let mut all: Vec<Write> = Vec::new();
    for round in 0..3 {
        let leader = cluster.leader().await;
        let writer = {
            let client = client.clone();
            tokio::spawn(async move {
                let prefix = format!("round {round}/");
                super::write(client, prefix, WRITES).await
            })
        };
        let begun = async || {
            let found = client.get(format!("round {round}/4")).await.expect("served");
            found.map(drop)
        };
        cluster.until("the writer has begun", begun).await;
        cluster.kill_node(leader);
        let written = writer.await.expect("it ends");
        let last = written.last().expect("some").index;
        all.extend(written);
        for follower in &mut followers {
            follower.until(last).await;
        }
        cluster.start_node(leader);
        cluster.wait_ready().await;
    }
    for follower in &followers {
        assert!(follower.told() == all, "{:?}", follower.told());
    }
    let moved: Vec<&String> = followers.iter().flat_map(|follower| &follower.moved).collect();
    println!("moved: {moved:#?}");
    assert!(!moved.is_empty(), "three leaders died, and nobody was there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_sends_its_watches_elsewhere_before_their_streams_end() {
    let mut cluster = Cluster::start(3, "64MiB", UNHURRIED_ELECTIONS).await;
    let client = cluster.client();
    let endpoints = cluster.endpoints();
    let mut streams = Watches::open(&endpoints[0]).await.expect("it listens");
    for id in 1..=3 {
        streams.begin(id, prefix(""), None);
    }
    let mut begun = 0;
    while begun < 3 {
        begun += streams.part().await.len();
    }
    let mut follower = Follower::new(&endpoints, prefix("")).begun().await;
    cluster.signal_node(0, Signal::TERM);
    let (written, last) = write_all(&client, 2, WRITES).await;
    follower.until(last).await;
    assert!(follower.told() == written, "{:?}", follower.told());
    assert_eq!(cluster.ended(0), 0, "{}", cluster.logs());
    let mut ended = 0;
    while let Some(message) = streams.message().await.expect("it ends in order") {
        for part in message.parts {
            if let Some(watch_part::Kind::Ended(why)) = part.kind {
                assert_eq!(why.why(), Why::Move, "{why:?}");
                ended += 1;
            }
        }
    }
    assert_eq!(ended, 3);
    let log = cluster.log(0);
    assert!(log.contains("stopped cleanly") && !log.contains("cut off"), "{log}");
}

/// The entry is told in several messages: only the last one says that it is complete.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_many_changes_is_told_in_its_order_whatever_its_length() {
    const KEYS: usize = 100;
    let cluster = Cluster::start(1, "128MiB", "").await;
    cluster.until_ranges().await;
    let client = cluster.client();
    let endpoint = &cluster.endpoints()[..1];
    let mut follower = Follower::new(endpoint, prefix("large/")).begun().await;
    let mut keys_only = Watches::open(&endpoint[0]).await.expect("it listens");
    let begin =
        proto::WatchBegin { id: 1, range: Some(prefix("large/")), after: None, keys_only: true };
    keys_only.ask(Some(watch_request::Kind::Begin(begin)));
    keys_only.part().await;
    let value = "v".repeat(30_000);
    let batch = (0..KEYS).fold(client.batch(), |batch, number| {
        batch.put(format!("large/{:03}", KEYS - number), value.clone())
    });
    let put = batch.put("other", "x").commit().await.expect("written").version;
    let deleted = client.delete_range(Range::prefix("large/")).await.expect("deleted");
    assert_eq!(deleted, KEYS as u64);
    let Version(last) = client.put("last", "x").await.expect("written").version;
    follower.until(last).await;
    let told = follower.told();
    let (puts, deletes) = told.split_at(KEYS);
    let keys = |writes: &[Write]| writes.iter().map(|write| write.key.clone()).collect::<Vec<_>>();
    let in_order: Vec<String> = (1..=KEYS).map(|number| format!("large/{number:03}")).collect();
    assert_eq!(keys(deletes), in_order, "a range by its keys");
    let as_sent: Vec<String> = in_order.into_iter().rev().collect();
    assert_eq!(keys(puts), as_sent, "a batch as it was sent");
    assert!(puts.iter().all(|write| write.index == put.0 && write.previous == 0));
    assert!(puts.iter().all(|write| write.value.as_ref() == Some(&value)));
    assert!(deletes.iter().all(|write| write.previous == put.0 && write.value.is_none()));
    let mut seen = Vec::new();
    while seen.len() < 2 * KEYS {
        for part in keys_only.part().await {
            let Some(watch_part::Kind::Changes(told)) = part.kind else { panic!("{part:?}") };
            seen.extend(told.changes);
        }
    }
    assert!(seen.iter().all(|change| change.value.is_empty()));
    let same = |(one, other): (&proto::Change, &proto::Change)| {
        (&one.key, one.at, one.deleted) == (&other.key, other.at, other.deleted)
    };
    assert!(seen.iter().zip(&follower.changes).all(same));
}
