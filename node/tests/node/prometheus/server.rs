//! A Prometheus process that scrapes a cluster by the files of `deploy/`, and what it says.
//!
//! What holds here: its scrape job and its rules are the shipped ones. Changed are the addresses, the files of the
//! certificates, how often it scrapes, and the times that [`rules::quicker`] changes.

use super::{POLL, rules};
use crate::support::{Cluster, WAIT_LIMIT, hold, value_of};
use cairn_launch::{HeldPort, Server, Signal, command};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

const SHIPPED: &str = include_str!("../../../../deploy/prometheus.yml");
/// The label `cluster` of the shipped job.
pub const CLUSTER: &str = "example";
/// Runs a program that reads no standard input, and kills it once this shell's is closed: also by the end of this
/// process, whatever ends it. The shell ends when the program does, and as it does.
const WITH_STDIN: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- & program=$!
(read -r line <&3; kill -KILL "$program") & reader=$!
wait "$program"; ended=$?
kill "$reader" 2>/dev/null
exit "$ended""#;
/// The lines that a cluster without certificates does not need.
const OF_TLS: [&str; 5] = ["scheme: ", "tls_config:", "ca_file: ", "cert_file: ", "key_file: "];

/// The program that this variable names.
pub fn program(variable: &str) -> OsString {
    std::env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} names no program; `./test prometheus` brings one"))
}

/// The text with something else in place of what it contains.
fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} is not in\n{text}");
    text.replace(from, to)
}

/// The shipped configuration for this cluster.
fn configuration(cluster: &Cluster, rules: &Path) -> String {
    let address = |node| format!("{:?}", value_of(cluster.config(node), "listen.http"));
    let addresses = (0..cluster.len()).map(address).collect::<Vec<_>>().join(", ");
    let shipped = "\"10.0.0.1:7402\", \"10.0.0.2:7402\", \"10.0.0.3:7402\"";
    let text = changed(SHIPPED, shipped, &addresses);
    let text = changed(&text, "prometheus/alerts.yml", &rules.display().to_string());
    // A node of a slow machine takes a moment to answer, and would be taken for one that is down.
    let often = "scrape_interval: 5s\n    scrape_timeout: 5s";
    let text = changed(&text, "scrape_interval: 15s", often);
    assert!(text.contains(&format!("cluster: {CLUSTER}")), "{text}");
    let text = match &cluster.certificates {
        Some(certificates) => {
            let names = ["ca", "client-prometheus", "client-prometheus-key"];
            names.iter().zip(certificates.files("client")).fold(text, |text, (name, file)| {
                let shipped = format!("/etc/prometheus/cairn/{name}.pem");
                changed(&text, &shipped, &file.display().to_string())
            })
        }
        None => {
            let is_of_tls = |line: &&str| OF_TLS.iter().any(|key| line.trim().starts_with(key));
            assert_eq!(text.lines().filter(is_of_tls).count(), OF_TLS.len(), "{text}");
            let others = text.lines().filter(|line| !is_of_tls(line));
            others.flat_map(|line| [line, "\n"]).collect()
        }
    };
    format!("global:\n  evaluation_interval: 1s\n{text}")
}

/// The program with these arguments, which ends with this process.
fn with_stdin(program: OsString, arguments: impl IntoIterator<Item = String>) -> Command {
    let mut shell = command("sh", ["-c", WITH_STDIN, "sh"]);
    shell.arg(program).args(arguments);
    shell
}

/// In a query of a URL.
fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// Killed when dropped, and when this process ends.
pub struct Prometheus {
    address: String,
    server: Server,
    _ports: Vec<HeldPort>,
    _folder: TempDir,
}

