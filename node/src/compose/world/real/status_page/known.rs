//! What the answering node knows of its cluster, as answers of the members.
//!
//! What holds here:
//! - Nobody is asked. A node knows itself. While it leads, it also knows whether the others answer, how much
//!   of its log they have stored, and what the log says of their releases. So the rules of
//!   [`crate::health`] find what they find for `cairn health`, less what only a member itself can tell, as
//!   of its disk.
//! - Who has not answered a leader that has just begun, and who leads when a leader was just heard, is not
//!   known yet: that is said, and not that they do not answer.

use crate::health::{Answer, Report};
use cairn_client::{Error, Member, NodeStatus, VersionStatus};
use cairn_raft::FollowerLag;
use parking_lot::Mutex;
use std::future::ready;
use std::time::Duration;

/// What this node knows at one moment.
#[derive(Clone)]
pub(super) struct Moment {
    pub(super) own: NodeStatus,
    pub(super) followers: Vec<FollowerLag>,
    /// For how long it has led, while it leads.
    pub(super) led: Option<Duration>,
    /// Whether it heard a leader within the limit.
    pub(super) heard: bool,
}

/// What this node knows, and what is not well by that. One that was silent for `limit` does not answer.
/// `look` is called once, and a second time if a member seems to be far behind.
pub(super) async fn looked(look: impl Fn() -> Moment, limit: Duration) -> (Moment, Report) {
    let last = Mutex::new(None);
    let ask = || {
        let moment = look();
        let answers = answers(&moment, limit);
        *last.lock() = Some(moment);
        ready(answers)
    };
    let report = Report::ask(ask).await;
    // It was asked at least once.
    let moment = last.into_inner().unwrap_or_else(look);
    let report = judged(report, &moment, limit);
    (moment, report)
}

/// The report, with what is not known yet.
fn judged(report: Report, moment: &Moment, limit: Duration) -> Report {
    let unheard = |member: &&Member| {
        let lag = moment.followers.iter().find(|lag| lag.id.as_u64() == member.node_id);
        lag.is_some_and(|lag| is_unheard(moment, lag, limit))
    };
    let unheard = moment.own.members.iter().filter(unheard);
    let unheard = unheard.map(|member| name(member.slot, member.voter)).collect();
    let follows = moment.own.leader.is_none() && moment.led.is_none();
    let leader = follows && (moment.heard || moment.own.uptime < limit);
    report.not_known_yet(unheard, leader)
}

/// Whether a member may still answer this leader, which has just begun.
fn is_unheard(moment: &Moment, lag: &FollowerLag, limit: Duration) -> bool {
    lag.silent.is_none() && moment.led.is_none_or(|led| led < limit)
}

/// What a member is called. Findings are read by some who may not see addresses.
pub(super) fn name(slot: u16, voter: bool) -> String {
    if voter { format!("slot {slot}") } else { format!("slot {slot} (learner)") }
}

