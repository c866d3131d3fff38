//! Asking a node outside of openraft: for its identity before it is known, to add this node, to
//! help a member recover that may have lost the tail of its log.

use super::addresses::{Addresses, is_storable};
use super::connection::call_at;
use super::identity::{PeerIdentity, epoch_of};
use super::messages;
use super::wire::methods::{HELLO, JOIN, RECOVER, SAFE_TO_STOP};
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::types::Vote;
use crate::core::{codec, hooks, proto};
use cairn_engine::{BootEpoch, LogId, Mode};
use std::collections::BTreeSet;
use tonic::Status;

/// More members than any cluster has: an answer names no more of them.
const CONTACTS_MAX: usize = 256;

/// The node that answered.
pub(crate) struct Answer {
    pub(crate) id: NodeId,
    pub(crate) epoch: BootEpoch,
    /// Where it says that it is reached, if that can be dialled.
    pub(crate) address: Option<MemberAddress>,
    /// Whether it was never part of a cluster.
    pub(crate) uninitialized: bool,
    /// If it leads: the voter without contact that the asking node may replace.
    pub(crate) replaceable_voter: Option<NodeId>,
    /// The last entry of its log.
    pub(crate) last_log_id: Option<LogId>,
    /// Where it would look for the members that it knows.
    pub(crate) contacts: BTreeSet<String>,
    /// What its acknowledgements mean by its log.
    pub(crate) mode: Option<Mode>,
    /// Its unsynced-ack flag.
    pub(crate) unsynced_acks: bool,
    /// It may take over leadership: it is active, and no operator drains it.
    pub(crate) may_lead: bool,
    /// It may have lost acknowledged entries.
    pub(crate) recovering: bool,
    /// It was asked to stop.
    pub(crate) stopping: bool,
}

impl Answer {
    /// Whether it acknowledges nothing unsynced any more, and has synced what it acknowledged
    /// before. A recovering member may have lost that, and the flag that says so with it.
    pub(crate) fn holds_synced(&self) -> bool {
        let ended = self.mode.is_some_and(|mode| mode != Mode::Replicated);
        ended && !self.unsynced_acks && !self.recovering
    }
}

/// Who is asked: where, and which slot's member is expected there, if any.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Contact {
    pub(crate) address: String,
    pub(crate) slot: Option<u16>,
}

impl Contact {
    /// Whoever listens there.
    pub(crate) fn at(address: impl Into<String>) -> Contact {
        Contact { address: address.into(), slot: None }
    }
}

/// Asks the node at `contact` for its identity, and announces where this one is reached, if it is.
///
/// # Errors
/// The refusal, in the words of the member that was asked.
pub(crate) async fn hello(
    identity: &PeerIdentity,
    own: Option<&Addresses>,
    contact: &Contact,
) -> Result<Answer, Status> {
    // The receiver's identity is not known yet.
    let envelope = identity.to(NodeId::from_u64(0));
    let advertised = own.map(|own| own.advertised().clone()).unwrap_or_default();
    let request = proto::HelloRequest {
        envelope,
        receiver_slot: contact.slot.map_or(0, u32::from),
        peer_address: advertised.peer,
        client_address: advertised.client,
        waiting_for: identity.formation.says(),
    };
    let answer = call_at(identity.tls(), (contact.slot, &contact.address), HELLO, request);
    let answer = answer.await?;
    if identity.tls().is_none() || contact.slot.is_some() {
        identity.adopt_generation(&answer).await;
    }
    // With certificates, whoever listens there only tells which slot's member to ask: then that
    // member's certificate must answer.
    let claimed = NodeId::from_u64(answer.envelope.as_ref().map_or(0, |envelope| envelope.sender));
    if identity.tls().is_some() && contact.slot.is_none() {
        let contact = Contact { slot: Some(claimed.slot()), ..contact.clone() };
        return Box::pin(hello(identity, own, &contact)).await;
    }
    // The answering node may be a removed one. That says nothing about this one, so do not pass on
    // the code `REFUSED_IDENTITY`.
    let id = identity
        .sender_of_hello_answer(&answer, contact.slot.unwrap_or(claimed.slot()))
        .map_err(wrong_node)?;
    let address = MemberAddress { peer: answer.peer_address, client: answer.client_address };
    let contacts = answer.contacts.into_iter().take(CONTACTS_MAX).map(|contact| MemberAddress {
        peer: contact.peer_address.clone(),
        client: contact.peer_address,
    });
    Ok(Answer {
        id,
        epoch: epoch_of(answer.envelope.as_ref()),
        address: Some(address).filter(is_storable),
        uninitialized: answer.uninitialized,
        replaceable_voter: Some(answer.replaceable_voter)
            .filter(|voter| *voter != 0)
            .map(NodeId::from_u64),
        last_log_id: answer.last_log_id.map(LogId::from),
        contacts: contacts.filter(is_storable).map(|contact| contact.peer).collect(),
        mode: codec::mode_from_number(answer.mode),
        unsynced_acks: answer.unsynced_acks,
        may_lead: answer.may_lead,
        recovering: answer.recovering,
        stopping: answer.stopping,
    })
}

