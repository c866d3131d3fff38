//! `cairn doctor`: what the machine of a data directory can promise, and why.

use super::exit::{Exit, UsageError};
use super::output::{Output, table};
use super::server_options::ServerOptions;
use cairn_node::NodeConfig;
use cairn_node::config::parse_size;
use cairn_node::doctor::{Plan, Report, examine};
use clap::Args;
use std::path::PathBuf;

/// Voters if neither an option nor the configuration says how many.
const DEFAULT_VOTERS: usize = 3;

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Data directory: formatted, empty, or not there yet. Not needed with --config
    dir: Option<String>,

    /// Configuration of the directory: gives its path, its size and the number of voters
    #[arg(short, long, env = "CAIRN_CONFIG")]
    config: Option<PathBuf>,

    /// Voters of the cluster, 3 by default
    #[arg(long)]
    voters: Option<usize>,

    /// Planned size of the directory in bytes, such as 100GiB
    #[arg(long)]
    size: Option<String>,
}

pub(crate) fn run(args: DoctorArgs, output: &Output) -> anyhow::Result<Exit> {
    let (directory, plan) = plan(args)?;
    let report = examine(&directory, plan)?;
    output.either(|| report.json(), || as_text(&report))?;
    Ok(if report.verdict.mode.is_some() { Exit::Done } else { Exit::NothingJustified })
}

/// The directory, and what is planned for it.
fn plan(args: DoctorArgs) -> anyhow::Result<(PathBuf, Plan)> {
    let size = args.size.as_deref().map(parse_size).transpose();
    let size = size.map_err(|reason| UsageError(format!("--size: {reason}")))?;
    let layers = |config| {
        let dir = args.dir.clone();
        ServerOptions { config: Some(config), dir, ..ServerOptions::default() }.layers()
    };
    let config = args.config.map(layers).transpose()?;
    let config = config.map(|layers| NodeConfig::from_layers(&layers)).transpose()?;
    let config = config.as_ref();
    let from_config = config.map(|config| config.data_directory.clone());
    let directory = args.dir.map(PathBuf::from).or(from_config).ok_or_else(|| {
        UsageError(
            "which directory? `cairn doctor DIR`, or --config with the server's configuration"
                .into(),
        )
    })?;
    let voters = config.map(NodeConfig::voters);
    let plan = Plan {
        voters: args.voters.or(voters).unwrap_or(DEFAULT_VOTERS),
        size_bytes: size.or(config.map(|config| config.storage.size_bytes)),
        contract_asserted: config.is_some_and(|config| config.storage.assert_device_contract),
    };
    Ok((directory, plan))
}

fn as_text(report: &Report) -> String {
    let rows = report.findings().into_iter().map(|finding| {
        vec![finding.grade.word().to_string(), finding.name, finding.value, finding.why.to_string()]
    });
    let findings = table(&["", "FINDING", "VALUE", "WHY IT MATTERS"], rows);
    format!("{findings}\n\n{}", report.conclusion().join("\n"))
}
