//! What is not well in a cluster, by what its nodes answer.
//!
//! What holds here: what is not well is decided in [`Report`] alone. `cairn health` and `cairn status`
//! show it by what every node answers, and the status page by what the node knows that serves it.

mod certificate_rules;
mod cluster_rules;
mod fill;
mod finding;
mod member_rules;

pub use certificate_rules::{days, ends, shortest};
pub(crate) use fill::Fill;
pub use finding::{Answer, Finding, Kind, Severity};
use std::time::Duration;

/// A node that seems to be far behind is asked again after so long.
const ASKED_AGAIN: Duration = Duration::from_millis(250);

/// What every known node answered, by slot, and what is not well by that, the gravest first.
#[derive(Clone, Debug)]
pub struct Report {
    /// The nodes and their answers.
    pub answers: Vec<Answer>,
    /// What is not well, or worth knowing.
    pub findings: Vec<Finding>,
}

impl Report {
    /// By the answers that `ask` brings; it is asked a second time if a node seems to be far behind.
    pub async fn ask<F>(ask: impl Fn() -> F) -> Report
    where
        F: Future<Output = Vec<Answer>>,
    {
        let report = Report::of(ask().await);
        let Some(committed) = report.seems_behind() else { return report };
        tokio::time::sleep(ASKED_AGAIN).await;
        Report::since(ask().await, committed)
    }

    /// By these answers.
    pub fn of(answers: Vec<Answer>) -> Report {
        let committed = member_rules::committed(&answers);
        Report::since(answers, committed)
    }

    /// By answers to a question that was asked when this index was committed.
    fn since(mut answers: Vec<Answer>, committed: u64) -> Report {
        answers.sort_by_key(|(endpoint, answer)| {
            (answer.as_ref().map_or(u16::MAX, |node| node.slot), endpoint.clone())
        });
        let mut findings = cluster_rules::findings(&answers);
        findings.extend(member_rules::findings(&answers, committed));
        findings.extend(certificate_rules::findings(&answers));
        findings.sort_by_key(|finding| finding.severity);
        Report { answers, findings }
    }

    /// The index that one of the members seems to be far behind. The answers are of different moments, and
    /// under load more than is allowed is committed between two of them: whether the member is behind shows
    /// once it is asked again.
    fn seems_behind(&self) -> Option<u64> {
        let behind = self.findings.iter().any(|finding| finding.kind == Kind::FarBehind);
        behind.then(|| member_rules::committed(&self.answers))
    }

    /// The same from a node that asks nobody, a moment after an election or its start. `unheard`: nodes of which it
    /// knows nothing yet; `leader`: nor who leads. That is a note, and no fault of theirs.
    #[must_use]
    pub fn not_known_yet(mut self, unheard: Vec<String>, leader: bool) -> Report {
        if leader {
            self.findings.retain(|finding| finding.kind != Kind::NoLeader);
            let what =
                "it is not known yet who leads: this node has just heard a leader, or just started";
            self.findings.push(Finding::of_cluster(Kind::NotKnownYet, what, ""));
        }
        if !unheard.is_empty() {
            let what = "not known yet: this node has just begun to lead";
            let finding = Finding::of_cluster(Kind::NotKnownYet, what, "");
            self.findings.push(Finding { nodes: unheard, ..finding });
        }
        self.findings.sort_by_key(|finding| finding.severity);
        self
    }

    /// Whether something is not known yet.
    pub fn is_early(&self) -> bool {
        self.findings.iter().any(|finding| finding.kind == Kind::NotKnownYet)
    }

    /// What is not as it should be: a note is.
    pub fn faults(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity != Severity::Note)
    }

    /// Whether nothing but notes is found.
    pub fn is_well(&self) -> bool {
        self.faults().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    mod answers;

    use super::*;
    use answers::{node, silent};

    #[test]
    fn what_is_not_known_yet_is_a_note_and_says_of_nobody_that_he_does_not_answer() {
        let lone = || {
            let mut lone = node("a:1");
            if let Ok(status) = &mut lone.1 {
                status.leader = None;
            }
            lone
        };
        assert_eq!(Report::of(vec![lone()]).findings[0].kind, Kind::NoLeader);
        let early = Report::of(vec![lone()]).not_known_yet(Vec::new(), true);
        assert!(early.is_well() && early.is_early(), "{:?}", early.findings);
        assert!(early.findings[0].line().starts_with("it is not known yet who leads"));
        let early = Report::of(vec![node("a:1"), silent("b:1")]);
        assert!(!early.is_early());
        let early = early.not_known_yet(vec!["c:1".into(), "d:1".into()], false);
        let lines: Vec<String> = early.findings.iter().map(Finding::line).collect();
        assert!(lines[0].starts_with("b:1 does not answer"), "the gravest first: {lines:?}");
        assert_eq!(lines[1], "c:1, d:1 not known yet: this node has just begun to lead");
    }

    #[test]
    fn a_cluster_is_well_if_nothing_but_notes_is_found() {
        let mut noted = node("a:1");
        if let Ok(status) = &mut noted.1 {
            status.insecure = true;
        }
        let report = Report::of(vec![noted]);
        assert!(report.is_well(), "{:?}", report.findings);
        let told = serde_json::to_value(&report.findings).expect("JSON");
        assert_eq!(told[0]["code"], "insecure", "{told}");
        assert_eq!(told[0]["severity"], "note", "{told}");
    }

    /// The story: two members answered some milliseconds apart while clients wrote, and the one that
    /// answered first was said to be far behind.
    #[test]
    fn a_member_that_reaches_what_was_committed_before_is_not_far_behind() {
        let answers = |committed, applied| {
            let mut all = vec![node("a:1"), node("b:1")];
            for ((_, answer), applied) in all.iter_mut().zip([committed, applied]) {
                if let Ok(status) = answer {
                    (status.committed_index, status.applied_index) = (committed, applied);
                }
            }
            all
        };
        assert_eq!(Report::of(answers(5000, 4000)).seems_behind(), None);
        let first = Report::of(answers(5000, 3999));
        let committed = first.seems_behind().expect("by one question it seems so");
        assert_eq!(committed, 5000);
        let again = Report::since(answers(90_000, 4000), committed);
        assert!(again.is_well(), "{:?}", again.findings);
        let again = Report::since(answers(90_000, 3999), committed);
        let found = again.faults().next().expect("it stays behind");
        assert_eq!(found.kind, Kind::FarBehind);
        assert!(found.line().starts_with("b:1 is 1001 entries behind; "), "{}", found.line());
    }
}
