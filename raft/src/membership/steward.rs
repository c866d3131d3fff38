//! The leader's side: who asks to be taken in, and the changes of the membership, one after another.

use super::step::{self, Step, View};
use crate::core::command::Command;
use crate::core::ids::NodeId;
use crate::core::metrics::look_at;
use crate::core::types::{RaftLogId, Reply, StoredMembership, TypeConfig};
use crate::core::{codec, runtime};
use crate::durability::LocalMember;
use crate::transport::Applicant;
use openraft::raft::Precondition;
use openraft::{ChangeMembers, RaftMetrics, ServerState};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(100);
/// A request to be taken in counts for this long.
const REQUEST: Duration = Duration::from_secs(3);
/// An identity that was not heard of for so long may be replaced; so long a leader leads before it judges that.
const SILENCE: Duration = Duration::from_secs(5);
/// A leader that did not look for so long was paused itself, or busy with a change.
const LAPSE: Duration = Duration::from_secs(1);
/// Entries that a newcomer lacks at most when it becomes a voter.
const LEVEL: u64 = 1000;

/// Looks after the membership while this member leads.
pub(crate) struct Steward {
    member: Arc<LocalMember>,
    applicants: Mutex<BTreeMap<u16, (Applicant, runtime::Instant)>>,
    /// The term that this member leads, since when, and when it last looked.
    leads: Mutex<Option<Leads>>,
    /// By slot: who asked last whether it may take the voter's place.
    asked: Mutex<BTreeMap<u16, Asked>>,
    /// Whether an entry for them is under way.
    syncing: AtomicBool,
}

/// Somebody who has nothing yet, and would overwrite what a voter's directory holds.
#[derive(Clone, Copy)]
struct Asked {
    by: NodeId,
    /// When it last asked, and in which term this member led then: what another leader had meanwhile is another question.
    at: runtime::Instant,
    term: u64,
    /// An entry that was proposed after it had first asked, to be synced before it is acknowledged, is committed.
    synced: bool,
}

#[derive(Clone, Copy)]
struct Leads {
    term: u64,
    since: runtime::Instant,
    looked: runtime::Instant,
}

impl Steward {
    pub(crate) fn new(member: Arc<LocalMember>) -> Steward {
        Steward {
            member,
            applicants: Mutex::default(),
            leads: Mutex::default(),
            asked: Mutex::default(),
            syncing: AtomicBool::new(false),
        }
    }

    /// Somebody asks to be taken in. Whether it votes already.
    ///
    /// # Errors
    /// Why it cannot be taken in now.
    pub(crate) fn apply(&self, applicant: Applicant) -> Result<bool, String> {
        let metrics = look_at(&self.member.raft, Clone::clone);
        let place = place_for(&metrics, applicant.id)?;
        if place != applicant.id {
            self.applicants.lock().insert(applicant.id.slot(), (applicant, runtime::now()));
            return Ok(false);
        }
        Ok(true)
    }

    /// The voter whose place a newcomer could take now, if this member leads, has listened for long enough to know who is silent,
    /// and a majority without that voter holds everything that this member has, synced: then its directory may be overwritten.
    ///
    /// That shows an entry that was proposed after the newcomer had asked, and is synced before it is acknowledged with all that
    /// comes before it: once it is committed it is on a majority, to which who asks does not belong, since nobody speaks for that voter any
    /// more. That followers answer would not do: those that lag do so too.
    pub(crate) fn vacancy(&self, newcomer: NodeId) -> Option<NodeId> {
        let metrics = look_at(&self.member.raft, Clone::clone);
        let now = runtime::now();
        let leads = *self.leads.lock();
        leads.filter(|leads| {
            leads.term == metrics.current_term && now - leads.looked < LAPSE && now - leads.since >= SILENCE
        })?;
        metrics.last_quorum_acked.filter(|at| now - **at < SILENCE)?;
        let place = place_for(&metrics, newcomer).ok().filter(|place| *place != newcomer)?;
        let term = metrics.current_term;
        let mut all = self.asked.lock();
        let known = all.get(&newcomer.slot()).filter(|known| known.by == newcomer && known.term == term);
        let synced = known.is_some_and(|known| known.synced);
        all.insert(newcomer.slot(), Asked { by: newcomer, at: now, term, synced });
        synced.then_some(place)
    }

