//! Changes of the mode: the least that an acknowledgement means is a record in the log.

use super::reconciler::{RECORD_LIMIT, Reconciler};
use super::request::{ChangeError, refused};
use crate::core::codec;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::durability::leadership;
use crate::storage::mode_in_force::{REPLICATED_VOTERS, allows_replicated};
use cairn_engine::Mode;
use openraft::ServerState;
use std::sync::Arc;
use std::time::Duration;

impl Reconciler {
    /// Commits what acknowledgements mean from now on.
    pub(crate) async fn set_mode(&self, mode: Mode) -> Result<(), ChangeError> {
        let alone = Arc::clone(&self.changing).lock_owned().await;
        let began = runtime::now();
        let seen = loop {
            match self.seen()? {
                Ok(seen) => break seen,
                Err(_) if runtime::now() - began < RECORD_LIMIT => {
                    runtime::sleep(Duration::from_millis(50)).await;
                }
                Err(reason) => return refused(format!("{reason}: try again")),
            }
        };
        if mode == Mode::Replicated && !allows_replicated(seen.membership()) {
            return refused(format!(
                "mode `replicated` needs {REPLICATED_VOTERS} voters or more, and this cluster has {}: add members first (`cairn members add`)",
                seen.voters.len()
            ));
        }
        // Logged even if the mode is there already, as far as this member knows: it may lead no more.
        let Some(index) = self.log_record(codec::encode_mode(mode), alone).await else {
            let metrics = with_metrics(&self.member.raft, Clone::clone);
            return match metrics.state {
                ServerState::Leader => refused(
                    "the mode was not committed in time, and may still be: look at `cairn mode show`, and try again",
                ),
                _ => Err(ChangeError::NotLeader { leader: leadership::leader(&metrics) }),
            };
        };
        match self.member.modes.modes().cluster == Some(mode) {
            true => {
                tracing::warn!(node = %self.member.identity.id(), %mode, index, "an operator changed the cluster's mode");
                Ok(())
            }
            false => refused("another change came in between: look at `cairn mode show`"),
        }
    }
}
