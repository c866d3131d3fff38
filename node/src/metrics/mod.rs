//! Every metric of a node. Names follow Prometheus' conventions: base units, `_seconds`, `_bytes`, and
//! `_total` for what is counted, or plain gauges.
//!
//! What holds here: counting never fails and never waits for I/O. Gauges are read from engine and
//! replica at scrape time. The values of each label are bounded: methods, codes, reasons, ports,
//! members.

mod backups;
mod connections;
mod gauges;
mod out;
mod process;
mod text;
mod watches;

use crate::admission::requests::Budgets;
use crate::admission::scans::Scans;
use crate::delay::Delay;
use crate::outage::ElectionBlockedState;
pub(crate) use backups::{BackupStatus, SharedBackupStatus};
use cairn_client::proto::ErrorDetail;
use cairn_client::proto::error_detail::Reason;
use cairn_raft::Replica;
use cairn_tls::Tls;
pub(crate) use connections::Connections;
use gauges::NodeGauges;
use process::Process;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tonic::{Code, Status};
pub(crate) use watches::WatchMetrics;

/// The codes of gRPC but `Ok`.
#[cfg_attr(madsim, allow(dead_code, reason = "the simulated world has no ports"))]
const FAILURES: RangeInclusive<i32> = 1..=16;

/// A method of the public service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Method {
    Hello,
    Write,
    Get,
    GetMany,
    List,
    Scan,
    Watch,
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

/// How many there are.
const METHODS: usize = Method::Backup as usize + 1;

impl Method {
    /// Its name in the audit.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Hello => "hello",
            Method::Write => "write",
            Method::Get => "get",
            Method::GetMany => "get-many",
            Method::List => "list",
            Method::Scan => "scan",
            Method::Watch => "watch",
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

/// How the requests of one method ended since the node started.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Answered {
    /// With code `Ok`.
    pub(crate) ok: u64,
    /// With another code.
    pub(crate) failed: u64,
    /// What all of them took together.
    pub(crate) seconds: f64,
}

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus' own text format, 0.0.4.
    #[cfg_attr(madsim, allow(dead_code, reason = "the simulated world has no ports"))]
    Text,
}

/// The counters of one node and the registry that renders them.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<OutcomeLabels, Counter>,
    refused: Family<ReasonLabels, Counter>,
    range_deleted: Counter,
    duration: Family<MethodLabels, Histogram>,
    /// The sums of `duration` by method, which tells them to no reader but a scrape.
    took_ns: [AtomicU64; METHODS],
    watches: WatchMetrics,
    delay: Arc<Delay>,
    scans: Scans,
    #[cfg_attr(madsim, allow(dead_code, reason = "the simulated world has no ports"))]
    connections: Connections,
}

