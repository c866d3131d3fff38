//! The dashboard of `deploy/grafana` asks for metrics and labels that a node serves, each in the way that its
//! type allows.

mod promql;

use crate::alerts::WITH_CERTIFICATES;
use crate::metrics::{described, metrics, scraped};
use cairn_client::ListOptions;
use promql::{Expression, Selector};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const DASHBOARD: &str = include_str!("../../../../deploy/grafana/cairn.json");
/// Labels that the scrape job adds.
const OF_JOB: [&str; 3] = ["cluster", "instance", "job"];
/// Metrics that Prometheus makes, and their labels beside those of the job.
const OF_PROMETHEUS: [(&str, &[&str]); 2] =
    [("up", &[]), ("ALERTS", &["alertname", "alertstate", "severity"])];
const RATES: [&str; 2] = ["rate", "increase"];

/// What the nodes serve.
#[derive(Debug, Default)]
struct Served {
    types: BTreeMap<String, String>,
    /// The values of each label of each metric.
    labels: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

impl Served {
    fn of(texts: &[String]) -> Served {
        let mut served = Served::default();
        for name in WITH_CERTIFICATES {
            served.types.insert(name.to_owned(), "gauge".to_owned());
        }
        for (name, labels) in OF_PROMETHEUS {
            served.types.insert(name.to_owned(), "gauge".to_owned());
            let labels = labels.iter().map(|label| ((*label).to_owned(), BTreeSet::new()));
            served.labels.insert(name.to_owned(), labels.collect());
        }
        for text in texts {
            let types = described(text).into_iter();
            served.types.extend(types.map(|(name, kind)| (name.to_owned(), kind.to_owned())));
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                let (sample, _) = line.rsplit_once(' ').expect("a sample");
                let read = Expression::of(sample).unwrap_or_else(|error| panic!("{line}: {error}"));
                let [sample] = &read.selectors[..] else { panic!("{line}: {read:?}") };
                let labels = served.labels.entry(sample.metric.clone()).or_default();
                for found in &sample.matchers {
                    labels.entry(found.label.clone()).or_default().insert(found.value.clone());
                }
            }
        }
        served
    }

    /// Its type; of what a histogram serves, `histogram`.
    fn kind(&self, metric: &str) -> Option<&str> {
        let of_histogram = || {
            let suffixes = ["_bucket", "_sum", "_count"];
            let base = suffixes.iter().find_map(|suffix| metric.strip_suffix(*suffix))?;
            self.types.get(base).filter(|kind| *kind == "histogram")
        };
        let own = self.types.get(metric).filter(|kind| *kind != "histogram");
        own.or_else(of_histogram).map(String::as_str)
    }

    fn has_label(&self, metric: &str, label: &str) -> bool {
        let own = self.labels.get(metric).is_some_and(|labels| labels.contains_key(label));
        own || OF_JOB.contains(&label)
    }

    fn faults_of(&self, selector: &Selector) -> Vec<String> {
        let Selector { metric, matchers, functions } = selector;
        let Some(kind) = self.kind(metric) else {
            return vec![format!("no node serves {metric}")];
        };
        let mut faults = Vec::new();
        let innermost = functions.last().map(String::as_str);
        if (kind != "gauge") != innermost.is_some_and(|name| RATES.contains(&name)) {
            faults.push(format!("{metric} is a {kind}, and it is in {functions:?}"));
        }
        let in_quantile = functions.iter().any(|name| name == "histogram_quantile");
        if metric.ends_with("_bucket") != in_quantile {
            faults.push(format!("histogram_quantile is over buckets alone, not {metric}"));
        }
        for found in matchers {
            if !self.has_label(metric, &found.label) {
                faults.push(format!("{metric} has no label {}", found.label));
                continue;
            }
            let values = self.labels.get(metric).and_then(|labels| labels.get(&found.label));
            let Some(values) = values.filter(|values| !values.is_empty()) else { continue };
            // A variable, and what a regular expression may match, is not known here.
            let is_plain = |value: &str| value.chars().all(|c| c.is_alphanumeric() || c == '_');
            let alternatives: Vec<&str> = match found.operator.as_str() {
                "=" | "=~" => found.value.split('|').filter(|value| is_plain(value)).collect(),
                _ => Vec::new(),
            };
            let unknown = alternatives.iter().filter(|value| !values.contains(**value));
            faults.extend(unknown.map(|value| format!("{metric} has no {}={value}", found.label)));
        }
        let of_cluster = matchers.iter().any(|found| {
            (found.label.as_str(), found.operator.as_str(), found.value.as_str())
                == ("cluster", "=", "$cluster")
        });
        if !of_cluster {
            faults.push(format!("{metric} of every cluster is asked for"));
        }
        faults
    }

