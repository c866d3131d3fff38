//! Commands: proposed, and answered once they are applied.

use super::{Replica, read_barrier};
use crate::core::codec::{self, MAX_META_BYTES};
use crate::core::command::{Command, Operation, RANGE_KEYS_MAX, WriteOutcome};
use crate::core::error::{ReadError, WriteError};
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::types::{Answer, Reply, TypeConfig};
use crate::core::version::Feature;
use crate::durability::leadership;
use crate::storage::state_machine::sessions;
use cairn_engine::{Engine, Need};
use futures::future::{BoxFuture, Either, select};
use openraft::ServerState;
use openraft::errors::{ClientWriteError, ForwardReason};
use openraft::raft::ClientWriteResult;
use std::pin::pin;

impl Replica {
    /// Whether writes are proposed here. Says so before it costs a place among the writes in flight: a
    /// leader that was cut off keeps those of what it could not commit, and must not answer that it has
    /// too many.
    ///
    /// # Errors
    /// `Stopped`, `NotLeader`, `NoLeader`.
    pub async fn check_leads(&self) -> Result<(), WriteError> {
        let (leads, runs) = with_metrics(&self.inner.member.raft, |metrics| {
            (metrics.state == ServerState::Leader, metrics.running_state.is_ok())
        });
        if !runs && let Some(reason) = self.stopped() {
            return Err(WriteError::Stopped(reason));
        }
        if self.inner.member.check_quorum.is_suspended() {
            return Err(WriteError::NoLeader);
        }
        if leads {
            return Ok(());
        }
        let own = self.inner.member.identity.id();
        let leader = with_metrics(&self.inner.member.raft, leadership::leader);
        Err(self.elsewhere(leader.filter(|(id, _)| *id != own), false).await)
    }

    /// Replicates and applies a command. Leader only. May be cancelled; the command may then be
    /// applied or not.
    ///
    /// # Errors
    /// See [`WriteError`]: each case says whether anything was proposed.
    pub async fn write(&self, command: Command) -> Result<WriteOutcome, WriteError> {
        self.write_holding(command, ()).await
    }

    /// As [`Replica::write`]. `held` is dropped when the command is applied or abandoned, even if
    /// the caller stopped waiting.
    ///
    /// # Errors
    /// As [`Replica::write`].
    pub async fn write_holding(
        &self,
        command: Command,
        held: impl Send + 'static,
    ) -> Result<WriteOutcome, WriteError> {
        check_operations(&command.operations)?;
        let (bytes, has_range) = (command.bytes(), command.has_range());
        let result_bytes =
            command.session.map_or(0, |_| sessions::write_bytes(command.operations.len()));
        let proposal = codec::encode_command(command, self.inner.member.config.max_sessions);
        if proposal.meta.len() > MAX_META_BYTES {
            return Err(WriteError::Invalid(format!(
                "the command's keys exceed {MAX_META_BYTES} bytes"
            )));
        }
        // Only a leader can judge its own capacity, and a write is proposed only with a reservation.
        // What arrives in an election, at the member that wins it, has none.
        self.check_leads().await?;
        if has_range {
            // Boxed, since few of the many writes under way need it.
            Box::pin(self.check_ranges()).await?;
        }
        let lengths = || proposal.values.iter().map(|value| value.bytes().len() as u64);
        let need = Need {
            bytes,
            puts: !proposal.values.is_empty(),
            index_bytes: Engine::index_bytes(lengths(), proposal.meta.len())
                + Engine::applied_bytes(lengths(), proposal.meta.len())
                + result_bytes,
        };
        let proposed = self.inner.service.append_capacity.reserve_write(need).map_err(refused)?;
        // The caller may stop waiting; the reservation lasts until openraft is done with the
        // command.
        let (reply, answer) = Reply::pair(Box::new((proposed, held)));
        let raft = &self.inner.member.raft;
        // Boxed, since it is large, and soon gone; the write waits for longer.
        if let Err(fatal) = Box::pin(raft.client_write_ff(proposal, Some(reply))).await {
            return Err(WriteError::Stopped(self.reason(&fatal)));
        }
        let suspended = pin!(self.inner.member.check_quorum.until_suspended());
        let answer = match select(answer, suspended).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                return Err(WriteError::OutcomeUnknown(
                    "no majority answers this leader, and the write is not committed yet".into(),
                ));
            }
        };
        match answer {
            Ok(result) => {
                let hands_over = hands_over(&result);
                match outcome(result) {
                    Err(WriteError::NotLeader { leader }) => {
                        Err(self.elsewhere(Some(leader), hands_over).await)
                    }
                    Err(WriteError::NoLeader) => Err(self.elsewhere(None, hands_over).await),
                    done => done,
                }
            }
            // openraft ended while it had the proposal.
            Err(_) => Err(WriteError::OutcomeUnknown(
                "this member stopped before the outcome was known".into(),
            )),
        }
    }

    /// Whether this member leads a cluster of which each member deletes ranges. May wait for a read barrier.
    ///
    /// # Errors
    /// That it does not lead, or why no range can be deleted yet. Nothing was proposed.
    pub async fn check_ranges(&self) -> Result<(), WriteError> {
        self.check_leads().await?;
        self.check_version("the deletion of a range", Feature::Operations).await
    }

    /// Whether the cluster uses a feature, as far as the log is applied here: then each member reads what is
    /// proposed from here on.
    ///
    /// The story: a new leader had the version's record in its log, but had not applied it. It refused, and the
    /// client did not ask again. So a leader refuses only behind a barrier.
    async fn check_version(&self, what: &'static str, feature: Feature) -> Result<(), WriteError> {
        let member = &self.inner.member;
        if feature.is_used(member.identity.identities.version()) {
            return Ok(());
        }
        let barrier = self.read_barrier().await;
        // Another member may lead by now, and judges by itself.
        self.check_leads().await?;
        barrier.map_err(|error| match error {
            ReadError::NotLeader { leader } => WriteError::NotLeader { leader },
            ReadError::NoLeader => WriteError::NoLeader,
            ReadError::Stopped(reason) => WriteError::Stopped(reason),
        })?;
        let (cluster, needed) = (member.identity.identities.version(), feature.since());
        if feature.is_used(cluster) {
            return Ok(());
        }
        // The mode is logged behind the version that a cluster begins with.
        Err(match member.modes.modes().cluster {
            Some(_) => WriteError::NeedsVersion { what, cluster, needed },
            None => WriteError::NoVersionYet { what, needed },
        })
    }

    /// The refusal of a write that another member takes: this one, or the next. Boxed, since few of the
    /// many writes under way need it.
    fn elsewhere(
        &self,
        leader: Option<(NodeId, MemberAddress)>,
        hands_over: bool,
    ) -> BoxFuture<'_, WriteError> {
        Box::pin(async move {
            let next = self.next_leader(hands_over).await;
            let leader = next.or_else(|| leader.map(|leader| self.at_present(leader)));
            leader.map_or(WriteError::NoLeader, |leader| WriteError::NotLeader { leader })
        })
    }
}

