//! Writes metrics that are read when somebody asks for them.

use cairn_engine::LatencyCounts;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::time::Duration;

pub(super) struct Out<'a, 'b>(pub(super) &'a mut DescriptorEncoder<'b>);

impl Out<'_, '_> {
    pub(super) fn metric(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        metric: impl EncodeMetric,
    ) -> fmt::Result {
        metric.encode(self.0.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.metric(name, help, None, ConstGauge::new(value))
    }

    pub(super) fn flag(&mut self, name: &str, help: &str, value: bool) -> fmt::Result {
        self.gauge(name, help, u64::from(value))
    }

    pub(super) fn bytes(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.metric(name, help, Some(Unit::Bytes), ConstGauge::new(value))
    }

    pub(super) fn seconds(&mut self, name: &str, help: &str, value: Duration) -> fmt::Result {
        self.metric(name, help, Some(Unit::Seconds), ConstGauge::new(value.as_secs_f64()))
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.metric(name, help, None, ConstCounter::new(value))
    }

    pub(super) fn counted_bytes(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.metric(name, help, Some(Unit::Bytes), ConstCounter::new(value))
    }

    /// One gauge for each value of a label.
    pub(super) fn gauges(
        &mut self,
        (name, unit): (&str, Option<Unit>),
        help: &str,
        label: &str,
        values: &[(&str, u64)],
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (of, value) in values {
            let labels = [(label, *of)];
            ConstGauge::new(*value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// The same, of seconds.
    pub(super) fn many_seconds(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (String, Duration)>,
    ) -> fmt::Result {
        let (unit, kind) = (Unit::Seconds, MetricType::Gauge);
        let mut family = self.0.encode_descriptor(name, help, Some(&unit), kind)?;
        for (of, value) in values {
            let labels = [(label, of)];
            ConstGauge::new(value.as_secs_f64()).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// One counter for each value of a label.
    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (String, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (of, value) in values {
            let labels = [(label, of)];
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// One histogram of seconds for each value of a label; without a label a single one.
    pub(super) fn latencies(
        &mut self,
        name: &str,
        help: &str,
        values: &[(Option<(&str, &str)>, &LatencyCounts)],
    ) -> fmt::Result {
        let (unit, kind) = (Unit::Seconds, MetricType::Histogram);
        let mut family = self.0.encode_descriptor(name, help, Some(&unit), kind)?;
        for (label, counts) in values {
            let bound = |bound: Option<Duration>| bound.map_or(f64::INFINITY, |b| b.as_secs_f64());
            let buckets: Vec<(f64, u64)> =
                counts.buckets.iter().map(|(up_to, count)| (bound(*up_to), *count)).collect();
            let (sum, count) = (counts.sum.as_secs_f64(), buckets.iter().map(|(_, n)| n).sum());
            let labels = label.map(|label| [label]);
            match &labels {
                Some(labels) => {
                    let mut one = family.encode_family(labels)?;
                    one.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
                None => family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?,
            }
        }
        Ok(())
    }
}
