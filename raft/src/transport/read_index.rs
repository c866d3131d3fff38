//! Asking the leader up to which entry a read must wait.

use super::addresses::Addresses;
use super::connection::{call, within};
use super::identity::PeerIdentity;
use super::peer::Peer;
use super::wire::methods::READ_INDEX;
use crate::core::error::Malformed;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::proto;
use cairn_engine::LogId;
use parking_lot::Mutex;
use tonic::Status;

/// The connection to the leader is kept for as long as it leads.
pub(crate) struct ReadIndexes {
    identity: PeerIdentity,
    addresses: Addresses,
    leader: Mutex<Option<(NodeId, Peer)>>,
}

impl ReadIndexes {
    pub(crate) fn new(identity: PeerIdentity, addresses: Addresses) -> ReadIndexes {
        ReadIndexes { identity, addresses, leader: Mutex::default() }
    }

    /// Asks the leader, once a quorum has confirmed there that it leads, for an entry: everything that was acknowledged before the call is applied where that entry is.
    ///
    /// # Errors
    /// The refusal, in the words of the member that was asked.
    pub(crate) async fn ask(
        &self,
        (leader, address): &(NodeId, MemberAddress),
    ) -> Result<LogId, Status> {
        let peer = self.peer(*leader, address);
        let connected = peer.client(|route| &route.control);
        let (route, client) = connected.map_err(|error| Status::unavailable(error.to_string()))?;
        let request = proto::ReadIndexRequest { envelope: self.identity.to(*leader) };
        let answer = within(0, call(&client, READ_INDEX, request)).await.and_then(|answer| {
            self.identity.check_answer(&answer, *leader)?;
            Ok(answer.log_id.ok_or(Malformed("no entry named"))?.into())
        });
        answer.inspect_err(|_| peer.failed(route))
    }

    fn peer(&self, leader: NodeId, address: &MemberAddress) -> Peer {
        let mut kept = self.leader.lock();
        if let Some((_, peer)) = kept.as_ref().filter(|(member, _)| *member == leader) {
            peer.given(address);
            return peer.clone();
        }
        let tls = self.identity.tls().cloned();
        let peer = Peer::new(leader, tls, address.clone(), self.addresses.clone());
        *kept = Some((leader, peer.clone()));
        peer
    }
}
