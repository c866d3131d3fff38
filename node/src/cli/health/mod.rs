//! `cairn health`: whether the cluster is well, and with `--safe-to-stop` whether it would go on
//! without a member.
//!
//! What is not well is decided in [`cairn_node::health`].

/// Those of the library's own tests.
#[cfg(test)]
#[path = "../../health/tests/answers.rs"]
mod answers;
mod safe_to_stop;

use super::ConnectOptions;
use super::connect::time;
use super::exit::Exit;
use super::output::Output;
use cairn_client::{Client, Error, Role};
use cairn_node::health::{Answer, Finding, Report, ends, shortest};
use clap::Args;
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

    /// With --safe-to-stop: slot of the member, or `own` for the node at the first endpoint; without it,
    /// whichever member it is
    #[arg(long, value_name = "SLOT|own", value_parser = safe_to_stop::asked, requires = "safe_to_stop")]
    slot: Option<safe_to_stop::Asked>,

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
        let report = ask_all(&client).await;
        if report.is_well() || !wait(until).await {
            break report;
        }
    };
    output.either(|| as_json(&report), || as_text(&report))?;
    let (exit, why) = exit_of(&report);
    // As with `--safe-to-stop`, no is an answer, and no error.
    if output.is_json() && !matches!(exit, Exit::Done | Exit::ConditionFailed) {
        output.error(&format!("{why}; what is known is on standard output"), exit as u8);
    }
    Ok(exit)
}

/// What all members answer, also those beyond the given endpoints.
pub(super) async fn ask_all(client: &Client) -> Report {
    // This learns them. Without an answer the client knows the given endpoints alone, and each says why it does
    // not answer.
    let _ = client.members().await;
    Report::ask(|| client.statuses()).await
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

/// The exit code, and why it is that one.
fn exit_of(report: &Report) -> (Exit, &'static str) {
    let denied = |(_, answer): &Answer| answer.as_ref().is_err_and(Error::is_denied);
    if report.answers.iter().any(denied) {
        (Exit::NotAllowed, "a node does not allow it")
    } else if report.answers.iter().all(|(_, answer)| answer.is_err()) {
        (Exit::Unavailable, "no node answers")
    } else if report.is_well() {
        (Exit::Done, "the cluster is well")
    } else {
        (Exit::ConditionFailed, "the cluster is not well")
    }
}

/// The report, for programs.
pub(super) fn as_json(report: &Report) -> Value {
    let (certificate, ca) = shortest(&report.answers);
    let seconds = |left: Option<Duration>| left.map(|left| left.as_secs());
    json!({
        "well": report.is_well(),
        "certificate_left_s": seconds(certificate),
        "ca_left_s": seconds(ca),
        "findings": report.findings,
    })
}

/// The report in words: that the cluster is well, or one line for each thing that is not.
pub(super) fn as_text(report: &Report) -> String {
    if report.is_well() {
        let nodes = report.answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let leader = nodes.clone().filter(|node| node.role == Role::Leader);
        let leader = leader.max_by_key(|node| node.term);
        let leads = leader.map_or(String::new(), |node| format!("; slot {} leads", node.slot));
        let (certificate, _) = shortest(&report.answers);
        let first = certificate.map(|left| format!("; the first certificate {}", ends(left)));
        let (count, first) = (nodes.count(), first.unwrap_or_default());
        return format!("the cluster is well: nodes that answer: {count}{leads}{first}");
    }
    let line = |finding: &Finding| format!("{}: {}", finding.severity.name(), finding.line());
    report.faults().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::answers::{node, silent};
    use super::*;

    #[test]
    fn a_cluster_of_which_nothing_but_notes_is_found_is_said_to_be_well() {
        let mut noted = node("a:1");
        if let Ok(status) = &mut noted.1 {
            status.insecure = true;
        }
        let report = Report::of(vec![noted]);
        assert_eq!(exit_of(&report).0, Exit::Done, "{:?}", report.findings);
        assert_eq!(as_text(&report), "the cluster is well: nodes that answer: 1; slot 1 leads");
        let told = as_json(&report);
        assert_eq!(told["well"], true);
        assert_eq!(told["findings"][0]["code"], "insecure", "{told}");
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
        assert_eq!(exit_of(&report).0, Exit::Done, "{:?}", report.findings);
        let words = "; slot 1 leads; the first certificate ends in 30 days";
        assert!(as_text(&report).ends_with(words), "{}", as_text(&report));
        let told = as_json(&report);
        assert_eq!(told["certificate_left_s"], 30 * 24 * 3600, "{told}");
        assert_eq!(told["ca_left_s"], 99 * 24 * 3600, "{told}");
        let report = with(2 * day);
        assert_eq!(exit_of(&report).0, Exit::ConditionFailed, "{:?}", report.findings);
        let words = "critical: a:1 has a certificate that ends in 2 days";
        assert!(as_text(&report).starts_with(words), "{}", as_text(&report));
        assert_eq!(as_json(&Report::of(vec![node("a:1")]))["ca_left_s"], Value::Null);
    }

    #[test]
    fn one_line_names_what_is_not_well_and_what_to_do_and_the_exit_code_says_who_answered() {
        let report = Report::of(vec![node("a:1"), silent("b:1")]);
        assert_eq!(exit_of(&report).0, Exit::ConditionFailed);
        let text = as_text(&report);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("warning: b:1 does not answer: "), "{text}");
        assert!(text.contains("; start it"), "{text}");

        let nobody = Report::of(vec![silent("a:1"), silent("b:1")]);
        assert_eq!(exit_of(&nobody).0, Exit::Unavailable);
        assert!(as_text(&nobody).starts_with("critical: "), "{}", as_text(&nobody));
        let denied = Error::PermissionDenied { message: "no role".into() };
        let denied = Report::of(vec![node("a:1"), ("b:1".into(), Err(denied))]);
        assert_eq!(exit_of(&denied).0, Exit::NotAllowed);
    }
}