    /// What is wrong with an expression, and with the labels that its legend shows.
    fn faults(&self, text: &str, legend: &str) -> Vec<String> {
        let read = match Expression::of(text) {
            Ok(read) => read,
            Err(error) => return vec![error],
        };
        let mut faults: Vec<String> =
            read.selectors.iter().flat_map(|selector| self.faults_of(selector)).collect();
        if read.selectors.is_empty() {
            faults.push("it asks for no metric".into());
        }
        let known = |label: &str| {
            read.selectors.iter().any(|selector| self.has_label(&selector.metric, label))
        };
        let in_quantile =
            |functions: &[String]| functions.iter().any(|f| f == "histogram_quantile");
        for grouping in &read.groupings {
            let unknown = grouping.labels.iter().filter(|label| !known(label));
            faults.extend(unknown.map(|label| format!("nothing has the label {label}")));
        }
        let by_bucket = read.groupings.iter().any(|grouping| {
            in_quantile(&grouping.functions) && grouping.labels.iter().any(|label| label == "le")
        });
        let quantile = read.selectors.iter().any(|selector| in_quantile(&selector.functions));
        if quantile && !by_bucket {
            faults.push("a quantile of buckets that are not grouped by le".into());
        }
        let kept: BTreeSet<&String> =
            read.groupings.iter().flat_map(|grouping| &grouping.labels).collect();
        for label in shown(legend) {
            let is_kept = kept.is_empty() || kept.iter().any(|kept| *kept == label);
            if !known(label) || !is_kept {
                faults
                    .push(format!("the legend shows {label}, which the expression does not have"));
            }
        }
        faults
    }
}

/// The labels in `{{label}}`.
fn shown(legend: &str) -> Vec<&str> {
    let parts = legend.split("{{").skip(1);
    parts.filter_map(|part| part.split_once("}}")).map(|(label, _)| label.trim()).collect()
}

pub fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).expect("JSON")
}

fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("no {pointer}"))
}

pub fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("no {pointer}: {value}"))
}

/// Each query of each panel.
pub fn targets(dashboard: &Value) -> impl Iterator<Item = &Value> {
    let panels = list(dashboard, "/panels").iter().filter(|panel| text(panel, "/type") != "row");
    panels.flat_map(|panel| list(panel, "/targets"))
}

