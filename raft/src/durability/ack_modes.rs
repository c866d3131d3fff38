//! Ack modes, fast and safe: while the quorum is degraded, members sync before they acknowledge.
//!
//! While more than a bare majority of the voters is healthy, the leader uses the fast mode: members
//! acknowledge before they sync. If one machine then loses power, the others hold everything that
//! it lost. As soon as the leader sees only a bare majority, the quorum is degraded and the leader
//! uses the safe mode: each append asks its receiver to sync first, and each member clears its
//! unsynced-ack flag. Power cuts one after another, even of all machines, then lose nothing, and
//! each machine comes back without an operator. The idea is SAUCR's (OSDI 2018), which calls the
//! modes fast and slow.
//!
//! What holds here:
//! - a member starts in the safe mode and stays in it until a leader selects the fast one; a leader
//!   begins its term in the safe mode;
//! - each change has a number within the leader's term, and a member ignores a change that is not
//!   later than the latest it knows;
//! - safety does not rest on any of this: a member may acknowledge either way at any time, as long
//!   as its own unsynced-ack flag says so.

use super::{Act, LocalMember};
use crate::core::ids::NodeId;
use crate::core::quorum::majority;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::{TypeConfig, Vote};
use crate::storage::mode_in_force::ModeInForce;
use crate::storage::progress::Progress;
use crate::transport::AckMode;
use cairn_engine::{BootEpoch, Mode};
use openraft::vote::RaftLeaderId;
use openraft::{RaftMetrics, ServerState};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often a leader checks its followers.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The leader switches to the fast mode after this many checks in a row found enough healthy
/// members. That is longer than the last answer of a dead member counts.
const STABLE_ROUNDS: u32 = 30;

/// This member's ack mode, as leader or as follower.
pub(crate) struct AckModes {
    modes: Arc<ModeInForce>,
    ack_mode: Mutex<AckMode>,
    /// Members that asked this leader to help them recover: not healthy before they have caught up.
    recovering: Mutex<BTreeMap<NodeId, Recovering>>,
}

#[derive(Clone, Copy)]
struct Recovering {
    epoch: BootEpoch,
    /// This leader's applied index when it saw the member's boot-epoch record applied.
    caught_up: Option<u64>,
}

impl AckModes {
    pub(crate) fn new(modes: Arc<ModeInForce>) -> AckModes {
        AckModes { modes, ack_mode: Mutex::default(), recovering: Mutex::default() }
    }

    /// The ack mode that an append in the leader's term carries: safe and numbered 0 if the mode in
    /// force belongs to another term.
    pub(crate) fn mode_for_append(&self, vote: &Vote) -> AckMode {
        let term = vote.leader_id().term();
        let ack_mode = *self.ack_mode.lock();
        match ack_mode.term == term {
            true => ack_mode,
            false => AckMode { term, number: 0, fast: false },
        }
    }

    /// Adopts the mode that a leader's append carries, if it is later than the one in force.
    pub(crate) fn follow(&self, received: AckMode) {
        let mut ack_mode = self.ack_mode.lock();
        if (received.term, received.number) > (ack_mode.term, ack_mode.number) {
            *ack_mode = received;
            self.modes.set_fast(received.fast);
        }
    }

    /// A member recovers with the help of this leader.
    pub(crate) fn recovering(&self, member: NodeId, epoch: BootEpoch) {
        self.recovering.lock().insert(member, Recovering { epoch, caught_up: None });
    }

    /// The members that recover with the help of this leader.
    pub(crate) fn recovering_members(&self) -> BTreeSet<NodeId> {
        self.recovering.lock().keys().copied().collect()
    }

    /// Chooses the ack mode while this member leads. Runs until the member stops.
    pub(crate) async fn run(self: Arc<Self>, member: Arc<LocalMember>) {
        let mut stable = Stable::default();
        loop {
            runtime::sleep(POLL_INTERVAL).await;
            if member.stops() {
                return;
            }
            let leading = with_metrics(&member.raft, |metrics| {
                (metrics.state == ServerState::Leader).then(|| metrics.clone())
            });
            let Some(metrics) = leading else {
                stable = Stable::default();
                self.recovering.lock().clear();
                continue;
            };
            let healthy = self.healthy(&member, &metrics);
            let replicated = self.modes.binding() == Mode::Replicated;
            let enough = replicated && spare(&metrics, &healthy);
            self.lead(metrics.current_term, stable.check(metrics.current_term, enough));
        }
    }

