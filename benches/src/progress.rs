//! Progress bars on the terminal. Shows nothing if standard error is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A spinner with elapsed time that disappears when dropped.
pub struct Step(ProgressBar);

impl Step {
    /// Shows `what` until it is dropped.
    pub fn new(what: impl Into<String>) -> Step {
        let bar = ProgressBar::new_spinner().with_message(what.into());
        bar.enable_steady_tick(Duration::from_millis(120));
        Step(bar)
    }

    /// Prints a line above the bar. It stays, and is printed without a terminal too.
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

/// A progress bar that counts bytes.
pub fn bytes_bar(what: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {eta}")
    {
        bar.set_style(style);
    }
    bar
}
