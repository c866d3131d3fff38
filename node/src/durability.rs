//! The mode with which a node forms a cluster: the configured one if the doctor does not refuse it,
//! or else the strongest mode that the doctor justifies for the directory and the number of voters.
//! Later the log says what acknowledgements mean, and the node only says what its disk allows.
//!
//! What holds here: a node never runs in a mode that the doctor refuses. The operator's assertion
//! of the device contract is used only if the machine does not show the contract, and is then
//! reported as an assertion.

use crate::config::NodeConfig;
use crate::doctor::{self, ASSERTION, Contract, MODES, Plan, Reason, Report};
use crate::error::Error;
use crate::promise::{self, SyncWindow};
use cairn_client::Chosen;
use cairn_engine::Mode;
use cairn_raft::Replica;

/// The mode, and how it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durability {
    /// What an acknowledgement promises, until the log says it.
    pub mode: Mode,
    /// The laxest that it may promise on this machine, whatever the log says.
    pub bound: Mode,
    /// Who chose the mode.
    pub chosen: Chosen,
    /// In mode `device`, how its contract is known to hold.
    pub contract: Option<Contract>,
    /// What the promise relies on although the machine does not show it.
    pub warnings: Vec<Reason>,
    /// The stronger modes that the doctor refused, with the reasons; empty if the operator chose
    /// the mode.
    pub passed_over: Vec<(Mode, Vec<Reason>)>,
    /// How much a background sync may be behind.
    pub window: SyncWindow,
}

impl Durability {
    /// The mode of this configuration on this machine.
    ///
    /// # Errors
    /// `ModeRefused` and `NothingJustified`, with the reasons and what to do; `Doctor`, if the path
    /// of the data directory is not a directory.
    pub fn of(config: &NodeConfig) -> Result<Durability, Error> {
        let plan = Plan {
            voters: config.voters(),
            size_bytes: Some(config.storage.size_bytes),
            contract_asserted: config.storage.assert_device_contract,
            window: SyncWindow::of(&config.storage),
            memory: None,
        };
        let report = doctor::examine(&config.data_directory, plan)?;
        let durability = Durability::judged(config.mode, &report)?;
        Ok(Durability { window: SyncWindow::of(&config.storage), ..durability })
    }

    /// The mode if there is no machine to examine, as in the simulation: the configured one, or
    /// else the one that the number of voters allows.
    pub fn unexamined(config: &NodeConfig) -> Durability {
        let (mode, chosen) = match config.mode {
            Some(mode) => (mode, Chosen::Configured),
            None if config.voters() >= 3 => (Mode::Replicated, Chosen::Auto),
            None => (Mode::Sync, Chosen::Auto),
        };
        Durability {
            mode,
            bound: bound(mode, true),
            chosen,
            contract: None,
            warnings: Vec::new(),
            passed_over: Vec::new(),
            window: SyncWindow::of(&config.storage),
        }
    }

    fn judged(asked: Option<Mode>, report: &Report) -> Result<Durability, Error> {
        let verdict = &report.verdict;
        let directory = report.facts.location.asked.display().to_string();
        let Some(strongest) = verdict.mode else {
            let reasons = sentences(&verdict.of(Mode::Sync).refusals, true);
            return Err(Error::NothingJustified { directory, reasons });
        };
        let mode = asked.unwrap_or(strongest);
        let judgement = verdict.of(mode);
        if !judgement.justified() {
            let reasons = sentences(&judgement.refusals, mode != Mode::Device);
            let way_out = way_out(mode, strongest, &judgement.refusals);
            return Err(Error::ModeRefused { mode, directory, reasons, way_out });
        }
        let stronger =
            MODES.into_iter().take_while(|stronger| *stronger != mode && asked.is_none());
        // Not the number of voters, which may change.
        let refusals = &verdict.of(Mode::Replicated).refusals;
        let allows = refusals.iter().all(|reason| *reason == Reason::FewVoters);
        Ok(Durability {
            bound: bound(mode, allows),
            passed_over: stronger.map(|mode| (mode, verdict.of(mode).refusals.clone())).collect(),
            mode,
            chosen: if asked.is_some() { Chosen::Configured } else { Chosen::Auto },
            contract: verdict.contract.filter(|_| mode == Mode::Device),
            warnings: judgement.warnings.clone(),
            window: SyncWindow::default(),
        })
    }

    /// The log lines about the modes that were refused.
    pub fn remarks(&self) -> Vec<String> {
        let passed_over = self.passed_over.iter();
        passed_over
            .map(|(mode, reasons)| {
                format!("`{mode}` is not justified here: {}", sentences(reasons, false))
            })
            .collect()
    }

    /// The mode, how it was chosen and, for `device`, how its contract is known, in a few words.
    pub fn words(&self) -> String {
        words(self.mode.name(), self.chosen.name(), self.contract.map(Contract::words))
    }

    /// The same, and what the mode promises.
    pub fn promise(&self) -> String {
        format!("{}: {}", self.words(), promise::sentence(self.mode, self.window))
    }
}

/// The laxest mode on a machine: in `sync` an operator may later choose `replicated`, where the disk
/// allows that.
fn bound(mode: Mode, allows_replicated: bool) -> Mode {
    match mode {
        Mode::Sync if allows_replicated => Mode::Replicated,
        mode => mode,
    }
}

/// What acknowledgements mean now: what the log asks for, unless the engine promises more. The engine
/// does so after a device withdrew its contract.
pub(crate) fn in_force(replica: &Replica, engine: Mode) -> Mode {
    match engine {
        Mode::Sync => Mode::Sync,
        _ => replica.modes().effective,
    }
}

