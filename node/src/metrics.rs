//! Every metric of a node. Names end in `_seconds`, `_bytes` or `_total`, or are plain gauges.
//!
//! What holds here: counting never fails and never waits for I/O. Gauges are read from engine and
//! replica at scrape time.

use crate::admission::memory::Reads;
use crate::outage::ElectionBlockedState;
use cairn_engine::{Engine, LogId, MemberState};
use cairn_raft::{Replica, Role};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
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
    UnsafeRecovery,
    Scrub,
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

/// The counters of one node and the registry that renders them.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<OutcomeLabels, Counter>,
    duration: Family<MethodLabels, Histogram>,
}

impl Metrics {
    /// Metrics of a node with this replica and its engine, the state of blocked elections, and the
    /// budget for reads.
    pub(crate) fn new(
        replica: Replica,
        election_blocked_state: ElectionBlockedState,
        reads: Reads,
    ) -> Metrics {
        let mut registry = Registry::with_prefix("cairn");
        let requests = Family::<OutcomeLabels, Counter>::default();
        let duration = Family::<MethodLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.000_05, 2.0, 18))
        });
        registry.register(
            "requests",
            "Requests answered, by method and gRPC code",
            requests.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "Time to answer a request",
            Unit::Seconds,
            duration.clone(),
        );
        registry.register_collector(Box::new(NodeGauges {
            engine: replica.engine().clone(),
            replica,
            election_blocked_state,
            reads,
        }));
        Metrics { registry, requests, duration }
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
    engine: Engine,
    replica: Replica,
    election_blocked_state: ElectionBlockedState,
    reads: Reads,
}

impl fmt::Debug for NodeGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeGauges")
    }
}

impl Collector for NodeGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let engine = self.engine.status();
        let replica = self.replica.status();
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        let mut out = Out(&mut encoder);

        out.gauge("leader", "1 on the leader", None, u64::from(replica.role == Role::Leader))?;
        out.gauge(
            "has_leader",
            "1 while a leader is known",
            None,
            u64::from(replica.leader.is_some()),
        )?;
        let blocked = u64::from(self.election_blocked_state.of(&self.replica).is_some());
        out.gauge(
            "election_blocked",
            "1 while no leader can be elected because too many members may have lost acknowledged writes",
            None,
            blocked,
        )?;
        out.gauge("term", "The highest term seen", None, replica.term)?;
        out.gauge("last_log_index", "Index of the last log entry", None, index(replica.last_log))?;
        out.gauge(
            "committed_index",
            "Index of the last entry known committed",
            None,
            index(replica.committed),
        )?;
        out.gauge(
            "applied_index",
            "Index of the last applied entry",
            None,
            index(replica.applied),
        )?;
        out.gauge("purged_index", "Index of the last purged entry", None, index(replica.purged))?;
        let stopped = replica.stopped_reason.is_some() || engine.failed.is_some();
        out.gauge("stopped", "1 once this node has stopped serving", None, u64::from(stopped))?;

        out.gauge("keys", "Keys stored", None, engine.keys)?;
        out.gauge("live", "Bytes of live keys and values", Some(Unit::Bytes), engine.live_bytes)?;
        out.gauge(
            "data_free",
            "Bytes of the data area that are free",
            Some(Unit::Bytes),
            engine.free_bytes,
        )?;
        out.gauge("data_capacity", "Bytes of the data area", Some(Unit::Bytes), engine.data_bytes)?;
        out.gauge(
            "index",
            "Bytes that a checkpoint of the present index needs",
            Some(Unit::Bytes),
            engine.index_bytes,
        )?;
        out.gauge(
            "index_capacity",
            "Most bytes of a checkpoint",
            Some(Unit::Bytes),
            engine.index_capacity_bytes,
        )?;
        out.gauge("journal_blocks", "Blocks of the journal", None, engine.journal_blocks)?;
        out.gauge(
            "journal_used_blocks",
            "Blocks of the journal in use",
            None,
            engine.journal_used_blocks,
        )?;
        out.gauge("written_sequence", "Last journal block written", None, engine.written_sequence)?;
        out.gauge("synced_sequence", "Last journal block synced", None, engine.synced_sequence)?;
        out.gauge(
            "unsynced",
            "Bytes written and not yet synced",
            Some(Unit::Bytes),
            engine.unsynced_bytes,
        )?;
        let recovering = u64::from(replica.member_state == MemberState::Recovering);
        out.gauge(
            "recovering",
            "1 while this node recovers because it may have lost acknowledged writes",
            None,
            recovering,
        )?;
        let joining = u64::from(!self.replica.votes());
        out.gauge("joining", "1 while this node is not a voter of the cluster", None, joining)?;
        let removed = u64::from(self.replica.removed_reason().is_some());
        out.gauge(
            "removed",
            "1 once another identity has taken the slot of this node",
            None,
            removed,
        )?;
        out.gauge(
            "unsynced_acks",
            "1 while acknowledged writes may be unsynced",
            None,
            u64::from(engine.unsynced_acks),
        )?;
        #[expect(clippy::cast_precision_loss, reason = "a gauge of seconds")]
        let unsynced_seconds = engine.unsynced_ms as f64 / 1000.0;
        out.seconds("unsynced_age", "Age of the oldest unsynced write", unsynced_seconds)?;
        out.counter("checkpoints", "Checkpoints written", None, engine.checkpoints)?;
        out.counter("syncs", "fdatasync calls", None, engine.syncs)?;
        out.counter(
            "corrupt_values",
            "Values that did not match their hash",
            None,
            engine.corrupt_values,
        )?;
        self.scrub(&mut out)?;
        self.reads(&mut out)?;
        let device = engine.device_bytes_written;
        out.counter("device_written", "Bytes written to the device", Some(Unit::Bytes), device)?;
        out.counter(
            "user_written",
            "Bytes of values written by clients",
            Some(Unit::Bytes),
            engine.user_bytes_written,
        )
    }
}

