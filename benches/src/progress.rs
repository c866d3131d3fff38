//! Bars on the terminal while a run takes its time; nothing where standard error is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A spinner with elapsed time that disappears when dropped.
pub struct Step(ProgressBar);

impl Step {
    /// Shows what is going on.
    pub fn new(what: impl Into<String>) -> Step {
        let bar = ProgressBar::new_spinner().with_message(what.into());
        bar.enable_steady_tick(Duration::from_millis(120));
        Step(bar)
    }

    /// Prints a line above the bar that stays, also where there is no terminal.
    pub fn say(&self, line: &str) {
        if self.0.is_hidden() {
            eprintln!("{line}");
        } else {
            self.0.println(line);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar of bytes.
pub fn bytes_bar(what: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    bar
}
