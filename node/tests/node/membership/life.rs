//! The life of a cluster with certificates: it is formed, grows from one member to five, loses a disk,
//! moves, is drained and upgraded, and shrinks to one again. Clients work throughout. In the middle of
//! each step a process is killed, or a machine loses its power.
//!
//! `CAIRN_NEXT` names a build of the next version to upgrade to. Without it the members are drained
//! and restarted with the same build.

use crate::support::clients::SharedKeys;
use crate::support::machine::can_have_machines;
use crate::support::{Cluster, Hosts, Ran, WAIT_LIMIT, finish, value_of};
use cairn_client::{MemberState, Mode, Role};
use cairn_raft::VERSION;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;

/// How many writes are acknowledged between the beginning of a step and its fault, in turns.
const ACKNOWLEDGED_BEFORE: [usize; 4] = [3, 0, 25, 10];

/// What a change is refused with while the failed member is on its way back.
const UNTIL_IT_IS_BACK: [&str; 4] =
    ["back first", "try again", "could take over", "does not answer at"];

struct Life {
    cluster: Cluster,
    hosts: Hosts,
    keys: SharedKeys,
    steps: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_grows_moves_is_replaced_and_shrinks_under_clients_while_its_processes_are_killed()
 {
    tokio::time::timeout(WAIT_LIMIT * 8, live(Hosts::ThisOne))
        .await
        .expect("the life ends in time");
}

/// Not a test of tokio: the runtime's threads must see the machines' disks.
#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_cluster_grows_moves_is_replaced_and_shrinks_under_clients_while_its_machines_lose_power() {
    if can_have_machines() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let life = async { tokio::time::timeout(WAIT_LIMIT * 8, live(Hosts::Machines)).await };
        runtime.block_on(life).expect("the life ends in time");
    }
}

async fn live(hosts: Hosts) {
    let cluster = Cluster::growing(hosts, 5, "128MiB", "storage.format_empty = \"true\"\n");
    let keys = SharedKeys::new(&cluster);
    let mut life = Life { cluster, hosts, keys, steps: 0 };
    life.form().await;
    life.grow().await;
    life.relax().await;
    life.replace().await;
    life.moves().await;
    life.drain().await;
    life.shrink().await;
    let damage = life.cluster.damage;
    let lost = damage.dropped + damage.torn > 0;
    assert_eq!(
        lost,
        hosts == Hosts::Machines,
        "only power cuts lose what was not synced: {damage:?}"
    );
}

impl Life {
    /// Runs a command, lets this node fail in the middle of it, and starts it again. The command
    /// succeeds nevertheless, if need be when it is given again.
    async fn step(&mut self, arguments: &[&str], victim: usize) -> Value {
        self.until_recovered().await;
        self.until_unsynced(victim).await;
        let began = Instant::now();
        let arguments = [arguments, &["-o", "json"]].concat();
        let child = self.cluster.spawn(&arguments);
        let before = ACKNOWLEDGED_BEFORE[self.steps % ACKNOWLEDGED_BEFORE.len()];
        self.steps += 1;
        self.keys.wait_for(&self.cluster, before).await;
        self.fail(victim);
        let mut ran = finish(child);
        let for_now = |ran: &Ran| UNTIL_IT_IS_BACK.iter().any(|words| ran.stderr.contains(words));
        while ran.code == 6 || ran.code == 4 && for_now(&ran) {
            println!("refused for now: {}", ran.stderr.trim_end());
            assert!(began.elapsed() < WAIT_LIMIT, "{arguments:?}: {ran:?}");
            self.cluster.wait_ready().await;
            ran = self.cluster.cairn(&arguments);
        }
        assert_eq!(ran.code, 0, "{arguments:?}: {}\n{}", ran.stderr, self.cluster.logs());
        println!(
            "cairn {}: {:?}, slot {} failed after {before} writes",
            arguments.join(" "),
            began.elapsed(),
            victim + 1
        );
        self.keys.wait_for(&self.cluster, 10).await;
        serde_json::from_str(&ran.stdout).expect("JSON")
    }

    /// Lets a node fail, and starts it again.
    fn fail(&mut self, node: usize) {
        self.cluster.fail_node(node);
        self.cluster.start_node(node);
    }

    /// Waits until no member recovers from a power cut: mode `replicated` loses nothing if one machine
    /// at a time loses its power.
    async fn until_recovered(&self) {
        if self.hosts == Hosts::Machines {
            self.cluster
                .until_all("nobody recovers", |node| node.member_state != MemberState::Recovering)
                .await;
        }
    }

