//! The newcomer's side: asks to be taken in until it votes. And a member of whom nobody takes notice any more finds out why.

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::metrics::look_at;
use crate::core::runtime;
use crate::durability::LocalMember;
use crate::transport::{self, Applicant};
use openraft::ServerState;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// Between two rounds of asking; less than the time for which a leader remembers that it was asked.
const PAUSE: Duration = Duration::from_secs(1);
/// A member that has heard no leader for so long asks the others what they think of it.
const LONELY: Duration = Duration::from_secs(5);

/// A member that may have to be taken in.
pub(crate) struct Newcomer {
    pub(crate) member: Arc<LocalMember>,
    /// Why this identity has no place in the cluster any more.
    pub(crate) outcast: Arc<Mutex<Option<String>>>,
}

/// How a member stands to the cluster, as far as it knows.
enum Place {
    Votes,
    /// A voter by its own log, but no leader is heard.
    Lonely,
    Asks,
}

impl Newcomer {
    /// Runs until the member stops.
    pub(crate) async fn run(self) {
        let began = runtime::now();
        let mut said = BTreeMap::new();
        while !self.member.stops() {
            runtime::sleep(PAUSE).await;
            match self.place() {
                Place::Votes => *self.outcast.lock() = None,
                Place::Lonely if runtime::now() - began > LONELY => self.ask_all(false, &mut said).await,
                Place::Lonely => {}
                Place::Asks => self.ask_all(true, &mut said).await,
            }
        }
    }

    fn place(&self) -> Place {
        let metrics = look_at(&self.member.raft, Clone::clone);
        if !metrics.membership_config.voter_ids().any(|voter| voter == metrics.id) {
            return Place::Asks;
        }
        // What openraft names as leader may be what it remembers from before its restart, and a leader that was replaced while
        // its machine was suspended goes on without a quorum.
        let now = runtime::now();
        let leads = metrics.state == ServerState::Leader
            && metrics.last_quorum_acked.is_some_and(|at| now - *at < LONELY);
        match leads || self.member.gate.heard_within(LONELY) {
            true => Place::Votes,
            false => Place::Lonely,
        }
    }

    /// Asks everybody who is there, and whoever leads to take this member in.
    async fn ask_all(&self, join: bool, said: &mut BTreeMap<u16, String>) {
        let (node, members) = (self.member.identity.id(), &self.member.config.initial_members);
        let Some(own) = members.get(&node.slot()) else { return };
        for (slot, address) in members.iter().filter(|(slot, _)| **slot != node.slot()) {
            let answer = match transport::hello(&self.member.identity, *slot, &address.peer).await {
                Ok(answer) if answer.blank || !join => continue,
                Ok(answer) => self.ask(answer.id, address, own).await,
                Err(status) => Err(status),
            };
            match answer {
                Ok(_) => {
                    *self.outcast.lock() = None;
                    return;
                }
                Err(status) if status.code() == transport::OUTCAST => {
                    let reason = status.message().to_string();
                    if self.outcast.lock().replace(reason.clone()).is_none() {
                        tracing::warn!(%node, reason, "this identity has no place in the cluster any more");
                    }
                    return;
                }
                Err(status) => {
                    let before = said.insert(*slot, status.message().to_string());
                    if before.is_none_or(|before| before != status.message()) {
                        let what = if join {
                            "not taken in yet"
                        } else {
                            "no leader is heard, and another member refuses"
                        };
                        tracing::info!(%node, member = slot, reason = status.message(), "{what}");
                    }
                }
            }
        }
    }

    async fn ask(
        &self,
        leader: NodeId,
        address: &MemberAddress,
        own: &MemberAddress,
    ) -> Result<bool, Status> {
        let LocalMember { identity, gate, .. } = &*self.member;
        let applicant = Applicant { id: identity.id(), address: own.clone(), active: gate.is_open() };
        transport::ask_to_join(identity, leader, &address.peer, &applicant).await
    }
}
