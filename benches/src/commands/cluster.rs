//! Three Cairn nodes against three etcd members, one after the other in alternating rounds.
//!
//! Both are driven by the same load generator, in their own protocol, with the same clients and connections, keys and
//! values; each round starts from empty data directories on the same disk, and the system that is not measured is not
//! running.

use crate::load::{Limit, Samples, drive};
use crate::payload::Payloads;
use crate::proc_io::processor_us;
use crate::progress::Step;
use crate::report::{Line, Ratio, Report, merged};
use crate::systems::cairn::{CairnCluster, ClusterOptions};
use crate::systems::etcd::{self, EtcdCluster};
use crate::target::DiskArguments;
use anyhow::Result;
use std::time::Duration;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    disk: DiskArguments,
    /// Clients, each with one request under way.
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// Connections that the clients share, to the leader of either system.
    #[arg(long, default_value_t = 10)]
    connections: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 4096)]
    value_bytes: usize,
    /// Different keys.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Rounds of each system.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds measured in each round, after two of warm-up.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// What an acknowledgement of Cairn promises: device, replicated or sync.
    #[arg(long, default_value = "replicated")]
    mode: String,
    /// MiB of each Cairn data directory.
    #[arg(long, default_value_t = 3072)]
    size_mib: u64,
    /// Measure Cairn alone.
    #[arg(long, conflicts_with = "assert_ratio")]
    without_etcd: bool,
    /// Fail if Cairn's rate over etcd's is below this.
    #[arg(long)]
    assert_ratio: Option<f64>,
}

/// Measures both systems.
pub async fn run(arguments: Arguments) -> Result<Report> {
    if !arguments.without_etcd {
        etcd::program()?;
    }
    let payloads = Payloads::new(arguments.keys, 1);
    let limit =
        Limit::Time { warm_up: Duration::from_secs(2), measured: Duration::from_secs(arguments.seconds) };
    let options = ClusterOptions {
        size_bytes: arguments.size_mib << 20,
        mode: arguments.mode.clone(),
        ..ClusterOptions::default()
    };
    let Arguments { clients, connections, value_bytes, .. } = arguments;
    let mut report = Report::new("cluster");
    let mut cairn_rounds = Vec::new();
    let mut etcd_rounds = Vec::new();
    let (mut cairn_cost, mut etcd_cost) = (Cost::default(), Cost::default());
    let step = Step::new("measuring");
    for round in 0..arguments.rounds {
        let seed = round as u64 + 1;
        if !arguments.without_etcd {
            let scratch = arguments.disk.scratch()?;
            let cluster = EtcdCluster::start(scratch.path()).await?;
            let putters = cluster.putters(&payloads, value_bytes, clients, connections, seed).await?;
            let samples = etcd_cost.over(&cluster.pids(), drive(putters, limit)).await?;
            step.say(&format!("round {}: etcd {:.0}/s", round + 1, samples.rate()));
            report.set("etcd", cluster.version());
            cluster.stop().await?;
            etcd_rounds.push(samples);
        }
        let scratch = arguments.disk.scratch()?;
        let cluster = CairnCluster::start(scratch.path(), &options).await?;
        let putters = cluster.putters(&payloads, value_bytes, clients, connections, seed).await?;
        let samples = cairn_cost.over(&cluster.pids(), drive(putters, limit)).await?;
        step.say(&format!("round {}: cairn {:.0}/s", round + 1, samples.rate()));
        if let Some(node) = cluster.nodes().first() {
            let storage = node.status().await?;
            report.set("cairn", format!("mode {}, backend {}", storage.mode, storage.backend));
        }
        cluster.stop().await?;
        cairn_rounds.push(samples);
    }
    drop(step);
    report.set("clients", clients);
    report.set("connections", connections);
    report.set("value bytes", value_bytes);
    report.set("keys", arguments.keys);
    report.set("rounds", format!("{} of {} s each", arguments.rounds, arguments.seconds));
    report.set("processors", std::thread::available_parallelism().map_or(0, std::num::NonZero::get));
    report.notes.push(
        "each system is spoken to as its own client library does it: etcd's sends one call for each put; Cairn's gathers \
         what its callers have ready and sends it together"
            .to_owned(),
    );
    report.notes.push("servers and load generator share this machine; only the ratio travels".to_owned());
    if !etcd_rounds.is_empty() {
        report.lines.push(Line::new("etcd, three members", &merged(&etcd_rounds)?, clients));
    }
    report.lines.push(Line::new("cairn, three nodes", &merged(&cairn_rounds)?, clients));
    if !etcd_rounds.is_empty() {
        let ratio = Ratio::new("cairn / etcd", &cairn_rounds, &etcd_rounds);
        let value = ratio.value;
        report.ratios.push(ratio);
        if let Some(least) = arguments.assert_ratio {
            report.check(format!("cairn / etcd is at least {least}"), value >= least, format!("{value:.2}"));
        }
    }
    if !etcd_rounds.is_empty() {
        etcd_cost.print("etcd", &mut report);
    }
    cairn_cost.print("cairn", &mut report);
    Ok(report)
}

/// Processor time of the servers and of the load generator: where all share one machine, this decides the rate.
#[derive(Default)]
struct Cost {
    servers_us: u64,
    generator_us: u64,
    puts: u64,
}

impl Cost {
    /// Adds what a load costs.
    async fn over(
        &mut self,
        servers: &[u32],
        load: impl Future<Output = Result<Samples>>,
    ) -> Result<Samples> {
        let sum = || servers.iter().map(|pid| processor_us(Some(*pid))).sum::<Result<u64>>();
        let before = (sum()?, processor_us(None)?);
        let samples = load.await?;
        self.servers_us += sum()? - before.0;
        self.generator_us += processor_us(None)? - before.1;
        self.puts += samples.answered;
        Ok(samples)
    }

    fn print(&self, system: &str, report: &mut Report) {
        let per_put = |us: u64| us as f64 / self.puts.max(1) as f64;
        report.figure(
            format!("{system}: processor time of all servers"),
            per_put(self.servers_us),
            "µs per put",
        );
        report.figure(
            format!("{system}: processor time of its clients"),
            per_put(self.generator_us),
            "µs per put",
        );
    }
}