/// Asks a member at each of its addresses until it answers.
pub(crate) async fn ask(
    identity: &PeerIdentity,
    own: &Addresses,
    member: NodeId,
) -> Option<Answer> {
    for address in own.of(member, None) {
        let contact = Contact { address, slot: Some(member.slot()) };
        let answer = hello(identity, Some(own), &contact).await;
        if let Some(answer) = answer.ok().filter(|answer| answer.id == member) {
            return Some(answer);
        }
    }
    None
}

/// Whether the systems at all addresses of a member refuse connections: its process is not there.
pub(crate) async fn refuses(identity: &PeerIdentity, own: &Addresses, member: NodeId) -> bool {
    let refused = own.of(member, None).into_iter().map(|address| async move {
        let contact = Contact { address, slot: Some(member.slot()) };
        let answer = hello(identity, Some(own), &contact).await;
        answer.is_err_and(|error| hooks::is_refused(member.slot(), &error))
    });
    let refused = futures::future::join_all(refused).await;
    !refused.is_empty() && refused.into_iter().all(|refused| refused)
}

/// Where `member` answers, for one of which the log tells nothing: asks at `seeds` and where others
/// announced themselves, and then where those who answer would look for members.
pub(crate) async fn find(
    identity: &PeerIdentity,
    own: &Addresses,
    member: NodeId,
    seeds: BTreeSet<String>,
) -> Option<String> {
    let (mut asking, mut asked) = (seeds, BTreeSet::new());
    asking.extend(own.unknown());
    for _ in 0..2 {
        let answers = asking.iter().take(CONTACTS_MAX).map(|address| async move {
            (address.clone(), hello(identity, Some(own), &Contact::at(address.clone())).await)
        });
        let mut told = BTreeSet::new();
        for (address, answer) in futures::future::join_all(answers).await {
            let Ok(answer) = answer else { continue };
            if answer.id == member {
                return Some(address);
            }
            told.extend(answer.contacts);
        }
        asked.append(&mut asking);
        asking = told.difference(&asked).cloned().collect();
    }
    None
}

/// The answer came from another node than the one that was asked.
fn wrong_node(status: Status) -> Status {
    Status::failed_precondition(status.message())
}

/// Why a call failed: the system's error, if the call did not reach the member, or else what the
/// member says.
pub(crate) fn cause(status: &Status) -> String {
    let causes = std::iter::successors(std::error::Error::source(status), |cause| cause.source());
    let said = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    causes.last().map_or_else(|| said.to_owned(), ToString::to_string)
}

/// Whether a member may be stopped now without keeping the cluster from serving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopVerdict {
    /// The member.
    pub member: NodeId,
    /// Why it must not be stopped, a sentence for each reason; empty: it may be.
    pub obstacles: Vec<String>,
}

