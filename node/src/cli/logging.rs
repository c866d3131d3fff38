//! The server's log: text for people, or one JSON object per line; always on standard error.

use super::exit::UsageError;
use cairn_node::config::LogConfig;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Libraries whose log lines do not help an operator. openraft logs errors for what it retries and
/// for its own end. Our code logs once what openraft cannot survive.
const QUIET: &[&str] = &["openraft=off", "h2=warn", "hyper=warn", "tower=warn"];
/// Operators' calls are logged at every level of the rest.
const AUDIT: &str = "audit=info";

/// Starts logging. Directives in the configuration override the defaults for libraries.
pub(crate) fn start(config: &LogConfig) -> Result<(), UsageError> {
    let bad = |error: &dyn std::fmt::Display| {
        UsageError(format!("`log.level` is `{}`: {error}", config.level))
    };
    let mut filter = EnvFilter::new("");
    let given = config.level.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    for directive in QUIET.iter().copied().chain([AUDIT]).chain(given) {
        filter = filter.add_directive(directive.parse().map_err(|error| bad(&error))?);
    }
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let started = if config.json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.with_target(false).try_init()
    };
    started.map_err(|error| bad(&error))
}
