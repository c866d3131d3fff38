//! The sentences, notes and plots that follow from the figures.

use super::super::finding::{Pair, caption, finding, findings};
use super::rows::{DIRECT_FSYNC_BOTH, DSYNC, FSYNC_BOTH, NO_FSYNC, PARTS_PAIRS, RAW, cairn};
use super::{DEPTH, Sizes};
use crate::report::{Plot, PlotData, Table, size};
use cairn_engine::Mode;

/// What the figures of the first table show. All rows of the middle three are synced.
pub(super) fn sentences(puts: &Table) -> Vec<String> {
    let (sync, replicated) = (cairn(Mode::Sync), cairn(Mode::Replicated));
    let pairs: [(&str, Pair<'_>); 6] = [
        ("No fsync", [NO_FSYNC, FSYNC_BOTH]),
        ("No filesystem metadata, and one sync instead of two", [DSYNC, DIRECT_FSYNC_BOTH]),
        ("The same and group commit", [&sync, DIRECT_FSYNC_BOTH]),
        ("Against files through the page cache", [&sync, FSYNC_BOTH]),
        ("No sync before the answer; peers cover the time until then", [&replicated, &sync]),
        ("No sync of a raw write", [RAW, DSYNC]),
    ];
    findings(puts, "rate", &pairs)
}

/// What each pair of rows of the second table shows, as notes.
pub(super) fn gains(parts: &Table) -> Vec<String> {
    findings(parts, "rate", &PARTS_PAIRS.map(|(part, with, without)| (part, [with, without])))
}

/// What a reader must know to believe the figures.
pub(super) fn notes(sizes: &Sizes, laid_out: &[String]) -> Vec<String> {
    let mut notes =
        vec![
        format!(
            "{DEPTH} requests under way, random overwrites of {} objects of 4 KiB with random \
             bytes. The raw files have as many blocks of 4 KiB.",
            sizes.objects
        ),
        "A put into a file writes a temporary file and renames it. Without fsync of the folder a \
         power cut may undo the rename.".into(),
        "Cairn submits through its own backend, from one thread. All other rows wait in system \
         calls, one thread for each request.".into(),
        "Cairn alone, one node, without a network. Its rate has group commit in it, the raw rows \
         do not, so Cairn over files is not the gain of avoiding filesystem metadata alone.".into(),
        format!(
            "Cairn's directory has {} and syncs in the background after each {} at the latest; by \
             default a node does after 4 MiB.",
            size(sizes.engine_bytes),
            size((sizes.engine_bytes / 16).min(4 << 20))
        ),
        "Each gain isolates one variable. They share causes, so they neither add up nor multiply \
         to one number; what fsync costs and what filesystem metadata costs are two \
         numbers.".into(),
        "The three rows “in order” write each block of their file once in a round. On a fast \
         disk such a round ends before its time. The warm-up is an eighth of the blocks.".into(),
        "A value in a write of 32 values waits for the whole write, so 32 values are under way \
         in one request.".into(),
        format!(
            "Deletes: {half} clients put and are measured. Beside them {half} clients put other \
             objects, or delete one and put it again in turn. {} objects are theirs.",
            sizes.others,
            half = DEPTH / 2
        ),
        "After each round of a row the whole filesystem is synced, outside of the measured time, \
         so that a row does not pay for what the row before it left unsynced. This includes what \
         other programs wrote. Every second round runs the rows in the reverse order.".into(),
        "ext4 begins to write out a file when it is renamed over another one, without being \
         asked to (auto_da_alloc). So its files without fsync are not only in the page \
         cache.".into(),
    ];
    if !laid_out.is_empty() {
        notes.push(format!(
            "The time to lay out ended early: {}. Puts of the others make new objects at first.",
            laid_out.join(", ")
        ));
    }
    notes
}

/// Says which rounds did not fit into the time.
pub(super) fn rounds(found: &[usize; 2], wanted: usize) -> Option<String> {
    let [puts, beside] = found;
    (*puts < wanted || *beside < wanted).then(|| {
        format!(
            "The disk took longer than the bound assumes: {puts} rounds of the first two tables \
             and {beside} of the third, instead of {wanted}."
        )
    })
}

/// The plots of the first table and of the third.
pub(super) fn plots(puts: &Table, deletes: &Table) -> Vec<Plot> {
    let plot = |file: &str, title: &str, sentence, axis: &str, bars| Plot {
        file: file.into(),
        title: title.into(),
        sentence,
        data: PlotData::Bars { axis: axis.into(), bars },
    };
    let (rates, tails) = (puts.bars("rate"), deletes.bars("p99"));
    let slowest = "The slowest hundredth of puts, beside puts and beside deletes";
    let puts = fastest_on_disk(puts).map(|sentence| {
        let title = "Puts of 4 KiB objects, 32 under way";
        plot("objects-puts.svg", title, sentence, "puts per second", rates)
    });
    let deletes = beside_deletes(deletes)
        .map(|sentence| plot("objects-deletes.svg", slowest, sentence, "p99 of puts, µs", tails));
    puts.into_iter().chain(deletes).collect()
}

/// The fastest row of the first table whose data is on the disk when it answers.
fn fastest_on_disk(puts: &Table) -> Option<String> {
    let on_disk = puts.rows.iter().filter(|row| row.answered_by == "disk");
    let rates = on_disk.filter_map(|row| Some((&row.name, puts.value(&row.name, "rate")?)));
    let (fastest, _) = rates.max_by(|a, b| a.1.total_cmp(&b.1))?;
    caption(puts, "The fastest on the disk at the answer", "rate", [fastest, FSYNC_BOTH])
}

/// What deletes do to the p99 of puts.
fn beside_deletes(deletes: &Table) -> Option<String> {
    let said = deletes.rows.chunks_exact(2).filter_map(|pair| {
        let [puts, deletes_too] = pair else { return None };
        finding(deletes, "Beside deletes", "p99", [&deletes_too.name, &puts.name])
    });
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| said.join(" "))
}

