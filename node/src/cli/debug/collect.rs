//! Collects the parts of a bundle: from the cluster, from HTTP ports, and from this machine.
//!
//! What holds here: nothing is changed, and no part waits for ever. A part that cannot be had says why.

use super::super::http::HttpReader;
use super::super::{doctor, health, inspect, status};
use super::parts::{PART_BYTES, Parts};
use super::tail::Tail;
use cairn_client::Client;
use cairn_node::config::{Layers, NodeConfig, Setting};
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::Instant;

/// The longest time for a part that this machine tells.
const LIMIT: Duration = Duration::from_secs(30);
/// The latest lines of the journal.
const JOURNAL_LINES: &str = "20000";
/// The most bytes of a log. The line that says what is left out has space beside them.
const LOG_BYTES: usize = PART_BYTES - 100;
/// What is read of the journal at once.
const CHUNK_BYTES: usize = 64 << 10;
/// What a file of the system may have at most.
const FACT_BYTES: usize = 64 << 10;

/// What to collect.
pub(super) struct Wanted {
    pub(super) client: Result<Client, String>,
    pub(super) http: Result<HttpReader, String>,
    /// HTTP ports.
    pub(super) addresses: Vec<String>,
    pub(super) config: Option<PathBuf>,
    pub(super) layers: Option<Result<Layers, String>>,
    pub(super) inspect: bool,
    pub(super) log: Option<PathBuf>,
    pub(super) unit: String,
    /// Between the metrics at the begin and those at the end.
    pub(super) time: Duration,
}

/// Collects everything.
pub(super) async fn collect(wanted: &Wanted, parts: &mut Parts) {
    let end = Instant::now() + wanted.time;
    parts.add("versions.txt", "this program and this machine", Ok(versions())).await;
    metrics(wanted, "begin", parts).await;
    cluster(wanted, parts).await;
    machine(wanted, parts).await;
    let (what, log) = match &wanted.log {
        Some(path) => (format!("the end of {}", path.display()), file_end(path.clone()).await),
        None => {
            let what = format!("the journal of the unit {}", wanted.unit);
            (what, within(journal(&wanted.unit)).await)
        }
    };
    parts.add("log.txt", &what, log).await;
    tokio::time::sleep_until(end).await;
    metrics(wanted, "end", parts).await;
}

/// What every node answers, and what `cairn health` finds by that.
async fn cluster(wanted: &Wanted, parts: &mut Parts) {
    let (status, health) = match &wanted.client {
        Ok(client) => {
            let report = health::ask_all(client).await;
            let status = report.answers.iter().map(status::as_json).collect();
            (Ok(pretty(&status)), Ok(pretty(&health::as_json(&report))))
        }
        Err(why) => (Err(why.clone()), Err(why.clone())),
    };
    parts.add("status.json", "what `cairn status` tells", status).await;
    parts.add("health.json", "what `cairn health` tells", health).await;
}

/// What each HTTP port answers now.
async fn metrics(wanted: &Wanted, when: &str, parts: &mut Parts) {
    for (number, address) in wanted.addresses.iter().enumerate() {
        for (path, name) in [("/metrics", "metrics"), ("/ready", "ready"), ("/status.json", "page")]
        {
            let text = match &wanted.http {
                Ok(http) => http.get(address, path, PART_BYTES).await,
                Err(why) => Err(anyhow::anyhow!("{why}")),
            };
            // A refusal says why, too.
            let text = text.map(|answer| match answer.status.is_success() {
                true => answer.text,
                false => format!("{}\n{}", answer.status, answer.text),
            });
            let what = format!("{path} of {address} at the {when}");
            parts
                .add(&format!("{name}-{when}-{}.txt", number + 1), &what, text.map_err(shown))
                .await;
        }
    }
    if wanted.addresses.is_empty() {
        let why = "no HTTP port is named: --http, or --config with the server's configuration";
        parts.add(&format!("metrics-{when}.txt"), "metrics", Err(why.into())).await;
    }
}

/// What the configuration names on this machine.
async fn machine(wanted: &Wanted, parts: &mut Parts) {
    let absent = || "the server's configuration is not named: --config".to_owned();
    let layers = wanted.layers.clone().unwrap_or_else(|| Err(absent()));
    let settings = layers.as_ref().map(|layers| pretty(&settings(&layers.settings())));
    let what = "the configuration, without values that may be secret";
    parts.add("config.json", what, settings.map_err(Clone::clone)).await;
    let doctor = match wanted.config.clone() {
        Some(config) => blocking(move || doctor::report_of(config)).await,
        None => Err(absent()),
    };
    let doctor = doctor.map(|report| pretty(&report));
    parts.add("doctor.json", "what `cairn doctor` finds on this machine", doctor).await;
    let inspected = match (wanted.inspect, layers) {
        (false, _) => Err("not asked for: --inspect, while the node does not run".into()),
        (true, Err(why)) => Err(why),
        (true, Ok(layers)) => within(contents(&layers)).await,
    };
    parts.add("inspect.json", "what the data directory holds", inspected).await;
}

