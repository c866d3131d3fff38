//! The report, for people and for programs: findings, verdict, and what would make it stronger.

use super::Plan;
use super::aspects::aspects;
use super::facts::Facts;
use super::findings::{Finding, findings};
use super::reason::Reason;
use super::verdict::{Aspects, Contract, MODES, Verdict, judge};
use crate::promise;
use cairn_engine::Mode;
use serde_json::{Value, json};

/// The doctor's report on a directory.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was found.
    pub facts: Facts,
    /// The planned use of the directory.
    pub plan: Plan,
    /// The aspects that decide the verdict.
    pub aspects: Aspects,
    /// The verdict.
    pub verdict: Verdict,
}

impl Report {
    /// Judges the facts.
    pub fn new(facts: Facts, plan: Plan) -> Report {
        let aspects = aspects(&facts);
        let verdict = judge(&aspects, plan.voters, plan.contract_asserted);
        Report { facts, plan, aspects, verdict }
    }

    /// The findings, one per line.
    pub fn findings(&self) -> Vec<Finding> {
        findings(&self.facts, self.plan.size_bytes)
    }

    /// Modes stronger than the verdict, with what refuses each.
    fn stronger(&self) -> Vec<(Mode, &[Reason])> {
        MODES
            .into_iter()
            .take_while(|mode| Some(*mode) != self.verdict.mode)
            .map(|mode| (mode, self.verdict.of(mode).refusals.as_slice()))
            .collect()
    }

    fn warnings(&self) -> &[Reason] {
        self.verdict.mode.map_or(&[], |mode| &self.verdict.of(mode).warnings)
    }

    /// The verdict and its reasons, one per line.
    pub fn conclusion(&self) -> Vec<String> {
        let voters = match self.plan.voters {
            1 => "1 voter".to_string(),
            voters => format!("{voters} voters"),
        };
        let mut lines = match self.verdict.mode {
            Some(mode) => {
                let contract = match (mode, self.verdict.contract) {
                    (Mode::Device, Some(contract)) => {
                        format!(", its contract {}", contract.words())
                    }
                    _ => String::new(),
                };
                vec![
                    format!("verdict: {mode} (for {voters}{contract})"),
                    format!("  {}", promise::sentence(mode)),
                ]
            }
            None => {
                vec![format!("verdict: none (for {voters}): no mode's promise can be kept here")]
            }
        };
        for warning in self.warnings() {
            lines.push(format!("  warning: {}", warning.sentence()));
        }
        let can_be_asserted =
            |refusals: &[Reason]| refusals.iter().all(|reason| reason.can_be_asserted_away());
        for (mode, refusals) in self.stronger() {
            lines.push(format!("not {mode}:"));
            for reason in refusals {
                lines.push(format!("  {}; {}", reason.sentence(), reason.way_out()));
            }
            if mode == Mode::Device && can_be_asserted(refusals) {
                lines.push(
                    "  or, if you know that the device keeps completed writes through a power cut and writes 4 KiB \
                     atomically, assert it with storage.assert_device_contract = true"
                        .into(),
                );
            }
        }
        lines
    }

    /// The whole report, for programs.
    pub fn json(&self) -> Value {
        let location = &self.facts.location;
        json!({
            "directory": location.asked.display().to_string(),
            "examined": location.examined.display().to_string(),
            "state": state_name(location.state),
            "voters": self.plan.voters,
            "findings": self.findings().iter().map(finding_json).collect::<Vec<_>>(),
            "verdict": {
                "mode": self.verdict.mode.map(Mode::name),
                "promise": self.verdict.mode.map(promise::sentence),
                "device_contract": self.verdict.contract.map(contract_name),
                "warnings": reasons_json(self.warnings()),
                "refused": MODES
                    .into_iter()
                    .filter(|mode| !self.verdict.of(*mode).justified())
                    .map(|mode| (mode.name().to_string(), reasons_json(&self.verdict.of(mode).refusals)))
                    .collect::<serde_json::Map<_, _>>(),
            },
        })
    }
}

fn state_name(state: super::State) -> &'static str {
    match state {
        super::State::Formatted => "formatted",
        super::State::Unfinished => "unfinished",
        super::State::Empty => "empty",
        super::State::Missing => "missing",
        super::State::Foreign => "foreign",
    }
}

fn contract_name(contract: Contract) -> &'static str {
    match contract {
        Contract::Shown => "shown",
        Contract::Asserted => "asserted",
    }
}

fn finding_json(finding: &Finding) -> Value {
    json!({ "name": finding.name, "value": finding.value, "grade": finding.grade.word(), "why": finding.why })
}

fn reasons_json(reasons: &[Reason]) -> Value {
    let one = |reason: &Reason| json!({ "code": reason.code(), "reason": reason.sentence(), "way_out": reason.way_out() });
    reasons.iter().map(one).collect()
}
