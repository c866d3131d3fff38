//! The report of a game day, for who reads it afterwards: what was done, what was expected, and what happened.

use super::fault::Fault;
use super::gap::Measured;
use super::losses::Losses;
use crate::cli::output::{millis, table};
use cairn_client::shown;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// What became of one fault.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) fault: Fault,
    /// The member, if it was one member's.
    pub(super) slot: Option<u16>,
    /// Why it was not done.
    pub(super) skipped: Option<String>,
    pub(super) measured: Measured,
    /// How long after the fault's end the cluster was well again.
    pub(super) well_after: Option<Duration>,
    /// How many keys were read back.
    pub(super) checked: u64,
    /// These were all keys.
    pub(super) all_checked: bool,
    pub(super) lost: Losses,
    /// The directory that a member lost, if it was not removed.
    pub(super) kept: Option<PathBuf>,
    /// What did not go as it should.
    pub(super) trouble: Option<String>,
    /// It has not ended.
    pub(super) runs: bool,
}

/// All of a game day.
#[derive(Clone, Debug)]
pub(super) struct GameDay {
    pub(super) cluster: String,
    pub(super) began: String,
    pub(super) trials: Vec<Trial>,
    /// What did not go as it should outside of a fault.
    pub(super) trouble: Option<String>,
}

impl Trial {
    pub(super) fn new(fault: Fault) -> Trial {
        Trial {
            fault,
            slot: None,
            skipped: None,
            measured: Measured::default(),
            well_after: None,
            checked: 0,
            all_checked: false,
            lost: Losses::default(),
            kept: None,
            trouble: None,
            runs: false,
        }
    }

    pub(super) fn skipped(fault: Fault, why: &str) -> Trial {
        Trial { skipped: Some(why.to_owned()), ..Trial::new(fault) }
    }

    /// Something more did not go as it should.
    pub(super) fn add_trouble(&mut self, why: &str) {
        add(&mut self.trouble, why);
    }

    /// In a word or two.
    fn verdict(&self) -> &'static str {
        match self {
            Trial { lost, .. } if !lost.is_empty() => "WRITES LOST",
            Trial { trouble: Some(_), .. } => "NOT AS EXPECTED",
            Trial { skipped: Some(_), .. } => "skipped",
            _ => "as expected",
        }
    }

    fn name(&self) -> String {
        match self.slot {
            Some(slot) => format!("{}, slot {slot}", self.fault.name()),
            None => self.fault.name().to_owned(),
        }
    }

    /// What happened, in sentences.
    fn happened(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(why) = &self.skipped {
            said.push(format!("Not done: {why}."));
        } else {
            let Measured { acknowledged, refused, unknown, gap, p50, p99 } = self.measured;
            said.push(format!(
                "{acknowledged} writes were acknowledged (p50 {}, p99 {}), {refused} refused, and of {unknown} the outcome is \
                 unknown. The longest time without an acknowledged write was {}.",
                ms(p50),
                ms(p99),
                ms(gap)
            ));
            if let Some(well) = self.well_after {
                said.push(format!("The cluster was well {} after the fault was ended.", ms(well)));
            }
            said.push(match (self.checked, self.lost.is_empty()) {
                (0, true) => "No key was read back.".to_owned(),
                (0, false) => format!("No key was read back: {}.", self.lost.line()),
                (checked, _) => format!("{checked} keys were read back: {}.", self.lost.line()),
            });
            if let Some(kept) = &self.kept {
                let kept = kept.display();
                said.push(format!("What the member had on its disk is kept in {kept}."));
            }
        }
        said.extend(self.trouble.iter().map(|trouble| format!("Not as expected: {trouble}.")));
        said
    }

    fn as_json(&self) -> Value {
        let Measured { acknowledged, refused, unknown, gap, p50, p99 } = self.measured;
        json!({
            "fault": self.fault.name(),
            "slot": self.slot,
            "expected": self.fault.expected(),
            "verdict": self.verdict(),
            "skipped": self.skipped,
            "acknowledged": acknowledged,
            "refused": refused,
            "unknown": unknown,
            "gap_ms": millis(gap),
            "p50_us": u64::try_from(p50.as_micros()).unwrap_or(u64::MAX),
            "p99_us": u64::try_from(p99.as_micros()).unwrap_or(u64::MAX),
            "well_after_ms": self.well_after.map(millis),
            "checked": self.checked,
            "lost": self.lost.count(),
            "lost_named": self.lost.named(),
            "kept": self.kept.as_ref().map(|kept| kept.display().to_string()),
            "trouble": self.trouble,
        })
    }
}

