//! What engine, replica and the rest of a node say of themselves at each scrape.

use super::backups::SharedBackupStatus;
use super::connections::Connections;
use super::out::Out;
use crate::admission::requests::Budgets;
use crate::admission::scans::Scans;
use crate::delay::Delay;
use crate::durability::in_force;
use crate::failure_domains;
use crate::health::Fill;
use crate::log;
use crate::outage::ElectionBlockedState;
use crate::promise::SyncWindow;
use crate::readiness::readiness;
use cairn_engine::{EngineStatus, LogId, Mode};
use cairn_raft::{Replica, Role};
use cairn_tls::Tls;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a node is asked for at each scrape.
pub(super) struct NodeGauges {
    pub(super) replica: Replica,
    pub(super) election_blocked_state: ElectionBlockedState,
    pub(super) budgets: Budgets,
    pub(super) delay: Arc<Delay>,
    pub(super) scans: Scans,
    pub(super) connections: Connections,
    pub(super) tls: Option<Tls>,
    pub(super) backups: Option<SharedBackupStatus>,
    pub(super) sync_interval: Duration,
}

impl fmt::Debug for NodeGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeGauges")
    }
}

impl Collector for NodeGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let engine = self.replica.engine().status();
        let replica = self.replica.status();
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        let mut out = Out(&mut encoder);

        self.build(&mut out)?;
        let ready = readiness(&self.replica, &self.election_blocked_state).is_ok();
        out.flag("ready", "1 while this node serves clients, as /ready says", ready)?;
        out.flag("leader", "1 on the leader", replica.role == Role::Leader)?;
        let has_leader_help = "1 while this node leads with a majority, or hears a leader";
        out.flag("has_leader", has_leader_help, replica.leader.is_some())?;
        let blocked = self.election_blocked_state.of(&self.replica).is_some();
        let blocked_help = "1 while no leader can be elected because too many members may have lost acknowledged writes";
        out.flag("election_blocked", blocked_help, blocked)?;
        out.gauge("term", "The highest term seen", replica.term)?;
        out.gauge("last_log_index", "Index of the last log entry", index(replica.last_log))?;
        let committed = index(replica.committed);
        out.gauge("committed_index", "Index of the last entry known committed", committed)?;
        out.gauge("applied_index", "Index of the last applied entry", index(replica.applied))?;
        out.gauge("purged_index", "Index of the last purged entry", index(replica.purged))?;
        self.replication(&mut out)?;
        self.history(&mut out)?;
        let stopped = replica.stopped_reason.is_some() || engine.failed.is_some();
        let damaged = self.replica.engine().damage().is_some();
        let damaged_help = "1 while the data directory is damaged and nothing of it is overwritten";
        out.flag("damaged", damaged_help, damaged)?;
        out.flag("stopped", "1 once this node has stopped serving", stopped)?;

        out.gauge("keys", "Keys stored", engine.keys)?;
        out.bytes("live", "Bytes of live keys and values", engine.live_bytes)?;
        out.bytes("data_free", "Bytes of the data area that are free", engine.free_bytes)?;
        out.bytes("data_capacity", "Bytes of the data area", engine.data_bytes)?;
        space(&mut out, &engine)?;
        out.bytes(
            "index",
            "Bytes that a checkpoint of the present index needs",
            engine.index_bytes,
        )?;
        let limit = engine.index_limit_bytes + engine.index_log_bytes;
        out.bytes("index_limit", "Bytes of the index at which puts are refused", limit)?;
        out.bytes("index_capacity", "Most bytes of a checkpoint", engine.index_capacity_bytes)?;
        out.gauge("journal_blocks", "Blocks of the journal", engine.journal_blocks)?;
        let used = engine.journal_used_blocks;
        out.gauge("journal_used_blocks", "Blocks of the journal in use", used)?;
        out.gauge("written_sequence", "Last journal block written", engine.written_sequence)?;
        out.gauge("synced_sequence", "Last journal block synced", engine.synced_sequence)?;
        out.bytes("unsynced", "Bytes written and not yet synced", engine.unsynced_bytes)?;
        let recovering = !self.replica.holds_all();
        let recovering_help =
            "1 while this node recovers because it may have lost acknowledged writes";
        out.flag("recovering", recovering_help, recovering)?;
        let joining = !self.replica.votes();
        out.flag("joining", "1 while this node is not a voter of the cluster", joining)?;
        let voters = replica.members.iter().filter(|member| member.voter).count();
        out.gauge("voters", "Voters of the cluster, as this node knows them", voters as u64)?;
        let learners = replica.members.len().saturating_sub(voters);
        let learners_help = "Members that do not vote, as this node knows them";
        out.gauge("learners", learners_help, learners as u64)?;
        let drained = self.replica.drained_for().is_some();
        out.flag("drained", "1 while this node is kept from leading, by an operator or since nobody took its entries", drained)?;
        let now = in_force(&self.replica, engine.mode);
        let shared = failure_domains::exceptions(&self.replica, now, SyncWindow::default());
        let shared_help =
            "Machines and failure domains with several voters, as a leader knows; 0 on the others";
        out.gauge("shared_failures", shared_help, shared.len() as u64)?;
        let modes = [Mode::Device, Mode::Replicated, Mode::Sync];
        let modes = modes.map(|mode| (mode.name(), u64::from(mode == now)));
        let mode_help = "1 for the mode of this node's acknowledgements";
        out.gauges(("mode", None), mode_help, "mode", &modes)?;
        let versions = self.replica.versions();
        out.gauge("version", "The version that this build speaks", u64::from(versions.own))?;
        let cluster_help = "The cluster's version: no build of a lower one runs in it";
        out.gauge("cluster_version", cluster_help, u64::from(versions.cluster))?;
        let removed = self.replica.removed_reason().is_some();
        out.flag("removed", "1 once another identity has taken the slot of this node", removed)?;
        let unsynced_acks = engine.unsynced_acks;
        out.flag("unsynced_acks", "1 while acknowledged writes may be unsynced", unsynced_acks)?;
        let unsynced_age = Duration::from_millis(engine.unsynced_ms);
        out.seconds("unsynced_age", "Age of the oldest unsynced write", unsynced_age)?;
        let interval_help = "storage.sync_interval: the longest time between a write and the background sync that covers it";
        out.seconds("sync_interval", interval_help, self.sync_interval)?;
        out.counter("checkpoints", "Checkpoints written", engine.checkpoints)?;
        out.counter("syncs", "fdatasync calls", engine.syncs)?;
        self.latencies(&mut out)?;
        let corrupt = engine.corrupt_values;
        out.counter("corrupt_values", "Values that did not match their hash", corrupt)?;
        let cached = engine.value_cache;
        out.counter("value_cache_hits", "Gets of values that were in memory", cached.hits)?;
        out.counter(
            "value_cache_misses",
            "Gets of values that were read from the disk",
            cached.misses,
        )?;
        self.memory(&mut out, &engine)?;
        self.scrub(&mut out)?;
        self.reads(&mut out)?;
        if let Some(backups) = &self.backups {
            backups.lock().write(&mut out)?;
        }
        self.connections(&mut out)?;
        let peers = self.replica.peer_service();
        let peers = peers.requests().map(|(method, count)| (method.to_lowercase(), count));
        let peers_help = "Requests of other members received, by method";
        out.counters("peer_requests", peers_help, "method", peers)?;
        let dropped = "Log lines lost because standard error did not take them in time";
        out.counter("log_dropped_lines", dropped, log::dropped())?;
        let suppressed = "Log lines left out because one place in the code logged too many";
        out.counter("log_suppressed_lines", suppressed, log::suppressed())?;
        let late_help =
            "Longest time in the last ten to twenty seconds by which the main thread was late";
        out.seconds("main_thread_delay", late_help, self.delay.longest())?;
        let device = engine.device_bytes_written;
        out.counted_bytes("device_written", "Bytes written to the device", device)?;
        let moved = engine.moved_bytes;
        out.counted_bytes("moved", "Bytes of values moved by compaction", moved)?;
        let user = engine.user_bytes_written;
        out.counted_bytes("user_written", "Bytes of values written by clients", user)
    }
}

