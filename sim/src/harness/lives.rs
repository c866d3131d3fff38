//! The lives of the nodes: how a process starts, ends, pauses and stops.
//!
//! What holds here: the shipped `Node::start` starts each node. When a process ends, the fate of
//! its disk's unsynced writes is decided in the same step. A node that does not start, or stops on
//! its own, is a violation unless a fault explains it.

use super::clock::virtual_time;
use super::cluster::{CLUSTER, Cluster, IO_TIMEOUT};
use super::machine::{Condition, Death, Machine};
use super::starts_readable;
use cairn_clients::Violation;
use cairn_disk::ARRANGED;
use cairn_node::{Environment, Node, NodeConfig};
use cairn_raft::{GROUP, MemberAddress};
use madsim::runtime::Handle;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Cluster {
    /// Starts a node that is down. The tasks of its previous process must have had time to end.
    pub(super) fn start(self: &Arc<Self>, machine: &Machine) {
        let life = {
            let mut state = machine.state.lock();
            if state.condition != Condition::Down {
                return;
            }
            state.condition = Condition::Starting;
            state.change += 1;
            state.changed_at = virtual_time();
            state.life += 1;
            state.counted_at_end = None;
            state.counted_before = cairn_raft::flushed(machine.slot);
            state.life
        };
        cairn_raft::refuse_connections(machine.slot, false);
        if life > 1 {
            Handle::current().restart(machine.host);
        }
        self.trace.event(format!("node {} starts, life {life}", machine.slot));
        let environment = Environment {
            directory: machine.disk.directory(),
            boot: machine.boot(),
            kernel: machine.boot().fingerprint(),
            seed: self.plan.seed ^ (u64::from(machine.slot) << 32 | u64::from(life)),
        };
        let Some(host) = self.host(machine) else { return };
        let (cluster, slot) = (self.clone(), machine.slot);
        match self.config(machine) {
            Ok(config) => {
                drop(host.spawn(async move { cluster.live(slot, life, config, environment).await }))
            }
            Err(error) => self.violation(Violation::new("configuration", error)),
        }
    }

    fn config(&self, machine: &Machine) -> Result<NodeConfig, String> {
        let slot = machine.slot;
        let forms = self.members.contains_key(&slot);
        let members = match forms {
            true => self.members.clone(),
            false => BTreeMap::from([(slot, machine.address())]),
        };
        let directory = PathBuf::from(format!("/simulated/{slot}"));
        let mut config = NodeConfig::new(CLUSTER, slot, directory, members)
            .map_err(|error| error.to_string())?;
        if !forms {
            // A node that an operator adds knows only whom it asks.
            config.members.clear();
        }
        MemberAddress { client: config.client_address, peer: config.peer_address } =
            machine.address();
        // An operator who moves a member names one that is there.
        let seed = self.machines.iter().find(|other| other.slot != slot);
        config.join = seed.into_iter().map(|seed| seed.address().peer).collect();
        config.mode = machine.state.lock().mode.or(Some(self.plan.mode));
        if let Some((min, max)) = self.plan.election {
            (config.timing.election_min, config.timing.election_max) = (min, max);
        }
        if let Some(sessions) = self.plan.max_sessions {
            config.limits.max_sessions = sessions;
        }
        config.unsafe_recovery_automatic = self.plan.unsafe_recovery_automatic;
        config.storage.sync_interval = self.plan.sync_interval;
        config.storage.io_timeout = IO_TIMEOUT;
        config.storage.log_retain_entries = self.plan.log_retain_entries;
        config.storage.value_cache_bytes = self.plan.value_cache_bytes;
        if let Some((bytes, time)) = self.plan.history {
            (config.watch.retain_bytes, config.watch.retain_time) = (bytes, time);
        }
        config.validate().map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// Runs one life of a node, on its own host.
    async fn live(
        self: Arc<Self>,
        slot: u16,
        life: u32,
        config: NodeConfig,
        environment: Environment,
    ) {
        match Node::start(config, environment).await {
            Ok(node) => {
                let node = Arc::new(node);
                self.became(slot, life, Ok(node.clone()));
                starts_readable::check(self.clone(), slot, life, node.engine().view(GROUP));
                let reason = node.stopped().await;
                if self.alive(slot, life) {
                    self.stopped_by_itself(slot, life, &reason);
                }
            }
            Err(error) => {
                self.became(slot, life, Err(error.to_string()));
            }
        }
    }

    /// A node that stops is right if its device failed and the reason names the device.
    fn stopped_by_itself(&self, slot: u16, life: u32, reason: &str) {
        self.trace.event(format!("node {slot} stops on its own: {reason}"));
        let Some(machine) = self.machines.iter().find(|machine| machine.slot == slot) else {
            return;
        };
        if machine.device_failed() && names_device_error(slot, reason) {
            machine.state.lock().stopped = Some(life);
            self.count_event("stopped by a failed device");
        } else {
            self.violation(Violation::new(
                "no node stops without a cause",
                format!("node {slot}: {reason}"),
            ));
        }
    }

    fn alive(&self, slot: u16, life: u32) -> bool {
        let machine = self.machines.iter().find(|machine| machine.slot == slot);
        machine.and_then(Machine::node).is_some_and(|(current, _)| current == life)
    }

    fn became(&self, slot: u16, life: u32, outcome: Result<Arc<Node>, String>) {
        let Some(machine) = self.machines.iter().find(|machine| machine.slot == slot) else {
            return;
        };
        let mut state = machine.state.lock();
        if state.life != life || state.condition == Condition::Down {
            return;
        }
        match outcome {
            Ok(node) => {
                // If it was paused while it started, it stays paused.
                if state.condition == Condition::Starting {
                    state.condition = Condition::Up;
                    state.changed_at = virtual_time();
                }
                if machine.disk.misreads() || machine.disk.harmed_beside_data() > 0 {
                    let last = node.engine().log_bounds(GROUP).last.map_or(0, |last| last.index);
                    state.doubtful_through = Some(last);
                }
                state.lost = false;
                state.identity = Some(node.replica().node_id());
                state.node = Some(node);
                self.trace.event(format!("node {slot} serves, life {life}"));
            }
            Err(refusal) => {
                state.condition = Condition::Down;
                state.change += 1;
                state.changed_at = virtual_time();
                drop(state);
                self.trace.event(format!("node {slot} refuses to start: {refusal}"));
                let failed = machine.device_failed() && names_device_error(slot, &refusal);
                let misread = machine.disk.misreads() && names_journal_block(&refusal);
                // The process has ended, which decides what becomes of the blocks of a failed sync.
                // A superblock that could be written records the failure.
                machine.disk.kill(machine.disk.takes_superblock());
                if failed || misread {
                    self.count_event(if failed {
                        "start refused by a failed device"
                    } else {
                        "start refused for a damaged block"
                    });
                } else {
                    self.violation(Violation::new(
                        "a node starts",
                        format!("node {slot}: {refusal}"),
                    ));
                }
            }
        }
    }

    /// Ends a node's process, and decides in the same step what its disk keeps. True if there was a
    /// process.
    pub(super) fn end(&self, machine: &Machine, death: Death) -> bool {
        let was = machine.condition();
        if was == Condition::Open || was == Condition::Down && death == Death::Killed {
            return false;
        }
        if death == Death::PowerCut {
            self.power_cuts.fetch_add(1, Ordering::Relaxed);
        }
        let counted = machine.node().and_then(|_| machine.counted());
        Handle::current().kill(machine.host);
        cairn_raft::refuse_connections(machine.slot, death == Death::Killed);
        let dirty = machine.disk.dirty_blocks();
        let unsynced_acks = machine.unsynced_acks();
        // Only a failure that the directory records: without a record no start could know about it.
        let failed_sync =
            machine.node().is_some_and(|(_, node)| node.engine().status().failed_sync_recorded);
        let known = machine.node().is_some() || machine.disk.has_identity();
        let damage = match death {
            Death::Killed => machine.disk.kill(failed_sync),
            Death::PowerCut => machine.disk.cut(),
        };
        let node = {
            let mut state = machine.state.lock();
            state.boots += u64::from(death == Death::PowerCut);
            state.unsynced_acks = unsynced_acks;
            // Damage may cost it the end of its journal.
            let loses_acks = death == Death::PowerCut && unsynced_acks || failed_sync;
            state.lacks_acks |= loses_acks || machine.disk.decayed() > 0;
            state.errors = machine.disk.errors();
            state.counted_at_end = counted;
            state.node.take()
        };
        machine.set(Condition::Down);
        drop(node);
        self.look_for_identity(machine, known);
        if failed_sync && death == Death::Killed {
            self.count_event("restarts in the boot of a failed sync");
        }
        self.trace.event(format!(
            "node {} {death:?} while {was:?}, {dirty} blocks unsynced: {damage:?}",
            machine.slot
        ));
        was != Condition::Down
    }

    /// Marks the identity as lost if no two superblock copies agree: one was damaged, and a torn
    /// update took two more.
    fn look_for_identity(&self, machine: &Machine, known: bool) {
        if known && !machine.disk.has_identity() {
            machine.lose();
            self.count_event("identities lost to a torn update beside a damaged copy");
            self.trace
                .event(format!("disk {}: no two copies of the superblock agree", machine.slot));
        }
    }

    /// Pauses a node's process.
    pub(super) fn pause(&self, machine: &Machine) -> bool {
        if !matches!(machine.condition(), Condition::Up | Condition::Starting) {
            return false;
        }
        Handle::current().pause(machine.host);
        machine.set(Condition::Paused);
        self.trace.event(format!("node {} paused", machine.slot));
        true
    }

    /// Resumes a paused node.
    pub(super) fn resume(&self, machine: &Machine) {
        if machine.condition() != Condition::Paused {
            return;
        }
        Handle::current().resume(machine.host);
        machine.state.lock().resumed_at = Some(virtual_time());
        machine.set(if machine.node().is_some() { Condition::Up } else { Condition::Starting });
        self.trace.event(format!("node {} resumed", machine.slot));
    }

    /// Asks a running node to stop cleanly and waits for it, on its own host. Returns whether it
    /// stopped within `limit`, `None` if something else happened to the machine.
    pub(super) async fn shut_down(&self, machine: &Machine, limit: Duration) -> Option<bool> {
        let (_, node) = machine.node()?;
        let host = self.host(machine)?;
        machine.set(Condition::Stopping);
        let change = machine.change();
        self.trace.event(format!("node {} is asked to stop", machine.slot));
        let stopping =
            host.spawn(async move { node.shutdown().await.map_err(|error| error.to_string()) });
        let ended = tokio::time::timeout(limit, stopping).await;
        if !machine.unchanged(change) {
            return None;
        }
        self.trace.event(format!("node {} stopped: {ended:?}", machine.slot));
        Some(matches!(ended, Ok(Ok(Ok(())))))
    }
}

/// Part of the error of an operation that never returned.
pub(super) const HUNG: &str = "did not return within";

/// Whether `reason` names the machine's disk, the file and the error.
fn names_device_error(slot: u16, reason: &str) -> bool {
    (reason.contains(ARRANGED) || reason.contains(HUNG))
        && reason.contains(&format!("disk-{slot}"))
        && reason.contains("failed on file `")
}

fn names_journal_block(reason: &str) -> bool {
    reason.contains("corrupt") && reason.contains("`journal`") && reason.contains("offset")
}
