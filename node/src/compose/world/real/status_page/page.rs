//! The page: one file with its own style and script, into which the server writes a snapshot, so that it
//! says everything without the script. The script asks for `/status.json`, and plots.
//!
//! What holds here:
//! - Every text is escaped, and the script writes texts alone, never markup.
//! - A browser runs the script of this file and no other: the policy names it by its hash.

use super::snapshot::{Change, FindingRow, MemberRow, Snapshot};
use axum::http::HeaderValue;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::sync::LazyLock;

/// With marks, `<!--NAME-->`, where texts go. No escaped text can hold a mark.
const TEMPLATE: &str = include_str!("status.html");

/// What stands for a value that is not known, or not shown to this reader.
const NONE: &str = "–";

/// What a browser lets the page do: ask this port, and run what is in the file.
pub(super) static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash_of("script"),
        hash_of("style")
    );
    // A policy that is no header value allows nothing: the tables stay.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The source of a policy that allows the one element of this name.
fn hash_of(element: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(content_of(element))))
}

/// What is between the tags of the one element of this name.
fn content_of(element: &str) -> &'static str {
    let (_, rest) = TEMPLATE.split_once(&format!("<{element}>")).unwrap_or_default();
    rest.split_once(&format!("</{element}>")).map_or("", |(content, _)| content)
}

/// The page of this snapshot.
pub(super) fn html(snapshot: &Snapshot) -> String {
    let Snapshot { node, verdict, .. } = snapshot;
    let (slot, cluster) = (node.slot, &snapshot.cluster);
    let own = format!("Slot {slot}, node {}: {}, {}", node.node_id, node.role, node.state);
    let marks = [
        ("title", escaped(&format!("Cairn, {cluster}, slot {slot}"))),
        ("cluster", escaped(cluster)),
        ("node", escaped(&own)),
        ("severity", escaped(verdict.severity)),
        ("words", escaped(&verdict.words)),
        ("basis", escaped(&verdict.basis)),
        ("findings", findings(snapshot)),
        ("members", snapshot.members.iter().map(member).collect()),
        ("more", left_out(snapshot.members_left_out)),
        ("numbers", numbers(snapshot)),
        ("changes", changes(snapshot.changes.as_deref())),
    ];
    let put =
        |page: String, (mark, text): (&str, String)| page.replace(&format!("<!--{mark}-->"), &text);
    marks.into_iter().fold(TEMPLATE.to_owned(), put)
}

fn findings(snapshot: &Snapshot) -> String {
    let item = |finding: &FindingRow| {
        let FindingRow { severity, nodes, what, action, .. } = finding;
        let of = if nodes.is_empty() { "" } else { " " };
        let then = if action.is_empty() { "" } else { "; " };
        let line = format!("{severity}: {}{of}{what}{then}{action}", nodes.join(", "));
        format!("<li>{}</li>", escaped(&line))
    };
    let mut items: String = snapshot.findings.iter().map(item).collect();
    if items.is_empty() {
        items.push_str("<li>nothing that this node knows of</li>");
    }
    if snapshot.findings_left_out > 0 {
        items.extend(["<li>", &left_out(snapshot.findings_left_out), "</li>"]);
    }
    items
}

fn left_out(count: usize) -> String {
    if count == 0 { String::new() } else { format!("{count} more are not shown") }
}

fn member(member: &MemberRow) -> String {
    let slot = match member.this {
        true => format!("{}, this node", member.slot),
        false => member.slot.to_string(),
    };
    row(
        &slot,
        &[
            member.role,
            &or_none(member.lag_entries, |lag| lag.to_string()),
            &or_none(member.silence_ms, time),
            member.client_address.as_deref().unwrap_or(NONE),
            member.peer_address.as_deref().unwrap_or(NONE),
        ],
    )
}

fn changes(changes: Option<&[Change]>) -> String {
    let empty = |words: &str| format!("<tr><td colspan=\"5\">{words}</td></tr>");
    let change = |change: &Change| {
        let Change { ago_ms, principal, call, arguments, result } = change;
        row(&time(*ago_ms), &[call, principal, arguments, result])
    };
    match changes {
        None => empty(
            "not shown here: ask over TLS or by a loopback address, or use <code>cairn status</code>",
        ),
        Some([]) => empty("none since this node started"),
        Some(changes) => changes.iter().map(change).collect(),
    }
}

/// How a number is written, here and by the script.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Count,
    Bytes,
    Time,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Text => "text",
            Form::Count => "count",
            Form::Bytes => "bytes",
            Form::Time => "time",
        }
    }
}

