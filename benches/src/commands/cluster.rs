//! Three Cairn nodes against three members of other systems, one after the other in alternating
//! rounds.
//!
//! The same load generator drives all of them, each in its own protocol, with the same numbers of
//! clients and connections, keys and values. Each round starts with empty data directories on the
//! same disk. A system that is not measured does not run.

use crate::proc_io::{context_switches, device_bytes_written, peak_memory, processor_us};
use crate::progress::Step;
use crate::report::{Line, Ratio, Report, merged};
use crate::systems::cairn::{CairnCluster, ClusterOptions};
use crate::systems::etcd::EtcdCluster;
use crate::systems::nats::NatsCluster;
use crate::systems::workload::Workload;
use crate::systems::{etcd, nats};
use crate::target::DiskArguments;
use anyhow::{Context, Result, bail};
use cairn_experiments::{Limit, Payloads, Samples, drive};
use cairn_launch::command;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// Clients, each with one request at a time.
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// Connections that the clients share, to the leader of each system.
    #[arg(long, default_value_t = 10)]
    connections: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 4096)]
    value_bytes: usize,
    /// Different keys.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// The share of puts. The others are linearizable gets, of keys that are put before: 50, 95 and
    /// 100 gets in 100 are the shapes A, B and C of YCSB.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(..=100))]
    puts_percent: u8,
    /// Ask for some keys more often, by a zipfian distribution with the exponent 0.99, as YCSB does.
    #[arg(long)]
    zipfian: bool,
    /// Rounds of each system.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds measured in each round, after two seconds of warm-up.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Durability mode of Cairn: device, replicated or sync.
    #[arg(long, default_value = "replicated")]
    mode: String,
    /// Size in MiB of each Cairn data directory.
    #[arg(long, default_value_t = 3072)]
    size_mib: u64,
    /// Also measure what more safety costs: mode `sync`, and mode `replicated` with one of three
    /// nodes down.
    #[arg(long)]
    costs: bool,
    /// Make each fdatasync of Cairn's nodes last this many microseconds longer, to see what a
    /// slower disk makes of the modes. The nodes then reach their disk by threads: a sync through
    /// io_uring calls no function that could be replaced.
    #[arg(long, requires = "without_etcd")]
    slower_syncs_us: Option<u64>,
    /// Also measure Cairn with certificates: what TLS costs.
    #[arg(long)]
    tls: bool,
    /// Also measure another `cairn`, such as an older build: the path of its binary.
    #[arg(long)]
    against: Option<PathBuf>,
    /// Do not measure etcd.
    #[arg(long, conflicts_with = "assert_ratio")]
    without_etcd: bool,
    /// Also measure NATS: JetStream's key-value buckets with three replicas.
    #[arg(long)]
    nats: bool,
    /// Also measure etcd and NATS (with `--nats`) the other way round: etcd without fsync, and NATS with
    /// a sync before each acknowledgement.
    #[arg(long)]
    peers_swapped: bool,
    /// Fail if Cairn's rate over etcd's is below this.
    #[arg(long)]
    assert_ratio: Option<f64>,
}

/// Measures the systems.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let mut sides = sides(&arguments)?;
    for side in &sides {
        side.system.check()?;
    }
    if arguments.nats && arguments.puts_percent < 100 {
        bail!("any replica of NATS answers gets, also one that lags: leave --nats out");
    }
    let payloads = Payloads::new(arguments.keys, 1);
    let payloads = if arguments.zipfian { payloads.zipfian() } else { payloads };
    let Arguments { value_bytes, puts_percent, .. } = arguments;
    let workload = Workload { payloads, value_bytes, puts_percent };
    let limit = Limit::Time {
        warm_up: Duration::from_secs(2),
        measured: Duration::from_secs(arguments.seconds),
    };
    let mut report = Report::new("cluster");
    let step = Step::new("measuring");
    for round in 0..arguments.rounds {
        for side in &mut sides {
            let seed = round as u64 + 1;
            let (version, rate) = side.measure(&arguments, &workload, limit, seed).await?;
            step.say(&format!("round {}: {} {rate:.0}/s", round + 1, side.name));
            report.set(side.name, version);
        }
    }
    drop(step);
    let Arguments { clients, connections, .. } = arguments;
    if let Some(us) = arguments.slower_syncs_us {
        report.set("added to each fdatasync", format!("{us} µs"));
    }
    report.set("clients", clients);
    report.set("connections", connections);
    report.set("value bytes", value_bytes);
    report.set("keys", arguments.keys);
    report.set("puts", format!("{puts_percent} % of the requests"));
    report.set("keys are drawn", if arguments.zipfian { "zipfian, 0.99" } else { "uniformly" });
    report.set("rounds", format!("{} of {} s each", arguments.rounds, arguments.seconds));
    report
        .set("processors", std::thread::available_parallelism().map_or(0, std::num::NonZero::get));
    report.notes.push(
        "each system is driven as by its own client library: those of etcd and NATS send one message for each \
         request; Cairn's sends the requests that its callers have ready in one batch"
            .to_owned(),
    );
    report.notes.push(
        "written is what the kernel counts for the processes; etcd's and NATS' files go through the page cache, \
         and what the kernel writes twice is counted once"
            .to_owned(),
    );
    report.notes.push(
        "servers and load generator share this machine: only the ratio can be compared with other machines"
            .to_owned(),
    );
    for side in &sides {
        report.lines.push(Line::new(side.name, &merged(&side.rounds)?, clients));
    }
    let Some((cairn, others)) = sides.split_first() else { return Ok(report) };
    for side in others {
        let (over, under) = match &side.system {
            System::Cairn(Cairn { program: None, .. }) => (side, cairn),
            _ => (cairn, side),
        };
        let name = format!("{} / {}", over.name, under.name);
        let ratio = Ratio::new(name.clone(), &over.rounds, &under.rounds);
        if let (System::Etcd { fsync: true }, Some(least)) = (&side.system, arguments.assert_ratio)
        {
            let (value, what) = (ratio.value, format!("{name} is at least {least}"));
            report.check(what, value >= least, format!("{value:.2}"));
        }
        report.ratios.push(ratio);
    }
    for side in &sides {
        side.cost.print(side.name, &mut report);
    }
    Ok(report)
}

