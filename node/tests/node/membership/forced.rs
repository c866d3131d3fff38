//! Of five members three disks are lost for good. `cairn recover --force-new-cluster` makes the
//! cluster anew of one survivor, then by mistake of the other one. Everything as an operator does it,
//! by the command line.

use crate::support::clients::{OWN_KEY, SharedKeys};
use crate::support::{Cluster, Ran, UNHURRIED_ELECTIONS, run, value_of};
use cairn_client::{Client, Error, Role};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

/// The survivor with the longest log, and the other one. The disks of the others are lost.
const FIRST: usize = 0;
const SECOND: usize = 1;
const LOST: [usize; 3] = [2, 3, 4];

/// A request of a client that is expected to fail waits no longer than this.
const DEADLINE: Duration = Duration::from_secs(60);

/// How members of one generation refuse those of another one.
const ANEW: &str = "an operator made the cluster anew of one member alone";

const CONFIGURATION: &str = "mode = \"replicated\"\nstorage.format_empty = \"true\"\n";

struct Disaster {
    cluster: Cluster,
    keys: SharedKeys,
    /// A client that was only connected before the disaster. The story: its transport connects again by
    /// itself, so it never asked whose node that is now.
    idle: Client,
}

#[tokio::test(flavor = "multi_thread")]
async fn of_five_members_with_three_lost_disks_one_goes_on_and_a_second_one_is_another_cluster() {
    let configuration = format!("{UNHURRIED_ELECTIONS}{CONFIGURATION}");
    let mut cluster = Cluster::secured(5, "64MiB", &configuration);
    cluster.start_all().await;
    let mut keys = SharedKeys::new(&cluster);
    keys.work();
    // It asks nothing between its first request and the disaster.
    let idle = cluster.options_of(&[FIRST]).deadline(DEADLINE).connect().await;
    let idle = idle.expect("it answers");
    idle.get(OWN_KEY).await.expect("it serves");
    let mut disaster = Disaster { cluster, keys, idle };
    disaster.strikes().await;
    let generation = disaster.force_first().await;
    disaster.old_clients_refuse(&generation).await;
    disaster.second_comes_back_as_it_was().await;
    let other = disaster.force_second(&generation).await;
    assert_ne!(generation, other);
    disaster.both_refuse_each_other([&generation, &other]).await;
    disaster.grow(&generation).await;
}

/// Every file of a directory, by its content.
fn fingerprint(directory: &Path) -> BTreeMap<String, u64> {
    let files = std::fs::read_dir(directory).expect("a directory").map(|entry| {
        let path = entry.expect("a directory").path();
        let mut hasher = DefaultHasher::new();
        std::fs::read(&path).expect("a file").hash(&mut hasher);
        (path.display().to_string(), hasher.finish())
    });
    files.collect()
}

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
}

impl Disaster {
    fn recover(&self, node: usize, more: &[&str]) -> Ran {
        let forced = ["recover", "--force-new-cluster", "--config", self.cluster.config(node)];
        run(self.cluster.folder.path(), &[&forced[..], more].concat())
    }

    /// What a stopped node's directory holds of the cluster, by `cairn inspect`: the vote, and the last
    /// entry of the log, term and index.
    fn held(&self, node: usize) -> (Value, (u64, u64)) {
        let data = self.cluster.data(node);
        let directory = data.to_str().expect("text");
        let ran = run(self.cluster.folder.path(), &["inspect", directory, "-o", "json"]);
        let found = json_of(&ran);
        let last = &found["contents"]["groups"][0]["log_last"];
        let number = |field: &str| last[field].as_u64().unwrap_or_else(|| panic!("{ran:?}"));
        (found["known"]["votes"].clone(), (number("term"), number("index")))
    }

    /// The generation of a running node, as the command line says it.
    fn generation(&self, node: usize) -> Value {
        let ran = self.cluster.cairn_at(node, &["status", "--only", "-o", "json"]);
        json_of(&ran)[0]["generation"].clone()
    }

