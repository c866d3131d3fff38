//! The handshake in every message: between whom it travels.
//!
//! The story against which this stands: a member's disk is wiped and the member comes back at the same address with
//! another incarnation, or another cluster's member is configured there by mistake. Whatever was meant for the one that
//! was there before must not be taken by the one that is there now. And: a copy of a member's disk is
//! started beside it, or an older state of it is restored. Each start of a member has a number and a nonce; whoever has
//! heard of a later start does not listen to an earlier one, nor to another one with the same number.

use super::terms::{Sender, Terms};
use crate::core::ids::NodeId;
use crate::core::proto::Envelope;
use crate::storage::state_machine::retired::Retired;
use crate::storage::state_machine::starts::Starts;
use cairn_engine::{Engine, Lineage, Run};
use std::sync::Arc;
use tonic::{Code, Status};

/// This member, towards the others.
#[derive(Clone)]
pub(crate) struct PeerIdentity {
    cluster: Arc<str>,
    id: NodeId,
    run: Run,
    lineage: Lineage,
    starts: Starts,
    retired: Retired,
    terms: Terms,
}

/// The version of the protocol between members that this release speaks.
pub(crate) const PROTOCOL: u32 = 1;

/// How a message is refused from an identity that is no member any more, or from an older copy of a member's disk.
pub(crate) const OUTCAST: Code = Code::PermissionDenied;

impl PeerIdentity {
    /// Of the member that this engine holds.
    pub(crate) fn of(engine: &Engine, starts: Starts, retired: Retired) -> PeerIdentity {
        let own = engine.identity();
        let id = NodeId::new(own.slot, own.incarnation);
        let (cluster, lineage) = (own.cluster.as_str().into(), engine.lineage());
        PeerIdentity { cluster, id, run: engine.run(), lineage, starts, retired, terms: Terms::of(engine) }
    }

    /// Of somebody who has no data directory yet, and only asks.
    pub(crate) fn unborn(cluster: &str, id: NodeId) -> PeerIdentity {
        let run = Run { start: 0, nonce: 0 };
        let (starts, retired) = (Starts::default(), Retired::default());
        let (lineage, terms) = (Lineage::default(), Terms::default());
        PeerIdentity { cluster: cluster.into(), id, run, lineage, starts, retired, terms }
    }

    pub(crate) fn starts(&self) -> &Starts {
        &self.starts
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// To look at the votes that `sender` sends.
    pub(crate) fn votes_of(&self, sender: NodeId) -> Sender<'_> {
        self.terms.said_by(sender)
    }

    /// The envelope of a message to `receiver`.
    pub(crate) fn to(&self, receiver: NodeId) -> Option<Envelope> {
        Some(Envelope {
            cluster: self.cluster.to_string(),
            sender: self.id.as_u64(),
            receiver: receiver.as_u64(),
            start: self.run.start,
            run: self.run.nonce,
            lineage: self.lineage.to_vec(),
            protocol: PROTOCOL,
        })
    }

    /// The envelope of a message to whoever is there.
    pub(crate) fn to_anyone(&self) -> Option<Envelope> {
        self.to(NodeId::from_u64(0))
    }

    /// Who sent a request that is meant for this member.
    pub(crate) fn sender_of_request(&self, envelope: Option<&Envelope>) -> Result<NodeId, Status> {
        let sender = self.sender_in_cluster(envelope)?;
        let receiver = NodeId::from_u64(envelope.map_or(0, |envelope| envelope.receiver));
        match receiver == self.id {
            true => Ok(sender),
            false => Err(refused(format!("the message is for member {receiver}, this is {}", self.id))),
        }
    }

    /// Who sent a Hello, which need not know whom it meets beyond the slot.
    pub(crate) fn sender_of_hello(&self, envelope: Option<&Envelope>, slot: u32) -> Result<NodeId, Status> {
        let sender = self.sender_in_cluster(envelope)?;
        match slot == u32::from(self.id.slot()) {
            true => Ok(sender),
            false => Err(refused(format!("the message is for slot {slot}, this is member {}", self.id))),
        }
    }

    /// An answer must come from the member that was asked.
    pub(crate) fn check_answer(&self, envelope: Option<&Envelope>, from: NodeId) -> Result<(), Status> {
        let sender = self.sender_in_cluster(envelope)?;
        let receiver = NodeId::from_u64(envelope.map_or(0, |envelope| envelope.receiver));
        match sender == from && receiver == self.id {
            true => Ok(()),
            false => Err(refused(format!(
                "member {from} was asked, and the answer is from {sender} to {receiver} (this is {})",
                self.id
            ))),
        }
    }

    pub(crate) fn sender_in_cluster(&self, envelope: Option<&Envelope>) -> Result<NodeId, Status> {
        let envelope =
            envelope.ok_or_else(|| refused("the message does not say between whom it travels".into()))?;
        let sender = NodeId::from_u64(envelope.sender);
        if envelope.cluster != *self.cluster {
            return Err(refused(format!(
                "the message is of cluster `{}`, this is a member of `{}`",
                envelope.cluster, self.cluster
            )));
        }
        if envelope.protocol != PROTOCOL {
            return Err(refused(format!(
                "member {sender} speaks version {} of the protocol between members, this one, {}, speaks {PROTOCOL}: run \
                 releases on them that fit",
                envelope.protocol, self.id
            )));
        }
        if self.retired.contains(sender) {
            let reason = format!(
                "member {sender} is retired, another one took its slot; make its data directory anew, so that it joins \
                 under a new identity"
            );
            return Err(Status::new(OUTCAST, reason));
        }
        if sender.slot() == self.id.slot() && sender != self.id {
            return Err(refused(format!("member {sender} claims the slot of this member, {}", self.id)));
        }
        self.fence(sender, run_of(envelope), &envelope.lineage)?;
        Ok(sender)
    }

