//! `cairn health`: whether the cluster is well enough for what an operator is about to do.

use super::ConnectOptions;
use super::connect::time;
use super::exit::{Exit, UsageError};
use super::members::slot;
use super::output::{Output, table_with_notes};
use cairn_client::{Client, StopVerdict};
use cairn_raft::NodeId;
use clap::Args;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often the leader is asked.
const POLL: Duration = Duration::from_millis(250);
/// A longer wait is this one.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Args)]
#[command(group(clap::ArgGroup::new("question").required(true)))]
pub(crate) struct HealthArgs {
    /// Whether a member may be stopped now, and the cluster goes on; exit code 4 if not
    #[arg(long, group = "question")]
    safe_to_stop: bool,

    /// Slot of the member; without it, whichever member it is
    #[arg(long, value_name = "SLOT", value_parser = slot())]
    slot: Option<u16>,

    /// Ask until the answer is yes, for at most this long
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: HealthArgs, output: &Output) -> anyhow::Result<Exit> {
    let client = args.connect.client()?;
    let until = Instant::now() + args.wait.unwrap_or_default().min(LONGEST_WAIT);
    let answer = loop {
        let answer = Answer::ask(&client, args.slot).await;
        let left = until.saturating_duration_since(Instant::now());
        let yes = answer.as_ref().is_ok_and(|answer| answer.is_yes());
        if yes || left.is_zero() {
            break answer?;
        }
        tokio::time::sleep(POLL.min(left)).await;
    };
    output.either(|| answer.as_json(), || answer.as_text())?;
    Ok(if answer.is_yes() { Exit::Done } else { Exit::ConditionFailed })
}

/// Which of the members that were asked about may be stopped.
struct Answer {
    slot: Option<u16>,
    verdicts: Vec<StopVerdict>,
}

impl Answer {
    async fn ask(client: &Client, slot: Option<u16>) -> anyhow::Result<Answer> {
        Answer::of(client.safe_to_stop().await?, slot).map_err(Into::into)
    }

    fn of(mut verdicts: Vec<StopVerdict>, slot: Option<u16>) -> Result<Answer, UsageError> {
        verdicts.retain(|verdict| slot.is_none_or(|slot| slot == verdict.slot));
        verdicts.sort_by_key(|verdict| (verdict.slot, verdict.node_id));
        match slot.filter(|_| verdicts.is_empty()) {
            Some(slot) => Err(UsageError(format!("slot {slot} has no member: `cairn members`"))),
            None => Ok(Answer { slot, verdicts }),
        }
    }

    fn is_yes(&self) -> bool {
        !self.verdicts.is_empty() && self.verdicts.iter().all(StopVerdict::is_safe)
    }

    fn as_json(&self) -> Value {
        let member = |verdict: &StopVerdict| {
            json!({
                "slot": verdict.slot,
                "node_id": NodeId::from_u64(verdict.node_id).to_string(),
                "safe_to_stop": verdict.is_safe(),
                "obstacles": verdict.obstacles,
            })
        };
        let members: Value = self.verdicts.iter().map(member).collect();
        json!({ "safe_to_stop": self.is_yes(), "members": members })
    }

    fn as_text(&self) -> String {
        let row = |verdict: &StopVerdict| {
            vec![
                verdict.slot.to_string(),
                NodeId::from_u64(verdict.node_id).to_string(),
                if verdict.is_safe() { "yes" } else { "no" }.to_string(),
            ]
        };
        let mut notes: Vec<String> = self.verdicts.iter().flat_map(obstacles).collect();
        if self.is_yes() {
            notes.push(match self.slot {
                Some(slot) => format!("slot {slot} may be stopped"),
                None => "any one member may be stopped; ask again before the next".into(),
            });
        }
        let head = ["SLOT", "NODE", "SAFE TO STOP"];
        table_with_notes(&head, self.verdicts.iter().map(row).collect(), notes)
    }
}

fn obstacles(verdict: &StopVerdict) -> impl Iterator<Item = String> {
    verdict.obstacles.iter().map(|why| format!("slot {}: {why}", verdict.slot))
}