    /// Puts an entry into the log for those who ask for a voter's place, however long it takes to commit it.
    fn sync_for_who_asked(self: &Arc<Self>, term: u64) {
        let now = runtime::now();
        let waiting: Vec<NodeId> = {
            let mut asked = self.asked.lock();
            asked.retain(|_, asked| now - asked.at < REQUEST);
            let waiting = asked.values().filter(|asked| asked.term == term && !asked.synced);
            waiting.map(|asked| asked.by).collect()
        };
        if waiting.is_empty() || self.syncing.swap(true, Ordering::SeqCst) {
            return;
        }
        let steward = Arc::clone(self);
        runtime::spawn(async move {
            let committed = steward.synced_entry().await.is_some();
            steward.syncing.store(false, Ordering::SeqCst);
            for asked in steward.asked.lock().values_mut() {
                asked.synced |= committed && asked.term == term && waiting.contains(&asked.by);
            }
        });
    }

    /// Puts an entry into the log that changes nothing and is synced before it is acknowledged; whether it was committed.
    async fn synced_entry(&self) -> Option<()> {
        let command = Command { synced: true, session: None, operations: Vec::new() };
        let (reply, answer) = Reply::pair(Box::new(()));
        self.member.raft.client_write_ff(codec::encode_command(command, 0), Some(reply)).await.ok()?;
        answer.await.ok()?.ok().map(drop)
    }

    /// Looks after the membership until the replica is gone or the member stops.
    pub(crate) async fn run(steward: Weak<Steward>) {
        loop {
            runtime::sleep(PAUSE).await;
            let Some(steward) = steward.upgrade().filter(|steward| !steward.member.stops()) else {
                return;
            };
            let leading = look_at(&steward.member.raft, |metrics| {
                (metrics.state == ServerState::Leader).then(|| metrics.clone())
            });
            let Some(metrics) = leading else {
                *steward.leads.lock() = None;
                continue;
            };
            steward.log_starts(&metrics);
            steward.sync_for_who_asked(metrics.current_term);
            // Only who judges that somebody is silent must have listened for a while.
            let listened = steward.has_led(metrics.current_term);
            if let Some(step) = steward.next(&metrics).filter(|step| listened || *step == Step::Finish) {
                steward.take(step, &metrics.membership_config).await;
            }
        }
    }

    /// Whether this member has led this term for long enough to know who is silent.
    fn has_led(&self, term: u64) -> bool {
        let mut leads = self.leads.lock();
        let now = runtime::now();
        // After a pause of its own it has not listened either.
        let since = match *leads {
            Some(known) if known.term == term && now - known.looked < LAPSE => known.since,
            _ => now,
        };
        *leads = Some(Leads { term, since, looked: now });
        now - since >= SILENCE
    }

    /// Puts the members' starts that the log does not have into it.
    fn log_starts(&self, metrics: &RaftMetrics<TypeConfig>) {
        let (starts, own) = (self.member.identity.starts(), self.member.engine.run());
        for (member, _) in metrics.membership_config.nodes() {
            let news = match *member == metrics.id {
                true => Some(own).filter(|run| !starts.has_logged(*member, *run)),
                false => starts.news_of(*member),
            };
            if let Some(run) = news {
                self.member.records.propose(metrics.vote, *member, run, false);
            }
        }
    }

