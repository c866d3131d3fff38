//! The way back of a member that recovers in place.

use super::{LocalMember, leadership};
use crate::core::ids::{GROUP, NodeId};
use crate::core::metrics::look_at;
use crate::core::runtime;
use crate::core::types::Vote;
use crate::storage::log_store;
use crate::transport::ask_to_recover;
use cairn_engine::LogId;
use openraft::ServerState;
use std::sync::Arc;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(20);
/// A start that was not applied within this time is asked for again: the leader may have been overtaken meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);

impl LocalMember {
    /// Whether an entry is gone that this member acknowledged in a leadership. If it has voted in a later one since, a later
    /// leader may have taken the entry back.
    pub(crate) fn forgot(&self, vote: &Vote, acknowledged: LogId) -> bool {
        let purged = || self.engine.log_bounds(GROUP).purged;
        // In this order: it may be purged in between.
        let held = self.engine.log_id_at(GROUP, acknowledged.index) == Some(acknowledged)
            || purged().is_some_and(|purged| purged.index >= acknowledged.index);
        // The vote is looked at after the log: whoever takes an entry back has stored its vote before.
        !held && log_store::stored_vote(&self.engine).is_ok_and(|own| own.is_none_or(|own| own <= *vote))
    }

    /// An active member turns out to have forgotten what it acknowledged: it promises nothing more, and recovers.
    pub(crate) fn begin_recovery(self: &Arc<Self>, leader: NodeId, acknowledged: LogId) {
        if !self.gate.close() {
            return;
        }
        self.raft.runtime_config().elect(false);
        let node = self.identity.id();
        tracing::warn!(
            %node, %leader, %acknowledged,
            "what this member acknowledged is not here any more, as after an older copy of its data directory was put in \
             place: it recovers"
        );
        let recovery = Arc::clone(self);
        runtime::spawn(async move {
            if let Err(error) = recovery.engine.set_recovering().await {
                tracing::warn!(%node, %error, "that this member recovers cannot be recorded");
                return;
            }
            if recovery.has_own_start() {
                // The record is spent; the next run has another one.
                tracing::error!(%node, "this member has held everything since its start and has forgotten again: it stops");
                recovery.raft.shutdown().await.ok();
                return;
            }
            recovery.recover().await;
        });
    }

    /// Whether the record of this very run is applied.
    fn has_own_start(&self) -> bool {
        self.progress.has_start(self.identity.id(), self.engine.run())
    }

    /// Runs until the gate is open, the engine fails, or the replica stops.
    pub(crate) async fn recover(self: Arc<Self>) {
        let node = self.identity.id();
        let run = self.engine.run();
        let mut led = false;
        tracing::warn!(
            %node,
            start = run.start,
            "recovering: this member may have forgotten what it acknowledged; it neither votes nor serves until a leader \
             has brought it up to date"
        );
        let mut asked: Option<(NodeId, Vote, runtime::Instant)> = None;
        // The term of the first leadership that a mandate made, as far as this member took part in it. Its loss must be on record before this
        // member is whole again, be it by a later leader who knows of no mandate: what that leadership committed stands.
        let mut owed: Option<u64> = None;
        while !self.stops() && self.engine.status().failed.is_none() {
            // A mandate ends by itself; whoever was elected by it leads on.
            self.raft.runtime_config().elect(self.gate.may_campaign(node));
            let bidden = self.gate.named(node);
            // Looked at before who leads: an entry of the leadership that a mandate made may commit a record that was there before.
            let has_start = self.has_own_start();
            let leading =
                look_at(&self.raft, |seen| (seen.state == ServerState::Leader).then_some(seen.vote));
            if let Some(vote) = leading.filter(|_| bidden) {
                owed.get_or_insert(vote.leader_id().term);
            }
            if has_start && owed.is_none_or(|term| self.progress.lost_since(term)) {
                return self.end_recovery().await;
            }
            if leading.is_some() && !self.gate.may_campaign(node) && !bidden {
                // It won an election while it was told.
                leadership::hand_over(&self.raft, PATIENCE).await;
            }
            if let Some((leader, vote)) = self.gate.knocked() {
                asked = self.ask(leader, vote, &mut owed).await.then(|| (leader, vote, runtime::now()));
            }
            if let Some((leader, vote, at)) = asked
                && runtime::now() - at > PATIENCE
            {
                // The record of its start may have been lost on the way. It does not knock again, so it is asked until it has been
                // overtaken.
                let agreed = self.ask(leader, vote, &mut owed).await;
                asked =
                    (agreed || self.gate.admitted() == Some(vote)).then(|| (leader, vote, runtime::now()));
            }
            if let Some(vote) = leading.filter(|_| bidden) {
                if !led {
                    tracing::warn!(%node, "leading by an operator's mandate: what no member holds any more is given up");
                }
                self.records.propose(vote, node, run, true);
            }
            led = bidden && leading.is_some();
            runtime::sleep(PAUSE).await;
        }
    }

    /// Asks a leader; whether it agreed, and in the leadership in which it knocked. If a mandate made that leadership, or a loss is owed
    /// from before, the leader is to put it on record.
    async fn ask(&self, leader: NodeId, vote: Vote, owed: &mut Option<u64>) -> bool {
        let mandated = owed.is_some() || self.by_mandate(leader, &vote);
        let node = self.identity.id();
        let Some(address) = self.address(leader) else {
            tracing::warn!(%node, %leader, "no address is known of the leader that could bring this member up to date");
            return false;
        };
        match ask_to_recover(&self.identity, leader, &address, mandated).await {
            Ok(agreed) if agreed == vote => {
                if self.gate.admitted() != Some(vote) {
                    tracing::info!(%node, %leader, "a leader brings this member up to date");
                }
                self.gate.admit(vote);
                if mandated {
                    owed.get_or_insert(vote.leader_id().term);
                }
                true
            }
            // It knocks again if it leads still.
            Ok(_) => false,
            Err(reason) => {
                tracing::info!(%node, %leader, reason, "the leader does not bring this member up to date yet");
                false
            }
        }
    }

    /// Whether a mandate made this leadership, as far as this member can tell: it is in force and names the leader, or
    /// it has ended and this member has voted for this leadership by it. Another's leadership, or one that came about
    /// without this vote after the mandate had ended, gives up nothing.
    pub(crate) fn by_mandate(&self, leader: NodeId, vote: &Vote) -> bool {
        let in_force = self.gate.mandate().is_some_and(|mandate| mandate.candidate == leader);
        let voted = || {
            let own = log_store::stored_vote(&self.engine).ok().flatten();
            own.is_some_and(|own| own.leader_id == vote.leader_id)
        };
        in_force || self.gate.named(leader) && voted()
    }

    /// As configured, since an operator who moves a member says so there; else as the log has it.
    fn address(&self, leader: NodeId) -> Option<String> {
        look_at(&self.raft, |metrics| {
            let logged = || metrics.membership_config.get_node(&leader);
            self.config
                .initial_members
                .get(&leader.slot())
                .or_else(logged)
                .map(|address| address.peer.clone())
        })
    }

    /// The member's own state machine has applied the record of its own run.
    async fn end_recovery(&self) {
        assert!(self.has_own_start(), "recovery ends only behind the record of the member's own run");
        let node = self.identity.id();
        if let Err(error) = self.engine.set_active().await {
            tracing::warn!(%node, %error, "the end of the recovery cannot be recorded");
            return;
        }
        self.raft.runtime_config().elect(true);
        self.gate.open();
        tracing::info!(%node, "recovered: this member holds everything again that it ever acknowledged");
    }
}
