//! What the experiments mean together for this disk: what fsync costs, what avoiding filesystem
//! metadata gains, what each mode of Cairn gives, and whether the disk keeps the contract of
//! `device`.
//!
//! What holds here: a sentence says what its figures say, whatever they are. Without its figures
//! there is none.

use super::objects::{DIRECT_FSYNC_BOTH, DSYNC, FSYNC_BOTH, NO_FSYNC, PUTS, cairn};
use super::words::{micros, ratio, rounded};
use super::{Settings, batches, objects};
use crate::report::{Report, Table};
use cairn_engine::Mode;

/// Below this, a difference is taken for noise.
const NOISE: f64 = 1.1;
/// Above this share of the processors, others disturb the figures.
const BUSY: f64 = 0.1;

/// The sentences for a report that is complete but for them.
pub(crate) fn conclusion(report: &Report, settings: &Settings) -> Vec<String> {
    let table = |name: &str, title| report.experiment(name).and_then(|one| one.table(title));
    let puts = table(objects::DEFINITION.name, PUTS);
    let writer = table(batches::DEFINITION.name, batches::ONE_WRITER);
    let said = [
        syncs_refused(settings),
        puts.and_then(fsync),
        writer.and_then(one_sync),
        puts.and_then(metadata),
    ];
    let mut sentences: Vec<String> = said.into_iter().flatten().collect();
    for (mode, refused) in &settings.modes {
        sentences.extend(mode_sentence(*mode, refused.as_deref(), puts));
    }
    sentences.extend(disturbed(report.busy_with_others));
    sentences
}

/// Where mode `sync` is not justified, "disk" in the tables means less than it says.
fn syncs_refused(settings: &Settings) -> Option<String> {
    let (_, refused) = settings.modes.iter().find(|(mode, _)| *mode == Mode::Sync)?;
    let reason = refused.as_deref()?;
    Some(format!("A sync keeps nothing for certain on this machine: {reason}."))
}

/// What `part` costs if `without` it something is `factor` times as fast.
fn cost(part: &str, factor: f64, figures: &str) -> Option<String> {
    if !factor.is_finite() || factor <= 0.0 {
        return None;
    }
    Some(if factor >= NOISE {
        format!("{part} costs a factor of {} here: {figures}.", ratio(factor))
    } else if factor > 1.0 / NOISE {
        format!("{part} costs nothing that stands out here: {figures}.")
    } else {
        format!("{part} costs nothing here, on the contrary: {figures}.")
    })
}

fn fsync(puts: &Table) -> Option<String> {
    let (without, with) = (puts.value(NO_FSYNC, "rate")?, puts.value(FSYNC_BOTH, "rate")?);
    let figures = format!(
        "puts of 4 KiB files do {}/s without any and {}/s with fsync of file and folder",
        rounded(without),
        rounded(with)
    );
    cost("fsync", without / with, &figures)
}

fn one_sync(writer: &Table) -> Option<String> {
    let sync = writer.value(batches::FDATASYNC_DIRECT, "sync p50")?;
    let write = writer.value(batches::DIRECT, "p50")?;
    Some(format!(
        "One fdatasync after a direct write of 4 KiB takes {}, beside {} for the write.",
        micros(sync),
        micros(write)
    ))
}

fn metadata(puts: &Table) -> Option<String> {
    let (raw, files) = (puts.value(DSYNC, "rate")?, puts.value(DIRECT_FSYNC_BOTH, "rate")?);
    let figures = format!(
        "with O_DIRECT and everything synced, overwriting a written file in place does {}/s and \
         putting new files, with two syncs each, {}/s",
        rounded(raw),
        rounded(files)
    );
    cost("Filesystem metadata, with the second sync that it needs,", raw / files, &figures)
}