    /// One survivor lacks the end of the log; the load stops; three disks are lost.
    async fn strikes(&mut self) {
        assert_eq!(self.cluster.cairn(&["put", OWN_KEY, "early"]).code, 0);
        let has_it = async || {
            let got = self.cluster.cairn_at(SECOND, &["get", OWN_KEY, "--stale"]);
            (got.stdout == "early").then_some(())
        };
        self.cluster.until("the second survivor has the first value", has_it).await;
        self.keys.wait_for(&self.cluster, 100).await;
        self.cluster.kill_node(SECOND);
        assert_eq!(self.cluster.cairn(&["put", OWN_KEY, "late"]).code, 0);
        self.keys.wait_for(&self.cluster, 100).await;
        let acknowledged = self.keys.pause_and_check(&self.cluster.client()).await;
        println!("{acknowledged} acknowledged writes before the disaster");
        // The first survivor then has everything that was acknowledged.
        let has_all = async || {
            let statuses = self.cluster.statuses().await;
            let leader = statuses.iter().find(|status| status.role == Role::Leader)?;
            let last = leader.last_log_index;
            (statuses.len() == 4 && statuses.iter().all(|status| status.applied_index == last))
                .then_some(())
        };
        self.cluster.until("all that run have the whole log", has_all).await;
        self.cluster.kill_all();
        for node in LOST {
            self.cluster.lose_disk(node);
        }
        let logs = [FIRST, SECOND].map(|node| self.held(node).1);
        println!("the survivors' logs end at {logs:?}");
        assert!(logs[0] > logs[1], "{logs:?}");
    }

    /// Shows, asks, and makes the cluster anew of the first survivor. Returns the generation.
    async fn force_first(&mut self) -> String {
        let untouched = fingerprint(&self.cluster.data(SECOND));
        let before = self.held(FIRST);
        let shown = self.recover(FIRST, &[]);
        println!("{}", shown.stdout);
        assert_eq!(shown.code, 6, "{shown:?}");
        let (_, last) = before.1;
        for words in
            ["this directory", "Of 5 voters 1 are there", "no majority", "is lost for good"]
        {
            assert!(shown.stdout.contains(words), "{words} is not in {shown:?}");
        }
        assert!(shown.stdout.contains(&format!("-{last} ")), "{last} is not in {shown:?}");
        for node in [SECOND, LOST[0], LOST[1], LOST[2]] {
            let address = value_of(self.cluster.config(node), "listen.client");
            assert!(shown.stdout.contains(&address), "{address} is not in {shown:?}");
        }
        let shown = json_of(&self.recover(FIRST, &["-o", "json"]));
        assert_eq!((&shown["done"], &shown["generation"]), (&json!(false), &Value::Null));
        assert_eq!(shown["last_log_index"], json!(last));
        assert_eq!(shown["voters"].as_array().map(Vec::len), Some(5), "{shown}");
        assert_eq!(shown["missing"].as_array().map(Vec::len), Some(4), "{shown}");

        // Nobody is there to answer.
        let asked = self.recover(FIRST, &["--accept-data-loss"]);
        assert_eq!(asked.code, 2, "{asked:?}");
        for words in ["Of 5 voters 1 are there", "nobody can confirm", "--yes"] {
            assert!(asked.stderr.contains(words), "{words} is not in {asked:?}");
        }
        assert_eq!(self.held(FIRST), before, "it only showed and asked");

        let done = self.recover(FIRST, &["--accept-data-loss", "--yes", "-o", "json"]);
        assert_eq!(done.code, 0, "{done:?}");
        let done = json_of(&done);
        assert_eq!(done["done"], true, "{done}");
        let generation = done["generation"].as_str().expect("a generation").to_owned();
        assert_eq!(fingerprint(&self.cluster.data(SECOND)), untouched);

        self.cluster.configure_alone(FIRST);
        self.cluster.start_node(FIRST);
        self.cluster.wait_ready().await;
        let ran = self.cluster.cairn_at(FIRST, &["status", "--only", "-o", "json"]);
        let status = &json_of(&ran)[0];
        assert_eq!(status["role"], "leader", "{status}");
        assert_eq!(status["unsafe_recoveries"], 1, "{status}");
        assert_eq!(status["modes"]["cluster"], "sync", "{status}");
        assert_eq!(status["modes"]["effective"], "sync", "{status}");
        assert_eq!(status["generation"], json!(generation), "{status}");
        assert_eq!(self.voters(FIRST), [FIRST + 1]);
        assert_eq!(self.get(FIRST), "late");
        generation
    }

    fn get(&self, node: usize) -> String {
        let ran = self.cluster.cairn_at(node, &["get", OWN_KEY]);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout
    }

