//! fio, an independent check of the raw lines.

use anyhow::{Context, Result};
use cairn_experiments::Samples;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// Answers in this time after the start are not counted.
const WARM_UP: Duration = Duration::from_millis(500);

/// How fio submits its requests.
#[derive(Clone, Copy)]
pub enum Fio {
    /// From one thread, through io_uring.
    Ring,
    /// From one thread for each request under way.
    Threads {
        /// Whether each write is synced.
        dsync: bool,
    },
}

/// What is done to the file, with `O_DIRECT`, at random offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

impl Fio {
    /// Requests of `bytes` per second.
    ///
    /// # Errors
    /// If fio is not installed, or fails.
    pub async fn rate(
        self,
        file: &Path,
        access: Access,
        bytes: usize,
        depth: usize,
        seconds: u64,
    ) -> Result<f64> {
        let (mode, pointer) = match access {
            Access::Read => ("randread", "/jobs/0/read/iops"),
            Access::Write => ("randwrite", "/jobs/0/write/iops"),
        };
        let mut command = Command::new("fio");
        command
            .args(["--name=raw", "--direct=1", "--group_reporting", "--randrepeat=0"])
            .args(["--norandommap", "--time_based", "--output-format=json"])
            .arg(format!("--rw={mode}"))
            .arg(format!("--bs={bytes}"))
            .arg(format!("--ramp_time={}ms", WARM_UP.as_millis()))
            .arg(format!("--runtime={seconds}"))
            .arg(format!("--filename={}", file.display()));
        match self {
            Fio::Ring => command.arg("--ioengine=io_uring").arg(format!("--iodepth={depth}")),
            Fio::Threads { dsync } => {
                if dsync {
                    command.arg("--sync=dsync");
                }
                command.args(["--ioengine=psync", "--thread"]).arg(format!("--numjobs={depth}"))
            }
        };
        let output = command.kill_on_drop(true).output().await.context("fio is not installed")?;
        let json: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("fio's output")?;
        json.pointer(pointer).and_then(serde_json::Value::as_f64).context("fio reported no rate")
    }
}

/// Samples of which only the rate is known.
pub fn rate_only(rate: f64, seconds: u64) -> Result<Samples> {
    let mut samples = Samples::new()?;
    let count = (rate * seconds as f64).round().max(0.0) as u64;
    samples.latencies.record_n(1, count).context("histogram")?;
    samples.elapsed = Duration::from_secs(seconds);
    Ok(samples)
}
