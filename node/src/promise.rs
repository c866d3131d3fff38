//! What each mode promises, in one sentence each. `cairn doctor` and `cairn status` print these
//! sentences, and a test compares the documents with them. They are written nowhere else.

use crate::config::{StorageConfig, format_size};
use cairn_engine::{Mode, UNSYNCED_PER_SYNC};
use std::fmt;
use std::time::Duration;

/// The newest acknowledged writes that a background sync may not have covered yet: those of this
/// time, or of [`UNSYNCED_PER_SYNC`] times this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncWindow {
    /// `storage.sync_interval`.
    pub interval: Duration,
    /// `storage.sync_bytes`.
    pub bytes: u64,
}

impl SyncWindow {
    /// From the last acknowledgement until everything is synced, at most this long beyond the
    /// interval.
    const IDLE_MARGIN: Duration = Duration::from_millis(300);

    /// The window of a node with this configuration.
    pub fn of(storage: &StorageConfig) -> SyncWindow {
        SyncWindow { interval: storage.sync_interval, bytes: storage.sync_bytes }
    }
}

impl Default for SyncWindow {
    fn default() -> SyncWindow {
        SyncWindow { interval: Duration::from_secs(1), bytes: 4 << 20 }
    }
}

impl fmt::Display for SyncWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = format_size(self.bytes.saturating_mul(UNSYNCED_PER_SYNC));
        let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = Some(size.trim_start_matches(digits)).filter(|unit| !unit.is_empty());
        write!(f, "{} or {digits} {}", seconds(self.interval), unit.unwrap_or("bytes"))
    }
}

fn seconds(time: Duration) -> String {
    match time < Duration::from_secs(1) {
        true => format!("{} ms", time.as_millis()),
        false => format!("{} s", time.as_secs_f64()),
    }
}

/// The sentence of a mode.
pub fn sentence(mode: Mode, window: SyncWindow) -> String {
    match mode {
        Mode::Device => {
            "an acknowledged write is on the devices of a majority of the voters, which keep completed writes through a power \
             cut: nothing is lost, even when all machines lose power at once"
                .into()
        }
        Mode::Replicated => format!(
            "an acknowledged write is on the devices of a majority of the voters and synced in the background: nothing is lost \
             when one machine loses power, when machines lose it one after another, or when all lose it while idle ({} after \
             the last acknowledgement); when a majority loses it at once under load, the cluster stops and says so, and up to \
             {window} of acknowledged writes may be lost",
            seconds(window.interval + SyncWindow::IDLE_MARGIN)
        ),
        Mode::Sync => {
            "an acknowledged write is synced on a majority of the voters: nothing is lost, even when all machines lose power at \
             once"
                .into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_that_of_the_configuration() {
        let window = SyncWindow { interval: Duration::from_millis(250), bytes: 3 << 20 };
        assert_eq!(window.to_string(), "250 ms or 48 MiB");
        let said = sentence(Mode::Replicated, window);
        assert!(
            said.contains("(550 ms after") && said.contains("up to 250 ms or 48 MiB of"),
            "{said}"
        );
        assert_eq!(SyncWindow::default().to_string(), "1 s or 64 MiB");
        assert_eq!(
            SyncWindow { bytes: (1 << 20) + 1, ..window }.to_string(),
            "250 ms or 16777232 bytes"
        );
    }

    #[test]
    fn the_safety_document_says_the_same_sentences() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let document = words(include_str!("../../docs/safety.md"));
        for mode in [Mode::Device, Mode::Replicated, Mode::Sync] {
            let said = format!("- `{mode}`: {}.", words(&sentence(mode, SyncWindow::default())));
            assert!(document.contains(&said), "docs/safety.md does not say: {said}");
        }
    }
}
