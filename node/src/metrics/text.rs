//! The text format of Prometheus, version 0.0.4, for those who do not ask for OpenMetrics, such as
//! `promtool check metrics`.
//!
//! What holds here: both formats have the same samples. They differ in the lines that describe them:
//! here a counter is described by the name that its samples have.

use std::borrow::Cow;

/// The same metrics in the older format.
pub(super) fn plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    // The line with the help is before the one with the type.
    let mut help = None;
    for line in openmetrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) = type_of(line) {
            let (name, kind) = described(name, kind);
            if let Some((_, words)) = help.take() {
                push(&mut text, &["# HELP ", &name, " ", words]);
            }
            push(&mut text, &["# TYPE ", &name, " ", kind]);
        } else if !line.starts_with('#') {
            push(&mut text, &[line]);
        }
    }
    text
}

fn type_of(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("# TYPE ")?.split_once(' ')
}

/// The name and type under which a metric is described.
fn described<'n>(name: &'n str, kind: &'n str) -> (Cow<'n, str>, &'n str) {
    match kind {
        "counter" => (format!("{name}_total").into(), kind),
        "info" => (format!("{name}_info").into(), "gauge"),
        "unknown" => (name.into(), "untyped"),
        _ => (name.into(), kind),
    }
}

fn push(text: &mut String, parts: &[&str]) {
    text.extend(parts.iter().copied());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_counter_is_described_by_the_name_of_its_samples_and_units_and_the_end_are_left_out() {
        let openmetrics = "# HELP cairn_syncs fdatasync calls\n\
                           # TYPE cairn_syncs counter\n\
                           cairn_syncs_total 3\n\
                           # HELP cairn_live_bytes Bytes of live keys and values\n\
                           # TYPE cairn_live_bytes gauge\n\
                           # UNIT cairn_live_bytes bytes\n\
                           cairn_live_bytes{a=\"# b\"} 7\n\
                           # EOF\n";
        let expected = "# HELP cairn_syncs_total fdatasync calls\n\
                        # TYPE cairn_syncs_total counter\n\
                        cairn_syncs_total 3\n\
                        # HELP cairn_live_bytes Bytes of live keys and values\n\
                        # TYPE cairn_live_bytes gauge\n\
                        cairn_live_bytes{a=\"# b\"} 7\n";
        assert_eq!(plain(openmetrics), expected);
    }
}