/// Cairn first.
fn sides(arguments: &Arguments) -> Result<Vec<Side>> {
    let cairn =
        |mode: &str| Cairn { mode: mode.to_owned(), degraded: false, program: None, tls: false };
    let own = || cairn(&arguments.mode);
    let mut sides = vec![Side::new("cairn, three nodes", System::Cairn(own()))];
    let mut add = |name, system| sides.push(Side::new(name, system));
    if !arguments.without_etcd {
        add("etcd, three members", System::Etcd { fsync: true });
    }
    if arguments.nats {
        add("NATS, three replicas", System::Nats { sync_always: false });
    }
    if arguments.peers_swapped {
        add("etcd without fsync", System::Etcd { fsync: false });
        if arguments.nats {
            add("NATS, sync always", System::Nats { sync_always: true });
        }
    }
    if arguments.costs {
        let degraded = Cairn { degraded: true, ..cairn("replicated") };
        add("cairn, mode sync", System::Cairn(cairn("sync")));
        add("cairn, mode replicated, one down", System::Cairn(degraded));
    }
    if arguments.tls {
        add("cairn with TLS", System::Cairn(Cairn { tls: true, ..own() }));
    }
    if let Some(program) = &arguments.against {
        let program = program.canonicalize().with_context(|| program.display().to_string())?;
        let other = Cairn { program: Some(program), ..own() };
        add("the other cairn", System::Cairn(other));
    }
    Ok(sides)
}

/// Nodes whose every fdatasync lasts longer.
fn slower_syncs(folder: &Path, us: u64) -> Result<ClusterOptions> {
    let source = folder.join("slower_syncs.rs");
    let library = folder.join("slower_syncs.so");
    std::fs::write(&source, include_str!("../../preload/slower_syncs.rs")).context("a library")?;
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let arguments = ["--edition=2024", "--crate-type=cdylib", "-O", "-o"];
    cairn_launch::run(command(compiler, arguments).arg(&library).arg(source))?;
    let wrapper = move |_: &Path, _| {
        let preload = format!("LD_PRELOAD={}", library.display());
        Some(command("env", [preload, format!("SLOWER_SYNCS_US={us}")]))
    };
    Ok(ClusterOptions {
        backend: "threads",
        wrapper: Box::new(wrapper),
        ..ClusterOptions::default()
    })
}

/// A system and how it runs.
enum System {
    Cairn(Cairn),
    /// `fsync`: as it ships.
    Etcd {
        fsync: bool,
    },
    /// `sync_always`: not as it ships.
    Nats {
        sync_always: bool,
    },
}

struct Cairn {
    /// The durability mode.
    mode: String,
    /// Whether one node is down, so that the quorum is degraded: members sync before they
    /// acknowledge.
    degraded: bool,
    /// Another binary than this workspace's.
    program: Option<PathBuf>,
    /// Connections with certificates.
    tls: bool,
}

impl System {
    /// Finds the program, or builds it.
    fn check(&self) -> Result<()> {
        match self {
            System::Cairn(_) => Ok(()),
            System::Etcd { .. } => etcd::PROGRAM.get().map(drop),
            System::Nats { .. } => nats::PROGRAM.get().map(drop),
        }
    }
}

/// A system and what was measured of it.
struct Side {
    name: &'static str,
    system: System,
    rounds: Vec<Samples>,
    cost: Cost,
}

impl Side {
    fn new(name: &'static str, system: System) -> Side {
        Side { name, system, rounds: Vec::new(), cost: Cost::default() }
    }