fn ms(time: Duration) -> String {
    match time {
        time if time < Duration::from_secs(1) => format!("{:.1} ms", time.as_secs_f64() * 1000.0),
        time => format!("{:.1} s", time.as_secs_f64()),
    }
}

fn add(trouble: &mut Option<String>, why: &str) {
    *trouble = Some(match trouble.take() {
        Some(before) => format!("{before}; {why}"),
        None => why.to_owned(),
    });
}

impl GameDay {
    /// How many acknowledged writes are lost.
    pub(super) fn lost(&self) -> u64 {
        self.trials.iter().map(|trial| trial.lost.count()).sum()
    }

    /// Something more did not go as it should, outside of a fault.
    pub(super) fn add_trouble(&mut self, why: &str) {
        add(&mut self.trouble, why);
    }

    /// The fault that has not ended.
    pub(super) fn running(&mut self) -> Option<&mut Trial> {
        self.trials.last_mut().filter(|trial| trial.runs)
    }

    /// What was checked, in a sentence.
    fn checked(&self) -> String {
        let done = || self.trials.iter().filter(|trial| trial.skipped.is_none());
        let (all, read) = (done().count(), done().filter(|trial| trial.all_checked).count());
        let what = "While each fault lasted, a load of its own wrote to the cluster. Of each acknowledged write it was compared what it replaced.";
        match (all, read) {
            (0, _) => "No fault was done.".to_owned(),
            (_, 0) => format!("{what} The keys were not read back."),
            (all, read) if all == read => {
                format!("{what} After each fault every key was read back.")
            }
            (all, read) => format!("{what} Every key was read back after {read} of {all} faults."),
        }
    }

    /// Whether a fault was done, nothing is lost, and all went as expected.
    ///
    /// The story: every fault was skipped, and the day passed.
    pub(super) fn is_passed(&self) -> bool {
        let good = |trial: &Trial| trial.lost.is_empty() && trial.trouble.is_none();
        self.has_fault() && self.trouble.is_none() && self.trials.iter().all(good)
    }

    /// Whether any fault was done.
    fn has_fault(&self) -> bool {
        self.trials.iter().any(|trial| trial.skipped.is_none())
    }

    /// The result in one sentence.
    fn summary(&self) -> String {
        let (skipped, done): (Vec<_>, Vec<_>) =
            self.trials.iter().partition(|trial| trial.skipped.is_some());
        if done.is_empty() {
            return format!("0 faults, {} skipped: no fault was done.", skipped.len());
        }
        let longest = done.iter().map(|trial| trial.measured.gap).max().unwrap_or_default();
        let result = match (self.lost(), self.is_passed()) {
            (0, true) => "nothing is lost, and the cluster came back each time".to_owned(),
            (0, false) => "nothing is known to be lost, but not all went as expected".to_owned(),
            (lost, _) => format!("{lost} ACKNOWLEDGED WRITES ARE LOST"),
        };
        format!(
            "{} faults, {} skipped: {result}. Longest time without an acknowledged write: {}.",
            done.len(),
            skipped.len(),
            ms(longest)
        )
    }

