//! `cairn health`: whether the cluster is well, and with `--safe-to-stop` whether it would go on
//! without a member.
//!
//! What holds here: what is not well is decided in [`Report`] alone, which `cairn status` shows too.

mod certificate_rules;
mod cluster_rules;
mod finding;
mod member_rules;
mod safe_to_stop;

use super::ConnectOptions;
use super::connect::time;
use super::exit::Exit;
use super::members::slot;
use super::output::Output;
use cairn_client::{Client, Error, Role};
pub(super) use certificate_rules::days;
use clap::Args;
pub(super) use finding::{Answer, Kind};
use finding::{Finding, Severity};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often the members are asked.
const POLL: Duration = Duration::from_millis(250);
/// A longer wait is this one.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long one node may take. A node that is down must not delay the answers of the others.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct HealthArgs {
    /// Ask instead whether a member may be stopped now, and the cluster goes on; exit code 4 if not
    #[arg(long)]
    safe_to_stop: bool,

    /// With --safe-to-stop: slot of the member; without it, whichever member it is
    #[arg(long, value_name = "SLOT", value_parser = slot(), requires = "safe_to_stop")]
    slot: Option<u16>,

    /// Ask until the answer is yes, for at most this long
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: HealthArgs, output: &Output) -> anyhow::Result<Exit> {
    let until = Instant::now() + args.wait.unwrap_or_default().min(LONGEST_WAIT);
    if args.safe_to_stop {
        return safe_to_stop::run(&args.connect.client()?, args.slot, until, output).await;
    }
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    let report = loop {
        // This learns the members beyond the given endpoints. Without an answer the client knows those
        // alone, and the reason of each follows.
        let _ = client.members().await;
        let report = Report::ask(&client).await;
        if report.is_well() || !wait(until).await {
            break report;
        }
    };
    output.either(|| report.as_json(), || report.as_text())?;
    let (exit, why) = report.exit();
    // As with `--safe-to-stop`, no is an answer, and no error.
    if output.is_json() && !matches!(exit, Exit::Done | Exit::ConditionFailed) {
        output.error(&format!("{why}; what is known is on standard output"), exit as u8);
    }
    Ok(exit)
}

/// Waits until it is time to ask again. Returns whether there is time for that.
async fn wait(until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return false;
    }
    tokio::time::sleep(POLL.min(left)).await;
    true
}

/// What every known node answered, by slot, and what is not well by that, the gravest first: for
/// `cairn health` and `cairn status` alike.
pub(super) struct Report {
    pub(super) answers: Vec<Answer>,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// Asks every node that the client knows, all at once; and a second time if one seems to be far behind.
    pub(super) async fn ask(client: &Client) -> Report {
        let report = Report::of(client.statuses().await);
        let Some(committed) = report.seems_behind() else { return report };
        tokio::time::sleep(POLL).await;
        Report::since(client.statuses().await, committed)
    }

    fn of(answers: Vec<Answer>) -> Report {
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

    /// What is not as it should be: a note is.
    fn faults(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity != Severity::Note)
    }

    fn is_well(&self) -> bool {
        self.faults().next().is_none()
    }

    /// The exit code, and why it is that one.
    fn exit(&self) -> (Exit, &'static str) {
        let denied = |(_, answer): &Answer| answer.as_ref().is_err_and(Error::is_denied);
        if self.answers.iter().any(denied) {
            (Exit::NotAllowed, "a node does not allow it")
        } else if self.answers.iter().all(|(_, answer)| answer.is_err()) {
            (Exit::Unavailable, "no node answers")
        } else if self.is_well() {
            (Exit::Done, "the cluster is well")
        } else {
            (Exit::ConditionFailed, "the cluster is not well")
        }
    }

    fn as_json(&self) -> Value {
        let (certificate, ca) = certificate_rules::shortest(&self.answers);
        let seconds = |left: Option<Duration>| left.map(|left| left.as_secs());
        json!({
            "well": self.is_well(),
            "certificate_left_s": seconds(certificate),
            "ca_left_s": seconds(ca),
            "findings": self.findings,
        })
    }

