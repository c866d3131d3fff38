//! The counts of a scenario, printed as text or JSON.

use crate::disk::Damage;
use cairn_clients::ledger::AnswerCounts;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How many sentences about faults are printed; the rest is only counted.
const SHOWN: usize = 20;

/// A scenario's figures.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// The scenario's name.
    pub scenario: String,
    /// The durability mode.
    pub mode: String,
    /// How the servers do I/O.
    pub backend: String,
    /// Power cuts, or rounds of flipped bits.
    pub rounds: u64,
    /// Rounds after which the cluster served.
    pub served: u64,
    /// Rounds after which the cluster did not serve and said why.
    pub reported: u64,
    /// Keys that lost something in an unsafe recovery, all within the window.
    pub given_up: u64,
    /// Rounds after which a loss was found.
    pub caught: u64,
    /// Writes acknowledged.
    pub acknowledged: u64,
    /// Writes of unknown outcome.
    pub unknown: u64,
    /// Requests refused, and writes whose conditions did not hold: without effect.
    pub refused: u64,
    /// Reads during the load, each checked.
    pub reads: u64,
    /// Keys in the last comparison.
    pub keys: u64,
    /// Comparisons of everything that the cluster and each machine holds.
    pub comparisons: u64,
    /// Bits flipped.
    pub flips: u64,
    /// Scrubs that were waited for.
    pub scrubs: u64,
    /// Values, journal blocks, checkpoints and superblock copies that scrubs found damaged.
    pub damaged: u64,
    /// How many of the damaged things that scrubs and reads found were repaired.
    pub repaired: u64,
    /// Repairs that failed.
    pub unrepaired: u64,
    /// Starts with a damaged directory, after which the machine recovered from the others.
    pub salvaged: u64,
    /// The faults, one sentence each: lost, damaged, never written, split, stuck.
    pub wrong: Vec<String>,
    /// The longest time without an acknowledgement around a cut, in milliseconds, of each round.
    pub gaps_ms: Vec<u64>,
    /// The time from the start of a cut machine's process until it was an active member, in
    /// milliseconds, of each return.
    pub recovery_ms: Vec<u64>,
    /// Damage done by all cuts.
    pub damage: Damage,
    /// The duration of the scenario.
    pub seconds: u64,
}

impl Figures {
    /// Adds a period of load.
    pub fn add_load(&mut self, counts: AnswerCounts) {
        self.acknowledged += counts.acknowledged;
        self.unknown += counts.unknown;
        self.refused += counts.refused;
        self.reads += counts.reads;
        self.wrong.extend(counts.wrong);
    }

    /// Adds the longest time without an acknowledgement around a cut.
    pub fn add_gap(&mut self, gap: Duration) {
        self.gaps_ms.push(millis(gap));
    }

    /// Adds the time of a machine's return.
    pub fn add_recovery(&mut self, time: Duration) {
        self.recovery_ms.push(millis(time));
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Median and maximum; zeros if there are no values.
fn middle_and_max(values: &[u64]) -> (u64, u64) {
    let mut values = values.to_vec();
    values.sort_unstable();
    let middle = values.get(values.len() / 2).copied().unwrap_or_default();
    (middle, values.last().copied().unwrap_or_default())
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { kept, dropped, torn } = self.damage;
        writeln!(
            f,
            "{} ({}, {}): {} rounds in {} s; the cluster served after {}, stopped and said why after {}",
            self.scenario,
            self.mode,
            self.backend,
            self.rounds,
            self.seconds,
            self.served,
            self.reported
        )?;
        if self.caught > 0 {
            writeln!(f, "  caught   a loss after {} rounds, as it must be", self.caught)?;
        }
        writeln!(
            f,
            "  writes   {} acknowledged, {} of unknown outcome, {} without effect; {} reads under load",
            self.acknowledged, self.unknown, self.refused, self.reads
        )?;
        writeln!(
            f,
            "  disks    unsynced 4 KiB blocks: {kept} kept, {dropped} dropped, {torn} torn; {} bits flipped",
            self.flips
        )?;
        if self.scrubs > 0 {
            writeln!(
                f,
                "  scrubs   {}: {} found damaged by them; by them and by reads {} repaired, {} not; {} starts salvaged",
                self.scrubs, self.damaged, self.repaired, self.unrepaired, self.salvaged
            )?;
        }
        if !self.recovery_ms.is_empty() {
            let (middle, max) = middle_and_max(&self.recovery_ms);
            writeln!(f, "  return   active again after {middle} ms (median), {max} ms (longest)")?;
        }
        if !self.gaps_ms.is_empty() {
            let (middle, max) = middle_and_max(&self.gaps_ms);
            writeln!(
                f,
                "  gaps     without acknowledgement: {middle} ms (median), {max} ms (longest)"
            )?;
        }
        if self.given_up > 0 {
            writeln!(
                f,
                "  operator discarded the newest writes of {} keys, all within the window",
                self.given_up
            )?;
        }
        writeln!(
            f,
            "  compared {} times the cluster and every machine, last with {} keys: {} wrong",
            self.comparisons,
            self.keys,
            self.wrong.len()
        )?;
        for sentence in self.wrong.iter().take(SHOWN) {
            writeln!(f, "  WRONG    {sentence}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_maximum_are_of_the_given_values() {
        assert_eq!(middle_and_max(&[]), (0, 0));
        assert_eq!(middle_and_max(&[7]), (7, 7));
        assert_eq!(middle_and_max(&[9, 1, 5]), (5, 9));
    }
}
