//! The server's log: text for people, or one JSON object per line; always on standard error, by way of
//! [`cairn_node::log`].
//!
//! What holds here: a server writes to standard error through the queue alone. What it says of an error
//! that ends it has the form of its log.

use super::exit::UsageError;
use cairn_client::shown;
use cairn_node::config::LogConfig;
use cairn_node::log::{CallSiteLimit, LineForm, LogQueue};
use serde_json::json;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;
use tracing_subscriber::filter::{FilterExt, LevelFilter};
use tracing_subscriber::fmt::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

/// Libraries whose log lines do not help an operator. openraft logs errors for what it retries and
/// for its own end. Our code logs once what openraft cannot survive.
const QUIET: &[&str] = &["openraft=off", "h2=warn", "hyper=warn", "tower=warn"];
/// Operators' calls are logged at every level of the rest.
const AUDIT: &str = "audit=info";
/// So is the error that ends the server.
const END: &str = "end=error";
/// How long the last lines may take at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Changes what the running log shows.
pub(crate) type SetLevel = Box<dyn Fn(&str) -> Result<(), UsageError> + Send + Sync>;

/// The log of this process, once it runs.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    queue: LogQueue,
    json: bool,
}

impl Log {
    fn error_line(&self, message: &str) -> Vec<u8> {
        let mut timestamp = String::new();
        let formatted = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        debug_assert!(formatted.is_ok(), "a string takes everything");
        let line = match self.json {
            true => {
                let line = json!({ "timestamp": timestamp, "level": "ERROR", "message": message });
                shown::json(&line.to_string()).into_owned()
            }
            false => format!("{timestamp} ERROR {}", shown::one_line(message)),
        };
        format!("{line}\n").into_bytes()
    }
}

/// Starts logging. Directives in the configuration override the defaults for libraries.
///
/// # Errors
/// A level that is none. The log runs nevertheless, so that this can be said in its form.
pub(crate) fn start(config: &LogConfig) -> anyhow::Result<SetLevel> {
    let (filter, bad) = match filter(&config.level) {
        Ok(filter) => (filter, None),
        Err(bad) => (self::filter("")?, Some(bad)),
    };
    let (limit, colours) = (CallSiteLimit::default(), io::stderr().is_terminal());
    let form = if config.json { LineForm::Json } else { LineForm::Human { colours } };
    // A descriptor of its own: no lock of the process is held while a write blocks.
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let queue = LogQueue::start(form, out, limit.clone())?;
    let (filter, handle) = reload::Layer::<EnvFilter, Registry>::new(filter);
    let admitted = filter.and(limit);
    let layer = Layer::new().with_ansi(colours).with_writer(queue.clone());
    let started = match config.json {
        true => tracing_subscriber::registry()
            .with(layer.json().flatten_event(true).with_ansi(false).with_filter(admitted))
            .try_init(),
        false => tracing_subscriber::registry()
            .with(layer.with_target(false).with_filter(admitted))
            .try_init(),
    };
    started?;
    let _ = LOG.set(Log { queue, json: config.json });
    // The default hook writes to standard error itself, and would wait for it. This one does without
    // the formatter, which may be where the panic is.
    std::panic::set_hook(Box::new(|panic| {
        if let Some(log) = LOG.get() {
            log.queue.push(log.error_line(&panic.to_string()));
        }
    }));
    if let Some(bad) = bad {
        return Err(bad.into());
    }
    Ok(Box::new(move |level| {
        handle.reload(self::filter(level)?).map_err(|error| bad_level(level, &error))
    }))
}

/// Says in the log's form why the server ends, and true; false if no log runs.
pub(super) fn ends(message: &str, exit_code: u8) -> bool {
    let Some(log) = LOG.get() else { return false };
    match log.json {
        true => tracing::error!(target: "end", error = message, exit_code, "the server ends"),
        false => {
            let message = shown::lines(message);
            log.queue.push(format!("cairn: {message}\n").into_bytes());
        }
    }
    true
}

/// Gives the last lines some time to be written.
pub(super) fn finish() {
    if let Some(log) = LOG.get() {
        log.queue.flush(FLUSH_LIMIT);
    }
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
    for directive in QUIET.iter().copied().chain([AUDIT]).chain(given).chain([END]) {
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
