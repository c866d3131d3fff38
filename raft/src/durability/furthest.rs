//! Before a member leads by an operator's choice: does its log reach furthest among the voters that answer it?
//!
//! The story: whoever decided could not reach the member with the longest log, or asked before it was up. Another one was let to
//! lead although that member was there, and what it alone held was given up.

use super::LocalMember;
use crate::core::ids::GROUP;
use crate::core::metrics::look_at;
use crate::transport::{self, addresses};

/// Asks every voter once, all at the same time; whoever does not answer under its own identity has no say.
///
/// # Errors
/// Names a voter whose log reaches further.
pub(crate) async fn reaches_furthest(member: &LocalMember) -> Result<(), String> {
    let voters: Vec<_> = look_at(&member.raft, |metrics| {
        let others = metrics.membership_config.voter_ids().filter(|voter| *voter != metrics.id);
        let places = |voter| {
            let logged = metrics.membership_config.get_node(&voter)?;
            let all = addresses(&member.config.initial_members, voter, logged).into_iter().map(str::to_owned);
            Some((voter, all.collect::<Vec<_>>()))
        };
        others.filter_map(places).collect()
    });
    let asked = voters.iter().flat_map(|(voter, all)| all.iter().map(move |address| (*voter, address)));
    let asked = asked.map(|(voter, address)| async move {
        let answer = transport::hello(&member.identity, voter.slot(), address).await.ok()?;
        (answer.id == voter).then_some((voter, answer.last_log_id))
    });
    let own = member.engine.log_bounds(GROUP).last;
    for (voter, last) in futures::future::join_all(asked).await.into_iter().flatten() {
        if let Some(last) = last.filter(|last| Some(*last) > own) {
            let own = own.map_or_else(|| "nowhere".into(), |own| own.to_string());
            return Err(format!(
                "member {voter} is here, and its log reaches further ({last}) than this one's ({own}): look again, and name it"
            ));
        }
    }
    Ok(())
}
