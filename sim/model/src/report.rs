//! The table of all searches, and the counterexample of one search in plain words.

use crate::bounds::Bounds;
use crate::rules::Rules;
use crate::scenarios::{ALL, Scenario};
use crate::search::{Outcome, search};
use crate::state::REPLACEMENT;
use clap::builder::PossibleValuesParser;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Instant;

/// The most states of a search: about 2 GiB. More mean that the bounds are too large.
const LIMIT: usize = 12_000_000;

/// Options that change the bounds of the table or leave out further rules.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Deeper {
    /// The highest term, at most 3.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=3))]
    terms: Option<u8>,
    /// The longest log, at most 8.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8))]
    entries: Option<u8>,
    /// Client writes, at most 7.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=7))]
    values: Option<u8>,
    /// Power cuts, at most 4.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=4))]
    cuts: Option<u8>,
    /// Process kills, at most 4.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=4))]
    kills: Option<u8>,
    /// Leave out one more rule. May be repeated.
    #[arg(long, value_name = "RULE", value_parser = PossibleValuesParser::new(Rules::MEANINGS.iter().map(|(name, _)| *name)))]
    without: Vec<String>,
    /// Stop a search after so many states.
    #[arg(long)]
    limit: Option<usize>,
}

impl Deeper {
    fn of(&self, scenario: &Scenario) -> Scenario {
        let mut scenario = *scenario;
        let bounds = &mut scenario.bounds;
        for (bound, wanted) in [
            (&mut bounds.terms, self.terms),
            (&mut bounds.entries, self.entries),
            (&mut bounds.values, self.values),
            (&mut bounds.cuts, self.cuts),
            (&mut bounds.kills, self.kills),
        ] {
            *bound = wanted.unwrap_or(*bound);
        }
        scenario
    }
}

/// Makes the searches whose names contain `filter`, writes a line for each, and returns a line for
/// each result that was not as expected.
///
/// # Errors
/// When `out` fails.
pub fn table(filter: &str, deeper: &Deeper, out: &mut dyn Write) -> io::Result<Vec<String>> {
    let mut wrong = Vec::new();
    writeln!(
        out,
        "{:<30} {:<48} {:>9} {:>5}  {:<48} {:>5}",
        "search", "bounds", "states", "depth", "result", "s"
    )?;
    let chosen = ALL.iter().filter(|scenario| scenario.name.contains(filter));
    for scenario in &chosen.map(|scenario| deeper.of(scenario)).collect::<Vec<_>>() {
        let begin = Instant::now();
        let found = run(scenario, deeper);
        let result = match &found.violation {
            None if found.cut_short => "not finished".to_owned(),
            None => "no violation".to_owned(),
            Some((violation, steps)) => format!("{violation}, {} steps", steps.len()),
        };
        writeln!(
            out,
            "{:<30} {:<48} {:>9} {:>5}  {result:<48} {:>5.1}",
            title(scenario, deeper),
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

/// The shortest counterexample of a search, step by step. `None` if there is no search of this
/// name.
pub fn trace(name: &str, deeper: &Deeper) -> Option<String> {
    let scenario = deeper.of(ALL.iter().find(|scenario| scenario.name == name)?);
    let mut text = String::new();
    for rule in scenario.without.iter().copied().chain(deeper.without.iter().map(String::as_str)) {
        let meaning = Rules::MEANINGS
            .iter()
            .find(|(name, _)| *name == rule)
            .map_or("", |(_, meaning)| meaning);
        let _ = writeln!(text, "without {rule}: {meaning}");
    }
    let found = run(&scenario, deeper);
    match &found.violation {
        None => {
            let _ = writeln!(text, "no violation in {} states", found.states);
        }
        Some((violation, steps)) => {
            for (number, step) in (1..).zip(steps) {
                let _ = writeln!(
                    text,
                    "{number:>3}. {}",
                    step.action.describe(&step.before, &scenario.bounds)
                );
            }
            let _ = writeln!(text, "     => {violation}");
        }
    }
    Some(text)
}

fn run(scenario: &Scenario, deeper: &Deeper) -> Outcome {
    let mut model = scenario.model();
    let fewer = deeper.without.iter().try_fold(model.rules, |rules, name| rules.without(name));
    model.rules = fewer.unwrap_or(model.rules);
    search(&model, model.start(), scenario.witnesses, deeper.limit.unwrap_or(LIMIT))
}

/// The difference between an outcome and what the scenario expects, if there is one.
fn judge(scenario: &Scenario, found: &Outcome) -> Option<String> {
    let got = found.violation.as_ref().map(|(violation, steps)| (*violation, steps.len()));
    if found.cut_short {
        Some(format!("not finished after {} states", found.states))
    } else if got != scenario.expected {
        Some(format!("expected {:?}, found {got:?}", scenario.expected))
    } else if !found.not_met.is_empty() {
        Some(format!("never reached: {}", found.not_met.join("; ")))
    } else {
        None
    }
}

fn title(scenario: &Scenario, deeper: &Deeper) -> String {
    match (scenario.without, deeper.without.join(" - ")) {
        ([], fewer) if fewer.is_empty() => format!("all rules: {}", scenario.name),
        ([], fewer) => format!("{} - {fewer}", scenario.name),
        (_, fewer) if fewer.is_empty() => format!("- {}", scenario.name),
        (_, fewer) => format!("- {} - {fewer}", scenario.name),
    }
}

fn bounds(bounds: &Bounds) -> String {
    let mut text = format!(
        "n={} terms={} entries={} values={}",
        bounds.members, bounds.terms, bounds.entries, bounds.values
    );
    let counts = [
        ("cuts", bounds.cuts),
        ("kills", bounds.kills),
        ("lost-disks", bounds.lost_disks),
        ("copies", bounds.copies),
    ];
    for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        let _ = write!(text, " {name}={count}");
    }
    if bounds.replacement > 0 {
        let slots = (0..REPLACEMENT).filter(|slot| bounds.replacement >> slot & 1 == 1);
        let _ = write!(
            text,
            " replacement={}",
            slots.map(|slot| char::from(b'A' + slot)).collect::<String>()
        );
    }
    text
}