/// The story of each dashboard that was made once: a metric got another name, and its panel was empty for ever.
#[tokio::test(flavor = "multi_thread")]
async fn each_panel_asks_for_metrics_and_labels_that_a_node_serves() {
    let (cluster, mut texts) = scraped().await;
    // What is asked for by method is there once somebody called it.
    let client = cluster.client();
    client.get("key").await.expect("read");
    client.get_many(["key"]).await.expect("read");
    client.list(ListOptions::prefix("")).await.expect("listed");
    client.count(..).await.expect("counted");
    texts.extend((0..3).map(|node| metrics(&cluster, node)));
    let (served, dashboard) = (Served::of(&texts), dashboard());
    let mut faults = Vec::new();
    for target in targets(&dashboard) {
        let expression = text(target, "/expr");
        let of = served.faults(expression, text(target, "/legendFormat")).into_iter();
        faults.extend(of.map(|fault| format!("{expression}: {fault}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for variable in list(&dashboard, "/templating/list") {
        let Some(query) = variable.pointer("/query/query").and_then(Value::as_str) else {
            continue;
        };
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = inside.and_then(|inside| inside.rsplit_once(", ")).expect(query);
        let read = Expression::of(selector).unwrap_or_else(|error| panic!("{query}: {error}"));
        assert!(read.selectors.iter().all(|found| served.kind(&found.metric).is_some()), "{query}");
        assert!(OF_JOB.contains(&label), "{query}");
    }
}

#[test]
fn each_query_uses_the_variables_of_the_dashboard_and_its_data_source() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39), "Grafana 11");
    let variables: BTreeSet<&str> =
        list(&dashboard, "/templating/list").iter().map(|found| text(found, "/name")).collect();
    assert_eq!(variables, BTreeSet::from(["cluster", "datasource", "instance"]));
    for target in targets(&dashboard) {
        assert_eq!(text(target, "/datasource/uid"), "${datasource}", "{target}");
        let used = text(target, "/expr").split('$').skip(1);
        let used = used.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_'));
        let used = used.filter_map(|mut words| words.next());
        let own: BTreeSet<&str> = used.filter(|name| *name != "__rate_interval").collect();
        assert!(!own.is_empty() && own.is_subset(&variables), "{target}");
    }
    let ids = list(&dashboard, "/panels").iter().map(|panel| panel["id"].as_u64());
    let distinct: BTreeSet<Option<u64>> = ids.clone().collect();
    assert!(distinct.len() == ids.count() && !distinct.contains(&None), "each panel has its id");
    assert!(targets(&dashboard).count() > 30);
}

/// What the test above must not pass over.
#[test]
fn a_wrong_metric_label_value_or_function_is_a_fault() {
    let served = Served::of(&[concat!(
        "# HELP a_total A\n# TYPE a_total counter\na_total{kind=\"put\"} 1\n",
        "# HELP b B\n# TYPE b gauge\nb 1\n",
        "# HELP c C\n# TYPE c histogram\nc_sum 1\nc_count 1\nc_bucket{le=\"+Inf\"} 1\n",
    )
    .to_owned()]);
    let faults = |text: &str| served.faults(&text.replace('@', "cluster=\"$cluster\""), "");
    for good in [
        "rate(a_total{kind=\"put\", @}[5m])",
        "sum by (kind) (increase(a_total{kind=~\"put|x.*\", @}[5m]))",
        "max(b{@}) > 1",
        "histogram_quantile(0.5, sum by (le) (rate(c_bucket{@}[5m])))",
        "rate(c_sum{@}[5m]) / rate(c_count{@}[5m])",
        "up{job=\"cairn\", @} == 0",
    ] {
        assert!(faults(good).is_empty(), "{good}: {:?}", faults(good));
    }
    for bad in [
        "rate(d_total{@}[5m])",
        "rate(a_total{kin=\"put\", @}[5m])",
        "rate(a_total{kind=\"got\", @}[5m])",
        "rate(a_total{kind=~\"put|got\", @}[5m])",
        "rate(a_total[5m])",
        "a_total{@}",
        "rate(sum(a_total{@})[5m])",
        "rate(b{@}[5m])",
        "c{@}",
        "sum by (kind) (b{@})",
        "rate(c_bucket{@}[5m])",
        "histogram_quantile(0.5, sum(rate(c_bucket{@}[5m])))",
        "histogram_quantile(0.5, sum by (kind) (rate(c_bucket{@}[5m])))",
        "histogram_quantile(0.5, sum by (le) (rate(c_sum{@}[5m])))",
        "1 + 1",
    ] {
        assert!(!faults(bad).is_empty(), "{bad}");
    }
    let of = |text, legend| served.faults(text, legend);
    assert!(of("b{cluster=\"$cluster\"}", "{{instance}} now").is_empty());
    assert!(!of("b{cluster=\"$cluster\"}", "{{kind}}").is_empty());
    assert!(!of("sum by (job) (b{cluster=\"$cluster\"})", "{{instance}}").is_empty());
}
