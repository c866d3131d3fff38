//! What ends soon: certificates of members, and the CAs that signed them.
//!
//! What holds here: a member that does not say when its certificate ends has no finding. Each knows the CA
//! of its own certificate alone, and members have the same one as a rule: that is said once.

use super::finding::{Answer, Finding, Kind};
use cairn_client::NodeStatus;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// What ends within this time is named: time enough to renew it on a working day.
const SOON_DAYS: u64 = 14;
/// What ends within this time, or has ended, is critical: a long weekend.
const CRITICAL_DAYS: u64 = 3;

/// The shortest times for which a certificate and a CA are valid, as far as these nodes say.
pub fn shortest(answers: &[Answer]) -> (Option<Duration>, Option<Duration>) {
    let nodes = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let certificate = nodes().filter_map(|node| node.certificate_left).min();
    (certificate, nodes().filter_map(|node| node.ca_left).min())
}

/// Whole days.
pub fn days(left: Duration) -> u64 {
    left.as_secs() / DAY.as_secs()
}

/// When what is valid for so long ends, behind a name.
pub fn ends(left: Duration) -> String {
    match days(left) {
        _ if left.is_zero() => "has ended".into(),
        0 => "ends within a day".into(),
        1 => "ends in 1 day".into(),
        days => format!("ends in {days} days"),
    }
}

pub(super) fn findings(answers: &[Answer]) -> Vec<Finding> {
    let mut found: Vec<Finding> = answers
        .iter()
        .filter_map(|(endpoint, answer)| certificate(endpoint, answer.as_ref().ok()?))
        .collect();
    found.extend(ca(answers));
    found
}

fn certificate(endpoint: &str, node: &NodeStatus) -> Option<Finding> {
    let left = node.certificate_left.filter(|left| days(*left) < SOON_DAYS)?;
    let finding = Finding::of_node(
        Kind::CertificateEnds,
        endpoint,
        format!("has a certificate that {}", ends(left)),
        format!(
            "make another one with `cairn certs issue DIR --member {}` and put it in its place, no \
             restart is needed (docs/operations.md, Certificates)",
            node.slot
        ),
    );
    Some(by_time(finding, left))
}

fn ca(answers: &[Answer]) -> Option<Finding> {
    let (mut nodes, mut first) = (Vec::new(), None);
    for (endpoint, answer) in answers {
        let left = answer.as_ref().ok().and_then(|node| node.ca_left);
        if let Some(left) = left.filter(|left| days(*left) < SOON_DAYS) {
            nodes.push(endpoint.clone());
            first = Some(first.map_or(left, |first: Duration| first.min(left)));
        }
    }
    let left = first?;
    let has = if nodes.len() == 1 { "has" } else { "have" };
    let finding = Finding::of_cluster(
        Kind::CaEnds,
        format!("{has} a certificate of a CA that {}", ends(left)),
        "replace the CA in three steps, no restart is needed (docs/operations.md, Certificates)",
    );
    Some(by_time(Finding { nodes, ..finding }, left))
}

fn by_time(finding: Finding, left: Duration) -> Finding {
    if days(left) < CRITICAL_DAYS { finding.critical() } else { finding }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    const NOTHING: [Finding; 0] = [];

    fn node(certificate: Option<Duration>, ca: Option<Duration>) -> NodeStatus {
        let mut node = NodeStatus::default();
        (node.slot, node.certificate_left, node.ca_left) = (2, certificate, ca);
        node
    }

    fn found(nodes: Vec<NodeStatus>) -> Vec<Finding> {
        let answers = nodes.into_iter().zip(["a:1", "b:1", "c:1"]);
        let answers = answers.map(|(node, endpoint)| (endpoint.to_owned(), Ok(node)));
        findings(&answers.collect::<Vec<Answer>>())
    }

    #[test]
    fn a_certificate_is_named_within_14_days_of_its_end_and_critical_within_3() {
        let second = Duration::from_secs(1);
        let of = |left| {
            let found = found(vec![node(Some(left), Some(100 * DAY))]);
            found.first().map(|finding| (finding.kind, finding.severity, finding.line()))
        };
        let said = |left, severity, words: &str| {
            let (kind, found, line) = of(left).unwrap_or_else(|| panic!("{left:?}: no finding"));
            assert_eq!((kind, found), (Kind::CertificateEnds, severity), "{line}");
            assert!(line.starts_with(&format!("a:1 has a certificate that {words}; ")), "{line}");
            assert!(line.contains("`cairn certs issue DIR --member 2`"), "{line}");
        };
        assert_eq!(of(14 * DAY), None);
        said(14 * DAY - second, Severity::Warning, "ends in 13 days");
        said(3 * DAY, Severity::Warning, "ends in 3 days");
        said(3 * DAY - second, Severity::Critical, "ends in 2 days");
        said(DAY, Severity::Critical, "ends in 1 day");
        said(second, Severity::Critical, "ends within a day");
        said(Duration::ZERO, Severity::Critical, "has ended");
    }

    #[test]
    fn a_member_that_does_not_say_when_its_certificate_ends_has_no_finding() {
        let silent = cairn_client::Error::Refused { message: "no".into() };
        assert_eq!(found(vec![node(None, None)]), NOTHING);
        assert_eq!(findings(&[("a:1".into(), Err(silent))]), NOTHING);
        assert_eq!(shortest(&[("a:1".into(), Ok(node(None, None)))]), (None, None));
    }

    #[test]
    fn a_ca_is_named_once_with_all_members_whose_certificates_it_signed() {
        let year = Some(365 * DAY);
        let (soon, later) = (Some(5 * DAY), Some(6 * DAY));
        let both = found(vec![node(year, later), node(year, year), node(year, soon)]);
        assert_eq!(both.len(), 1, "{both:?}");
        assert_eq!((both[0].kind, both[0].severity), (Kind::CaEnds, Severity::Warning));
        let line = both[0].line();
        let words = "a:1, c:1 have a certificate of a CA that ends in 5 days; replace the CA";
        assert!(line.starts_with(words), "{line}");
        let ended = found(vec![node(year, Some(Duration::ZERO))]);
        assert_eq!(ended[0].severity, Severity::Critical);
        assert!(ended[0].line().starts_with("a:1 has a certificate of a CA that has ended; "));
    }

    #[test]
    fn the_shortest_time_of_all_members_counts() {
        let answers: Vec<Answer> = vec![
            ("a:1".into(), Ok(node(Some(9 * DAY), Some(50 * DAY)))),
            ("b:1".into(), Ok(node(Some(8 * DAY), None))),
            ("c:1".into(), Ok(node(None, Some(40 * DAY)))),
        ];
        assert_eq!(shortest(&answers), (Some(8 * DAY), Some(40 * DAY)));
    }
}
