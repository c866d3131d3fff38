//! `cairn doctor`: what the machine of a data directory can promise, and why.

use super::cluster_view;
use super::exit::{Exit, UsageError};
use super::output::{Output, table};
use super::server_options::ServerOptions;
use cairn_node::NodeConfig;
use cairn_node::config::parse_size;
use cairn_node::doctor::{MemoryPlan, Plan, Report, examine};
use cairn_node::promise::SyncWindow;
use clap::Args;
use serde_json::Value;
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

pub(crate) async fn run(args: DoctorArgs, output: &Output) -> anyhow::Result<Exit> {
    let (directory, plan, config) = plan(args)?;
    let report = examine(&directory, plan)?;
    let exceptions = match &config {
        Some(config) => cluster_view::shared_failures(config).await,
        None => Vec::new(),
    };
    output.either(|| as_json(&report, &exceptions), || as_text(&report, &exceptions))?;
    Ok(if report.verdict.mode.is_some() { Exit::Done } else { Exit::NothingJustified })
}

/// The report on the data directory of this configuration, for programs; no member is asked. Blocks.
///
/// # Errors
/// The configuration cannot be used, or there is no place to examine.
pub(super) fn report_of(config: PathBuf) -> anyhow::Result<Value> {
    let args = DoctorArgs { dir: None, config: Some(config), voters: None, size: None };
    let (directory, plan, _) = plan(args)?;
    Ok(examine(&directory, plan)?.json())
}

/// The directory, what is planned for it, and its configuration.
fn plan(args: DoctorArgs) -> anyhow::Result<(PathBuf, Plan, Option<NodeConfig>)> {
    let size = args.size.as_deref().map(parse_size).transpose();
    let size = size.map_err(|reason| UsageError(format!("--size: {reason}")))?;
    let layers = |config| {
        let dir = args.dir.clone();
        ServerOptions { config: Some(config), dir, ..ServerOptions::default() }.layers()
    };
    let config = args.config.map(layers).transpose()?;
    let config = config.map(|layers| NodeConfig::from_layers(&layers)).transpose()?;
    let from_config = config.as_ref().map(|config| config.data_directory.clone());
    let directory = args.dir.map(PathBuf::from).or(from_config).ok_or_else(|| {
        UsageError(
            "which directory? `cairn doctor DIR`, or --config with the server's configuration"
                .into(),
        )
    })?;
    let voters = config.as_ref().map(NodeConfig::voters);
    let plan = Plan {
        voters: args.voters.or(voters).unwrap_or(DEFAULT_VOTERS),
        size_bytes: size.or(config.as_ref().map(|config| config.storage.size_bytes)),
        contract_asserted: config
            .as_ref()
            .is_some_and(|config| config.storage.assert_device_contract),
        window: config
            .as_ref()
            .map_or_else(SyncWindow::default, |config| SyncWindow::of(&config.storage)),
        memory: config.as_ref().and_then(MemoryPlan::of),
    };
    Ok((directory, plan, config))
}

fn as_json(report: &Report, exceptions: &[String]) -> Value {
    let mut json = report.json();
    if let Some(verdict) = json.get_mut("verdict").and_then(Value::as_object_mut) {
        verdict.insert("exceptions".into(), exceptions.into());
    }
    json
}

fn as_text(report: &Report, exceptions: &[String]) -> String {
    let rows = report.findings().into_iter().map(|finding| {
        vec![finding.grade.word().to_string(), finding.name, finding.value, finding.why.to_string()]
    });
    let findings = table(&["", "FINDING", "VALUE", "WHY IT MATTERS"], rows);
    let exceptions = exceptions.iter().map(|sentence| format!("but {sentence}"));
    let conclusion: Vec<String> = report.conclusion().into_iter().chain(exceptions).collect();
    format!("{findings}\n\n{}", conclusion.join("\n"))
}
