//! What the sweep says about Cairn's defaults.
//!
//! What holds here: a setting that was not synced within one of its rounds is not compared, since
//! such a round shows the time between two syncs, not what a sync costs. A setting of more bytes than
//! a checkpoint leaves unsynced is judged by its interval alone: it is compared only if the same
//! holds for the default.

use super::plan::{Plan, Setting};
use super::sweep::{COLUMNS, PUT_P99, PUT_RATE, SYNCS};
use super::text::{clients, digits, ms, size, time};
use crate::report::{Figure, Outcome, Plot, PlotData, Table};
use cairn_engine::Mode;

/// A pair beats the default in rate if it is above it by this factor.
const FASTER: f64 = 1.1;
/// A pair beats the default in latency if it is below it by this factor.
const SHORTER: f64 = 0.5;

/// Chance puts the best of several pairs above the default in fewer rounds than these.
const PROOF_ROUNDS: usize = 3;

fn figure(table: &Table, row: &str, column: &str) -> Option<Figure> {
    let at = COLUMNS.iter().position(|(name, _)| *name == column)?;
    match &table.rows.iter().find(|found| found.name == row)?.outcome {
        Outcome::Measured(figures) => *figures.get(at)?,
        Outcome::NotMade(_) => None,
    }
}

/// What is compared of a setting with a number of clients.
#[derive(Clone, Copy)]
struct Compared {
    setting: Setting,
    rate: Figure,
    p99: Figure,
    synced: bool,
}

impl Compared {
    fn find(table: &Table, setting: Setting, count: usize) -> Option<Compared> {
        let row = setting.row(count);
        let of = |column| figure(table, &row, column);
        let synced = of(SYNCS)?.least > 0.0;
        Some(Compared { setting, rate: of(PUT_RATE)?, p99: of(PUT_P99)?, synced })
    }

    /// By more than the factor, and no round of one reaches a round of the other.
    fn is_faster(&self, default: &Compared) -> bool {
        self.rate.median > FASTER * default.rate.median && self.rate.least > default.rate.most
    }

    fn is_shorter(&self, default: &Compared) -> bool {
        self.p99.median < SHORTER * default.p99.median && self.p99.most < default.p99.least
    }
}

/// Whether the default holds, and what mode `sync` costs.
pub(super) fn sentences(table: &Table, plan: &Plan) -> Vec<String> {
    let (few, many) = (plan.fewest_clients(), plan.most_clients());
    let mut sentences: Vec<String> = default_holds(table, plan, many).into_iter().collect();
    let mut costs: Vec<String> = cost_of_sync(table, few).into_iter().collect();
    if many != few {
        costs.extend(cost_of_sync(table, many));
    }
    if !costs.is_empty() {
        sentences.push(format!("Beside the default of mode `replicated`, {}.", costs.join("; ")));
    }
    sentences
}