    /// Waits until a voter may have acknowledged what it has not synced, if the mode allows that. After a
    /// failure all wait for their syncs for a while, and a power cut then takes nothing.
    async fn until_unsynced(&self, victim: usize) {
        let unsynced = async || {
            let all = self.cluster.statuses().await;
            let own = all.iter().find(|node| usize::from(node.slot) == victim + 1)?;
            let replicated =
                own.modes.as_ref().is_some_and(|mode| mode.effective == Mode::Replicated);
            let acknowledges = own.member_state == MemberState::Active && replicated;
            let unsynced = own.storage.as_ref().is_some_and(|storage| storage.unsynced_acks);
            (unsynced || !acknowledges).then_some(())
        };
        if self.hosts == Hosts::Machines {
            self.cluster.until("it acknowledges before it syncs", unsynced).await;
        }
    }

    /// Starts a node, and lets it fail as soon as it has said something.
    async fn start_twice(&mut self, node: usize) {
        let before = self.cluster.log(node).len();
        self.cluster.start_node(node);
        let speaks = async || (self.cluster.log(node).len() > before).then_some(());
        self.cluster.until("it says something", speaks).await;
        self.fail(node);
    }

    /// Lets the clients pause for a check of everything.
    async fn check(&mut self, phase: &str) {
        let acknowledged = self.keys.pause_and_check(&self.cluster.client()).await;
        println!("{phase}: {acknowledged} acknowledged writes so far, 0 wrong");
        self.keys.work();
    }

    fn voters(&self) -> Vec<u64> {
        let ran = self.cluster.cairn(&["members", "list", "-o", "json"]);
        let members: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let voters = members.as_array().expect("members").iter();
        let mut slots: Vec<u64> = voters
            .filter(|member| member["voter"] == true)
            .map(|member| member["slot"].as_u64().expect("a slot"))
            .collect();
        slots.sort_unstable();
        slots
    }

    /// Some running node that is not this one, in turns.
    fn other(&self, node: usize) -> usize {
        let others = (0..self.cluster.len()).filter(|other| *other != node);
        let running: Vec<usize> = others.filter(|other| self.cluster.runs(*other)).collect();
        running[self.steps % running.len()]
    }

    /// One member, that fails before it has formed the cluster, and when it has.
    async fn form(&mut self) {
        self.start_twice(0).await;
        self.cluster.wait_ready().await;
        self.fail(0);
        self.cluster.wait_ready().await;
        self.keys.work();
        self.keys.wait_for(&self.cluster, 10).await;
        self.fail(0);
        self.keys.wait_for(&self.cluster, 10).await;
        self.check("formed").await;
    }

    async fn grow(&mut self) {
        for node in 1..5 {
            let slot = (node + 1).to_string();
            self.cluster.start_node(node);
            let victim = match node {
                1 => 0,
                2 => 2,
                3 => self.cluster.leader().await,
                _ => self.other(self.cluster.leader().await),
            };
            if node == 4 {
                // Whoever asked goes away, and asks again.
                let mut child = self.cluster.spawn(&["members", "add", &slot]);
                self.keys.wait_for(&self.cluster, 2).await;
                child.kill().expect("our own child");
                child.wait().expect("our own child");
            }
            let done = self.step(&["members", "add", &slot], victim).await;
            assert_eq!(done["done"], true, "{done}");
            assert_eq!(self.voters(), (1..=node as u64 + 1).collect::<Vec<_>>());
        }
        self.cluster.wait_ready().await;
        self.check("grown to five").await;
    }

    async fn relax(&mut self) {
        let leader = self.cluster.leader().await;
        self.step(&["mode", "set", "replicated"], leader).await;
        let replicated = |modes: &cairn_client::ModeStatus| {
            modes.cluster == Some(Mode::Replicated) && modes.effective == Mode::Replicated
        };
        self.cluster
            .until_all("all acknowledge by the new mode", |node| {
                node.modes.as_ref().is_some_and(replicated)
            })
            .await;
        self.check("in mode replicated").await;
    }

    async fn replace(&mut self) {
        let statuses = self.cluster.statuses().await;
        let before = statuses.into_iter().find(|status| status.slot == 3).expect("it runs");
        self.until_recovered().await;
        self.until_unsynced(2).await;
        self.cluster.fail_node(2);
        self.cluster.lose_disk(2);
        self.cluster.start_node(2);
        self.keys.wait_for(&self.cluster, 10).await;
        let leader = self.cluster.leader().await;
        self.fail(leader);
        self.cluster.wait_replaced(&before).await;

        // A machine that is alive and leads, by another one. The story: the member of the slot led,
        // and the command waited for ever, since that member refuses whoever claims its slot.
        self.until_recovered().await;
        let moved = async || {
            let ran = self.cluster.cairn(&["leader", "move", "4"]);
            (ran.code == 0).then_some(())
        };
        self.cluster.until("slot 4 leads", moved).await;
        let successor = self.cluster.start_successor(3);
        let done = self.step(&["members", "replace", "4"], 0).await;
        assert_eq!(done["done"], true, "{done}");
        self.cluster.succeed(3, successor);
        self.cluster.wait_ready().await;
        assert_eq!(self.voters(), [1, 2, 3, 4, 5]);
        self.check("with a new disk and a new machine").await;
    }

