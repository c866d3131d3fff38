//! Who leads, the transferee, and handing leadership over.

use crate::core::config::ReplicaConfig;
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::quorum::is_quorum;
use crate::core::raft_metrics::{read_metrics, with_metrics};
use crate::core::runtime;
use crate::core::types::{StoredMembership, TypeConfig, Vote, engine_log_id};
use crate::durability::commit_progress::{self, Voter};
use crate::durability::{Act, Drain, Event, LocalMember};
use crate::storage::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::VoteRequest;
use openraft::{RaftMetrics, RaftState, ServerState};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long a hand-over may take that an operator asks for.
pub(crate) const HAND_OVER_LIMIT: Duration = Duration::from_secs(3);

/// A transferee may lack this many entries: it catches up within a moment.
const TRANSFEREE_BEHIND: u64 = 1000;

/// Where leadership could as well stay, the transferee may be behind by the entries of this time.
pub(crate) const CATCHES_UP: Duration = Duration::from_millis(200);

/// How long a member may take to answer whether it may lead, and at least to lead.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often a leader asks itself to give leadership up. It takes entries meanwhile, and does not while it has one
/// that it was not told of.
const GIVES_UP: u32 = 10;
/// The longest pause before all voters are asked again whether one may take over: a drained leader with
/// nobody to take over asks for as long as it leads.
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// So many of the longest election timeouts are between two steps towards a refused term: time for an
/// election.
const STEP_TIMEOUTS: u32 = 2;

/// For how long a drained member leaves elections to others: they have had time for some. At least
/// for two hand-overs, in which a leader is silent.
pub(crate) fn patience(config: &ReplicaConfig) -> Duration {
    let elections = Duration::from_millis(config.election_max_ms).saturating_mul(4);
    elections.max(HAND_OVER_LIMIT * 2)
}

/// To whom leadership is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// To the voter with the most up-to-date log: this member should not lead on.
    Best,
    /// To one that stores entries soon after this member, of which leadership could as well stay.
    Near,
    /// To this one.
    Voter(NodeId),
}

/// Who stores entries soon after this leader. From a hand-over on the leader takes no writes, until
/// the next one has stored all that this one has: so it must have had, at some moment, all that was
/// there [`CATCHES_UP`] before.
pub(crate) struct Near {
    due: Option<u64>,
    since: runtime::Instant,
}

impl Near {
    pub(crate) fn new() -> Near {
        Near { due: None, since: runtime::now() }
    }

    pub(crate) fn has(&mut self, metrics: &RaftMetrics<TypeConfig>, voter: NodeId) -> bool {
        if self.due.is_none() || self.since + CATCHES_UP < runtime::now() {
            (self.due, self.since) = (metrics.last_log_index, runtime::now());
        }
        let stored = metrics.replication.as_ref().and_then(|all| all.get(&voter)?.as_ref());
        stored.map(|id| id.index()) >= self.due
    }
}

/// Who leads, if known.
pub(crate) fn leader(metrics: &RaftMetrics<TypeConfig>) -> Option<(NodeId, MemberAddress)> {
    let id = metrics.current_leader?;
    let address = metrics.membership_config.get_node(&id)?;
    Some((id, address.clone()))
}

/// The other voters that are not far behind, the one with the most up-to-date log first.
fn transferees(metrics: &RaftMetrics<TypeConfig>) -> Vec<NodeId> {
    let Some(replication) =
        metrics.replication.as_ref().filter(|_| metrics.state == ServerState::Leader)
    else {
        return Vec::new();
    };
    let last = metrics.last_log_index.unwrap_or(0);
    let voters = metrics.membership_config.voter_ids().filter(|id| *id != metrics.id);
    let matched =
        |id: &NodeId| replication.get(id).cloned().flatten().map(|matched| matched.index());
    let near = |index: &u64| last.saturating_sub(*index) <= TRANSFEREE_BEHIND;
    let mut all: Vec<(u64, NodeId)> =
        voters.filter_map(|id| matched(&id).filter(near).map(|index| (index, id))).collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    all.into_iter().map(|(_, id)| id).collect()
}