fn default_holds(table: &Table, plan: &Plan, count: usize) -> Option<String> {
    let default = Compared::find(table, Setting::DEFAULT, count)?;
    let at = clients(count);
    if !default.synced {
        return Some(format!(
            "With {at} a round of the default ended without a sync, so no pair is compared with it."
        ));
    }
    let others = plan.settings.iter().filter(|one| one.mode == Mode::Replicated);
    let others = others.filter(|one| **one != Setting::DEFAULT);
    let default_acts = plan.bytes_act(&Setting::DEFAULT);
    let others = others.filter(|one| !default_acts || plan.bytes_act(one));
    let name = |setting: &Setting| match plan.bytes_act(setting) {
        true => setting.pair_name(" or"),
        false => time(setting.interval),
    };
    let others: Vec<Compared> =
        others.filter_map(|one| Compared::find(table, *one, count)).collect();
    let (synced, left_out): (Vec<Compared>, Vec<Compared>) =
        others.into_iter().partition(|one| one.synced);
    let by_rate = |a: &&Compared, b: &&Compared| a.rate.median.total_cmp(&b.rate.median);
    let by_p99 = |a: &&Compared, b: &&Compared| a.p99.median.total_cmp(&b.p99.median);
    let Some(best) = synced.iter().max_by(by_rate) else {
        return Some(format!(
            "With {at} no other pair was synced in each of its rounds, so none is compared with \
             the default."
        ));
    };
    let faster = synced.iter().filter(|one| one.is_faster(&default)).max_by(by_rate);
    let shorter = synced.iter().filter(|one| one.is_shorter(&default)).min_by(by_p99);
    let mut said = Vec::new();
    if let Some(one) = faster {
        said.push(format!(
            "a sync after {} makes {} puts/s, {} times the default's {}",
            name(&one.setting),
            digits(one.rate.median),
            digits(one.rate.median / default.rate.median),
            digits(default.rate.median)
        ));
    }
    if let Some(one) = shorter {
        said.push(format!(
            "a sync after {} has a put p99 of {} where the default has {}",
            name(&one.setting),
            ms(one.p99.median),
            ms(default.p99.median)
        ));
    }
    let named = faster.into_iter().chain(shorter);
    let rounds = named.chain([&default]).map(|one| one.rate.rounds).min().unwrap_or(0);
    let hint = rounds < PROOF_ROUNDS;
    let mut sentence = match said.is_empty() {
        false if hint => format!(
            "{} at better settings than the default: with {at} {}",
            if rounds == 1 {
                "One round hints".to_owned()
            } else {
                format!("{rounds} rounds hint")
            },
            said.join("; ")
        ),
        false => format!("The default can be improved on this disk: with {at} {}", said.join("; ")),
        true => format!(
            "The default, a sync after {}, holds: with {at} no other pair beats its {} puts/s by \
             10 % or halves its put p99 of {} beyond the spread; its rate is {} times that of the \
             best other pair",
            name(&Setting::DEFAULT),
            digits(default.rate.median),
            ms(default.p99.median),
            digits(default.rate.median / best.rate.median)
        ),
    };
    if said.is_empty() && hint {
        sentence.push_str(if rounds == 1 { " (one round)" } else { " (few rounds)" });
    }
    if !left_out.is_empty() {
        let names = left_out.iter().map(|one| name(&one.setting));
        let names: Vec<String> = names.collect();
        sentence.push_str(&format!(
            "; not compared, because a round ended without a sync: {}",
            names.join(", ")
        ));
    }
    if !default_acts {
        sentence.push_str(&format!(
            "; a checkpoint comes before the default's {}, so only its interval was tested",
            size(Setting::DEFAULT.bytes)
        ));
    }
    sentence.push('.');
    Some(sentence)
}

fn cost_of_sync(table: &Table, count: usize) -> Option<String> {
    let find = |setting| Compared::find(table, setting, count).filter(|one| one.synced);
    let (default, sync) = (find(Setting::DEFAULT)?, find(Setting::SYNC)?);
    Some(format!(
        "mode `sync` makes {} puts/s instead of {} with {} ({} times), with a put p99 of {} \
         instead of {}",
        digits(sync.rate.median),
        digits(default.rate.median),
        clients(count),
        digits(sync.rate.median / default.rate.median),
        ms(sync.p99.median),
        ms(default.p99.median)
    ))
}

