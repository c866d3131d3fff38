//! Raising the cluster's version, which an operator asks for when every member runs a later release.
//!
//! What holds here: while the record is under way, this leader adds, promotes and replaces nobody.
//! The story without that: the record is proposed; before it is applied, a node of an older release
//! is let in, since the cluster's version is still the old one; its membership follows the record in
//! the log, so that the check at the record's apply does not see it; and the cluster has a member,
//! perhaps a voter, that cannot run. A node that was let in before is a member by then, so the check
//! sees it and the version stays. One that asks later is refused by the new version. A later leader
//! changes nothing before it has applied an entry of its own term, and with it the record, if that is
//! in its log.

use super::reconciler::Reconciler;
use super::request::{ChangeError, refused};
use crate::core::codec;
use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::durability::leadership;
use openraft::ServerState;
use std::sync::Arc;

impl Reconciler {
    /// Commits that the cluster's version is this one from now on.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub(crate) async fn finish_upgrade(&self, version: u32) -> Result<(), ChangeError> {
        let alone = Arc::clone(&self.changing).lock_owned().await;
        let seen = match self.seen()? {
            Ok(seen) => seen,
            Err(reason) => return refused(format!("{reason}: try again")),
        };
        let identities = &self.member.identity.identities;
        if version <= identities.version() {
            return Ok(());
        }
        let behind = identities.behind(seen.membership(), version);
        if !behind.is_empty() {
            return refused(format!("{}: `cairn upgrade check`", in_the_way(&behind, version)));
        }
        if self.log_record(codec::encode_version(version), alone).await.is_none() {
            let metrics = with_metrics(&self.member.raft, Clone::clone);
            return match metrics.state {
                ServerState::Leader => refused(
                    "the version was not committed in time, and may still be: look at `cairn upgrade check`, and try again",
                ),
                _ => Err(ChangeError::NotLeader { leader: leadership::leader(&metrics) }),
            };
        }
        if identities.version() < version {
            return refused(
                "a member of an older release came in between: look at `cairn upgrade check`",
            );
        }
        let node = self.member.identity.id();
        tracing::warn!(%node, version, "an operator finished the upgrade: the cluster's version has risen");
        Ok(())
    }
}

/// Why the version cannot rise.
fn in_the_way(behind: &[NodeId], version: u32) -> String {
    let names: Vec<String> = behind.iter().map(ToString::to_string).collect();
    let (noun, verb) = if names.len() == 1 { ("member", "is") } else { ("members", "are") };
    format!(
        "{noun} {} {verb} not known to run a release of version {version} or later: start one there, or remove what is gone for \
         good",
        names.join(" and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_members_in_the_way_and_the_way_out() {
        let (one, other) = (NodeId::new(1, 0xa), NodeId::new(2, 0xb));
        let alone = in_the_way(&[one], 2);
        assert!(
            alone.starts_with(&format!("member {one} is not known to run a release of version 2")),
            "{alone}"
        );
        let both = in_the_way(&[one, other], 2);
        assert!(both.starts_with(&format!("members {one} and {other} are not known")), "{both}");
    }
}
