//! A question on the terminal that only `yes` answers.

use super::exit::UsageError;
use cairn_client::shown;
use std::io::{self, BufRead, IsTerminal, Write};

/// Asks. `way_out` is for a caller without a terminal.
pub(crate) fn confirm(question: &str, way_out: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        let reason = format!("standard input is not a terminal, so nobody can confirm: {way_out}");
        return Err(UsageError(reason).into());
    }
    let mut err = io::stderr().lock();
    write!(err, "{} Type `yes`: ", shown::lines(question))?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}