/// A running node has its directory locked, and is refused by that.
async fn contents(layers: &Layers) -> Result<String, String> {
    let config = NodeConfig::from_layers(layers).map_err(shown)?;
    let found = cairn_node::files::inspect(&config.data_directory, false).await.map_err(shown)?;
    Ok(pretty(&inspect::as_json(&found)))
}

fn settings(settings: &[Setting]) -> Value {
    let one = |setting: &Setting| {
        let value = match setting.may_be_secret() {
            true => Some("(set, and not shown)".to_owned()),
            false => setting.value.clone(),
        };
        (setting.key.to_owned(), json!({ "value": value, "source": setting.source.to_string() }))
    };
    Value::Object(settings.iter().map(one).collect())
}

fn versions() -> String {
    let cairn = format!("cairn {}, {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let facts =
        ["/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg", "/proc/meminfo"];
    let fact = |path: &str| {
        let told = read_end(Path::new(path), FACT_BYTES);
        format!("--- {path}\n{}", told.unwrap_or_else(|why| why).trim_end())
    };
    let all = std::iter::once(cairn).chain(facts.map(fact));
    all.collect::<Vec<_>>().join("\n") + "\n"
}

/// The latest lines of a unit's journal, where there is one.
async fn journal(unit: &str) -> Result<String, String> {
    let cannot = |error| format!("journalctl: {error}; --log names a file instead");
    let mut command = Command::new("journalctl");
    command.args(["--no-pager", "--quiet", "--output=short-iso", "--lines", JOURNAL_LINES]);
    command.arg(format!("--unit={unit}")).stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().map_err(cannot)?;
    let mut stdout = child.stdout.take().ok_or("journalctl has no output")?;
    let (mut tail, mut chunk) = (Tail::new(LOG_BYTES, 0), vec![0; CHUNK_BYTES]);
    while let read @ 1.. = stdout.read(&mut chunk).await.map_err(cannot)? {
        tail.push(chunk.get(..read).unwrap_or_default());
    }
    match tail.is_empty() {
        true => Err(format!(
            "the journal has nothing of the unit {unit} that may be read here; --unit, or --log FILE"
        )),
        false => Ok(tail.finish()),
    }
}

async fn file_end(path: PathBuf) -> Result<String, String> {
    blocking(move || read_end(&path, LOG_BYTES).map_err(anyhow::Error::msg)).await
}

/// The end of a file. Files of the system have no length, and are read from their beginning.
fn read_end(path: &Path, most_bytes: usize) -> Result<String, String> {
    let read = || {
        // A pipe would have no end.
        let found = std::fs::metadata(path)?;
        if !found.is_file() {
            return Err(std::io::Error::other("it is no regular file"));
        }
        let mut file = std::fs::File::open(path)?;
        let most = u64::try_from(most_bytes).unwrap_or(u64::MAX);
        let left_out = found.len().saturating_sub(most);
        file.seek(SeekFrom::Start(left_out))?;
        let mut told = Vec::new();
        file.take(most).read_to_end(&mut told)?;
        let mut tail = Tail::new(most_bytes, usize::try_from(left_out).unwrap_or(usize::MAX));
        tail.push(&told);
        Ok(tail.finish())
    };
    read().map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs it on a thread for blocking calls, for so long at most.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> Result<T, String> {
    let work = tokio::task::spawn_blocking(work);
    within(async { work.await.map_err(shown)?.map_err(|error| format!("{error:#}")) }).await
}

async fn within<T>(part: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err(format!("it took longer than {} s", LIMIT.as_secs()));
    tokio::time::timeout(LIMIT, part).await.unwrap_or_else(late)
}

/// On several lines, which a reader, and a search, can take.
fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn shown(error: impl Display) -> String {
    format!("{error:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_file_the_end_is_read_and_a_folder_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        std::fs::write(&path, "begin\nend\n").expect("a file");
        let end = "(6 bytes before this are left out)\nend\n";
        assert_eq!(read_end(&path, 7).as_deref(), Ok(end));
        assert_eq!(read_end(&path, 100).as_deref(), Ok("begin\nend\n"));
        let refused = read_end(folder.path(), 7).expect_err("a folder");
        assert!(refused.contains("no regular file"), "{refused}");
        assert!(versions().contains("--- /proc/version\nLinux"), "{}", versions());
    }

    #[test]
    fn values_that_may_be_secret_are_not_shown_and_numbers_are() {
        let mut layers = Layers::new();
        layers.add_assignment("--set", "tls.key=/etc/cairn/hunter22.pem").expect("a key");
        layers.add_assignment("--set", "slot=7").expect("a key");
        let told = settings(&layers.settings());
        assert_eq!(told["slot"]["value"], "7", "{told}");
        assert_eq!(told["tls.key"]["value"], "(set, and not shown)", "{told}");
        assert_eq!(told["log.level"]["value"], "info", "{told}");
        assert!(!told.to_string().contains("hunter22"), "{told}");
    }
}