#[cfg(test)]
mod tests {
    use super::super::clients::Act;
    use super::super::rows::{PUTS, beside};
    use super::*;
    use crate::measure::figure;

    fn table(column: &str, rows: &[(&str, &str, f64)]) -> Table {
        let mut table = Table::new(PUTS, &[(column, "/s")]);
        for (name, answered_by, value) in rows {
            table.measured(*name, *answered_by, vec![figure(*value)]);
        }
        table
    }

    #[test]
    fn the_sentences_give_the_ratios_of_their_rows() {
        let puts = table(
            "rate",
            &[
                (NO_FSYNC, "page cache", 20_000.0),
                (FSYNC_BOTH, "disk", 1000.0),
                (DIRECT_FSYNC_BOTH, "disk", 2000.0),
                ("Cairn, replicated", "device", 60_000.0),
                ("Cairn, sync", "disk", 8000.0),
                (DSYNC, "disk", 4000.0),
                (RAW, "device", 44_000.0),
            ],
        );
        let said = sentences(&puts);
        let times = ["20.0 ×", "2.00 ×", "4.00 ×", "8.00 ×", "7.50 ×", "raw write: 11.0 ×"];
        assert_eq!(said.len(), times.len(), "{said:?}");
        assert!(said.iter().zip(times).all(|(one, times)| one.contains(times)), "{said:?}");
        let plots = plots(&puts, &table("p99", &[]));
        assert_eq!(plots.len(), 1);
        assert!(plots[0].sentence.contains("answer: 8.00 ×"), "{}", plots[0].sentence);
        let gains_of = gains(&puts);
        assert_eq!(gains_of.len(), 1, "nothing of rows that are not there: {gains_of:?}");
        assert!(gains_of[0].starts_with("Not syncing each write: 11.0 ×"), "{gains_of:?}");
        let files = [(FSYNC_BOTH, "disk", 5000.0), (DSYNC, "disk", 4000.0)];
        let files = super::plots(&table("rate", &files), &table("p99", &[]));
        assert_eq!(files[0].sentence, format!("“{FSYNC_BOTH}”: rate 5,000 /s."), "by itself");
        let cached = table("rate", &[(NO_FSYNC, "page cache", 20_000.0), (RAW, "device", 9.0)]);
        assert!(super::plots(&cached, &table("p99", &[])).is_empty(), "no row is on the disk");
        assert!(gains(&cached).is_empty() && sentences(&cached).is_empty());
    }

    #[test]
    fn the_tails_beside_deletes_are_given_for_each_pair() {
        let names = |who| [beside(who, Act::Put), beside(who, Act::DeleteAndPut)];
        let ([a, b], [c, d]) = (names("files"), names("Cairn, sync"));
        let rows = [(&*a, "x", 10.0), (&*b, "x", 32.0), (&*c, "x", 4.0), (&*d, "x", 2.0)];
        let said = beside_deletes(&table("p99", &rows)).unwrap();
        assert!(said.contains("3.20 ×") && said.contains("0.500 ×"), "{said}");
    }

    #[test]
    fn rounds_left_out_are_said() {
        assert_eq!(rounds(&[5, 5], 5), None);
        assert!(rounds(&[2, 5], 5).unwrap().contains("2 rounds of the first two tables and 5"));
    }
}
