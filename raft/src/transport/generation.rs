//! The generation of the cluster: which of several clusters of one name this member belongs to.
//!
//! What holds here: only a node that was never part of a cluster takes a generation, and its directory
//! remembers it before anything is voted or logged. While it takes one, nobody is heard.

use super::identity::{Enveloped, PeerIdentity};
use crate::core::ids::{GROUP, NodeId};
use crate::core::proto::{self, Envelope};
use crate::core::runtime;
use cairn_engine::{Engine, MemberState};
use cairn_tls::Remote;
use std::sync::atomic::Ordering;
use tokio::sync::OwnedRwLockReadGuard;
use tonic::Status;

impl PeerIdentity {
    /// The generation of the cluster to which this member belongs.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Whether a message is of this cluster's name and of another generation.
    pub(super) fn is_other_generation(&self, envelope: Option<&Envelope>) -> bool {
        envelope.is_some_and(|envelope| {
            envelope.cluster == *self.cluster && envelope.generation != self.generation()
        })
    }

    /// A node that was never part of a cluster becomes one of the generation that a formed member
    /// told. The directory remembers it before anything is voted or logged.
    pub(crate) async fn adopt_generation(&self, answer: &proto::HelloResponse) {
        let Some(envelope) = answer.envelope().filter(|told| told.cluster == *self.cluster) else {
            return;
        };
        if !self.may_adopt() || envelope.generation == 0 || answer.uninitialized {
            return;
        }
        // In a task of its own: the caller may be cancelled.
        let (identity, generation) = (self.clone(), envelope.generation);
        let (done, is_done) = futures::channel::oneshot::channel();
        runtime::spawn(async move {
            identity.take_generation(generation).await;
            done.send(()).ok();
        });
        is_done.await.ok();
    }

    /// Whether this node was never part of a cluster.
    fn may_adopt(&self) -> bool {
        let blank = self.engine.as_ref().is_none_or(|engine| {
            is_uninitialized(engine) && engine.member_state() == MemberState::Active
        });
        self.generation() == 0 && blank
    }

    async fn take_generation(&self, generation: u32) {
        let _nobody_is_heard = self.fence.write().await;
        if !self.may_adopt() {
            return;
        }
        // A sender that gives up holds the fence no more, and what it sent is carried out nevertheless.
        if let Some(is_blank) = self.is_blank.get()
            && !is_blank().await
        {
            return;
        }
        if let Some(engine) = &self.engine
            && engine.set_generation(generation).await.is_err()
        {
            return;
        }
        self.generation.store(generation, Ordering::SeqCst);
        tracing::info!(node = %self.id, generation = %generation_text(generation), "this node joins the cluster of this generation");
    }

    /// The generation stays as it is while this is held.
    ///
    /// # Errors
    /// While this node takes one.
    pub(crate) fn keep_generation(&self) -> Result<OwnedRwLockReadGuard<()>, Status> {
        let fence = self.fence.clone().try_read_owned();
        fence.map_err(|_| Status::unavailable("this node is becoming part of a cluster: ask again"))
    }

    /// Why this member does not hear another one.
    pub(super) fn of_other_generation(&self, envelope: &Envelope) -> String {
        format!(
            "member {} belongs to generation {} of the cluster, and {} to generation {}: an operator made the cluster anew \
             of one member alone; what the other one holds is not part of it, so give that one an empty data directory",
            NodeId::from_u64(envelope.sender),
            generation_text(envelope.generation),
            self.id,
            generation_text(self.generation())
        )
    }

    /// Logs that a member of another generation asked. Without this only the member that is refused
    /// says why.
    pub(super) fn log_other_generation(&self, envelope: Option<&Envelope>) {
        let Some(envelope) = envelope.filter(|_| self.is_other_generation(envelope)) else {
            return;
        };
        if self.other_generation.is_due() {
            tracing::warn!(node = %self.id, "refused: {}", self.of_other_generation(envelope));
        }
    }

    /// Whether a member of a formed cluster of this name sends this, or a node that found one: only such have
    /// a generation.
    pub(crate) fn is_of_formed(&self, remote: &Remote, envelope: Option<&Envelope>) -> bool {
        envelope
            .is_some_and(|envelope| envelope.generation != 0 && envelope.cluster == *self.cluster)
            && self.check_certificate(remote, envelope).is_ok()
    }

    /// Says to whoever sent a Hello of another generation which one this is. A node that was never
    /// part of a cluster has none and takes it from the answer, so only others are logged.
    pub(crate) fn told_other_generation(
        &self,
        remote: &Remote,
        envelope: Option<&Envelope>,
    ) -> Option<Envelope> {
        let envelope = envelope.filter(|_| self.is_other_generation(envelope))?;
        if envelope.generation != 0 && self.check_certificate(remote, Some(envelope)).is_ok() {
            self.log_other_generation(Some(envelope));
            self.note_predecessor(Some(envelope));
        }
        self.to(NodeId::from_u64(envelope.sender))
    }
}

/// A generation as people read it.
pub(crate) fn generation_text(generation: u32) -> String {
    match generation {
        0 => "0".into(),
        drawn => format!("{drawn:08x}"),
    }
}

/// Whether nothing was ever voted, logged or applied here.
pub(crate) fn is_uninitialized(engine: &Engine) -> bool {
    let bounds = engine.log_bounds(GROUP);
    engine.vote(GROUP).is_none()
        && bounds.last.is_none()
        && bounds.purged.is_none()
        && engine.applied(GROUP).is_none()
}
