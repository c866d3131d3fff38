//! What a replica sees of replication, for those who watch it: how far members are behind, and how
//! often the leader changed.

use super::{Replica, serving};
use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::{RaftLogId, TypeConfig};
use crate::durability::LocalMember;
use openraft::{RaftMetrics, ServerState};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How a leader sees another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerLag {
    /// The member.
    pub id: NodeId,
    /// Entries of the leader's log that it is not known to have stored.
    pub entries: u64,
    /// The time since the leader's last message that it answered; `None`: none in this leadership.
    pub silent: Option<Duration>,
}

impl Replica {
    /// How far the other members are behind, while this one leads; else nobody.
    pub fn followers(&self) -> Vec<FollowerLag> {
        with_metrics(&self.inner.member.raft, followers)
    }

    /// How long ago everything was applied here that was committed then, as far as this member heard;
    /// `None` without a leader, and before the first message of one.
    pub fn applied_lag(&self) -> Option<Duration> {
        serving::observe_lag(&self.inner.member);
        self.inner.member.lag.behind()
    }

    /// For how long this member has led; `None`: it does not lead. It is told a moment late, so it is less
    /// than that.
    pub fn leads_for(&self) -> Option<Duration> {
        let LocalMember { raft, leads_since, .. } = &*self.inner.member;
        let leading = with_metrics(raft, |now| {
            (now.state == ServerState::Leader).then_some(now.current_term)
        });
        let term = leading?;
        let since = *leads_since.lock();
        let seen = since.filter(|(of, _)| *of == term);
        Some(seen.map_or(Duration::ZERO, |(_, at)| runtime::now() - at))
    }

    /// Whether a leader sent this member a message within this time.
    pub fn heard_leader_within(&self, time: Duration) -> bool {
        self.inner.member.heard_within(time)
    }

    /// How often another leader, or the same one in another term, was seen since the start.
    pub fn leader_changes(&self) -> u64 {
        self.inner.member.leader_changes.load(Ordering::Relaxed)
    }
}

fn followers(metrics: &RaftMetrics<TypeConfig>) -> Vec<FollowerLag> {
    if metrics.state != ServerState::Leader {
        return Vec::new();
    }
    let (last, now) = (metrics.last_log_index.map_or(0, |last| last + 1), runtime::now());
    let others = metrics.replication.iter().flatten().filter(|(id, _)| **id != metrics.id);
    let lag = |(id, matched): (&NodeId, &Option<RaftLogId>)| {
        let stored = matched.as_ref().map_or(0, |matched| matched.index() + 1);
        let answered = metrics.heartbeat.as_ref().and_then(|all| *all.get(id)?);
        FollowerLag {
            id: *id,
            entries: last.saturating_sub(stored),
            silent: answered.map(|at| now - *at),
        }
    };
    others.map(lag).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::types::raft_log_id;
    use cairn_engine::LogId;
    use std::collections::BTreeMap;

    fn node(slot: u16) -> NodeId {
        NodeId::new(slot, 1)
    }

    #[test]
    fn only_a_leader_knows_how_far_the_others_are_behind() {
        let mut metrics = RaftMetrics::new_initial(node(1));
        metrics.last_log_index = Some(9);
        let at = |index| Some(raft_log_id(LogId { term: 1, index }));
        metrics.replication =
            Some(BTreeMap::from([(node(1), at(9)), (node(2), at(7)), (node(3), None)]));
        metrics.heartbeat =
            Some(BTreeMap::from([(node(2), Some(runtime::now().into())), (node(3), None)]));
        assert!(followers(&metrics).is_empty(), "it follows");
        metrics.state = ServerState::Leader;
        let found = followers(&metrics);
        let entries: Vec<_> = found.iter().map(|lag| (lag.id, lag.entries)).collect();
        assert_eq!(entries, [(node(2), 2), (node(3), 10)], "the log begins with index 0");
        assert!(found[0].silent.is_some() && found[1].silent.is_none(), "{found:?}");
    }
}
