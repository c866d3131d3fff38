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
use super::throttle::Throttle;
use crate::core::boot::Boot;
use crate::core::ids::NodeId;
use crate::core::machine::Machine;
use crate::core::proto::{self, Envelope};
use crate::core::types::Vote;
use crate::core::version::{Feature, RELEASE, VERSION};
use crate::storage::state_machine::identities::Identities;
use cairn_engine::{BootEpoch, Engine, FencingHistory};
use cairn_tls::{CertificateName, Remote, Tls};
use futures::future::BoxFuture;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};
use tokio::sync::RwLock;
use tonic::{Code, Status};

/// This member's identity, for messages to the others and checks of theirs.
#[derive(Clone)]
pub(crate) struct PeerIdentity {
    pub(super) cluster: Arc<str>,
    /// The cluster's generation, and the directory that remembers it.
    pub(super) generation: Arc<AtomicU32>,
    /// Written while the generation changes. Read while a cluster is formed, and while a message is
    /// carried out that makes a blank member a part of one.
    pub(crate) fence: Arc<RwLock<()>>,
    pub(super) is_blank: Arc<OnceLock<IsBlank>>,
    pub(super) engine: Option<Engine>,
    pub(super) id: NodeId,
    epoch: BootEpoch,
    fencing_history: FencingHistory,
    pub(crate) identities: Identities,
    /// On which machines this member and the others run.
    pub(crate) machines: Machines,
    /// The formation of the cluster: who forms it, and what it waits for.
    pub(crate) formation: Formation,
    terms: Terms,
    /// The certificates of this member; `None`: messages are taken for what they claim.
    tls: Option<Tls>,
    /// Log lines about messages under another member's certificate, of a member that speaks too
    /// little, and of another generation.
    foreign: Throttle,
    old: Throttle,
    pub(super) other_generation: Throttle,
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
    SafeToStopResponse ReadIndexResponse
}

/// The version of the protocol between members that this release speaks.
pub(crate) const PROTOCOL: u32 = 1;

/// The code that refuses a removed identity, or an older copy of a member's disk.
pub(crate) const REFUSED_IDENTITY: Code = Code::PermissionDenied;

impl PeerIdentity {
    /// The identity of the member that this engine holds.
    pub(crate) fn of(engine: &Engine, identities: Identities) -> PeerIdentity {
        let own = engine.identity();
        PeerIdentity {
            generation: Arc::new(AtomicU32::new(engine.generation())),
            engine: Some(engine.clone()),
            epoch: engine.boot_epoch(),
            fencing_history: engine.fencing_history(),
            identities,
            terms: Terms::of(engine),
            ..PeerIdentity::without_identity(&own.cluster, NodeId::new(own.slot, own.incarnation))
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
            foreign: Throttle::default(),
            old: Throttle::default(),
            other_generation: Throttle::default(),
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

    /// The sender of a request to this member, which came from `remote`.
    pub(crate) fn sender_of_request(
        &self,
        remote: &Remote,
        envelope: Option<&Envelope>,
    ) -> Result<NodeId, Status> {
        self.check_certificate(remote, envelope)?;
        self.note_predecessor(envelope);
        self.log_other_generation(envelope);
        let sender = self.sender_in_cluster(envelope)?;
        let receiver = NodeId::from_u64(envelope.map_or(0, |envelope| envelope.receiver));
        if receiver == self.id {
            return Ok(sender);
        }
        Err(refused(format!("the message is for member {receiver}, this is {}", self.id)))
    }

    /// The sender of a Hello, which names only the receiver's slot, or 0 for whoever listens.
    pub(crate) fn sender_of_hello(
        &self,
        remote: &Remote,
        envelope: Option<&Envelope>,
        slot: u32,
    ) -> Result<NodeId, Status> {
        self.check_certificate(remote, envelope)?;
        self.note_predecessor(envelope);
        let sender = self.sender_in_cluster(envelope)?;
        match slot == 0 || slot == u32::from(self.id.slot()) {
            true => Ok(sender),
            false => {
                Err(refused(format!("the message is for slot {slot}, this is member {}", self.id)))
            }
        }
    }

    /// Notes that another member takes this one for the identity that had its slot. Its generation may be
    /// another one: a cluster that was restored has one, and a blank member none.
    pub(super) fn note_predecessor(&self, envelope: Option<&Envelope>) {
        let Some(envelope) = envelope.filter(|envelope| envelope.cluster == *self.cluster) else {
            return;
        };
        let [sender, receiver] = [envelope.sender, envelope.receiver].map(NodeId::from_u64);
        let same_slot = receiver.slot() == self.id.slot() && receiver != self.id;
        if same_slot && sender.slot() != self.id.slot() {
            self.formation.asked_for(receiver, sender);
        }
    }

    /// With certificates: checks that the connection is that of the slot that the message names.
    pub(super) fn check_certificate(
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
        if self.foreign.is_due() {
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
        if self.old.is_due() {
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
