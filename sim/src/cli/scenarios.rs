//! Runs scripted scenarios and prints a line for each.

use super::{Arguments, shown};
use cairn_sim::harness::{CUT_SHORT, Report, Scenario, run_scenario, scenarios};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;

/// The results of one scenario's seeds.
#[derive(Default)]
struct Tally {
    runs: u64,
    failed: u64,
    reached: BTreeMap<&'static str, u64>,
}

/// Runs the chosen scenarios.
pub(super) fn main(arguments: &Arguments) -> ExitCode {
    let chosen: Vec<&'static Scenario> = scenarios()
        .filter(|known| arguments.scenario.as_deref().is_none_or(|name| name == known.name))
        .collect();
    match (chosen.as_slice(), arguments.seed) {
        ([], _) => {
            let names: Vec<_> = scenarios().map(|known| known.name).collect();
            eprintln!(
                "no scenario is called `{}`; there are\n  {}",
                arguments.scenario.as_deref().unwrap_or_default(),
                names.join("\n  ")
            );
            ExitCode::from(2)
        }
        ([scenario], Some(seed)) => replay(scenario, seed, arguments),
        _ => run(chosen, arguments),
    }
}

fn replay(scenario: &Scenario, seed: u64, arguments: &Arguments) -> ExitCode {
    let report = run_scenario(scenario, seed, shown(arguments));
    println!("trace hash {:016x}", report.trace_hash);
    for violation in &report.violations {
        println!("FAILED {violation}");
    }
    for part in scenario.parts {
        println!("{part}: {}", report.events.get(part).copied().unwrap_or_default());
    }
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(chosen: Vec<&'static Scenario>, arguments: &Arguments) -> ExitCode {
    let mut queue = VecDeque::new();
    for (number, scenario) in chosen.iter().enumerate() {
        queue.extend(seeds(scenario, arguments).into_iter().map(|seed| (number, *scenario, seed)));
    }
    let queue = Arc::new(Mutex::new(queue));
    let options = super::options(arguments);
    let (sender, receiver) = mpsc::channel();
    for _ in 0..arguments.jobs.max(1) {
        let (queue, sender) = (queue.clone(), sender.clone());
        std::thread::spawn(move || {
            loop {
                let Some((number, scenario, seed)) = queue.lock().pop_front() else { return };
                if sender.send((number, run_scenario(scenario, seed, options))).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut tallies: BTreeMap<usize, Tally> = BTreeMap::new();
    let (mut passed, mut failed) = (0, 0);
    for (number, report) in receiver {
        let Some(scenario) = chosen.get(number) else { continue };
        show(scenario, &report);
        let tally = tallies.entry(number).or_default();
        tally.add(scenario, &report);
        let seeds = seeds(scenario, arguments).len() as u64;
        if tally.runs == seeds {
            let all_parts = arguments.seeds.is_none() && seeds == scenario.seeds;
            let fine = tally.print(scenario, all_parts);
            *(if fine { &mut passed } else { &mut failed }) += 1;
        }
    }
    println!("scenarios   {passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The seeds to run of a scenario.
fn seeds(scenario: &Scenario, arguments: &Arguments) -> Vec<u64> {
    match (&arguments.seeds, arguments.window) {
        (Some(seeds), _) => seeds.clone().collect(),
        (None, Some(number)) => scenario.window(number),
        (None, None) => (0..scenario.seeds).collect(),
    }
}

/// Prints what went wrong in a run, and how to replay it.
fn show(scenario: &Scenario, report: &Report) {
    for violation in &report.violations {
        println!("{} seed {} FAILED {violation}", scenario.name, report.seed);
    }
    if let Some(line) = report.trace.iter().find(|line| line.contains(CUT_SHORT)) {
        println!(
            "{} seed {}:{}",
            scenario.name,
            report.seed,
            line.trim_start_matches(|c| c != ' ')
        );
    }
    if !report.passed() {
        println!("  replay: cargo sim --scenario {} --seed {}", scenario.name, report.seed);
    }
}

impl Tally {
    fn add(&mut self, scenario: &Scenario, report: &Report) {
        self.runs += 1;
        self.failed += u64::from(!report.passed());
        for part in scenario.parts {
            *self.reached.entry(part).or_default() += u64::from(report.events.contains_key(part));
        }
    }

    /// Prints the line of a scenario. False if a seed failed, or if it ran all its seeds and
    /// none reached a part.
    fn print(&self, scenario: &Scenario, all_parts: bool) -> bool {
        let count = |part: &&'static str| self.reached.get(part).copied().unwrap_or_default();
        let fine =
            self.failed == 0 && (!all_parts || scenario.parts.iter().all(|part| count(part) > 0));
        let parts = scenario.parts.iter().map(|part| format!("{part} {}", count(part)));
        let parts: Vec<String> = parts.collect();
        let verdict = if fine { "PASS" } else { "FAIL" };
        println!(
            "{verdict} {}: {} of {} seeds; reached by seeds: {}",
            scenario.name,
            self.runs - self.failed,
            self.runs,
            parts.join(", ")
        );
        fine
    }
}