    /// Measures a round with a new cluster. Returns what the system says of itself, and the rate.
    async fn measure(
        &mut self,
        arguments: &Arguments,
        workload: &Workload,
        limit: Limit,
        seed: u64,
    ) -> Result<(String, f64)> {
        let Arguments { clients, connections, .. } = *arguments;
        let scratch = arguments.disk.scratch()?;
        let (version, samples) = match &self.system {
            System::Cairn(cairn) => {
                let options = match arguments.slower_syncs_us {
                    Some(us) => slower_syncs(scratch.path(), us)?,
                    None => ClusterOptions::default(),
                };
                let options = ClusterOptions {
                    size_bytes: arguments.size_mib << 20,
                    mode: cairn.mode.clone(),
                    program: cairn.program.clone(),
                    tls: cairn.tls,
                    ..options
                };
                let mut cluster = CairnCluster::start(scratch.path(), &options).await?;
                let fast = cairn.mode == "replicated" && !cairn.degraded;
                if fast {
                    cluster.wait_for_fast_mode(workload, clients).await?;
                }
                if cairn.degraded {
                    cluster.degrade(workload, clients).await?;
                }
                workload.fill(&cluster.client().await?).await?;
                let load = cluster.callers(workload, clients, connections, seed).await?;
                let samples = self.cost.over(&cluster.pids(), drive(load, limit)).await?;
                // Without puts all is synced soon, and the flag is clear.
                let puts = workload.puts_percent > 0;
                if puts
                    && cairn.mode == "replicated"
                    && !cluster.all_have_unsynced_acks(fast).await?
                {
                    bail!("{}: a node switched between the safe and the fast ack mode", self.name);
                }
                let first = cluster.nodes().first().context("a cluster without nodes")?;
                let version =
                    format!("mode {}, backend {}", cairn.mode, first.status().await?.backend);
                cluster.stop().await?;
                (version, samples)
            }
            System::Etcd { fsync } => {
                let cluster = EtcdCluster::start(scratch.path(), *fsync).await?;
                let pool = cluster.connect(connections).await?;
                if let Some(store) = pool.first() {
                    workload.fill(store).await?;
                }
                let load = workload.callers(&pool, clients, seed);
                let samples = self.cost.over(&cluster.pids(), drive(load, limit)).await?;
                let version = cluster.version().to_owned();
                cluster.stop().await?;
                (version, samples)
            }
            System::Nats { sync_always } => {
                let cluster = NatsCluster::start(scratch.path(), *sync_always).await?;
                let pool = cluster.connect(connections).await?;
                if let Some(store) = pool.first() {
                    workload.fill(store).await?;
                }
                let load = workload.callers(&pool, clients, seed);
                let samples = self.cost.over(&cluster.pids(), drive(load, limit)).await?;
                let version = cluster.version().to_owned();
                cluster.stop().await?;
                (version, samples)
            }
        };
        let rate = samples.rate();
        self.rounds.push(samples);
        Ok((version, rate))
    }
}

/// What the requests cost. The servers and the load generator share one machine, so their processor
/// time decides the rate. A request of a single client waits for each switch of a server.
#[derive(Default)]
struct Cost {
    servers_us: u64,
    servers_switches: u64,
    servers_written: u64,
    /// Of all servers together, the most of all rounds.
    servers_memory: u64,
    generator_us: u64,
    requests: u64,
    /// Of the processors, while requests were under way.
    available_us: u64,
}

impl Cost {
    /// Runs a load and adds its processor time.
    async fn over(
        &mut self,
        servers: &[u32],
        load: impl Future<Output = Result<Samples>>,
    ) -> Result<Samples> {
        let used = || servers.iter().map(|pid| processor_us(Some(*pid))).sum::<Result<u64>>();
        let switches = || servers.iter().map(|pid| context_switches(*pid)).sum::<Result<u64>>();
        let written =
            || servers.iter().map(|pid| device_bytes_written(Some(*pid))).sum::<Result<u64>>();
        let memory = || servers.iter().map(|pid| peak_memory(*pid)).sum::<Result<u64>>();
        let before = (used()?, processor_us(None)?, switches()?, written()?);
        let from = Instant::now();
        let samples = load.await?;
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.available_us += from.elapsed().as_micros() as u64 * processors as u64;
        self.servers_us += used()? - before.0;
        self.generator_us += processor_us(None)? - before.1;
        self.servers_switches += switches()?.saturating_sub(before.2);
        self.servers_written += written()? - before.3;
        self.servers_memory = self.servers_memory.max(memory()?);
        self.requests += samples.answered;
        Ok(samples)
    }

    fn print(&self, system: &str, report: &mut Report) {
        let per_request = |sum: u64| sum as f64 / self.requests.max(1) as f64;
        report.figure(
            format!("{system}: processor time of all servers"),
            per_request(self.servers_us),
            "µs per request",
        );
        report.figure(
            format!("{system}: context switches of all servers"),
            per_request(self.servers_switches),
            "per request",
        );
        report.figure(
            format!("{system}: processor time of its clients"),
            per_request(self.generator_us),
            "µs per request",
        );
        report.figure(
            format!("{system}: written by all servers"),
            per_request(self.servers_written) / 1024.0,
            "KiB per request",
        );
        report.figure(
            format!("{system}: memory of all servers at most"),
            self.servers_memory as f64 / f64::from(1 << 20),
            "MiB",
        );
        report.figure(
            format!("{system}: processors busy"),
            100.0 * (self.servers_us + self.generator_us) as f64 / self.available_us.max(1) as f64,
            "% by servers and clients",
        );
    }
}
