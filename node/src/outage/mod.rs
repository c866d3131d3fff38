//! What to do after an outage in which so many machines lost power at once that no member can be
//! elected: what each member holds, and which one should lead.
//!
//! ```text
//! watch ──► survey ──► MemberSurvey ──► verdict ──► table: what it says, advises and ends with
//!                                          ├──► election_blocked: one sentence for the log and all answers
//!                                          └──► an operator decides (`cairn unsafe-recovery`), or
//!                                               `automatic` if the configuration allows it
//!                                                 └──► decision: survey again, grant, wait
//! ```
//!
//! What holds here: no member is chosen if one leads, or if members can elect a leader on their
//! own. What is said, logged and done follows from one verdict.

mod answer;
mod automatic;
mod decision;
mod election_blocked;
mod members;
mod table;
mod verdict;
mod watch;

pub use answer::{Answer, Membership};
pub use decision::{NotApplied, decide, wait_for_end};
pub(crate) use election_blocked::ElectionBlockedState;
pub use election_blocked::{ElectionBlocked, no_configuration};
pub use members::MemberSurvey;
pub use table::{End, Row};
pub use verdict::{Progress, Verdict};
pub(crate) use watch::Watch;

use automatic::Automatic;
use cairn_client::Client;

/// Asks every known member.
pub async fn survey(client: &Client) -> MemberSurvey {
    // This learns the members beyond the given endpoints. Those that do not answer are listed as
    // missing below.
    let _ = client.members().await;
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for (endpoint, answer) in client.statuses().await {
        match answer {
            Ok(node) => answers.push((endpoint, node)),
            Err(reason) => silent.push((endpoint, reason.to_string())),
        }
    }
    MemberSurvey::of_statuses(answers, &silent)
}
