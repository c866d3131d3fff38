//! `cairn unsafe-recovery`: for a cluster in which so many machines lost power at once that no
//! member can be elected.

use super::ConnectOptions;
use super::confirm::confirm;
use super::exit::{Exit, StateError, UsageError};
use super::output::{Output, table_with_notes, tell};
use anyhow::bail;
use cairn_node::outage::{
    Answer, End, MemberSurvey, NotApplied, Row, Verdict, decide, survey, wait_for_end,
};
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct UnsafeRecoveryArgs {
    #[command(flatten)]
    connect: ConnectOptions,

    /// Let the member with the most up-to-date log lead, and discard acknowledged writes that no
    /// member holds
    #[arg(long)]
    accept_data_loss: bool,

    /// Continue although members cannot be reached or have another data directory; discards what
    /// only they held
    #[arg(long, requires = "accept_data_loss")]
    allow_missing: bool,

    /// Do not ask
    #[arg(long, requires = "accept_data_loss")]
    yes: bool,
}

/// The exit code of each end.
fn exit(end: End) -> Exit {
    match end {
        End::Served => Exit::Done,
        End::Unavailable | End::NeedsDecision => Exit::Unavailable,
        End::Uncounted => Exit::Failed,
    }
}

pub(crate) async fn run(args: UnsafeRecoveryArgs, output: &Output) -> anyhow::Result<Exit> {
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    let found = survey(&client).await;
    let verdict = found.verdict();
    let row = verdict.row();
    let chosen = match verdict {
        Verdict::Decide { chosen } if args.accept_data_loss => chosen,
        _ if args.accept_data_loss && row.end != End::Served => {
            return Err(StateError(with_missing(row.sentence(), &found)).into());
        }
        verdict => {
            output.either(
                || to_json(&found, &verdict, &row, false),
                || format!("{}\n\n{}", text(&found), row.sentence()),
            )?;
            return Ok(exit(row.end));
        }
    };
    if !found.missing.is_empty() && !args.allow_missing {
        let why = "not all members can be reached, and a missing one may hold writes that the others lost: start them, each with \
             its own data directory, or add --allow-missing to discard what only they hold";
        return Err(UsageError(format!("{why} ({})", found.missing.join("; "))).into());
    }
    if !args.yes && !confirmed(&found, &chosen)? {
        bail!("nothing was changed");
    }
    decide(&client, &found, &chosen).await.map_err(not_applied)?;
    // In JSON standard error has one document, and only if the command fails.
    if !output.is_json() {
        tell(&format!(
            "every recovering member accepted the grant: waiting until {} leads",
            chosen.id
        ));
    }
    let (progress, after) = wait_for_end(&client, &chosen).await;
    let row = progress.row(&chosen, &after);
    let exit = exit(row.end);
    if exit != Exit::Done {
        output.error(&with_missing(row.sentence(), &after), exit as u8);
        return Ok(exit);
    }
    let verdict = Verdict::Decide { chosen };
    output.either(
        || to_json(&after, &verdict, &row, true),
        || format!("{}\n{}", text(&after), row.sentence()),
    )?;
    Ok(exit)
}

fn not_applied(why: NotApplied) -> anyhow::Error {
    match why {
        NotApplied::Changed => StateError(why.to_string()).into(),
        NotApplied::Refused(refusal) => {
            let expire = NotApplied::grants_expire();
            anyhow::Error::new(refusal)
                .context(format!("not every member accepted the unsafe-recovery grant; {expire}"))
        }
    }
}

fn with_missing(sentence: String, found: &MemberSurvey) -> String {
    match found.missing.is_empty() {
        true => sentence,
        false => format!("{sentence} ({})", found.missing.join("; ")),
    }
}

fn text(found: &MemberSurvey) -> String {
    let head = ["NODE", "ENDPOINT", "STATE", "ROLE", "TERM", "LAST LOG", "APPLIED"];
    let row = |node: &Answer| {
        vec![
            node.id.to_string(),
            node.endpoint.clone(),
            node.state.name().to_owned(),
            node.role.to_string(),
            node.term.to_string(),
            node.last_log_text(),
            node.applied_index.to_string(),
        ]
    };
    table_with_notes(&head, found.nodes.iter().map(row).collect(), found.missing.iter().cloned())
}

fn to_json(found: &MemberSurvey, verdict: &Verdict, row: &Row, done: bool) -> Value {
    let one = |node: &Answer| {
        let (term, index) = node.last_log.unwrap_or_default();
        json!({
            "endpoint": node.endpoint,
            "node_id": node.id.to_string(),
            "member_state": node.state.name(),
            "role": node.role.name(),
            "term": node.term,
            "last_log_term": term,
            "last_log_index": index,
            "applied_index": node.applied_index,
            "unsafe_recoveries": node.unsafe_recoveries,
        })
    };
    let (leader, chosen) = match verdict {
        Verdict::Served { leader } => (Some(leader.id.to_string()), None),
        Verdict::Decide { chosen } => (None, Some(chosen.id.to_string())),
        _ => (None, None),
    };
    json!({
        "verdict": verdict.name(),
        "says": row.says,
        "advice": row.advice,
        "needed": matches!(verdict, Verdict::Decide { .. }),
        "done": done,
        "leader": leader,
        "chosen": chosen,
        "nodes": found.nodes.iter().map(one).collect::<Value>(),
        "missing": found.missing,
    })
}

/// Asks on the terminal.
fn confirmed(found: &MemberSurvey, chosen: &Answer) -> anyhow::Result<bool> {
    tell(&text(found));
    let node = chosen.id;
    confirm(&format!("Let node {node} lead, and discard what no member holds?"), "add --yes")
}