    fn as_text(&self) -> String {
        if self.is_well() {
            let nodes = self.answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
            let leader = nodes.clone().filter(|node| node.role == Role::Leader);
            let leader = leader.max_by_key(|node| node.term);
            let leads = leader.map_or(String::new(), |node| format!("; slot {} leads", node.slot));
            let (certificate, _) = certificate_rules::shortest(&self.answers);
            let ends = |left| format!("; the first certificate {}", certificate_rules::ends(left));
            let ends = certificate.map(ends).unwrap_or_default();
            let count = nodes.count();
            return format!("the cluster is well: nodes that answer: {count}{leads}{ends}");
        }
        let line = |finding: &Finding| format!("{}: {}", finding.severity.name(), finding.line());
        self.faults().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::NodeStatus;

    fn node(endpoint: &str) -> Answer {
        let mut node = NodeStatus::default();
        (node.slot, node.role, node.leader) = (1, Role::Leader, Some("a:1".into()));
        (endpoint.into(), Ok(node))
    }

    fn silent(endpoint: &str) -> Answer {
        let last_error = "nobody listens".into();
        (endpoint.into(), Err(Error::Unavailable { tried: vec![endpoint.into()], last_error }))
    }

    #[test]
    fn a_cluster_is_well_if_nothing_but_notes_is_found() {
        let mut noted = node("a:1");
        if let Ok(status) = &mut noted.1 {
            status.insecure = true;
        }
        let report = Report::of(vec![noted]);
        assert_eq!(report.exit().0, Exit::Done, "{:?}", report.findings);
        assert_eq!(report.as_text(), "the cluster is well: nodes that answer: 1; slot 1 leads");
        let told = report.as_json();
        assert_eq!(told["well"], true);
        assert_eq!(told["findings"][0]["code"], "insecure", "{told}");
        assert_eq!(told["findings"][0]["severity"], "note", "{told}");
    }

    #[test]
    fn how_long_certificates_are_valid_is_told_of_a_cluster_that_is_well() {
        let day = Duration::from_secs(24 * 3600);
        let with = |certificate| {
            let mut answer = node("a:1");
            if let Ok(status) = &mut answer.1 {
                (status.certificate_left, status.ca_left) = (Some(certificate), Some(99 * day));
            }
            Report::of(vec![answer])
        };
        let report = with(30 * day);
        assert_eq!(report.exit().0, Exit::Done, "{:?}", report.findings);
        let words = "; slot 1 leads; the first certificate ends in 30 days";
        assert!(report.as_text().ends_with(words), "{}", report.as_text());
        let told = report.as_json();
        assert_eq!(told["certificate_left_s"], 30 * 24 * 3600, "{told}");
        assert_eq!(told["ca_left_s"], 99 * 24 * 3600, "{told}");
        let report = with(2 * day);
        assert_eq!(report.exit().0, Exit::ConditionFailed, "{:?}", report.findings);
        assert!(
            report.as_text().starts_with("critical: a:1 has a certificate that ends in 2 days")
        );
        assert_eq!(Report::of(vec![node("a:1")]).as_json()["ca_left_s"], Value::Null);
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

    #[test]
    fn one_line_names_what_is_not_well_and_what_to_do_and_the_exit_code_says_who_answered() {
        let report = Report::of(vec![node("a:1"), silent("b:1")]);
        assert_eq!(report.exit().0, Exit::ConditionFailed);
        let text = report.as_text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("warning: b:1 does not answer: "), "{text}");
        assert!(text.contains("; start it"), "{text}");

        let nobody = Report::of(vec![silent("a:1"), silent("b:1")]);
        assert_eq!(nobody.exit().0, Exit::Unavailable);
        assert!(nobody.as_text().starts_with("critical: "), "{}", nobody.as_text());
        let denied = Error::PermissionDenied { message: "no role".into() };
        let denied = Report::of(vec![node("a:1"), ("b:1".into(), Err(denied))]);
        assert_eq!(denied.exit().0, Exit::NotAllowed);
    }
}
