//! Bars of what is done, on a terminal's standard error. Elsewhere nothing is shown.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of bytes.
pub(crate) fn of_bytes(total: u64, message: &str) -> ProgressBar {
    bar(total, message, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// A bar of keys.
pub(crate) fn of_keys(total: u64, message: &str) -> ProgressBar {
    bar(total, message, "{msg} {wide_bar} {pos}/{len} keys {eta}")
}

fn bar(total: u64, message: &str, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let bar = ProgressBar::new(total);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(message.to_owned());
    bar
}
