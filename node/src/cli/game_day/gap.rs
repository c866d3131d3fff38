//! How long writes took, and how long there was none.

use cairn_client::Error;
use hdrhistogram::Histogram;
use std::time::Duration;
use tokio::time::Instant;

/// Longest latency that is recorded exactly, in microseconds.
const LATENCY_MAX_US: u64 = 120_000_000;
/// Digits of a latency that are exact.
const LATENCY_DIGITS: u8 = 3;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Acknowledged,
    /// It was not applied, and will not be.
    Refused,
    /// It may be applied, now or later.
    Unknown,
}

impl Outcome {
    pub(super) fn of<T>(result: &Result<T, Error>) -> Outcome {
        match result {
            Ok(_) => Outcome::Acknowledged,
            Err(error) if error.is_outcome_unknown() => Outcome::Unknown,
            Err(_) => Outcome::Refused,
        }
    }
}

/// What happened since it began.
#[derive(Debug)]
pub(super) struct Window {
    /// The last acknowledgement, or the begin.
    last: Instant,
    longest: Duration,
    /// Of acknowledged writes. `None`: it could not be made.
    latency_us: Option<Histogram<u64>>,
    acknowledged: u64,
    refused: u64,
    unknown: u64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Measured {
    pub(super) acknowledged: u64,
    /// Writes that were not applied.
    pub(super) refused: u64,
    /// Writes whose outcome is unknown.
    pub(super) unknown: u64,
    /// The longest time without an acknowledgement.
    pub(super) gap: Duration,
    /// Of acknowledged writes.
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

impl Window {
    pub(super) fn begin(now: Instant) -> Window {
        let latency_us = Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS).ok();
        let longest = Duration::ZERO;
        Window { last: now, longest, latency_us, acknowledged: 0, refused: 0, unknown: 0 }
    }

    /// A write ended.
    pub(super) fn saw(&mut self, began: Instant, now: Instant, outcome: Outcome) {
        match outcome {
            Outcome::Acknowledged => {
                self.pause_until(now);
                self.last = now;
                self.acknowledged += 1;
                let took = now.saturating_duration_since(began).as_micros();
                if let Some(latency) = &mut self.latency_us {
                    latency.saturating_record(u64::try_from(took).unwrap_or(LATENCY_MAX_US));
                }
            }
            Outcome::Unknown => self.unknown += 1,
            Outcome::Refused => self.refused += 1,
        }
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// What was measured until now.
    pub(super) fn end(&mut self, now: Instant) -> Measured {
        self.pause_until(now);
        let at = |quantile: f64| {
            let us = self.latency_us.as_ref().map_or(0, |all| all.value_at_quantile(quantile));
            Duration::from_micros(us)
        };
        Measured {
            acknowledged: self.acknowledged,
            refused: self.refused,
            unknown: self.unknown,
            gap: self.longest,
            p50: at(0.5),
            p99: at(0.99),
        }
    }

    fn pause_until(&mut self, now: Instant) {
        self.longest = self.longest.max(now.saturating_duration_since(self.last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_the_longest_time_without_an_acknowledgement_and_the_end_counts_too() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let mut window = Window::begin(zero);
        window.saw(at(0), at(10), Outcome::Acknowledged);
        window.saw(at(10), at(200), Outcome::Refused);
        window.saw(at(0), at(300), Outcome::Unknown);
        window.saw(at(300), at(310), Outcome::Acknowledged);
        let measured = window.end(at(400));
        assert_eq!(measured.gap, Duration::from_millis(300), "a refusal ends no gap");
        assert_eq!((measured.acknowledged, measured.refused, measured.unknown), (2, 1, 1));
        let about = Duration::from_millis(10);
        assert!(measured.p99.abs_diff(about) < Duration::from_millis(1), "{measured:?}");
        assert_eq!(window.end(at(900)).gap, Duration::from_millis(590));
        let silent = Window::begin(zero).end(at(50));
        assert_eq!((silent.gap, silent.p50), (Duration::from_millis(50), Duration::ZERO));
    }

    #[test]
    fn an_error_is_a_refusal_unless_the_outcome_is_unknown() {
        let unknown = Error::OutcomeUnknown { last_error: String::new(), source: None };
        assert_eq!(Outcome::of(&Ok(())), Outcome::Acknowledged);
        assert_eq!(Outcome::of::<()>(&Err(unknown)), Outcome::Unknown);
        let refused = Error::NoLeader { tried: Vec::new() };
        assert_eq!(Outcome::of::<()>(&Err(refused)), Outcome::Refused);
    }
}
