//! What a long recovery logs while it reads: about once a second how far it has come.

use std::time::Duration;
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct OpenProgress {
    location: String,
    last: Instant,
}

impl OpenProgress {
    /// Time counts from here on: a short recovery logs nothing.
    pub(super) fn new(location: &str) -> OpenProgress {
        OpenProgress { location: location.to_owned(), last: Instant::now() }
    }

    /// `done` of `total` units are done; `what` names the unit and what happens.
    pub(super) fn at(&mut self, what: &'static str, done: u64, total: u64) {
        if self.is_due(Instant::now()) {
            tracing::info!(location = self.location, what, done, total, "opening");
        }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let due = now.saturating_duration_since(self.last) >= INTERVAL;
        if due {
            self.last = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_logged_about_once_a_second() {
        let mut progress = OpenProgress::new("here");
        let began = progress.last;
        let times = (0..100).map(|step| began + step * Duration::from_millis(50));
        assert_eq!(times.filter(|now| progress.is_due(*now)).count(), 4);
    }
}