    fn lead(&self, term: u64, fast: bool) {
        let mut ack_mode = self.ack_mode.lock();
        let next = match ack_mode.term == term {
            true if ack_mode.fast == fast => return,
            true => AckMode { term, number: ack_mode.number + 1, fast },
            false => AckMode { term, number: 1, fast: false },
        };
        if ack_mode.term == term {
            tracing::info!(
                term,
                fast = next.fast,
                "{}",
                match next.fast {
                    true =>
                        "more than a bare majority is healthy: members acknowledge before they sync",
                    false =>
                        "only a bare majority is healthy, or the mode is not `replicated`: members sync every write before they acknowledge it",
                }
            );
        }
        *ack_mode = next;
        self.modes.set_fast(next.fast);
    }

    /// The voters that answered lately and do not recover. Leader only. A leader that an
    /// unsafe-recovery grant elected recovers itself.
    pub(crate) fn healthy(
        &self,
        member: &LocalMember,
        metrics: &RaftMetrics<TypeConfig>,
    ) -> BTreeSet<NodeId> {
        let timeout = Duration::from_millis(member.config.election_min_ms);
        let mut healthy = self.answering(metrics, &member.progress, timeout);
        if member.may(Act::Vouch).is_err() {
            healthy.remove(&metrics.id);
        }
        healthy
    }

    /// The voters that answered lately and do not recover, as far as they asked for help. Leader
    /// only, and this one included.
    fn answering(
        &self,
        metrics: &RaftMetrics<TypeConfig>,
        progress: &Progress,
        timeout: Duration,
    ) -> BTreeSet<NodeId> {
        let matched = |id: &NodeId| {
            let replication = metrics.replication.as_ref()?;
            replication.get(id)?.as_ref().map(|matched| matched.index())
        };
        let mut recovering = self.recovering.lock();
        let applied = metrics.last_applied.as_ref().map(|applied| applied.index());
        for (id, back) in recovering.iter_mut().filter(|(_, back)| back.caught_up.is_none()) {
            back.caught_up = applied.filter(|_| progress.has_epoch(*id, back.epoch));
        }
        recovering.retain(|id, back| back.caught_up.is_none() || matched(id) < back.caught_up);
        let now = runtime::now();
        let answered = |id: &NodeId| {
            let acknowledged =
                metrics.heartbeat.as_ref().and_then(|all| all.get(id).copied().flatten());
            acknowledged.is_some_and(|at| now - *at < timeout)
        };
        let voters = metrics.membership_config.voter_ids();
        voters
            .filter(|id| *id == metrics.id || answered(id) && !recovering.contains_key(id))
            .collect()
    }
}

/// How many checks in a row, in one term of this leader, found enough healthy members.
#[derive(Default)]
struct Stable {
    term: u64,
    rounds: u32,
}

impl Stable {
    /// Adds a check; returns whether there were enough in a row.
    fn check(&mut self, term: u64, enough: bool) -> bool {
        let before = if self.term == term { self.rounds } else { 0 };
        let rounds = if enough { before.saturating_add(1) } else { 0 };
        *self = Stable { term, rounds };
        rounds >= STABLE_ROUNDS
    }
}