/// If this member leads, asks a member that can take over to do so, and waits until it has, `limit`
/// or a little longer. Saves the cluster an election timeout.
///
/// Only a member that says that it may lead is asked: openraft takes no proposals on a leader that
/// began to hand over, until another one is elected. The story: the one with the most up-to-date
/// log was recovering and refused; the leader could no longer log the records that ended the
/// recovery of the others, and nobody could be elected.
pub(crate) async fn hand_over(member: &LocalMember, to: To, limit: Duration) {
    let until = runtime::now() + limit;
    let turn = member.handing_over.clone().lock_owned();
    let Some(turn) = runtime::timeout(limit, turn).await else { return };
    match runtime::timeout(until - runtime::now().min(until), transferee(member, to)).await {
        Some(None) => {}
        Some(Some(transferee)) => {
            let left = ANSWER_LIMIT.max(until - runtime::now().min(until));
            hand_over_to(member, transferee, left, turn).await;
        }
        // Asked for in each maintenance turn, it would be a line in each.
        None => {
            tracing::debug!(node = %member.raft.node_id(), "no member can take over leadership");
        }
    }
}

/// Asks this voter to take over, and gives leadership up if it has not in time: openraft would
/// refuse proposals and send no heartbeats for as long as it leads. The story: the transferee lost
/// power at that moment, and the cluster took no writes until an operator restarted the leader.
///
/// What is begun goes on if the caller is cancelled, or a disk that stalls keeps it for longer. The
/// turn lasts for as long: a second transferee would campaign beside the first.
pub(crate) async fn hand_over_to(
    member: &LocalMember,
    transferee: NodeId,
    limit: Duration,
    turn: impl Send + 'static,
) {
    let (done, is_done) = futures::channel::oneshot::channel();
    let raft = member.raft.clone();
    runtime::spawn(async move {
        transfer_or_give_up(&raft, transferee, limit).await;
        drop(turn);
        done.send(()).ok();
    });
    runtime::timeout(limit + ANSWER_LIMIT, is_done).await;
}

async fn transfer_or_give_up(raft: &Raft, transferee: NodeId, limit: Duration) {
    let mut metrics = raft.metrics();
    let led = |seen: &RaftMetrics<TypeConfig>| {
        (seen.state == ServerState::Leader).then_some(seen.current_term)
    };
    let Some(term) = read_metrics(&metrics, led) else { return };
    let handed_over = async {
        if raft.trigger().transfer_leader(transferee).await.is_err() {
            return;
        }
        while read_metrics(&metrics, |seen| seen.state == ServerState::Leader)
            && metrics.changed().await.is_ok()
        {}
    };
    if runtime::timeout(limit, handed_over).await.is_some() {
        return;
    }
    let node = raft.node_id();
    tracing::warn!(%node, %transferee, "a member did not take over leadership in time; this one gives it up");
    give_up(raft, term).await;
}

/// Ends the leadership of this term by a vote of the next one. It is for nobody: a member that heard
/// of a vote for itself would take it for its own. Returns whether it is ended. It is not if an entry was
/// appended meanwhile.
pub(crate) async fn give_up(raft: &Raft, term: u64) -> bool {
    let last = |state: &RaftState<TypeConfig>| state.log_ids.last().cloned();
    let Ok(last) = raft.with_raft_state(last).await else { return false };
    let mut request = VoteRequest::new(Vote::new(term + 1, NodeId::from_u64(0)), last);
    // The lease protects the leader from others, not from itself.
    request.leadership_transfer = true;
    // An error says that replication has ended.
    raft.vote(request).await.is_ok_and(|answer| answer.vote_granted)
}

/// If this member leads and the others can elect one of them without it, gives leadership up and leaves
/// elections to them for a while. Returns whether it did.
pub(crate) async fn leave_to_others(member: &LocalMember) -> bool {
    let turn = member.handing_over.clone().lock_owned();
    let Some(_turn) = runtime::timeout(ANSWER_LIMIT, turn).await else { return false };
    let leading = |metrics: &RaftMetrics<TypeConfig>| {
        let of = |one: &StoredMembership| one.membership().get_joint_config().clone();
        // The others may not have what is not committed yet.
        let mut configurations = of(&metrics.membership_config);
        configurations.extend(of(&metrics.committed_membership_config));
        let committed = metrics.cluster_committed.as_ref().map(engine_log_id);
        let leads = metrics.state == ServerState::Leader;
        leads.then_some((metrics.current_term, committed, configurations))
    };
    let Some((term, committed, configurations)) = with_metrics(&member.raft, leading) else {
        return false;
    };
    let voters: BTreeSet<NodeId> = configurations.iter().flatten().copied().collect();
    let answers = member.answers_of(voters, ANSWER_LIMIT).await;
    let others = answers.iter().map(|(id, answer)| (*id, Voter::from(answer))).collect();
    let purged = member.engine.log_bounds(GROUP).purged;
    if !commit_progress::others_can_elect(&configurations, committed, purged, &others) {
        return false;
    }
    for _ in 0..GIVES_UP {
        if give_up(&member.raft, term).await {
            let (now, away) = (runtime::now(), commit_progress::STAYS_AWAY);
            // An operator may keep it from leading for longer.
            if member.standing().drained_for(now).is_none_or(|left| left < away) {
                member.change(Event::Drained(Drain { from: now, until: now + away }));
            }
            return true;
        }
    }
    false
}

