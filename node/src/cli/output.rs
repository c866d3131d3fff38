//! Results on standard output, errors on standard error, as text or JSON.

use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};

/// How to print results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    format: Format,
}

impl Output {
    pub(crate) fn new(format: Format) -> Output {
        Output { format }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// One line of text.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{text}")
    }

    /// One JSON document, on one line.
    pub(crate) fn json(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{value}")
    }

    /// `value` in JSON, else `text`.
    pub(crate) fn either(
        &self,
        value: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        if self.is_json() { self.json(&value()) } else { self.line(&text()) }
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

    /// The error message, and the exit code.
    pub(crate) fn error(&self, message: &str, exit_code: u8) {
        let mut err = io::stderr().lock();
        // A closed standard error leaves no way to report the failure.
        let _ = if self.is_json() {
            writeln!(err, "{}", json!({ "error": message, "exit_code": exit_code }))
        } else {
            writeln!(err, "cairn: {message}")
        };
    }
}

/// Aligns columns, with two spaces between them. The first row is the head.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
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
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".into(), "bb".into()], vec!["ccc".into(), "d".into()]];
        assert_eq!(table(&rows), "a    bb\nccc  d");
    }
}
