//! What an operator asks for: changes of the members, the mode and the version, another leader, a
//! drain, an unsafe recovery, a scrub.

use super::{Replica, ScrubStatus};
use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::durability::leadership::{self, To};
use crate::durability::{Act, Drain, Event, UnsafeRecovery, is_most_up_to_date};
use crate::membership::{ChangeError, MemberChange};
use cairn_engine::Mode;
use openraft::ServerState;
use std::time::Duration;

impl Replica {
    /// Gives this member an unsafe-recovery grant: an operator has seen what every member holds,
    /// accepts that acknowledged writes may be lost, and names the candidate that shall lead. Call
    /// it on the candidate and on the other recovering members. The candidate refuses if a voter
    /// that answers holds a longer log. Members vote by the grant for [`UnsafeRecovery::LIFETIME`];
    /// a restart ends it.
    ///
    /// # Errors
    /// Why the grant is not needed here, or does not fit.
    pub async fn unsafe_recovery(&self, unsafe_recovery: UnsafeRecovery) -> Result<(), String> {
        let member = &self.inner.member;
        let candidate = unsafe_recovery.candidate;
        let may_take =
            || member.may(Act::TakeGrant { candidate }).map_err(|refusal| refusal.to_string());
        may_take()?;
        let own = member.engine.boot_epoch();
        if unsafe_recovery.candidate == self.node_id() {
            if unsafe_recovery.epoch != own {
                return Err(format!(
                    "this member restarted since it was surveyed (boot epoch {}, now {}); check again",
                    unsafe_recovery.epoch.number, own.number
                ));
            }
            is_most_up_to_date(member).await?;
            may_take()?;
            // It may lead: what it lacks is given up.
            member.engine.begin(false).await.map_err(|error| error.to_string())?;
            // Copying a damaged directory aside takes seconds. A voter with a longer log may have
            // returned meanwhile, or a leader: ask again. No await from the last answer to the grant.
            is_most_up_to_date(member).await?;
        }
        member.take_grant(unsafe_recovery).map_err(|refusal| refusal.to_string())?;
        tracing::warn!(
            node = %self.node_id(), candidate = %unsafe_recovery.candidate,
            "unsafe recovery: an operator accepts that what no member holds any more is lost; this member holds the grant"
        );
        Ok(())
    }

    /// Takes the next step of a change of the members that an operator asks for. `None`: the change
    /// is done. Else what it waits for: ask again, whoever leads by then.
    ///
    /// # Errors
    /// `NotLeader`; `Refused`, with the reason and the way out; `Stopped`.
    pub async fn change_members(
        &self,
        change: MemberChange,
    ) -> Result<Option<String>, ChangeError> {
        self.inner.service.reconciler.change(change).await.map_err(|error| self.at_leader(error))
    }

    /// Commits the least that an acknowledgement means from now on. When this returns, it holds for
    /// every write that is acknowledged from then on.
    ///
    /// # Errors
    /// As [`Replica::change_members`].
    pub async fn set_mode(&self, mode: Mode) -> Result<(), ChangeError> {
        self.inner.service.reconciler.set_mode(mode).await.map_err(|error| self.at_leader(error))
    }

    /// Commits that the cluster's version is this one from now on. No release of a lower version runs
    /// in the cluster after that, and what the versions up to it brought is used.
    ///
    /// # Errors
    /// As [`Replica::change_members`]. `Refused` if a member is not known to run that version.
    pub async fn finish_upgrade(&self, version: u32) -> Result<(), ChangeError> {
        let finished = self.inner.service.reconciler.finish_upgrade(version).await;
        finished.map_err(|error| self.at_leader(error))
    }

    /// Has the member of slot `to` lead, or the one with the most up-to-date log. Returns who leads
    /// then.
    ///
    /// # Errors
    /// As [`Replica::change_members`].
    pub async fn move_leader(&self, to: Option<u16>) -> Result<NodeId, ChangeError> {
        self.inner.service.reconciler.move_leader(to).await.map_err(|error| self.at_leader(error))
    }

    /// Gives leadership away, if this member leads, and keeps out of elections for this time, or
    /// until it restarts. It goes on voting and acknowledging. Zero ends that. If for some elections
    /// nobody leads, it campaigns, and gives leadership away again when another member may lead.
    ///
    /// # Errors
    /// `Refused`, if no other member can lead; `Stopped`.
    pub async fn drain(&self, time: Duration) -> Result<(), ChangeError> {
        let member = &self.inner.member;
        if let Some(reason) = self.stopped() {
            return Err(ChangeError::Stopped(reason));
        }
        let leads = || with_metrics(&member.raft, |metrics| metrics.state == ServerState::Leader);
        if !time.is_zero() && leads() {
            leadership::hand_over(member, To::Best, leadership::HAND_OVER_LIMIT).await;
            // Not before another one leads: perhaps no other one may, and nobody did then.
            let limit = Duration::from_millis(member.config.election_max_ms);
            if leads() || leadership::another_leader(member, limit).await.is_none() {
                return Err(ChangeError::Refused(
                    "this member leads, and no other voter could take over: look at `cairn status`"
                        .into(),
                ));
            }
        }
        let from = runtime::now();
        member.change(Event::Drained(Drain { from, until: from + time }));
        if !time.is_zero() {
            tracing::warn!(node = %self.node_id(), seconds = time.as_secs(), "an operator keeps this member from leading");
        }
        Ok(())
    }

    /// How long an operator still keeps this member from leading.
    pub fn drained_for(&self) -> Option<Duration> {
        self.inner.member.standing().drained_for(runtime::now())
    }

    /// The same refusal, with the leader where it is reached now.
    fn at_leader(&self, error: ChangeError) -> ChangeError {
        match error {
            ChangeError::NotLeader { leader } => {
                ChangeError::NotLeader { leader: leader.map(|leader| self.at_present(leader)) }
            }
            error => error,
        }
    }

    /// Begins a scrub of everything now, even if the scrubber was paused. Runs in the background.
    pub fn start_scrub(&self) {
        self.inner.scrubber.start();
    }

    /// Pauses or resumes the scrubber. The choice survives restarts.
    pub fn pause_scrub(&self, pause: bool) {
        self.inner.scrubber.pause(pause);
    }

    /// Lets the scrubber read at most this many bytes a second from now on.
    pub fn set_scrub_rate(&self, bytes_per_s: u64) {
        self.inner.scrubber.set_rate(bytes_per_s);
    }

    /// The scrubber's progress and counters.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.inner.scrubber.status()
    }
}
