//! What the page shows, whatever others wrote.

use super::known::name;
use super::*;
use crate::health::{Finding, Kind, Report, Severity};
use cairn_client::{NodeStatus, Role, proto};
use cairn_raft::{FollowerLag, NodeId};
use serde_json::Value;

/// Ends whatever it stands in, in HTML and in JSON.
const HOSTILE: &str = "<script>alert('1')</script>\"&\u{202e}";

fn hostile(bytes: usize) -> String {
    HOSTILE.repeat(bytes / HOSTILE.len() + 1)
}

fn latencies() -> cairn_engine::Latencies {
    let counts = || cairn_engine::Latency::default().counts();
    cairn_engine::Latencies {
        reads: counts(),
        writes: counts(),
        syncs: counts(),
        appends: counts(),
    }
}

/// What a leader shows whose members, findings and operators' calls are so many, with texts of at
/// least so many bytes that somebody else chose.
fn snapshot(many: u16, bytes: usize, private: bool) -> Snapshot {
    let finding = |_: u16| Finding {
        severity: Severity::Warning,
        kind: Kind::Unreachable,
        nodes: (1..=many).map(|slot| name(slot, false)).collect(),
        what: hostile(bytes),
        action: hostile(bytes),
    };
    let findings = (1..=many).map(finding).collect();
    found(many, bytes, private, Report { answers: Vec::new(), findings })
}

/// The same with these findings.
fn found(many: u16, bytes: usize, private: bool, report: Report) -> Snapshot {
    let member = |slot: u16| proto::Member {
        node_id: NodeId::new(slot, 1).as_u64(),
        slot: u32::from(slot),
        client_address: hostile(bytes),
        peer_address: hostile(bytes),
        voter: true,
    };
    let call = |number: u16| proto::OperatorCall {
        principal: hostile(bytes),
        call: hostile(bytes),
        arguments: hostile(bytes),
        result: hostile(bytes),
        ago_ms: u64::from(number),
    };
    let leader = proto::Leader { node_id: NodeId::new(1, 1).as_u64(), ..Default::default() };
    let own = NodeStatus::of(proto::StatusResponse {
        cluster: hostile(bytes),
        node_id: NodeId::new(1, 1).as_u64(),
        slot: 1,
        server_version: hostile(bytes),
        role: Role::Leader.into(),
        leader: Some(leader),
        members: (1..=many).map(member).collect(),
        operator_calls: (1..=many).rev().map(call).collect(),
        not_ready: hostile(bytes),
        storage: Some(proto::Storage { keys: 12_345, ..Default::default() }),
        ..Default::default()
    });
    let followers = (2..=many)
        .map(|slot| FollowerLag { id: NodeId::new(slot, 1), entries: 7, silent: None })
        .collect();
    Snapshot::of(Known {
        own,
        report,
        followers,
        applied_lag: Some(Duration::from_millis(5)),
        requests: Requests::default(),
        latencies: latencies(),
        private,
    })
}

fn json(snapshot: &Snapshot) -> Value {
    serde_json::to_value(snapshot).expect("JSON")
}

fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> =
        value.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Scripts read these names. More may be added, with a line here and one in docs/operations.md.
#[test]
fn the_names_of_the_json_are_those_that_are_documented() {
    let told = json(&snapshot(2, 1, true));
    assert_eq!(told["format"], 1);
    let expected = [
        (
            "",
            "changes cluster findings findings_left_out format latencies log members \
            members_left_out node requests space verdict",
        ),
        ("/node", "mode node_id not_ready release role slot state uptime_ms"),
        ("/verdict", "basis scope severity well words"),
        ("/findings/0", "action code nodes severity what"),
        (
            "/members/0",
            "client_address lag_entries name node_id peer_address role silence_ms \
            slot this",
        ),
        ("/changes/0", "ago_ms arguments call principal result"),
        ("/log", "applied_index applied_lag_ms committed_index last_index term"),
        (
            "/space",
            "data_bytes data_free_bytes device_bytes_written index_bytes \
            index_limit_bytes journal_blocks journal_used_blocks keys live_bytes \
            unsynced_age_ms unsynced_bytes user_bytes_written",
        ),
        ("/requests", "get list write"),
        ("/requests/write", "failed ok seconds"),
        ("/latencies", "append device_read device_sync device_write"),
        ("/latencies/append", "buckets seconds"),
    ];
    for (place, expected) in expected {
        let found = told.pointer(place).unwrap_or_else(|| panic!("{place} of {told}"));
        assert_eq!(names(found).join(" "), expected, "{place}");
    }
    let last = told.pointer("/latencies/append/buckets/20").expect("21 buckets");
    assert_eq!(last, &serde_json::json!([null, 0]));
}

#[test]
fn roles_and_lags_are_those_of_the_leader_and_the_latest_change_is_the_first() {
    let told = json(&snapshot(3, 1, true));
    let roles = [0_usize, 1, 2].map(|row| told["members"][row]["role"].clone());
    assert_eq!(roles, ["leader", "voter", "voter"]);
    assert_eq!(told["members"][0]["lag_entries"], Value::Null, "of itself: {told}");
    assert_eq!(told["members"][1]["lag_entries"], 7, "{told}");
    assert_eq!(told["changes"][0]["ago_ms"], 1, "{told}");
    assert_eq!(told["verdict"]["scope"], "cluster", "{told}");
    assert_eq!(told["verdict"]["severity"], "warning", "{told}");
}

