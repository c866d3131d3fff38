//! `cairn health --safe-to-stop`: whether the cluster would go on without a member, as its leader says.

use super::wait;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::output::{Output, table_with_notes};
use cairn_client::{Client, StopVerdict};
use cairn_raft::NodeId;
use serde_json::{Value, json};
use std::time::Instant;

/// Asks until the answer is yes, at most until then.
pub(super) async fn run(
    client: &Client,
    slot: Option<u16>,
    until: Instant,
    output: &Output,
) -> anyhow::Result<Exit> {
    let answer = loop {
        let answer = Answer::ask(client, slot).await;
        let yes = answer.as_ref().is_ok_and(Answer::is_yes);
        if yes || !wait(until).await {
            break answer?;
        }
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
