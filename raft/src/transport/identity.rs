//! The fence: every message names its sender and receiver, and the receiver checks them.
//!
//! The story behind it: a member's disk is wiped and the member comes back at the same address with
//! another incarnation, or a member of another cluster is configured there by mistake. A message
//! for the former must not be accepted by the latter. And: a copy of a member's disk is started
//! beside it, or an older state of it is restored. Each boot epoch of a member has a number and a
//! nonce. A member that knows a later boot epoch refuses an earlier one, and another one with the
//! same number.
//!
//! A name in a message is only a claim. With TLS the connection has a verified certificate, and a
//! message in the name of a slot is taken only from the member of that slot. This is checked before
//! anything that the message says is recorded. The other way round, a connection is made to the
//! member of a slot, and nobody else can answer on it.
//!
//! A message also says which version its sender's build speaks. One that speaks less than the
//! cluster's version cannot read what the others write: it is not heard, neither when it asks nor
//! when it answers.

use super::formation::Formation;
use super::machines::Machines;
use super::terms::{Sender, Terms};
use crate::core::boot::Boot;
use crate::core::ids::{GROUP, NodeId};
use crate::core::machine::Machine;
use crate::core::proto::{self, Envelope};
use crate::core::runtime;
use crate::core::types::Vote;
use crate::core::version::{Feature, RELEASE, VERSION};
use crate::storage::state_machine::identities::Identities;
use cairn_engine::{BootEpoch, Engine, FencingHistory, MemberState};
use cairn_tls::{CertificateName, Remote, Tls};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tonic::{Code, Status};

/// This member's identity, for messages to the others and checks of theirs.
#[derive(Clone)]
pub(crate) struct PeerIdentity {
    cluster: Arc<str>,
    /// The cluster's generation, and the directory that remembers it.
    generation: Arc<AtomicU32>,
    /// Written while the generation changes. Read while a cluster is formed, and while a message is
    /// carried out that makes a blank member a part of one.
    pub(crate) fence: Arc<RwLock<()>>,
    is_blank: Arc<OnceLock<IsBlank>>,
    engine: Option<Engine>,
    id: NodeId,
    epoch: BootEpoch,
    fencing_history: FencingHistory,
    pub(crate) identities: Identities,
    /// On which machines this member and the others run.
    pub(crate) machines: Machines,
    /// What the formation of the cluster waits for.
    pub(crate) formation: Formation,
    terms: Terms,
    /// The certificates of this member; `None`: messages are taken for what they claim.
    tls: Option<Tls>,
    /// When a message under another member's certificate was last logged.
    foreign_logged: Arc<Mutex<Option<runtime::Instant>>>,
    /// When a message of a member that speaks too little was last logged.
    old_logged: Arc<Mutex<Option<runtime::Instant>>>,
    /// When a request of another generation was last logged.
    generation_logged: Arc<Mutex<Option<runtime::Instant>>>,
}

/// Whether this member has neither voted nor logged anything, once all that it heard until now is
/// carried out.
pub(crate) type IsBlank = Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// An answer, which names its sender and receiver.
pub(crate) trait Enveloped {
    fn envelope(&self) -> Option<&Envelope>;
}

macro_rules! enveloped {
    ($($message:ident)+) => {$(
        impl Enveloped for proto::$message {
            fn envelope(&self) -> Option<&Envelope> {
                self.envelope.as_ref()
            }
        }
    )+};
}

enveloped! {
    HelloResponse AppendResponse VoteResponse SnapshotOffsetResponse SnapshotChunkResponse
    SnapshotFinishResponse TransferLeaderResponse RecoverResponse JoinResponse FetchValueResponse
}

/// The time between two log lines about messages that are refused for one cause.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The version of the protocol between members that this release speaks.
pub(crate) const PROTOCOL: u32 = 1;

/// The code that refuses a removed identity, or an older copy of a member's disk.
pub(crate) const REFUSED_IDENTITY: Code = Code::PermissionDenied;

impl PeerIdentity {
    /// The identity of the member that this engine holds.
    pub(crate) fn of(engine: &Engine, identities: Identities) -> PeerIdentity {
        let own = engine.identity();
        PeerIdentity {
            cluster: own.cluster.as_str().into(),
            generation: Arc::new(AtomicU32::new(engine.generation())),
            fence: Arc::default(),
            is_blank: Arc::default(),
            engine: Some(engine.clone()),
            id: NodeId::new(own.slot, own.incarnation),
            epoch: engine.boot_epoch(),
            fencing_history: engine.fencing_history(),
            identities,
            machines: Machines::default(),
            formation: Formation::default(),
            terms: Terms::of(engine),
            tls: None,
            foreign_logged: Arc::default(),
            old_logged: Arc::default(),
            generation_logged: Arc::default(),
        }
    }

    /// The same, for a member that runs on this machine.
    pub(crate) fn on(self, machine: Machine) -> PeerIdentity {
        PeerIdentity { machines: Machines::of(machine), ..self }
    }