    fn next(&self, metrics: &RaftMetrics<TypeConfig>) -> Option<Step> {
        let committed = metrics.committed_membership_config.log_id() == metrics.membership_config.log_id();
        // Of its own term a leader knows what is committed only by an entry of its own.
        let own = metrics
            .last_applied
            .is_some_and(|applied| applied.committed_leader_id().term == metrics.current_term);
        if !committed || !own {
            return None;
        }
        let now = runtime::now();
        let mut asked = self.applicants.lock();
        asked.retain(|_, (_, at)| now - *at < REQUEST);
        let applicants = asked.iter().map(|(slot, (applicant, _))| (*slot, applicant.clone())).collect();
        drop(asked);
        step::next(&View {
            own: metrics.id,
            membership: metrics.membership_config.membership(),
            alive: &alive(metrics),
            level: &level(metrics),
            applicants: &applicants,
        })
    }

    /// Proposes one change and waits until it is committed, or this member leads no more.
    async fn take(&self, step: Step, seen: &Arc<StoredMembership>) {
        let node = self.member.raft.node_id();
        let (change, what) = match step {
            Step::Finish => {
                (ChangeMembers::AddVoterIds(BTreeSet::new()), "a half-made change is finished".to_string())
            }
            Step::Drop(stale) => {
                let what = format!("learner {stale} was given up and is removed");
                (ChangeMembers::RemoveNodes(BTreeSet::from([stale])), what)
            }
            Step::Add(new, address) => {
                let what = format!("newcomer {new} at {} learns", address.peer);
                (ChangeMembers::AddNodes(BTreeMap::from([(new, address)])), what)
            }
            Step::Replace { old, new } => {
                let change = vec![
                    ChangeMembers::RemoveVoters(BTreeSet::from([old])),
                    ChangeMembers::AddVoterIds(BTreeSet::from([new])),
                ];
                (
                    ChangeMembers::Batch(change),
                    format!("member {old} was not heard of: {new} takes its place"),
                )
            }
        };
        tracing::warn!(%node, "{what}");
        let unchanged = Precondition::LastMembershipLogId { last_membership_log_id: *seen.log_id() };
        match self.member.raft.change_membership_if(change, false, [unchanged]).await {
            Ok(_) => tracing::info!(%node, "done: {what}"),
            Err(error) => tracing::info!(%node, %error, "not done: {what}"),
        }
    }
}

/// The voter whose place somebody may take; itself if it votes.
///
/// # Errors
/// Why it cannot be taken in now.
fn place_for(metrics: &RaftMetrics<TypeConfig>, newcomer: NodeId) -> Result<NodeId, String> {
    if metrics.state != ServerState::Leader || !metrics.vote.is_committed() {
        return Err("this member does not lead".into());
    }
    let membership = metrics.membership_config.membership();
    if membership.voter_ids().any(|voter| voter == newcomer) {
        return Ok(newcomer);
    }
    let Some(voters) = membership.get_joint_config().last() else {
        return Err("the cluster is not formed".into());
    };
    let alive = alive(metrics);
    let (level, applicants) = (BTreeSet::new(), BTreeMap::new());
    let seen = View { own: metrics.id, membership, alive: &alive, level: &level, applicants: &applicants };
    step::place(&seen, voters, newcomer)
}

/// The members that were heard of lately, the leader included.
fn alive(metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<NodeId> {
    let now = runtime::now();
    let heard = metrics.heartbeat.iter().flatten();
    let heard = heard.filter(|(_, at)| at.is_some_and(|at| now - *at < SILENCE));
    heard.map(|(id, _)| *id).chain([metrics.id]).collect()
}

/// The members that hold nearly all that the leader has, and an entry of its own term: one that takes nothing of what came after
/// a loss that others accepted does not.
fn level(metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<NodeId> {
    let last = metrics.last_log_index.unwrap_or(0);
    let matched = metrics.replication.iter().flatten();
    let matched = matched.filter_map(|(id, matched)| Some((*id, matched.as_ref()?)));
    let own = |id: &RaftLogId| id.committed_leader_id().term == metrics.current_term;
    matched.filter(|(_, id)| own(id) && id.index() + LEVEL >= last).map(|(id, _)| id).collect()
}
