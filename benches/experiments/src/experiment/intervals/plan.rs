//! The sync settings to compare, and how long.

use super::super::Settings;
use crate::report::{count, size, time};
use cairn_engine::{KernelBootId, Mode, Options};
use std::time::Duration;

/// Bytes of a value.
pub(super) const VALUE_BYTES: usize = 4096;

/// How an engine syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub mode: Mode,
    pub interval: Duration,
    pub bytes: u64,
}

impl Setting {
    /// Cairn's default.
    pub const DEFAULT: Setting = Setting::pair(1000, 4);
    /// The mode that waits for a sync before each answer.
    pub const SYNC: Setting = Setting { mode: Mode::Sync, ..Setting::DEFAULT };

    const fn pair(interval_ms: u64, mib: u64) -> Setting {
        let interval = Duration::from_millis(interval_ms);
        Setting { mode: Mode::Replicated, interval, bytes: mib << 20 }
    }

    /// The default, the other pairs, and mode `sync`.
    fn all(quick: bool) -> Vec<Setting> {
        let mut all = vec![Setting::DEFAULT];
        for interval_ms in [100, 1000, 10_000] {
            for mib in [4, 64, 512] {
                let corner = interval_ms != 1000 && mib != 64;
                let pair = Setting::pair(interval_ms, mib);
                if pair != Setting::DEFAULT && (corner || !quick) {
                    all.push(pair);
                }
            }
        }
        all.push(Setting::SYNC);
        all
    }

    pub(super) fn name(&self) -> String {
        match self.mode {
            Mode::Sync => self.mode.name().to_owned(),
            mode => format!("{}, {}", mode.name(), self.pair_name()),
        }
    }

    pub(super) fn pair_name(&self) -> String {
        format!("{}, {}", time(self.interval), size(self.bytes))
    }

    pub(super) fn row(&self, clients: usize) -> String {
        format!("{}, {}", self.name(), count(clients, "client"))
    }

    pub(super) fn options(&self, boot: KernelBootId, boot_nonce: u64) -> Options {
        Options {
            sync_interval: self.interval,
            sync_bytes: self.bytes,
            ..Options::new(self.mode, boot, boot_nonce)
        }
    }

    /// Why the setting is not justified here.
    pub(super) fn refused(&self, settings: &Settings) -> Option<String> {
        settings.why_not(self.mode)
    }
}

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Bytes of the engine's directory.
    pub bytes: u64,
    pub settings: Vec<Setting>,
    /// The numbers of clients, the fewest first.
    pub clients: &'static [usize],
    pub warm_up: Duration,
    /// The measured time of a round.
    pub window: Duration,
    /// The same for a setting whose interval is longer than `window`. If the two differ, such a
    /// setting has one round.
    pub long_window: Duration,
    pub rounds: usize,
    /// The most time to write the keys.
    pub fill_limit: Duration,
    /// What a close and an open take at most.
    pub open_time: Duration,
}

impl Plan {
    /// The largest directory, however large the size chosen is.
    pub(super) const MOST_BYTES: u64 = 1 << 30;

    pub(super) fn new(settings: &Settings) -> Plan {
        let bytes = (settings.size_bytes / 2).min(Plan::MOST_BYTES);
        let (ms, secs) = (Duration::from_millis, Duration::from_secs);
        let settings = Setting::all(settings.quick);
        match settings.len() {
            6 => Plan {
                bytes,
                settings,
                clients: &[10, 100],
                warm_up: ms(100),
                window: ms(1200),
                long_window: ms(1200),
                rounds: 1,
                fill_limit: secs(1),
                open_time: ms(300),
            },
            _ => Plan {
                bytes,
                settings,
                clients: &[1, 10, 100, 1000],
                warm_up: ms(400),
                window: ms(2200),
                long_window: ms(10_400),
                rounds: 2,
                fill_limit: secs(5),
                open_time: secs(1),
            },
        }
    }

    /// The most time, on a disk that writes so many bytes in `fill`.
    pub(super) fn bound(&self, fill: impl Fn(u64) -> Duration) -> Duration {
        let setting = |setting: &Setting| {
            let cell = self.warm_up + self.window_of(setting);
            let round = self.open_time + cell * self.clients.len() as u32;
            round * self.rounds_of(setting) as u32
        };
        let rounds: Duration = self.settings.iter().map(setting).sum();
        fill(self.bytes) + self.fill_limit + self.open_time + rounds
    }

    pub(super) fn window_of(&self, setting: &Setting) -> Duration {
        if setting.interval > self.window { self.long_window } else { self.window }
    }