impl Prometheus {
    /// Returns once it has scraped each node, or has tried to.
    pub async fn start(cluster: &Cluster) -> Prometheus {
        let folder = tempfile::tempdir().expect("a folder");
        let (ports, addresses) = hold(1);
        let address = addresses.into_iter().next().expect("one");
        let path = |name: &str| folder.path().join(name);
        let rules_file = path("alerts.yml");
        std::fs::write(&rules_file, rules::quicker(&rules::shipped())).expect("a file");
        let config = path("prometheus.yml");
        std::fs::write(&config, configuration(cluster, &rules_file)).expect("a file");
        let arguments = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", path("data").display()),
            format!("--web.listen-address={address}"),
        ];
        let command = with_stdin(program("CAIRN_PROMETHEUS"), arguments);
        let server = Server::start("Prometheus", command, &path("log")).expect("it starts");
        let mut started = Prometheus { address, server, _ports: ports, _folder: folder };
        let began = Instant::now();
        while !started.get("/-/ready").is_ok_and(|answer| answer.contains(" 200 OK")) {
            started.server.check_running().expect("it runs");
            assert!(began.elapsed() < WAIT_LIMIT, "Prometheus is not ready");
            tokio::time::sleep(POLL).await;
        }
        let scraped = async || started.query("up").len() == cluster.len();
        started.until("each node is scraped", scraped).await;
        started
    }

    /// The whole answer. HTTP 1.0: it comes in one piece, and the connection ends with it.
    fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(WAIT_LIMIT))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn data(&self, path: &str) -> Value {
        let answer = self.get(path).expect("Prometheus answers");
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let mut read: Value =
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!(read["status"], "success", "{path}: {read}");
        read["data"].take()
    }

    /// The samples that this expression has now. Each has its labels in `metric` and its value, a text, behind the
    /// time in `value`.
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let data = self.data(&format!("/api/v1/query?query={}", encoded(expression)));
        data["result"].as_array().unwrap_or_else(|| panic!("{expression}: {data}")).clone()
    }

    /// The value of the first sample.
    pub fn value(&self, expression: &str) -> Option<String> {
        let sample = self.query(expression).into_iter().next()?;
        Some(sample["value"][1].as_str().expect("a text").to_owned())
    }

    /// Whether the last scrape of this address succeeded.
    pub fn is_up(&self, instance: &str) -> bool {
        self.value(&format!("up{{instance={instance:?}}}")).is_some_and(|up| up == "1")
    }

    /// Whether the alert fires, for whomever.
    pub fn fires(&self, alert: &str) -> bool {
        let data = self.data("/api/v1/alerts");
        let alerts = data["alerts"].as_array().unwrap_or_else(|| panic!("{data}"));
        let is_it = |found: &Value| {
            found["labels"]["alertname"] == alert
                && found["labels"]["cluster"] == CLUSTER
                && found["state"] == "firing"
        };
        alerts.iter().any(is_it)
    }

    /// Waits until something is so, and fails with what Prometheus says of alerts and targets if it never is.
    pub async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let began = Instant::now();
        while !holds().await {
            assert!(began.elapsed() < WAIT_LIMIT * 4, "never: {what}\n{}", self.told());
            tokio::time::sleep(POLL).await;
        }
    }

    /// For a message.
    fn told(&self) -> String {
        let (alerts, up) = (self.data("/api/v1/alerts"), self.query("up"));
        format!("{alerts}\n{up:?}")
    }
}

/// The story: a run was killed, and its Prometheus, in a process group of its own, scraped on for days.
#[test]
fn a_program_that_reads_nothing_ends_when_its_standard_input_is_closed_or_by_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |program: &str, argument: &str| {
        let command = with_stdin(program.into(), [argument.to_owned()]);
        Server::start(program, command, &folder.path().join("log")).expect("it starts")
    };
    let killed = start("sleep", "100000").stop(WAIT_LIMIT).expect("it ends");
    assert_eq!(killed.code(), Some(128 + Signal::KILL.as_raw()));
    let ended = start("false", "").wait(WAIT_LIMIT).expect("it ends");
    assert_eq!(ended.code(), Some(1));
}
