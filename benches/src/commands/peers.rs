//! The engine beside embedded peers. The work is done by `benches/peers`, a package with a workspace
//! of its own: RocksDB takes minutes to compile. This command builds it and runs it.

use crate::progress::Step;
use crate::report::Report;
use crate::results::workspace;
use crate::target::DiskArguments;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// Lines of the compiler's last words that are kept as the reason why a peer is missing.
const REASON_LINES: usize = 3;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// Few keys and short rounds: under two minutes instead of under ten, once it is built.
    #[arg(long)]
    quick: bool,
    /// Bytes of a value.
    #[arg(long, default_value_t = 4096)]
    value_bytes: u32,
    /// Different keys, all put before the first round. By default as many as 1 GiB of values has,
    /// and at most 1,048,576.
    #[arg(long)]
    keys: Option<u64>,
    /// Rounds of each row: five are needed for a result that counts.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Measure without RocksDB, which needs a C++ compiler, libclang, and minutes to compile.
    #[arg(long)]
    without_rocksdb: bool,
}

impl Arguments {
    /// A result of its own for each kind of run: only the first is README's.
    fn name(&self) -> String {
        let mut name = "peers".to_owned();
        if self.value_bytes != 4096 {
            name += &format!("-{}", self.value_bytes);
        }
        if self.quick {
            name += "-quick";
        }
        name
    }
}

/// Builds and runs the peers.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let package = workspace()?.join("benches").join("peers");
    let missing = build(&package, arguments.without_rocksdb).await?;
    let scratch = arguments.disk.scratch()?;
    let mut command = cargo(&package, "run", missing.is_some())?;
    command.arg("--quiet").arg("--").arg("--dir").arg(scratch.path());
    command.args(["--value-bytes", &arguments.value_bytes.to_string()]);
    command.args(["--rounds", &arguments.rounds.to_string()]);
    if arguments.quick {
        command.arg("--quick");
    }
    if let Some(keys) = arguments.keys {
        command.args(["--keys", &keys.to_string()]);
    }
    if let Some(reason) = missing {
        command.args(["--without-rocksdb", &reason]);
    }
    // On Unix cargo replaces itself by the program, so that the program is what is killed.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let output = child.context("the peers")?.wait_with_output().await?;
    if !output.status.success() {
        bail!("the peers ended with {}", output.status);
    }
    let mut report: Report = serde_json::from_slice(&output.stdout).context("the peers' report")?;
    report.bench = arguments.name();
    report.set("directory", arguments.disk.dir.display());
    Ok(report)
}

/// Builds the package. Returns why it is built without RocksDB, if it is.
async fn build(package: &Path, without_rocksdb: bool) -> Result<Option<String>> {
    let step = Step::new("building the peers; RocksDB takes some minutes, once");
    if without_rocksdb {
        build_with(package, true).await?.map_err(anyhow::Error::msg)?;
        return Ok(Some("left out by --without-rocksdb".to_owned()));
    }
    let Err(output) = build_with(package, false).await? else { return Ok(None) };
    let reason = reason(&output);
    step.say(&format!("without RocksDB: {reason}"));
    // A fault of this package fails this build too.
    build_with(package, true).await?.map_err(anyhow::Error::msg)?;
    Ok(Some(reason))
}

/// Builds with or without RocksDB. The inner error is what cargo said.
async fn build_with(package: &Path, without_rocksdb: bool) -> Result<Result<(), String>> {
    let mut command = cargo(package, "build", without_rocksdb)?;
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.context("cargo")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(if output.status.success() { Ok(()) } else { Err(said) })
}

/// The lines that say what went wrong.
fn reason(output: &str) -> String {
    let errors = output.lines().map(str::trim);
    let errors = errors.filter(|line| line.contains("error") || line.contains("panicked"));
    let errors: Vec<&str> = errors.take(REASON_LINES).collect();
    if errors.is_empty() { "its build failed".to_owned() } else { errors.join(" ") }
}

/// Cargo in the package's folder, whose `.cargo/config.toml` has settings for it.
fn cargo(package: &Path, command: &str, without_rocksdb: bool) -> Result<Command> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    cargo.current_dir(package).args([command, "--release", "--locked"]);
    // A relative one means the folder where this program was started.
    if let Some(target) = std::env::var_os("CARGO_TARGET_DIR") {
        let target: PathBuf = std::path::absolute(OsStr::new(&target)).context("target folder")?;
        cargo.env("CARGO_TARGET_DIR", target);
    }
    if without_rocksdb {
        cargo.arg("--no-default-features");
    }
    Ok(cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_failed_build_is_its_errors() {
        let output = "   Compiling a\nerror: failed to run custom build command\n\n  more\n\
                      thread 'main' panicked at b.rs: no libclang\nwarning: c\n";
        let text = reason(output);
        assert!(text.contains("custom build command") && text.contains("no libclang"), "{text}");
        assert_eq!(reason(""), "its build failed");
    }
}