impl NodeGauges {
    fn reads(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let reads = self.reads.status();
        let held = "Bytes of values being read and of answers not yet sent to clients";
        out.gauge("reads_held", held, Some(Unit::Bytes), reads.held_bytes)?;
        out.gauge("reads_waiting", "Reads that wait for memory", None, reads.waiting)?;
        let closed = "Connections closed because their clients took answers too slowly while other reads waited";
        out.counter("slow_readers_closed", closed, None, reads.slow_closed)
    }

    fn scrub(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let scrub = self.replica.scrub_status();
        out.gauge("scrub_running", "1 while the scrubber reads", None, u64::from(scrub.running))?;
        out.gauge("scrub_paused", "1 while the scrubber is paused", None, u64::from(scrub.paused))?;
        out.gauge(
            "scrub_position",
            "Position of the scrubber in the data area",
            Some(Unit::Bytes),
            scrub.position,
        )?;
        out.counter("scrub_cycles", "Scrubs completed", None, scrub.cycles)?;
        out.counter(
            "scrub_blocks",
            "Blocks of 4 KiB read by the scrubber",
            None,
            scrub.blocks_checked,
        )?;
        out.counter("scrub_values", "Values compared by the scrubber", None, scrub.values_checked)?;
        out.counter("scrub_damaged", "Damage found by the scrubber", None, scrub.damaged)?;
        out.counter(
            "repaired",
            "Damaged values that were repaired, found by reads or by the scrubber",
            None,
            scrub.repaired,
        )?;
        out.counter(
            "unrepairable",
            "Failed attempts to repair a damaged value",
            None,
            scrub.unrepairable,
        )
    }
}

struct Out<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Out<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: u64) -> fmt::Result {
        let metric = ConstGauge::new(value);
        metric.encode(self.0.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?)
    }

    fn seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = ConstGauge::new(value);
        metric.encode(self.0.encode_descriptor(
            name,
            help,
            Some(&Unit::Seconds),
            metric.metric_type(),
        )?)
    }

    fn counter(&mut self, name: &str, help: &str, unit: Option<Unit>, value: u64) -> fmt::Result {
        let metric = ConstCounter::new(value);
        metric.encode(self.0.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?)
    }
}
