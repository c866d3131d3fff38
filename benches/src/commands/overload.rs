//! Large puts by many more clients than the cluster has room for, beside the usual number: what
//! share of the usual rate is left, and how many puts fail.
//!
//! `cairn bench` is the load, as an operator would put it: it retries as the client library does,
//! and counts what failed for good. Each number of clients meets a cluster of its own.

use crate::progress::Step;
use crate::report::{Line, Ratio, Report};
use crate::systems::cairn::{CairnCluster, ClusterOptions};
use crate::target::DiskArguments;
use anyhow::{Context, Result, ensure};
use cairn_experiments::median;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::Stdio;
use tokio::process::Command;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// The usual number of clients, over ten connections to each node.
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// The larger numbers of clients.
    #[arg(long, value_delimiter = ',', default_value = "2000,4000,8000")]
    many: Vec<usize>,
    /// Connections to each node of the larger numbers of clients.
    #[arg(long, default_value_t = 300)]
    connections: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 102_400)]
    value_bytes: usize,
    /// Rounds of each number of clients.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each round.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Fail if the share that is left of the usual rate is below this with any number of clients.
    #[arg(long)]
    assert_share: Option<f64>,
}

/// The connections of the usual number of clients.
const USUAL_CONNECTIONS: usize = 10;

/// What `cairn bench --json` prints, as far as it is used.
#[derive(Clone, Deserialize)]
struct Load {
    elapsed_seconds: f64,
    requests_under_way: f64,
    puts: Puts,
}

#[derive(Clone, Deserialize)]
struct Puts {
    requests: u64,
    per_second: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    errors: BTreeMap<String, u64>,
}

/// One number of clients, and its rounds.
struct Side {
    clients: usize,
    connections: usize,
    rounds: Vec<Load>,
}

/// Measures each number of clients in each round.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let usual =
        Side { clients: arguments.clients, connections: USUAL_CONNECTIONS, rounds: Vec::new() };
    let larger = arguments.many.iter().map(|clients| Side {
        clients: *clients,
        connections: arguments.connections,
        rounds: Vec::new(),
    });
    let mut sides: Vec<Side> = std::iter::once(usual).chain(larger).collect();
    let step = Step::new("measuring");
    for round in 1..=arguments.rounds {
        for side in &mut sides {
            let load = side.measure(&arguments).await?;
            let (rate, clients) = (load.puts.per_second, side.clients);
            step.say(&format!("round {round}: {clients} clients, {rate:.0}/s"));
            side.rounds.push(load);
        }
    }
    drop(step);
    Ok(report(&arguments, &sides))
}

impl Side {
    async fn measure(&self, arguments: &Arguments) -> Result<Load> {
        let scratch = arguments.disk.scratch()?;
        let cluster = CairnCluster::start(scratch.path(), &ClusterOptions::default()).await?;
        let mut command = Command::new(crate::systems::cairn::program()?);
        command.args(["bench", "--json", "--yes", "--endpoints", &cluster.endpoints().join(",")]);
        for (option, value) in [
            ("--clients", self.clients),
            ("--connections", self.connections),
            ("--size", arguments.value_bytes),
        ] {
            command.args([option, &value.to_string()]);
        }
        command.args(["--seconds", &arguments.seconds.to_string()]);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.context("cairn bench")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.stdout.is_empty(), "cairn bench ended with {}: {said}", output.status);
        let load = serde_json::from_slice(&output.stdout).context("the figures of cairn bench")?;
        cluster.stop().await?;
        Ok(load)
    }

    fn line(&self) -> Line {
        let of =
            |value: fn(&Load) -> f64| median(&self.rounds.iter().map(value).collect::<Vec<f64>>());
        Line {
            name: format!("{} clients", self.clients),
            operations: self.rounds.iter().map(|load| load.puts.requests).sum(),
            seconds: self.rounds.iter().map(|load| load.elapsed_seconds).sum(),
            per_second: of(|load| load.puts.per_second),
            mean_us: of(|load| load.puts.mean_us),
            p50_us: of(|load| load.puts.p50_us),
            p99_us: of(|load| load.puts.p99_us),
            p999_us: of(|load| load.puts.p99_9_us),
            little: of(|load| load.requests_under_way),
            clients: self.clients,
        }
    }
}

fn report(arguments: &Arguments, sides: &[Side]) -> Report {
    let mut report = Report::new("overload");
    report.set("value bytes", arguments.value_bytes);
    report.set("connections to each node", arguments.connections);
    report.set("rounds", format!("{} of {} s each", arguments.rounds, arguments.seconds));
    report.notes.push("each line is the median of its rounds".to_owned());
    for side in sides {
        report.lines.push(side.line());
        let failed = side.rounds.iter().flat_map(|load| load.puts.errors.values()).sum::<u64>();
        report.figure(format!("{} clients: puts that failed", side.clients), failed as f64, "");
    }
    let Some((usual, larger)) = sides.split_first() else { return report };
    for side in larger {
        let pairs = side.rounds.iter().zip(&usual.rounds);
        let rounds: Vec<f64> =
            pairs.map(|(many, usual)| many.puts.per_second / usual.puts.per_second).collect();
        let (name, value) =
            (format!("{} / {} clients", side.clients, usual.clients), median(&rounds));
        if let Some(least) = arguments.assert_share {
            report.check(
                format!("{name} is at least {least}"),
                value >= least,
                format!("{value:.2}"),
            );
        }
        report.ratios.push(Ratio { name, value, rounds });
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn a_share_is_the_median_of_its_rounds_and_one_that_is_too_small_fails() {
        let side = |clients, rates: [f64; 3]| {
            let load = |per_second| Load {
                elapsed_seconds: 1.0,
                requests_under_way: clients as f64,
                puts: Puts {
                    requests: 10,
                    per_second,
                    mean_us: 1.0,
                    p50_us: 1.0,
                    p99_us: 2.0,
                    p99_9_us: 3.0,
                    errors: [("timeout".to_owned(), 2)].into(),
                },
            };
            Side { clients, connections: 1, rounds: rates.map(load).to_vec() }
        };
        let sides = [side(100, [100.0, 200.0, 100.0]), side(8000, [80.0, 150.0, 90.0])];
        let asked = |share: &str| {
            let Alone { arguments } = Alone::parse_from(["", "--assert-share", share]);
            report(&arguments, &sides)
        };
        assert_eq!(asked("0.8").ratio("8000 / 100 clients"), Some(0.8));
        assert_eq!(asked("0.8").value("8000 clients: puts that failed"), Some(6.0));
        assert!(asked("0.8").passed() && !asked("0.81").passed());
    }
}