    fn voters(&self, node: usize) -> Vec<usize> {
        let ran = self.cluster.cairn_at(node, &["members", "list", "-o", "json"]);
        let members = json_of(&ran);
        let voters = members.as_array().expect("members").iter();
        let voters = voters.filter(|member| member["voter"] == true);
        let slots = voters.map(|member| member["slot"].as_u64().expect("a slot"));
        let mut slots: Vec<usize> =
            slots.map(|slot| usize::try_from(slot).expect("small")).collect();
        slots.sort_unstable();
        slots
    }

    /// Clients from before the disaster go no further. New ones find every acknowledged write.
    async fn old_clients_refuse(&mut self, generation: &str) {
        refuses(&self.idle, &["00000000", generation]).await;
        // One that also had the address of the other survivor would fail whenever it asked there.
        for client in self.keys.reconnect(&self.cluster, FIRST) {
            refuses(&client, &["00000000", generation]).await;
        }
        let acknowledged = self.keys.pause_and_check(&self.client_of(FIRST)).await;
        println!("{acknowledged} acknowledged writes, all there after the disaster");
        self.keys.work();
        self.keys.wait_for(&self.cluster, 50).await;
    }

    /// A client that knows this node alone.
    fn client_of(&self, node: usize) -> Client {
        self.cluster.options_of(&[node]).deadline(DEADLINE).build().expect("good options")
    }

    /// The other survivor starts: it is no majority, and the new cluster refuses it.
    async fn second_comes_back_as_it_was(&mut self) {
        let from = [FIRST, SECOND].map(|node| self.cluster.log(node).len());
        self.cluster.start_node(SECOND);
        self.until_logged([FIRST, SECOND], from, ANEW).await;
        let status = self.cluster.cairn_at(SECOND, &["status", "--only"]);
        assert_eq!(status.code, 6, "{status:?}");
        self.keys.wait_for(&self.cluster, 50).await;
        assert_eq!(self.cluster.stop_node(SECOND), 0);
    }

    /// By mistake. Returns the generation.
    async fn force_second(&mut self, generation: &str) -> String {
        let before = self.held(SECOND);
        let refused = self.recover(SECOND, &["--accept-data-loss", "--yes"]);
        println!("{}", refused.stderr);
        assert_eq!(refused.code, 1, "{refused:?}");
        for words in [generation, "was made anew already", "give this node an empty one"] {
            assert!(refused.stderr.contains(words), "{words} is not in {refused:?}");
        }
        assert_eq!(self.held(SECOND), before, "it was only refused");

        // Nobody warns while the first one is down.
        let acknowledged = self.keys.pause_and_check(&self.client_of(FIRST)).await;
        println!("{acknowledged} acknowledged writes, none lost beside the other survivor");
        assert_eq!(self.cluster.stop_node(FIRST), 0);
        let done = self.recover(SECOND, &["--accept-data-loss", "--yes", "-o", "json"]);
        assert_eq!(done.code, 0, "{done:?}");
        self.cluster.start_node(FIRST);
        self.cluster.wait_ready().await;
        self.keys.work();
        self.keys.wait_for(&self.cluster, 50).await;
        json_of(&done)["generation"].as_str().expect("a generation").to_owned()
    }

    /// Both serve, each for itself. Clients of each refuse the other.
    async fn both_refuse_each_other(&mut self, generations: [&str; 2]) {
        let of_first = self.begin_with(FIRST, b"late").await;
        // Still with all members in its configuration.
        self.cluster.start_node(SECOND);
        self.until_served_by(SECOND).await;
        for (node, value) in [(FIRST, "late"), (SECOND, "early")] {
            assert_eq!(self.get(node), value);
            assert_eq!(self.generation(node), json!(generations[node]));
            assert_eq!(self.voters(node), [node + 1]);
        }
        self.keys.wait_for(&self.cluster, 50).await;

        self.keys.pause_and_check(&self.client_of(FIRST)).await;
        assert_eq!(self.cluster.stop_node(FIRST), 0);
        refuses(&of_first, &generations).await;
        let of_second = self.begin_with(SECOND, b"early").await;
        assert_eq!(self.cluster.stop_node(SECOND), 0);
        self.cluster.start_node(FIRST);
        self.until_served_by(FIRST).await;
        refuses(&of_second, &generations).await;
        self.cluster.start_node(SECOND);
        self.until_served_by(SECOND).await;
        self.keys.work();
        self.keys.wait_for(&self.cluster, 50).await;
    }

