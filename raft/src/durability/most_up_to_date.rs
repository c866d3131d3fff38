//! Before a member uses an unsafe-recovery grant: is its log the most up-to-date among the voters
//! that answer?
//!
//! The story: the operator could not reach the member with the longest log, or asked before it was
//! up. Another member was allowed to lead although that one was there, and what it alone held was
//! discarded.

use super::LocalMember;
use crate::core::ids::GROUP;
use crate::core::raft_metrics::with_metrics;
use crate::transport::{self, Contact};

/// Asks every voter once, all at the same time. A voter that does not answer under its own identity
/// does not count.
///
/// # Errors
/// Names a voter whose log is more up-to-date.
pub(crate) async fn is_most_up_to_date(member: &LocalMember) -> Result<(), String> {
    let mut voters = member.addresses.others();
    with_metrics(&member.raft, |metrics| {
        let votes = |id| metrics.membership_config.voter_ids().any(|voter| voter == id);
        voters.retain(|(id, _)| votes(*id));
    });
    let asked = voters.iter().map(|(voter, address)| async move {
        let contact = Contact { address: address.clone(), slot: Some(voter.slot()) };
        let own = Some(&member.addresses);
        let answer = transport::hello(&member.identity, own, &contact).await.ok()?;
        (answer.id == *voter).then_some((voter, answer.last_log_id))
    });
    let own = member.engine.log_bounds(GROUP).last;
    for (voter, last) in futures::future::join_all(asked).await.into_iter().flatten() {
        if let Some(last) = last.filter(|last| Some(*last) > own) {
            let own = own.map_or_else(|| "empty".into(), |own| own.to_string());
            return Err(format!(
                "member {voter} answers, and its log is more up to date (last entry {last}) than this one's ({own}): \
                 check again, and choose that member"
            ));
        }
    }
    Ok(())
}
