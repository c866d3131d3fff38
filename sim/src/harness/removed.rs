//! The identities that an operator removed.

use cairn_clients::Violation;
use cairn_raft::{NodeId, ReplicaStatus};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The property's name.
const REMOVED: &str = "a removed identity counts for nothing";

/// What an operator did to the membership.
#[derive(Default)]
pub(super) struct Operator {
    /// A change of the membership or of the mode is under way.
    busy: AtomicBool,
    /// The identities that are removed, with the latest term when the leader said so.
    removed: Mutex<BTreeMap<NodeId, u64>>,
}

impl Operator {
    /// Begins a change; false if another one is under way.
    pub(super) fn begin(&self) -> bool {
        !self.busy.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.busy.store(false, Ordering::Relaxed);
    }

    /// The leader said in this term that an identity is removed.
    pub(super) fn removed(&self, id: NodeId, term: u64) {
        self.removed.lock().entry(id).or_insert(term);
    }

    pub(super) fn is_removed(&self, id: NodeId) -> bool {
        self.removed.lock().contains_key(&id)
    }

    /// A leader uses these configurations.
    pub(super) fn check(&self, leader: &ReplicaStatus) -> Option<Violation> {
        let removed = self.removed.lock();
        let (id, since) = removed.iter().find(|(id, since)| {
            // One that was elected in a joint configuration may finish its own removal.
            let leads = leader.node_id == **id && leader.term > **since;
            let counts = || leader.configurations.iter().any(|all| all.contains(id));
            leads || leader.term >= **since && counts()
        })?;
        let detail = format!(
            "{id} was removed in term {since}; {} leads term {} with {:?}",
            leader.node_id, leader.term, leader.configurations
        );
        Some(Violation::new(REMOVED, detail))
    }
}
