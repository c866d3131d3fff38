//! Pages of documentation with a measured part, which a command writes anew.

use anyhow::{Context, Result};
use std::path::Path;

/// Where the measured part of a page begins and ends.
pub const BEGIN: &str = "<!-- measured: begin -->\n";
/// See [`BEGIN`].
pub const END: &str = "<!-- measured: end -->\n";

/// Replaces the measured part of a page.
///
/// # Errors
/// If the page is not there or has no marks.
pub fn write_measured(page: &Path, measured: &str) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let (head, rest) = text.split_once(BEGIN).context("the page has no mark of a beginning")?;
    let (_, tail) = rest.split_once(END).context("the page has no mark of an end")?;
    let text = format!("{head}{BEGIN}{measured}{END}{tail}");
    std::fs::write(page, text).with_context(|| page.display().to_string())
}