/// This node's answer, and while it leads those of the others: one that was silent for `limit` has
/// none, and one that was not heard yet is left out.
fn answers(moment: &Moment, limit: Duration) -> Vec<Answer> {
    let own = &moment.own;
    let other = |member: &Member| {
        let lag = moment.followers.iter().find(|lag| lag.id.as_u64() == member.node_id)?;
        if is_unheard(moment, lag, limit) {
            return None;
        }
        let name = name(member.slot, member.voter);
        let answer = match silence(lag, limit) {
            None => Ok(answering(own, member, lag)),
            Some(last_error) => {
                Err(Error::Unavailable { tried: vec![name.clone()], last_error, source: None })
            }
        };
        Some((name, answer))
    };
    let others = own.members.iter().filter(|member| member.node_id != own.node_id);
    let mut answers: Vec<Answer> = others.filter_map(other).collect();
    // A node that is no member yet is named by its slot alone.
    let learner = own.members.iter().any(|one| one.node_id == own.node_id && !one.voter);
    answers.push((name(own.slot, !learner), Ok(own.clone())));
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
    use crate::health::{Finding, Kind};
    use cairn_client::proto;
    use cairn_raft::NodeId;
    use std::cell::Cell;

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

    /// A leader that has led for long enough.
    fn moment(own: NodeStatus, followers: &[FollowerLag]) -> Moment {
        Moment { own, followers: followers.to_vec(), led: Some(LIMIT), heard: false }
    }

    fn found_in(moment: &Moment) -> Vec<(Kind, String)> {
        let report = judged(Report::of(answers(moment, LIMIT)), moment, LIMIT);
        let told = |finding: &Finding| (finding.kind, finding.line());
        report.findings.iter().map(told).collect()
    }

    fn found(own: NodeStatus, followers: &[FollowerLag]) -> Vec<(Kind, String)> {
        found_in(&moment(own, followers))
    }

    /// The story: for a moment after each election the page of the new leader said of healthy members that they
    /// do not answer.
    #[test]
    fn of_a_leader_that_has_just_begun_it_is_not_known_yet_who_answers() {
        let soon = Some(Duration::from_millis(100));
        let new = Moment {
            led: Some(LIMIT - Duration::from_millis(1)),
            ..moment(leader(), &[lag(2, 0, soon), lag(3, 0, None)])
        };
        let found = found_in(&new);
        let [(Kind::NotKnownYet, line)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(line, "slot 3 not known yet: this node has just begun to lead");
        let later = found_in(&Moment { led: Some(LIMIT), ..new.clone() });
        let [(Kind::Unreachable, line)] = later.as_slice() else { panic!("{later:?}") };
        assert!(line.contains("it has not answered this leader yet"), "{line}");
        // One that did answer, and does not any more, is said to be silent by any leader.
        let silent = Moment { followers: vec![lag(2, 0, Some(LIMIT)), lag(3, 0, soon)], ..new };
        assert_eq!(found_in(&silent)[0].0, Kind::Unreachable);
    }

    /// The story: a follower of a new leader that it had not heard yet said that nobody leads, and told to start the
    /// members that do not answer.
    #[test]
    fn of_a_node_that_has_just_heard_a_leader_or_just_started_it_is_not_known_yet_who_leads() {
        let mut own = leader();
        (own.role, own.leader, own.leader_id) = (cairn_client::Role::Follower, None, None);
        own.uptime = LIMIT;
        let alone = Moment { led: None, ..moment(own, &[]) };
        assert_eq!(found_in(&alone)[0].0, Kind::NoLeader, "{:?}", found_in(&alone));
        let heard = found_in(&Moment { heard: true, ..alone.clone() });
        let [(Kind::NotKnownYet, line)] = heard.as_slice() else { panic!("{heard:?}") };
        assert!(line.starts_with("it is not known yet who leads"), "{line}");
        let mut started = alone;
        started.own.uptime = Duration::ZERO;
        assert_eq!(found_in(&started)[0].0, Kind::NotKnownYet);
    }

    /// The story: each request computed the node's status two or three times.
    #[tokio::test]
    async fn the_node_is_looked_at_once_where_nobody_seems_to_be_behind() {
        let soon = Some(Duration::from_millis(100));
        let (looks, known) = (Cell::new(0), moment(leader(), &[lag(2, 0, soon), lag(3, 0, soon)]));
        let look = || {
            looks.set(looks.get() + 1);
            known.clone()
        };
        let (moment, report) = looked(look, LIMIT).await;
        assert_eq!(looks.get(), 1);
        assert_eq!((moment.own.node_id, moment.followers.len()), (id(1).as_u64(), 2));
        assert!(report.is_well() && !report.is_early(), "{:?}", report.findings);
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
        assert_eq!(answers(&moment(own.clone(), &[]), LIMIT).len(), 1);
        let found = found(own, &[]);
        let [(Kind::NotReady, line)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(line, "slot 1 is not ready: no leader is known");
    }
}
