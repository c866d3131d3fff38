//! The report, for people and for programs: findings, verdict, and what would make it stronger.

use super::Plan;
use super::aspects::aspects;
use super::facts::Facts;
use super::findings::{Finding, findings};
use super::reason::{ASSERTION, Reason};
use super::verdict::{Aspects, MODES, Verdict, judge};
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
        findings(&self.facts, &self.plan)
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
        let contract =
            self.verdict.contract.map(|known| format!(", its contract {}", known.words()));
        let contract = contract.unwrap_or_default();
        let mut lines = match self.verdict.mode {
            Some(mode) => vec![
                format!("verdict: {mode} (for {voters}{contract})"),
                format!("  {}", promise::sentence(mode, self.plan.window)),
            ],
            None => {
                vec![format!("verdict: none (for {voters}): no mode's promise can be kept here")]
            }
        };
        for warning in self.warnings() {
            lines.push(format!("  warning: {}", warning.sentence()));
        }
        for mode in MODES.into_iter().take_while(|mode| Some(*mode) != self.verdict.mode) {
            let refusals = &self.verdict.of(mode).refusals;
            lines.push(format!("not {mode}:"));
            for reason in refusals {
                lines.push(format!("  {}; {}", reason.sentence(), reason.way_out()));
            }
            if mode == Mode::Device && refusals.iter().all(|reason| reason.can_be_asserted_away()) {
                lines.push(format!("  or, {ASSERTION}"));
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
            "state": location.state,
            "voters": self.plan.voters,
            "findings": self.findings(),
            "verdict": {
                "mode": self.verdict.mode.map(Mode::name),
                "promise": self.verdict.mode.map(|mode| promise::sentence(mode, self.plan.window)),
                "device_contract": self.verdict.contract,
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

fn reasons_json(reasons: &[Reason]) -> Value {
    let one = |reason: &Reason| json!({ "code": reason, "reason": reason.sentence(), "way_out": reason.way_out() });
    reasons.iter().map(one).collect()
}
