//! Forming the cluster, once.
//!
//! Every member was formatted with the cluster's name, its slot and a random incarnation, and is configured with the
//! same initial members. The member of the lowest slot asks the others who they are, and when it has heard from all of
//! them, and all are blank as it is itself, it makes them the first membership. The others wait to be told.
//!
//! The story against which this stands: the member of the lowest slot loses its disk and comes back blank. The others
//! are not blank any more, so it must not form a second cluster beside the first: it waits.

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::metrics::look_at;
use crate::core::runtime;
use crate::storage::Raft;
use crate::transport::{PeerIdentity, hello};
use std::collections::BTreeMap;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(100);
/// Asking goes on quietly; a line is logged once in so many rounds.
const ROUNDS_PER_LINE: u64 = 100;

/// A blank member that may have to form its cluster.
pub(crate) struct Forming {
    pub(crate) identity: PeerIdentity,
    pub(crate) raft: Raft,
    pub(crate) members: BTreeMap<u16, MemberAddress>,
}

impl Forming {
    /// Whether it is this member that forms the cluster.
    pub(crate) fn is_mine(&self) -> bool {
        self.members.keys().next() == Some(&self.identity.id().slot())
    }

    /// Asks until every member has answered, then forms the cluster.
    pub(crate) async fn run(self, stop: impl Fn() -> bool + Send + 'static) {
        let mut known = BTreeMap::from([(self.identity.id().slot(), self.identity.id())]);
        for round in 0.. {
            if stop() || self.joined() {
                return;
            }
            match self.ask(&mut known).await {
                Ok(()) if known.len() == self.members.len() => return self.form(&known).await,
                Ok(()) => {}
                Err(reason) if round % ROUNDS_PER_LINE == 0 => {
                    tracing::info!(node = %self.identity.id(), reason, "the cluster is not formed yet");
                }
                Err(_) => {}
            }
            runtime::sleep(PAUSE).await;
        }
    }

    /// Somebody else has made this member part of a cluster.
    fn joined(&self) -> bool {
        look_at(&self.raft, |metrics| {
            metrics.running_state.is_err() || metrics.membership_config.voter_ids().next().is_some()
        })
    }

    async fn ask(&self, known: &mut BTreeMap<u16, NodeId>) -> Result<(), String> {
        let mut missing = Err(String::new());
        // Everybody is asked anew each round: a member that was wiped since has another identity.
        known.retain(|slot, _| *slot == self.identity.id().slot());
        for (slot, address) in &self.members {
            if *slot == self.identity.id().slot() {
                continue;
            }
            match hello(&self.identity, *slot, &address.peer).await {
                Ok(answer) if answer.blank => {
                    known.insert(*slot, answer.id);
                }
                Ok(answer) => {
                    return Err(format!(
                        "member {} already belongs to a formed cluster, and this member is blank; it waits to be \
                         taken in",
                        answer.id
                    ));
                }
                Err(status) => {
                    missing = Err(format!("slot {slot} at {}: {}", address.peer, status.message()))
                }
            }
        }
        match known.len() == self.members.len() {
            true => Ok(()),
            false => missing,
        }
    }

    async fn form(&self, known: &BTreeMap<u16, NodeId>) {
        let members: BTreeMap<NodeId, MemberAddress> = known
            .iter()
            .filter_map(|(slot, id)| self.members.get(slot).map(|address| (*id, address.clone())))
            .collect();
        let names: Vec<String> = members.keys().map(NodeId::to_string).collect();
        match self.raft.initialize(members).await {
            Ok(()) => tracing::info!(node = %self.identity.id(), members = ?names, "the cluster is formed"),
            Err(error) => tracing::error!(node = %self.identity.id(), %error, "the cluster cannot be formed"),
        }
    }
}
