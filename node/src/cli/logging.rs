//! The server's log: text for people, or one JSON object per line; always on standard error.

use super::exit::UsageError;
use cairn_node::config::LogConfig;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Libraries whose log lines do not help an operator. openraft logs errors for what it retries and
/// for its own end. Our code logs once what openraft cannot survive.
const QUIET: &[&str] = &["openraft=off", "h2=warn", "hyper=warn", "tower=warn"];
/// Operators' calls are logged at every level of the rest.
const AUDIT: &str = "audit=info";

/// Changes what the running log shows.
pub(crate) type SetLevel = Box<dyn Fn(&str) -> Result<(), UsageError> + Send + Sync>;

/// Starts logging. Directives in the configuration override the defaults for libraries.
pub(crate) fn start(config: &LogConfig) -> Result<SetLevel, UsageError> {
    let bad = |error: &dyn std::fmt::Display| bad_level(&config.level, error);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(&config.level)?)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    if config.json {
        let builder = builder.json().flatten_event(true).with_filter_reloading();
        let handle = builder.reload_handle();
        builder.try_init().map_err(|error| bad(&error))?;
        return Ok(Box::new(move |level| {
            handle.reload(filter(level)?).map_err(|error| bad_level(level, &error))
        }));
    }
    let builder = builder.with_target(false).with_filter_reloading();
    let handle = builder.reload_handle();
    builder.try_init().map_err(|error| bad(&error))?;
    Ok(Box::new(move |level| {
        handle.reload(filter(level)?).map_err(|error| bad_level(level, &error))
    }))
}

fn filter(level: &str) -> Result<EnvFilter, UsageError> {
    let mut filter = EnvFilter::new("");
    let given = level.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    for directive in given.clone() {
        // The library takes a word that is no level for the name of a part, and shows that part alone.
        let of_all = directive.rsplit('=').next().unwrap_or(directive);
        if of_all.parse::<LevelFilter>().is_err() || of_all.parse::<u8>().is_ok() {
            let expected = "expected error, warn, info, debug, trace or off, or PART=LEVEL";
            return Err(bad_level(level, &expected));
        }
    }
    for directive in QUIET.iter().copied().chain([AUDIT]).chain(given) {
        filter = filter.add_directive(directive.parse().map_err(|error| bad_level(level, &error))?);
    }
    Ok(filter)
}

/// Whether a server can log at this level.
pub(crate) fn check(level: &str) -> Result<(), UsageError> {
    filter(level).map(drop)
}

fn bad_level(level: &str, error: &dyn std::fmt::Display) -> UsageError {
    UsageError(format!("`log.level` is `{level}`: {error}"))
}
