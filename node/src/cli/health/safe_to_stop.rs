//! `cairn health --safe-to-stop`: whether the cluster would go on without a member, as its leader says.
//!
//! What holds here: `--slot own` asks about the node at the first endpoint, by its identity. The slot alone could
//! be another node's, which the asked one replaces.

use super::wait;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::output::{Output, table_with_notes};
use cairn_client::{Client, MemberState, NodeStatus, StopVerdict};
use cairn_raft::NodeId;
use serde_json::{Value, json};
use std::time::Instant;

/// The member that a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The node at the first endpoint.
    Own,
    /// The member of this slot.
    Slot(u16),
}

/// A slot, or `own`.
///
/// # Errors
/// A sentence that says what was expected.
pub(super) fn asked(text: &str) -> Result<Asked, String> {
    let slot = text.parse::<u16>().ok().filter(|slot| *slot > 0);
    match (text, slot) {
        ("own", _) => Ok(Asked::Own),
        (_, Some(slot)) => Ok(Asked::Slot(slot)),
        (_, None) => Err("expected a slot from 1 to 65535, or `own`".into()),
    }
}

/// Asks until the answer is yes, at most until then.
pub(super) async fn run(
    client: &Client,
    asked: Option<Asked>,
    until: Instant,
    output: &Output,
) -> anyhow::Result<Exit> {
    let answer = loop {
        let answer = Answer::ask(client, asked).await;
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
    /// The node that was asked is no member.
    is_outside: bool,
    verdicts: Vec<StopVerdict>,
}

impl Answer {
    async fn ask(client: &Client, asked: Option<Asked>) -> anyhow::Result<Answer> {
        let slot = match asked {
            Some(Asked::Own) => return Answer::of_own(client).await,
            Some(Asked::Slot(slot)) => Some(slot),
            None => None,
        };
        Answer::of(client.safe_to_stop().await?, slot).map_err(Into::into)
    }

    /// About the node at the first endpoint. Nobody needs one that is no member.
    async fn of_own(client: &Client) -> anyhow::Result<Answer> {
        let known = client.endpoints();
        let first =
            known.first().ok_or_else(|| UsageError("--slot own needs an endpoint".into()))?;
        let own = client.status(first).await?;
        let mut verdicts = match is_outside(&own) {
            // It may reach no leader, now or ever.
            true => Vec::new(),
            false => client.safe_to_stop().await?,
        };
        verdicts.retain(|verdict| verdict.node_id == own.node_id);
        Ok(Answer { slot: Some(own.slot), is_outside: verdicts.is_empty(), verdicts })
    }

    fn of(mut verdicts: Vec<StopVerdict>, slot: Option<u16>) -> Result<Answer, UsageError> {
        verdicts.retain(|verdict| slot.is_none_or(|slot| slot == verdict.slot));
        verdicts.sort_by_key(|verdict| (verdict.slot, verdict.node_id));
        match slot.filter(|_| verdicts.is_empty()) {
            Some(slot) => Err(UsageError(format!("slot {slot} has no member: `cairn members`"))),
            None => Ok(Answer { slot, is_outside: false, verdicts }),
        }
    }

    fn is_yes(&self) -> bool {
        let knows = self.is_outside || !self.verdicts.is_empty();
        knows && self.verdicts.iter().all(StopVerdict::is_safe)
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
                Some(slot) if self.is_outside => {
                    format!("the node of slot {slot} is no member, and may be stopped")
                }
                Some(slot) => format!("slot {slot} may be stopped"),
                None => "any one member may be stopped; ask again before the next".into(),
            });
        }
        let head = ["SLOT", "NODE", "SAFE TO STOP"];
        table_with_notes(&head, self.verdicts.iter().map(row).collect(), notes)
    }
}

/// Whether a node says itself that it is no member: it was removed, or knows of no members yet.
fn is_outside(own: &NodeStatus) -> bool {
    let knows_voters = own.configurations.iter().any(|voters| !voters.is_empty());
    own.member_state == MemberState::Removed || (own.members.is_empty() && !knows_voters)
}

fn obstacles(verdict: &StopVerdict) -> impl Iterator<Item = String> {
    verdict.obstacles.iter().map(|why| format!("slot {}: {why}", verdict.slot))
}

#[cfg(test)]
mod tests {
    use super::super::answers::node;
    use super::*;

    #[test]
    fn a_question_is_about_a_slot_or_about_the_node_that_is_asked() {
        assert_eq!(asked("own"), Ok(Asked::Own));
        assert_eq!(asked("65535"), Ok(Asked::Slot(65535)));
        for wrong in ["0", "65536", "-1", "Own", "", "1,2"] {
            let why = asked(wrong).expect_err(wrong);
            assert_eq!(why, "expected a slot from 1 to 65535, or `own`");
        }
    }

    #[test]
    fn a_node_that_was_removed_or_knows_no_members_is_no_member() {
        let mut own = node("a:1").1.expect("a status");
        own.members.clear();
        own.configurations.clear();
        assert!(is_outside(&own), "{own:?}");
        own.configurations = vec![[1].into()];
        assert!(!is_outside(&own), "{own:?}");
        own.member_state = MemberState::Removed;
        assert!(is_outside(&own), "{own:?}");
    }
}
