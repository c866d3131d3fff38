//! Sums over many runs, printed in a few lines.

use cairn_sim::harness::{FaultKind, Report, WATCH_EVENTS};
use std::collections::BTreeMap;

/// Sums over runs.
#[derive(Debug, Default)]
pub struct Summary {
    modes: BTreeMap<&'static str, (u64, u64)>,
    faults: BTreeMap<&'static str, u64>,
    outcomes: BTreeMap<&'static str, u64>,
    events: BTreeMap<&'static str, u64>,
    power_cuts: BTreeMap<&'static str, u64>,
    virtual_ms: u64,
    terms: u64,
    log_entries: u64,
    disk: cairn_disk::DiskStats,
}

impl Summary {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        let (passed, failed) = self.modes.entry(report.mode.name()).or_default();
        *(if report.passed() { passed } else { failed }) += 1;
        let sums = [&mut self.faults, &mut self.outcomes, &mut self.events];
        for (sums, parts) in
            sums.into_iter().zip([&report.faults, &report.outcomes, &report.events])
        {
            for (name, count) in parts {
                *sums.entry(name).or_default() += count;
            }
        }
        *self.power_cuts.entry(report.mode.name()).or_default() += report.power_cuts;
        self.virtual_ms += report.virtual_ms;
        self.terms += report.terms;
        self.log_entries += report.log_entries;
        self.disk.reads += report.disk.reads;
        self.disk.writes += report.disk.writes;
        self.disk.bytes_written += report.disk.bytes_written;
        self.disk.syncs += report.disk.syncs;
        self.disk.damage.add(report.disk.damage);
    }

    /// Runs that passed.
    pub fn passed(&self) -> u64 {
        self.modes.values().map(|(passed, _)| passed).sum()
    }

    /// Runs that failed.
    pub fn failed(&self) -> u64 {
        self.modes.values().map(|(_, failed)| failed).sum()
    }

    /// All runs.
    pub fn runs(&self) -> u64 {
        self.passed() + self.failed()
    }

    /// Kinds of faults that were never applied.
    pub fn never_applied(&self) -> Vec<&'static str> {
        let names = FaultKind::ALL.iter().map(|kind| kind.name());
        names.filter(|name| !self.faults.contains_key(name)).collect()
    }

    /// Events of watches that never happened.
    pub fn never_happened(&self) -> Vec<&'static str> {
        WATCH_EVENTS.into_iter().filter(|event| !self.events.contains_key(event)).collect()
    }

    /// Prints the sums.
    pub fn print(&self) {
        let list = |counts: &BTreeMap<&'static str, u64>| {
            counts
                .iter()
                .map(|(name, count)| format!("{name} {count}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let runs = self.runs().max(1);
        for (mode, (passed, failed)) in &self.modes {
            println!("{mode:<11} {passed} passed, {failed} failed");
        }
        println!("faults      {}", list(&self.faults));
        for (mode, cuts) in &self.power_cuts {
            println!("machine power cuts simulated in {mode} mode: {cuts}");
        }
        println!("requests    {}", list(&self.outcomes));
        println!("nodes       {}", list(&self.events));
        println!(
            "per run     {:.1} s of virtual time, {:.1} terms, {} log entries, {} disk writes, {} syncs",
            self.virtual_ms as f64 / 1e3 / runs as f64,
            self.terms as f64 / runs as f64,
            self.log_entries / runs,
            self.disk.writes / runs,
            self.disk.syncs / runs,
        );
        let damage = self.disk.damage;
        println!(
            "disks       unsynced blocks: {} kept, {} dropped; blocks in flight: {} landed, {} lost, {} torn",
            damage.kept, damage.dropped, damage.landed, damage.lost, damage.torn
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::Mode;

    #[test]
    fn events_of_watches_that_no_run_had_are_named() {
        let mut summary = Summary::default();
        let mut report = Report::empty(0, Mode::Sync);
        summary.add(&report);
        assert_eq!(summary.never_happened(), WATCH_EVENTS);
        report.events.extend(WATCH_EVENTS.map(|event| (event, 1)));
        summary.add(&report);
        assert!(summary.never_happened().is_empty());
    }
}
