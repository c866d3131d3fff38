//! What `cairn health` and `cairn status` say of certificates that end.

use crate::support::Cluster;
use crate::support::certificates::Ca;
use cairn_tls::issue::{Authority, Validity};
use serde_json::{Value, json};

const DAY_S: u64 = 24 * 3600;

/// Gives the member a certificate that is valid for so many days, and returns what `cairn health` answers,
/// with its exit code, as soon as it goes by that.
async fn renewed(cluster: &Cluster, ca: &Ca, days: u32) -> (i32, Value) {
    let certificates = cluster.certificates.as_ref().expect("secured");
    let own = ca.issue_for("member/1", Validity::days(days));
    certificates.install("member-1", &ca.pem, &own);
    let known = async || {
        let ran = cluster.cairn(&["health", "-o", "json"]);
        let answer: Value = serde_json::from_str(&ran.stdout).ok()?;
        let left = answer["certificate_left_s"].as_u64()?;
        (left / DAY_S + 1 == u64::from(days)).then_some((ran.code, answer))
    };
    cluster.until("the new certificate is in use", known).await
}

fn finding<'a>(answer: &'a Value, code: &str) -> Option<&'a Value> {
    answer["findings"].as_array().expect("findings").iter().find(|found| found["code"] == code)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_and_a_ca_that_end_soon_are_named_until_they_are_replaced() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    let certificates = cluster.certificates.as_ref().expect("secured");
    let (ca, endpoint) = (certificates.ca(), cluster.endpoints()[0].clone());

    let (code, answer) = renewed(&cluster, &ca, 10).await;
    let soon = finding(&answer, "certificate_ends").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((code, &soon["severity"]), (4, &json!("warning")), "{answer}");
    assert_eq!(soon["nodes"], json!([endpoint]), "{answer}");

    let (code, answer) = renewed(&cluster, &ca, 2).await;
    let sooner = finding(&answer, "certificate_ends").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((code, &sooner["severity"]), (4, &json!("critical")), "{answer}");
    let text = cluster.cairn(&["status"]).stdout;
    assert!(text.contains(&format!("{endpoint} has a certificate that ends in 1 day; ")), "{text}");
    let status = cluster.cairn(&["status", "-o", "json"]).stdout;
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert!(status[0]["certificate_left_s"].as_u64() > Some(DAY_S), "{status}");
    assert!(status[0]["ca_left_s"].as_u64() > Some(1000 * DAY_S), "{status}");

    let (_, answer) = renewed(&cluster, &ca, 300).await;
    assert_eq!(finding(&answer, "certificate_ends"), None, "{answer}");
    assert_eq!(finding(&answer, "ca_ends"), None, "{answer}");

    let (authority, issued) = Authority::create("tested", Validity::days(2)).expect("a CA");
    let short = Ca { authority, pem: issued.certificate };
    certificates.install("client", &short.pem, &short.issue("client/tester"));
    let (code, answer) = renewed(&cluster, &short, 200).await;
    let ends = finding(&answer, "ca_ends").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((code, &ends["severity"]), (4, &json!("critical")), "{answer}");
    assert_eq!(ends["nodes"], json!([endpoint]), "{answer}");
    assert!(answer["ca_left_s"].as_u64() < Some(2 * DAY_S + 1), "{answer}");
    assert_eq!(finding(&answer, "certificate_ends"), None, "{answer}");
}
