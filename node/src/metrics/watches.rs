//! What is counted of watches.
//!
//! What holds here: a reason is one of those that the protocol has.

use cairn_client::proto::watch_ended::Why;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The counts of one node. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct WatchMetrics {
    open: Gauge,
    behind: Gauge,
    changes: Counter,
    ended: Family<WhyLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhyLabels {
    why: String,
}

impl WatchMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("watches", "Watches that have begun and not ended", self.open.clone());
        let behind = "Watches that are behind and read what was changed from the log";
        registry.register("watches_behind", behind, self.behind.clone());
        let changes = "Changes told to watches";
        registry.register("watch_changes", changes, self.changes.clone());
        let ended = "Watches that ended, or were refused, while their stream was open, by reason";
        registry.register("watch_ended", ended, self.ended.clone());
    }

    /// A watch began, or is gone.
    pub(crate) fn opened(&self, is: bool) {
        count(&self.open, is);
    }

    /// A watch is behind, or not any more.
    pub(crate) fn fell_behind(&self, is: bool) {
        count(&self.behind, is);
    }

    /// So many changes were told.
    pub(crate) fn told(&self, changes: usize) {
        self.changes.inc_by(u64::try_from(changes).unwrap_or(u64::MAX));
    }

    /// The client of a watch was told that it ended.
    pub(crate) fn ended(&self, why: Why) {
        let why = why.as_str_name().trim_start_matches("WHY_").to_lowercase();
        self.ended.get_or_create(&WhyLabels { why }).inc();
    }

    /// How many watches are open, and how many of them behind.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (i64, i64) {
        (self.open.get(), self.behind.get())
    }
}

fn count(gauge: &Gauge, more: bool) {
    match more {
        true => gauge.inc(),
        false => gauge.dec(),
    };
}
