//! What the figures of the experiment show. Each sentence branches on its figures, and is not there
//! if one of them is missing.

use super::super::words::{positive, ratio};
use super::write::{How, Written};
use super::{Against, LEAST_MEMORY, Line, TITLE};
use crate::experiment::Settings;
use crate::measure::{median, spread};
use crate::report::{Figure, Plot, PlotData};

/// Two figures that differ by less than this are about the same.
const SAME: f64 = 0.05;
const GIB: f64 = (1u64 << 30) as f64;

/// A figure of a row for each GiB written. None without rounds.
fn per_gib(line: &Line, of: impl Fn(&Written) -> f64) -> Option<Figure> {
    let rounds = line.rounds.as_ref().ok()?;
    let each = rounds.iter().map(|one| of(one) * GIB / one.bytes as f64);
    spread(&each.collect::<Vec<_>>())
}

fn safe(line: &Line) -> Option<f64> {
    per_gib(line, |one| one.safe_s).and_then(|figure| positive(figure.median))
}

fn find(lines: &[Line], against: Against, how: How, depth: usize) -> Option<&Line> {
    let mut lines = lines.iter();
    lines.find(|line| (line.against, line.how, line.depth) == (against, how, depth))
}

/// Two rows of the largest size of which both were measured.
fn both(lines: &[Line], one: (How, usize), other: (How, usize)) -> Option<(&Line, &Line)> {
    [Against::Above, Against::Below].into_iter().find_map(|against| {
        let measured =
            |(how, depth)| find(lines, against, how, depth).filter(|line| safe(line).is_some());
        Some((measured(one)?, measured(other)?))
    })
}

/// Buffered and direct, with nothing else between them: one writer, over zeros.
fn over_zeros(lines: &[Line]) -> Option<(&Line, &Line)> {
    both(lines, (How::BufferedZeroed, 1), (How::Zeroed, 1))
}

/// How long one takes against another.
fn compared(this: f64, that: f64) -> String {
    match this / that {
        factor if (factor - 1.0).abs() < SAME => "about as long as".to_owned(),
        factor if factor > 1.0 => format!("{} times as long as", ratio(factor)),
        factor => format!("{:.0} % less time than", (1.0 - factor) * 100.0),
    }
}

pub(super) fn sentences(lines: &[Line]) -> Vec<String> {
    [hidden(lines), sooner(lines), depth(lines), zeroed(lines), processor(lines)]
        .into_iter()
        .flatten()
        .collect()
}

/// How much of a buffered write's time is still to come when the writes have returned.
fn hidden(lines: &[Line]) -> Option<String> {
    let line = find(lines, Against::Below, How::Buffered, 1)?;
    let rounds = line.rounds.as_ref().ok().filter(|rounds| !rounds.is_empty())?;
    let middle = |of: fn(&Written) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
    let (write, safe) = (middle(|one| one.write_s), middle(|one| one.safe_s));
    let bytes = middle(|one| one.bytes as f64 / f64::from(1 << 20));
    let later = (1.0 - write / positive(safe)?).max(0.0) * 100.0;
    Some(format!(
        "Through the page cache, the last write of {bytes:.0} MiB returns after {write:.2} s and the data is safe after {safe:.2} s: {later:.0} % of the time to safety comes after the writes.",
    ))
}

/// What `O_DIRECT` changes.
fn sooner(lines: &[Line]) -> Option<String> {
    let (buffered, direct) = over_zeros(lines)?;
    let (slow, fast) = (safe(buffered)?, safe(direct)?);
    let what = format!(
        "{}, one writer over zeros: {slow:.2} s for each GiB until it is safe through the page cache, {fast:.2} s around it",
        capital(buffered.against.text()),
    );
    let factor = slow / fast;
    Some(if (factor - 1.0).abs() < SAME {
        format!("{what}; that is about the same.")
    } else if factor > 1.0 {
        format!("{what}; direct is sooner safe, by a factor of {}.", ratio(factor))
    } else {
        format!("{what}; buffered is sooner safe, by a factor of {}.", ratio(1.0 / factor))
    })
}

/// What more writes under way change.
fn depth(lines: &[Line]) -> Option<String> {
    let (many, one) = both(lines, (How::Zeroed, 16), (How::Zeroed, 1))?;
    let (deep, shallow) = (safe(many)?, safe(one)?);
    Some(format!(
        "Direct writes over zeros with 16 under way take {} those with one ({deep:.2} s and {shallow:.2} s for each GiB).",
        compared(deep, shallow)
    ))
}

