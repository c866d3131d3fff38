//! Several keys in one answer, and reads that may be old, against real processes.
use crate::support::{Cluster, SLOW_ELECTIONS, WAIT_LIMIT};
use cairn_client::proto::kv_client::KvClient;
use cairn_client::{Error, ListOptions, ReadFrom, proto};
use std::time::Duration;
use tonic::transport::Channel;

/// Longer than a test lasts: the longest bound that a member takes.
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_written_together_are_read_together_at_every_member() {
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let client = cluster.client();
    let options = cluster.options().deadline(WAIT_LIMIT).read_from(ReadFrom::Members);
    let readers = [client.clone(), options.build().expect("good options")];
    for round in 0..100_u32 {
        let batch = client.batch().put("left", round.to_string());
        let written = batch.put("right", round.to_string()).commit();
        let read = async {
            for reader in &readers {
                for most in [Duration::ZERO, LONG] {
                    let reader = reader.with_max_staleness(most);
                    let many = reader.get_many(["left", "right", "none"]).await.expect("read");
                    let [left, right, none] = many.items.as_slice() else { panic!("{many:?}") };
                    let told = |item: &Option<cairn_client::KeyValue>| {
                        item.as_ref().map(|item| (item.value.clone(), item.version))
                    };
                    assert_eq!((told(left), none), (told(right), &None));
                    let newest = left.as_ref().map_or(0, |item| item.version.0);
                    assert!(newest <= many.position.index, "{many:?}");
                }
            }
        };
        let (written, ()) = tokio::join!(written, read);
        let index = written.expect("written").version;
        let many = client.versions(["left", "right"]).await.expect("read");
        assert!(many.position.index >= index.0, "{many:?}");
        let found: Vec<_> = many.items.iter().flatten().map(|item| item.version).collect();
        assert_eq!(found, [index; 2], "a linearizable read sees what was acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_alone_answers_reads_that_may_be_as_old_as_its_last_barrier_and_no_others() {
    let mut cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    cluster.client().put("key", "value").await.expect("written");
    // It needs a barrier of its own, so no other member answers in its place.
    let endpoint = format!("http://{}", cluster.endpoints()[0]);
    let channel = Channel::from_shared(endpoint).expect("a URI").connect().await;
    let mut stub = KvClient::new(channel.expect("it listens"));
    let get = || proto::GetRequest { key: "key".into(), ..Default::default() };
    cluster.until("a linearizable read", async || stub.get(get()).await.ok()).await;
    for node in [1, 2] {
        cluster.kill_node(node);
    }
    let left = cluster.options_of(&[0]).deadline(WAIT_LIMIT).build().expect("good options");
    let old = left.with_max_staleness(LONG);
    let many = old.get_many(["key"]).await.expect("read");
    assert_eq!(many.items[0].as_ref().expect("there").value, "value");
    let refused = left.with_deadline(Duration::from_secs(5)).get("key").await;
    assert!(refused.as_ref().is_err_and(Error::is_transient), "{refused:?}");
    let items = old.list(ListOptions::prefix("key")).await.expect("listed").items;
    assert_eq!(items.first().expect("there").value, "value");
    let scanned = old.scan(..).await.expect("begun").next().await.expect("scanned");
    assert_eq!(scanned.expect("there").value, "value");
    assert_eq!(old.count(..).await, Ok(1));
    // Each kind of read has a barrier of its own.
    let brief = old.with_max_staleness(Duration::from_millis(1));
    let brief = brief.with_deadline(Duration::from_secs(5));
    let (get, many, versions, list, scan, count) = tokio::join!(
        brief.get("key"),
        brief.get_many(["key"]),
        brief.versions(["key"]),
        brief.list(ListOptions::prefix("key")),
        brief.scan(..),
        brief.count(..),
    );
    let reads = [get.map(drop), many.map(drop), versions.map(drop), list.map(drop)];
    for refused in reads.into_iter().chain([scan.map(drop), count.map(drop)]) {
        assert!(refused.as_ref().is_err_and(Error::is_transient), "{refused:?}");
    }
}
