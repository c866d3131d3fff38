//! Alerts whose causes cannot be made here: promtool reads what a real node serves, with another value.
//!
//! What holds here: the series is one of `/metrics` of a running node. The same rule is silent by the node's own
//! value, and fires by the other one.

use super::rules;
use super::server::{CLUSTER, program};
use crate::alerts::{deploy, values};
use crate::metrics::scraped;
use crate::support::{Ran, finish};
use cairn_launch::command;
use std::path::Path;
use std::process::Stdio;

/// Each with the reason.
pub const ALERTS: [(&str, &str); 3] = [
    (
        MIXED,
        "it needs two releases, and there is one: the build of the next version has the same release",
    ),
    (
        LATE,
        "applying waits for no disk: a member has to lack entries for seconds while it hears its leader, as while a large \
         state comes over a slow link, and the tests' links are fast",
    ),
    (
        MEMORY,
        "it needs a control group that a node almost fills: the kernel would kill the node on some machines before the \
         alert fires",
    ),
];
const MIXED: &str = "CairnMixedVersions";
const LATE: &str = "CairnAppliesLate";
const MEMORY: &str = "CairnMemoryNearlyFull";

/// A sample of a node that has this name: the name with its labels, and its value.
fn sample<'t>(text: &'t str, name: &str) -> (&'t str, &'t str) {
    let is_it = |line: &&str| {
        line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "))
    };
    let line = text.lines().find(is_it).unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.rsplit_once(' ').expect("a sample")
}

/// The series as Prometheus has it: with the labels of the scrape job.
fn of_job(sample: &str, instance: &str) -> String {
    let job = format!("cluster=\"{CLUSTER}\",instance=\"{instance}\"");
    match sample.strip_suffix('}') {
        Some(labelled) => format!("{labelled},{job}}}"),
        None => format!("{sample}{{{job}}}"),
    }
}

/// What a test of the shipped rules expects.
struct Expected<'e> {
    alert: &'e str,
    series: &'e [(String, String)],
    /// Minutes after which it is looked.
    after_m: u32,
    /// The labels of the alert that fires then; `None`: none does.
    fires: Option<&'e str>,
}

impl Expected<'_> {
    fn text(&self) -> String {
        let rules = rules::shipped();
        let at = values(&rules, "alert").iter().position(|name| *name == self.alert);
        let of = |key| values(&rules, key)[at.expect("a rule")].to_owned();
        let file = deploy("alerts.yml").canonicalize().expect("the file");
        let mut text = format!(
            "rule_files: [{:?}]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n",
            file.display().to_string()
        );
        for (series, value) in self.series {
            text += &format!("      - series: '{series}'\n        values: '{value}x3000'\n");
        }
        text += &format!(
            "    alert_rule_test:\n      - eval_time: {}m\n        alertname: {}\n",
            self.after_m, self.alert
        );
        match self.fires {
            None => text += "        exp_alerts: []\n",
            Some(labels) => {
                text += &format!(
                    "        exp_alerts:\n          - exp_labels: {{{labels}, severity: {}}}\n            \
                     exp_annotations:\n              summary: {}\n              runbook: {}\n",
                    of("severity"),
                    of("summary"),
                    of("runbook")
                );
            }
        }
        text
    }

    /// Lets promtool test the shipped rules by this.
    fn check(&self, folder: &Path) {
        let file = folder.join("test.yml");
        std::fs::write(&file, self.text()).expect("a file");
        let mut command = command(program("CAIRN_PROMTOOL"), ["test", "rules"]);
        let child = command.arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let ran: Ran = finish(child.expect("promtool starts"));
        assert_eq!(ran.code, 0, "{ran:?}\n{}", self.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: ./test prometheus"]
async fn alerts_without_a_cause_here_fire_by_what_a_node_serves_with_another_value() {
    let (_cluster, texts) = scraped().await;
    let folder = tempfile::tempdir().expect("a folder");
    let text = texts.concat();

    let (release, one) = sample(&text, "cairn_build_info");
    let (before, _) = release.split_once("version=\"").expect("a release");
    let other = format!("{before}version=\"0.0.0-other\"}}");
    let series = |other: &str| {
        [(of_job(release, "a"), one.to_owned()), (of_job(other, "b"), one.to_owned())]
    };
    let labels = format!("cluster: {CLUSTER}");
    for (other, fires) in [(release, None), (other.as_str(), Some(labels.as_str()))] {
        let series = series(other);
        Expected { alert: MIXED, series: &series, after_m: 1442, fires }.check(folder.path());
    }

    let (lag, own) = sample(&text, "cairn_applied_lag_seconds");
    let own = own.parse::<f64>().expect("a number");
    assert!(own < 10.0, "{own}");
    // Without an exponent, which promtool's notation does not have.
    let own = format!("{own:.3}");
    let labels = format!("cluster: {CLUSTER}, instance: a");
    for (value, fires) in [(own.as_str(), None), ("11", Some(labels.as_str()))] {
        let series = [(of_job(lag, "a"), value.to_owned())];
        Expected { alert: LATE, series: &series, after_m: 7, fires }.check(folder.path());
    }

    let (resident, held) = sample(&text, "process_resident_memory_bytes");
    let (limit, own) = sample(&text, "cairn_memory_limit_bytes");
    for (value, fires) in [(own, None), (held, Some(labels.as_str()))] {
        let series = [(of_job(resident, "a"), held), (of_job(limit, "a"), value)];
        let series = series.map(|(series, value)| (series, value.to_owned()));
        Expected { alert: MEMORY, series: &series, after_m: 7, fires }.check(folder.path());
    }
}