/// Refuses what no member would accept from its leader.
fn check_operations(operations: &[Operation]) -> Result<(), WriteError> {
    let invalid = |why: &str| Err(WriteError::Invalid(why.into()));
    if operations.is_empty() {
        return invalid("a command without operations");
    }
    let is_change =
        |one: &&Operation| matches!(one, Operation::Put { .. } | Operation::Delete { .. });
    let ranges = operations.iter().filter_map(|one| match one {
        Operation::DeleteRange { most, .. } => Some(*most),
        _ => None,
    });
    if !ranges.clone().all(|most| (1..=RANGE_KEYS_MAX).contains(&most)) {
        return invalid(
            "the deletion of a range names no number of keys, or one that is too great",
        );
    }
    match codec::fit_together(ranges.count(), operations.iter().filter(is_change).count()) {
        true => Ok(()),
        false => invalid("a range is deleted beside other changes"),
    }
}

fn refused(error: cairn_engine::Error) -> WriteError {
    match error {
        cairn_engine::Error::Full { .. } | cairn_engine::Error::IndexFull { .. } => {
            WriteError::Full(error.to_string())
        }
        error => WriteError::Stopped(error.to_string()),
    }
}

/// Whether a proposal is refused because leadership is being handed over.
fn hands_over(result: &ClientWriteResult<TypeConfig>) -> bool {
    let Err(ClientWriteError::ForwardToLeader(forward)) = result else { return false };
    matches!(forward.reason, ForwardReason::LeadershipTransfer)
}

fn outcome(result: ClientWriteResult<TypeConfig>) -> Result<WriteOutcome, WriteError> {
    let response = match result {
        Ok(response) => response,
        Err(ClientWriteError::ForwardToLeader(forward)) => {
            return Err(read_barrier::leader(forward)
                .map_or(WriteError::NoLeader, |leader| WriteError::NotLeader { leader }));
        }
        // Another leader's entries replaced it in this member's log. Other members may still hold
        // it.
        Err(error) => return Err(WriteError::OutcomeUnknown(error.to_string())),
    };
    match response.data {
        Answer::Outcome(outcome) => Ok(outcome),
        Answer::SessionExpired => Err(WriteError::SessionExpired),
        Answer::Nothing => {
            Err(WriteError::OutcomeUnknown("the entry was applied as another kind".into()))
        }
    }
}