    /// A client of both survivors that has read from this one. The other one is down.
    async fn begin_with(&self, node: usize, value: &[u8]) -> Client {
        let options = self.cluster.options_of(&[FIRST, SECOND]).deadline(DEADLINE);
        let client = options.build().expect("good options");
        let got = client.get(OWN_KEY).await.expect("served").expect("there");
        assert_eq!(&got.value[..], value, "by slot {}", node + 1);
        client
    }

    async fn until_served_by(&self, node: usize) {
        let served = async || {
            let ran = self.cluster.cairn_at(node, &["get", OWN_KEY, "--timeout", "5s"]);
            (ran.code == 0).then_some(())
        };
        self.cluster.until("it serves", served).await;
    }

    /// The first cluster grows to three by empty nodes, while the second one runs. What belongs to the
    /// second one is refused.
    async fn grow(&mut self, generation: &str) {
        let (third, slot) = (LOST[0], (LOST[0] + 1).to_string());
        // It joins the second cluster by mistake, and asks the first one then.
        self.cluster.join_only(third, SECOND);
        self.cluster.start_node(third);
        let joins = "this node joins the cluster of this generation";
        self.until_logged([third], [0], joins).await;
        self.cluster.kill_node(third);
        self.cluster.join_only(third, FIRST);
        let from = [FIRST, third].map(|node| self.cluster.log(node).len());
        self.cluster.start_node(third);
        self.until_logged([FIRST, third], from, ANEW).await;
        self.cluster.kill_node(third);
        self.cluster.lose_disk(third);
        self.cluster.start_node(third);
        self.on_first(&["members", "add", &slot]);

        // Another machine in the slot of the second one, whose address is taken for that machine's.
        let successor = self.cluster.start_successor(SECOND);
        let slot = (SECOND + 1).to_string();
        self.on_first(&["members", "add", &slot]);
        let from = [self.cluster.log(SECOND).len()];
        let address = value_of(self.cluster.config(SECOND), "listen.peer");
        let moved = self.cluster.cairn_at(FIRST, &["members", "move", &slot, &address]);
        println!("{}", moved.stderr);
        assert_eq!(moved.code, 4, "{moved:?}");
        assert!(moved.stderr.contains(ANEW), "{moved:?}");
        self.until_logged([SECOND], from, ANEW).await;
        self.cluster.succeed(SECOND, successor);

        self.cluster.wait_ready().await;
        for node in [FIRST, SECOND, third] {
            // A change is done when a majority has it.
            let told = async || (self.voters(node) == [1, 2, 3]).then_some(());
            self.cluster.until("each one knows the voters", told).await;
            assert_eq!(self.generation(node), json!(generation));
        }
        self.on_first(&["mode", "set", "replicated"]);
        self.keys.wait_for(&self.cluster, 50).await;
        let acknowledged = self.keys.pause_and_check(&self.cluster.client()).await;
        println!("{acknowledged} acknowledged writes, grown to three");
        // The new members hold it.
        self.cluster.kill_node(FIRST);
        assert_eq!(self.get(SECOND), "late");
    }

    fn on_first(&self, arguments: &[&str]) {
        let ran = self.cluster.cairn_at(FIRST, arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}\n{}", self.cluster.logs());
    }

    /// Waits until the logs of these nodes contain this behind these positions.
    async fn until_logged<const N: usize>(&self, nodes: [usize; N], from: [usize; N], what: &str) {
        let told = async || {
            let told = |(node, from): (&usize, &usize)| {
                self.cluster.log(*node).get(*from..).is_some_and(|log| log.contains(what))
            };
            nodes.iter().zip(&from).all(told).then_some(())
        };
        self.cluster.until(what, told).await;
    }
}

/// A client that began with one cluster names both, and asks no further.
async fn refuses(client: &Client, generations: &[&str]) {
    match client.get(OWN_KEY).await {
        Err(error @ Error::ClusterMismatch { .. }) => {
            let text = error.to_string();
            println!("a client: {text}");
            assert!(generations.iter().all(|generation| text.contains(generation)), "{text}");
        }
        other => panic!("{other:?}"),
    }
}