    fn trouble_line(&self) -> Option<String> {
        self.trouble.as_ref().map(|trouble| format!("Not as expected: {trouble}."))
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "cluster": self.cluster,
            "began": self.began,
            "passed": self.is_passed(),
            "lost": self.lost(),
            "trouble": self.trouble,
            "faults": self.trials.iter().map(Trial::as_json).collect::<Vec<_>>(),
        })
    }

    pub(super) fn as_text(&self) -> String {
        let head = ["FAULT", "RESULT", "GAP", "P50", "P99", "WELL AFTER"];
        let rows = self.trials.iter().map(|trial| {
            let done = trial.skipped.is_none();
            let of = |time: Duration| if done { ms(time) } else { "-".to_owned() };
            let Measured { gap, p50, p99, .. } = trial.measured;
            let well = trial.well_after.map_or("-".to_owned(), ms);
            vec![trial.name(), trial.verdict().to_owned(), of(gap), of(p50), of(p99), well]
        });
        let mut text = table(&head, rows);
        for trial in &self.trials {
            // What went as expected is in the table.
            if trial.verdict() != "as expected" || trial.kept.is_some() {
                text += &format!("\n{}: {}", trial.name(), trial.happened().join(" "));
            }
        }
        for line in self.trouble_line().into_iter().chain([self.summary()]) {
            text += &format!("\n{line}");
        }
        text
    }

    /// For people who were not there.
    pub(super) fn as_markdown(&self) -> String {
        let mut text = format!(
            "# Game day of cluster {}\n\nBegan {}. {}\n\n",
            cell(&self.cluster),
            self.began,
            cell(&self.summary())
        );
        text += &format!("{}\n\n", self.checked());
        text += "| fault | result | longest time without an acknowledged write | p50 | p99 |\n|---|---|---|---|---|\n";
        for trial in &self.trials {
            let done = trial.skipped.is_none();
            let of = |time: Duration| if done { ms(time) } else { String::new() };
            let Measured { gap, p50, p99, .. } = trial.measured;
            text += &format!(
                "| {} | {} | {} | {} | {} |\n",
                trial.name(),
                trial.verdict(),
                of(gap),
                of(p50),
                of(p99)
            );
        }
        for trial in &self.trials {
            text += &format!(
                "\n## {}\n\nWhat was done: {}\n\nExpected: {}\n\nWhat happened: {}\n",
                trial.name(),
                trial.fault.what(),
                trial.fault.expected(),
                cell(&trial.happened().join(" "))
            );
        }
        if let Some(line) = self.trouble_line() {
            text += &format!("\n## After the faults\n\n{}\n", cell(&line));
        }
        text
    }
}

