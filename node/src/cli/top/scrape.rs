//! What a node's HTTP port tells, as far as `cairn top` shows it: who answers (`/status.json`), and its
//! counters (`/metrics`).
//!
//! What holds here: every list has a bound. Text of labels stays as it came, and is made safe where it is
//! shown.

use super::super::http::HttpReader;
use anyhow::Context;
use serde_json::Value;
use std::time::Duration;

/// The most bytes of an answer. A node's own bound for the status is lower.
const ANSWER_BYTES: usize = 4 << 20;
/// The most parts of space or memory that are kept, and buckets of a histogram.
const PARTS: usize = 32;
const BUCKETS: usize = 64;

/// What one node told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scrape {
    /// Its identity, as `/status.json` writes it.
    pub(super) node_id: String,
    pub(super) puts: Requests,
    pub(super) gets: Requests,
    pub(super) resident_bytes: Option<u64>,
    /// Bounded memory, by what holds it.
    pub(super) memory: Vec<(String, u64)>,
    /// The data area, by what its bytes are.
    pub(super) space: Vec<(String, u64)>,
    pub(super) applied_lag: Option<Duration>,
}

/// Requests of one method since the node started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Requests {
    /// Those that were done.
    pub(super) done: u64,
    /// How long they took: the bound of each bucket, none for the last, and how many took at most so long.
    pub(super) buckets: Vec<(Option<Duration>, u64)>,
}

/// Asks the HTTP port at this address.
///
/// # Errors
/// Why it told nothing, with the address.
pub(super) async fn ask(http: &HttpReader, address: &str) -> Result<Scrape, String> {
    let status = read(http, address, "/status.json").await?;
    let metrics = read(http, address, "/metrics").await?;
    Scrape::of(&status, &metrics).ok_or_else(|| {
        format!("http port {address}, /status.json: it does not say which node of Cairn answers")
    })
}

async fn read(http: &HttpReader, address: &str, path: &str) -> Result<String, String> {
    let answer = http.get(address, path, ANSWER_BYTES).await;
    let text =
        answer.and_then(|answer| answer.good().context(format!("http port {address}, {path}")));
    text.map_err(|error| format!("{error:#}"))
}

impl Scrape {
    /// Of both answers; `None`, if they do not say which node it is.
    fn of(status: &str, metrics: &str) -> Option<Scrape> {
        let status: Value = serde_json::from_str(status).ok()?;
        let node_id = status.pointer("/node/node_id")?.as_str()?.to_owned();
        let mut scrape = Scrape { node_id, ..Scrape::default() };
        for sample in metrics.lines().filter_map(Sample::of) {
            scrape.add(&sample);
        }
        Some(scrape)
    }

    fn add(&mut self, sample: &Sample<'_>) {
        let Sample { name, value, .. } = *sample;
        let requests = match sample.label("method") {
            Some("Write") => Some(&mut self.puts),
            Some("Get") => Some(&mut self.gets),
            _ => None,
        };
        match (name, requests) {
            ("cairn_requests_total", Some(requests)) if sample.label("code") == Some("Ok") => {
                requests.done = whole(value);
            }
            ("cairn_request_duration_seconds_bucket", Some(requests)) => {
                let bound = sample.label("le").and_then(seconds);
                if requests.buckets.len() < BUCKETS {
                    requests.buckets.push((bound, whole(value)));
                }
            }
            ("cairn_memory_bytes", _) => part(&mut self.memory, sample.label("owner"), value),
            ("cairn_data_use_bytes", _) => part(&mut self.space, sample.label("part"), value),
            ("process_resident_memory_bytes", _) => self.resident_bytes = Some(whole(value)),
            ("cairn_applied_lag_seconds", _) => self.applied_lag = seconds(value),
            _ => {}
        }
    }
}

impl Requests {
    /// Those since `before`; `None`, if the node has begun to count anew.
    pub(super) fn since(&self, before: &Requests) -> Option<Requests> {
        let done = self.done.checked_sub(before.done)?;
        let earlier = |bound: &Option<Duration>| {
            let found = before.buckets.iter().find(|(other, _)| other == bound);
            found.map_or(0, |(_, count)| *count)
        };
        let since = |(bound, count): &(Option<Duration>, u64)| {
            Some((*bound, count.checked_sub(earlier(bound))?))
        };
        let buckets: Option<Vec<_>> = self.buckets.iter().map(since).collect();
        Some(Requests { done, buckets: buckets? })
    }

    /// The same, and those of another node.
    pub(super) fn and(mut self, other: &Requests) -> Requests {
        self.done = self.done.saturating_add(other.done);
        for (bound, count) in &other.buckets {
            match self.buckets.iter_mut().find(|(known, _)| known == bound) {
                Some((_, all)) => *all = all.saturating_add(*count),
                None => self.buckets.push((*bound, *count)),
            }
        }
        self
    }