impl Metrics {
    /// Metrics of a node with this replica and its engine, the state of blocked elections, the
    /// budgets for requests and reads, these certificates, the schedule of backups if it has one, and
    /// so long between syncs at most.
    pub(crate) fn new(
        replica: Replica,
        election_blocked_state: ElectionBlockedState,
        budgets: Budgets,
        tls: Option<Tls>,
        backups: Option<SharedBackupStatus>,
        sync_interval: Duration,
    ) -> Metrics {
        let mut all = Registry::default();
        let registry = all.sub_registry_with_prefix("cairn");
        let requests = Family::<OutcomeLabels, Counter>::default();
        let refused = Family::<ReasonLabels, Counter>::default();
        let duration = Family::<MethodLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.000_05, 2.0, 18))
        });
        let requests_help = "Requests answered, by method and gRPC code";
        registry.register("requests", requests_help, requests.clone());
        let refused_help = "Writes refused before anything was proposed, by reason";
        registry.register("proposals_refused", refused_help, refused.clone());
        let range_deleted = Counter::default();
        let range_help = "Keys that deletions of ranges deleted which this node answered";
        registry.register("range_deleted_keys", range_help, range_deleted.clone());
        let watches = WatchMetrics::default();
        watches.register(registry);
        let (help, unit) = ("Time to answer a request", Unit::Seconds);
        registry.register_with_unit("request_duration", help, unit, duration.clone());
        let (delay, connections) = (Arc::<Delay>::default(), Connections::default());
        let scans = Scans::default();
        let gauges = NodeGauges {
            replica,
            election_blocked_state,
            budgets,
            delay: Arc::clone(&delay),
            scans: scans.clone(),
            connections: connections.clone(),
            tls,
            backups,
            sync_interval,
        };
        registry.register_collector(Box::new(gauges));
        all.register_collector(Box::new(Process));
        let took_ns = Default::default();
        Metrics {
            registry: all,
            requests,
            refused,
            range_deleted,
            duration,
            took_ns,
            watches,
            delay,
            scans,
            connections,
        }
    }

    /// The scans that are open.
    pub(crate) fn scans(&self) -> &Scans {
        &self.scans
    }

    /// The delay of the main thread.
    pub(crate) fn delay(&self) -> Arc<Delay> {
        Arc::clone(&self.delay)
    }

    /// What is counted of watches.
    pub(crate) fn watches(&self) -> &WatchMetrics {
        &self.watches
    }

    /// Where each port says which slots of its connections are free.
    #[cfg_attr(madsim, allow(dead_code, reason = "the simulated world has no ports"))]
    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Counts a request that was answered, or failed with this status.
    pub(crate) fn request(&self, method: Method, failed: Option<&Status>, took: Duration) {
        let labels =
            OutcomeLabels { method, code: format!("{:?}", failed.map_or(Code::Ok, Status::code)) };
        self.requests.get_or_create(&labels).inc();
        self.duration.get_or_create(&MethodLabels { method }).observe(took.as_secs_f64());
        if let Some(sum) = self.took_ns.get(method as usize) {
            let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            sum.fetch_add(took_ns, Ordering::Relaxed);
        }
        if let Some(reason) = failed.filter(|_| method == Method::Write).and_then(refusal) {
            self.refused.get_or_create(&ReasonLabels { reason }).inc();
        }
    }

    /// Counts keys that the deletion of a range deleted.
    pub(crate) fn deleted_of_range(&self, keys: u32) {
        self.range_deleted.inc_by(u64::from(keys));
    }

    /// How the requests of this method ended: what `requests` and the sum of `request_duration` are.
    #[cfg_attr(madsim, allow(dead_code, reason = "the simulated world has no ports"))]
    pub(crate) fn answered(&self, method: Method) -> Answered {
        let ended = |code: Code| {
            let labels = OutcomeLabels { method, code: format!("{code:?}") };
            self.requests.get(&labels).map_or(0, |count| count.get())
        };
        let took = self.took_ns.get(method as usize);
        let took = took.map_or(0, |sum| sum.load(Ordering::Relaxed));
        Answered {
            ok: ended(Code::Ok),
            failed: FAILURES.map(Code::from_i32).map(ended).sum(),
            seconds: Duration::from_nanos(took).as_secs_f64(),
        }
    }

    /// All metrics.
    pub(crate) fn render(&self, format: Format) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(match format {
            Format::OpenMetrics => text,
            Format::Text => text::plain(&text),
        })
    }
}

/// Why a write was refused; `None` if it was proposed.
fn refusal(status: &Status) -> Option<String> {
    match ErrorDetail::of(status).map_or(Reason::Unspecified, |detail| detail.reason()) {
        Reason::OutcomeUnknown => None,
        Reason::Unspecified => Some("other".into()),
        reason => Some(reason.as_str_name().to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_refused_for_a_reason_unless_it_was_proposed() {
        let with = |reason: Reason| {
            let detail = ErrorDetail { reason: reason.into(), ..ErrorDetail::default() };
            refusal(&detail.into_status(Code::Unavailable, "no"))
        };
        assert_eq!(with(Reason::NoLeader).as_deref(), Some("no_leader"));
        assert_eq!(with(Reason::StorageFull).as_deref(), Some("storage_full"));
        assert_eq!(with(Reason::OutcomeUnknown), None);
        assert_eq!(refusal(&Status::internal("no detail")).as_deref(), Some("other"));
    }
}