    /// The same, with certificates on its connections.
    pub(crate) fn with_tls(self, tls: Option<Tls>) -> PeerIdentity {
        PeerIdentity { tls, ..self }
    }

    /// The certificates of this member.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// From now on what is heard is carried out, and this tells what came of it.
    pub(crate) fn is_carried_out(&self, is_blank: IsBlank) {
        self.is_blank.set(is_blank).ok();
    }

    /// For a node without a data directory, which only asks.
    pub(crate) fn without_identity(cluster: &str, id: NodeId) -> PeerIdentity {
        PeerIdentity {
            cluster: cluster.into(),
            generation: Arc::default(),
            fence: Arc::default(),
            is_blank: Arc::default(),
            engine: None,
            id,
            epoch: BootEpoch { number: 0, nonce: 0 },
            fencing_history: FencingHistory::default(),
            identities: Identities::default(),
            machines: Machines::default(),
            formation: Formation::default(),
            terms: Terms::default(),
            tls: None,
            foreign_logged: Arc::default(),
            old_logged: Arc::default(),
            generation_logged: Arc::default(),
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// This boot of this member.
    pub(crate) fn boot(&self) -> Boot {
        let release = if Feature::Releases.is_known() { RELEASE } else { "" };
        Boot { epoch: self.epoch, version: VERSION, release: release.into() }
    }

    /// For checking the votes that `sender` sends.
    pub(crate) fn votes_of(&self, sender: NodeId) -> Sender<'_> {
        self.terms.votes_from(sender)
    }

    /// The vote with which this member comes nearer to a term that it refused, if it did lately.
    pub(crate) fn approach(&self) -> Option<Vote> {
        self.terms.approach()
    }

    /// The envelope of a message to `receiver`.
    pub(crate) fn to(&self, receiver: NodeId) -> Option<Envelope> {
        let Boot { epoch, version, release } = self.boot();
        Some(Envelope {
            cluster: self.cluster.to_string(),
            sender: self.id.as_u64(),
            receiver: receiver.as_u64(),
            boot_epoch: epoch.number,
            boot_nonce: epoch.nonce,
            version,
            release: release.to_string(),
            fencing_history: self.fencing_history.to_vec(),
            protocol: PROTOCOL,
            kernel: self.machines.own().kernel,
            failure_domain: self.machines.own().failure_domain.clone(),
            generation: self.generation(),
        })
    }

    /// The generation of the cluster to which this member belongs.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Whether a message is of this cluster's name and of another generation.
    fn is_other_generation(&self, envelope: Option<&Envelope>) -> bool {
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

    /// The sender of a request to this member, which came from `remote`.
    pub(crate) fn sender_of_request(
        &self,
        remote: &Remote,
        envelope: Option<&Envelope>,
    ) -> Result<NodeId, Status> {
        self.check_certificate(remote, envelope)?;
        self.log_other_generation(envelope);
        let sender = self.sender_in_cluster(envelope)?;
        let receiver = NodeId::from_u64(envelope.map_or(0, |envelope| envelope.receiver));
        match receiver == self.id {
            true => Ok(sender),
            false => {
                Err(refused(format!("the message is for member {receiver}, this is {}", self.id)))
            }
        }
    }

    /// Why this member does not hear another one.
    fn of_other_generation(&self, envelope: &Envelope) -> String {
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
    fn log_other_generation(&self, envelope: Option<&Envelope>) {
        let Some(envelope) = envelope.filter(|_| self.is_other_generation(envelope)) else {
            return;
        };
        let now = runtime::now();
        let mut logged = self.generation_logged.lock();
        if logged.is_none_or(|last| now - last >= LOG_INTERVAL) {
            *logged = Some(now);
            tracing::warn!(node = %self.id, "refused: {}", self.of_other_generation(envelope));
        }
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
        }
        self.to(NodeId::from_u64(envelope.sender))
    }

    /// The sender of a Hello, which names only the receiver's slot, or 0 for whoever listens.
    pub(crate) fn sender_of_hello(
        &self,
        remote: &Remote,
        envelope: Option<&Envelope>,
        slot: u32,
    ) -> Result<NodeId, Status> {
        self.check_certificate(remote, envelope)?;
        let sender = self.sender_in_cluster(envelope)?;
        match slot == 0 || slot == u32::from(self.id.slot()) {
            true => Ok(sender),
            false => {
                Err(refused(format!("the message is for slot {slot}, this is member {}", self.id)))
            }
        }
    }

    /// With certificates: checks that the connection is that of the slot that the message names.
    fn check_certificate(
        &self,
        remote: &Remote,
        envelope: Option<&Envelope>,
    ) -> Result<(), Status> {
        let (Some(_), Some(envelope)) = (&self.tls, envelope) else { return Ok(()) };
        let sender = NodeId::from_u64(envelope.sender);
        let certificate = remote.certificate.as_ref();
        let of_cluster = certificate.filter(|name| *name.cluster == *self.cluster);
        if of_cluster.and_then(CertificateName::slot) == Some(sender.slot()) {
            return Ok(());
        }
        let shown = certificate.map_or_else(|| "none".to_owned(), ToString::to_string);
        let reason = format!(
            "the message is in the name of member {sender}, and the certificate of its connection is {shown}"
        );
        let now = runtime::now();
        let mut logged = self.foreign_logged.lock();
        if logged.is_none_or(|last| now - last >= LOG_INTERVAL) {
            *logged = Some(now);
            let address = remote.address.map(|address| address.to_string()).unwrap_or_default();
            tracing::warn!(node = %self.id, address, "refused: {reason}");
        }
        Err(refused(reason))
    }

    /// The member that answers a Hello to `slot`.
    pub(crate) fn sender_of_hello_answer(
        &self,
        answer: &impl Enveloped,
        slot: u16,
    ) -> Result<NodeId, Status> {
        let id = NodeId::from_u64(answer.envelope().map_or(0, |envelope| envelope.sender));
        if id.slot() != slot && answer.envelope().is_some() {
            return Err(refused(format!("member {id} answered")));
        }
        self.check_answer(answer, id).map(|()| id)
    }

    /// Checks that an answer comes from the member that was asked.
    pub(crate) fn check_answer(&self, answer: &impl Enveloped, from: NodeId) -> Result<(), Status> {
        let asked = answer.envelope().map_or(from, |envelope| NodeId::from_u64(envelope.sender));
        if asked.slot() != from.slot() {
            // Nothing of it is recorded: its connection is that of another slot.
            return Err(refused(format!(
                "member {from} was asked, and the answer is from {asked}"
            )));
        }
        let sender = self.sender_in_cluster(answer.envelope())?;
        let receiver = NodeId::from_u64(answer.envelope().map_or(0, |envelope| envelope.receiver));
        match sender == from && receiver == self.id {
            true => Ok(()),
            false => Err(refused(format!(
                "member {from} was asked, and the answer is from {sender} to {receiver} (this is {})",
                self.id
            ))),
        }
    }

    /// Refuses a build that cannot read what the members of this cluster write.
    fn check_version(&self, sender: NodeId, boot: &Boot) -> Result<(), Status> {
        let cluster = self.identities.version();
        if boot.version >= cluster {
            return Ok(());
        }
        let reason = format!(
            "member {sender} speaks version {}, and the cluster's is {cluster}: start a release of version {cluster} or later \
             there",
            boot.version
        );
        let now = runtime::now();
        let mut logged = self.old_logged.lock();
        if logged.is_none_or(|last| now - last >= LOG_INTERVAL) {
            *logged = Some(now);
            tracing::warn!(node = %self.id, "refused: {reason}");
        }
        Err(refused(reason))
    }

    fn sender_in_cluster(&self, envelope: Option<&Envelope>) -> Result<NodeId, Status> {
        let envelope =
            envelope.ok_or_else(|| refused("the message names no sender and receiver".into()))?;
        let sender = NodeId::from_u64(envelope.sender);
        if envelope.cluster != *self.cluster {
            return Err(refused(format!(
                "the message is of cluster `{}`, this is a member of `{}`",
                envelope.cluster, self.cluster
            )));
        }
        if envelope.generation != self.generation() {
            return Err(refused(self.of_other_generation(envelope)));
        }
        if envelope.protocol != PROTOCOL {
            return Err(refused(format!(
                "member {sender} speaks version {} of the protocol between members, this one, {}, speaks {PROTOCOL}: run \
                 releases that fit on both",
                envelope.protocol, self.id
            )));
        }
        if self.identities.is_removed(sender) {
            let reason = format!(
                "member {sender} is removed; give it an empty data directory, so that it joins under a new identity"
            );
            return Err(Status::new(REFUSED_IDENTITY, reason));
        }
        if sender.slot() == self.id.slot() && sender != self.id {
            return Err(refused(format!(
                "member {sender} claims the slot of this member, {}",
                self.id
            )));
        }
        let boot = Boot::announced(envelope);
        self.check_version(sender, &boot)?;
        // A boot epoch that is earlier than one already known, or another boot of the same number.
        let epoch = boot.epoch;
        match self.identities.observe(sender, &boot, &envelope.fencing_history) {
            Ok(()) => {
                self.machines.observe(sender, envelope);
                Ok(sender)
            }
            Err(known) => {
                let reason = format!(
                    "member {sender} sends from boot epoch {} ({:016x}), and its boot epoch {} ({:016x}) is known: a late \
                     message, or an older copy of its data directory; bring the newest one back, or give it an empty one",
                    epoch.number, epoch.nonce, known.number, known.nonce
                );
                Err(Status::new(REFUSED_IDENTITY, reason))
            }
        }
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

/// The sender's boot epoch.
pub(crate) fn epoch_of(envelope: Option<&Envelope>) -> BootEpoch {
    envelope.map_or(BootEpoch { number: 0, nonce: 0 }, |envelope| BootEpoch {
        number: envelope.boot_epoch,
        nonce: envelope.boot_nonce,
    })
}

fn refused(reason: String) -> Status {
    Status::failed_precondition(reason)
}

#[cfg(test)]
mod tests;