/// The puts' p99 by the number of clients.
pub(super) fn plot(table: &Table, plan: &Plan) -> Option<Plot> {
    let p99 = |setting: Setting, count: usize| table.value(&setting.row(count), PUT_P99);
    let line = |name: &str, setting: Setting| {
        let point = |count: &usize| Some((*count as f64, p99(setting, *count)? / 1e3));
        let points: Vec<(f64, f64)> = plan.clients.iter().filter_map(point).collect();
        (!points.is_empty()).then(|| (name.to_owned(), points))
    };
    let default = format!("mode replicated, {}", Setting::DEFAULT.pair_name(","));
    let lines = [line("mode sync", Setting::SYNC), line(&default, Setting::DEFAULT)];
    let lines: Vec<_> = lines.into_iter().flatten().collect();
    if lines.is_empty() {
        return None;
    }
    let many = plan.most_clients();
    let at = clients(many);
    let synced = Compared::find(table, Setting::DEFAULT, many).is_some_and(|one| one.synced);
    let sentence = match (p99(Setting::SYNC, many), p99(Setting::DEFAULT, many)) {
        (Some(sync), Some(default)) if !synced => format!(
            "With {at} the put p99 of mode sync is {}; that of mode replicated with its default is \
             {}, with a round that has no sync in it.",
            ms(sync),
            ms(default)
        ),
        (Some(sync), Some(default)) => format!(
            "With {at} the put p99 of mode sync is {}, {} times the {} of mode replicated with \
             its default.",
            ms(sync),
            digits(sync / default),
            ms(default)
        ),
        (Some(sync), None) => format!("With {at} the put p99 of mode sync is {}.", ms(sync)),
        (None, Some(default)) => {
            format!("With {at} the put p99 of mode replicated with its default is {}.", ms(default))
        }
        (None, None) => String::new(),
    };
    Some(Plot {
        file: "intervals-sync.svg".to_owned(),
        title: "Put p99 beside gets, by the number of clients".to_owned(),
        sentence,
        data: PlotData::Lines {
            x: "clients".to_owned(),
            y: "put p99 in ms".to_owned(),
            ticks: plan.clients.iter().map(|count| (*count as f64, count.to_string())).collect(),
            lines,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Settings;
    use crate::experiment::tests::settings;
    use crate::measure::spread;

    /// All settings with the same figures but those that `of` changes: put rate, put p99 and syncs
    /// of each round.
    fn table(of: impl Fn(&Setting) -> Option<Vec<(f64, f64, f64)>>) -> (Table, Plan) {
        table_of(Settings::DEFAULT_SIZE, of)
    }

    /// The same for a size. With the default size the default's bytes act, and with that of a quick
    /// run they do not.
    fn table_of(
        size_bytes: u64,
        of: impl Fn(&Setting) -> Option<Vec<(f64, f64, f64)>>,
    ) -> (Table, Plan) {
        let plan = Plan::new(&Settings { size_bytes, ..settings() });
        let mut table = Table::new("t", &COLUMNS);
        for setting in &plan.settings {
            for count in plan.clients {
                let rounds = of(setting).unwrap_or_else(|| vec![(1000.0, 2000.0, 1.0); 3]);
                let each = |of: &dyn Fn(&(f64, f64, f64)) -> f64| {
                    spread(&rounds.iter().map(of).collect::<Vec<_>>())
                };
                let one = |name: &str| match name {
                    PUT_RATE => each(&|round| round.0),
                    PUT_P99 => each(&|round| round.1),
                    SYNCS => each(&|round| round.2),
                    _ => None,
                };
                let figures = COLUMNS.iter().map(|(name, _)| one(name)).collect();
                table.measured(setting.row(*count), "device", figures);
            }
        }
        (table, plan)
    }

    fn first(of: impl Fn(&Setting) -> Option<Vec<(f64, f64, f64)>>) -> String {
        let (table, plan) = table(of);
        sentences(&table, &plan).into_iter().next().unwrap()
    }

    fn is_long(setting: &Setting) -> bool {
        setting.interval.as_secs() == 10 && setting.bytes == 4 << 20
    }

    #[test]
    fn the_default_holds_if_no_pair_is_better_beyond_the_spread() {
        let same = first(|_| None);
        assert!(same.contains("holds: with 100 clients") && same.contains("is 1.00 times"));
        let within =
            first(|one| is_long(one).then(|| vec![(1500.0, 500.0, 1.0), (900.0, 2500.0, 1.0)]));
        assert!(within.contains("holds"), "{within}");
        assert!(!within.contains("rounds)") && !within.contains("not compared"), "{within}");
    }

    #[test]
    fn a_better_pair_is_named_with_its_figures() {
        let faster = first(|one| is_long(one).then(|| vec![(1300.0, 2000.0, 1.0); 3]));
        assert!(faster.starts_with("The default can be improved"), "{faster}");
        assert!(faster.contains("10 s or 4 MiB makes 1,300 puts/s, 1.30 times"), "{faster}");
        assert!(!faster.contains("p99"), "{faster}");
        let shorter = first(|one| is_long(one).then(|| vec![(1000.0, 900.0, 1.0); 3]));
        assert!(shorter.contains("p99 of 0.90 ms where the default has 2.00 ms"), "{shorter}");
    }

    #[test]
    fn a_setting_without_a_sync_in_its_rounds_is_not_compared() {
        let unsynced = first(|one| is_long(one).then(|| vec![(5000.0, 1.0, 0.0)]));
        assert!(unsynced.contains("holds"), "{unsynced}");
        assert!(unsynced.ends_with("without a sync: 10 s or 4 MiB."), "{unsynced}");
        let default = first(|one| (*one == Setting::DEFAULT).then(|| vec![(1.0, 1.0, 0.0)]));
        assert!(default.contains("no pair is compared"), "{default}");
        let none = first(|one| (*one != Setting::DEFAULT).then(|| vec![(1.0, 1.0, 0.0)]));
        assert!(none.contains("no other pair was synced"), "{none}");
    }

    #[test]
    fn bytes_that_never_act_are_not_part_of_the_verdict() {
        let more = |one: &Setting| {
            let inert = one.interval.as_secs() == 10 && one.bytes == 512 << 20;
            inert.then(|| vec![(1300.0, 2000.0, 1.0); 3])
        };
        let full = first(more);
        assert!(full.contains("1 s or 64 MiB, holds") && !full.contains("tested"), "{full}");
        let (table, plan) = table_of(Settings::QUICK_SIZE, more);
        let quick = sentences(&table, &plan).remove(0);
        assert!(quick.contains("a sync after 10 s makes 1,300"), "{quick}");
        assert!(quick.ends_with("default's 64 MiB, so only its interval was tested."), "{quick}");
        let (table, plan) = table_of(Settings::QUICK_SIZE, |_| None);
        let quick = sentences(&table, &plan).remove(0);
        assert!(quick.starts_with("The default, a sync after 1 s, holds"), "{quick}");
    }

    #[test]
    fn without_a_sync_the_default_is_no_measure_of_mode_sync() {
        let (table, plan) = table(|one| (*one == Setting::DEFAULT).then(|| vec![(1.0, 1.0, 0.0)]));
        assert_eq!(sentences(&table, &plan).len(), 1, "not what mode sync costs");
        let sentence = plot(&table, &plan).unwrap().sentence;
        assert!(sentence.contains("no sync in it") && !sentence.contains("times"), "{sentence}");
    }

    #[test]
    fn few_rounds_are_only_a_hint() {
        let faster = |one: &Setting| is_long(one).then(|| vec![(1300.0, 2000.0, 1.0)]);
        assert!(first(faster).starts_with("One round hints at better settings"));
        let twice = |one: &Setting| is_long(one).then(|| vec![(1300.0, 2000.0, 1.0); 2]);
        assert!(first(twice).starts_with("2 rounds hint at better settings"));
        assert!(first(|_| Some(vec![(1000.0, 2000.0, 1.0)])).ends_with("(one round)."));
    }

    #[test]
    fn the_cost_of_mode_sync_is_given_for_the_fewest_and_the_most_clients() {
        let slow = |one: &Setting| (*one == Setting::SYNC).then(|| vec![(250.0, 9000.0, 1.0)]);
        let (table, plan) = table(slow);
        let found = sentences(&table, &plan).pop().unwrap();
        assert!(found.contains("250 puts/s instead of 1,000 with 10 clients (0.25 times)"));
        assert!(found.contains("with 100 clients (0.25 times)"), "{found}");
        let plot = plot(&table, &plan).unwrap();
        assert!(plot.sentence.contains("is 9.00 ms, 4.50 times the 2.00 ms"), "{plot:?}");
    }

    #[test]
    fn modes_that_were_not_measured_leave_no_sentence() {
        let plan = Plan::new(&settings());
        let mut table = Table::new("t", &COLUMNS);
        assert!(sentences(&table, &plan).is_empty() && plot(&table, &plan).is_none());
        table.measured(Setting::SYNC.row(100), "disk", vec![None; COLUMNS.len()]);
        assert!(sentences(&table, &plan).is_empty() && plot(&table, &plan).is_none());
    }
}
