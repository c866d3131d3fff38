//! How a watch ends that cannot go on: what it asks for is gone, was never there, or is not for its client any more.

use super::{Follower, Watches, prefix};
use crate::support::{Cluster, SLOW_ELECTIONS};
use cairn_client::ListOptions;
use cairn_client::proto::watch_ended::Why;
use cairn_client::proto::{self, watch_part};
use cairn_node::access::{Entries, TokenHash};
use cairn_node::{Environment, Node};
use std::path::Path;

/// What a watch is told first that asks for this position.
async fn asked(
    cluster: &Cluster,
    after: proto::Position,
) -> Result<proto::Position, proto::WatchEnded> {
    let mut watches = Watches::open(&cluster.endpoints()[0]).await.expect("it listens");
    watches.begin(1, prefix(""), Some(after));
    let parts = watches.part().await;
    match parts.into_iter().next().and_then(|part| part.kind).expect("a kind") {
        watch_part::Kind::Began(at) => Ok(at),
        watch_part::Kind::Ended(ended) => Err(ended),
        watch_part::Kind::Changes(changes) => panic!("{changes:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_before_what_is_kept_says_from_where_another_one_may_begin() {
    let cluster = Cluster::start(1, "64MiB", "watch.retain_bytes = \"1MiB\"\n").await;
    let client = cluster.client();
    let mut follower = Follower::new(&cluster.endpoints(), prefix("")).begun().await;
    let (mut from, mut last) = (None, 0);
    for number in 0..8_u8 {
        let value = vec![number; 256 << 10];
        last = client.put("a", value).await.expect("written").version.0;
        follower.until(last).await;
        from = from.or(follower.through);
    }
    let from = from.expect("a position");
    let compacted = async || asked(&cluster, from).await.err();
    let ended = cluster.until("what followed is not kept any more", compacted).await;
    assert_eq!(ended.why(), Why::Compacted, "{ended:?}");
    let (oldest, now) = (ended.oldest.expect("the oldest"), ended.now.expect("now"));
    assert!(from.index < oldest.index && oldest.index < last && last <= now.index, "{ended:?}");
    let begins = async || {
        // More may have been let go since.
        let oldest = asked(&cluster, from).await.err()?.oldest?;
        asked(&cluster, oldest).await.ok().filter(|at| *at == oldest)
    };
    cluster.until("a watch begins where it was told to", begins).await;
    // As the message says: the state, and then what follows it.
    let listed = client.list(ListOptions::prefix("")).await.expect("listed").items;
    assert_eq!(listed.iter().map(|item| item.version.0).collect::<Vec<_>>(), [last]);
    assert_eq!(asked(&cluster, now).await, Ok(now));
    // Who follows closely needs nothing of what is kept.
    last = client.put("a", "small").await.expect("written").version.0;
    follower.until(last).await;
    assert_eq!(follower.changes.len(), 9);
    assert!(follower.moved.is_empty(), "{:?}", follower.moved);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_of_another_history_is_told_from_one_that_is_no_longer_kept() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    let written = client.put("a", "1").await.expect("written");
    let (term, index) = (written.term, written.version.0);
    client.put("a", "2").await.expect("written");
    let at = |term, index| proto::Position { term, index };
    assert_eq!(asked(&cluster, at(term, index)).await, Ok(at(term, index)));
    assert_eq!(asked(&cluster, at(0, index)).await, Ok(at(term, index)), "of whichever term");
    for other in [at(term + 1, index), at(term, index + 1_000_000), at(0, u64::MAX)] {
        let ended = asked(&cluster, other).await.expect_err("it is nowhere");
        assert_eq!(ended.why(), Why::Discarded, "{ended:?}");
        assert!(ended.message.contains("is not in the history of this cluster"), "{ended:?}");
    }
}

/// What it holds may have been discarded by those that it does not hear.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_left_alone_sends_its_watches_elsewhere_and_begins_none() {
    let mut cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let written = cluster.client().put("a", "1").await.expect("written");
    let mut watches = Watches::open(&cluster.endpoints()[0]).await.expect("it listens");
    watches.begin(1, prefix(""), None);
    watches.part().await;
    for node in [1, 2] {
        cluster.kill_node(node);
    }
    let ended = watches.ended(1).await;
    assert!(ended.why() == Why::Move && !ended.message.is_empty(), "{ended:?}");
    for (id, after) in [(2, None), (3, Some(written.version.0))] {
        let after = after.map(|index| proto::Position { term: written.term, index });
        watches.begin(id, prefix(""), after);
        let ended = watches.ended(id).await;
        assert_eq!(ended.why(), Why::Move, "{ended:?}");
    }
    for node in [1, 2] {
        cluster.start_node(node);
    }
    let again = async || {
        watches.begin(4, prefix(""), None);
        let parts = watches.part().await;
        matches!(parts[0].kind, Some(watch_part::Kind::Began(_))).then_some(())
    };
    cluster.until("it begins watches again", again).await;
}

/// A node in this process, whose roles a test changes, and a cluster of its client's token.
async fn served(lines: &str, token: &str) -> (Cluster, Node) {
    let cluster = Cluster::format(1, "64MiB", lines).with_token(token);
    let mut layers = cairn_node::config::Layers::new();
    layers.add_file(Path::new(cluster.config(0))).expect("a file");
    let config = cairn_node::NodeConfig::from_layers(&layers).expect("a configuration");
    let environment = Environment::from_files(&config).expect("a directory");
    let node = Node::start(config, environment).await.expect("it starts");
    // It has formed its cluster then.
    cluster.client().put("app/0", "").await.expect("it serves");
    (cluster, node)
}

/// The roles of a name, changed while it watches.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_client_may_not_read_the_range_any_more() {
    let hash = TokenHash::of(b"secret of ada");
    let lines = format!("access.ada = \"write:app/ token:{hash}\"\naccess.ops = \"operator\"\n");
    let (cluster, node) = served(&lines, "secret of ada").await;
    let set = |text: String| node.set_access(&Entries::parse(&text).expect("entries"));
    let client = cluster.client();
    client.put("app/1", "1").await.expect("allowed");

    let endpoint = &cluster.endpoints()[0];
    let refused = Watches::open(endpoint).await.err().expect("nobody without a name");
    assert!(refused.contains("neither a client certificate nor a token"), "{refused}");
    let token = Some("secret of ada");
    let mut watches = Watches::open_as(endpoint, token).await.expect("allowed");
    watches.begin(1, prefix(""), None);
    let ended = watches.ended(1).await;
    assert!(ended.why() == Why::Denied && ended.message.contains("token ada may not"), "{ended:?}");
    for id in [2, 3] {
        watches.begin(id, prefix(&format!("app/{id}")), None);
        watches.part().await;
    }
    client.put("app/2", "told").await.expect("allowed");
    let parts = watches.part().await;
    let Some(watch_part::Kind::Changes(told)) = &parts[0].kind else { panic!("{parts:?}") };
    assert_eq!((parts[0].id, &told.changes[0].value[..]), (2, &b"told"[..]));

    // What is written by then is not told, and one that has nothing to be told ends as well.
    set(format!("ada=read:app/3 token:{hash}"));
    let ended = watches.ended(2).await;
    assert_eq!(ended.why(), Why::Denied, "{ended:?}");
    set(format!("ada=write:app/ token:{hash}"));
    client.put("app/3", "told").await.expect("allowed");
    let parts = watches.part().await;
    assert!(matches!(parts[0].kind, Some(watch_part::Kind::Changes(_))), "{parts:?}");
    set("ada=write:app/".into());
    let ended = watches.ended(3).await;
    assert!(ended.why() == Why::Denied && ended.message.contains("does not know"), "{ended:?}");
    node.shutdown().await.expect("it stops");
}

