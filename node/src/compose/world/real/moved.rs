//! Warns once, when the members are known, about each member whose address in the log differs from
//! the configuration. The configuration takes precedence, so a member with an outdated
//! configuration cannot reach one that moved.

use crate::config::NodeConfig;
use cairn_raft::{Member, MemberAddress, Replica};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::warn;

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Waits until the members are known.
pub(super) async fn report(replica: Replica, config: NodeConfig) {
    let members = loop {
        match replica.status().members {
            none if none.is_empty() => tokio::time::sleep(POLL_INTERVAL).await,
            members => break members,
        }
    };
    for sentence in differences(&members, &config.members) {
        warn!(node = %replica.node_id(), "{sentence}");
    }
}

fn differences(members: &[Member], configured: &BTreeMap<u16, MemberAddress>) -> Vec<String> {
    if configured.len() == 1 && members.len() > 1 {
        // Such a configuration has this member's listen address, not the address at which a cluster
        // reaches it.
        return Vec::new();
    }
    let differs = |member: &Member| {
        let now = configured.get(&member.id.slot()).filter(|now| **now != member.address)?;
        let (id, slot, then) = (member.id, member.id.slot(), &member.address);
        Some(format!(
            "the log has member {id} at {} for members and {} for clients, the configuration at {} and {}: the \
             configuration takes precedence; give `members.{slot}` the same addresses in every member's configuration",
            then.peer, then.client, now.peer, now.client
        ))
    };
    members.iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_raft::NodeId;

    fn at(host: &str) -> MemberAddress {
        MemberAddress { peer: format!("{host}:2"), client: format!("{host}:1") }
    }

    #[test]
    fn a_member_that_moved_is_named_with_both_addresses() {
        let member =
            |slot, host| Member { id: NodeId::new(slot, 7), address: at(host), voter: true };
        let members = [member(1, "a"), member(2, "old"), member(3, "c")];
        let configured = BTreeMap::from([(1, at("a")), (2, at("new"))]);
        let sentences = differences(&members, &configured);
        let [sentence] = sentences.as_slice() else {
            panic!("one member has moved: {sentences:?}")
        };
        for words in ["2.7", "old:2", "old:1", "new:2", "new:1", "`members.2`"] {
            assert!(sentence.contains(words), "`{words}` is not in: {sentence}");
        }
        assert!(differences(&members, &BTreeMap::from([(2, at("here"))])).is_empty());
    }
}
