//! Results that are kept: the JSON files in `benches/results`, from which README's table is made.

use crate::machine::Machine;
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The version of the form. It changes when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// A result, with what is needed to judge it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of Cairn.
    pub cairn: String,
    /// The commit that was measured, and whether files differed from it.
    pub commit: String,
    /// Where.
    pub machine: Machine,
    /// What was found.
    pub report: Report,
}

/// The folder of the results.
///
/// # Errors
/// None in practice: the package lies in a workspace.
pub fn folder() -> Result<PathBuf> {
    Ok(workspace()?.join("benches").join("results"))
}

/// The workspace's folder.
///
/// # Errors
/// None in practice: the package lies in a workspace.
pub fn workspace() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("workspace")
}

/// Keeps a report under the name of its bench. Returns the file.
///
/// # Errors
/// The system's.
pub fn keep(folder: &Path, report: &Report, machine: Machine) -> Result<PathBuf> {
    let kept = Kept {
        schema: SCHEMA,
        cairn: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(),
        machine,
        report: report.clone(),
    };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let file = folder.join(format!("{}.json", report.bench));
    let text = serde_json::to_string_pretty(&kept)? + "\n";
    std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    Ok(file)
}

/// The kept result of a bench.
///
/// # Errors
/// If it is not there or of another form; if a check of it failed.
pub fn load(folder: &Path, bench: &str) -> Result<Kept> {
    let file = folder.join(format!("{bench}.json"));
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let kept: Kept = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    ensure!(kept.schema == SCHEMA, "{}: schema {}", file.display(), kept.schema);
    ensure!(kept.report.passed(), "{}: a check of this result failed", file.display());
    Ok(kept)
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit}, with changes"),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_result_is_loaded_as_it_was_and_a_failed_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::of(folder.path()).unwrap();
        let mut report = Report::new("engine");
        report.figure("f", 1.5, "per s");
        report.check("holds", true, "yes");
        keep(folder.path(), &report, machine.clone()).unwrap();
        let kept = load(folder.path(), "engine").unwrap();
        assert_eq!((kept.report, kept.machine), (report.clone(), machine.clone()));
        report.check("does not", false, "no");
        keep(folder.path(), &report, machine).unwrap();
        assert!(load(folder.path(), "engine").is_err());
        assert!(load(folder.path(), "cluster").is_err());
    }
}