/// Asks `leader`, at each of its addresses until it answers, which members may be stopped now.
///
/// # Errors
/// Why nobody can tell.
pub(crate) async fn ask_safe_to_stop(
    identity: &PeerIdentity,
    own: &Addresses,
    leader: NodeId,
) -> Result<Vec<StopVerdict>, String> {
    let mut last = format!("no address of the leader, {leader}, is known");
    for address in own.of(leader, None) {
        let request = proto::SafeToStopRequest { envelope: identity.to(leader) };
        let answer =
            call_at(identity.tls(), (Some(leader.slot()), &address), SAFE_TO_STOP, request);
        let answer = answer.await.and_then(|answer| {
            identity.check_answer(&answer, leader)?;
            Ok(answer)
        });
        match answer {
            Ok(answer) => {
                let verdict = |verdict: proto::StopVerdict| StopVerdict {
                    member: NodeId::from_u64(verdict.node_id),
                    obstacles: verdict.obstacles,
                };
                return Ok(answer.verdicts.into_iter().take(CONTACTS_MAX).map(verdict).collect());
            }
            Err(status) => {
                last = format!("the leader, {leader}, does not tell: {}", cause(&status))
            }
        }
    }
    Err(last)
}

/// A node that asks to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingJoin {
    pub(crate) id: NodeId,
    pub(crate) address: MemberAddress,
    /// Its state is active: it holds everything that it acknowledged.
    pub(crate) active: bool,
}

/// Asks `leader`, expected at `address`, to add this node. Returns whether it votes already.
///
/// # Errors
/// The refusal, in the words of the member that was asked.
pub(crate) async fn ask_to_join(
    identity: &PeerIdentity,
    leader: NodeId,
    address: &str,
    pending_join: PendingJoin,
) -> Result<bool, Status> {
    let request = proto::JoinRequest {
        envelope: identity.to(leader),
        peer_address: pending_join.address.peer,
        client_address: pending_join.address.client,
        active: pending_join.active,
    };
    let answer = call_at(identity.tls(), (Some(leader.slot()), address), JOIN, request);
    let answer = answer.await?;
    identity.check_answer(&answer, leader).map_err(wrong_node)?;
    Ok(answer.voter)
}

/// Asks `leader`, expected at `address`, to help this member recover. `unsafe_recovery`: also asks
/// it to log an unsafe-recovery record. Returns the leadership in which the leader agreed.
pub(crate) async fn ask_to_recover(
    identity: &PeerIdentity,
    leader: NodeId,
    address: &str,
    unsafe_recovery: bool,
) -> Result<Vote, String> {
    let request = proto::RecoverRequest { envelope: identity.to(leader), unsafe_recovery };
    let answer = call_at(identity.tls(), (Some(leader.slot()), address), RECOVER, request);
    let answer = answer.await.and_then(|answer| {
        identity.check_answer(&answer, leader)?;
        Ok(answer)
    });
    let answer = answer.map_err(|status| status.message().to_string())?;
    messages::vote_from_proto(answer.vote, identity.votes_of(leader))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_holds_everything_synced_only_if_it_says_so_and_recovers_nothing() {
        let modes = [None, Some(Mode::Replicated), Some(Mode::Sync), Some(Mode::Device)];
        for (mode, unsynced_acks, recovering) in modes
            .into_iter()
            .flat_map(|mode| [(mode, false), (mode, true)])
            .flat_map(|(mode, unsynced)| [(mode, unsynced, false), (mode, unsynced, true)])
        {
            let answer = Answer {
                id: NodeId::new(1, 1),
                epoch: BootEpoch { number: 1, nonce: 1 },
                address: None,
                uninitialized: false,
                replaceable_voter: None,
                last_log_id: None,
                contacts: BTreeSet::new(),
                mode,
                unsynced_acks,
                may_lead: !recovering,
                recovering,
                stopping: false,
            };
            let synced = matches!(mode, Some(Mode::Sync | Mode::Device));
            let expected = synced && !unsynced_acks && !recovering;
            assert_eq!(answer.holds_synced(), expected, "{mode:?} {unsynced_acks} {recovering}");
        }
    }
}
