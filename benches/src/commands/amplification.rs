//! Bytes written to the device per user byte, by the engine's count and by the kernel's.

use crate::proc_io;
use crate::progress::Step;
use crate::report::Report;
use crate::systems::cairn::{self, CairnCluster};
use crate::systems::workload::Workload;
use crate::target::{BackendArgument, DiskArguments, make_engine};
use anyhow::{Context, Result};
use cairn_engine::Mode;
use cairn_experiments::{EngineLog, Limit, Payloads, Putter, drive};
use std::path::Path;
use std::time::Duration;

/// Value sizes in bytes, each with the most device bytes per user byte that `--assert` accepts.
const SIZES: [(usize, f64); 2] = [(4 << 10, 1.3), (64 << 10, 1.1)];
/// The engine counts a checkpoint when it is complete, the kernel while it is written.
const MOST_DISAGREEMENT: f64 = 0.05;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// I/O backend.
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendArgument,
    /// MiB of values to write for each value size.
    #[arg(long, default_value_t = 1024)]
    user_mib: u64,
    /// Concurrent requests.
    #[arg(long, default_value_t = 100)]
    depth: usize,
    /// Also measure each replica of a cluster of three `cairn serve` processes.
    #[arg(long)]
    cluster: bool,
    /// Fail above 1.3 for 4 KiB values or above 1.1 for 64 KiB values.
    #[arg(long)]
    assert: bool,
}

/// Device bytes per user byte.
struct Amplification {
    engine: f64,
    kernel: f64,
}

/// Measures each size.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let mut report = Report::new("amplification");
    report.set("user MiB of each size", arguments.user_mib);
    report.set("requests under way", arguments.depth);
    report.set("directory", arguments.disk.dir.display());
    for (value_bytes, most) in SIZES {
        let name = format!("engine, {} KiB values", value_bytes >> 10);
        let scratch = arguments.disk.scratch()?;
        let found =
            engine_alone(&arguments, scratch.path(), value_bytes).await.context(name.clone())?;
        add(&mut report, &name, &found, arguments.assert.then_some(most));
    }
    if arguments.cluster {
        for (value_bytes, most) in SIZES {
            let scratch = arguments.disk.scratch()?;
            let replicas = of_cluster(&arguments, scratch.path(), value_bytes).await?;
            for (slot, found) in (1..).zip(&replicas) {
                let name = format!("cluster, replica {slot}, {} KiB values", value_bytes >> 10);
                add(&mut report, &name, found, arguments.assert.then_some(most));
            }
        }
    }
    report.notes.push(
        "device bytes are values with padding, journal, checkpoints and superblock; formatting is not counted"
            .to_owned(),
    );
    Ok(report)
}

fn add(report: &mut Report, name: &str, found: &Amplification, most: Option<f64>) {
    report.figure(name, found.engine, "device bytes per user byte");
    report.figure(
        format!("{name}, by the kernel's count"),
        found.kernel,
        "device bytes per user byte",
    );
    if let Some(most) = most {
        let text = format!("{:.3}, by the kernel's count {:.3}", found.engine, found.kernel);
        report.check(
            format!("{name}: at most {most}"),
            found.engine <= most && found.kernel <= most,
            &text,
        );
        let apart = (found.engine / found.kernel - 1.0).abs();
        report.check(
            format!("{name}: engine and kernel agree"),
            apart <= MOST_DISAGREEMENT,
            format!("{:.2} % apart", apart * 100.0),
        );
    }
}

async fn engine_alone(
    arguments: &Arguments,
    path: &Path,
    value_bytes: usize,
) -> Result<Amplification> {
    let user_bytes = arguments.user_mib << 20;
    let keys = keys_for(user_bytes, value_bytes);
    let engine =
        make_engine(&path.join("engine"), user_bytes * 2, Mode::Replicated, arguments.backend)
            .await?;
    let _step = Step::new(format!("engine, {value_bytes} byte values"));
    let before = (engine.status(), proc_io::device_bytes_written(None)?);
    let log = EngineLog::start(engine, 128 << 20);
    let payloads = Payloads::new(keys, 1);
    let putters = Putter::many(&log, &payloads, value_bytes, arguments.depth, 1);
    drive(putters, Limit::Operations(user_bytes / value_bytes as u64)).await?;
    log.engine().sync().await?;
    let after = (log.engine().status(), proc_io::device_bytes_written(None)?);
    log.engine().close().await?;
    let user = (after.0.user_bytes_written - before.0.user_bytes_written) as f64;
    Ok(Amplification {
        engine: (after.0.device_bytes_written - before.0.device_bytes_written) as f64 / user,
        kernel: (after.1 - before.1) as f64 / user,
    })
}

/// A number of keys such that each is written about four times, so that space is freed and reused.
fn keys_for(user_bytes: u64, value_bytes: usize) -> u64 {
    (user_bytes / value_bytes as u64 / 4).max(1)
}

async fn of_cluster(
    arguments: &Arguments,
    path: &Path,
    value_bytes: usize,
) -> Result<Vec<Amplification>> {
    let user_bytes = arguments.user_mib << 20;
    let options =
        cairn::ClusterOptions { size_bytes: user_bytes * 2, ..cairn::ClusterOptions::default() };
    let cluster = CairnCluster::start(path, &options).await?;
    let _step = Step::new(format!("cluster, {value_bytes} byte values"));
    let before = counters(&cluster).await?;
    let payloads = Payloads::new(keys_for(user_bytes, value_bytes), 1);
    let workload = Workload::puts(&payloads, value_bytes);
    let clients = cluster.callers(&workload, arguments.depth, 1, 1).await?;
    drive(clients, Limit::Operations(user_bytes / value_bytes as u64)).await?;
    // Followers may learn of the last entries only with the next heartbeat.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = counters(&cluster).await?;
    cluster.stop().await?;
    Ok(before
        .iter()
        .zip(&after)
        .map(|(before, after)| Amplification {
            engine: (after.0 - before.0) as f64 / user_bytes as f64,
            kernel: (after.1 - before.1) as f64 / user_bytes as f64,
        })
        .collect())
}

/// The bytes that each node wrote: by its status, and by the kernel's count.
async fn counters(cluster: &CairnCluster) -> Result<Vec<(u64, u64)>> {
    let mut counters = Vec::new();
    for node in cluster.nodes() {
        let storage = node.status().await?;
        counters
            .push((storage.device_bytes_written, proc_io::device_bytes_written(Some(node.pid()))?));
    }
    Ok(counters)
}
