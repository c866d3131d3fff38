//! What the answering node knows of its cluster, as answers of the members.
//!
//! What holds here: nobody is asked. A node knows itself. While it leads, it also knows whether the
//! others answer, how much of its log they have stored, and what the log says of their releases. So
//! the rules of [`crate::health`] find what they find for `cairn health`, less what only a member itself
//! can tell, as of its disk.

use crate::health::Answer;
use cairn_client::{Error, Member, NodeStatus, VersionStatus};
use cairn_raft::FollowerLag;
use std::time::Duration;

/// What a member is called. Findings are read by some who may not see addresses.
pub(super) fn name(slot: u16, voter: bool) -> String {
    if voter { format!("slot {slot}") } else { format!("slot {slot} (learner)") }
}

/// This node's answer, and while it leads those of the others: one that was silent for `limit` has
/// none.
pub(super) fn answers(own: NodeStatus, followers: &[FollowerLag], limit: Duration) -> Vec<Answer> {
    let other = |member: &Member| {
        let lag = followers.iter().find(|lag| lag.id.as_u64() == member.node_id)?;
        let name = name(member.slot, member.voter);
        let answer = match silence(lag, limit) {
            None => Ok(answering(&own, member, lag)),
            Some(last_error) => Err(Error::Unavailable { tried: vec![name.clone()], last_error }),
        };
        Some((name, answer))
    };
    let others = own.members.iter().filter(|member| member.node_id != own.node_id);
    let mut answers: Vec<Answer> = others.filter_map(other).collect();
    // A node that is no member yet is named by its slot alone.
    let learner = own.members.iter().any(|one| one.node_id == own.node_id && !one.voter);
    answers.push((name(own.slot, !learner), Ok(own)));
    answers
}

/// How long a member did not answer, in words, if that is too long.
fn silence(lag: &FollowerLag, limit: Duration) -> Option<String> {
    match lag.silent {
        None => Some("it has not answered this leader yet".into()),
        Some(silent) if silent >= limit => {
            Some(format!("it last answered this leader {} s ago", silent.as_secs()))
        }
        Some(_) => None,
    }
}

/// What a leader knows of a member that answers. What it stored stands for what it applied.
fn answering(leader: &NodeStatus, member: &Member, lag: &FollowerLag) -> NodeStatus {
    let mut status = NodeStatus::default();
    (status.node_id, status.slot) = (member.node_id, member.slot);
    status.applied_index = leader.last_log_index.saturating_sub(lag.entries);
    // Of a member whose start is not logged yet nothing else is known than that it is here.
    status.server_version.clone_from(&leader.server_version);
    if let Some(versions) = &leader.versions {
        let mut known = VersionStatus::default();
        (known.own, known.cluster) = (versions.own, versions.cluster);
        if let Some(logged) = versions.members.iter().find(|one| one.node_id == member.node_id) {
            known.own = logged.version;
            status.server_version =
                logged.release.clone().unwrap_or_else(|| leader.server_version.clone());
        }
        status.versions = Some(known);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{Kind, Report};
    use cairn_client::proto;
    use cairn_raft::NodeId;

    const LIMIT: Duration = Duration::from_secs(2);

    fn id(slot: u16) -> NodeId {
        NodeId::new(slot, 1)
    }

    /// The leader of three, in slot 1.
    fn leader() -> NodeStatus {
        let member = |slot: u16| proto::Member {
            node_id: id(slot).as_u64(),
            slot: u32::from(slot),
            client_address: format!("n{slot}:1"),
            peer_address: format!("n{slot}:2"),
            voter: true,
        };
        let release = |slot: u16, release: &str| proto::MemberVersion {
            node_id: id(slot).as_u64(),
            version: 2,
            release: release.into(),
        };
        NodeStatus::of(proto::StatusResponse {
            node_id: id(1).as_u64(),
            slot: 1,
            server_version: "0.1.0".into(),
            role: cairn_client::Role::Leader.into(),
            member_state: cairn_client::MemberState::Active.into(),
            leader: Some(proto::Leader { node_id: id(1).as_u64(), client_address: "n1:1".into() }),
            last_log_index: 5000,
            committed_index: 5000,
            applied_index: 5000,
            members: [1, 2, 3].map(member).to_vec(),
            versions: Some(proto::Versions {
                own: 2,
                cluster: 2,
                members: vec![release(1, "0.1.0"), release(2, "0.1.0")],
            }),
            ..Default::default()
        })
    }

    fn lag(slot: u16, entries: u64, silent: Option<Duration>) -> FollowerLag {
        FollowerLag { id: id(slot), entries, silent }
    }

    fn found(own: NodeStatus, followers: &[FollowerLag]) -> Vec<(Kind, String)> {
        let report = Report::of(answers(own, followers, LIMIT));
        report.findings.iter().map(|finding| (finding.kind, finding.line())).collect()
    }

    #[test]
    fn a_leader_whose_followers_answer_and_keep_up_finds_nothing() {
        let soon = Some(Duration::from_millis(100));
        let found = found(leader(), &[lag(2, 0, soon), lag(3, 1000, soon)]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_follower_that_is_silent_or_far_behind_is_found_by_its_slot_and_no_address_is_told() {
        let soon = Some(Duration::from_millis(100));
        for (silent, words) in [
            (None, "it has not answered this leader yet"),
            (Some(LIMIT), "it last answered this leader 2 s ago"),
        ] {
            let found = found(leader(), &[lag(2, 0, silent), lag(3, 0, soon)]);
            let [(Kind::Unreachable, line)] = found.as_slice() else { panic!("{found:?}") };
            assert!(line.starts_with("slot 2 does not answer: "), "{line}");
            assert!(line.contains(words) && !line.contains("n2:"), "{line}");
        }
        let found = found(leader(), &[lag(2, 0, soon), lag(3, 1001, soon)]);
        let [(Kind::FarBehind, line)] = found.as_slice() else { panic!("{found:?}") };
        assert!(line.starts_with("slot 3 is 1001 entries behind"), "{line}");
    }

    #[test]
    fn a_release_that_the_log_names_is_compared_and_one_that_it_does_not_is_not() {
        let soon = Some(Duration::from_millis(100));
        let mut own = leader();
        if let Some(versions) = &mut own.versions {
            versions.members[1].release = Some("0.2.0".into());
        }
        let found = found(own, &[lag(2, 0, soon), lag(3, 0, soon)]);
        let [(Kind::MixedVersions, line)] = found.as_slice() else { panic!("{found:?}") };
        assert!(line.contains("0.1.0 (version 2) in slot 1, 3; 0.2.0"), "{line}");
    }

    #[test]
    fn a_node_that_does_not_lead_speaks_for_itself_alone() {
        let mut own = leader();
        own.not_ready = Some("no leader is known".into());
        let all = answers(own.clone(), &[], LIMIT);
        assert_eq!(all.len(), 1);
        let found = found(own, &[]);
        let [(Kind::NotReady, line)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(line, "slot 1 is not ready: no leader is known");
    }
}