impl NodeGauges {
    fn build(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let release = env!("CARGO_PKG_VERSION");
        out.gauges(
            ("build_info", None),
            "1, with the release that runs",
            "version",
            &[(release, 1)],
        )
    }

    /// How far members are behind: this one, and while it leads the others.
    fn replication(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let changes = self.replica.leader_changes();
        let changes_help = "Leaderships seen: another leader, or another term of one";
        out.counter("leader_changes", changes_help, changes)?;
        if let Some(behind) = self.replica.applied_lag() {
            let help = "How long ago everything was applied here that was committed then";
            out.seconds("applied_lag", help, behind)?;
        }
        let followers = self.replica.followers();
        if followers.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = followers.iter().map(|lag| lag.id.to_string()).collect();
        let entries = ids.iter().zip(&followers).map(|(id, lag)| (id.as_str(), lag.entries));
        let entries: Vec<_> = entries.collect();
        let help = "Entries of this leader's log that the member is not known to have stored";
        out.gauges(("follower_lag_entries", None), help, "member", &entries)?;
        let silent = followers.iter().filter_map(|lag| Some((lag.id.to_string(), lag.silent?)));
        let help = "Time since the member last answered this leader";
        out.many_seconds("follower_silence", help, "member", silent)
    }

    /// How far back changes can be told.
    fn history(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let history = self.replica.history();
        let oldest = history.oldest.map_or(0, |id| id.index);
        let oldest_help = "Index of the entry behind which changes can be told";
        out.gauge("history_oldest_index", oldest_help, oldest)?;
        let entries_help = "Log entries whose changes can be told";
        out.gauge("history_entries", entries_help, history.entries)?;
        let bytes_help = "Bytes in the log of these changes, and of the keys of deleted ranges";
        out.bytes("history", bytes_help, history.bytes)?;
        let age_help = "Time since the oldest of these changes was applied, at most";
        out.seconds("history_age", age_help, history.age)
    }

