//! Every metric of a node. Names end in `_seconds`, `_bytes` or `_total`, or are plain gauges.
//!
//! What holds here: counting never fails and never waits for I/O. Gauges are read from engine and
//! replica at scrape time.

use crate::admission::requests::Budgets;
use crate::delay::Delay;
use crate::durability::in_force;
use crate::log;
use crate::outage::ElectionBlockedState;
use cairn_engine::{LogId, Mode, SpaceUse};
use cairn_raft::{Replica, Role};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

/// A method of the public service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Method {
    Hello,
    Write,
    Get,
    List,
    Status,
    SafeToStop,
    UnsafeRecovery,
    Scrub,
    ChangeMembers,
    SetMode,
    MoveLeader,
    Drain,
    FinishUpgrade,
    Backup,
}

impl Method {
    /// Its name in the audit.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Hello => "hello",
            Method::Write => "write",
            Method::Get => "get",
            Method::List => "list",
            Method::Status => "status",
            Method::SafeToStop => "safe-to-stop",
            Method::UnsafeRecovery => "unsafe-recovery",
            Method::Scrub => "scrub",
            Method::ChangeMembers => "change-members",
            Method::SetMode => "set-mode",
            Method::MoveLeader => "move-leader",
            Method::Drain => "drain",
            Method::FinishUpgrade => "finish-upgrade",
            Method::Backup => "backup",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method: Method,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    method: Method,
    code: String,
}

/// What the schedule of backups does on this node.
#[derive(Debug, Default)]
pub(crate) struct BackupStatus {
    /// It looks at the target, saves, or removes.
    pub(crate) running: bool,
    /// What failed since the node started.
    pub(crate) failures: u64,
    /// When the last backup of the cluster ended, in seconds since 1970. Only the leader knows it.
    pub(crate) last_ended: Option<u64>,
    /// How long that one took.
    pub(crate) last_seconds: u64,
    /// The bytes that it needs at the target.
    pub(crate) last_bytes: u64,
}

/// The same, for those who set it and those who read it.
pub(crate) type SharedBackupStatus = Arc<Mutex<BackupStatus>>;

/// The counters of one node and the registry that renders them.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<OutcomeLabels, Counter>,
    duration: Family<MethodLabels, Histogram>,
    delay: Arc<Delay>,
}

impl Metrics {
    /// Metrics of a node with this replica and its engine, the state of blocked elections, the
    /// budgets for requests and reads, and the schedule of backups if it has one.
    pub(crate) fn new(
        replica: Replica,
        election_blocked_state: ElectionBlockedState,
        budgets: Budgets,
        backups: Option<SharedBackupStatus>,
    ) -> Metrics {
        let mut registry = Registry::with_prefix("cairn");
        let requests = Family::<OutcomeLabels, Counter>::default();
        let duration = Family::<MethodLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.000_05, 2.0, 18))
        });
        let requests_help = "Requests answered, by method and gRPC code";
        registry.register("requests", requests_help, requests.clone());
        let (help, unit) = ("Time to answer a request", Unit::Seconds);
        registry.register_with_unit("request_duration", help, unit, duration.clone());
        let delay = Arc::<Delay>::default();
        let of_gauges = Arc::clone(&delay);
        let gauges =
            NodeGauges { replica, election_blocked_state, budgets, backups, delay: of_gauges };
        registry.register_collector(Box::new(gauges));
        Metrics { registry, requests, duration, delay }
    }

    /// The delay of the main thread.
    pub(crate) fn delay(&self) -> Arc<Delay> {
        Arc::clone(&self.delay)
    }

    /// Counts an answered request.
    pub(crate) fn request(&self, method: Method, code: Code, took: Duration) {
        let labels = OutcomeLabels { method, code: format!("{code:?}") };
        self.requests.get_or_create(&labels).inc();
        self.duration.get_or_create(&MethodLabels { method }).observe(took.as_secs_f64());
    }

    /// All metrics in the OpenMetrics text format.
    pub(crate) fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