    async fn moves(&mut self) {
        assert_eq!(self.cluster.stop_node(1), 0);
        self.cluster.move_node(1);
        self.cluster.start_node(1);
        self.cluster.wait_ready().await;
        self.move_to_present(1).await;

        // Once more, while it leads.
        let victim = if self.cluster.leader().await == 4 { 3 } else { 4 };
        self.step(&["leader", "move", "2"], victim).await;
        let leads = async || (self.cluster.leader().await == 1).then_some(());
        self.cluster.until("slot 2 leads", leads).await;
        self.until_recovered().await;
        self.until_unsynced(1).await;
        self.cluster.fail_node(1);
        self.cluster.move_node(1);
        self.cluster.start_node(1);
        self.cluster.wait_ready().await;
        self.move_to_present(1).await;
        self.check("moved twice").await;
    }

    async fn move_to_present(&mut self, node: usize) {
        let (slot, peer) =
            ((node + 1).to_string(), value_of(self.cluster.config(node), "listen.peer"));
        let done = self.step(&["members", "move", &slot, &peer], self.other(node)).await;
        assert_eq!(done["done"], true, "{done}");
        self.cluster.wait_ready().await;
        self.cluster.until_logged().await;
    }

    async fn drain(&mut self) {
        let next = std::env::var_os("CAIRN_NEXT").map(PathBuf::from);
        for node in 0..5 {
            let slot = (node + 1).to_string();
            let done = self.step(&["leader", "drain", &slot], self.other(node)).await;
            assert_ne!(done["leader"]["slot"], node + 1, "{done}");
            let drained = async || {
                let mut all = self.cluster.statuses().await.into_iter();
                let own = all.find(|status| usize::from(status.slot) == node + 1)?;
                (own.drained.is_some() && own.role != Role::Leader).then_some(())
            };
            self.cluster.until("it is drained and does not lead", drained).await;
            self.until_recovered().await;
            assert_eq!(self.cluster.stop_node(node), 0);
            if let Some(next) = &next {
                self.cluster.install(node, next);
            }
            self.start_twice(node).await;
            self.cluster.wait_ready().await;
        }
        let restarted = |status: &cairn_client::NodeStatus| status.drained.is_none();
        self.cluster.until_all("a restart ends it", restarted).await;
        self.check("drained and restarted one by one").await;
        if next.is_some() {
            self.finish_upgrade().await;
        }
    }

    async fn finish_upgrade(&mut self) {
        let may_finish = async || {
            let ran = self.cluster.cairn(&["upgrade", "check", "-o", "json"]);
            let seen: Value = serde_json::from_str(&ran.stdout).ok()?;
            (seen["may_finish"] == true).then_some(())
        };
        self.cluster.until("every member's version is known", may_finish).await;
        let leader = self.cluster.leader().await;
        let done = self.step(&["upgrade", "finish", "--yes"], leader).await;
        assert_eq!(done["cluster_version"], json!(VERSION + 1), "{done}");
        self.check("upgraded").await;
    }

    async fn remove(&mut self, node: usize, victim: usize) {
        let slot = (node + 1).to_string();
        let done = self.step(&["members", "remove", &slot, "--yes"], victim).await;
        assert_eq!(done["done"], true, "{done}");
        self.cluster.kill_node(node);
        self.cluster.wait_ready().await;
        assert!(!self.voters().contains(&(node as u64 + 1)), "{:?}", self.voters());
    }

    async fn shrink(&mut self) {
        self.remove(4, 4).await;
        // The leader, whoever it is now.
        let leader = self.cluster.leader().await;
        self.remove(leader, self.other(leader)).await;
        assert_eq!(self.voters().len(), 3);
        self.check("shrunk to three").await;

        let left: Vec<usize> = (0..5).filter(|node| self.cluster.runs(*node)).collect();
        let slot = (left[2] + 1).to_string();
        let refused = async || {
            let ran = self.cluster.cairn(&["members", "remove", &slot, "--yes"]);
            assert_eq!(ran.code, 4, "{ran:?}");
            ran.stderr.contains("cairn mode set sync").then_some(())
        };
        self.cluster.until("the mode refuses it", refused).await;
        let leader = self.cluster.leader().await;
        self.step(&["mode", "set", "sync"], leader).await;
        self.remove(left[2], left[0]).await;
        self.remove(left[1], left[0]).await;
        assert_eq!(self.voters(), [left[0] as u64 + 1]);
        self.check("shrunk to one").await;

        // What is left stands alone.
        self.fail(left[0]);
        self.cluster.wait_ready().await;
        self.check("alone").await;
    }
}