/// The next part of a watch, before which no mark of the stream reaches this index. Also says whether a message
/// without parts came before it.
async fn next_of(watches: &mut Watches, id: u64, index: u64) -> (watch_part::Kind, bool) {
    let mut was_quiet = false;
    loop {
        let message = watches.message().await.expect("it goes on").expect("it goes on");
        was_quiet |= message.parts.is_empty();
        let through = message.through.map_or(0, |through| through.index);
        assert!(through < index, "{through} covers a change that watch {id} was not told");
        if let Some(part) = message.parts.into_iter().find(|part| part.id == id) {
            return (part.kind.expect("a kind"), was_quiet);
        }
    }
}

/// The story: an entry changed keys of two watches of a stream, and one of them was not allowed any more. The message told
/// the other one of its change, and marked that every watch was told everything up to there. Only the next message said
/// that the first one had ended: its client went on behind the mark, and never saw the change.
#[tokio::test(flavor = "multi_thread")]
async fn no_mark_of_a_stream_covers_what_a_watch_that_ends_was_not_told() {
    let hash = |token: &str| TokenHash::of(token.as_bytes());
    let (ada, eve) = (hash("secret of ada"), hash("secret of eve"));
    let lines = format!(
        "access.ada = \"write:app/ token:{ada}\"\naccess.eve = \"write:app/ token:{eve}\"\naccess.ops = \"operator\"\n"
    );
    let (cluster, node) = served(&lines, "secret of eve").await;
    let set = |role: &str| {
        let text = format!("ada={role} token:{ada},eve=write:app/ token:{eve}");
        node.set_access(&Entries::parse(&text).expect("entries"));
    };
    let client = cluster.client();
    let token = Some("secret of ada");
    let mut watches = Watches::open_as(&cluster.endpoints()[0], token).await.expect("allowed");
    watches.begin(3, prefix("app/3"), None);
    watches.part().await;
    // A mark comes with changes if none came for a second, and without any if none came for five.
    let mut was_quiet = false;
    while !was_quiet {
        set("write:app/");
        watches.begin(2, prefix("app/2"), None);
        let (began, before) = next_of(&mut watches, 2, u64::MAX).await;
        assert!(matches!(began, watch_part::Kind::Began(_)), "{began:?}");
        set("read:app/3");
        let batch = client.batch().put("app/2", "x").put("app/3", "x").commit().await;
        let index = batch.expect("allowed").version.0;
        let (ended, behind) = next_of(&mut watches, 2, index).await;
        let watch_part::Kind::Ended(ended) = ended else { panic!("{ended:?}") };
        assert_eq!(ended.why(), Why::Denied, "{ended:?}");
        was_quiet = before || behind;
    }
    node.shutdown().await.expect("it stops");
}