struct NodeGauges {
    replica: Replica,
    election_blocked_state: ElectionBlockedState,
    budgets: Budgets,
    backups: Option<SharedBackupStatus>,
    delay: Arc<Delay>,
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

        out.flag("leader", "1 on the leader", replica.role == Role::Leader)?;
        out.flag("has_leader", "1 while a leader is known", replica.leader.is_some())?;
        let blocked = self.election_blocked_state.of(&self.replica).is_some();
        let blocked_help = "1 while no leader can be elected because too many members may have lost acknowledged writes";
        out.flag("election_blocked", blocked_help, blocked)?;
        out.gauge("term", "The highest term seen", replica.term)?;
        out.gauge("last_log_index", "Index of the last log entry", index(replica.last_log))?;
        let committed = index(replica.committed);
        out.gauge("committed_index", "Index of the last entry known committed", committed)?;
        out.gauge("applied_index", "Index of the last applied entry", index(replica.applied))?;
        out.gauge("purged_index", "Index of the last purged entry", index(replica.purged))?;
        let stopped = replica.stopped_reason.is_some() || engine.failed.is_some();
        out.flag("stopped", "1 once this node has stopped serving", stopped)?;

        out.gauge("keys", "Keys stored", engine.keys)?;
        out.bytes("live", "Bytes of live keys and values", engine.live_bytes)?;
        out.bytes("data_free", "Bytes of the data area that are free", engine.free_bytes)?;
        out.bytes("data_capacity", "Bytes of the data area", engine.data_bytes)?;
        out.space(&engine.space)?;
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
        out.flag("drained", "1 while an operator keeps this node from leading", drained)?;
        out.modes(in_force(&self.replica, engine.mode))?;
        let versions = self.replica.versions();
        out.gauge("version", "The version that this build speaks", u64::from(versions.own))?;
        let cluster_help = "The cluster's version: no build of a lower one runs in it";
        out.gauge("cluster_version", cluster_help, u64::from(versions.cluster))?;
        let removed = self.replica.removed_reason().is_some();
        out.flag("removed", "1 once another identity has taken the slot of this node", removed)?;
        let unsynced_acks = engine.unsynced_acks;
        out.flag("unsynced_acks", "1 while acknowledged writes may be unsynced", unsynced_acks)?;
        #[expect(clippy::cast_precision_loss, reason = "a gauge of seconds")]
        let unsynced_seconds = engine.unsynced_ms as f64 / 1000.0;
        let unsynced_age = ConstGauge::new(unsynced_seconds);
        let age_help = "Age of the oldest unsynced write";
        out.metric("unsynced_age", age_help, Some(Unit::Seconds), unsynced_age)?;
        out.counter("checkpoints", "Checkpoints written", engine.checkpoints)?;
        out.counter("syncs", "fdatasync calls", engine.syncs)?;
        let corrupt = engine.corrupt_values;
        out.counter("corrupt_values", "Values that did not match their hash", corrupt)?;
        let cached = engine.value_cache;
        out.counter("value_cache_hits", "Gets of values that were in memory", cached.hits)?;
        out.counter(
            "value_cache_misses",
            "Gets of values that were read from the disk",
            cached.misses,
        )?;
        out.bytes("value_cache", "Memory of values that are read often", cached.bytes)?;
        self.scrub(&mut out)?;
        self.reads(&mut out)?;
        self.backups(&mut out)?;
        out.peer_requests(&self.replica)?;
        let dropped = "Log lines lost because standard error did not take them in time";
        out.counter("log_dropped_lines", dropped, log::dropped())?;
        let suppressed = "Log lines left out because one place in the code logged too many";
        out.counter("log_suppressed_lines", suppressed, log::suppressed())?;
        let late = ConstGauge::new(self.delay.longest().as_secs_f64());
        let late_help =
            "Longest time in the last ten to twenty seconds by which the main thread was late";
        out.metric("main_thread_delay", late_help, Some(Unit::Seconds), late)?;
        let device = engine.device_bytes_written;
        out.counted_bytes("device_written", "Bytes written to the device", device)?;
        let moved = engine.moved_bytes;
        out.counted_bytes("moved", "Bytes of values moved by compaction", moved)?;
        let user = engine.user_bytes_written;
        out.counted_bytes("user_written", "Bytes of values written by clients", user)
    }
}

