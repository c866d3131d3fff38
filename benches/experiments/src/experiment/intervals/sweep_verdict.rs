//! What the sweep says about Cairn's defaults.
//!
//! What holds here: a setting that was not synced within one of its rounds is not compared, since
//! such a round shows the time between two syncs, not what a sync costs. A setting of more bytes than
//! a checkpoint leaves unsynced is judged by its interval alone: it is compared only if the same
//! holds for the default.

use super::super::finding::{alone, finding};
use super::plan::{Plan, Setting};
use super::sweep::{PUT_P99, PUT_RATE, SYNCS};
use crate::report::{Plot, PlotData, Table, count, size};
use cairn_engine::Mode;

/// A pair beats the default in rate if it is above it by this factor.
const FASTER: f64 = 1.1;
/// A pair beats the default in latency if it is below it by this factor.
const SHORTER: f64 = 0.5;
/// Chance puts the best of several pairs above the default in fewer rounds than these.
const PROOF_ROUNDS: usize = 3;

/// A row whose every round had a sync in it.
fn synced(table: &Table, setting: Setting, clients: usize) -> Option<String> {
    let row = setting.row(clients);
    (table.figure(&row, SYNCS)?.least > 0.0).then_some(row)
}

/// Whether a row was measured and had a round without a sync in it.
fn unsynced(table: &Table, row: &str) -> bool {
    table.figure(row, SYNCS).is_some_and(|syncs| syncs.least <= 0.0)
}

/// A setting beside the default, with so many clients.
fn beside(
    table: &Table,
    what: &str,
    column: &str,
    setting: Setting,
    clients: usize,
) -> Option<String> {
    let default = synced(table, Setting::DEFAULT, clients)?;
    finding(table, what, column, [&synced(table, setting, clients)?, &default])
}

/// Whether the default holds, and what mode `sync` costs.
pub(super) fn sentences(table: &Table, plan: &Plan) -> Vec<String> {
    let (few, many) = (plan.fewest_clients(), plan.most_clients());
    let mut sentences = default_holds(table, plan, many);
    for clients in if few == many { vec![many] } else { vec![few, many] } {
        for column in [PUT_RATE, PUT_P99] {
            let what = "Mode `sync` beside the default of mode `replicated`";
            sentences.extend(beside(table, what, column, Setting::SYNC, clients));
        }
    }
    sentences
}

/// The best other pair by rate and by p99, beside the default.
fn default_holds(table: &Table, plan: &Plan, clients: usize) -> Vec<String> {
    let default = Setting::DEFAULT.row(clients);
    if unsynced(table, &default) {
        let why = "a round of the default ended without a sync";
        let with = count(clients, "client");
        return vec![format!("With {with} nothing is compared with the default, because {why}.")];
    }
    let acts = plan.bytes_act(&Setting::DEFAULT);
    let others = plan.settings.iter().copied().filter(|one| {
        one.mode == Mode::Replicated && *one != Setting::DEFAULT && (!acts || plan.bytes_act(one))
    });
    let others: Vec<Setting> =
        others.filter(|one| synced(table, *one, clients).is_some()).collect();
    let limit = match acts {
        true => String::new(),
        // A checkpoint comes before the default's bytes.
        false => format!("; its {} did not act", size(Setting::DEFAULT.bytes)),
    };
    let said = [PUT_RATE, PUT_P99].map(|column| {
        let beats = |one: &&Setting| beats(table, **one, column, clients) == Some(true);
        let beating: Vec<Setting> = others.iter().filter(beats).copied().collect();
        let held = beating.is_empty();
        let one = best(table, column, clients, if held { &others } else { &beating })?;
        let rounds = |row: &str| Some(table.figure(row, column)?.rounds);
        let holds = match (held, rounds(&default)?.min(rounds(&one.row(clients))?)) {
            (true, ..2) => "The default holds (one round)",
            (true, ..PROOF_ROUNDS) => "The default holds (few rounds)",
            (true, _) => "The default holds",
            (false, ..PROOF_ROUNDS) => "Too few rounds hint that the default can be improved",
            (false, _) => "The default can be improved",
        };
        let what = format!("{holds}{limit}; the best other pair");
        beside(table, &what, column, one, clients)
    });
    said.into_iter().flatten().collect()
}

/// The setting of the highest rate or of the shortest latency.
fn best(table: &Table, column: &str, clients: usize, all: &[Setting]) -> Option<Setting> {
    let sign = if column == PUT_RATE { 1.0 } else { -1.0 };
    let of = |one: &Setting| Some((*one, sign * table.value(&one.row(clients), column)?));
    let best = all.iter().filter_map(of).max_by(|a, b| a.1.total_cmp(&b.1));
    best.map(|(setting, _)| setting)
}

