//! The result of one run.

use super::missing::Missing;
use cairn_clients::Violation;
use cairn_disk::DiskStats;
use cairn_engine::Mode;
use std::collections::BTreeMap;

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Its mode.
    pub mode: Mode,
    /// The violations; empty if the run passed.
    pub violations: Vec<Violation>,
    /// The hash of the trace.
    pub trace_hash: u64,
    /// The trace.
    pub trace: Vec<String>,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// Requests by kind of outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Events of the nodes, by kind.
    pub events: BTreeMap<&'static str, u64>,
    /// Power cuts, one for each machine that lost power.
    pub power_cuts: u64,
    /// The statistics of all disks together.
    pub disk: DiskStats,
    /// Terms that had a leader.
    pub terms: u64,
    /// Log ids that were seen.
    pub log_entries: u64,
    /// Who was missing in an operator's unsafe recoveries.
    pub(super) missing: Missing,
}

impl Report {
    /// A report of a run that has not begun.
    pub fn empty(seed: u64, mode: Mode) -> Report {
        Report {
            seed,
            mode,
            violations: Vec::new(),
            trace_hash: 0,
            trace: Vec::new(),
            virtual_ms: 0,
            outcomes: BTreeMap::new(),
            faults: BTreeMap::new(),
            events: BTreeMap::new(),
            power_cuts: 0,
            disk: DiskStats::default(),
            terms: 0,
            log_entries: 0,
            missing: Missing::none(),
        }
    }

    /// Whether everything held.
    pub fn passed(&self) -> bool {
        self.violations.is_empty()
    }
}