/// The story: a client began watches until its requests had no memory left, and none of its writes was taken any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_as_many_watches_as_it_may_still_writes() {
    const ASKED: u64 = 4000;
    let hash = TokenHash::of(b"secret of ada");
    let lines = format!(
        "limits.max_in_flight_bytes = \"16MiB\"\naccess.ada = \"write:app/ token:{hash}\"\naccess.ops = \"operator\"\n"
    );
    let (cluster, node) = served(&lines, "secret of ada").await;
    let token = Some("secret of ada");
    let mut watches = Watches::open_as(&cluster.endpoints()[0], token).await.expect("allowed");
    // All of them would take most of what all requests may.
    for id in 0..ASKED {
        watches.begin(id, prefix(&format!("app/{id:0>1000}")), None);
    }
    let (mut begun, mut full) = (0, 0);
    while begun + full < ASKED {
        for part in watches.part().await {
            match part.kind {
                Some(watch_part::Kind::Began(_)) => begun += 1,
                Some(watch_part::Kind::Ended(ended)) => {
                    assert_eq!(ended.why(), Why::Full, "{ended:?}");
                    assert!(ended.message.contains("`limits.max_in_flight_bytes`"), "{ended:?}");
                    full += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(begun > 0 && full > 0, "{begun} watches, {full} refused");
    cluster.client().put("app/1", vec![7; 1 << 20]).await.expect("its writes go on");
    node.shutdown().await.expect("it stops");
}
