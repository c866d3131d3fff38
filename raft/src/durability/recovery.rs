//! Recovery in place: how a member that may have lost acknowledged entries becomes active again.

use super::leadership::To;
use super::{Act, Event, LocalMember, leadership};
use crate::core::ids::{GROUP, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::Vote;
use crate::storage::log_store;
use crate::transport::{ask_to_recover, find};
use cairn_engine::LogId;
use openraft::ServerState;
use std::sync::Arc;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A boot-epoch record that is not applied within this time is requested again: the leader may have
/// been replaced meanwhile.
const WAIT_LIMIT: Duration = Duration::from_secs(3);

impl LocalMember {
    /// Whether the log lacks an entry that this member acknowledged in the leadership of `vote`.
    /// Not if this member has voted for a later leadership since: a later leader may have truncated
    /// the entry.
    pub(crate) fn lost_acked_entry(&self, vote: &Vote, acknowledged: LogId) -> bool {
        let purged = || self.engine.log_bounds(GROUP).purged;
        // In this order: the entry may be purged in between.
        let held = self.engine.log_id_at(GROUP, acknowledged.index) == Some(acknowledged)
            || purged().is_some_and(|purged| purged.index >= acknowledged.index);
        // Read the vote after the log: a truncating leader's vote is stored before the truncation.
        !held
            && log_store::stored_vote(&self.engine)
                .is_ok_and(|own| own.is_none_or(|own| own <= *vote))
    }

    /// An active member turns out to have lost an entry that it acknowledged: it recovers.
    pub(crate) fn begin_recovery(self: &Arc<Self>, leader: NodeId, acknowledged: LogId) {
        if !self.change(Event::Lost) {
            return;
        }
        let node = self.identity.id();
        tracing::warn!(
            %node, %leader, %acknowledged,
            "an entry that this member acknowledged is missing, as after an older copy of its data directory was put in \
             place: it recovers"
        );
        let recovery = Arc::clone(self);
        runtime::spawn(async move {
            if let Err(error) = recovery.engine.set_recovering().await {
                tracing::warn!(%node, %error, "cannot record that this member recovers");
                return;
            }
            if recovery.has_own_epoch() {
                // The record of this boot epoch is used up; only another boot has a new one.
                tracing::error!(%node, "this member recovered since it started, and lacks an acknowledged entry again: it stops");
                recovery.raft.shutdown().await.ok();
                return;
            }
            recovery.recover().await;
        });
    }

    /// Whether the record of this boot epoch is applied.
    fn has_own_epoch(&self) -> bool {
        self.progress.has_epoch(self.identity.id(), self.engine.boot_epoch())
    }

    /// Runs until the member is active, the engine fails, or the replica stops.
    pub(crate) async fn recover(self: Arc<Self>) {
        let node = self.identity.id();
        let epoch = self.engine.boot_epoch();
        let mut led = false;
        tracing::warn!(
            %node,
            boot_epoch = epoch.number,
            "recovering: this member may have lost acknowledged entries; it neither votes nor serves until it has caught up \
             with a leader"
        );
        let mut asked: Option<(NodeId, Vote, runtime::Instant)> = None;
        // The term of the first leadership under a grant in which this member took part. This
        // member becomes active only after an unsafe-recovery record of that term or a later one,
        // even if a later leader that knows of no grant logs it: entries that the first such
        // leadership committed stay committed.
        let mut unrecorded_term: Option<u64> = None;
        while !self.stops() && self.engine.status().failed.is_none() {
            // A grant expires; a leader that was elected by it stays leader.
            self.time_passes();
            let is_candidate = self.standing().was_chosen(node);
            // Read this before the leadership: an entry of a leadership under a grant may commit a
            // record that was logged before.
            let has_epoch = self.has_own_epoch();
            let leading = with_metrics(&self.raft, |seen| {
                (seen.state == ServerState::Leader).then_some(seen.vote)
            });
            if let Some(vote) = leading.filter(|_| is_candidate) {
                unrecorded_term.get_or_insert(vote.leader_id().term);
            }
            if has_epoch
                && unrecorded_term.is_none_or(|term| self.progress.unsafely_recovered_since(term))
            {
                return self.end_recovery().await;
            }
            if leading.is_some() && self.may(Act::AskForVotes).is_err() && !is_candidate {
                // It won an election while it began to recover.
                leadership::hand_over(&self, To::Best, WAIT_LIMIT).await;
            }
            if let Some((leader, vote)) = self.take_refused() {
                asked = self
                    .ask(leader, vote, &mut unrecorded_term)
                    .await
                    .then(|| (leader, vote, runtime::now()));
            }
            if let Some((leader, vote, at)) = asked
                && runtime::now() - at > WAIT_LIMIT
            {
                // The boot-epoch record may have been lost on the way. The leader's appends are
                // accepted now, so it is not reported as refused any more: ask until it is
                // replaced.
                let agreed = self.ask(leader, vote, &mut unrecorded_term).await;
                asked = (agreed || self.standing().helper() == Some(vote))
                    .then(|| (leader, vote, runtime::now()));
            }
            if let Some(vote) = leading.filter(|_| is_candidate) {
                if !led {
                    tracing::warn!(%node, "leading by an unsafe-recovery grant: what no member holds any more is discarded");
                }
                let own = self.identity.identities.loggable(&self.identity.boot());
                self.records.propose(vote, node, own, true);
            }
            led = is_candidate && leading.is_some();
            runtime::sleep(POLL_INTERVAL).await;
        }
    }

    /// Asks a leader for help; returns whether it agreed, in the leadership that was refused.
    /// If that leadership came about by a grant, or an unsafe-recovery record is still missing, the
    /// leader is asked to log one.
    async fn ask(&self, leader: NodeId, vote: Vote, unrecorded_term: &mut Option<u64>) -> bool {
        let unsafe_recovery = unrecorded_term.is_some() || self.is_unsafe_leadership(leader, &vote);
        let node = self.identity.id();
        match self.ask_at_each_address(leader, unsafe_recovery).await {
            Ok(agreed) if agreed == vote => {
                if !self.begins_to_write(leader, &vote).await {
                    return false;
                }
                if self.standing().helper() != Some(vote) {
                    tracing::info!(%node, %leader, "a leader helps this member recover");
                }
                self.change(Event::Helped(vote));
                if unsafe_recovery {
                    unrecorded_term.get_or_insert(vote.leader_id().term);
                }
                true
            }
            // If it still leads, its next append is refused, too.
            Ok(_) => false,
            Err(reason) => {
                tracing::info!(%node, %leader, reason, "the leader does not help this member recover yet");
                false
            }
        }
    }

    /// A damaged directory is overwritten from here on, if it was not yet: this leadership has what is
    /// missing in it. That holds unless this member voted for a later one: what it acknowledged to that
    /// one, this one may lack. Its vote is in the superblock, which is not damaged.
    pub(crate) async fn begins_to_write(&self, leader: NodeId, vote: &Vote) -> bool {
        let Some(damage) = self.engine.damage() else { return true };
        let node = self.identity.id();
        match log_store::stored_vote(&self.engine) {
            Ok(own) if own.is_none_or(|own| own <= *vote) => {}
            // openraft refuses what this leader sends, and so tells it of the later term.
            _ => return true,
        }
        tracing::warn!(%node, %leader, %damage, "a leader has what is missing: the damaged data directory is overwritten now");
        match self.engine.begin(false).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%node, %error, "the damaged data directory cannot be written");
                false
            }
        }
    }

    /// Whether this leadership came about by an unsafe-recovery grant, as far as this member can
    /// tell: the grant is valid and names the leader, or it has expired and this member used it to
    /// vote for this leadership. The leadership of another member, or one that was elected without
    /// this member's vote after the grant had expired, discards nothing.
    pub(crate) fn is_unsafe_leadership(&self, leader: NodeId, vote: &Vote) -> bool {
        let in_force =
            self.standing().grant(runtime::now()).is_some_and(|grant| grant.candidate == leader);
        let voted = || {
            let own = log_store::stored_vote(&self.engine).ok().flatten();
            own.is_some_and(|own| own.leader_id == vote.leader_id)
        };
        in_force || self.standing().was_chosen(leader) && voted()
    }

    /// Asks the leader at one of its addresses after another, until it answers.
    async fn ask_at_each_address(
        &self,
        leader: NodeId,
        unsafe_recovery: bool,
    ) -> Result<Vote, String> {
        let mut answer = Err("this member knows no address of that leader".to_owned());
        for address in self.addresses.of(leader, None) {
            answer = ask_to_recover(&self.identity, leader, &address, unsafe_recovery).await;
            if answer.is_ok() {
                return answer;
            }
        }
        // What is left of its log does not tell where the leader is. The story: the leader moved, the
        // log said so, and this member lost that part of its log. The leader announces itself no more.
        let others = self.addresses.others().into_iter().map(|(_, address)| address);
        let asked = self.config.contacts().chain(others).collect();
        match find(&self.identity, &self.addresses, leader, asked).await {
            Some(address) => {
                ask_to_recover(&self.identity, leader, &address, unsafe_recovery).await
            }
            None => answer,
        }
    }

    /// The member's own state machine has applied the record of its own boot epoch: become active.
    async fn end_recovery(&self) {
        assert!(
            self.has_own_epoch(),
            "recovery ends only after the record of the member's own boot epoch"
        );
        let node = self.identity.id();
        if let Err(error) = self.engine.set_active().await {
            tracing::warn!(%node, %error, "cannot record the end of the recovery");
            return;
        }
        self.change(Event::Recovered);
        tracing::info!(%node, "recovered: this member again holds everything that it acknowledged");
    }
}
