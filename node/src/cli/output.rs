//! Results on standard output, errors on standard error, as text or JSON.
//!
//! What holds here: in JSON a command that succeeds prints one document, on one line. A command that
//! fails prints its error as one document on standard error. Whatever others wrote, and a text shows, can
//! do nothing to a terminal: only [`Output::raw`] prints bytes as they are. A standard error that is
//! closed or full ends no command.

use cairn_client::{Error, shown};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// The longest error that is printed whole, in bytes. A caller's own input may be longer.
const ERROR_BYTES: usize = 4 << 10;

/// What a node told, in JSON with the address at which it answered.
#[derive(Serialize)]
pub(super) struct OfEndpoint<'a, T> {
    pub(super) endpoint: &'a str,
    #[serde(flatten)]
    pub(super) told: &'a T,
}

/// How to print results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

impl Output {
    pub(crate) fn is_json(&self) -> bool {
        *self == Output::Json
    }

    /// One line of text.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{}", shown::lines(text))
    }

    /// One JSON document, on one line.
    pub(crate) fn json(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{}", shown::json(&value.to_string()))
    }

    /// `value` in JSON, else `text`.
    pub(crate) fn either(
        &self,
        value: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        if self.is_json() { self.json(&value()) } else { self.line(&text()) }
    }

    /// Part of one JSON document.
    pub(crate) fn part(&self, text: &str) -> io::Result<()> {
        io::stdout().lock().write_all(shown::json(text).as_bytes())
    }

    /// Exactly these bytes. On a terminal a line end follows if they have none.
    pub(crate) fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        if out.is_terminal() && bytes.last() != Some(&b'\n') {
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Something to know before the result, on standard error.
    pub(crate) fn note(&self, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        match self.is_json() {
            true => tell(&shown::json(&value().to_string())),
            false => tell(&text()),
        }
    }

    /// A warning, on standard error: for people. There is one document for programs.
    pub(crate) fn warning(&self, warning: &str) {
        if !self.is_json() {
            tell(&format!("cairn: warning: {warning}"));
        }
    }

    /// The error message, and the exit code.
    pub(crate) fn error(&self, message: &str, exit_code: u8) {
        let message = shown::excerpt(message, ERROR_BYTES);
        match self.is_json() {
            true => {
                let document = json!({ "error": message, "exit_code": exit_code }).to_string();
                tell(&shown::json(&document));
            }
            false => tell(&format!("cairn: {message}")),
        }
    }
}

/// Says something on standard error. One that is closed or full leaves no way to say it, and does not
/// end the work.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", shown::lines(text));
}

/// A length of time in milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Aligns columns, with two spaces between them. `head` is the first row.
pub(crate) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let head = head.iter().map(ToString::to_string).collect();
    // A cell is on one line, whoever wrote it.
    let shown = |row: Vec<String>| row.iter().map(|cell| shown::one_line(cell).into()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows.into_iter().map(shown)).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let cells: Vec<String> = cells.collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Why a node has no row of its own in a table.
pub(crate) fn silence(reason: &Error) -> &'static str {
    if reason.is_denied() { "not allowed" } else { "unreachable" }
}

/// A table, and below it one line for each note.
pub(crate) fn table_with_notes(
    head: &[&str],
    rows: Vec<Vec<String>>,
    notes: impl IntoIterator<Item = String>,
) -> String {
    std::iter::once(table(head, rows)).chain(notes).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_aligned() {
        assert_eq!(table(&["a", "bb"], [vec!["ccc".into(), "d".into()]]), "a    bb\nccc  d");
    }

    #[test]
    fn a_cell_is_one_line_whoever_wrote_it() {
        let hostile = table(&["a"], [vec!["1\n2\u{1b}[2J".into()]]);
        assert_eq!(hostile, "a\n1\\n2\\u{1b}[2J");
    }
}