/// Comes nearer to terms that this member refuses, while it has no leader: see
/// [`terms`](crate::transport::terms). openraft grants no vote to anybody, this one included, under a
/// leader's lease. Runs until the member stops.
pub(crate) async fn approach_refused_terms(member: Arc<LocalMember>) {
    let step = Duration::from_millis(member.config.election_max_ms).saturating_mul(STEP_TIMEOUTS);
    while !member.stops() {
        runtime::sleep(step).await;
        let Some(vote) = member.identity.approach() else { continue };
        let last = |state: &RaftState<TypeConfig>| state.log_ids.last().cloned();
        let Ok(last) = member.raft.with_raft_state(last).await else { return };
        let answer = member.raft.vote(VoteRequest::new(vote, last)).await;
        if answer.is_ok_and(|answer| answer.vote_granted) {
            let (node, term) = (member.identity.id(), vote.leader_id.term);
            tracing::warn!(
                %node, term,
                "members' terms lie further apart than elections can have led, and this member has no leader: it comes nearer"
            );
        }
    }
}

/// Another member that leads, soon.
pub(crate) async fn another_leader(
    member: &LocalMember,
    limit: Duration,
) -> Option<(NodeId, MemberAddress)> {
    let known = async {
        loop {
            let leader = with_metrics(&member.raft, leader);
            if let Some(leader) = leader.filter(|(id, _)| *id != member.identity.id()) {
                return leader;
            }
            runtime::sleep(POLL_INTERVAL).await;
        }
    };
    runtime::timeout(limit, known).await
}

/// The best voter that says that it may lead, once a majority says that it may vote. A leader of this
/// moment does not know yet what the others hold, so it looks again, less and less often. `None`: this member does not
/// lead, or there is no other voter.
///
/// The story of the majority: three of five voters had lost power, and the leader was asked to give
/// leadership away. It was given up with the first vote; those that came back recovered, needed a
/// leader, and could not elect one.
async fn transferee(member: &LocalMember, to: To) -> Option<NodeId> {
    let (mut near, mut pause) = (Near::new(), POLL_INTERVAL);
    loop {
        let (mut candidates, configurations) = with_metrics(&member.raft, |metrics| {
            let others = metrics.membership_config.voter_ids().any(|id| id != metrics.id);
            if metrics.state != ServerState::Leader || !others {
                return None;
            }
            let mut candidates = transferees(metrics);
            match to {
                To::Best => {}
                To::Near => candidates.retain(|id| near.has(metrics, *id)),
                To::Voter(voter) => candidates.retain(|id| *id == voter),
            }
            Some((candidates, metrics.membership_config.membership().get_joint_config().clone()))
        })?;
        if candidates.is_empty() {
            pause = POLL_INTERVAL;
            runtime::sleep(pause).await;
            continue;
        }
        let voters: BTreeSet<NodeId> = configurations.iter().flatten().copied().collect();
        let answers = member.answers_of(voters, ANSWER_LIMIT).await;
        let active = answers.iter().filter(|(_, one)| !one.recovering).map(|(id, _)| *id);
        let own = member.may(Act::Vouch).is_ok().then(|| member.identity.id());
        let votes: BTreeSet<NodeId> = active.chain(own).collect();
        candidates.retain(|id| answers.get(id).is_some_and(|one| one.may_lead));
        if let Some(transferee) = candidates.first()
            && is_quorum(&configurations, &votes)
        {
            return Some(*transferee);
        }
        runtime::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
