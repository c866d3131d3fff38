//! What the experiments mean together for this disk: what fsync costs, what avoiding filesystem
//! metadata gains, what each mode of Cairn gives, and whether the disk keeps the contract of
//! `device`.
//!
//! What holds here: a sentence says what its figures say, whatever they are. Without its figures
//! there is none.

use super::finding::{alone, finding};
use super::objects::{DIRECT_FSYNC_BOTH, DSYNC, FSYNC_BOTH, NO_FSYNC, PUTS, cairn};
use super::{Settings, batches, objects};
use crate::report::{Report, Table};
use cairn_engine::Mode;

/// Above this share of the processors, others disturb the figures.
const BUSY: f64 = 0.1;

/// The sentences for a report that is complete but for them.
pub(crate) fn conclusion(report: &Report, settings: &Settings) -> Vec<String> {
    let table = |name: &str, title| report.experiment(name).and_then(|one| one.table(title));
    let puts = table(objects::DEFINITION.name, PUTS);
    let writer = table(batches::DEFINITION.name, batches::ONE_WRITER);
    let per_write = [batches::FDATASYNC_DIRECT, batches::DIRECT];
    let in_place = [DSYNC, DIRECT_FSYNC_BOTH];
    let second_sync = "No filesystem metadata, and no second sync that it needs";
    let mut sentences = Vec::new();
    // Where mode `sync` is not justified, "disk" in the tables means less than it says.
    if let Some((_, Some(reason))) = settings.modes.iter().find(|(mode, _)| *mode == Mode::Sync) {
        sentences.push(format!("A sync keeps nothing for certain on this machine: {reason}."));
    }
    let found = |table: Option<&Table>, what, column, pair| finding(table?, what, column, pair);
    sentences.extend(found(puts, "No fsync", "rate", [NO_FSYNC, FSYNC_BOTH]));
    sentences.extend(found(writer, "An fdatasync per write", "per write", per_write));
    sentences.extend(found(puts, second_sync, "rate", in_place));
    for (mode, refused) in &settings.modes {
        match refused {
            Some(reason) => {
                sentences.push(format!("Mode `{mode}` is not justified here: {reason}."))
            }
            None => {
                sentences.push(format!("Mode `{mode}` is justified here."));
                sentences.extend(puts.and_then(|puts| alone(puts, "rate", &cairn(*mode))));
            }
        }
    }
    if let Some(share) = report.busy_with_others.filter(|share| *share > BUSY) {
        let percent = share * 100.0;
        sentences.push(format!("Before this run, others used {percent:.0} % of the processors."));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;
    use crate::measure::figure;
    use crate::report::Experiment;

    #[test]
    fn each_sentence_follows_from_its_figures() {
        let mut settings = settings();
        settings.modes.push((Mode::Sync, Some("syncs are dropped".to_owned())));
        settings.modes.remove(2);
        let mut report = Report::new("/d".into(), &settings, serde_json::json!({}));
        report.busy_with_others = Some(BUSY);
        let bare = conclusion(&report, &settings).join("\n");
        assert!(!bare.contains('×') && !bare.contains('%'), "no figures, no finding: {bare}");
        let justified = "Mode `replicated` is justified here.";
        assert!(bare.contains(justified), "{bare}");
        let mut table = Table::new(PUTS, &[("rate", "/s")]);
        let [cairn, refused] = [Mode::Replicated, Mode::Device].map(cairn);
        for (name, rate) in [
            (NO_FSYNC, 40_000.0),
            (FSYNC_BOTH, 8000.0),
            (DSYNC, 24_000.0),
            (DIRECT_FSYNC_BOTH, 8000.0),
            (&cairn, 90_000.0),
            (&refused, 70_000.0),
        ] {
            table.measured(name, "x", vec![figure(rate)]);
        }
        let name = objects::DEFINITION.name.to_owned();
        report.experiments = vec![Experiment { name, tables: vec![table], ..Default::default() }];
        report.busy_with_others = Some(0.5);
        let said = conclusion(&report, &settings);
        assert!(said[0].ends_with("syncs are dropped."), "named first: {said:?}");
        let said = said.join("\n");
        for part in [
            "No fsync: 5.00 ×",
            "that it needs: 3.00 ×",
            justified,
            "rate 90,000 /s",
            "`device` is not justified",
            "50 %",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!said.contains("70,000"), "nothing more of a mode that is refused: {said}");
    }
}
