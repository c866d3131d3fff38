//! Upgrades: what one build says of versions, and the whole of an upgrade with two builds.

use crate::support::clients::SharedKeys;
use crate::support::{CAIRN, Cluster, SLOW_ELECTIONS, WAIT_LIMIT, http_get, json_of, value_of};
use cairn_client::{Error, Options};
use cairn_raft::VERSION;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const RELEASE: &str = env!("CARGO_PKG_VERSION");

fn check(cluster: &Cluster) -> Value {
    json_of(&cluster.cairn(&["upgrade", "check", "-o", "json"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_one_version_have_nothing_to_finish_and_a_later_version_is_refused() {
    let more = format!("{SLOW_ELECTIONS}mode = \"sync\"");
    let cluster = Cluster::start(3, "64MiB", &more).await;
    cluster.until_newest_version().await;
    let logged = |node: &cairn_client::NodeStatus| {
        let versions = node.versions.as_ref();
        versions.is_some_and(|versions| {
            versions.cluster == VERSION
                && versions.members.len() == 3
                && versions.members.iter().all(|member| member.version == VERSION)
        })
    };
    cluster.until_all("the log has every member's version", logged).await;
    let seen = check(&cluster);
    assert_eq!(seen["cluster_version"], VERSION, "{seen}");
    assert_eq!(seen["newest_version"], VERSION, "{seen}");
    for member in seen["members"].as_array().expect("members") {
        assert_eq!((&member["version"], &member["release"]), (&json!(VERSION), &json!(RELEASE)));
    }
    let text = cluster.cairn(&["upgrade", "check"]);
    let begins = format!("the cluster's version is {VERSION}\nSLOT  NODE");
    assert!(text.stdout.starts_with(&begins), "{text:?}");
    let finished = cluster.cairn(&["upgrade", "finish", "--yes"]);
    assert_eq!(finished.stdout, format!("the cluster's version is {VERSION}\n"), "{finished:?}");

    // A follower names the leader, and the client library goes there.
    let leader = cluster.leader().await;
    let follower = cluster.endpoints().remove(if leader == 0 { 1 } else { 0 });
    let options = Options::new([follower]).deadline(WAIT_LIMIT);
    let operator = options.build().expect("good options").operator();
    operator.finish_upgrade(VERSION).await.expect("it has that version");
    match operator.finish_upgrade(VERSION + 1).await {
        Err(Error::Refused { message }) => {
            let named = format!("not known to run a release of version {}", VERSION + 1);
            assert!(
                message.contains(&named) && message.contains("`cairn upgrade check`"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(operator.finish_upgrade(0).await, Err(Error::InvalidRequest(_))));
    let metrics = http_get(&value_of(cluster.config(leader), "listen.http"), "/metrics");
    for line in [format!("cairn_version {VERSION}"), format!("cairn_cluster_version {VERSION}")] {
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    let status = cluster.client().status(&cluster.endpoints()[leader]).await.expect("it runs");
    let calls = status.operator_calls.iter().filter(|call| call.call == "finish-upgrade");
    let calls: Vec<_> = calls.map(|call| (call.arguments.as_str(), call.result.as_str())).collect();
    assert!(calls.contains(&(format!("version {VERSION}").as_str(), "ok")), "{calls:?}");
}

/// A cluster on its way from one build to the next, under clients.
struct Upgrade {
    cluster: Cluster,
    keys: SharedKeys,
    next: PathBuf,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a second build: ./test versions"]
async fn an_upgrade_is_rolled_forward_taken_back_and_finished_under_clients() {
    let next = std::env::var_os("CAIRN_NEXT").expect("CAIRN_NEXT is a build of the next version");
    let mut cluster = Cluster::start(3, "128MiB", "mode = \"sync\"").await;
    cluster.wait_ready().await;
    cluster.until_newest_version().await;
    let mut keys = SharedKeys::new(&cluster);
    keys.work();
    let mut upgrade = Upgrade { cluster, keys, next: next.into() };
    upgrade.roll(true).await;
    upgrade.roll(false).await;
    upgrade.roll(true).await;
    upgrade.is_not_used_before_it_is_finished().await;
    upgrade.finish().await;
    upgrade.is_used_then().await;
    upgrade.refuses_the_build_before().await;
    let acknowledged = upgrade.keys.pause_and_check(&upgrade.cluster.client()).await;
    println!("{acknowledged} acknowledged writes, 0 wrong");
}

impl Upgrade {
    fn build(&self, next: bool) -> PathBuf {
        if next { self.next.clone() } else { CAIRN.into() }
    }

    /// Restarts a node with this build, as `docs/operations.md` says.
    async fn restart(&mut self, node: usize, program: &Path) {
        let slot = (node + 1).to_string();
        assert_eq!(self.cluster.cairn(&["leader", "drain", &slot]).code, 0);
        assert_eq!(self.cluster.stop_node(node), 0);
        self.cluster.install(node, program);
        self.cluster.start_node(node);
        self.cluster.wait_ready().await;
    }

    /// What `cairn upgrade check` says once it says that these slots run the next version, and the
    /// log does.
    async fn checked(&self, newer: &[usize]) -> Value {
        let all =
            (0..3).map(|node| json!(if newer.contains(&node) { VERSION + 1 } else { VERSION }));
        let all: Vec<Value> = all.collect();
        let says = async || {
            let seen = check(&self.cluster);
            let members = seen["members"].as_array().expect("members");
            let versions: Vec<Value> = members.iter().map(|one| one["version"].clone()).collect();
            let logged = !seen["blocks"].to_string().contains("has not logged");
            (versions == all && logged).then_some(seen)
        };
        self.cluster.until("every member's version is known", says).await
    }

    /// Every node gets the next build, or the present one, one after another.
    async fn roll(&mut self, forward: bool) {
        let program = self.build(forward);
        for node in 0..3 {
            self.restart(node, &program).await;
            self.keys.wait_for(&self.cluster, 20).await;
            let newer: Vec<usize> =
                if forward { (0..=node).collect() } else { (node + 1..3).collect() };
            let seen = self.checked(&newer).await;
            println!("upgrade check: {seen}");
            assert_eq!(seen["cluster_version"], VERSION, "{seen}");
            assert_eq!(seen["may_go_back"], !newer.is_empty(), "{seen}");
            assert_eq!(seen["may_finish"], newer.len() == 3, "{seen}");
            if !newer.is_empty() && newer.len() < 3 {
                let finish = self.cluster.cairn(&["upgrade", "finish", "--yes"]);
                assert_eq!(finish.code, 4, "{finish:?}");
                let older = (1..=3).find(|slot| !newer.contains(&(slot - 1))).expect("one");
                let named = format!("slot {older} runs version {VERSION}");
                assert!(finish.stderr.contains(&named), "{finish:?}");
                // The leader refuses it, too.
                let asked = self.cluster.client().operator().finish_upgrade(VERSION + 1).await;
                assert!(matches!(asked, Err(Error::Refused { .. })), "{asked:?}");
            }
        }
        let acknowledged = self.keys.pause_and_check(&self.cluster.client()).await;
        println!("rolled, {acknowledged} acknowledged writes so far, 0 wrong");
        self.keys.work();
    }

    /// The release of a member that is down, by the log.
    async fn release_of_one_that_is_down(&mut self, expected: Value) {
        let leader = self.cluster.leader().await;
        let down = (leader + 1) % 3;
        self.cluster.kill_node(down);
        let says = async || {
            let seen = check(&self.cluster);
            let one = seen["members"][down].clone();
            (one["answers"] == false && one["release"] == expected).then_some(one)
        };
        let one = self.cluster.until("the release of a member that is down", says).await;
        assert_eq!(one["version"], VERSION + 1, "{one}");
        self.cluster.start_node(down);
        self.cluster.wait_ready().await;
        self.checked(&[0, 1, 2]).await;
    }

    async fn is_not_used_before_it_is_finished(&mut self) {
        self.release_of_one_that_is_down(Value::Null).await;
    }

    async fn finish(&mut self) {
        let finished = self.cluster.cairn(&["upgrade", "finish", "--yes", "-o", "json"]);
        assert_eq!(json_of(&finished)["cluster_version"], VERSION + 1);
        let risen = |node: &cairn_client::NodeStatus| {
            node.versions.as_ref().is_some_and(|versions| versions.cluster == VERSION + 1)
        };
        self.cluster.until_all("every member knows", risen).await;
        let seen = check(&self.cluster);
        assert_eq!((&seen["may_finish"], &seen["may_go_back"]), (&json!(false), &json!(false)));
        self.keys.wait_for(&self.cluster, 20).await;
    }

    async fn is_used_then(&mut self) {
        self.release_of_one_that_is_down(json!(RELEASE)).await;
    }

    async fn refuses_the_build_before(&mut self) {
        let words = [
            format!("the cluster's version is {}", VERSION + 1),
            format!("speaks version {VERSION}"),
            format!("start a release of version {}", VERSION + 1),
        ];
        // After a clean stop, and after a kill.
        for (node, clean) in [(0, true), (1, false)] {
            match clean {
                true => assert_eq!(self.cluster.stop_node(node), 0),
                false => self.cluster.kill_node(node),
            }
            let before = self.cluster.log(node).len();
            self.cluster.install(node, Path::new(CAIRN));
            self.cluster.start_node(node);
            assert_eq!(self.cluster.ended(node), 1, "{}", self.cluster.log(node));
            let said = self.cluster.log(node).split_off(before);
            for word in &words {
                assert!(said.contains(word), "{word} is not in {said}");
            }
            println!("slot {}: {}", node + 1, said.lines().last().unwrap_or_default());
            self.cluster.install(node, &self.next);
            self.cluster.start_node(node);
            self.cluster.wait_ready().await;
            self.keys.wait_for(&self.cluster, 20).await;
        }
        // One that has nothing in its log, and asks to join: both sides say why not.
        let leader = self.cluster.leader().await;
        let node = (leader + 1) % 3;
        let successor = self.cluster.start_successor(node);
        let told = async || {
            let named = format!("the cluster's is {}", VERSION + 1);
            let all = self.cluster.logs();
            let refused = format!("speaks version {VERSION}, and {named}");
            (successor.log().contains(&refused)
                && all.contains(&format!("refused: member {}.", node + 1)))
            .then_some(())
        };
        self.cluster.until("both sides say why it may not join", told).await;
    }
}