/// The same, from the names in a status.
pub fn words(mode: &str, chosen: &str, contract: Option<&str>) -> String {
    match contract {
        Some(contract) => format!("{mode}, {chosen}, {contract}"),
        None => format!("{mode}, {chosen}"),
    }
}

fn sentences(reasons: &[Reason], with_ways_out: bool) -> String {
    let one = |reason: &Reason| match with_ways_out {
        true => format!("{} ({})", reason.sentence(), reason.way_out()),
        false => reason.sentence().to_string(),
    };
    reasons.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// What an operator can do about a configured mode that is refused.
fn way_out(mode: Mode, strongest: Mode, refusals: &[Reason]) -> String {
    let here = format!("use mode = \"auto\", which runs `{strongest}` here");
    if mode == Mode::Device && refusals.iter().all(|reason| reason.can_be_asserted_away()) {
        return format!("{here}, or, {ASSERTION}");
    }
    here
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report on a machine on which everything is good, except for one change.
    fn report(
        voters: usize,
        contract_asserted: bool,
        change: impl Fn(&mut doctor::Aspects),
    ) -> Report {
        let directory = tempfile::tempdir().expect("a folder");
        let window = SyncWindow::default();
        let plan = Plan { voters, size_bytes: None, contract_asserted, window, memory: None };
        let mut report = doctor::examine(directory.path(), plan).expect("a folder");
        report.aspects = doctor::Aspects {
            kernel_supported: true,
            writable: true,
            medium: doctor::Medium::Drive,
            cache: doctor::Cache::None,
            atomicity: doctor::Atomicity::Whole,
            overwrite: doctor::FilesystemKind::InPlace,
            mapping: doctor::Mapping::Whole,
            transfer: doctor::Transfer::Direct,
            flush: doctor::Flush::Sent,
        };
        change(&mut report.aspects);
        report.verdict = doctor::judge(&report.aspects, voters, contract_asserted);
        report
    }

    fn laptop(aspects: &mut doctor::Aspects) {
        aspects.cache = doctor::Cache::Volatile;
    }

    fn btrfs(aspects: &mut doctor::Aspects) {
        aspects.overwrite = doctor::FilesystemKind::CopyOnWrite;
    }

    fn mode(asked: Option<Mode>, report: &Report) -> String {
        Durability::judged(asked, report)
            .map_or_else(|error| error.to_string(), |found| found.words())
    }

    #[test]
    fn auto_takes_the_strongest_mode_that_is_justified() {
        assert_eq!(mode(None, &report(3, false, |_| {})), "device, auto, shown by the machine");
        assert_eq!(mode(None, &report(3, false, laptop)), "replicated, auto");
        assert_eq!(mode(None, &report(2, false, laptop)), "sync, auto");
        assert_eq!(mode(None, &report(3, false, btrfs)), "sync, auto");
        assert_eq!(mode(None, &report(3, true, laptop)), "device, auto, asserted by the operator");
        assert_eq!(mode(None, &report(3, true, |_| {})), "device, auto, shown by the machine");
        let found = Durability::judged(None, &report(2, false, laptop)).expect("some mode");
        let expected = [
            (Mode::Device, vec![Reason::VolatileCache]),
            (Mode::Replicated, vec![Reason::FewVoters]),
        ];
        assert_eq!(found.passed_over, expected);
    }

    #[test]
    fn a_weaker_mode_may_be_configured() {
        assert_eq!(mode(Some(Mode::Sync), &report(3, false, |_| {})), "sync, configured");
        assert_eq!(
            mode(Some(Mode::Replicated), &report(3, false, |_| {})),
            "replicated, configured"
        );
    }

    #[test]
    fn device_without_its_contract_is_refused_with_the_statement_as_a_way_out() {
        let error = mode(Some(Mode::Device), &report(3, false, laptop));
        for words in [
            "mode `device` is refused",
            "volatile write cache",
            "storage.assert_device_contract = true",
        ] {
            assert!(error.contains(words), "{error}");
        }
        let stated = mode(Some(Mode::Device), &report(3, true, laptop));
        assert_eq!(stated, "device, configured, asserted by the operator");
    }

    #[test]
    fn what_no_statement_changes_offers_none() {
        for asserted in [false, true] {
            let error = mode(Some(Mode::Device), &report(3, asserted, btrfs));
            assert!(
                error.contains("copies on write") && !error.contains("assert_device"),
                "{error}"
            );
            assert!(error.contains("runs `sync` here"), "{error}");
        }
        let error = mode(Some(Mode::Replicated), &report(3, false, btrfs));
        assert!(
            error.contains("mode `replicated` is refused") && error.contains("ext4 or XFS"),
            "{error}"
        );
    }

    #[test]
    fn where_nothing_is_justified_nothing_runs() {
        let dropped = report(3, true, |aspects| aspects.flush = doctor::Flush::Dropped);
        for asked in [None, Some(Mode::Sync), Some(Mode::Device)] {
            let error = mode(asked, &dropped);
            assert!(
                error.contains("no mode's promise can be kept") && error.contains("volatile"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_could_not_be_seen_is_warned_of_and_runs() {
        let opaque = report(3, false, |aspects| {
            aspects.medium = doctor::Medium::Unknown;
            aspects.cache = doctor::Cache::Unknown;
            aspects.mapping = doctor::Mapping::Unknown;
        });
        let found = Durability::judged(Some(Mode::Replicated), &opaque).expect("warned of only");
        assert_eq!(found.warnings, [Reason::DeviceUnknown, Reason::ExtentsUnknown]);
    }
}