/// Whether every configuration in force can lose one healthy member and keep a majority. While the
/// membership is not committed, the answer is no: this member may be the only one that knows it,
/// and without this member the others use the one before.
fn spare(metrics: &RaftMetrics<TypeConfig>, healthy: &BTreeSet<NodeId>) -> bool {
    if metrics.committed_membership_config.log_id() != metrics.membership_config.log_id() {
        return false;
    }
    metrics
        .membership_config
        .membership()
        .get_joint_config()
        .iter()
        .all(|voters| voters.intersection(healthy).count() > majority(voters.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::boot::Boot;
    use crate::core::ids::MemberAddress;
    use crate::core::types::{Membership, RaftLogId, StoredMembership, raft_log_id};
    use crate::storage::state_machine::identities::Identities;
    use crate::storage::state_machine::image::Image;
    use crate::storage::tests::engine;
    use cairn_engine::LogId;
    use tempfile::TempDir;

    const TIMEOUT: Duration = Duration::from_secs(600);

    fn id(slot: u16) -> NodeId {
        NodeId::new(slot, 1)
    }

    fn at(index: u64) -> RaftLogId {
        raft_log_id(LogId { term: 2, index })
    }

    fn set(slots: &[u16]) -> BTreeSet<NodeId> {
        slots.iter().map(|slot| id(*slot)).collect()
    }

    fn stored(index: u64, configurations: &[&[u16]]) -> Arc<StoredMembership> {
        let sets: Vec<_> = configurations.iter().map(|slots| set(slots)).collect();
        let nodes: BTreeMap<_, _> =
            sets.iter().flatten().map(|id| (*id, MemberAddress::default())).collect();
        let membership = Membership::new(sets, nodes).unwrap();
        Arc::new(StoredMembership::new(Some(at(index)), membership))
    }

    /// Member 1 leads term 2 under a committed membership, has applied entry 100, and everybody has
    /// acknowledged that just now.
    fn leads(configurations: &[&[u16]]) -> RaftMetrics<TypeConfig> {
        let mut metrics = RaftMetrics::new_initial(id(1));
        metrics.state = ServerState::Leader;
        metrics.current_term = 2;
        metrics.membership_config = stored(5, configurations);
        metrics.committed_membership_config = metrics.membership_config.clone();
        metrics.last_applied = Some(at(100));
        let voters: Vec<NodeId> = metrics.membership_config.voter_ids().collect();
        metrics.heartbeat =
            Some(voters.iter().map(|id| (*id, Some(runtime::now().into()))).collect());
        metrics.replication = Some(voters.iter().map(|id| (*id, Some(at(100)))).collect());
        metrics
    }

    fn matched(metrics: &mut RaftMetrics<TypeConfig>, slot: u16, index: u64) {
        metrics.replication.as_mut().unwrap().insert(id(slot), Some(at(index)));
    }

    struct Leader {
        ack_modes: AckModes,
        progress: Progress,
        _folder: TempDir,
    }

    async fn leader() -> Leader {
        let folder = tempfile::tempdir().unwrap();
        let modes = Arc::new(ModeInForce::new(engine(&folder).await, Mode::Replicated, None));
        let progress = Progress::new(Identities::default(), modes.clone());
        Leader { ack_modes: AckModes::new(modes), progress, _folder: folder }
    }

    impl Leader {
        fn healthy(&self, metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<NodeId> {
            self.ack_modes.answering(metrics, &self.progress, TIMEOUT)
        }

        /// The member's boot-epoch record is applied.
        fn apply_epoch(&self, slot: u16, epoch: BootEpoch) {
            let boot = Boot { epoch, version: 1, release: "".into() };
            let boot_epochs = Arc::new([(id(slot), boot)].into_iter().collect());
            self.progress.publish(&Image { boot_epochs, ..Image::default() }, None);
        }
    }

    const EPOCH: BootEpoch = BootEpoch { number: 7, nonce: 70 };
    const EARLIER: BootEpoch = BootEpoch { number: 6, nonce: 60 };

    #[tokio::test]
    async fn a_voter_is_healthy_while_it_answers_and_the_leader_always() {
        let leader = leader().await;
        let mut metrics = leads(&[&[1, 2, 3, 4]]);
        assert_eq!(leader.healthy(&metrics), set(&[1, 2, 3, 4]));
        let heartbeat = metrics.heartbeat.as_mut().unwrap();
        heartbeat.insert(id(2), Some((runtime::now() - TIMEOUT).into()));
        heartbeat.insert(id(3), None);
        heartbeat.remove(&id(4));
        heartbeat.remove(&id(1));
        assert_eq!(leader.healthy(&metrics), set(&[1]));
    }

    /// A member that lost its disk's last second acknowledges at once, and lacks what it lost.
    #[tokio::test]
    async fn a_member_on_its_way_back_is_healthy_only_when_it_has_caught_up() {
        let leader = leader().await;
        let mut metrics = leads(&[&[1, 2, 3]]);
        leader.ack_modes.recovering(id(2), EPOCH);
        assert_eq!(leader.healthy(&metrics), set(&[1, 3]), "its record is not applied");
        leader.apply_epoch(2, EARLIER);
        assert_eq!(leader.healthy(&metrics), set(&[1, 3]), "that is another boot's record");
        leader.apply_epoch(2, EPOCH);
        matched(&mut metrics, 2, 99);
        assert_eq!(leader.healthy(&metrics), set(&[1, 3]), "it lacks an entry of that moment");
        metrics.last_applied = Some(at(150));
        matched(&mut metrics, 2, 100);
        assert_eq!(leader.healthy(&metrics), set(&[1, 2, 3]), "it has all of that moment");
        matched(&mut metrics, 2, 50);
        assert_eq!(leader.healthy(&metrics), set(&[1, 2, 3]), "a lag is no recovery");
        leader.ack_modes.recovering(id(2), BootEpoch { number: 8, nonce: 80 });
        assert_eq!(leader.healthy(&metrics), set(&[1, 3]), "it has lost power again");
    }

    #[test]
    fn every_configuration_needs_a_healthy_member_to_spare() {
        type Case = (&'static [&'static [u16]], &'static [u16], bool);
        let cases: [Case; 9] = [
            (&[&[1, 2, 3]], &[1, 2, 3], true),
            (&[&[1, 2, 3]], &[1, 2], false),
            (&[&[1, 2, 3, 4]], &[1, 2, 3, 4], true),
            (&[&[1, 2, 3, 4]], &[1, 2, 3], false),
            (&[&[1, 2, 3, 4, 5]], &[1, 2, 3, 4], true),
            (&[&[1, 2, 3, 4, 5]], &[1, 2, 3], false),
            (&[&[1, 2, 3], &[1, 4, 5]], &[1, 2, 3, 4, 5], true),
            (&[&[1, 2, 3], &[1, 4, 5]], &[1, 2, 3, 4], false),
            (&[&[1, 4, 5], &[1, 2, 3]], &[1, 2, 3, 4], false),
        ];
        for (configurations, healthy, expected) in cases {
            let metrics = leads(configurations);
            assert_eq!(spare(&metrics, &set(healthy)), expected, "{configurations:?} {healthy:?}");
        }
    }

    #[test]
    fn a_membership_that_is_not_committed_has_no_member_to_spare() {
        let mut metrics = leads(&[&[1, 2, 3]]);
        metrics.membership_config = stored(6, &[&[1, 2, 3]]);
        assert!(!spare(&metrics, &set(&[1, 2, 3])));
    }

    #[test]
    fn the_fast_mode_needs_enough_checks_in_a_row_within_one_term() {
        let mut stable = Stable::default();
        let in_a_row = |stable: &mut Stable, term| {
            (1..=STABLE_ROUNDS).map(|_| stable.check(term, true)).collect::<Vec<_>>()
        };
        let enough = in_a_row(&mut stable, 2);
        assert_eq!(enough.iter().position(|fast| *fast), Some(STABLE_ROUNDS as usize - 1));
        assert!(stable.check(2, true));
        assert!(!stable.check(2, false), "one check too few");
        assert!(!stable.check(2, true), "the count begins again");
        in_a_row(&mut stable, 2);
        assert!(!stable.check(3, true), "the count of another term");
    }

    #[tokio::test]
    async fn a_leader_begins_its_term_in_the_safe_mode_and_numbers_each_change() {
        let Leader { ack_modes, .. } = &leader().await;
        let now = || *ack_modes.ack_mode.lock();
        ack_modes.lead(2, true);
        assert_eq!(now(), AckMode { term: 2, number: 1, fast: false }, "whatever it finds");
        ack_modes.lead(2, true);
        assert_eq!(now(), AckMode { term: 2, number: 2, fast: true });
        ack_modes.lead(2, true);
        assert_eq!(now(), AckMode { term: 2, number: 2, fast: true });
        ack_modes.lead(2, false);
        assert_eq!(now(), AckMode { term: 2, number: 3, fast: false });
        ack_modes.follow(AckMode { term: 2, number: 2, fast: true });
        assert_eq!(now(), AckMode { term: 2, number: 3, fast: false }, "an earlier one, late");
        ack_modes.follow(AckMode { term: 3, number: 1, fast: true });
        assert_eq!(now(), AckMode { term: 3, number: 1, fast: true });
        let vote = |term| Vote::new(term, id(1));
        assert_eq!(
            ack_modes.mode_for_append(&vote(4)),
            AckMode { term: 4, number: 0, fast: false }
        );
        assert!(ack_modes.mode_for_append(&vote(3)).fast);
    }
}
