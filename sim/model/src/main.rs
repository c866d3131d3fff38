//! `cargo model` makes every search and prints the table. `cargo model --trace RULE` prints what
//! happens without a rule.
#![forbid(unsafe_code)]

use clap::Parser;
use std::io::{self, Write};
use std::process::ExitCode;

/// Explores every state that Cairn's protocol can reach within bounds, and shows what happens
/// without a rule.
#[derive(Parser)]
struct Arguments {
    /// Make only the searches whose names contain this.
    #[arg(default_value = "")]
    filter: String,
    /// Print the shortest counterexample of one search, step by step.
    #[arg(long, value_name = "RULE")]
    trace: Option<String>,
    #[command(flatten)]
    deeper: cairn_model::Deeper,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot print: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<bool> {
    let mut out = io::stdout();
    if let Some(name) = &arguments.trace {
        let Some(text) = cairn_model::trace(name, &arguments.deeper) else {
            let names: Vec<_> = cairn_model::names().collect();
            eprintln!("no search is called `{name}`; the searches are: {}", names.join(", "));
            return Ok(false);
        };
        out.write_all(text.as_bytes())?;
        return Ok(true);
    }
    let wrong = cairn_model::table(&arguments.filter, &arguments.deeper, &mut out)?;
    for line in &wrong {
        eprintln!("NOT AS EXPECTED {line}");
    }
    Ok(wrong.is_empty())
}