    pub(super) fn rounds_of(&self, setting: &Setting) -> usize {
        if self.window_of(setting) == self.window { self.rounds } else { 1 }
    }

    /// Applied log that the engine keeps. If only checkpoints sync, the data area holds up to twice
    /// as much log, and as much again that was purged and waits for two syncs.
    pub(super) fn retain_bytes(&self) -> u64 {
        (self.bytes / 10) >> 20 << 20
    }

    /// Whether a setting's bytes can begin a sync: a checkpoint, which syncs too, does not come
    /// before them.
    pub(super) fn bytes_act(&self, setting: &Setting) -> bool {
        setting.bytes <= self.retain_bytes()
    }

    /// A sixteenth of the directory holds values.
    pub(super) fn keys(&self) -> u64 {
        (self.bytes / 16 / VALUE_BYTES as u64).max(1)
    }

    pub(super) fn most_clients(&self) -> usize {
        self.clients.last().copied().unwrap_or(1)
    }

    pub(super) fn fewest_clients(&self) -> usize {
        self.clients.first().copied().unwrap_or(1)
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let retain = size(self.retain_bytes());
        let mut notes = vec![
            format!(
                "Each client puts with a probability of one half, else it gets; the values have 4 \
                 KiB and random bytes. `put rate` counts the puts alone, `rate × mean` both \
                 kinds. The engine runs without replication.",
            ),
            format!(
                "A sync here is one of the data area and one of the journal, whatever began it: \
                 the interval, the bytes, or a checkpoint. The engine's directory has {} and keeps \
                 about {retain} of log. A checkpoint is due after each {retain} of puts, and after \
                 each third of the journal, so settings of more unsynced bytes than that do not \
                 differ here, and say nothing about a default of fewer.",
                size(self.bytes)
            ),
            "A longer interval and more bytes leave more unsynced on each node when the power \
             goes. A gain in speed must be weighed against that."
                .to_owned(),
            "In mode `replicated` a put is answered when the write is completed, without a sync: \
             the copies on other nodes protect it from a power cut of one node. Here is one node, \
             so its durability is that of the write."
                .to_owned(),
        ];
        if self.long_window > self.window {
            notes.push(format!(
                "Settings of an interval above {} have one round of {}, all others {} rounds of \
                 {}.",
                time(self.window),
                time(self.long_window),
                self.rounds,
                time(self.window)
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::settings;

    #[test]
    fn the_default_is_that_of_the_engine() {
        let boot = cairn_engine::io::boot_id().unwrap();
        let default = Options::new(Mode::Replicated, boot, 1);
        assert_eq!(Setting::DEFAULT.interval, default.sync_interval);
        assert_eq!(Setting::DEFAULT.bytes, default.sync_bytes);
        assert_eq!(Setting::DEFAULT.row(1000), "replicated, 1 s, 4 MiB, 1,000 clients");
        assert_eq!(Setting::SYNC.row(1), "sync, 1 client");
    }

    #[test]
    fn a_quick_run_measures_the_corners_a_full_run_all_pairs() {
        let quick = Setting::all(true);
        let full = Setting::all(false);
        assert_eq!((quick.len(), full.len()), (6, 10));
        assert!(quick.iter().all(|setting| full.contains(setting)));
        let names: std::collections::BTreeSet<String> = full.iter().map(Setting::name).collect();
        assert_eq!(names.len(), full.len());
    }

    #[test]
    fn bytes_that_a_checkpoint_comes_before_do_not_act() {
        let plan = |size_bytes, quick| Plan::new(&Settings { size_bytes, quick, ..settings() });
        assert!(!plan(64 << 20, true).bytes_act(&Setting::DEFAULT));
        let quick = plan(Settings::QUICK_SIZE, true);
        assert!(quick.bytes_act(&Setting::DEFAULT) && !quick.bytes_act(&Setting::pair(1000, 512)));
        let full = plan(Settings::DEFAULT_SIZE, false);
        assert!(full.bytes_act(&Setting::DEFAULT) && !full.bytes_act(&Setting::pair(1000, 512)));
    }

    #[test]
    fn a_window_is_longer_than_the_interval_in_a_full_run() {
        let plan = Plan::new(&Settings { quick: false, ..settings() });
        for setting in &plan.settings {
            assert!(plan.window_of(setting) > setting.interval);
        }
        assert_eq!(plan.rounds_of(&Setting::pair(10_000, 4)), 1);
        assert_eq!(plan.rounds_of(&Setting::SYNC), plan.rounds);
    }
}