    /// At most how long so many of a hundred took: the bound of their bucket. Of those beyond the last bound
    /// it is that one.
    pub(super) fn percentile(&self, percent: u64) -> Option<Duration> {
        let all = self.buckets.iter().map(|(_, count)| *count).max().filter(|all| *all > 0)?;
        let rank = all.saturating_mul(percent).div_ceil(100);
        let enough = self.buckets.iter().filter(|(_, count)| *count >= rank);
        let bounds = enough.filter_map(|(bound, _)| *bound);
        bounds.min().or_else(|| self.buckets.iter().filter_map(|(bound, _)| *bound).max())
    }
}

/// One line of the text format.
#[derive(Clone, Copy)]
struct Sample<'t> {
    name: &'t str,
    labels: &'t str,
    value: &'t str,
}

impl<'t> Sample<'t> {
    fn of(line: &'t str) -> Option<Sample<'t>> {
        if line.starts_with('#') {
            return None;
        }
        let (series, value) = line.trim_end().rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some(Sample { name, labels: labels.trim_end_matches('}'), value })
    }

    fn label(&self, name: &str) -> Option<&'t str> {
        self.labels.split(',').find_map(|label| {
            let (found, value) = label.split_once('=')?;
            (found == name).then(|| value.trim_matches('"'))
        })
    }
}

/// A whole number; 0, if it is none.
fn whole(value: &str) -> u64 {
    let digits = value.split_once('.').map_or(value, |(digits, _)| digits);
    digits.parse().unwrap_or_default()
}

/// `None` for `+Inf`, and for what is no time.
fn seconds(value: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(value.parse().ok()?).ok()
}

fn part(parts: &mut Vec<(String, u64)>, name: Option<&str>, value: &str) {
    if let Some(name) = name.filter(|_| parts.len() < PARTS) {
        parts.push((name.to_owned(), whole(value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r#"{ "format": 1, "node": { "slot": 2, "node_id": "2.a" } }"#;
    const METRICS: &str = "# TYPE cairn_requests_total counter\n\
        cairn_requests_total{method=\"Write\",code=\"Ok\"} 100\n\
        cairn_requests_total{method=\"Write\",code=\"Unavailable\"} 7\n\
        cairn_requests_total{method=\"Get\",code=\"Ok\"} 40\n\
        cairn_request_duration_seconds_bucket{le=\"0.001\",method=\"Write\"} 50\n\
        cairn_request_duration_seconds_bucket{le=\"0.002\",method=\"Write\"} 98\n\
        cairn_request_duration_seconds_bucket{le=\"0.004\",method=\"Write\"} 99\n\
        cairn_request_duration_seconds_bucket{le=\"+Inf\",method=\"Write\"} 100\n\
        cairn_memory_bytes{owner=\"reads\"} 4096\n\
        cairn_data_use_bytes{part=\"live\"} 1024\n\
        process_resident_memory_bytes 65536\n\
        cairn_applied_lag_seconds 0.25\n";

    fn scraped(metrics: &str) -> Scrape {
        Scrape::of(STATUS, metrics).expect("a node")
    }

    #[test]
    fn what_is_shown_is_found_by_its_name_and_labels() {
        let found = scraped(METRICS);
        assert_eq!((found.node_id.as_str(), found.puts.done, found.gets.done), ("2.a", 100, 40));
        assert_eq!(found.memory, [("reads".to_owned(), 4096)]);
        assert_eq!(found.space, [("live".to_owned(), 1024)]);
        assert_eq!(found.resident_bytes, Some(65_536));
        assert_eq!(found.applied_lag, Some(Duration::from_millis(250)));
        assert_eq!(Scrape::of("{}", METRICS), None);
        assert_eq!(Scrape::of("no JSON", METRICS), None);
    }

    #[test]
    fn a_percentile_is_the_bound_of_the_bucket_in_which_it_lies() {
        let puts = scraped(METRICS).puts;
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!([50, 51, 99, 100].map(|of| puts.percentile(of)), [ms(1), ms(2), ms(4), ms(4)]);
        assert_eq!(Requests::default().percentile(99), None);
        let both = puts.clone().and(&puts);
        assert_eq!((both.done, both.percentile(50)), (200, ms(1)));
    }

    #[test]
    fn requests_since_an_earlier_answer_are_none_after_a_restart() {
        let now = scraped(METRICS).puts;
        let since = now.since(&Requests::default()).expect("later");
        assert_eq!(since, now);
        let nothing = now.since(&now).expect("later");
        assert_eq!((nothing.done, nothing.percentile(50)), (0, None));
        assert_eq!(Requests::default().since(&now), None);
    }

    /// A node may send anything.
    #[test]
    fn lines_that_are_no_samples_are_left_out_and_lists_have_bounds() {
        let many = "cairn_memory_bytes{owner=\"x\"} 1\n".repeat(1000);
        let buckets =
            "cairn_request_duration_seconds_bucket{method=\"Get\",le=\"1\"} 1\n".repeat(1000);
        let odd = "cairn_requests_total{method=\"Get\",code=\"Ok\"} -1\n}{= x\n\n \u{1b}[2J\n=\"\n";
        let found = scraped(&format!("{many}{buckets}{odd}"));
        assert_eq!((found.memory.len(), found.gets.buckets.len()), (PARTS, BUCKETS));
        assert_eq!(found.gets.done, 0);
    }
}