/// The numbers of this node: what each is called, where it is in the JSON, and its form.
const NUMBERS: [(&str, &str, Form); 23] = [
    ("Release", "node.release", Form::Text),
    ("Mode: what an acknowledgement means", "node.mode", Form::Text),
    ("Runs for", "node.uptime_ms", Form::Time),
    ("Not ready, because", "node.not_ready", Form::Text),
    ("Term", "log.term", Form::Count),
    ("Last index of the log", "log.last_index", Form::Count),
    ("Committed index", "log.committed_index", Form::Count),
    ("Applied index", "log.applied_index", Form::Count),
    ("Applied late by", "log.applied_lag_ms", Form::Time),
    ("Writes done", "requests.write.ok", Form::Count),
    ("Writes refused or failed", "requests.write.failed", Form::Count),
    ("Gets done", "requests.get.ok", Form::Count),
    ("Gets refused or failed", "requests.get.failed", Form::Count),
    ("Lists done", "requests.list.ok", Form::Count),
    ("Lists refused or failed", "requests.list.failed", Form::Count),
    ("Keys", "space.keys", Form::Count),
    ("Keys and values", "space.live_bytes", Form::Bytes),
    ("Data area", "space.data_bytes", Form::Bytes),
    ("Free of that", "space.data_free_bytes", Form::Bytes),
    ("Space for keys", "space.index_limit_bytes", Form::Bytes),
    ("Used of that", "space.index_bytes", Form::Bytes),
    ("Not synced yet", "space.unsynced_bytes", Form::Bytes),
    ("For", "space.unsynced_age_ms", Form::Time),
];

fn numbers(snapshot: &Snapshot) -> String {
    // By the JSON, as the script finds them. A snapshot without one has no numbers.
    let told = serde_json::to_value(snapshot).unwrap_or_default();
    let mut rows = String::new();
    for (called, place, form) in NUMBERS {
        let found = told.pointer(&format!("/{}", place.replace('.', "/")));
        let number = found.and_then(serde_json::Value::as_u64);
        let text = match form {
            Form::Text => found.and_then(serde_json::Value::as_str).map(str::to_owned),
            Form::Count => number.map(|number| number.to_string()),
            Form::Bytes => number.map(bytes),
            Form::Time => number.map(time),
        };
        let text = escaped(text.as_deref().unwrap_or(NONE));
        let form = form.name();
        // Writing to a text does not fail.
        let _ = write!(
            rows,
            "<tr><th scope=\"row\">{called}</th><td data-of=\"{place}\" data-as=\"{form}\">{text}</td></tr>"
        );
    }
    rows
}

/// A row of a table with its header.
fn row(header: &str, cells: &[&str]) -> String {
    let cells = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell)));
    let cells: String = cells.collect();
    format!("<tr><th scope=\"row\">{}</th>{cells}</tr>", escaped(header))
}

fn or_none<T>(value: Option<T>, form: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), form)
}

/// Bytes with one decimal, such as `1.5 MiB`.
fn bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut number, mut unit) = (bytes as f64 / 1024.0, "KiB");
    for larger in ["MiB", "GiB", "TiB", "PiB"] {
        if number < 1024.0 {
            break;
        }
        (number, unit) = (number / 1024.0, larger);
    }
    format!("{number:.1} {unit}")
}

/// Milliseconds in the unit that a person would take.
fn time(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{:.1} s", ms as f64 / 1000.0),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

/// The text, without a character that means something in HTML, between tags and in attributes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_end_what_it_stands_in() {
        assert_eq!(
            escaped("<b class=\"x\" title='y'>&amp;</b>"),
            "&lt;b class=&quot;x&quot; title=&#39;y&#39;&gt;&amp;amp;&lt;/b&gt;"
        );
        assert_eq!(escaped("Zoë <!--title-->"), "Zoë &lt;!--title--&gt;");
    }

    #[test]
    fn numbers_have_the_unit_that_a_person_would_take() {
        let all = [0, 1023, 1024, 1536 << 10, 5 << 40, u64::MAX].map(bytes);
        assert_eq!(all, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5.0 TiB", "16384.0 PiB"]);
        let all = [0, 999, 1500, 60_000, 7_200_000].map(time);
        assert_eq!(all, ["0 ms", "999 ms", "1.5 s", "1 min", "2 h"]);
    }

    #[test]
    fn the_policy_allows_the_script_and_the_style_of_the_file_and_nothing_else_is_fetched() {
        let policy = POLICY.to_str().expect("text");
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        for element in ["script", "style"] {
            let (open, close) = (format!("<{element}"), format!("</{element}>"));
            assert_eq!(TEMPLATE.matches(&open).count(), 1, "one {element}");
            assert_eq!(TEMPLATE.matches(&close).count(), 1, "one {element}");
            assert!(content_of(element).len() > 1000, "{element}");
            assert!(policy.contains(&hash_of(element)), "{element} in {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        // A style within a tag, or a handler, would not run by this policy.
        let foreign = ["src=", "@import", "url(", " style=", "onclick", "//cdn", "innerHTML"];
        assert_eq!(foreign.map(|word| TEMPLATE.contains(word)), [false; 7]);
    }
}