/// A text of others, in one line that ends no cell of a table and begins no element of HTML.
fn cell(text: &str) -> String {
    shown::one_line(text).replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(trials: Vec<Trial>) -> GameDay {
        let (cluster, began) = ("staging".to_owned(), "2026-11-30T00:00:00Z".to_owned());
        GameDay { cluster, began, trials, trouble: None }
    }

    fn done(fault: Fault) -> Trial {
        let (gap, p50) = (Duration::from_millis(1300), Duration::from_millis(2));
        let p99 = Duration::from_millis(30);
        let measured = Measured { acknowledged: 100, refused: 2, unknown: 1, gap, p50, p99 };
        let well_after = Some(Duration::from_secs(3));
        let (slot, all_checked) = (Some(2), true);
        Trial { slot, measured, well_after, checked: 64, all_checked, ..Trial::new(fault) }
    }

    #[test]
    fn a_report_says_what_was_done_what_was_expected_and_what_happened() {
        let day = day(vec![done(Fault::Kill), Trial::skipped(Fault::Cut, "there is no network")]);
        assert!(day.is_passed());
        let text = day.as_text();
        assert!(text.contains("kill, slot 2  as expected  1.3 s"), "{text}");
        assert!(text.contains("cut: Not done: there is no network."), "{text}");
        assert!(text.ends_with(
            "1 faults, 1 skipped: nothing is lost, and the cluster came back each time. Longest time without an acknowledged \
             write: 1.3 s."
        ));
        let page = day.as_markdown();
        for words in [
            "# Game day of cluster staging",
            "## kill, slot 2",
            Fault::Kill.expected(),
            "64 keys were read back: nothing is lost.",
            "After each fault every key was read back.",
        ] {
            assert!(page.contains(words), "`{words}` is not in {page}");
        }
        let told = day.as_json();
        assert_eq!((&told["passed"], &told["lost"]), (&json!(true), &json!(0)), "{told}");
        assert_eq!(told["faults"][0]["gap_ms"], 1300, "{told}");
        assert_eq!(told["faults"][1]["skipped"], "there is no network", "{told}");
    }

    #[test]
    fn what_is_lost_is_named_in_every_form() {
        let mut lost = Losses::default();
        for number in 0..12 {
            lost.add(format!("`k{number}`|<b>"));
        }
        let day = day(vec![Trial { lost, ..done(Fault::Kill) }]);
        assert!(!day.is_passed());
        for text in [day.as_text(), day.as_markdown(), day.as_json().to_string()] {
            assert!(text.contains("WRITES LOST") && text.contains("k9"), "{text}");
            assert!(!text.contains("k10"), "{text}");
        }
        assert!(day.as_text().contains("12 ACKNOWLEDGED WRITES ARE LOST"));
        assert!(!day.as_markdown().contains("<b>"));
    }

    /// The story: the cluster was not well in time, nothing was read back, and the page said that every key was.
    #[test]
    fn a_page_says_that_keys_were_read_back_only_if_they_were() {
        let mut unread = Trial { checked: 0, all_checked: false, ..done(Fault::Pause) };
        unread.add_trouble("the cluster is not well");
        unread.add_trouble("256 keys cannot be read back");
        let page = day(vec![unread.clone()]).as_markdown();
        assert!(page.contains("The keys were not read back."), "{page}");
        assert!(page.contains("No key was read back."), "{page}");
        assert!(page.contains("the cluster is not well; 256 keys cannot be read back"), "{page}");
        assert!(!page.contains("every key was read back"), "{page}");
        let page = day(vec![done(Fault::Kill), unread]).as_markdown();
        assert!(page.contains("Every key was read back after 1 of 2 faults."), "{page}");
    }

    #[test]
    fn a_day_on_which_no_fault_was_done_does_not_pass() {
        for trials in [Vec::new(), vec![Trial::skipped(Fault::Cut, "there is no network")]] {
            let day = day(trials);
            assert!(!day.is_passed());
            assert_eq!(day.as_json()["passed"], false);
            for text in [day.as_text(), day.as_markdown()] {
                assert!(text.contains(" skipped: no fault was done."), "{text}");
                assert!(!text.contains("nothing is lost"), "{text}");
            }
            assert!(day.as_markdown().contains("No fault was done."));
        }
    }

    #[test]
    fn what_a_member_had_on_its_disk_is_named_if_it_is_kept() {
        let mut lost = Losses::default();
        lost.add("`k`".to_owned());
        let kept = Some(PathBuf::from("/dev-cluster/node-2.lost"));
        for trial in [
            Trial { kept: kept.clone(), lost, ..done(Fault::Disk) },
            Trial { kept: kept.clone(), ..done(Fault::Disk) },
        ] {
            let day = day(vec![trial]);
            for text in [day.as_text(), day.as_markdown(), day.as_json().to_string()] {
                assert!(text.contains("/dev-cluster/node-2.lost"), "{text}");
            }
        }
    }

    #[test]
    fn what_was_not_undone_fails_the_day() {
        let mut day = day(vec![done(Fault::Stop)]);
        day.add_trouble("slot 2 is not started again");
        assert!(!day.is_passed());
        assert!(day.as_text().contains("slot 2 is not started again"));
        assert!(day.as_markdown().contains("## After the faults"));
    }
}