    fn latencies(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let all = self.replica.engine().latencies();
        let operation = |name| Some(("operation", name));
        let device = [
            (operation("read"), &all.reads),
            (operation("write"), &all.writes),
            (operation("sync"), &all.syncs),
        ];
        let help = "Time that an operation of the data directory's device takes";
        out.latencies("device_operation_duration", help, &device)?;
        let help = "Time from an append to the log until its promise holds";
        out.latencies("append_duration", help, &[(None, &all.appends)])
    }

    fn connections(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let ports = self.connections.open();
        let open: Vec<_> = ports.iter().map(|(port, open, _)| (*port, *open)).collect();
        out.gauges(("connections", None), "Open connections, by port", "port", &open)?;
        let most: Vec<_> = ports.iter().map(|(port, _, most)| (*port, *most)).collect();
        let help = "Most connections that may be open, by port";
        out.gauges(("connections_limit", None), help, "port", &most)?;
        let Some(tls) = &self.tls else { return Ok(()) };
        if let Some(ends) = tls.ends() {
            let help = "When the first certificate of this node's chain ends, since the epoch";
            out.seconds("certificate_expiry_timestamp", help, ends)?;
        }
        let Some(ends) = tls.ca_ends() else { return Ok(()) };
        let help = "When the CA ends that signed this node's certificate, since the epoch";
        out.seconds("ca_expiry_timestamp", help, ends)
    }

    /// What is bounded by a budget of its own: requests (further streams, messages that arrive, calls under
    /// way), reads (values being read, answers not yet sent), and values that are kept.
    fn memory(&self, out: &mut Out<'_, '_>, engine: &EngineStatus) -> fmt::Result {
        let owners = [
            ("requests", self.budgets.requests.status().held_bytes),
            ("reads", self.budgets.reads.status().held_bytes),
            ("value_cache", engine.value_cache.bytes),
            ("log_cache", engine.log_cache_bytes),
        ];
        let help = "Memory that is bounded by a budget, by what holds it";
        out.gauges(("memory", Some(Unit::Bytes)), help, "owner", &owners)
    }

    fn reads(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let requests = self.budgets.requests.status();
        out.gauge("requests_waiting", "Requests that wait for memory", requests.waiting)?;
        let reads = self.budgets.reads.status();
        out.gauge("reads_waiting", "Reads that wait for memory", reads.waiting)?;
        let scans = self.scans.open() as u64;
        out.gauge("scans", "Scans that are open, and keep what is deleted meanwhile", scans)?;
        let closed = "Connections closed because their clients took answers too slowly while other reads waited";
        out.counter("slow_readers_closed", closed, reads.slow_closed)
    }

    fn scrub(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let scrub = self.replica.scrub_status();
        out.flag("scrub_running", "1 while the scrubber reads", scrub.running)?;
        out.flag("scrub_paused", "1 while the scrubber is paused", scrub.paused)?;
        out.bytes("scrub_position", "Position of the scrubber in the data area", scrub.position)?;
        out.counter("scrub_cycles", "Scrubs completed", scrub.cycles)?;
        out.counter("scrub_blocks", "Blocks of 4 KiB read by the scrubber", scrub.blocks_checked)?;
        out.counter("scrub_values", "Values compared by the scrubber", scrub.values_checked)?;
        out.counter("scrub_damaged", "Damage found by the scrubber", scrub.damaged)?;
        let repaired = "Damaged values that were repaired, found by reads or by the scrubber";
        out.counter("repaired", repaired, scrub.repaired)?;
        out.counter("unrepairable", "Failed attempts to repair a damaged value", scrub.unrepairable)
    }
}

/// Whether there is space for puts, and the parts that add up to the data area.
fn space(out: &mut Out<'_, '_>, engine: &EngineStatus) -> fmt::Result {
    let full_help = "1 while this node has no space for puts; a leader refuses them";
    out.flag("full", full_help, Fill::from(engine).refuses_puts())?;
    let space = &engine.space;
    let parts = [
        ("live", space.live),
        ("log", space.log),
        ("installing", space.installing),
        ("padding", space.padding),
        ("dead_unrecorded", space.dead_unrecorded),
        ("dead_unsynced", space.dead_unsynced),
        ("dead_viewed", space.dead_viewed),
        ("reserve", space.reserve),
        ("free", space.free),
    ];
    let help = "Bytes of the data area by what they are";
    out.gauges(("data_use", Some(Unit::Bytes)), help, "part", &parts)
}
