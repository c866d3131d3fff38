//! What the figures of the experiment show. Each sentence branches on its figures, and is not there
//! if one of them is missing.

use super::super::words::ratio;
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
    per_gib(line, |one| one.safe_s).map(|figure| figure.median)
}

fn find(lines: &[Line], against: Against, how: How, depth: usize) -> Option<&Line> {
    let mut lines = lines.iter();
    lines.find(|line| (line.against, line.how, line.depth) == (against, how, depth))
}

/// The largest size of which a buffered and a direct row were measured, with the buffered row and
/// the direct one that is safe first.
fn largest(lines: &[Line]) -> Option<(&Line, &Line)> {
    [Against::Above, Against::Below].into_iter().find_map(|against| {
        let buffered =
            find(lines, against, How::Buffered, 1).filter(|line| safe(line).is_some())?;
        let direct =
            lines.iter().filter(|line| line.against == against && line.how != How::Buffered);
        let measured = direct.filter_map(|line| Some((line, safe(line)?)));
        let (first, _) = measured.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        Some((buffered, first))
    })
}

pub(super) fn sentences(lines: &[Line]) -> Vec<String> {
    [hidden(lines), sooner(lines), processor(lines), zeroed(lines)].into_iter().flatten().collect()
}

/// How much of a buffered write's time is still to come when the writes have returned.
fn hidden(lines: &[Line]) -> Option<String> {
    let line = find(lines, Against::Below, How::Buffered, 1)?;
    let rounds = line.rounds.as_ref().ok().filter(|rounds| !rounds.is_empty())?;
    let middle = |of: fn(&Written) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
    let (write, safe) = (middle(|one| one.write_s), middle(|one| one.safe_s));
    let bytes = middle(|one| one.bytes as f64 / f64::from(1 << 20));
    let later = (1.0 - write / safe).max(0.0) * 100.0;
    Some(format!(
        "Through the page cache, the last write of {bytes:.0} MiB returns after {write:.2} s and the data is safe after {safe:.2} s: {later:.0} % of the time to safety comes after the writes.",
    ))
}

/// Which is sooner safe.
fn sooner(lines: &[Line]) -> Option<String> {
    let (buffered, direct) = largest(lines)?;
    let (slow, fast) = (safe(buffered)?, safe(direct)?);
    let what = format!(
        "{}: {slow:.2} s for each GiB until it is safe through the page cache, {fast:.2} s around it ({})",
        capital(buffered.against.text()),
        super::label(direct.how, direct.depth)
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

/// The processor time of the process that writes.
fn processor(lines: &[Line]) -> Option<String> {
    let (buffered, direct) = largest(lines)?;
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
    let (_, direct) = largest(lines)?;
    let of = |how| find(lines, direct.against, how, direct.depth).and_then(safe);
    let (new, old) = (of(How::Preallocated)?, of(How::Zeroed)?);
    let depth = direct.depth;
    let compared = if (new / old - 1.0).abs() < SAME {
        "about as long as".to_owned()
    } else if new > old {
        format!("{} times as long as", ratio(new / old))
    } else {
        format!("{:.0} % less time than", (1.0 - new / old) * 100.0)
    };
    let why = if new / old < 1.0 + SAME {
        ""
    } else {
        ": the filesystem has metadata to change for each write into space that is only reserved"
    };
    Some(format!(
        "Direct writes with {depth} under way to a file that is only preallocated take {compared} writes over zeros ({new:.2} s and {old:.2} s for each GiB){why}.",
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
        "Writes of 128 KiB of random bytes, in order. Buffered: one writer. Direct: so many threads that each wait for one write. Cairn submits through io_uring where the kernel allows it, so its processor time differs from these threads'.".to_owned(),
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
            line(against, How::Buffered, 1, buffered, 0.2),
            line(against, How::Preallocated, 16, preallocated, 0.1),
            line(against, How::Zeroed, 16, zeroed, 0.1),
        ]
    }

    #[test]
    fn the_sentence_says_which_is_sooner_safe_and_by_how_much() {
        let below = lines(Against::Below, 2.0, 1.5, 1.0);
        let text = sooner(&below).unwrap();
        assert!(text.contains("4.00 s for each GiB") && text.contains("2.00 s around"), "{text}");
        assert!(text.contains("direct is sooner safe, by a factor of 2.0"), "{text}");
        let text = sooner(&lines(Against::Below, 1.0, 3.0, 4.0)).unwrap();
        assert!(text.contains("buffered is sooner safe, by a factor of 3.0"), "{text}");
        assert!(text.contains("preallocated"), "the direct row that is safe first: {text}");
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
        assert_eq!(bars.len(), 6);
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
        assert!(text.contains("50 % less time than") && !text.contains("metadata"), "{text}");
        let mut dear = below;
        dear[0] = line(Against::Below, How::Buffered, 1, 2.0, 0.05);
        assert!(processor(&dear).unwrap().contains("2.0 times as much direct"));
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
