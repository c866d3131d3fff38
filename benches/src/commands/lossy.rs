//! Power cuts of one machine under load, by `cargo lossy`, as a result that can be kept.

use crate::report::Report;
use crate::results::workspace;
use anyhow::{Context, Result, ensure};
use cairn_experiments::median;
use serde::Deserialize;
use std::process::Stdio;
use tokio::process::Command;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    /// Power cuts of one machine.
    #[arg(long, default_value_t = 200)]
    cuts: u64,
    /// The durability mode.
    #[arg(long, default_value = "replicated")]
    mode: String,
}

/// What `cargo lossy --json` says of a scenario, as far as it is kept.
#[derive(Deserialize)]
struct Figures {
    backend: String,
    rounds: u64,
    acknowledged: u64,
    wrong: Vec<String>,
    recovery_ms: Vec<u64>,
}

/// Cuts the power.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let child = Command::new(cargo)
        .current_dir(workspace()?)
        .args(["run", "--release", "--quiet", "--package", "cairn-lossy", "--", "--json"])
        .args(["--mode", &arguments.mode, "--cuts", &arguments.cuts.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let output = child.context("cargo lossy")?.wait_with_output().await?;
    ensure!(!output.stdout.is_empty(), "cargo lossy ended with {}", output.status);
    let figures: Figures =
        serde_json::from_slice(&output.stdout).context("the figures of cargo lossy")?;
    Ok(report(&arguments, &figures))
}

fn report(arguments: &Arguments, figures: &Figures) -> Report {
    let mut report = Report::new("lossy");
    report.set("mode", &arguments.mode);
    report.set("backend", &figures.backend);
    report.figure("power cuts", figures.rounds as f64, "");
    report.figure("acknowledged writes", figures.acknowledged as f64, "");
    report.figure("faults", figures.wrong.len() as f64, "");
    let seconds: Vec<f64> = figures.recovery_ms.iter().map(|ms| *ms as f64 / 1e3).collect();
    if !seconds.is_empty() {
        report.figure("back after, median", median(&seconds), "s");
    }
    let found = figures.wrong.join("; ");
    report.check("nothing is lost, damaged or stuck", figures.wrong.is_empty(), found);
    let cuts = format!("{} power cuts", arguments.cuts);
    report.check(format!("all {cuts} were made"), figures.rounds == arguments.cuts, figures.rounds);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_and_a_missing_cut_each_fail_the_result() {
        let arguments = Arguments { cuts: 2, mode: "replicated".into() };
        let figures = |rounds, wrong: &[&str]| Figures {
            backend: "threads".into(),
            rounds,
            acknowledged: 7,
            wrong: wrong.iter().map(|text| (*text).to_owned()).collect(),
            recovery_ms: vec![500, 700],
        };
        let good = report(&arguments, &figures(2, &[]));
        assert!(good.passed());
        assert_eq!(good.value("back after, median"), Some(0.6));
        assert!(!report(&arguments, &figures(2, &["lost"])).passed());
        assert!(!report(&arguments, &figures(1, &[])).passed());
    }
}
