//! The table of all searches, and one search's counterexample in plain words.

use crate::bounds::Bounds;
use crate::rules::Rules;
use crate::scenarios::{ALL, Scenario};
use crate::search::{Outcome, search};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Instant;

/// A search that comes to more states has been given bounds that are too large: about 2 GiB.
const LIMIT: usize = 12_000_000;

/// Makes the searches whose names contain `filter`, writes a line for each, and returns what was not as expected.
///
/// # Errors
/// When `out` fails.
pub fn table(filter: &str, out: &mut dyn Write) -> io::Result<Vec<String>> {
    let mut wrong = Vec::new();
    writeln!(
        out,
        "{:<27} {:<44} {:>9} {:>5}  {:<48} {:>5}",
        "search", "bounds", "states", "depth", "result", "s"
    )?;
    for scenario in ALL.iter().filter(|scenario| scenario.name.contains(filter)) {
        let begin = Instant::now();
        let found = run(scenario);
        let result = match &found.violation {
            None if found.cut_short => "not finished".to_owned(),
            None => "no violation".to_owned(),
            Some((violation, steps)) => format!("{violation}, {} steps", steps.len()),
        };
        writeln!(
            out,
            "{:<27} {:<44} {:>9} {:>5}  {result:<48} {:>5.1}",
            title(scenario),
            bounds(&scenario.bounds),
            found.states,
            found.depth,
            begin.elapsed().as_secs_f32()
        )?;
        wrong.extend(judge(scenario, &found).map(|why| format!("{}: {why}", scenario.name)));
    }
    Ok(wrong)
}

/// The names of all searches.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|scenario| scenario.name)
}

/// The shortest counterexample of a search, step by step. `None` if there is no search of this name.
pub fn trace(name: &str) -> Option<String> {
    let scenario = ALL.iter().find(|scenario| scenario.name == name)?;
    let mut text = String::new();
    for rule in scenario.without {
        let meaning =
            Rules::MEANINGS.iter().find(|(name, _)| name == rule).map_or("", |(_, meaning)| meaning);
        let _ = writeln!(text, "without {rule}: {meaning}");
    }
    let found = run(scenario);
    match &found.violation {
        None => {
            let _ = writeln!(text, "no violation in {} states", found.states);
        }
        Some((violation, steps)) => {
            for (number, step) in (1..).zip(steps) {
                let _ = writeln!(text, "{number:>3}. {}", step.action.describe(&step.before));
            }
            let _ = writeln!(text, "     => {violation}");
        }
    }
    Some(text)
}

fn run(scenario: &Scenario) -> Outcome {
    let model = scenario.model();
    search(&model, model.start(), scenario.witnesses, LIMIT)
}

/// Why an outcome is not what the scenario says, if it is not.
fn judge(scenario: &Scenario, found: &Outcome) -> Option<String> {
    let got = found.violation.as_ref().map(|(violation, steps)| (*violation, steps.len()));
    if found.cut_short {
        Some(format!("more than {LIMIT} states"))
    } else if got != scenario.expected {
        Some(format!("expected {:?}, found {got:?}", scenario.expected))
    } else if !found.not_met.is_empty() {
        Some(format!("never came to where {}", found.not_met.join("; nor to where ")))
    } else {
        None
    }
}

fn title(scenario: &Scenario) -> String {
    match scenario.without {
        [] => format!("all rules: {}", scenario.name),
        _ => format!("- {}", scenario.name),
    }
}

fn bounds(bounds: &Bounds) -> String {
    let mut text = format!(
        "n={} terms={} entries={} values={}",
        bounds.members, bounds.terms, bounds.entries, bounds.values
    );
    for (name, count) in [("cuts", bounds.cuts), ("kills", bounds.kills), ("losses", bounds.losses)] {
        if count > 0 {
            let _ = write!(text, " {name}={count}");
        }
    }
    text
}