/// The processor time of the process that writes.
fn processor(lines: &[Line]) -> Option<String> {
    let (buffered, direct) = over_zeros(lines)?;
    let used = |line| per_gib(line, |one| one.user_s + one.system_s).map(|figure| figure.median);
    let machine = |line| per_gib(line, |one| one.machine_s).map(|figure| figure.median);
    let (slow, fast) = (used(buffered)?, used(direct)?);
    let compared = if fast <= 0.0 || slow <= 0.0 {
        "too little to compare".to_owned()
    } else if (fast / slow - 1.0).abs() < SAME {
        "about the same".to_owned()
    } else if fast < slow {
        format!("{:.0} % less direct", (1.0 - fast / slow) * 100.0)
    } else {
        format!("{} times as much direct", ratio(fast / slow))
    };
    Some(format!(
        "For each GiB, {}, the process that writes uses {slow:.2} s of processor time buffered and {fast:.2} s direct ({compared}); the whole machine uses {:.2} s and {:.2} s.",
        buffered.against.text(),
        machine(buffered)?,
        machine(direct)?
    ))
}

/// What a preallocated file costs over one that is zeroed before.
fn zeroed(lines: &[Line]) -> Option<String> {
    let (new, old) = both(lines, (How::Preallocated, 1), (How::Zeroed, 1))?;
    let (new, old) = (safe(new)?, safe(old)?);
    Some(format!(
        "Direct writes to a file that is only preallocated take {} writes over zeros, one under way ({new:.2} s and {old:.2} s for each GiB).",
        compared(new, old)
    ))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

pub(super) fn plot(lines: &[Line]) -> Option<Plot> {
    let bars =
        lines.iter().filter_map(|line| Some((line.name(), per_gib(line, |one| one.safe_s)?)));
    Some(Plot {
        file: "direct-safety.svg".into(),
        title: format!("{TITLE}: time to safety"),
        sentence: sooner(lines)?,
        data: PlotData::Bars {
            axis: "seconds for each GiB until it is synced".into(),
            bars: bars.collect(),
        },
    })
}

pub(super) fn notes(lines: &[Line], settings: &Settings, memory: Option<u64>) -> Vec<String> {
    let mut notes = vec![
        "Writes of 128 KiB of random bytes, in order. Buffered: one writer. Direct: so many threads that each wait for one write. Before a buffered write over zeros, none of the file is in the page cache. Cairn submits through io_uring where the kernel allows it, so its processor time differs from these threads'.".to_owned(),
        "Time to safety ends with a final fdatasync. A new file's name would need a sync of its folder too; that is not counted. Times begin before the file is opened and its space is reserved; the zeros of a zeroed file are not counted: Cairn writes them once, when it makes its files.".to_owned(),
        "\"User\" and \"system\" are the processor time of the process that writes. \"Machine\" is that of everything on the machine, also of the kernel's threads that write pages back and of other programs, in steps of 10 ms.".to_owned(),
        "Files are shortened to what a first write, not counted, shows to fit into a row's time; a row that takes longer nevertheless ends early. The column \"written\" shows it; sentences and plot are for each GiB written.".to_owned(),
        "The source writes 1.7 % more processor time for direct writes; by its own times it is 2.4 %.".to_owned(),
    ];
    notes.push(match memory {
        Some(memory) => format!(
            "Rows above memory run in a memory cgroup of {} MiB (at least {} MiB), which also bounds their page cache; rows below memory run without a limit.",
            memory >> 20,
            LEAST_MEMORY >> 20
        ),
        None => "Rows below memory run without a limit; nothing was measured above memory.".into(),
    });
    if settings.child.is_none() {
        let note = "The writes ran inside the measuring process, so \"user\" and \"system\" contain its own work.";
        notes.push(note.to_owned());
    }
    let made = lines.iter().filter_map(|line| line.rounds.as_ref().ok());
    let least = made.map(Vec::len).min().unwrap_or(settings.rounds());
    if least < settings.rounds() {
        let of = settings.rounds();
        notes.push(format!("The disk became slower: some rows have {least} of {of} rounds."));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::settings;

    fn line(against: Against, how: How, depth: usize, safe_s: f64, cpu: f64) -> Line {
        let one = Written {
            bytes: 1 << 29,
            write_s: safe_s / 4.0,
            safe_s,
            user_s: cpu / 2.0,
            system_s: cpu / 2.0,
            machine_s: cpu * 2.0,
        };
        Line { against, how, depth, rounds: Ok(vec![one; 3]) }
    }

    fn lines(against: Against, buffered: f64, preallocated: f64, zeroed: f64) -> Vec<Line> {
        vec![
            line(against, How::Buffered, 1, 2.0, 0.3),
            line(against, How::BufferedZeroed, 1, buffered, 0.2),
            line(against, How::Preallocated, 1, preallocated, 0.1),
            line(against, How::Zeroed, 1, zeroed, 0.1),
            line(against, How::Zeroed, 16, zeroed / 2.0, 0.1),
        ]
    }

    #[test]
    fn the_sentence_says_which_is_sooner_safe_and_by_how_much() {
        let below = lines(Against::Below, 2.0, 1.5, 1.0);
        let text = sooner(&below).unwrap();
        assert!(text.contains("4.00 s for each GiB") && text.contains("2.00 s around"), "{text}");
        assert!(text.contains("direct is sooner safe, by a factor of 2.0"), "{text}");
        let text = sooner(&lines(Against::Below, 1.0, 0.1, 3.0)).unwrap();
        assert!(text.contains("buffered is sooner safe, by a factor of 3.0"), "{text}");
        let text = sooner(&lines(Against::Below, 1.0, 3.0, 1.01)).unwrap();
        assert!(text.ends_with("about the same."), "{text}");
    }

    #[test]
    fn the_largest_size_counts_and_the_plot_agrees() {
        let mut both = lines(Against::Below, 2.0, 1.0, 1.0);
        both.extend(lines(Against::Above, 1.0, 2.0, 2.0));
        let plot = plot(&both).unwrap();
        assert!(plot.sentence.starts_with("Above memory"), "{}", plot.sentence);
        assert!(plot.sentence.contains("buffered is sooner"), "{}", plot.sentence);
        let PlotData::Bars { bars, .. } = plot.data else { panic!("bars") };
        assert_eq!(bars.len(), 10);
        assert_eq!(bars[0].1.median, 4.0);
    }

    #[test]
    fn the_other_sentences_follow_their_figures() {
        let below = lines(Against::Below, 2.0, 1.5, 1.0);
        assert!(hidden(&below).unwrap().contains("75 % of the time to safety"));
        let text = processor(&below).unwrap();
        assert!(text.contains("0.40 s") && text.contains("50 % less direct"), "{text}");
        assert!(text.contains("uses 0.80 s and 0.40 s"), "{text}");
        assert!(zeroed(&below).unwrap().contains("1.5 times as long as writes over zeros"));
        let odd = lines(Against::Below, 2.0, 0.5, 1.0);
        let text = zeroed(&odd).unwrap();
        assert!(text.contains("50 % less time than"), "{text}");
        let text = depth(&below).unwrap();
        assert!(text.contains("50 % less time than those with one (1.00 s and 2.00 s"), "{text}");
        let mut dear = below;
        dear[1] = line(Against::Below, How::BufferedZeroed, 1, 2.0, 0.05);
        assert!(processor(&dear).unwrap().contains("2.0 times as much direct"));
    }

    #[test]
    fn more_writes_under_way_and_new_files_do_not_count_for_direct() {
        let mut lines = lines(Against::Below, 2.0, 0.1, 2.0);
        lines.push(line(Against::Below, How::Preallocated, 16, 0.1, 0.1));
        assert!(sooner(&lines).unwrap().ends_with("about the same."));
        lines.retain(|line| line.how != How::BufferedZeroed);
        assert_eq!(sooner(&lines), None, "a new file is not the same as zeros");
    }

    #[test]
    fn what_is_missing_makes_no_sentence() {
        assert!(sentences(&[]).is_empty() && plot(&[]).is_none());
        let buffered = vec![line(Against::Below, How::Buffered, 1, 1.0, 0.1)];
        assert_eq!(sentences(&buffered).len(), 1);
        assert!(plot(&buffered).is_none());
        let text = notes(&buffered, &settings(), Some(64 << 20)).join(" ");
        assert!(text.contains("cgroup of 64 MiB") && text.contains("inside the measuring process"));
        let mut fewer = buffered;
        fewer[0].rounds.as_mut().unwrap().pop();
        assert!(notes(&fewer, &settings(), None).join(" ").contains("2 of 3 rounds"));
    }
}