/// A setting beats the default by more than the factor, with no round of one that reaches a round
/// of the other.
fn beats(table: &Table, setting: Setting, column: &str, clients: usize) -> Option<bool> {
    let of = |setting: Setting| table.figure(&setting.row(clients), column);
    let (this, default) = (of(setting)?, of(Setting::DEFAULT)?);
    Some(match column {
        PUT_RATE => this.median > FASTER * default.median && this.least > default.most,
        _ => this.median < SHORTER * default.median && this.most < default.least,
    })
}

/// The settings that no sentence compares, because a round of theirs ended without a sync.
pub(super) fn left_out(table: &Table, plan: &Plan) -> Option<String> {
    let rows = plan.settings.iter().flat_map(|one| plan.clients.iter().map(|at| one.row(*at)));
    let rows: Vec<String> = rows.filter(|row| unsynced(table, row)).collect();
    let why = "Not compared, because a round ended without a sync";
    (!rows.is_empty()).then(|| format!("{why}: {}.", rows.join("; ")))
}

/// The puts' p99 by the number of clients.
pub(super) fn plot(table: &Table, plan: &Plan) -> Option<Plot> {
    let line = |name: String, setting: Setting| {
        let rows = plan.clients.iter().map(|at| (*at as f64, setting.row(*at)));
        let ms = table.line(PUT_P99, rows).into_iter().map(|(at, us)| (at, us / 1e3));
        (name, ms.collect::<Vec<_>>())
    };
    let default = format!("mode replicated, {}", Setting::DEFAULT.pair_name());
    let lines = [line("mode sync".into(), Setting::SYNC), line(default, Setting::DEFAULT)];
    let many = plan.most_clients();
    let what = format!("Mode `sync` with {}", count(many, "client"));
    let alone = |setting: Setting| alone(table, PUT_P99, &setting.row(many));
    let sentence = beside(table, &what, PUT_P99, Setting::SYNC, many)
        .or_else(|| alone(Setting::SYNC))
        .or_else(|| alone(Setting::DEFAULT))?;
    Some(Plot {
        file: "intervals-sync.svg".to_owned(),
        title: "Put p99 beside gets, by the number of clients".to_owned(),
        sentence,
        data: PlotData::Lines {
            x: "clients".to_owned(),
            y: "put p99 in ms".to_owned(),
            ticks: plan.clients.iter().map(|count| (*count as f64, count.to_string())).collect(),
            lines: lines.into_iter().filter(|(_, points)| !points.is_empty()).collect(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::sweep::COLUMNS;
    use super::*;
    use crate::experiment::Settings;
    use crate::experiment::tests::settings;
    use crate::measure::spread_of;

    /// Put rate, put p99 and syncs of each round.
    type Rounds = Vec<[f64; 3]>;

    /// All settings with the same figures but those that `of` changes.
    fn table(size_bytes: u64, of: impl Fn(&Setting) -> Option<Rounds>) -> (Table, Plan) {
        let plan = Plan::new(&Settings { size_bytes, ..settings() });
        let mut table = Table::new("t", &COLUMNS);
        for setting in &plan.settings {
            for clients in plan.clients {
                let rounds = of(setting).unwrap_or_else(|| vec![[1000.0, 2000.0, 1.0]; 3]);
                let one = |(name, _): &(&str, &str)| {
                    let at = [PUT_RATE, PUT_P99, SYNCS].iter().position(|found| found == name)?;
                    spread_of(&rounds, |round| round[at])
                };
                let figures = COLUMNS.iter().map(one).collect();
                table.measured(setting.row(*clients), "device", figures);
            }
        }
        (table, plan)
    }

    fn said(of: impl Fn(&Setting) -> Option<Rounds>) -> Vec<String> {
        let (table, plan) = table(Settings::DEFAULT_SIZE, of);
        sentences(&table, &plan)
    }

    fn is_long(setting: &Setting) -> bool {
        setting.interval.as_secs() == 10 && setting.bytes == 4 << 20
    }

    #[test]
    fn the_default_holds_unless_a_pair_is_better_beyond_the_spread() {
        let holds = |found: &str| found.starts_with("The default holds");
        assert!(said(|_| None).iter().take(2).all(|found| holds(found)));
        let within = vec![[1500.0, 500.0, 1.0], [900.0, 2500.0, 1.0]];
        assert!(said(|one| is_long(one).then(|| within.clone())).iter().take(2).all(|f| holds(f)));
        let better = said(|one| is_long(one).then(|| vec![[1300.0, 900.0, 1.0]; 3]));
        for (found, times) in better.iter().zip(["1.30 ×", "0.450 ×"]) {
            assert!(found.contains("can be improved") && found.contains("10 s, 4 MiB"), "{found}");
            assert!(found.starts_with("The default") && found.contains(times), "{found}");
        }
        let begin = |found: Vec<String>, with: &str| {
            assert!(found.iter().take(2).all(|one| one.starts_with(with)), "{with}: {found:?}");
        };
        for (rounds, held, improved) in [
            (1, "The default holds (one round);", "Too few"),
            (2, "The default holds (few rounds);", "Too few"),
            (3, "The default holds;", "The default can be improved;"),
        ] {
            let same = || Some(vec![[1000.0, 2000.0, 1.0]; rounds]);
            let better = |rounds| Some(vec![[1300.0, 900.0, 1.0]; rounds]);
            begin(said(|_| same()), held);
            // The pair has so few, or the default.
            begin(said(|one| is_long(one).then(|| better(rounds))?), improved);
            begin(said(|one| if is_long(one) { better(3) } else { same() }), improved);
        }
        let [improved, holding] = [[1300.0, 2000.0, 1.0], [1000.0, 900.0, 1.0]].map(|round| {
            let found = said(|one| is_long(one).then(|| vec![round; 3]));
            found.iter().take(2).map(|found| holds(found)).collect::<Vec<_>>()
        });
        assert_eq!([improved, holding], [[false, true], [true, false]], "rate and p99 are apart");
    }

    #[test]
    fn the_cost_of_mode_sync_is_given_for_the_fewest_and_the_most_clients() {
        let slow = |one: &Setting| (*one == Setting::SYNC).then(|| vec![[250.0, 9000.0, 1.0]]);
        let found = said(slow).split_off(2);
        let (few, many) = ("“sync, 10 clients”", "“sync, 100 clients”");
        let costs = [("0.250 ×", few), ("4.50 ×", few), ("0.250 ×", many), ("4.50 ×", many)];
        assert_eq!(found.len(), 4, "{found:?}");
        for (found, (times, row)) in found.iter().zip(costs) {
            assert!(found.contains(times) && found.contains(row), "{row}: {found}");
        }
        let (swept, plan) = table(Settings::DEFAULT_SIZE, slow);
        let sentence = plot(&swept, &plan).unwrap().sentence;
        assert!(
            sentence.starts_with("Mode `sync` with 100 clients: 4.50 × “put p99”"),
            "{sentence}"
        );
    }

    #[test]
    fn a_setting_without_a_sync_in_its_rounds_is_not_compared() {
        let unsynced = |one: &Setting| is_long(one).then(|| vec![[5000.0, 1.0, 0.0]]);
        assert!(said(unsynced)[0].starts_with("The default holds"));
        let (swept, plan) = table(Settings::DEFAULT_SIZE, unsynced);
        assert!(left_out(&swept, &plan).unwrap().contains("10 s, 4 MiB"));
        let default = |one: &Setting| (*one == Setting::DEFAULT).then(|| vec![[1.0, 1.0, 0.0]]);
        let found = said(default);
        assert_eq!(found.len(), 1, "also not with mode sync: {found:?}");
        assert!(found[0].starts_with("With 100 clients nothing is compared"), "{found:?}");
        let (swept, plan) = table(Settings::DEFAULT_SIZE, default);
        assert!(!plot(&swept, &plan).unwrap().sentence.contains('×'));
        assert!(left_out(&swept, &plan).unwrap().contains(&Setting::DEFAULT.row(100)));
        let others = |one: &Setting| (*one != Setting::DEFAULT).then(|| vec![[9.0, 9.0, 0.0]]);
        assert!(said(others).is_empty(), "no other setting synced");
    }

    #[test]
    fn bytes_that_never_act_are_compared_only_where_those_of_the_default_do_not_act() {
        let inert = |one: &Setting| {
            let inert = one.interval.as_secs() == 10 && one.bytes == 512 << 20;
            inert.then(|| vec![[1300.0, 2000.0, 1.0]; 3])
        };
        assert!(said(inert)[0].starts_with("The default holds; the best"));
        let (table, plan) = table(64 << 20, inert);
        let least = sentences(&table, &plan).remove(0);
        assert!(
            least.contains("can be improved") && least.contains("4 MiB did not act"),
            "{least}"
        );
    }

    #[test]
    fn modes_that_were_not_measured_leave_no_sentence() {
        let plan = Plan::new(&settings());
        let mut table = Table::new("t", &COLUMNS);
        table.measured(Setting::SYNC.row(100), "disk", vec![None; COLUMNS.len()]);
        assert!(sentences(&table, &plan).is_empty() && plot(&table, &plan).is_none());
    }
}