#[test]
fn what_is_not_known_yet_is_a_note_and_the_cluster_is_not_said_to_be_well() {
    let told = |unheard: &[&str]| {
        let unheard = unheard.iter().map(|&name| name.to_owned()).collect();
        let report = Report { answers: Vec::new(), findings: Vec::new() };
        json(&found(3, 1, true, report.not_known_yet(unheard, false)))
    };
    let early = told(&["slot 3"]);
    let note = serde_json::json!({
        "severity": "note",
        "code": "not_known_yet",
        "nodes": ["slot 3"],
        "what": "not known yet: this node has just begun to lead",
        "action": "",
    });
    assert_eq!(early["findings"], serde_json::json!([note]), "{early}");
    assert_eq!(
        (&early["verdict"]["well"], &early["verdict"]["severity"]),
        (&true.into(), &"well".into())
    );
    assert_eq!(early["verdict"]["words"], "Nothing that this node knows is wrong");
    assert_eq!(told(&[])["verdict"]["words"], "The cluster is well");
}

#[test]
fn who_may_not_see_addresses_and_changes_gets_none() {
    let told = json(&snapshot(3, 1, false));
    assert_eq!(told["changes"], Value::Null);
    for member in told["members"].as_array().expect("members") {
        assert_eq!(member["client_address"], Value::Null, "{member}");
        assert_eq!(member["peer_address"], Value::Null, "{member}");
    }
}

#[test]
fn whatever_others_wrote_the_json_is_bounded_and_says_how_much_it_leaves_out() {
    let snapshot = snapshot(200, 4000, true);
    let text = serde_json::to_string(&snapshot).expect("JSON");
    assert!(text.len() <= ANSWER_BYTES, "{}", text.len());
    assert!(!text.contains('\u{202e}'), "it would reorder the text around it");
    let told = json(&snapshot);
    let count = |name: &str| told[name].as_array().map(Vec::len);
    assert_eq!((count("members"), &told["members_left_out"]), (Some(64), &136.into()));
    assert_eq!((count("findings"), &told["findings_left_out"]), (Some(32), &168.into()));
    assert_eq!(count("changes"), Some(16));
}

/// Without JavaScript it is all that there is.
#[test]
fn the_page_has_a_row_for_each_member_whatever_its_name_is() {
    let html = page::html(&snapshot(3, 1, true));
    assert!(!html.contains("<script>alert"), "{html}");
    assert_eq!(html.matches("<script").count(), 1, "its own alone");
    assert!(!html.contains("<!--"), "a mark is left: {html}");
    let address = "<td>&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot;&amp;\\u{202e}</td>";
    let rows = [("1, this node", "leader", "–"), ("2", "voter", "7"), ("3", "voter", "7")];
    for (slot, role, lag) in rows {
        let row = format!(
            "<tr><th scope=\"row\">{slot}</th><td>{role}</td><td>{lag}</td><td>–</td>{address}{address}</tr>"
        );
        assert!(html.contains(&row), "{row} in\n{html}");
    }
    assert!(html.contains("<p id=\"verdict\" class=\"warning\"><b>warning</b>"), "{html}");
    assert!(html.contains("<li>warning: slot 1 (learner), slot 2 (learner)"), "{html}");
    let keys = "data-of=\"space.keys\" data-as=\"count\">12345</td>";
    assert!(html.contains(keys), "{html}");
}

#[test]
fn the_page_without_addresses_says_why_no_change_is_shown() {
    let html = page::html(&snapshot(3, 1, false));
    let row = "<th scope=\"row\">2</th><td>voter</td><td>7</td><td>–</td><td>–</td><td>–</td>";
    assert!(html.contains(row), "{html}");
    assert!(html.contains("not shown here: ask over TLS"), "{html}");
}

#[test]
fn whatever_others_wrote_the_page_is_bounded() {
    let html = page::html(&snapshot(200, 4000, true));
    assert!(html.len() <= ANSWER_BYTES, "{}", html.len());
    assert!(html.contains("136 more are not shown") && html.contains("168 more"), "{html}");
}

/// The script finds each number by its place in the JSON.
#[test]
fn every_number_of_the_page_is_in_the_json() {
    let snapshot = snapshot(3, 1, true);
    let (told, html) = (json(&snapshot), page::html(&snapshot));
    let places: Vec<&str> =
        html.split("data-of=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(places.len() > 20, "{places:?}");
    for place in places {
        let pointer = format!("/{}", place.replace('.', "/"));
        assert!(told.pointer(&pointer).is_some(), "{place} of {told}");
    }
}

#[test]
fn only_a_name_of_loopback_counts_as_one() {
    for (host, expected) in [
        ("127.0.0.1:7402", true),
        ("127.9.9.9", true),
        ("[::1]:7402", true),
        ("localhost:7402", true),
        ("LocalHost", true),
        ("localhost.example.com", false),
        ("127.0.0.1.example.com", false),
        ("10.0.0.1:7402", false),
        ("attacker.example:7402", false),
        ("", false),
        ("a b", false),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).expect("a value"));
        assert_eq!(names_loopback(&headers), expected, "{host}");
    }
    assert!(!names_loopback(&HeaderMap::new()));
}