impl NodeGauges {
    fn reads(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let requests = self.budgets.requests.status();
        let held = "Bytes of requests: further streams, messages that arrive, calls under way";
        out.bytes("requests_held", held, requests.held_bytes)?;
        out.gauge("requests_waiting", "Requests that wait for memory", requests.waiting)?;
        let reads = self.budgets.reads.status();
        let held = "Bytes of values being read and of answers not yet sent to clients";
        out.bytes("reads_held", held, reads.held_bytes)?;
        out.gauge("reads_waiting", "Reads that wait for memory", reads.waiting)?;
        let closed = "Connections closed because their clients took answers too slowly while other reads waited";
        out.counter("slow_readers_closed", closed, reads.slow_closed)
    }

    fn backups(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let Some(backups) = &self.backups else { return Ok(()) };
        let backups = backups.lock();
        let running =
            "1 while this node looks at the target of backups, saves one, or removes old ones";
        out.flag("backup_running", running, backups.running)?;
        let failures = "Attempts of this node to save or remove backups that failed";
        out.counter("backup_failures", failures, backups.failures)?;
        let Some(ended) = backups.last_ended else { return Ok(()) };
        let (ended, took) = (ConstGauge::new(ended), ConstGauge::new(backups.last_seconds));
        let help =
            "When the last backup at the target ended, in seconds since 1970; from the leader";
        out.metric("backup_last_success_timestamp", help, Some(Unit::Seconds), ended)?;
        let help = "How long that backup took; from the leader";
        out.metric("backup_last_duration", help, Some(Unit::Seconds), took)?;
        let help = "Bytes at the target that this backup needs; from the leader";
        out.bytes("backup_last", help, backups.last_bytes)
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

struct Out<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Out<'_, '_> {
    fn metric(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        metric: impl EncodeMetric,
    ) -> fmt::Result {
        metric.encode(self.0.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.metric(name, help, None, ConstGauge::new(value))
    }

    fn flag(&mut self, name: &str, help: &str, value: bool) -> fmt::Result {
        self.gauge(name, help, u64::from(value))
    }

    fn bytes(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.metric(name, help, Some(Unit::Bytes), ConstGauge::new(value))
    }

    /// 1 for this mode, 0 for the others.
    fn modes(&mut self, now: Mode) -> fmt::Result {
        let help = "1 for the mode of this node's acknowledgements";
        let mut family = self.0.encode_descriptor("mode", help, None, MetricType::Gauge)?;
        for mode in [Mode::Device, Mode::Replicated, Mode::Sync] {
            let labels = [("mode", mode.name())];
            ConstGauge::new(u64::from(mode == now)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// By method.
    fn peer_requests(&mut self, replica: &Replica) -> fmt::Result {
        let (name, help) = ("peer_requests", "Requests of other members received, by method");
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (method, count) in replica.peer_service().requests() {
            let labels = [("method", method.to_lowercase())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Parts that add up to the data area.
    fn space(&mut self, space: &SpaceUse) -> fmt::Result {
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
        let kind = MetricType::Gauge;
        let mut family = self.0.encode_descriptor("data_use", help, Some(&Unit::Bytes), kind)?;
        for (part, bytes) in parts {
            ConstGauge::new(bytes).encode(family.encode_family(&[("part", part)])?)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.metric(name, help, None, ConstCounter::new(value))
    }

    fn counted_bytes(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.metric(name, help, Some(Unit::Bytes), ConstCounter::new(value))
    }
}
