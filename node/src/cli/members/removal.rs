//! What the removal of a member means, said before it.

use super::view::ClusterView;
use crate::cli::confirm;
use anyhow::bail;
use cairn_client::Member;
use cairn_node::failure_domains::listed;
use cairn_raft::NodeId;
use std::collections::BTreeSet;

/// Shows what the removal means, and asks.
///
/// # Errors
/// If the answer is not `yes`, or nobody can answer.
pub(super) fn confirm(found: &ClusterView, member: &Member) -> anyhow::Result<()> {
    let slot = member.slot;
    let down = found.voters().into_iter().filter(|slot| {
        let member = found.member(*slot);
        member.is_some_and(|member| found.status(member).is_none())
    });
    let state = found.state(member).to_string();
    let state = if found.leads(member) { format!("{state}, leads") } else { state };
    let id = NodeId::from_u64(member.node_id);
    let who = format!("Slot {slot} is node {id} at {} ({state})", member.client_address);
    let said = meaning(&who, slot, &found.voters(), &down.collect());
    if !confirm::confirm(&format!("{said}\nRemove it?"), "add --yes")? {
        bail!("nothing was changed");
    }
    Ok(())
}

/// Which voters stay when the one of this slot leaves, and how many of them may fail. `who`: the
/// member. `down`: the voters that do not answer.
fn meaning(who: &str, slot: u16, voters: &BTreeSet<u16>, down: &BTreeSet<u16>) -> String {
    let refused = "Its data directory is refused from then on.";
    let mut left = voters.clone();
    if !left.remove(&slot) {
        return format!("{who}, a learner: the voters stay {}. {refused}", listed(voters));
    }
    let down: BTreeSet<u16> = down.intersection(&left).copied().collect();
    let now = match down.is_empty() {
        true => String::new(),
        false => format!(" Of those, slot {} does not answer now.", listed(&down)),
    };
    format!(
        "{who}. Voters after it: {}; {} may fail, now {} may.{now} {refused}",
        match left.len() {
            0 => "none".into(),
            1 => format!("slot {}", listed(&left)),
            _ => format!("slots {}", listed(&left)),
        },
        spared(left.len()),
        spared(voters.len()),
    )
}

/// How many of so many voters may fail, in words.
pub(super) fn spared(voters: usize) -> String {
    match voters.saturating_sub(1) / 2 {
        0 => "none".into(),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(voters: u16, slot: u16, down: &[u16]) -> String {
        let down = down.iter().copied().collect();
        meaning(&format!("Slot {slot}"), slot, &(1..=voters).collect(), &down)
    }

    #[test]
    fn a_removal_says_which_voters_stay_and_how_many_of_them_may_fail() {
        let five = said(5, 5, &[5]);
        assert_eq!(
            five,
            "Slot 5. Voters after it: slots 1, 2, 3 and 4; 1 may fail, now 2 may. Its data directory \
             is refused from then on."
        );
        let three = said(3, 2, &[1]);
        assert!(
            three.contains(
                "slots 1 and 3; none may fail, now 1 may. Of those, slot 1 does not answer now."
            ),
            "{three}"
        );
        assert!(said(2, 2, &[]).contains("slot 1; none may fail, now none may."));
        assert!(said(1, 1, &[]).contains("Voters after it: none;"));
        let learner = said(3, 4, &[]);
        assert!(learner.contains("a learner: the voters stay 1, 2 and 3."), "{learner}");
    }
}
