//! The table of all searches, and one search's counterexample in plain words.

use crate::scenarios::{ALL, Scenario};
use crate::search::{Outcome, search};
use std::time::Instant;

/// A search that explores more has been given bounds that are too large.
const LIMIT: usize = 40_000_000;

fn run(scenario: &Scenario) -> Outcome {
    let model = scenario.model();
    search(&model, model.start(), scenario.witnesses, LIMIT)
}

/// Makes the searches whose names contain `filter`.
pub fn print_all(filter: &str) -> bool {
    for scenario in ALL.iter().filter(|s| s.name.contains(filter)) {
        let begin = Instant::now();
        let o = run(scenario);
        println!("{} {} {} {:?} {:?} {} {:.1}", scenario.name, o.states, o.depth, o.violation.map(|v| v.0), o.not_met, o.cut_short, begin.elapsed().as_secs_f32());
    }
    true
}

/// Prints the steps.
pub fn print_trace(name: &str) -> bool {
    for scenario in ALL.iter().filter(|s| s.name == name) {
        if let Some((violation, steps)) = run(scenario).violation {
            for (i, step) in steps.iter().enumerate() {
                println!("{:3}. {}", i + 1, step.action.describe(&step.before));
            }
            println!("     => {violation}");
        }
    }
    true
}
