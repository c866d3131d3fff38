//! `cairn scrub`: the scrubber of every known node.

use super::ConnectOptions;
use super::exit::Exit;
use super::output::{OfEndpoint, Output, silence, table_with_notes};
use cairn_client::{Error, ScrubAction, ScrubStatus};
use cairn_node::config::format_size;
use clap::Args;
use futures::future::join_all;
use serde_json::{Value, json};
use std::time::Duration;

/// How long one node may take.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct ScrubArgs {
    /// What to do
    #[arg(value_enum)]
    action: Action,

    #[command(flatten)]
    connect: ConnectOptions,

    /// Only the nodes given with --endpoints, not the other members that they name
    #[arg(long)]
    only: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Action {
    /// Show the progress of each node, and what it found and repaired
    Status,
    /// Read everything now, from the beginning
    Start,
    /// Stop at the current position; stays paused over restarts
    Pause,
    /// Continue where it was paused
    Resume,
}

/// A node's address and its answer, or why it has none.
type Answer = (String, Result<ScrubStatus, Error>);

pub(crate) async fn run(args: ScrubArgs, output: &Output) -> anyhow::Result<Exit> {
    let action = match args.action {
        Action::Status => ScrubAction::Show,
        Action::Start => ScrubAction::Start,
        Action::Pause => ScrubAction::Pause,
        Action::Resume => ScrubAction::Resume,
    };
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    let endpoints = if args.only {
        args.connect.endpoints()?
    } else {
        // This learns the members beyond the given endpoints. If nothing answers, the error of each
        // endpoint follows below.
        let _ = client.members().await;
        client.endpoints()
    };
    let mut answers: Vec<Answer> = join_all(endpoints.into_iter().map(|endpoint| {
        let client = &client;
        async move {
            let answer = client.operator().scrub(&endpoint, action).await;
            (endpoint, answer)
        }
    }))
    .await;
    answers.sort_by(|(a, _), (b, _)| a.cmp(b));
    output.either(|| answers.iter().map(as_json).collect(), || as_text(&answers))?;
    let failed = || answers.iter().filter_map(|(_, answer)| answer.as_ref().err());
    Ok(match failed().count() {
        0 => Exit::Done,
        _ if failed().any(Error::is_denied) => Exit::NotAllowed,
        _ => Exit::Unavailable,
    })
}

fn as_json((endpoint, answer): &Answer) -> Value {
    match answer {
        Err(reason) => json!({ "endpoint": endpoint, "error": reason.to_string() }),
        Ok(scrub) => json!(OfEndpoint { endpoint, told: scrub }),
    }
}

fn as_text(answers: &[Answer]) -> String {
    let head = [
        "ENDPOINT",
        "STATE",
        "AT",
        "CYCLE",
        "ENDED",
        "BLOCKS",
        "VALUES",
        "DAMAGED",
        "REPAIRED",
        "UNREPAIRABLE",
    ];
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    for (endpoint, answer) in answers {
        match answer {
            Ok(scrub) => rows.push(row(endpoint, scrub)),
            Err(reason) => {
                rows.push(vec![endpoint.clone(), silence(reason).into()]);
                notes.push(format!("{endpoint}: {reason}"));
            }
        }
    }
    table_with_notes(&head, rows, notes)
}

fn row(endpoint: &str, scrub: &ScrubStatus) -> Vec<String> {
    let state = match (scrub.paused, scrub.running) {
        (true, _) => "paused",
        (false, true) => "running",
        (false, false) => "waiting",
    };
    vec![
        endpoint.to_string(),
        state.to_string(),
        format!("{} of {}", format_size(scrub.position), format_size(scrub.data_bytes)),
        humantime::format_duration(scrub.elapsed).to_string(),
        scrub.cycles.to_string(),
        scrub.blocks_checked.to_string(),
        scrub.values_checked.to_string(),
        scrub.damaged.to_string(),
        scrub.repaired.to_string(),
        scrub.unrepairable.to_string(),
    ]
}
