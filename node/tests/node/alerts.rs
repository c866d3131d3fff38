//! The alerts of `deploy/prometheus` ask for metrics that a node serves, and each is tested and documented.
use crate::metrics::{described, scraped};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Only a node with certificates has them: the tests of TLS see to it that they are there.
pub const WITH_CERTIFICATES: [&str; 2] =
    ["cairn_certificate_expiry_timestamp_seconds", "cairn_ca_expiry_timestamp_seconds"];

/// A file of `deploy/prometheus`.
pub fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus").join(file)
}

pub fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Every word of the text that begins like one of our metrics, without what a histogram adds.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("cairn_") || word.starts_with("process_"));
    ours.map(|word| word.strip_suffix("_bucket").unwrap_or(word)).collect()
}

/// What stands behind this key in each rule.
pub fn values<'t>(rules: &'t str, key: &str) -> Vec<&'t str> {
    let key = format!("{key}: ");
    let line = |line: &'t str| line.trim().trim_start_matches("- ").strip_prefix(&key);
    rules.lines().filter_map(line).collect()
}

/// The story of each alert that named a metric of an earlier version: it was silent for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_alert_asks_for_metrics_that_a_node_serves() {
    let (_cluster, texts) = scraped().await;
    let types = texts.iter().flat_map(|text| described(text).into_keys());
    let served: BTreeSet<&str> = types.chain(WITH_CERTIFICATES).collect();
    let rules = read(&deploy("alerts.yml"));
    let asked = values(&rules, "expr").join(" ");
    let unknown: Vec<_> = named(&asked).difference(&served).copied().collect();
    assert!(unknown.is_empty(), "no node serves {unknown:?}");
    assert!(named(&asked).len() > 10, "{asked}");
}

#[test]
fn each_alert_has_a_runbook_that_is_there_and_a_test() {
    let (rules, tests) = (read(&deploy("alerts.yml")), read(&deploy("alerts_test.yml")));
    let alerts = values(&rules, "alert");
    let runbooks = values(&rules, "runbook");
    assert!(alerts.len() > 10, "{alerts:?}");
    for key in ["expr", "runbook", "summary", "severity"] {
        assert_eq!(values(&rules, key).len(), alerts.len(), "one {key} for each alert");
    }
    let tested: BTreeSet<&str> = values(&tests, "alertname").into_iter().collect();
    assert_eq!(alerts.iter().copied().collect::<BTreeSet<_>>(), tested);
    let operations = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md"));
    let anchor = |title: &str| {
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-'].contains(c);
        title.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
    };
    let headings = operations.lines().filter(|line| line.starts_with("##"));
    let anchors: BTreeSet<String> =
        headings.map(|line| anchor(line.trim_start_matches('#'))).collect();
    for runbook in runbooks {
        let runbook = runbook.trim_matches('"');
        let to = runbook.strip_prefix("docs/operations.md#").unwrap_or_else(|| panic!("{runbook}"));
        assert!(anchors.contains(to), "{runbook} leads nowhere: {anchors:?}");
    }
}

/// What Prometheus' own tool says of the metrics, the alerts and their tests. The tool is not part of the
/// build: with `CAIRN_PROMTOOL=/path/to/promtool` this test is strict, without it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn promtool_has_no_objection() {
    let Some(promtool) = std::env::var_os("CAIRN_PROMTOOL") else {
        return println!("not checked by promtool: CAIRN_PROMTOOL does not name one");
    };
    let run = |arguments: &[&str], input: &str| {
        let mut command = Command::new(&promtool);
        command.args(arguments).current_dir(deploy("")).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("CAIRN_PROMTOOL names a program");
        let mut pipe = child.stdin.take().expect("a pipe");
        pipe.write_all(input.as_bytes()).expect("it reads");
        drop(pipe);
        let ran = child.wait_with_output().expect("it ends");
        let said = [ran.stdout, ran.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(ran.status.success(), "{arguments:?}: {said}");
    };
    run(&["check", "rules", "alerts.yml"], "");
    run(&["test", "rules", "alerts_test.yml"], "");
    let (_cluster, texts) = scraped().await;
    for text in &texts {
        run(&["check", "metrics"], text);
    }
}