    /// Refuses an earlier start of a member than one already heard of, and a twin of it.
    fn fence(&self, sender: NodeId, run: Run, lineage: &[u64]) -> Result<(), Status> {
        match self.starts.hear(sender, run, lineage) {
            Ok(()) => Ok(()),
            Err(known) => {
                let reason = format!(
                    "member {sender} speaks from its start {} ({:016x}), and its start {} ({:016x}) is known: a late \
                     message, or an older copy of its data directory; bring the newest one back, or make it anew",
                    run.start, run.nonce, known.start, known.nonce
                );
                Err(Status::new(OUTCAST, reason))
            }
        }
    }
}

/// The sender's start.
pub(crate) fn run_of(envelope: &Envelope) -> Run {
    Run { start: envelope.start, nonce: envelope.run }
}

fn refused(reason: String) -> Status {
    Status::failed_precondition(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(cluster: &str, sender: NodeId, receiver: NodeId) -> Envelope {
        envelope_of(cluster, sender, receiver, 1, 1)
    }

    fn envelope_of(cluster: &str, sender: NodeId, receiver: NodeId, start: u64, run: u64) -> Envelope {
        Envelope {
            cluster: cluster.into(),
            sender: sender.as_u64(),
            receiver: receiver.as_u64(),
            start,
            run,
            lineage: vec![],
            protocol: PROTOCOL,
        }
    }

    fn member(retired: Retired) -> PeerIdentity {
        PeerIdentity {
            cluster: "blue".into(),
            id: NodeId::new(1, 11),
            run: Run { start: 1, nonce: 9 },
            lineage: Lineage::default(),
            starts: Starts::default(),
            retired,
            terms: Terms::default(),
        }
    }

    fn here() -> PeerIdentity {
        member(Retired::default())
    }

    #[test]
    fn an_earlier_start_and_a_twin_are_refused_once_a_later_start_was_heard() {
        let here = here();
        let hear = |start, run| {
            let message = envelope_of("blue", NodeId::new(2, 22), NodeId::new(1, 11), start, run);
            here.sender_of_request(Some(&message)).map(drop)
        };
        hear(4, 40).unwrap();
        hear(4, 40).unwrap();
        assert!(hear(4, 41).unwrap_err().message().contains("older copy"));
        assert!(hear(3, 30).is_err());
        hear(5, 50).unwrap();
        assert!(hear(4, 40).is_err());
        hear(5, 50).unwrap();
    }

    #[test]
    fn a_retired_identity_is_refused_whoever_it_talks_to() {
        let retired = Retired::default();
        let here = member(retired.clone());
        let old = NodeId::new(2, 22);
        let message = envelope("blue", old, NodeId::new(1, 11));
        here.sender_of_request(Some(&message)).unwrap();
        retired.are(&Arc::new([old].into()));
        assert!(here.sender_of_request(Some(&message)).unwrap_err().code() == OUTCAST);
        assert!(here.sender_of_hello(Some(&message), 1).is_err());
        assert!(here.check_answer(Some(&message), old).is_err());
        here.sender_of_request(Some(&envelope("blue", NodeId::new(2, 23), NodeId::new(1, 11)))).unwrap();
    }

    #[test]
    fn a_request_for_this_member_is_taken() {
        let message = envelope("blue", NodeId::new(2, 22), NodeId::new(1, 11));
        assert_eq!(here().sender_of_request(Some(&message)).unwrap(), NodeId::new(2, 22));
    }

    #[test]
    fn a_request_for_an_earlier_incarnation_is_refused() {
        let message = envelope("blue", NodeId::new(2, 22), NodeId::new(1, 10));
        let status = here().sender_of_request(Some(&message)).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(status.message().contains("for member 1.a, this is 1.b"), "{}", status.message());
    }

    #[test]
    fn a_request_of_another_cluster_is_refused() {
        let message = envelope("red", NodeId::new(2, 22), NodeId::new(1, 11));
        let status = here().sender_of_request(Some(&message)).unwrap_err();
        assert!(status.message().contains("cluster `red`"), "{}", status.message());
    }

    #[test]
    fn a_message_in_another_version_of_the_protocol_is_refused_by_name_before_anything_else_of_it_is_believed()
     {
        let message =
            |protocol| Envelope { protocol, ..envelope("blue", NodeId::new(2, 22), NodeId::new(1, 11)) };
        let here = here();
        for other in [0, PROTOCOL + 1, u32::MAX] {
            let later = Envelope { start: 9, ..message(other) };
            let status = here.sender_of_request(Some(&later)).unwrap_err();
            assert_eq!(status.code(), tonic::Code::FailedPrecondition);
            let named = format!("version {other} of the protocol between members");
            assert!(status.message().contains(&named), "{}", status.message());
            assert!(here.check_answer(Some(&later), NodeId::new(2, 22)).is_err());
        }
        here.sender_of_request(Some(&message(PROTOCOL))).unwrap();
    }

    #[test]
    fn a_request_without_an_envelope_is_refused() {
        assert!(here().sender_of_request(None).is_err());
    }

    #[test]
    fn a_twin_in_the_same_slot_is_refused() {
        let message = envelope("blue", NodeId::new(1, 99), NodeId::new(1, 11));
        assert!(here().sender_of_request(Some(&message)).is_err());
    }

    #[test]
    fn an_answer_by_another_incarnation_is_refused() {
        let answer = envelope("blue", NodeId::new(2, 23), NodeId::new(1, 11));
        assert!(here().check_answer(Some(&answer), NodeId::new(2, 22)).is_err());
        assert!(here().check_answer(Some(&answer), NodeId::new(2, 23)).is_ok());
    }
}