fn mode_sentence(mode: Mode, refused: Option<&str>, puts: Option<&Table>) -> Option<String> {
    if let Some(reason) = refused {
        return Some(match mode {
            Mode::Device => {
                format!("This disk is not shown to keep the contract of mode `device`: {reason}.")
            }
            _ => format!("Mode `{mode}` is not justified here: {reason}."),
        });
    }
    let contract = match mode {
        Mode::Device => "This disk is reported to keep the contract of mode `device`. ",
        _ => "",
    };
    let measured = puts.and_then(|puts| {
        let (rate, p99) = (puts.value(&cairn(mode), "rate")?, puts.value(&cairn(mode), "p99")?);
        Some(format!(
            "Mode `{mode}` gives {} puts/s of 4 KiB in the engine alone, p99 {:.1} ms, with {} \
             under way.",
            rounded(rate),
            p99 / 1000.0,
            objects::DEPTH
        ))
    });
    match (contract, measured) {
        ("", None) => None,
        (contract, measured) => {
            Some(format!("{contract}{}", measured.unwrap_or_default()).trim_end().to_owned())
        }
    }
}

fn disturbed(busy_with_others: Option<f64>) -> Option<String> {
    let share = busy_with_others.filter(|share| *share > BUSY)?;
    Some(format!(
        "Other programs used {:.0} % of the processors just before this run: the figures are those \
         of a busy machine.",
        share * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;
    use crate::measure::figure;
    use crate::report::Experiment;

    fn report(rates: &[(&str, f64)], busy: f64) -> Report {
        let mut table = Table::new(PUTS, &[("rate", "/s"), ("p99", "µs")]);
        for (name, rate) in rates {
            table.measured(*name, "x", vec![figure(*rate), figure(1500.0)]);
        }
        let name = objects::DEFINITION.name.to_owned();
        let experiment = Experiment { name, tables: vec![table], ..Experiment::default() };
        let mut report = Report::new("/d".into(), &settings(), serde_json::json!({}));
        report.experiments = vec![experiment];
        report.busy_with_others = Some(busy);
        report
    }

    #[test]
    fn each_sentence_follows_from_its_figures() {
        let said = |rates: &[f64; 4]| {
            let rows = [NO_FSYNC, FSYNC_BOTH, DSYNC, DIRECT_FSYNC_BOTH];
            let rates: Vec<(&str, f64)> = rows.into_iter().zip(*rates).collect();
            conclusion(&report(&rates, 0.0), &settings()).join("\n")
        };
        let gain = said(&[40_000.0, 8000.0, 24_000.0, 8000.0]);
        for part in ["fsync costs a factor of 5.0", "needs, costs a factor of 3.0", "24,000/s"] {
            assert!(gain.contains(part), "{gain}");
        }
        let none = said(&[8000.0, 8100.0, 8000.0, 7900.0]);
        assert_eq!(none.matches("nothing that stands out").count(), 2, "{none}");
        assert!(none.contains("not shown to keep the contract"), "{none}");
        let less = said(&[4000.0, 8000.0, 4000.0, 8000.0]);
        assert_eq!(less.matches("on the contrary").count(), 2, "{less}");
        let nothing = said(&[8000.0, 0.0, 8000.0, 0.0]);
        assert!(!nothing.contains("costs") && !nothing.contains("NaN"), "{nothing}");
        let modes = conclusion(&report(&[("Cairn, replicated", 90_000.0)], 0.0), &settings());
        let modes = modes.join("\n");
        assert!(modes.contains("Mode `replicated` gives 90,000 puts/s"), "{modes}");
        assert!(!modes.contains("costs"), "no figures, no sentence: {modes}");
    }

    #[test]
    fn syncs_that_keep_nothing_are_named_first() {
        let mut settings = settings();
        settings.modes = vec![(Mode::Sync, Some("syncs are dropped".to_owned()))];
        let said = conclusion(&report(&[(NO_FSYNC, 2.0), (FSYNC_BOTH, 1.0)], 0.0), &settings);
        assert!(said[0].ends_with("on this machine: syncs are dropped."), "{said:?}");
    }

    #[test]
    fn a_device_that_keeps_its_contract_is_named_with_and_without_figures() {
        let mut settings = settings();
        settings.modes = vec![(Mode::Device, None)];
        let said = |rates: &[(&str, f64)]| conclusion(&report(rates, 0.0), &settings).join("\n");
        assert_eq!(said(&[]), "This disk is reported to keep the contract of mode `device`.");
        assert!(said(&[("Cairn, device", 9.0)]).starts_with("This disk is reported"));
    }

    #[test]
    fn a_busy_machine_is_named() {
        let said = |busy| conclusion(&report(&[], busy), &settings()).join("\n");
        assert!(said(0.5).contains("50 %") && !said(0.02).contains('%'));
    }
}
